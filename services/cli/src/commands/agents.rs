//! Agent definitions.

use std::path::{Path, PathBuf};

use engine::ToolCatalog;
use kernel::agent::AgentSpec;
use serde_json::Value;

use super::{read_file, settings};
use crate::{
    api::{Api, NO_QUERY},
    error::CliError,
    out::Out,
    style::Paint,
    table::Table,
    views::{rows, text},
};

/// Digits of a digest that people are shown.
const DIGEST: usize = 12;

/// Puts definitions in, in the order of the files. What is wrong in one is said before any is sent.
pub async fn apply(api: &Api, files: &[PathBuf], out: &Out) -> Result<(), CliError> {
    let mut agents = Vec::new();
    // Without tools that this shell can read, nothing can be said about them.
    let folder = settings().map(|settings| settings.agents_dir).unwrap_or_default();
    let catalog = folder.is_dir().then(|| ToolCatalog::load(&folder).ok()).flatten();
    for file in files {
        let spec = read(file)?;
        for words in catalog.iter().flat_map(|catalog| missing_tools(&spec, catalog)) {
            out.warn(format!("{}: {words} in {}", file.display(), folder.display()));
        }
        agents.push((spec.name, read_file(file)?));
    }
    for (name, yaml) in agents {
        let answer: Value = api.put(&format!("/v1/agents/{name}"), "application/yaml", yaml).await?;
        let digest: String = text(&answer, &["digest"]).chars().take(DIGEST).collect();
        out.say(format!("{} {digest}", out.style().paint(Paint::Bold, &name)));
        out.value(&answer);
    }
    Ok(())
}

/// What is to be said about tools that an agent names and that are not there: a run goes on without them.
fn missing_tools(spec: &AgentSpec, catalog: &ToolCatalog) -> Vec<String> {
    let is_remote =
        |tool: &str| tool.split_once('.').is_some_and(|(server, _)| catalog.servers().get(server).is_some());
    let known = catalog.all();
    let known: Vec<&str> = known.iter().map(|tool| tool.name.as_str()).collect();
    let missing = spec.tools.iter().filter(|tool| catalog.get(tool).is_none() && !is_remote(tool));
    missing
        .map(|tool| {
            let guess = engine::nearest(tool, &known).map(|meant| format!(" (did you mean `{meant}`?)"));
            format!("there is no tool `{tool}`{}", guess.unwrap_or_default())
        })
        .collect()
}

/// Lists them.
pub async fn list(api: &Api, out: &Out) -> Result<(), CliError> {
    let answer: Value = api.get("/v1/agents", NO_QUERY).await?;
    let mut table =
        Table::new(["name", "digest", "changed", "model"], "no agents: `esc agents apply FILE` puts one in");
    for agent in rows(&answer) {
        let changed = ["changed_at", "created_at", "updated_at"].map(|name| text(agent, &[name]));
        table.row([
            (Paint::Bold, text(agent, &["name"]).to_owned()),
            (Paint::Dim, text(agent, &["digest"]).chars().take(DIGEST).collect()),
            (
                Paint::Plain,
                changed.into_iter().find(|at| !at.is_empty()).unwrap_or_default().chars().take(19).collect(),
            ),
            (Paint::Plain, model_of(agent)),
        ]);
    }
    out.table(&answer, &table);
    Ok(())
}

/// Lists the versions of one, the latest first.
pub async fn versions(api: &Api, name: &str, out: &Out) -> Result<(), CliError> {
    let answer: Value = api.get(&format!("/v1/agents/{name}/versions"), NO_QUERY).await?;
    let mut table = Table::new(["digest", "first put in", "new runs", "model"], "no versions");
    for version in rows(&answer) {
        let is_head = version.get("head").and_then(Value::as_bool) == Some(true);
        table.row([
            (Paint::Bold, text(version, &["digest"]).chars().take(DIGEST).collect()),
            (Paint::Plain, text(version, &["created_at"]).chars().take(19).collect()),
            (Paint::Good, if is_head { "start with it" } else { "" }.to_owned()),
            (Paint::Plain, model_of(version)),
        ]);
    }
    out.table(&answer, &table);
    Ok(())
}

/// The model, or the models in their order, as the definition has it.
fn model_of(agent: &Value) -> String {
    let model = agent.get("spec").and_then(|spec| spec.get("model")).or_else(|| agent.get("model"));
    model.map(|model| model.as_str().map_or_else(|| model.to_string(), str::to_owned)).unwrap_or_default()
}

/// The definition in a file.
pub fn read(file: &Path) -> Result<AgentSpec, CliError> {
    engine::parse(&read_file(file)?).map_err(|error| CliError::usage(format!("{}: {error}", file.display())))
}

/// The shipped agent of this name, or the definition in the file of this name.
pub fn named(name: &str) -> Result<AgentSpec, CliError> {
    let file = Path::new(name);
    if file.is_file() {
        return read(file);
    }
    let shipped = folder()?.join(format!("{name}.yaml"));
    if shipped.is_file() {
        return read(&shipped);
    }
    Err(CliError::usage_with(
        format!("there is neither a file `{name}` nor {}", shipped.display()),
        "name an agent file",
    ))
}

/// All agent files of ESC_AGENTS_DIR, by name.
pub fn files() -> Result<Vec<PathBuf>, CliError> {
    let folder = folder()?;
    let unreadable = |error| CliError::usage(format!("can't read {}: {error}", folder.display()));
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// All agents of ESC_AGENTS_DIR.
pub fn all() -> Result<Vec<AgentSpec>, CliError> {
    files()?.iter().map(|file| read(file)).collect()
}

fn folder() -> Result<PathBuf, CliError> {
    Ok(settings()?.agents_dir.join("agents"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_that_is_not_there_is_said_with_the_one_that_was_meant() {
        let catalog = ToolCatalog::load("/nowhere").unwrap();
        let agent = |tools: &str| {
            engine::parse(&format!("{{name: a, model: 'scripted:a', instructions: Help., tools: {tools}}}")).unwrap()
        };
        assert_eq!(missing_tools(&agent("[shell.run, file.read]"), &catalog), Vec::<String>::new());
        let words = missing_tools(&agent("[shel.run, review.post]"), &catalog);
        assert_eq!(words.len(), 2, "{words:?}");
        assert!(words[0].contains("`shel.run` (did you mean `shell.run`?)"), "{words:?}");
        assert!(words[1].ends_with("`review.post`"), "{words:?}");
    }
}
