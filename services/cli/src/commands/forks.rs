//! Runs that go on from a turn of another one.

use serde_json::{Value, json};
use uuid::Uuid;

use super::{runs::resolve, story};
use crate::{
    api::Api,
    args::{ForkArgs, RollbackArgs},
    error::CliError,
    out::Out,
    style::Paint,
    views::text,
};

/// Makes a run that takes a turn of another one anew.
pub async fn fork(api: &Api, args: &ForkArgs, out: &Out) -> Result<(), CliError> {
    let run = resolve(api, &args.run).await?;
    let body = json!({"turn": args.turn, "effects": args.effects, "message": args.message});
    let answer = make(api, &run, "fork", &body, out).await?;
    if !args.follow {
        return Ok(());
    }
    story::follow(api, text(&answer, &["run_id"]), 0, out).await
}

/// Ends a run, undoes what it did since a turn, and takes that turn anew.
pub async fn roll_back(api: &Api, args: &RollbackArgs, out: &Out) -> Result<(), CliError> {
    let run = resolve(api, &args.run).await?;
    let body = json!({"turn": args.turn, "message": args.message, "reason": args.reason});
    out.fleeting("ending it, and undoing what can be undone …");
    let made = make(api, &run, "rollback", &body, out).await;
    out.fleeting("");
    made.map(|_| ())
}

async fn make(api: &Api, run: &str, verb: &str, body: &Value, out: &Out) -> Result<Value, CliError> {
    // Whatever becomes of the answer, one is made.
    let answer: Value = api.post_once(&format!("/v1/runs/{run}/{verb}"), body, &Uuid::now_v7().to_string()).await?;
    let (id, turn) = (text(&answer, &["run_id"]), answer.get("turn").map(Value::to_string).unwrap_or_default());
    out.fleeting("");
    out.say(format!("{} takes turn {turn} of {run} anew", out.style().paint(Paint::Bold, id)));
    out.value(&answer);
    Ok(answer)
}
