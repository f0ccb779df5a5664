//! What people allowed once and for all.

use serde_json::Value;

use crate::{
    api::Api,
    args::StandingCommand,
    error::CliError,
    out::Out,
    style::{Paint, clean},
    table::Table,
    views::{rows, text},
};

/// Does what was typed.
pub async fn run(api: &Api, command: &StandingCommand, out: &Out) -> Result<(), CliError> {
    match command {
        StandingCommand::List { all } => list(api, *all, out).await,
        StandingCommand::Revoke { id } => revoke(api, id, out).await,
    }
}

async fn list(api: &Api, all: bool, out: &Out) -> Result<(), CliError> {
    let answer: Value = api.get("/v1/standing-approvals", &[("all", Some(all.to_string()))]).await?;
    let head = ["id", "agent", "tool", "given by", "on", "used", "arguments"];
    let mut table = Table::new(head, "nothing is allowed once and for all: `esc approve ID --always`");
    for standing in rows(&answer) {
        let revoked = !text(standing, &["revoked_by"]).is_empty();
        let paint = if revoked { Paint::Dim } else { Paint::Plain };
        let used = standing.get("uses").map(Value::to_string).unwrap_or_default();
        table.row([
            (Paint::Dim, text(standing, &["standing_id"]).to_owned()),
            (paint, text(standing, &["agent"]).to_owned()),
            (Paint::Bold, text(standing, &["tool"]).to_owned()),
            (Paint::Person, text(standing, &["given_by"]).to_owned()),
            (paint, text(standing, &["given_at"]).chars().take(10).collect()),
            (paint, if revoked { "revoked".to_owned() } else { used }),
            (Paint::Model, standing.get("arguments").map(Value::to_string).unwrap_or_default()),
        ]);
    }
    out.table(&answer, &table);
    Ok(())
}

async fn revoke(api: &Api, id: &str, out: &Out) -> Result<(), CliError> {
    let id = resolve(api, id).await?;
    let answer: Value = api.delete(&format!("/v1/standing-approvals/{id}")).await?;
    out.say(format!("{id} {}", out.style().paint(Paint::Bad, "revoked: people are asked again")));
    out.value(&answer);
    Ok(())
}

/// The id from its beginning.
async fn resolve(api: &Api, id: &str) -> Result<String, CliError> {
    if id.parse::<kernel::StandingId>().is_ok() {
        return Ok(id.to_owned());
    }
    let answer: Value = api.get("/v1/standing-approvals", &[]).await?;
    let ids = rows(&answer).iter().map(|row| text(row, &["standing_id"])).filter(|known| known.starts_with(id));
    match ids.collect::<Vec<_>>().as_slice() {
        [id] => Ok((*id).to_owned()),
        found => Err(CliError::usage_with(
            format!("`{}` begins the id of {} standing approvals", clean(id), found.len()),
            "`esc standing list` lists them",
        )),
    }
}
