//! Telling people that there is a question.

use std::{sync::Arc, time::Duration};

use bus::{Delivery, HandlerResult, Outcome, Subject, retry};
use engine::{ApprovalRow, Reads};
use kernel::{TenantId, Timestamp, event::ApprovalRequested};
use serde_json::{Value, json};

use crate::{
    config::Config,
    webhook::{PostError, Webhook},
};

/// Waits between tries of one delivery, and how long they go on before the message is given back.
const TRIES: retry::Policy =
    retry::Policy::exponential(Duration::from_millis(500), Duration::from_secs(10)).within(Duration::from_secs(60));

/// Tells people, before it knows the log.
pub(crate) struct Notifier {
    webhook: Option<Webhook>,
}

/// Tells people. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Notifying {
    webhook: Arc<Option<Webhook>>,
    reads: Reads,
}

impl Notifier {
    pub(crate) fn new(config: &Config) -> Result<Self, reqwest::Error> {
        let url = config.notify_url.parse().ok();
        Ok(Self { webhook: url.map(|url| Webhook::new(url, &config.notify_secret)).transpose()? })
    }

    pub(crate) fn with(self, reads: Reads) -> Notifying {
        Notifying { webhook: Arc::new(self.webhook), reads }
    }
}

impl Notifying {
    /// Handles the event that a question was asked.
    pub(crate) async fn notify(self, delivery: Delivery) -> HandlerResult {
        let Ok(Subject::Event { tenant, .. }) = Subject::parse(&delivery.subject) else {
            return Ok(Outcome::dead("the subject is none of an event"));
        };
        let (Ok(tenant), Ok(asked)) = (tenant.parse::<TenantId>(), delivery.json::<ApprovalRequested>()) else {
            return Ok(Outcome::dead("the event can't be read: another version wrote it"));
        };
        // The message is a doorbell: what is asked, and whether it still is, stands in the log.
        let id = asked.approval.approval_id;
        let row = match self.reads.approval(&tenant, id).await {
            Ok(Some(row)) if row.state == "open" => row,
            Ok(_) => return Ok(Outcome::Ack),
            Err(error) if error.is_transient() => return Ok(Outcome::defer(error.to_string())),
            Err(error) => return Err(error.into()),
        };
        let (run_id, expires_at) = (row.run_id, row.expires_at);
        tracing::info!(%tenant, %run_id, approval_id = %id, tool = row.tool, %expires_at, "a person is asked");
        metrics::counter!("approval_questions_total").increment(1);
        match &*self.webhook {
            Some(webhook) => self.post(webhook, &row).await,
            None => Ok(Outcome::Ack),
        }
    }

    async fn post(&self, webhook: &Webhook, row: &ApprovalRow) -> HandlerResult {
        let body = announcement(row)?.to_string();
        let id = format!("approval-{}", row.approval_id);
        let posted = retry::when(TRIES, PostError::is_transient, || {
            webhook.post(&id, Timestamp::now().as_second(), body.clone())
        });
        match posted.await {
            Ok(()) => Ok(Outcome::Ack),
            Err(error) if error.is_transient() => Ok(Outcome::retry(error.to_string())),
            Err(error) => Ok(Outcome::dead(error.to_string())),
        }
    }
}

/// What is posted.
fn announcement(row: &ApprovalRow) -> Result<Value, serde_json::Error> {
    let mut data = serde_json::to_value(row)?;
    data["decide"] = json!(format!("POST /v1/approvals/{}", row.approval_id));
    Ok(json!({"type": "approval.requested", "timestamp": row.requested_at, "data": data}))
}
