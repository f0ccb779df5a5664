//! The servers of a folder: those that are declared, by name.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use kernel::{
    TenantId,
    tool::{ToolRun, ToolSpec},
};

use super::McpServer;
use crate::{CatalogError, catalog::yaml_files};

/// The declared servers by name. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct McpServers {
    servers: Arc<BTreeMap<String, Arc<McpServer>>>,
}

impl McpServers {
    /// Those in `servers/*.yaml` under `agents_dir` that are enabled. A directory that is not there has none. `own` are the names
    /// of the tools that are no server's.
    ///
    /// # Errors
    /// The first file that cannot be used, enabled or not. One reason is that its tools would have the family of a tool of
    /// `own`: what a server lists is its to choose, so sooner or later one of them would have the very name.
    pub(crate) fn load<'a>(agents_dir: &Path, own: impl IntoIterator<Item = &'a str>) -> Result<Self, CatalogError> {
        let families: BTreeMap<&str, &str> =
            own.into_iter().filter_map(|name| Some((name.split_once('.')?.0, name))).collect();
        let mut servers = BTreeMap::new();
        let mut declared: BTreeMap<String, PathBuf> = BTreeMap::new();
        for path in yaml_files(&agents_dir.join("servers"))? {
            let read = std::fs::read_to_string(&path);
            let yaml = read.map_err(|source| CatalogError::Read { path: path.clone(), source })?;
            let parsed = McpServer::parse(&yaml);
            let server = parsed.map_err(|source| CatalogError::Malformed { path: path.clone(), source })?;
            if let Some(tool) = families.get(server.name.as_str()) {
                return Err(CatalogError::Taken { server: server.name, tool: (*tool).to_owned(), path });
            }
            if let Some(first) = declared.insert(server.name.clone(), path.clone()) {
                return Err(CatalogError::Twice { name: server.name, first, second: path });
            }
            if server.enabled {
                servers.insert(server.name.clone(), Arc::new(server));
            }
        }
        Ok(Self { servers: Arc::new(servers) })
    }

    /// The server of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<McpServer>> {
        self.servers.get(name)
    }

    /// Whether a tool is one of a server that is there for this tenant.
    #[must_use]
    pub fn serve(&self, tenant: &TenantId, tool: &ToolSpec) -> bool {
        let ToolRun::Mcp(run) = &tool.run else { return false };
        self.get(&run.server).is_some_and(|server| server.serves(tenant))
    }

    /// All of them, by name.
    pub fn all(&self) -> impl Iterator<Item = &Arc<McpServer>> {
        self.servers.values()
    }
}

impl FromIterator<McpServer> for McpServers {
    fn from_iter<T: IntoIterator<Item = McpServer>>(servers: T) -> Self {
        let named = servers.into_iter().map(|server| (server.name.clone(), Arc::new(server)));
        Self { servers: Arc::new(named.collect()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::file::tests::FORGE;

    #[test]
    fn the_shipped_example_reads_and_is_off() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../infra/agents");
        assert_eq!(McpServers::load(&folder, []).unwrap().all().count(), 0);
        assert!(!yaml_files(&folder.join("servers")).unwrap().is_empty());
    }

    #[test]
    fn no_server_may_be_named_as_a_family_of_tools_of_our_own_nor_as_another_one() {
        let folder = std::env::temp_dir().join(format!("servers-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir_all(folder.join("servers")).unwrap();
        let write = |file: &str, yaml: &str| std::fs::write(folder.join("servers").join(file), yaml).unwrap();
        write("a.yaml", FORGE);
        assert_eq!(McpServers::load(&folder, ["forges.merge", "other"]).unwrap().all().count(), 1);
        // Off or on: it must not matter when somebody switches it on.
        write("a.yaml", &FORGE.replacen("trust:", "enabled: false\ntrust:", 1));
        let error = McpServers::load(&folder, ["shell.run", "forge.merge"]).unwrap_err().to_string();
        assert!(
            error.contains("a.yaml") && error.contains("`forge.merge`") && error.contains("another name"),
            "{error}"
        );
        write("b.yaml", FORGE);
        let error = McpServers::load(&folder, []).unwrap_err().to_string();
        assert!(error.contains("a.yaml") && error.contains("b.yaml"), "{error}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
