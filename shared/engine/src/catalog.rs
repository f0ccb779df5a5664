//! The tools that agents may use: those that ship with the program, those of the operator's directory, and those of the MCP
//! servers that are declared there.

pub(crate) mod booleans;
mod check;
mod schemas;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use kernel::tool::ToolSpec;

use crate::{
    McpServers,
    agents::{AgentFileError, read_yaml},
    digest::digest,
};

pub(crate) use check::unnamed;
pub use schemas::file_schemas;

/// The declarations that ship with the program: what the tool-executor can do by itself.
const SHIPPED: [(&str, &str); 15] = [
    ("artifact.read.yaml", include_str!("../../../infra/agents/tools/artifact.read.yaml")),
    ("file.read.yaml", include_str!("../../../infra/agents/tools/file.read.yaml")),
    ("file.write.yaml", include_str!("../../../infra/agents/tools/file.write.yaml")),
    ("http.get.yaml", include_str!("../../../infra/agents/tools/http.get.yaml")),
    ("http.request.yaml", include_str!("../../../infra/agents/tools/http.request.yaml")),
    ("knowledge.search.yaml", include_str!("../../../infra/agents/tools/knowledge.search.yaml")),
    ("memory.search.yaml", include_str!("../../../infra/agents/tools/memory.search.yaml")),
    ("repo.checkout.yaml", include_str!("../../../infra/agents/tools/repo.checkout.yaml")),
    ("schedule.create.yaml", include_str!("../../../infra/agents/tools/schedule.create.yaml")),
    ("schedule.delete.yaml", include_str!("../../../infra/agents/tools/schedule.delete.yaml")),
    ("schedule.list.yaml", include_str!("../../../infra/agents/tools/schedule.list.yaml")),
    ("shell.run.yaml", include_str!("../../../infra/agents/tools/shell.run.yaml")),
    ("signals.read.yaml", include_str!("../../../infra/agents/tools/signals.read.yaml")),
    ("test.echo.yaml", include_str!("../../../infra/agents/tools/test.echo.yaml")),
    ("activity.send.yaml", include_str!("../../../infra/agents/tools/activity.send.yaml")),
];

/// Why the tools cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// A file or the directory cannot be read.
    #[error("{} cannot be read: {source}", .path.display())]
    Read {
        /// Which file or directory.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A file is not a tool declaration.
    #[error("{}: {source}", .path.display())]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// What is wrong, with line and column.
        #[source]
        source: AgentFileError,
    },
    /// Two files of the directory declare one tool, or one MCP server.
    #[error("`{name}` is declared in {} and in {}: leave one out", .first.display(), .second.display())]
    Twice {
        /// The tool or server.
        name: String,
        /// The one file.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
    /// A tool is tried out by one that is not there, or does more than read.
    #[error("`{tool}` says `dry_run: {{ tool: {by} }}`, and there is no tool `{by}` that answers and only reads")]
    NoDryRun {
        /// The tool.
        tool: String,
        /// What it names.
        by: String,
    },
    /// The tools of an MCP server would be called as tools of our own are.
    #[error(
        "{}: the tools of an MCP server `{server}` would be called `{server}.…`, as `{tool}` is, which is no tool of a server: \
         give the server another name", .path.display()
    )]
    Taken {
        /// The server.
        server: String,
        /// A tool of our own, or of the directory.
        tool: String,
        /// The server's file.
        path: PathBuf,
    },
}

/// Tools by name. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ToolCatalog {
    tools: Arc<BTreeMap<String, Tool>>,
    servers: McpServers,
}

#[derive(Clone, Debug)]
struct Tool {
    spec: Arc<ToolSpec>,
    digest: String,
}

impl ToolCatalog {
    /// The shipped tools, and those in `tools/*.yaml` under `agents_dir`, which win; and the MCP servers in `servers/*.yaml`. A
    /// directory that is not there has none.
    ///
    /// # Errors
    /// The first file that cannot be used.
    pub fn load(agents_dir: impl AsRef<Path>) -> Result<Self, CatalogError> {
        let mut tools = BTreeMap::new();
        for (file, yaml) in SHIPPED {
            let spec = parse_in(Path::new(file), yaml)?;
            tools.insert(spec.name.clone(), Tool::new(spec));
        }
        let mut declared: BTreeMap<String, PathBuf> = BTreeMap::new();
        for path in yaml_files(&agents_dir.as_ref().join("tools"))? {
            let read = std::fs::read_to_string(&path);
            let yaml = read.map_err(|source| CatalogError::Read { path: path.clone(), source })?;
            let spec = parse_in(&path, &yaml)?;
            if let Some(first) = declared.insert(spec.name.clone(), path.clone()) {
                return Err(CatalogError::Twice { name: spec.name, first, second: path });
            }
            tools.insert(spec.name.clone(), Tool::new(spec));
        }
        for tool in tools.values() {
            let find = |name: &str| tools.get(name).map(|tool| Arc::clone(&tool.spec));
            if let Some(by) = check::missing_dry_run(&tool.spec, find) {
                return Err(CatalogError::NoDryRun { tool: tool.spec.name.clone(), by: by.to_owned() });
            }
        }
        let servers = McpServers::load(agents_dir.as_ref(), tools.keys().map(String::as_str))?;
        Ok(Self { tools: Arc::new(tools), servers })
    }

    /// The MCP servers that are declared and enabled.
    #[must_use]
    pub const fn servers(&self) -> &McpServers {
        &self.servers
    }

    /// The tool of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<ToolSpec>> {
        self.tools.get(name).map(|tool| Arc::clone(&tool.spec))
    }

    /// The digest of its declaration (SHA-256, hex): of what was meant, not of how it was written.
    #[must_use]
    pub fn digest(&self, name: &str) -> Option<&str> {
        self.tools.get(name).map(|tool| tool.digest.as_str())
    }

    /// All tools, by name.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<ToolSpec>> {
        self.tools.values().map(|tool| Arc::clone(&tool.spec)).collect()
    }
}

impl Tool {
    fn new(spec: ToolSpec) -> Self {
        // What was read from a document can be written as one, so there is always a digest.
        let digest = serde_json::to_value(&spec).map(|json| digest(&json)).unwrap_or_default();
        Self { spec: Arc::new(spec), digest }
    }
}

fn parse_in(path: &Path, yaml: &str) -> Result<ToolSpec, CatalogError> {
    let malformed = |source| CatalogError::Malformed { path: path.to_owned(), source };
    let spec: ToolSpec = read_yaml(yaml).map_err(malformed)?;
    booleans::check(yaml).map_err(malformed)?;
    match check::problem(&spec) {
        Some(problem) => Err(malformed(problem.place_in(yaml))),
        None => Ok(spec),
    }
}

pub(crate) fn yaml_files(folder: &Path) -> Result<Vec<PathBuf>, CatalogError> {
    let failed = |source| CatalogError::Read { path: folder.to_owned(), source };
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::Value;

    use super::*;

    const MERGE: &str = r#"name: forge.merge
description: Merges a pull request.
input: { type: object, properties: { number: { type: integer } }, required: [number], additionalProperties: false }
effect: external
idempotent: true
timeout: 20s
run:
  http:
    method: POST
    url: "{env:FORGE_URL}/merge/{number}"
    headers: { Idempotency-Key: "{idempotency_key}" }
probe:
  http: { method: GET, url: "{env:FORGE_URL}/merges/{idempotency_key}" }
  done: /merged
"#;

    fn folder(files: &[(&str, &str)]) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("catalog-{}", uuid::Uuid::now_v7().simple()));
        fs::create_dir_all(folder.join("tools")).unwrap();
        for (name, content) in files {
            fs::write(folder.join("tools").join(name), content).unwrap();
        }
        folder
    }

    #[test]
    fn the_shipped_tools_are_there_without_a_directory() {
        let catalog = ToolCatalog::load("/nowhere").unwrap();
        assert_eq!(catalog.all().len(), SHIPPED.len());
        for tool in catalog.all() {
            // An echo takes whatever it is given.
            let closed = tool.input.get("additionalProperties") == Some(&Value::Bool(false));
            assert!(closed || tool.name == "test.echo", "{}", tool.name);
            assert_eq!(catalog.digest(&tool.name).map(str::len), Some(64));
        }
        for (name, needs_start) in [
            ("shell.run", true),
            ("http.request", true),
            ("http.get", false),
            ("file.read", false),
            ("file.write", false),
            ("artifact.read", false),
            ("knowledge.search", false),
            ("memory.search", false),
            ("schedule.create", true),
            ("schedule.list", false),
            ("signals.read", false),
            ("test.echo", false),
            ("activity.send", false),
        ] {
            assert_eq!(catalog.get(name).unwrap().needs_start(), needs_start, "{name}");
        }
        assert!(catalog.get("no.such").is_none() && catalog.digest("no.such").is_none());
    }

    #[test]
    fn the_tools_of_the_repository_load() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../infra/agents");
        let catalog = ToolCatalog::load(&folder).unwrap();
        assert!(catalog.get("github.merge").unwrap().probe.is_some());
        let example = ToolCatalog::load(folder.join("examples/verify")).unwrap();
        let agent = fs::read_to_string(folder.join("examples/verify/agents/orders-keeper.yaml")).unwrap();
        let agent = crate::parse(&agent).unwrap();
        let known = |name: &String| example.get(name).is_some() || catalog.get(name).is_some();
        assert!(agent.tools.iter().all(known), "{:?}", agent.tools);
    }

    #[test]
    fn a_process_is_checked_as_well() {
        const BUILD: &str = "name: x.build\ndescription: Builds.\nkind: activity\neffect: write\n\
             input: { type: object, properties: { target: { type: string } }, additionalProperties: false }\n\
             run:\n  process:\n    command: [make, \"{target}\"]\n    env: { TOKEN: \"secret:BUILD\" }\n    \
             limits: { cpu: 5m, memory: 2000M, processes: 64, output: 1M }\n";
        let at = folder(&[("build.yaml", BUILD)]);
        assert!(ToolCatalog::load(&at).unwrap().get("x.build").unwrap().needs_start());
        fs::remove_dir_all(at).unwrap();
        for (from, to, expect) in [
            ("kind: activity", "kind: call", "`kind: activity`"),
            ("limits:", "answers: [0]\n    limits:", "only answers"),
            ("[make, ", "[\"{target}\", ", "no argument may choose"),
            ("command: [make, \"{target}\"]", "command: []", "`command` is empty"),
            ("\"{target}\"]", "\"{goal}\"]", "`{goal}` names no argument"),
            ("TOKEN:", "\"a b\":", "`a b` in `env`"),
            ("processes: 64", "processes: 0", "`processes` must be"),
            ("limits:", "read: [lib]\n    limits:", "absolute paths"),
            ("limits:", "netwrk: true\n    limits:", "netwrk"),
        ] {
            let yaml = BUILD.replacen(from, to, 1);
            assert_ne!(yaml, BUILD, "{from}");
            let at = folder(&[("build.yaml", &yaml)]);
            let error = ToolCatalog::load(&at).unwrap_err().to_string();
            assert!(error.contains("build.yaml: line ") && error.contains(expect), "{to}: {error}");
            fs::remove_dir_all(at).unwrap();
        }
    }

    #[test]
    fn what_only_answers_reads_and_nothing_else() {
        const STATE: &str = "name: x.state\ndescription: Says how it stands.\neffect: read\nidempotent: true\n\
             input: { type: object, properties: { id: { type: string } }, additionalProperties: false }\n\
             run:\n  process:\n    command: [systemctl, is-active, \"{id}\"]\n    answers: [0, 3]\n";
        const ROW: &str = "name: x.row\ndescription: Reads a row.\neffect: read\n\
             input: { type: object, properties: { id: { type: string } }, additionalProperties: false }\n\
             run:\n  sql:\n    url: secret:ORDERS\n    statement: select * from orders where id = $1\n    \
             parameters: [\"{id}\"]\n    rows: 5\n";
        let at = folder(&[("state.yaml", STATE), ("row.yaml", ROW)]);
        let catalog = ToolCatalog::load(&at).unwrap();
        assert!(["x.state", "x.row"].iter().all(|name| !catalog.get(name).unwrap().needs_start()));
        fs::remove_dir_all(at).unwrap();
        for (whole, from, to, expect) in [
            (STATE, "effect: read", "effect: external", "`effect: read`"),
            (STATE, "answers:", "cwd: src\n    answers:", "`cwd`"),
            (ROW, "effect: read", "effect: write", "only reads"),
            (ROW, "effect: read", "kind: activity\neffect: read", "answers at once"),
            (ROW, "secret:ORDERS", "postgres://u:p@h/d", "`secret:NAME`"),
            (ROW, "secret:ORDERS", "secret:{id}", "`secret:NAME`"),
            (ROW, "id = $1", "id = '{id}'", "`parameters`"),
            (ROW, "[\"{id}\"]", "[\"{number}\"]", "`{number}` names no argument"),
            (ROW, "rows: 5", "rows: 0", "`rows` must be"),
            (ROW, "select * from orders where id = $1", "\"\"", "`statement` is empty"),
        ] {
            let yaml = whole.replacen(from, to, 1);
            assert_ne!(yaml, whole, "{from}");
            let at = folder(&[("x.yaml", &yaml)]);
            let error = ToolCatalog::load(&at).unwrap_err().to_string();
            assert!(error.contains("x.yaml: line ") && error.contains(expect), "{to}: {error}");
            fs::remove_dir_all(at).unwrap();
        }
    }

    #[test]
    fn everything_that_a_file_can_say_is_read() {
        let all = MERGE.replacen(
            "timeout: 20s",
            "timeout: 20s\nretry: { attempts: 5, first: 1s, most: 10s }\n\
             concurrency: { parallel: true, locks: [\"pull/{number}\"], per_target: 4, target: \"forge/{run_id}\" }\n\
             permissions: { tenants: [acme], agents: [\"ci-*\"], roles: [operator] }\n\
             compensate: { http: { method: POST, url: \"{env:FORGE_URL}/revert/{result.sha}\" } }",
            1,
        );
        let at = folder(&[("merge.yaml", &all)]);
        let tool = ToolCatalog::load(&at).unwrap().get("forge.merge").unwrap();
        assert_eq!(tool.retry.unwrap().attempts, 5);
        assert!(tool.is_parallel() && tool.concurrency.per_target == Some(4));
        assert!(tool.permissions.allow_agent("ci-keeper") && !tool.permissions.allow_tenant("other"));
        assert!(tool.compensate.is_some());
        fs::remove_dir_all(at).unwrap();
    }

    #[test]
    fn a_dry_run_answers_and_changes_nothing() {
        const DRAIN: &str = "name: x.drain\ndescription: Drains.\neffect: destructive\n\
             input: { type: object, properties: { node: { type: string }, check: { type: boolean } }, additionalProperties: false }\n\
             run: { http: { method: POST, url: \"https://h.example/drain\" } }\ndry_run: { arguments: { check: true } }\n";
        const LOOK: &str = "name: x.look\ndescription: Looks.\neffect: read\ninput: { type: object }\n\
             run: { http: { method: GET, url: \"https://h.example/look\" } }\n";
        let other = |effect: &str| LOOK.replacen("effect: read", effect, 1);
        let tried = |to: &str, other: &str| {
            let yaml = DRAIN.replacen("{ arguments: { check: true } }", to, 1);
            let at = folder(&[("drain.yaml", &yaml), ("look.yaml", other)]);
            let loaded = ToolCatalog::load(&at).map(|catalog| catalog.get("x.drain").unwrap().dry_run.clone());
            fs::remove_dir_all(at).unwrap();
            loaded.map_err(|error| error.to_string())
        };
        assert!(tried("{ arguments: { check: true } }", LOOK).unwrap().is_some());
        assert!(tried("{ tool: x.look }", LOOK).unwrap().is_some());
        for (to, other, expect) in [
            ("{ arguments: { dry: true } }", LOOK.to_owned(), "`dry` in `dry_run` is no argument"),
            ("{ arguments: {} }", LOOK.to_owned(), "sets no argument"),
            ("{ tool: x.gone }", LOOK.to_owned(), "there is no tool `x.gone`"),
            ("{ tool: x.look }", other("effect: external"), "that answers and only reads"),
            ("{ tool: x.look }\nkind: activity", LOOK.to_owned(), ""),
            ("{ arguments: { check: true } }\nkind: activity", LOOK.to_owned(), "a dry run has to answer"),
        ] {
            match tried(to, &other) {
                Ok(_) => assert_eq!(expect, "", "{to}"),
                Err(error) => assert!(!expect.is_empty() && error.contains(expect), "{to}: {error}"),
            }
        }
    }

    #[test]
    fn what_a_dry_run_sets_is_sent() {
        const DROP: &str = "name: x.drop\ndescription: Drops.\neffect: destructive\n\
             input: { type: object, properties: { node: { type: string }, check: {} } }\n\
             run: { http: { method: DELETE, url: \"https://h.example/{node}\" } }\ndry_run: { arguments: { check: true } }\n";
        let sends = |from: &str, to: &str| {
            let yaml = DROP.replacen(from, to, 1);
            let at = folder(&[("drop.yaml", &yaml)]);
            let loaded = ToolCatalog::load(&at).map(|_| ());
            fs::remove_dir_all(at).unwrap();
            loaded.map_err(|error| error.to_string())
        };
        for (from, to) in [
            ("DELETE", "POST"),
            ("{node}", "{node}?check={check}"),
            ("{node}\"", "{node}\", headers: { X-Check: \"{check.all}\" }"),
            (
                "DELETE, url: \"https://h.example/{node}\"",
                "POST, url: \"https://h.example\", body: { a: [\"{check}\"] }",
            ),
        ] {
            assert_eq!(sends(from, to), Ok(()), "{to}");
        }
        for (from, to, expect) in [
            ("", "", "`check` in `dry_run` is not sent"),
            ("DELETE", "GET", "is not sent"),
            ("{node}\"", "{node}/checks\", headers: { X-Check: \"{node}\" }", "is not sent"),
            (
                "DELETE, url: \"https://h.example/{node}\"",
                "POST, url: \"https://h.example\", body: { node: \"{node}\" }",
                "is not sent",
            ),
            ("{ check: true }", "{ chekc: true }", "`chekc` in `dry_run` is no argument"),
        ] {
            let error = sends(from, to).unwrap_err();
            assert!(error.contains("drop.yaml: line ") && error.contains(expect), "{to}: {error}");
        }
    }

    #[test]
    fn a_callback_is_about_one_call_and_of_one_source() {
        const JOB: &str = "name: ci.run\ndescription: Runs a job.\nkind: activity\neffect: external\n\
                           input: { type: object, properties: { n: { type: integer } }, additionalProperties: false }\n\
                           run: { http: { method: POST, url: \"https://ci.example/jobs\" } }\n\
                           status:\n  http: { method: GET, url: \"https://ci.example/jobs/{result.id}\" }\n  state: /state\n  \
                           done: [passed]\n  callback: \"ci:jobs/{result.id}\"\n";
        let at = folder(&[("job.yaml", JOB)]);
        let status = ToolCatalog::load(&at).unwrap().get("ci.run").unwrap().status.clone().unwrap();
        assert_eq!(status.callback.as_deref(), Some("ci:jobs/{result.id}"));
        fs::remove_dir_all(at).unwrap();
        for (to, expect) in [
            ("jobs/{result.id}", "`<source>:<subject>`"),
            ("{n}:jobs/1", "the source without places"),
            ("ci:jobs", "must hold a place"),
            ("ci:jobs/{number}", "`{number}` names no argument"),
        ] {
            let at = folder(&[("job.yaml", &JOB.replacen("ci:jobs/{result.id}", to, 1))]);
            let error = ToolCatalog::load(&at).unwrap_err().to_string();
            assert!(error.contains(expect), "{to}: {error}");
            fs::remove_dir_all(at).unwrap();
        }
    }

    #[test]
    fn a_directory_adds_tools_and_stands_in_for_shipped_ones() {
        let (_, echo) = SHIPPED.iter().find(|(_, yaml)| yaml.contains("name: test.echo")).unwrap();
        let echo = echo.replace("effect: read", "effect: write");
        let at = folder(&[("merge.yaml", MERGE), ("echo.yml", &echo), ("notes.txt", "name: {")]);
        let (catalog, shipped) = (ToolCatalog::load(&at).unwrap(), ToolCatalog::load("/nowhere").unwrap());
        assert!(catalog.get("forge.merge").unwrap().probe.is_some());
        assert_ne!(catalog.digest("test.echo"), shipped.digest("test.echo"));
        assert_eq!(catalog.digest("file.read"), shipped.digest("file.read"));
        fs::remove_dir_all(at).unwrap();
    }

    #[test]
    fn what_is_wrong_is_named_with_its_file_and_place() {
        let at = folder(&[("a.yaml", MERGE), ("b.yaml", MERGE)]);
        let error = ToolCatalog::load(&at).unwrap_err().to_string();
        assert!(error.contains("a.yaml") && error.contains("b.yaml"), "{error}");
        fs::remove_dir_all(at).unwrap();
        for (from, to, expect) in [
            ("additionalProperties: false", "additionalProperties: no", "quote it"),
            ("required: [number]", "required: [number, y]", "`y` is a boolean"),
            ("idempotent: true", "idempotent: yes", "`true` or `false`"),
            ("merge/{number}", "merge/{numbr}", "`{numbr}` names no argument"),
            ("merge/{number}", "merge/{number}?key=secret:KEY", "put it in a header"),
            ("timeout: 20s", "timeout: 20s\nretry: { attempts: 0 }", "`attempts`"),
            ("timeout: 20s", "timeout: 20s\nretry: { first: 1m, most: 1s }", "`first` is longer"),
            ("timeout: 20s", "timeout: 20s\nconcurrency: { per_target: 0 }", "`per_target`"),
            ("timeout: 20s", "timeout: 20s\nconcurrency: { locks: [\"pull/{nr}\"] }", "`{nr}` names no argument"),
            ("timeout: 20s", "timeout: 20s\nconcurrency: { locks: [\" \"] }", "`locks` has an empty entry"),
            ("timeout: 20s", "timeout: 20s\npermissions: { agents: [\"*-bot\"] }", "only at the end"),
            ("timeout: 20s", "timeout: 20s\npermissions: { roles: [boss] }", "`boss` is no role"),
            (
                "timeout: 20s",
                "timeout: 20s\ncancel: { http: { method: POST, url: \"http://h/\" } }",
                "`kind: activity`",
            ),
            ("effect: external", "efect: external", "efect"),
            ("effect: external", "effect: magic", "magic"),
            ("method: POST", "method: post", "`method` must be one of"),
            ("\"{env:FORGE_URL}/merge/{number}\"", "/merge", "`url` must begin"),
            ("done: /merged", "done: merged", "JSON pointer"),
            ("name: forge.merge", "name: forge merge", "`name` must be"),
            ("type: object, ", "", "type: object"),
            ("timeout: 20s", "timeout: 0s", "longer than 0"),
        ] {
            let yaml = MERGE.replacen(from, to, 1);
            assert_ne!(yaml, MERGE, "{from}");
            let at = folder(&[("merge.yaml", &yaml)]);
            let error = ToolCatalog::load(&at).unwrap_err().to_string();
            assert!(error.contains("merge.yaml: line ") && error.contains(expect), "{to}: {error}");
            fs::remove_dir_all(at).unwrap();
        }
    }
}
