//! Is a service ready? For scripts and container health checks.

use std::time::Duration;

use reqwest::{Client, Url};
use serde_json::Value;
use service::causes::root;

use crate::{api::client, error::CliError, out::Out, views::text};

/// Longest wait for the answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What a service says of itself.
pub struct Answer {
    /// Whether it may get work.
    pub ready: bool,
    /// Its own words: what is missing, or all of the answer.
    pub body: Value,
}

/// Asks, and fails unless the answer is yes.
pub async fn run(target: &str, out: &Out) -> Result<(), CliError> {
    let url = address(target)?;
    let answer = ask(&client(&url)?, &url).await?;
    out.value(&answer.body);
    if answer.ready {
        out.say("ready");
        Ok(())
    } else {
        Err(CliError::failed(format!("not ready: {}", reasons(&answer.body))))
    }
}

/// The address as a URL; without a path, where readiness is told.
pub fn address(target: &str) -> Result<Url, CliError> {
    let with_scheme = if target.contains("://") { target.to_owned() } else { format!("http://{target}") };
    let mut url: Url = with_scheme
        .parse()
        .map_err(|_| CliError::usage_with(format!("`{target}` is not an address"), "such as http://127.0.0.1:8080"))?;
    if url.path() == "/" {
        url.set_path("/readyz");
    }
    Ok(url)
}

/// Asks a service.
pub async fn ask(client: &Client, url: &Url) -> Result<Answer, CliError> {
    let silent = |error: reqwest::Error| {
        CliError::unreachable(
            format!("no answer from {url}: {}", root(&error)),
            "infra/status says what runs where, and infra/up starts it",
        )
    };
    let response = client.get(url.clone()).timeout(TIMEOUT).send().await.map_err(silent)?;
    let ready = response.status().is_success();
    let status = response.status();
    let body = response.bytes().await.map_err(silent)?;
    let body = serde_json::from_slice(&body).unwrap_or_else(|_| Value::from(status.to_string()));
    Ok(Answer { ready, body })
}

/// Why a service is not ready, in one line.
pub fn reasons(body: &Value) -> String {
    let checks = body.get("not_ready").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let reasons: Vec<_> =
        checks.iter().map(|check| format!("{}: {}", text(check, &["check"]), text(check, &["detail"]))).collect();
    if reasons.is_empty() { body.to_string() } else { reasons.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_be_short() {
        assert_eq!(address("127.0.0.1:8080").unwrap().as_str(), "http://127.0.0.1:8080/readyz");
        assert_eq!(address("http://h:1/healthz").unwrap().as_str(), "http://h:1/healthz");
        assert!(address("http://").is_err());
    }

    #[test]
    fn reasons_are_told_in_one_line() {
        let body =
            serde_json::json!({"not_ready": [{"check": "nats", "detail": "gone"}, {"check": "log", "detail": "slow"}]});
        assert_eq!(reasons(&body), "nats: gone; log: slow");
    }
}
