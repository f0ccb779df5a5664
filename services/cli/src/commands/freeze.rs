//! The kill switch.

use serde_json::{Value, json};

use crate::{
    api::{Api, NO_QUERY},
    args::FreezeArgs,
    error::CliError,
    out::Out,
    style::Paint,
    table::Table,
    views::{rows, text},
};

/// Throws it, lifts it, or shows what is frozen.
pub async fn run(api: &Api, args: &FreezeArgs, out: &Out) -> Result<(), CliError> {
    let Some(scope) = &args.scope else { return list(api, out).await };
    let running = if args.stop { "stop" } else { "list" };
    let body = json!({ "scope": scope, "on": !args.off, "reason": args.reason, "running": running });
    let answer: Value = api.put("/v1/freeze", "application/json", body.to_string()).await?;
    let words = if args.off { ("lifted", Paint::Good) } else { ("frozen", Paint::Bad) };
    out.say(format!("{} {}", out.style().paint(Paint::Bold, scope), out.style().paint(words.1, words.0)));
    let running = answer.get("running").map(rows).unwrap_or_default();
    if !running.is_empty() && !out.is_json() {
        out.table(&answer, &under_way(running));
    }
    out.value(&answer);
    Ok(())
}

/// What had begun before.
fn under_way(running: &[Value]) -> Table {
    let mut table = Table::new(["run", "call", "tool", "since", ""], "nothing is under way");
    for call in running {
        let stopping = call.get("stopping").and_then(Value::as_bool) == Some(true);
        table.row([
            (Paint::Dim, text(call, &["run_id"]).to_owned()),
            (Paint::Dim, text(call, &["call_id"]).to_owned()),
            (Paint::Bold, text(call, &["tool"]).to_owned()),
            (Paint::Plain, text(call, &["started_at"]).chars().take(19).collect()),
            (if stopping { Paint::Bad } else { Paint::Warn }, if stopping { "is ended" } else { "goes on" }.to_owned()),
        ]);
    }
    table
}

async fn list(api: &Api, out: &Out) -> Result<(), CliError> {
    let answer: Value = api.get("/v1/freeze", NO_QUERY).await?;
    let mut table = Table::new(["scope", "since", "by", "reason"], "nothing is frozen");
    for freeze in rows(&answer) {
        table.row([
            (Paint::Bad, text(freeze, &["scope"]).to_owned()),
            (Paint::Plain, text(freeze, &["at"]).chars().take(19).collect()),
            (Paint::Person, text(freeze, &["by"]).to_owned()),
            (Paint::Plain, text(freeze, &["reason"]).to_owned()),
        ]);
    }
    out.table(&answer, &table);
    Ok(())
}
