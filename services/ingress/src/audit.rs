//! Who did what, when, from where, on what evidence: every call that changes something, once it was answered or refused.
//!
//! An answer to an act of authority waits until the entry is kept; what is done by the thousand (runs, messages, actions) is
//! entered behind the answer. If the database fails in between, the entry is tried until it is there. Whoever hangs up before the
//! answer is entered all the same: the act may be done.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{ConnectInfo, MatchedPath, OriginalUri, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use engine::{AuditEntry, AuditTrail};
use kernel::Timestamp;
use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::auth::Principal;
use crate::problem::ProblemCode;

/// Entries that wait to be kept; more make their callers wait.
const QUEUE: usize = 4096;
/// Entries that are kept at once.
const BATCH: usize = 256;
/// How long an answer waits for its entry.
const KEPT_WITHIN: Duration = Duration::from_secs(5);
/// Waits between two tries.
const TRY_AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How long the last entries are tried for when the service ends.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// How it ended for a caller who did not wait for the answer.
const ABANDONED: &str = "abandoned";
/// Most bytes of what a caller says of itself.
const HEADER_BYTES: usize = 256;
/// Most bytes of each text that a caller names its targets with.
const NOTED_BYTES: usize = 1024;

/// What a handler leaves on its answer: on what it was decided.
#[derive(Clone, Debug)]
pub(crate) struct Evidence(pub Value);

/// What is known so far of an act that takes its time: it is entered with that, too, if whoever asked for it does not wait, or if it
/// fails on the way. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Noted(Arc<Mutex<Value>>);

impl Noted {
    /// Adds to it, or changes it. Of long texts the beginning is kept: what is entered stays for good.
    pub(crate) fn note(&self, name: &str, value: impl Into<Value>) {
        let mut value = value.into();
        cut_texts(&mut value);
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[name] = value;
    }

    fn so_far(&self) -> Option<Value> {
        Some(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()).filter(|noted| !noted.is_null())
    }
}

fn cut_texts(value: &mut Value) {
    match value {
        Value::String(text) if text.len() > NOTED_BYTES => *text = kernel::excerpt(text, NOTED_BYTES),
        Value::Array(values) => values.iter_mut().for_each(cut_texts),
        Value::Object(fields) => fields.values_mut().for_each(cut_texts),
        _ => {}
    }
}

/// Takes entries. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Audit {
    entries: mpsc::Sender<Pending>,
}

#[derive(Debug)]
struct Pending {
    entry: AuditEntry,
    kept: oneshot::Sender<()>,
}

impl Audit {
    /// The taker, and the task that keeps what it takes until nobody has a taker any more and all is kept. Once it is stopped,
    /// a database that takes nothing is tried for a last while only.
    pub(crate) fn new(trail: AuditTrail, stop: CancellationToken) -> (Self, impl Future<Output = ()>) {
        let (entries, pending) = mpsc::channel(QUEUE);
        service::metrics::announce(&metrics::counter!("ingress_audit_failures_total"));
        (Self { entries }, keep(trail, pending, stop))
    }

    /// Has a place for one entry; none if nobody keeps any.
    async fn room(&self, action: &str) -> Option<mpsc::Permit<'_, Pending>> {
        let room = self.entries.reserve().await;
        room.inspect_err(|_| tracing::error!(action, "an act is not in the audit trail: this instance has ended")).ok()
    }
}

/// An act that is not entered yet. If whoever waits for its answer goes away, it is entered as it is.
struct Open<'a> {
    audit: &'a Audit,
    act: Option<Act>,
    noted: Noted,
}

impl Open<'_> {
    async fn end(mut self, outcome: String, evidence: Option<Value>) {
        let Some(action) = self.act.as_ref().map(|act| act.action.clone()) else { return };
        let room = self.audit.room(&action).await;
        let (Some(act), Some(room)) = (self.act.take(), room) else { return };
        let wait = act.is_of_authority;
        let (kept, is_kept) = oneshot::channel();
        let evidence = evidence.or_else(|| self.noted.so_far());
        room.send(Pending { entry: act.entry(outcome, evidence), kept });
        if wait && !matches!(tokio::time::timeout(KEPT_WITHIN, is_kept).await, Ok(Ok(()))) {
            tracing::warn!(action, "an act was answered before it was in the audit trail");
        }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let Some(act) = self.act.take() else { return };
        let entry = act.entry(ABANDONED.to_owned(), self.noted.so_far());
        let (kept, _) = oneshot::channel();
        if let Err(error) = self.audit.entries.try_send(Pending { entry, kept }) {
            let (mpsc::error::TrySendError::Full(pending) | mpsc::error::TrySendError::Closed(pending)) = error;
            tracing::error!(entry = ?pending.entry, "an act is not in the audit trail");
        }
    }
}

async fn keep(trail: AuditTrail, mut pending: mpsc::Receiver<Pending>, stop: CancellationToken) {
    let mut batch = Vec::with_capacity(BATCH);
    loop {
        // Requests are answered, and entered, after the stop: the end is when the last of them has dropped its sender.
        if pending.recv_many(&mut batch, BATCH).await == 0 {
            return;
        }
        let entries: Vec<_> = batch.iter().map(|pending| pending.entry.clone()).collect();
        let mut wait = TRY_AGAIN.0;
        let mut left = LAST_WORDS;
        while let Err(error) = trail.add(&entries).await {
            if !error.is_transient() {
                add_one_by_one(&trail, &entries).await;
                break;
            }
            tracing::error!(
                error = &error as &dyn std::error::Error,
                entries = entries.len(),
                "the audit trail takes nothing now"
            );
            metrics::counter!("ingress_audit_failures_total").increment(1);
            if stop.is_cancelled() {
                left = left.saturating_sub(wait);
                if left.is_zero() {
                    tracing::error!(?entries, "these acts are not in the audit trail: this instance has ended");
                    return;
                }
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(TRY_AGAIN.1);
        }
        for pending in batch.drain(..) {
            let _ = pending.kept.send(());
        }
    }
}

/// Adds what can be added of a batch that the database refuses: one entry that it can't take is not to keep out the others.
async fn add_one_by_one(trail: &AuditTrail, entries: &[AuditEntry]) {
    for entry in entries {
        if let Err(error) = trail.add(std::slice::from_ref(entry)).await {
            tracing::error!(error = &error as &dyn std::error::Error, ?entry, "this act is not in the audit trail");
            metrics::counter!("ingress_audit_failures_total").increment(1);
        }
    }
}

/// Enters what changes something.
pub(crate) async fn record(State(audit): State<Audit>, mut request: Request, next: Next) -> Response {
    let noted = Noted::default();
    request.extensions_mut().insert(noted.clone());
    let Some(act) = Act::of(&request) else { return next.run(request).await };
    let mut open = Open { audit: &audit, act: Some(act), noted };
    let response = next.run(request).await;
    match outcome(&response) {
        Some(outcome) => {
            let evidence = response.extensions().get::<Evidence>().map(|evidence| evidence.0.clone());
            open.end(outcome, evidence).await;
        }
        None => open.act = None,
    }
    response
}

/// Something that somebody wants to do.
struct Act {
    principal: Principal,
    action: String,
    resource: String,
    address: Option<String>,
    forwarded: Option<String>,
    user_agent: Option<String>,
    is_of_authority: bool,
}

impl Act {
    fn of(request: &Request) -> Option<Self> {
        let route = request.extensions().get::<MatchedPath>()?.as_str();
        let action = action(request.method(), route)?;
        let principal = request.extensions().get::<Principal>()?.clone();
        // The routes below see the path without what led to them.
        let path = request.extensions().get::<OriginalUri>().map_or(request.uri(), |OriginalUri(uri)| uri).path();
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
        let said = |name| said(request.headers(), name);
        let by_the_thousand = ["runs.create", "runs.messages", "actions.create"];
        Some(Self {
            principal,
            is_of_authority: !by_the_thousand.contains(&action.as_str()),
            action,
            resource: kernel::excerpt(path, 2 * HEADER_BYTES),
            address: peer.map(|ConnectInfo(peer)| peer.ip().to_string()),
            forwarded: said("forwarded").or_else(|| said("x-forwarded-for")),
            user_agent: said(header::USER_AGENT.as_str()),
        })
    }

    fn entry(self, outcome: String, evidence: Option<Value>) -> AuditEntry {
        let Principal { name, tenant, roles, token_id, display, .. } = self.principal;
        AuditEntry {
            id: Uuid::now_v7(),
            at: Timestamp::now(),
            tenant,
            actor: name,
            roles: roles.iter().map(|role| role.as_str().to_owned()).collect(),
            token_id,
            action: self.action,
            resource: self.resource,
            outcome,
            address: self.address,
            forwarded: self.forwarded,
            user_agent: self.user_agent,
            evidence: with_display(evidence, display),
        }
    }
}

/// Beside the evidence, what a person was called when they acted: their name in the trail is one that only their issuer can read.
fn with_display(evidence: Option<Value>, display: Option<String>) -> Option<Value> {
    let Some(display) = display else { return evidence };
    let mut members = match evidence {
        Some(Value::Object(members)) => members,
        Some(other) => Map::from_iter([("evidence".to_owned(), other)]),
        None => Map::new(),
    };
    members.insert("actor_display".to_owned(), display.into());
    Some(Value::Object(members))
}

/// The act behind a call, such as `approvals.decide`, `runs.cancel`, `agents.set`; none if it changes nothing that anybody
/// answers for: events and signals from outside are data, and a session is only another place for a token.
fn action(method: &Method, route: &str) -> Option<String> {
    if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) {
        return None;
    }
    let parts: Vec<&str> = route.trim_start_matches("/v1").split('/').filter(|part| !part.is_empty()).collect();
    let data = ["events", "logs", "metrics", "hooks", "session"];
    let first = parts.first().filter(|first| !data.contains(first))?;
    if *first == "approvals" {
        return Some("approvals.decide".to_owned());
    }
    let names = parts.iter().filter(|part| !part.starts_with('{')).flat_map(|part| part.split(':'));
    let mut action = names.collect::<Vec<_>>().join(".");
    let ends_in_verb = parts.len() > 1 && !parts.last().is_some_and(|last| last.starts_with('{'));
    if !ends_in_verb && !first.contains(':') {
        action += match *method {
            Method::PUT => ".set",
            Method::PATCH => ".change",
            Method::DELETE => ".delete",
            _ => ".create",
        };
    }
    Some(action)
}

/// How it ended, if it is worth an entry: what was malformed did nothing and refused nobody.
fn outcome(response: &Response) -> Option<String> {
    let status = response.status();
    if status.is_success() {
        return Some("done".to_owned());
    }
    // Of what failed here nobody knows whether it was done before that.
    let refused =
        [StatusCode::FORBIDDEN, StatusCode::CONFLICT, StatusCode::GONE].contains(&status) || status.is_server_error();
    let code = response.extensions().get::<ProblemCode>().map(|code| code.0.clone());
    refused.then(|| code.unwrap_or_else(|| status.as_str().to_owned()))
}

/// A header, as text that can be kept.
fn said(headers: &HeaderMap, name: &str) -> Option<String> {
    let text = headers.get(name)?.as_bytes();
    let text = String::from_utf8_lossy(text).replace(char::is_control, "\u{fffd}");
    Some(kernel::excerpt(&text, HEADER_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_act_is_named_after_what_is_done_to_what() {
        for (method, route, name) in [
            (Method::POST, "/v1/approvals/{approval_id}", Some("approvals.decide")),
            (Method::POST, "/v1/runs", Some("runs.create")),
            (Method::POST, "/v1/runs:cancel", Some("runs.cancel")),
            (Method::POST, "/v1/runs/{run_id}/cancel", Some("runs.cancel")),
            (Method::PATCH, "/v1/runs/{run_id}/budget", Some("runs.budget")),
            (Method::PATCH, "/v1/runs/{run_id}", Some("runs.change")),
            (Method::PUT, "/v1/agents/{name}", Some("agents.set")),
            (Method::PUT, "/v1/freeze", Some("freeze.set")),
            (Method::DELETE, "/v1/tokens/{token_id}", Some("tokens.delete")),
            (Method::POST, "/v1/schedules/{name}/pause", Some("schedules.pause")),
            (Method::POST, "/v1/dlq:redrive", Some("dlq.redrive")),
            (Method::POST, "/v1/events", None),
            (Method::POST, "/v1/hooks/{source}", None),
            (Method::GET, "/v1/runs", None),
        ] {
            assert_eq!(action(&method, route).as_deref(), name, "{method} {route}");
        }
    }

    #[test]
    fn an_act_that_nobody_waits_for_is_entered_with_what_is_known_of_it() {
        let (entries, mut pending) = mpsc::channel(1);
        let audit = Audit { entries };
        let act = Act {
            principal: Principal {
                name: "ann".into(),
                tenant: Default::default(),
                roles: Default::default(),
                token_id: None,
                display: Some("Ann".into()),
                until: None,
            },
            action: "runs.cancel".into(),
            resource: "/v1/runs:cancel".into(),
            address: None,
            forwarded: None,
            user_agent: None,
            is_of_authority: true,
        };
        let noted = Noted::default();
        assert_eq!(noted.so_far(), None);
        noted.note("changed", 1);
        let open = Open { audit: &audit, act: Some(act), noted: noted.clone() };
        noted.note("changed", 2);
        drop(open);
        let entry = pending.try_recv().unwrap().entry;
        assert_eq!(
            (entry.outcome.as_str(), entry.evidence),
            (ABANDONED, Some(serde_json::json!({"changed": 2, "actor_display": "Ann"})))
        );
    }

    #[test]
    fn what_somebody_was_called_stands_beside_the_evidence() {
        let with = |evidence| with_display(evidence, Some("Ann".to_owned()));
        assert_eq!(with(None), Some(serde_json::json!({"actor_display": "Ann"})));
        assert_eq!(with(Some(7.into())), Some(serde_json::json!({"evidence": 7, "actor_display": "Ann"})));
        assert_eq!(with_display(Some(7.into()), None), Some(7.into()));
    }

    #[test]
    fn what_a_caller_says_of_itself_is_bounded_text() {
        let mut headers = HeaderMap::new();
        headers.insert("user-agent", header::HeaderValue::from_bytes(b"a\xffb\tc").unwrap());
        assert_eq!(said(&headers, "user-agent").unwrap(), "a\u{fffd}b\u{fffd}c");
        headers.insert("user-agent", "x".repeat(4000).parse().unwrap());
        assert!(said(&headers, "user-agent").unwrap().len() < 2 * HEADER_BYTES);
    }
}
