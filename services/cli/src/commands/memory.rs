//! What outlives runs: memories, documents, skills; and what runs cost.

use std::path::Path;

use serde_json::{Value, json};

use super::read_file;
use crate::{
    api::{Api, NO_QUERY},
    args::{KnowledgeCommand, MemoryCommand},
    error::CliError,
    out::Out,
    style::{Paint, clean},
    table::Table,
    views::{rows, text},
};

/// Most bytes of a text in a table.
const SHOWN: usize = 80;

/// `esc memory`.
pub async fn memory(api: &Api, command: &MemoryCommand, out: &Out) -> Result<(), CliError> {
    match command {
        MemoryCommand::List { words, scope, owner, limit } => {
            let limit = Some(limit.to_string());
            let query = [("q", words.clone()), ("scope", scope.clone()), ("owner", owner.clone()), ("limit", limit)];
            let answer: Value = api.get("/v1/memory", &query).await?;
            let mut table = Table::new(["scope", "key", "text", "trust", "by", "id"], "nothing is remembered");
            for memory in rows(&answer) {
                let field = |name: &str| clean(text(memory, &[name]));
                let whose = match text(memory, &["owner"]) {
                    "" => field("scope"),
                    owner => format!("{}:{}", field("scope"), clean(owner)),
                };
                let trust = field("trust");
                table.row([
                    (Paint::Dim, whose),
                    (Paint::Bold, field("key")),
                    (Paint::Plain, short(text(memory, &["text"]))),
                    (if trust == "untrusted" { Paint::Warn } else { Paint::Plain }, trust),
                    (Paint::Dim, field("written_by")),
                    (Paint::Dim, field("memory_id")),
                ]);
            }
            out.table(&answer, &table);
        }
        MemoryCommand::Keep { key, text: said, scope, owner, trust } => {
            let body = json!({"scope": scope, "owner": owner, "key": key, "text": said, "trust": trust});
            let answer: Value = api.put("/v1/memory", "application/json", body.to_string()).await?;
            out.say(format!("remembered, {}: {}", clean(text(&answer, &["trust"])), clean(text(&answer, &["key"]))));
            out.value(&answer);
        }
        MemoryCommand::Delete { id } => {
            let _: Value = api.delete(&format!("/v1/memory/{id}")).await?;
            out.say(format!("forgotten: {}", clean(id)));
            out.value(&json!({"memory_id": id, "deleted": true}));
        }
    }
    Ok(())
}

/// `esc knowledge`.
pub async fn knowledge(api: &Api, command: &KnowledgeCommand, out: &Out) -> Result<(), CliError> {
    match command {
        KnowledgeCommand::Add { collection, files, trust } => {
            for file in files {
                let body = read_file(file)?;
                let path = format!("{}?trust={trust}", path(collection, &name_of(file)?));
                let answer: Value = api.put(&path, media_type(file), body).await?;
                let passages = answer.get("passages").and_then(Value::as_u64).unwrap_or_default();
                out.say(format!(
                    "{}: {passages} passages in {}, {trust}",
                    clean(text(&answer, &["name"])),
                    clean(collection)
                ));
                out.value(&answer);
            }
            if trust == "untrusted" {
                let words =
                    "what a run is told of them makes it untrusted; `--trust trusted` if you vouch for every word";
                out.say(out.style().paint(Paint::Dim, words));
            }
        }
        KnowledgeCommand::List { collection } => {
            let query = [("collection", collection.clone()), ("limit", Some("1000".to_owned()))];
            let answer: Value = api.get("/v1/knowledge", &query).await?;
            let mut table = Table::new(
                ["collection", "name", "passages", "trust", "added", "by"],
                "no documents: `esc knowledge add COLLECTION FILE` adds one",
            );
            for document in rows(&answer) {
                let field = |name: &str| clean(text(document, &[name]));
                let passages = document.get("passages").and_then(Value::as_u64).unwrap_or_default();
                table.row([
                    (Paint::Plain, field("collection")),
                    (Paint::Bold, field("name")),
                    (Paint::Plain, passages.to_string()),
                    (Paint::Plain, field("trust")),
                    (Paint::Dim, field("added_at")),
                    (Paint::Dim, field("added_by")),
                ]);
            }
            out.table(&answer, &table);
        }
        KnowledgeCommand::Delete { collection, name } => {
            let _: Value = api.delete(&path(collection, name)).await?;
            out.say(format!("removed: {}", clean(name)));
            out.value(&json!({"collection": collection, "name": name, "deleted": true}));
        }
    }
    Ok(())
}

/// `esc skills`.
pub async fn skills(api: &Api, out: &Out) -> Result<(), CliError> {
    let answer: Value = api.get("/v1/skills", NO_QUERY).await?;
    let mut table = Table::new(["skill", "version", "runs", "completed", "failed"], "no run has opened a skill yet");
    for skill in rows(&answer) {
        let count = |name: &str| skill.get(name).and_then(Value::as_u64).unwrap_or_default();
        let failed = count("failed");
        table.row([
            (Paint::Bold, clean(text(skill, &["skill"]))),
            (Paint::Dim, clean(text(skill, &["digest"])).chars().take(12).collect()),
            (Paint::Plain, count("runs").to_string()),
            (Paint::Plain, count("completed").to_string()),
            (if failed > 0 { Paint::Warn } else { Paint::Plain }, failed.to_string()),
        ]);
    }
    out.table(&answer, &table);
    Ok(())
}

/// `esc costs`.
pub async fn costs(api: &Api, since: Option<&str>, out: &Out) -> Result<(), CliError> {
    let answer: Value = api.get("/v1/costs", &[("since", since.map(str::to_owned))]).await?;
    let mut table =
        Table::new(["agent", "runs", "turns", "calls", "in", "cached", "out", "usd"], "no run has cost anything");
    let dollars = |value: &Value| value.get("cost_usd").and_then(Value::as_f64).unwrap_or_default();
    for cost in rows(&answer) {
        let count = |name: &str| (Paint::Plain, cost.get(name).and_then(Value::as_u64).unwrap_or_default().to_string());
        table.row([
            (Paint::Bold, clean(text(cost, &["agent"]))),
            count("runs"),
            count("turns"),
            count("model_calls"),
            count("input_tokens"),
            count("cached_tokens"),
            count("output_tokens"),
            (Paint::Plain, format!("{:.4}", dollars(cost))),
        ]);
    }
    out.table(&answer, &table);
    out.say(format!("together ${:.4}", dollars(&answer)));
    Ok(())
}

fn path(collection: &str, name: &str) -> String {
    let part = |text: &str| {
        let safe = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        text.bytes()
            .map(|byte| if safe(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
            .collect::<String>()
    };
    format!("/v1/knowledge/{}/{}", part(collection), part(name))
}

fn name_of(file: &Path) -> Result<String, CliError> {
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned());
    name.ok_or_else(|| CliError::usage(format!("`{}` names no file", file.display())))
}

fn media_type(file: &Path) -> &'static str {
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("md" | "markdown") => "text/markdown",
        Some("json") => "application/json",
        Some("csv") => "text/csv",
        _ => "text/plain",
    }
}

fn short(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let shown: String = line.chars().take(SHOWN).collect();
    let end = if shown.len() < line.len() { "…" } else { "" };
    clean(&format!("{shown}{end}"))
}
