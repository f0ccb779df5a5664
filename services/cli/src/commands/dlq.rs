//! Dead letters: what could not be handled, with the reason.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::runs::more;
use crate::{
    api::Api,
    args::{PageArgs, RedriveArgs},
    error::CliError,
    out::Out,
    style::Paint,
    table::Table,
    timeline::words::ago,
    views::{rows, text},
};

/// Lists them, oldest first.
pub async fn list(api: &Api, page: &PageArgs, out: &Out) -> Result<(), CliError> {
    let query = [("limit", Some(page.limit.to_string())), ("cursor", page.cursor.clone())];
    let answer: Value = api.get("/v1/dlq", &query).await?;
    let mut table = Table::new(["number", "consumer", "age", "tries", "subject", "reason"], "no dead letters");
    for letter in rows(&answer) {
        let number = |name: &str| letter.get(name).and_then(Value::as_u64).unwrap_or_default().to_string();
        let plain = |name: &str| (Paint::Plain, text(letter, &[name]).to_owned());
        table.row([
            (Paint::Bold, number("seq")),
            plain("consumer"),
            (Paint::Dim, text(letter, &["at"]).parse::<Timestamp>().map(ago).unwrap_or_default()),
            (Paint::Plain, number("attempts")),
            plain("subject"),
            (Paint::Bad, text(letter, &["reason"]).to_owned()),
        ]);
    }
    out.table(&answer, &table);
    more(&answer, out);
    Ok(())
}

/// Publishes them again, or says which would be.
pub async fn redrive(api: &Api, args: &RedriveArgs, out: &Out) -> Result<(), CliError> {
    let conditions = [
        ("seqs", (!args.seqs.is_empty()).then(|| json!(args.seqs))),
        ("consumer", args.consumer.as_ref().map(|consumer| json!(consumer))),
        ("subject", args.subject.as_ref().map(|subject| json!(subject))),
    ];
    let given = conditions.into_iter().filter(|_| !args.all);
    let filter: Map<_, _> = given.filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
    let done: Value = api.post("/v1/dlq:redrive", &json!({"filter": filter, "dry_run": args.dry_run})).await?;
    let meant: Vec<String> =
        done.get("seqs").and_then(Value::as_array).into_iter().flatten().map(ToString::to_string).collect();
    let count = |name: &str| done.get(name).and_then(Value::as_u64).unwrap_or_default();
    if args.dry_run {
        out.say(format!("{} would be published again: {}", meant.len(), meant.join(" ")));
    } else {
        out.say(format!("{} published again, {} could not be", count("redriven"), count("failed")));
    }
    out.value(&done);
    if count("failed") > 0 {
        return Err(CliError::failed(format!(
            "{} dead letters are still there: `esc dlq list` shows them",
            count("failed")
        )));
    }
    if meant.is_empty() && !args.seqs.is_empty() {
        return Err(CliError::usage_with("there is no such dead letter", "`esc dlq list` shows them"));
    }
    Ok(())
}
