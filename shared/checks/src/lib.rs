//! Checks of the operator's own, asked at fixed points of a turn: a signed webhook, or request-reply on NATS, with a time-out and
//! a stated meaning of no answer. See the README for what is sent and what an answer does.

pub mod signing;

use std::sync::Arc;

use bus::Bus;
use kernel::{
    RunId, TenantId,
    agent::{NoAnswer, Point, PointCheck},
};
use reqwest::{Client, redirect};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use signing::{key_of, signature};

/// Most bytes of a reason.
const REASON_BYTES: usize = 500;
/// Most bytes of an answer.
const ANSWER_BYTES: usize = 64 * 1024;
/// Most bytes of what is asked about: a larger one is left out, and its size said.
const ABOUT_BYTES: usize = 256 * 1024;
/// What the environment variable of a secret begins with.
const SECRET_PREFIX: &str = "ESC_SECRET_";

/// Where the secrets are that sign what is sent, by name.
type Secrets = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Who asks the checks of an agent's file. Cheap to clone.
#[derive(Clone)]
pub struct Checks {
    http: Client,
    bus: Bus,
    secrets: Secrets,
}

/// What is asked about.
#[derive(Clone, Debug)]
pub struct About<'a> {
    /// Whose run.
    pub tenant: &'a TenantId,
    /// Which run.
    pub run_id: RunId,
    /// Its agent.
    pub agent: &'a str,
    /// Its turn, by number.
    pub turn: u32,
    /// What is about to be done, or was.
    pub about: Value,
}

/// Why something may not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct No {
    /// The check that says so.
    pub check: String,
    /// In its words, or in the runtime's if it did not answer.
    pub reason: String,
    /// Whether it did answer: silence is no verdict.
    pub said: bool,
}

#[derive(Serialize)]
struct Question<'a> {
    id: String,
    check: &'a str,
    at: Point,
    tenant: &'a TenantId,
    run_id: RunId,
    agent: &'a str,
    turn: u32,
    about: &'a Value,
}

#[derive(Deserialize)]
struct Answer {
    decision: Decision,
    #[serde(default)]
    reason: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Decision {
    Allow,
    Deny,
}

impl Checks {
    /// Asks over this connection, and over HTTP; signs with secrets of the environment.
    ///
    /// # Errors
    /// When there is no HTTP client.
    pub fn new(bus: Bus) -> Result<Self, reqwest::Error> {
        Self::with_secrets(bus, |name| std::env::var(format!("{SECRET_PREFIX}{name}")).ok())
    }

    /// The same, with secrets from elsewhere.
    ///
    /// # Errors
    /// When there is no HTTP client.
    pub fn with_secrets(
        bus: Bus,
        secrets: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    ) -> Result<Self, reqwest::Error> {
        // What is shown to a check is for nobody else.
        let http = Client::builder().redirect(redirect::Policy::none()).no_proxy().build()?;
        Ok(Self { http, bus, secrets: Arc::new(secrets) })
    }

    /// Asks all checks of this point side by side.
    ///
    /// # Errors
    /// The first no, in the order of the file; what was said comes before what was not.
    pub async fn ask(&self, checks: &[PointCheck], at: Point, about: &About<'_>) -> Result<(), No> {
        let here = checks.iter().filter(|check| check.at == at);
        let asked = here.map(|check| self.ask_one(check, about));
        let mut silent = None;
        for no in futures::future::join_all(asked).await.into_iter().flatten() {
            if no.said {
                return Err(no);
            }
            silent.get_or_insert(no);
        }
        silent.map_or(Ok(()), Err)
    }

    async fn ask_one(&self, check: &PointCheck, about: &About<'_>) -> Option<No> {
        let id = format!("check_{}", uuid::Uuid::now_v7().simple());
        let shortened;
        let content = match about.about.to_string().len() {
            bytes if bytes > ABOUT_BYTES => {
                shortened = serde_json::json!({ "omitted_bytes": bytes });
                &shortened
            }
            _ => &about.about,
        };
        let question = Question {
            id: id.clone(),
            check: &check.name,
            at: check.at,
            tenant: about.tenant,
            run_id: about.run_id,
            agent: about.agent,
            turn: about.turn,
            about: content,
        };
        let timeout = check.timeout.std();
        let late = || Err(format!("it did not answer within {} ms", timeout.as_millis()));
        let answer = tokio::time::timeout(timeout, self.carry(check, &id, &question)).await.unwrap_or_else(|_| late());
        let (word, no) = match answer {
            Ok(Answer { decision: Decision::Allow, .. }) => ("allow", None),
            Ok(Answer { reason, .. }) => {
                let reason = if reason.trim().is_empty() { "no reason given".to_owned() } else { reason };
                let reason = kernel::excerpt(&reason, REASON_BYTES);
                ("deny", Some(No { check: check.name.clone(), reason, said: true }))
            }
            Err(problem) => {
                tracing::warn!(check = check.name, at = check.at.as_str(), run_id = %about.run_id, problem, "a check does not answer");
                let no = No { check: check.name.clone(), reason: problem, said: false };
                ("silent", (check.default == NoAnswer::Deny).then_some(no))
            }
        };
        metrics::counter!("checks_total", "at" => check.at.as_str(), "answer" => word).increment(1);
        no
    }

    async fn carry(&self, check: &PointCheck, id: &str, question: &Question<'_>) -> Result<Answer, String> {
        let body = serde_json::to_string(question).map_err(|error| error.to_string())?;
        let said = match (&check.url, &check.responder) {
            (Some(url), _) => self.post(url, check.secret.as_deref(), id, body).await?,
            (None, Some(responder)) => {
                let subject = format!("svc.checks.{responder}");
                let reply =
                    self.bus.request(&subject, body, check.timeout.std()).await.map_err(|error| error.to_string())?;
                reply.payload.to_vec()
            }
            (None, None) => return Err("it has neither `url` nor `responder`".to_owned()),
        };
        serde_json::from_slice(&said).map_err(|_| "its answer is not {\"decision\": \"allow\" | \"deny\"}".to_owned())
    }

    async fn post(&self, url: &str, secret: Option<&str>, id: &str, body: String) -> Result<Vec<u8>, String> {
        let name = secret.and_then(|secret| secret.strip_prefix("secret:")).ok_or("it names no `secret`")?;
        let key = (self.secrets)(name).ok_or_else(|| format!("{SECRET_PREFIX}{name} is not set"))?;
        let key = key_of(&key);
        if key.is_empty() {
            // Everybody could sign so.
            return Err(format!("{SECRET_PREFIX}{name} is empty"));
        }
        let at = jiff::Timestamp::now().as_second();
        let request = self
            .http
            .post(url)
            .header("content-type", "application/json")
            .header("webhook-id", id)
            .header("webhook-timestamp", at.to_string())
            .header("webhook-signature", signature(&key, id, at, &body))
            .body(body);
        let mut response = request.send().await.map_err(|error| error.without_url().to_string())?;
        if !response.status().is_success() {
            return Err(format!("it answers {}", response.status()));
        }
        let mut said = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(|error| error.without_url().to_string())? {
            said.extend_from_slice(&piece);
            if said.len() > ANSWER_BYTES {
                return Err("its answer is larger than an answer can be".to_owned());
            }
        }
        Ok(said)
    }
}

impl No {
    /// In words for the model and the log.
    #[must_use]
    pub fn words(&self) -> String {
        format!("the check `{}` says no: {}", self.check, self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_one_of_two_words() {
        let read =
            |text: &str| serde_json::from_str::<Answer>(text).ok().map(|answer| answer.decision == Decision::Allow);
        assert_eq!(read(r#"{"decision": "allow"}"#), Some(true));
        assert_eq!(read(r#"{"decision": "deny", "reason": "no"}"#), Some(false));
        for other in ["", "true", "{}", r#"{"decision": "maybe"}"#, r#"{"decision": true}"#] {
            assert_eq!(read(other), None, "{other}");
        }
    }
}
