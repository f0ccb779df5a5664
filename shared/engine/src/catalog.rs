//! The tools that agents may use: those that ship with the program, and those of the operator's directory.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use kernel::tool::ToolSpec;

use crate::digest::digest;

/// The declarations that ship with the program: what the tool-executor can do by itself.
const SHIPPED: [&str; 8] = [
    include_str!("../../../infra/agents/tools/artifact.read.yaml"),
    include_str!("../../../infra/agents/tools/file.read.yaml"),
    include_str!("../../../infra/agents/tools/file.write.yaml"),
    include_str!("../../../infra/agents/tools/http.get.yaml"),
    include_str!("../../../infra/agents/tools/http.request.yaml"),
    include_str!("../../../infra/agents/tools/repo.checkout.yaml"),
    include_str!("../../../infra/agents/tools/shell.run.yaml"),
    include_str!("../../../infra/agents/tools/test.echo.yaml"),
];

/// A tool file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// It cannot be read.
    #[error("{path} cannot be read")]
    Read {
        /// Which file or directory.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// It is not a tool declaration.
    #[error("{path}: {problem}")]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// What is wrong, with line and column.
        problem: String,
    },
}

/// Tools by name.
#[derive(Clone, Debug, Default)]
pub struct ToolCatalog {
    tools: BTreeMap<String, (Arc<ToolSpec>, String)>,
}

impl ToolCatalog {
    /// The shipped tools, and those in `tools/*.yaml` under `agents_dir`, which win. A directory that is not there has none.
    ///
    /// # Errors
    /// The first file that cannot be used.
    pub fn load(agents_dir: impl AsRef<Path>) -> Result<Self, CatalogError> {
        let mut catalog = Self::default();
        for yaml in SHIPPED {
            catalog.add(Path::new("(shipped)"), yaml)?;
        }
        let folder = agents_dir.as_ref().join("tools");
        let read = |path: &Path| {
            let path = path.to_owned();
            move |source| CatalogError::Read { path, source }
        };
        let mut files = Vec::new();
        if folder.is_dir() {
            for entry in std::fs::read_dir(&folder).map_err(read(&folder))? {
                let path = entry.map_err(read(&folder))?.path();
                if path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml") {
                    files.push(path);
                }
            }
        }
        files.sort();
        for path in files {
            let yaml = std::fs::read_to_string(&path).map_err(read(&path))?;
            catalog.add(&path, &yaml)?;
        }
        Ok(catalog)
    }

    fn add(&mut self, path: &Path, yaml: &str) -> Result<(), CatalogError> {
        let malformed = |problem: String| CatalogError::Malformed { path: path.to_owned(), problem };
        let spec: ToolSpec = serde_saphyr::from_str(yaml).map_err(|error| malformed(error.to_string()))?;
        let plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-');
        if spec.name.is_empty() || spec.name.len() > 63 || !spec.name.chars().all(plain) {
            return Err(malformed("`name` must be 1 to 63 letters, digits, `.`, `_` or `-`".to_owned()));
        }
        let digest = digest(&serde_json::to_value(&spec).map_err(|error| malformed(error.to_string()))?);
        self.tools.insert(spec.name.clone(), (Arc::new(spec), digest));
        Ok(())
    }

    /// The tool of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<ToolSpec>> {
        self.tools.get(name).map(|(spec, _)| Arc::clone(spec))
    }

    /// The digest of its declaration (SHA-256, hex).
    #[must_use]
    pub fn digest(&self, name: &str) -> Option<&str> {
        self.tools.get(name).map(|(_, digest)| digest.as_str())
    }

    /// All tools, by name.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<ToolSpec>> {
        self.tools.values().map(|(spec, _)| Arc::clone(spec)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_tools_are_there_without_a_directory() {
        let catalog = ToolCatalog::load("/nowhere").unwrap();
        assert_eq!(catalog.all().len(), SHIPPED.len());
        assert!(catalog.get("shell.run").unwrap().needs_start());
        assert!(!catalog.get("file.write").unwrap().needs_start());
        assert_eq!(catalog.digest("shell.run").map(str::len), Some(64));
    }

    #[test]
    fn the_tools_of_the_repository_load() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../infra/agents");
        let catalog = ToolCatalog::load(folder).unwrap();
        assert!(catalog.get("github.merge").unwrap().probe.is_some());
    }

    #[test]
    fn an_unknown_field_is_named_with_its_place() {
        let problem = "name: a\ndescription: b\neffect: read\ninput: {}\nrun: { builtin: x }\ncolour: red\n";
        let error = ToolCatalog::default().add(Path::new("a.yaml"), problem).unwrap_err().to_string();
        assert!(error.contains("colour") && error.contains("6"), "{error}");
    }
}
