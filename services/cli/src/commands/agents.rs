//! Agent definitions.

use std::path::{Path, PathBuf};

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
    for file in files {
        agents.push((read(file)?.name, read_file(file)?));
    }
    for (name, yaml) in agents {
        let answer: Value = api.put(&format!("/v1/agents/{name}"), "application/yaml", yaml).await?;
        let digest: String = text(&answer, &["digest"]).chars().take(DIGEST).collect();
        out.say(format!("{} {digest}", out.style().paint(Paint::Bold, &name)));
        out.value(&answer);
    }
    Ok(())
}

/// Lists them.
pub async fn list(api: &Api, out: &Out) -> Result<(), CliError> {
    let answer: Value = api.get("/v1/agents", NO_QUERY).await?;
    let mut table =
        Table::new(["name", "digest", "changed", "model"], "no agents: `esc agents apply FILE` puts one in");
    for agent in rows(&answer) {
        let changed = ["changed_at", "created_at", "updated_at"].map(|name| text(agent, &[name]));
        let model = agent.get("spec").and_then(|spec| spec.get("model")).or_else(|| agent.get("model"));
        let model = model.map(|model| model.as_str().map_or_else(|| model.to_string(), str::to_owned));
        table.row([
            (Paint::Bold, text(agent, &["name"]).to_owned()),
            (Paint::Dim, text(agent, &["digest"]).chars().take(DIGEST).collect()),
            (
                Paint::Plain,
                changed.into_iter().find(|at| !at.is_empty()).unwrap_or_default().chars().take(19).collect(),
            ),
            (Paint::Plain, model.unwrap_or_default()),
        ]);
    }
    out.table(&answer, &table);
    Ok(())
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
