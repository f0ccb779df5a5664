//! Starting runs.

use kernel::budget::Limits;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::story;
use crate::{api::Api, args::RunArgs, error::CliError, out::Out, style::Paint, views::text};

/// Starts a run, and follows it if that is wanted.
pub async fn run(api: &Api, args: &RunArgs, out: &Out) -> Result<(), CliError> {
    let key = args.idempotency_key.clone().unwrap_or_else(|| Uuid::now_v7().to_string());
    let started: Value = api.post_once("/v1/runs", &request(args)?, &key).await?;
    let run = text(&started, &["run_id"]).to_owned();
    if !args.follow {
        out.say(format!("{run}\n{}", out.style().paint(Paint::Dim, &format!("follow it: esc tail {run}"))));
        out.value(&started);
        return Ok(());
    }
    out.value(&started);
    story::follow(api, &run, 0, out).await
}

fn request(args: &RunArgs) -> Result<Value, CliError> {
    let mut request = Map::new();
    request.insert("agent".to_owned(), json!(args.agent));
    request.insert("input".to_owned(), json!(args.input));
    request.extend(args.objective.as_ref().map(|objective| ("objective".to_owned(), json!(objective))));
    request.extend(args.conversation.as_ref().map(|id| ("conversation_id".to_owned(), json!(id))));
    if !args.budget.is_empty() {
        request.insert("budget".to_owned(), budget(&args.budget)?);
    }
    if !args.label.is_empty() {
        let labels: Map<_, _> = args.label.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
        request.insert("metadata".to_owned(), labels.into());
    }
    Ok(request.into())
}

/// Limits as they are typed. Amounts with a unit stay text, plain numbers become numbers.
fn budget(pairs: &[(String, String)]) -> Result<Value, CliError> {
    const NAMES: [&str; 5] = ["turns", "tokens", "cost_usd", "wall", "tool_calls"];
    let mut limits = Map::new();
    for (name, amount) in pairs {
        if !NAMES.contains(&name.as_str()) {
            return Err(CliError::usage_with(
                format!("`{name}` is not a limit"),
                format!("the limits are {}", NAMES.join(", ")),
            ));
        }
        let value = serde_json::from_str(amount).ok().filter(Value::is_number).unwrap_or_else(|| json!(amount));
        serde_json::from_value::<Limits>(json!({ name.as_str(): value })).map_err(|error| {
            CliError::usage_with(
                format!("--budget {name}={amount}: {error}"),
                "such as turns=20,tokens=100k,cost_usd=1.5,wall=2h,tool_calls=50",
            )
        })?;
        limits.insert(name.clone(), value);
    }
    Ok(limits.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_sent_as_typed() {
        let pairs =
            |text: &[(&str, &str)]| text.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect::<Vec<_>>();
        let limits =
            budget(&pairs(&[("turns", "3"), ("tokens", "200k"), ("cost_usd", "1.5"), ("wall", "2h")])).unwrap();
        assert_eq!(limits, json!({"turns": 3, "tokens": "200k", "cost_usd": 1.5, "wall": "2h"}));
        for wrong in [("money", "3"), ("turns", "many"), ("wall", "3days"), ("cost_usd", "1k")] {
            let error = budget(&pairs(&[wrong])).unwrap_err();
            assert!(error.to_string().contains(wrong.0) && error.remedy().is_some(), "{error}");
        }
    }
}
