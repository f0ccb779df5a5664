//! The shipped sets of rules, as data.

use std::{collections::BTreeMap, path::Path, sync::LazyLock};

use kernel::observe::PACK_ALIASES;
use serde::Deserialize;

/// The pack that all others rest on.
pub const BASE: &str = "generic";

const SHIPPED: [(&str, &str); 20] = [
    ("generic", include_str!("../packs/generic.yaml")),
    ("ci", include_str!("../packs/ci.yaml")),
    ("traces", include_str!("../packs/traces.yaml")),
    ("lint", include_str!("../packs/lint.yaml")),
    ("cargo", include_str!("../packs/cargo.yaml")),
    ("python", include_str!("../packs/python.yaml")),
    ("node", include_str!("../packs/node.yaml")),
    ("go", include_str!("../packs/go.yaml")),
    ("gcc", include_str!("../packs/gcc.yaml")),
    ("cmake", include_str!("../packs/cmake.yaml")),
    ("maven", include_str!("../packs/maven.yaml")),
    ("gradle", include_str!("../packs/gradle.yaml")),
    ("dotnet", include_str!("../packs/dotnet.yaml")),
    ("ruby", include_str!("../packs/ruby.yaml")),
    ("bazel", include_str!("../packs/bazel.yaml")),
    ("docker", include_str!("../packs/docker.yaml")),
    ("kubernetes", include_str!("../packs/kubernetes.yaml")),
    ("terraform", include_str!("../packs/terraform.yaml")),
    ("git", include_str!("../packs/git.yaml")),
    ("mozilla", include_str!("../packs/mozilla.yaml")),
];

static PACKS: LazyLock<Packs> = LazyLock::new(|| {
    let read = |(name, yaml): (&'static str, &str)| match parse(yaml) {
        Ok(pack) => Some((name.to_owned(), pack)),
        Err(error) => {
            // A test reads them all, so this is a broken build at worst; the other packs still work.
            tracing::error!(pack = name, %error, "a shipped pack can't be read");
            None
        }
    };
    Packs(SHIPPED.into_iter().filter_map(read).collect())
});

/// Packs by name.
#[derive(Clone, Debug, Default)]
pub struct Packs(BTreeMap<String, Pack>);

/// A set of rules; the head of `packs/generic.yaml` explains them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pack {
    /// Beginnings of commands whose output it is for.
    pub(crate) commands: Vec<String>,
    /// Lines that only its programs print.
    pub(crate) detect: Vec<String>,
    pub(crate) failure: Vec<PackRule>,
    pub(crate) consequence: Vec<PackRule>,
    pub(crate) success: Vec<PackRule>,
    pub(crate) ignore: Vec<String>,
    pub(crate) progress: Vec<String>,
    pub(crate) sections: Vec<Section>,
    pub(crate) findings: Vec<FindingRule>,
}

/// A rule about a line.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PackRule {
    pub(crate) id: String,
    pub(crate) pattern: String,
    #[serde(default = "half")]
    pub(crate) score: u8,
    #[serde(default)]
    pub(crate) wakes: bool,
    #[serde(default)]
    pub(crate) verdict: bool,
    #[serde(default)]
    pub(crate) before: u8,
    #[serde(default)]
    pub(crate) after: u8,
}

const fn half() -> u8 {
    50
}

/// Lines that are not what they look like, from one line to another.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Section {
    pub(crate) id: String,
    pub(crate) from: String,
    pub(crate) to: String,
    /// Nothing in it counts, instead of less than elsewhere.
    #[serde(default)]
    pub(crate) mute: bool,
}

/// How a tool names a place in a file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FindingRule {
    /// With groups `file`, `line`, `col`, `severity`, `code`, `message`, as far as they are on the line.
    pub(crate) pattern: String,
    /// The line only says which file the next ones are about, or only what the next place is about.
    #[serde(default)]
    pub(crate) only: Option<FindingPart>,
}

/// What a line of a finding in several lines says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FindingPart {
    /// The file; places and messages follow.
    File,
    /// The message; its place follows.
    Message,
    /// The place, of the message before.
    Place,
    /// The place, of the message after.
    Where,
    /// Nothing: this looks like a finding and is none.
    Nothing,
}

/// Why a pack can't be read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct PackError(String);

/// Reads a pack.
///
/// # Errors
/// With line and column, when it is no YAML or has what there is not.
pub fn parse(yaml: &str) -> Result<Pack, PackError> {
    serde_saphyr::from_str(yaml).map_err(|error| PackError(error.to_string()))
}

impl Packs {
    /// Those that are shipped.
    #[must_use]
    pub fn shipped() -> &'static Self {
        &PACKS
    }

    /// The shipped ones, with those of a folder (`NAME.yaml`) in their place or beside them.
    ///
    /// # Errors
    /// When one can't be read.
    pub fn with_folder(folder: &Path) -> Result<Self, PackError> {
        let mut packs = PACKS.clone();
        let failed = |error: std::io::Error| PackError(format!("{}: {error}", folder.display()));
        for entry in std::fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let Some(name) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
            if path.extension().is_some_and(|extension| extension == "yaml") {
                let yaml = std::fs::read_to_string(&path).map_err(failed)?;
                let pack = parse(&yaml).map_err(|error| PackError(format!("{}: {error}", path.display())))?;
                packs.0.insert(name.to_owned(), pack);
            }
        }
        Ok(packs)
    }

    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Whether there is a pack of this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// A pack by its name, or another name of it.
    pub(crate) fn get(&self, name: &str) -> Option<(&str, &Pack)> {
        let name = PACK_ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, pack)| pack);
        self.0.get_key_value(name).map(|(name, pack)| (name.as_str(), pack))
    }

    /// All, the base first.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &Pack)> {
        let base = self.0.get_key_value(BASE);
        let others = self.0.iter().filter(|(name, _)| *name != BASE);
        base.into_iter().chain(others).map(|(name, pack)| (name.as_str(), pack))
    }
}

#[cfg(test)]
mod tests {
    use kernel::observe::PACKS as NAMES;

    use super::*;

    #[test]
    fn every_shipped_pack_reads_and_can_be_named_in_an_agent_file() {
        for (name, yaml) in SHIPPED {
            let pack = parse(yaml).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(pack.failure.iter().all(|rule| (1..=99).contains(&rule.score)), "{name}");
            assert!(Packs::shipped().get(name).is_some());
        }
        assert_eq!(SHIPPED.map(|(name, _)| name), NAMES);
        assert_eq!(Packs::shipped().get("pytest").unwrap().0, "python");
        assert!(Packs::shipped().get("nope").is_none());
        assert_eq!(Packs::shipped().all().next().unwrap().0, BASE);
    }
}
