//! Telling people that there is a question: at once, once more while it stays open, and others if nobody answers.
//!
//! What is to be told, and when, stands in rows, so that no instance has to live through it. Whoever hears that a question
//! was asked writes them down; whoever comes first to one that is due tells it.

use std::{sync::Arc, time::Duration};

use bus::{Bus, Delivery, GivenUp, HandlerResult, Headers, Outcome, Subject, retry, subject};
use engine::{ApprovalRow, Engine, EngineError, Notice, NoticeKind, Notices, Reads};
use kernel::{ApprovalId, TenantId, Timestamp, agent::AgentSpec, units, units::later};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    config::Config,
    standing::Steward,
    webhook::{PostError, Webhook},
};

/// Waits between tries in a row, and how long they go on before the notice is put off.
const TRIES: retry::Policy =
    retry::Policy::exponential(Duration::from_millis(500), Duration::from_secs(5)).within(Duration::from_secs(20));
/// How long a claimed notice is one's own: longer than the tries in a row and a last slow answer.
const HOLD: Duration = Duration::from_secs(60);
/// The first and the longest wait after all tries in a row have failed.
const PUT_OFF: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(900));
/// How often a notice is put off before it is a dead letter: for some two hours in all.
const MOST_ATTEMPTS: u32 = 12;
/// Notices that are posted at once: each may have to wait for somebody else's server.
const AT_ONCE: u32 = 32;
/// Most reminders of one question.
const MOST_REMINDERS: usize = 20;

/// Where people are told.
pub(crate) struct Targets {
    people: Option<Webhook>,
    /// Who is told if those are silent.
    others: Option<Webhook>,
    /// For agents whose file says nothing.
    remind_after: Option<units::Duration>,
    escalate_after: Option<units::Duration>,
}

/// Tells people. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Notifying {
    targets: Arc<Targets>,
    steward: Steward,
    engine: Engine,
    reads: Reads,
    notices: Notices,
    bus: Bus,
    planned: Arc<Notify>,
}

/// What is read of an event that says that a question was asked, or that one of two people has agreed: all else stands in the
/// log.
#[derive(Debug, Deserialize)]
struct Heard {
    /// None: a limit was reached, and nobody is asked about it.
    #[serde(default, alias = "ask")]
    approval: Option<Which>,
    /// Which question one of two people has agreed to.
    #[serde(default)]
    approval_id: Option<ApprovalId>,
}

#[derive(Debug, Deserialize)]
struct Which {
    approval_id: ApprovalId,
    /// None: a question, which no standing approval answers.
    #[serde(default)]
    call_id: Option<kernel::CallId>,
}

impl Targets {
    pub(crate) fn new(config: &Config) -> Result<Self, reqwest::Error> {
        let webhook = |url: &str, secret| url.parse().ok().map(|url| Webhook::new(url, secret)).transpose();
        let seconds = |seconds: u64| (seconds > 0).then(|| units::Duration::from_secs(seconds));
        let people = webhook(&config.notify_url, &config.notify_secret)?;
        let secret = if config.escalate_secret.is_empty() { &config.notify_secret } else { &config.escalate_secret };
        let others = webhook(&config.escalate_url, secret)?.or_else(|| people.clone());
        let (remind_after, escalate_after) = (seconds(config.remind_seconds), seconds(config.escalate_seconds));
        Ok(Self { people, others, remind_after, escalate_after })
    }

    fn are_none(&self) -> bool {
        self.people.is_none() && self.others.is_none()
    }

    fn of(&self, kind: NoticeKind) -> Option<&Webhook> {
        if kind == NoticeKind::Escalation { self.others.as_ref() } else { self.people.as_ref() }
    }

    /// What is to be told of a question, and when: as the agent's file says, or as this service is set up.
    fn plan(
        &self,
        agent: Option<&AgentSpec>,
        asked: Timestamp,
        expires: Timestamp,
    ) -> Vec<(NoticeKind, i32, Timestamp)> {
        let of_file = agent.map(|agent| agent.approval_reminders.as_slice()).unwrap_or_default();
        let usual = self.remind_after.as_slice();
        let reminders = if of_file.is_empty() { usual } else { of_file };
        let reminders = reminders.iter().take(MOST_REMINDERS).map(|after| later(asked, *after));
        let reminders = (0..).zip(reminders).map(|(number, at)| (NoticeKind::Reminder, number, at));
        let escalation = agent.and_then(|agent| agent.approval_escalation).or(self.escalate_after);
        let escalation = escalation.map(|after| (NoticeKind::Escalation, 0, later(asked, after)));
        std::iter::once((NoticeKind::Asked, 0, asked))
            .chain(reminders)
            .chain(escalation)
            // After its time nobody is asked any more.
            .filter(|(kind, _, at)| *at < expires && self.of(*kind).is_some())
            .collect()
    }
}

impl Notifying {
    pub(crate) fn new(targets: Targets, engine: &Engine, steward: Steward) -> Self {
        Self {
            targets: Arc::new(targets),
            steward,
            engine: engine.clone(),
            reads: engine.reads(),
            notices: engine.notices(),
            bus: engine.bus().clone(),
            planned: Arc::new(Notify::new()),
        }
    }

    /// Handles the event that a question was asked, or that one of two people has agreed.
    pub(crate) async fn hear(self, delivery: Delivery) -> HandlerResult {
        let Ok(Subject::Event { tenant, .. }) = Subject::parse(&delivery.subject) else {
            return Ok(Outcome::dead("the subject is none of an event"));
        };
        let (Ok(tenant), Ok(heard)) = (tenant.parse::<TenantId>(), delivery.json::<Heard>()) else {
            return Ok(Outcome::dead("the event can't be read: another version wrote it"));
        };
        let done = match heard {
            Heard { approval_id: Some(id), .. } => self.endorsed(&tenant, id).await,
            Heard { approval: None, .. } => return Ok(Outcome::Ack),
            Heard { approval: Some(asked), .. } if asked.call_id.is_none() && self.targets.are_none() => {
                metrics::counter!("approval_questions_total").increment(1);
                return Ok(Outcome::Ack);
            }
            Heard { approval: Some(asked), .. } => self.heard(&tenant, asked.approval_id).await,
        };
        match done {
            Ok(()) => Ok(Outcome::Ack),
            Err(error) if error.is_transient() => Ok(Outcome::defer(error.to_string())),
            Err(error) => Err(error.into()),
        }
    }

    async fn heard(&self, tenant: &TenantId, id: ApprovalId) -> Result<(), EngineError> {
        // The message is a doorbell: what is asked, and whether it still is, stands in the log.
        let Some(row) = self.reads.approval(tenant, id).await?.filter(|row| row.state == "open") else { return Ok(()) };
        let Some(run) = self.engine.load_at_least(row.run_id, 0, |_| true).await? else { return Ok(()) };
        if self.steward.decide(&row, &run).await? {
            return Ok(());
        }
        let (run_id, expires_at) = (row.run_id, row.expires_at);
        tracing::info!(%tenant, %run_id, approval_id = %id, tool = row.tool, %expires_at, "a person is asked");
        metrics::counter!("approval_questions_total").increment(1);
        let agent = self.engine.agents().by_digest(tenant, &run.agent, &run.agent_digest).await?;
        let plan = self.targets.plan(agent.as_deref().map(|version| &version.spec), row.requested_at, row.expires_at);
        if !plan.is_empty() {
            self.notices.plan(id, &plan).await?;
            self.planned.notify_one();
        }
        Ok(())
    }

    /// Plans to tell those who were asked that one more person is needed.
    async fn endorsed(&self, tenant: &TenantId, id: ApprovalId) -> Result<(), EngineError> {
        metrics::counter!("approval_endorsements_total").increment(1);
        let Some(row) = self.reads.approval(tenant, id).await?.filter(|row| row.state == "open") else { return Ok(()) };
        let Some(first) = row.endorsed.filter(|_| self.targets.people.is_some()) else { return Ok(()) };
        self.notices.plan(id, &[(NoticeKind::Endorsed, 0, first.at)]).await?;
        self.planned.notify_one();
        Ok(())
    }

    /// Tells what is due until told to stop.
    pub(crate) async fn run(&self, every: Duration, stop: CancellationToken) {
        loop {
            let some_time = async {
                tokio::select! {
                    () = self.planned.notified() => {}
                    () = tokio::time::sleep(every) => {}
                }
            };
            if stop.run_until_cancelled(some_time).await.is_none() {
                return;
            }
            if let Err(error) = self.tell_due().await {
                tracing::warn!(error = &error as &dyn std::error::Error, "can't look for due notices at the moment");
            }
        }
    }

    async fn tell_due(&self) -> Result<(), EngineError> {
        let due = self.notices.claim_due(AT_ONCE, HOLD).await?;
        futures::future::join_all(due.iter().map(|notice| self.tell(notice))).await.into_iter().collect()
    }

    async fn tell(&self, notice: &Notice) -> Result<(), EngineError> {
        let row = self.reads.approval_by_id(notice.approval_id).await?.filter(|row| row.state == "open");
        let (Some(row), Some(webhook)) = (row, self.targets.of(notice.kind)) else {
            return self.notices.done(notice).await;
        };
        let body = announcement(notice.kind, &row).to_string();
        let id = format!("approval-{}-{}-{}", notice.approval_id, notice.kind.as_str(), notice.number);
        let posted = retry::when(TRIES, PostError::is_transient, || {
            webhook.post(&id, Timestamp::now().as_second(), body.clone())
        });
        let outcome = posted.await;
        let word = match &outcome {
            Ok(()) => "told",
            Err(error) if error.is_transient() && notice.attempts < MOST_ATTEMPTS => "put_off",
            Err(_) => "dead",
        };
        metrics::counter!("approval_notices_total", "kind" => notice.kind.as_str(), "outcome" => word).increment(1);
        match outcome {
            Err(error) if word == "put_off" => {
                let wait = retry::delay(PUT_OFF.0, PUT_OFF.1, notice.attempts.into());
                tracing::warn!(approval_id = %notice.approval_id, %error, ?wait, "a notice was not taken, and is put off");
                let wait = units::Duration::from_millis(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
                self.notices.put_off(notice, later(Timestamp::now(), wait)).await
            }
            Err(error) => {
                if self.bury(notice, &row, &id, &error).await {
                    return self.notices.done(notice).await;
                }
                // It stays claimed for a while, and is then tried once more.
                Ok(())
            }
            Ok(()) => self.notices.done(notice).await,
        }
    }

    /// Keeps what can't be told among the dead letters; redriven, it is told anew. Whether it is kept.
    async fn bury(&self, notice: &Notice, row: &ApprovalRow, id: &str, error: &PostError) -> bool {
        let (event_type, body) = match notice.kind {
            NoticeKind::Endorsed => ("approval.endorsed", json!({ "approval_id": row.approval_id })),
            NoticeKind::Asked | NoticeKind::Reminder | NoticeKind::Escalation => {
                ("approval.requested", json!({ "approval": { "approval_id": row.approval_id } }))
            }
        };
        let subject = subject::evt(event_type, &row.tenant, row.run_id);
        let reason = error.to_string();
        let given_up = GivenUp {
            consumer: "approval",
            subject: &subject,
            id: id.to_owned(),
            attempts: notice.attempts.into(),
            reason: &reason,
        };
        let kept = self.bus.dlq_keep(given_up, Headers::new(), body.to_string()).await;
        if let Err(error) = &kept {
            tracing::warn!(error = error as &dyn std::error::Error, "a dead notice can't be kept at the moment");
        }
        kept.is_ok()
    }
}

/// What is posted.
fn announcement(kind: NoticeKind, row: &ApprovalRow) -> Value {
    let event_type = match kind {
        NoticeKind::Asked => "approval.requested",
        NoticeKind::Endorsed => "approval.endorsed",
        NoticeKind::Reminder => "approval.reminder",
        NoticeKind::Escalation => "approval.escalated",
    };
    let mut data = serde_json::to_value(row).unwrap_or_default();
    data["decide"] = json!(format!("POST /v1/approvals/{}", row.approval_id));
    data["on_no_answer"] = json!("deny");
    data["people_needed"] = json!(if row.two_people { 2 } else { 1 });
    let since =
        row.endorsed.as_ref().filter(|_| kind == NoticeKind::Endorsed).map_or(row.requested_at, |first| first.at);
    if let Some(first) = &row.endorsed {
        data["text"] = json!(format!("`{}` has agreed: one more person is needed", first.by));
    }
    json!({"type": event_type, "timestamp": since, "data": data})
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::UNIX_EPOCH;

    fn targets(remind: u64, escalate: u64) -> Targets {
        let config = Config {
            notify_url: "https://example.com/ask".into(),
            notify_secret: "s".into(),
            remind_seconds: remind,
            escalate_seconds: escalate,
            ..Config::default()
        };
        Targets::new(&config).unwrap()
    }

    fn planned(targets: &Targets, agent: Option<&AgentSpec>, within: u64) -> Vec<(&'static str, i64)> {
        let plan = targets.plan(agent, START, later(START, units::Duration::from_secs(within)));
        plan.iter().map(|(kind, _, at)| (kind.as_str(), at.as_second())).collect()
    }

    #[test]
    fn people_are_reminded_and_others_told_before_time_is_over() {
        let usual = targets(60, 120);
        assert_eq!(planned(&usual, None, 3600), [("asked", 0), ("reminder", 60), ("escalation", 120)]);
        assert_eq!(planned(&usual, None, 100), [("asked", 0), ("reminder", 60)]);
        assert_eq!(planned(&targets(0, 0), None, 3600), [("asked", 0)]);
        let nobody = Targets::new(&Config::default()).unwrap();
        assert!(planned(&nobody, None, 3600).is_empty(), "there is nobody to tell");
    }

    #[test]
    fn the_file_of_the_agent_comes_first() {
        let file =
            "{name: a, model: 'scripted:a', instructions: x, approval_reminders: [5m, 30m], approval_escalation: 1h}";
        let agent = engine::parse(file).unwrap();
        let plan = planned(&targets(60, 120), Some(&agent), 24 * 3600);
        assert_eq!(plan, [("asked", 0), ("reminder", 300), ("reminder", 1800), ("escalation", 3600)]);
    }
}
