//! Dead letters: what could not be handled, with the reason.

use bus::{DeadLetter, DlqFilter};
use serde_json::{Value, json};

use super::{migrate, settings};
use crate::{error::CliError, out::Out, style::Paint, table::Table, timeline::words::ago};

/// Lists them, oldest first.
pub async fn list(limit: usize, cursor: Option<u64>, out: &Out) -> Result<(), CliError> {
    let bus = migrate::connect(&settings()?).await?;
    let page = bus.dlq_list(limit, cursor).await.map_err(not_allowed)?;
    let mut table = Table::new(["number", "consumer", "age", "tries", "subject", "reason"], "no dead letters");
    for letter in &page.letters {
        table.row([
            (Paint::Bold, letter.seq.to_string()),
            (Paint::Plain, letter.consumer.clone()),
            (Paint::Dim, letter.at.map(ago).unwrap_or_default()),
            (Paint::Plain, letter.attempts.to_string()),
            (Paint::Plain, letter.subject.clone()),
            (Paint::Bad, letter.reason.clone()),
        ]);
    }
    let letters: Vec<_> = page.letters.iter().map(shown).collect();
    out.table(&json!({"items": letters, "next": page.cursor}), &table);
    if let Some(next) = page.cursor {
        out.say(out.style().paint(Paint::Dim, &format!("more: --cursor {next}")));
    }
    Ok(())
}

/// Publishes them again.
pub async fn redrive(
    seqs: &[u64],
    consumer: Option<String>,
    subject: Option<String>,
    out: &Out,
) -> Result<(), CliError> {
    let bus = migrate::connect(&settings()?).await?;
    let filter = DlqFilter { consumer, subject, seqs: (!seqs.is_empty()).then(|| seqs.to_vec()), limit: None };
    let done = bus.dlq_redrive(&filter).await.map_err(not_allowed)?;
    bus.flush().await?;
    out.say(format!("{} published again, {} could not be", done.redriven, done.failed));
    out.value(&done);
    if done.failed > 0 {
        return Err(CliError::failed(format!(
            "{} dead letters are still there: `esc dlq list` shows them",
            done.failed
        )));
    }
    if done.redriven == 0 && !seqs.is_empty() {
        return Err(CliError::usage_with("there is no such dead letter", "`esc dlq list` shows them"));
    }
    Ok(())
}

fn shown(letter: &DeadLetter) -> Value {
    let headers: serde_json::Map<_, _> =
        letter.headers.iter().map(|(name, value)| (name.to_owned(), Value::from(value))).collect();
    json!({
        "seq": letter.seq,
        "consumer": letter.consumer,
        "subject": letter.subject,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "at": letter.at,
        "headers": headers,
        "body": String::from_utf8_lossy(&letter.payload),
        "omitted_bytes": letter.omitted,
    })
}

/// Only an operator of NATS sees the dead letters of everybody.
fn not_allowed(error: bus::BusError) -> CliError {
    match CliError::from(error) {
        CliError::Unreachable { message, .. } => CliError::unreachable(
            message,
            "it takes a NATS user that may read the stream DLQ: set ESC_NATS_URL to that of `operator`",
        ),
        other => other,
    }
}
