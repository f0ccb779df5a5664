//! Questions to people, and their answers.

use jiff::Timestamp;
use kernel::ApprovalId;
use serde_json::{Map, Value, json};

use super::{json_of, runs::more};
use crate::{
    api::Api,
    args::{ApprovalState, ApproveArgs, DenyArgs, PageArgs},
    error::CliError,
    out::Out,
    style::{Paint, clean, wrap},
    timeline::words::{ago, span},
    views::{rows, text},
};

/// What is said while the second of two people is missing.
const ONE_MORE: &str = "one more person is needed";
/// Columns before the details of a question.
const INDENT: &str = "    ";

/// Lists questions, each with what one needs to know to answer it.
pub async fn list(api: &Api, state: ApprovalState, page: &PageArgs, out: &Out) -> Result<(), CliError> {
    let query = [
        ("state", state.as_str().map(str::to_owned)),
        ("limit", Some(page.limit.to_string())),
        ("cursor", page.cursor.clone()),
    ];
    let answer: Value = api.get("/v1/approvals", &query).await?;
    out.value(&answer);
    if rows(&answer).is_empty() {
        out.say(out.style().paint(Paint::Dim, "no questions"));
    }
    for approval in rows(&answer) {
        show(approval, out);
    }
    more(&answer, out);
    Ok(())
}

fn show(approval: &Value, out: &Out) {
    let style = out.style();
    let state = text(approval, &["state"]);
    let paint = match state {
        "granted" => Paint::Good,
        "denied" | "expired" => Paint::Bad,
        _ => Paint::Warn,
    };
    let id = style.paint(Paint::Bold, &clean(text(approval, &["approval_id"])));
    out.say(format!("{id}  {}  {}", style.paint(paint, &clean(state)), style.paint(Paint::Dim, &times(approval))));
    for line in wrap(&clean_lines(text(approval, &["question"])), style.width() - INDENT.len()) {
        out.say(format!("{INDENT}{line}"));
    }
    if let Some(arguments) = approval.get("arguments").filter(|arguments| !arguments.is_null()) {
        let call = format!("{} {arguments}", text(approval, &["tool"]));
        for line in wrap(&clean(&call), style.width() - INDENT.len()) {
            out.say(format!("{INDENT}{}", style.paint(Paint::Model, &line)));
        }
    }
    if text(approval, &["trust"]) == "untrusted" {
        let call = !text(approval, &["tool"]).is_empty();
        let words = if call {
            "untrusted data had a part in it: read the arguments"
        } else {
            "untrusted data had a part in it"
        };
        out.say(format!("{INDENT}{}", style.paint(Paint::Warn, words)));
    }
    background(approval, out);
    for reason in approval.get("reasons").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
        out.say(format!("{INDENT}{}", style.paint(Paint::Dim, &format!("because {}", clean(reason)))));
    }
    people(approval, out);
    if !text(approval, &["decided_by"]).is_empty() {
        let (by, words) = (text(approval, &["decided_by"]), text(approval, &["reason"]));
        let by =
            if text(approval, &["standing_id"]).is_empty() { by.to_owned() } else { format!("{by}, once and for all") };
        out.say(format!(
            "{INDENT}by {}{}",
            clean(&by),
            if words.is_empty() { String::new() } else { format!(": {}", clean(words)) }
        ));
    }
}

/// Who has agreed where two people have to, to what, and how many are missing.
fn people(approval: &Value, out: &Out) {
    let style = out.style();
    let say = |paint, words: &str| {
        for line in wrap(&clean(words), style.width() - INDENT.len()) {
            out.say(format!("{INDENT}{}", style.paint(paint, &line)));
        }
    };
    for first in approval.get("endorsements").and_then(Value::as_array).into_iter().flatten() {
        let (by, reason) = (text(first, &["by"]), text(first, &["reason"]));
        let words = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        say(Paint::Person, &format!("agreed: {by}{words}"));
        if let Some(arguments) = first.get("arguments") {
            say(Paint::Warn, &format!("with other arguments: {arguments}"));
        }
    }
    let count = |name: &str| approval.get(name).and_then(Value::as_u64).unwrap_or_default();
    if text(approval, &["state"]) == "open" && count("people_needed") > 1 {
        say(Paint::Person, if count("people_missing") > 1 { "two people have to agree" } else { ONE_MORE });
    }
}

/// What the model said, and what it had before it.
fn background(approval: &Value, out: &Out) {
    let style = out.style();
    let say = |what: &str, words: &str, paint| {
        for line in wrap(&clean(&format!("{what}: {words}")), style.width() - INDENT.len()) {
            out.say(format!("{INDENT}{}", style.paint(paint, &line)));
        }
    };
    if !text(approval, &["said", "text"]).is_empty() {
        say("the model said", text(approval, &["said", "text"]), Paint::Model);
    }
    for block in approval.get("evidence").and_then(Value::as_array).into_iter().flatten() {
        let what = format!("it had seen, {}, from {}", text(block, &["trust"]), text(block, &["source"]));
        say(&what, text(block, &["text"]), Paint::Dim);
    }
    if approval.get("may_be_standing").and_then(Value::as_bool) == Some(true) && text(approval, &["state"]) == "open" {
        say("for all of this shape", "esc approve ID --always", Paint::Dim);
    }
}

fn clean_lines(words: &str) -> String {
    words.lines().map(clean).collect::<Vec<_>>().join("\n")
}

fn times(approval: &Value) -> String {
    let time = |name: &str| text(approval, &[name]).parse::<Timestamp>().ok();
    let asked = time("requested_at").map(|at| format!("asked {}", ago(at)));
    let open = text(approval, &["state"]) == "open";
    let left = time("expires_at").filter(|_| open).map(|at| at.duration_since(Timestamp::now()));
    let left =
        left.map(|left| if left.is_negative() { "time is over".to_owned() } else { format!("{} left", span(left)) });
    [asked, left].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Says yes.
pub async fn approve(api: &Api, args: &ApproveArgs, out: &Out) -> Result<(), CliError> {
    let id = resolve(api, &args.id).await?;
    let arguments = args.arguments.as_deref().map(|arguments| json_of(arguments, "the arguments")).transpose()?;
    let as_endorsed = if args.as_changed { Some(changed(api, &id).await?) } else { None };
    let more = [("arguments", arguments), ("as_endorsed", as_endorsed), ("always", args.always.then_some(json!(true)))];
    decide(api, &id, "approve", more, args.reason.as_deref(), out).await
}

/// The digest of the arguments as the first of two people has changed them.
async fn changed(api: &Api, id: &str) -> Result<Value, CliError> {
    let approval: Value = api.get(&format!("/v1/approvals/{id}"), &[]).await?;
    let changed = approval.pointer("/endorsements/0").filter(|first| first.get("arguments").is_some());
    changed.and_then(|first| first.get("digest")).cloned().ok_or_else(|| {
        CliError::usage_with(
            format!("nobody has changed the arguments of `{}`", clean(id)),
            "leave `--as-changed` out to agree to them as they are",
        )
    })
}

/// Says no.
pub async fn deny(api: &Api, args: &DenyArgs, out: &Out) -> Result<(), CliError> {
    decide(api, &resolve(api, &args.id).await?, "deny", [], args.reason.as_deref(), out).await
}

async fn decide(
    api: &Api,
    id: &str,
    decision: &str,
    more: impl IntoIterator<Item = (&'static str, Option<Value>)>,
    reason: Option<&str>,
    out: &Out,
) -> Result<(), CliError> {
    let mut body = Map::from_iter([("decision".to_owned(), json!(decision))]);
    body.extend(more.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    body.extend(reason.map(|reason| ("reason".to_owned(), json!(reason))));
    let answer: Value = api.post(&format!("/v1/approvals/{id}"), &body.into()).await?;
    let (paint, word) = outcome(decision, text(&answer, &["state"])).map_err(|state| {
        CliError::failed(format!("`{id}` was answered otherwise meanwhile: it is {}", clean(&state)))
    })?;
    out.say(format!("{id} {}", out.style().paint(paint, &word)));
    out.value(&answer);
    Ok(())
}

/// What came of a decision, by how the question stands now; how it stands, if that is not what was decided.
fn outcome(decision: &str, state: &str) -> Result<(Paint, String), String> {
    match (decision, state) {
        ("approve", "open") => Ok((Paint::Person, format!("agreed to: {ONE_MORE}"))),
        ("approve", "granted") => Ok((Paint::Good, "approved".to_owned())),
        ("deny", "denied") => Ok((Paint::Bad, "denied".to_owned())),
        (_, state) => Err(state.to_owned()),
    }
}

/// The id of an open question from its beginning.
async fn resolve(api: &Api, id: &str) -> Result<String, CliError> {
    if id.parse::<ApprovalId>().is_ok() {
        return Ok(id.to_owned());
    }
    let answer: Value = api.get("/v1/approvals", &[("state", Some("open".to_owned()))]).await?;
    let wrong =
        |what: &str| CliError::usage_with(format!("`{}` {what}", clean(id)), "`esc approvals` lists the questions");
    let ids = rows(&answer).iter().map(|row| text(row, &["approval_id"])).filter(|known| known.starts_with(id));
    match ids.collect::<Vec<_>>().as_slice() {
        [id] => Ok((*id).to_owned()),
        [] => Err(wrong("is the beginning of no open question's id")),
        _ => Err(wrong("is the beginning of several questions' ids")),
    }
}

#[cfg(test)]
mod tests {
    use super::outcome;

    #[test]
    fn what_came_of_it_is_what_the_question_says() {
        assert_eq!(outcome("approve", "granted").unwrap().1, "approved");
        assert!(outcome("approve", "open").unwrap().1.contains("one more person"));
        assert_eq!(outcome("deny", "denied").unwrap().1, "denied");
        for (decision, state) in [("approve", "denied"), ("approve", "expired"), ("deny", "granted"), ("deny", "open")]
        {
            assert_eq!(outcome(decision, state).unwrap_err(), state);
        }
    }
}
