//! Who did what, when, from where.

use serde_json::Value;

use super::runs::since;
use crate::{
    api::Api,
    args::{AuditArgs, AuditCommand},
    error::CliError,
    out::Out,
    style::Paint,
    table::Table,
    views::{rows, text},
};

/// Entries that are fetched at once.
const PAGE: u32 = 500;

/// Does what was typed.
pub async fn run(api: &Api, command: &AuditCommand, out: &Out) -> Result<(), CliError> {
    match command {
        AuditCommand::List { args, limit } => list(api, args, *limit, out).await,
        AuditCommand::Export { args, after } => export(api, args, after.clone(), out).await,
    }
}

async fn list(api: &Api, args: &AuditArgs, limit: u32, out: &Out) -> Result<(), CliError> {
    let answer: Value = api.get("/v1/audit", &query(args, limit, None)?).await?;
    let mut table = Table::new(["when", "who", "what", "to what", "from", "outcome"], "nothing was done");
    for entry in rows(&answer) {
        let outcome = text(entry, &["outcome"]);
        let paint = if outcome == "done" { Paint::Good } else { Paint::Bad };
        table.row([
            (Paint::Plain, text(entry, &["at"]).chars().take(19).collect()),
            (Paint::Person, text(entry, &["actor"]).to_owned()),
            (Paint::Bold, text(entry, &["action"]).to_owned()),
            (Paint::Plain, text(entry, &["resource"]).to_owned()),
            (Paint::Dim, text(entry, &["address"]).to_owned()),
            (paint, outcome.to_owned()),
        ]);
    }
    out.table(&answer, &table);
    Ok(())
}

/// One CloudEvent a line, oldest first: to a file, or into whatever keeps logs.
async fn export(api: &Api, args: &AuditArgs, mut cursor: Option<String>, out: &Out) -> Result<(), CliError> {
    loop {
        let answer: Value = api.get("/v1/audit/events", &query(args, PAGE, cursor.clone())?).await?;
        for event in rows(&answer) {
            out.raw(format!("{event}\n").as_bytes());
        }
        if rows(&answer).len() < PAGE as usize {
            return Ok(());
        }
        cursor = Some(text(&answer, &["next"]).to_owned());
    }
}

fn query(
    args: &AuditArgs,
    limit: u32,
    cursor: Option<String>,
) -> Result<[(&'static str, Option<String>); 6], CliError> {
    let time = |text: &Option<String>| text.as_deref().map(since).transpose();
    Ok([
        ("since", time(&args.since)?),
        ("until", time(&args.until)?),
        ("actor", args.actor.clone()),
        ("action", args.action.clone()),
        ("limit", Some(limit.to_string())),
        ("cursor", cursor),
    ])
}
