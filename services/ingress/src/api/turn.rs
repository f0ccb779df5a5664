//! One turn of a run, put together from the log.

use engine::{EngineError, Reads, StoredEvent};
use kernel::budget::Usage;
use kernel::event::{EventData, RunRunnable, TurnCompleted, TurnRejected};
use kernel::slice::Manifest;
use kernel::wait::WakeKind;
use kernel::{Block, RunId, Seq, TenantId, Timestamp, Trust, TurnId};
use serde::Serialize;
use utoipa::ToSchema;

use super::event::EventView;
use super::schema;
use crate::problem::Problem;

/// A turn: what the model saw, what it answered, what was committed, what it cost.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TurnView {
    /// Which turn.
    #[schema(value_type = uuid::Uuid)]
    turn_id: TurnId,
    /// Its number, from 1.
    number: u32,
    /// `open`, `completed` or `rejected`.
    status: &'static str,
    /// The event that opened it.
    #[schema(value_type = u64)]
    opened_by: Seq,
    /// When it was opened.
    opened_at: Timestamp,
    /// What woke it; nothing for the first one.
    #[schema(value_type = Option<schema::WakeKind>)]
    wake: Option<WakeKind>,
    /// What the model saw.
    saw: Option<Saw>,
    /// What it answered.
    answered: Option<Answered>,
    /// What was committed, in order: the turn itself and all that came with it.
    committed: Vec<EventView>,
    /// Answers that could not be used, or came too late.
    rejected: Vec<RejectedAnswer>,
    /// What it cost, all answers together.
    #[schema(value_type = schema::Usage)]
    cost: Usage,
}

/// What the model saw.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Saw {
    /// The last event that was known then.
    #[schema(value_type = u64)]
    based_on: Seq,
    /// The lowest trust in it.
    #[schema(value_type = schema::Trust)]
    trust: Trust,
    /// What went in, what was cut, and why.
    #[schema(value_type = schema::Manifest)]
    manifest: Manifest,
}

/// What the model answered beside its calls; those are among what was committed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Answered {
    /// Provider and model.
    model: String,
    /// What it said.
    #[schema(value_type = Option<schema::Block>)]
    text: Option<Block>,
    /// Why it stopped, as the provider says.
    finish_reason: Option<String>,
    /// How long it took, in milliseconds.
    model_ms: u64,
    /// Calls that were dropped since an operator wrote in the meantime.
    dropped_calls: Vec<String>,
}

/// An answer that was not committed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RejectedAnswer {
    /// The event that says so.
    #[schema(value_type = u64)]
    seq: Seq,
    /// When.
    at: Timestamp,
    /// Why: a stable word.
    code: String,
    /// What was wrong.
    problems: Vec<String>,
}

/// The turn of this number, if there was one. Reads the log from its beginning.
pub(crate) async fn find(
    reads: &Reads,
    tenant: &TenantId,
    run: RunId,
    number: u32,
) -> Result<Option<TurnView>, Problem> {
    let mut found: Option<TurnView> = None;
    let mut after = 0;
    loop {
        let page = reads.events(tenant, run, after, engine::MAX_ROWS).await?;
        let Some(last) = page.last() else { return Ok(found) };
        after = last.seq;
        let full = u32::try_from(page.len()).is_ok_and(|read| read == engine::MAX_ROWS);
        for event in page {
            let is_next = found.as_ref().is_some_and(|turn| turn.is_over_before(&event));
            if is_next {
                return Ok(found);
            }
            match &mut found {
                None => found = TurnView::opened(&event, number)?,
                Some(turn) => turn.add(event)?,
            }
        }
        if !full {
            return Ok(found);
        }
    }
}

impl TurnView {
    fn opened(stored: &StoredEvent, number: u32) -> Result<Option<Self>, Problem> {
        if stored.event_type != "run.runnable" {
            return Ok(None);
        }
        let EventData::RunRunnable(RunRunnable { turn_id, number: opened, wake, .. }) = decode(stored)? else {
            return Ok(None);
        };
        Ok((opened == number).then(|| Self {
            turn_id,
            number,
            status: "open",
            opened_by: stored.seq,
            opened_at: stored.at,
            wake,
            saw: None,
            answered: None,
            committed: Vec::new(),
            rejected: Vec::new(),
            cost: Usage::default(),
        }))
    }

    /// Whether the turn has ended and this event is of a later commit.
    fn is_over_before(&self, event: &StoredEvent) -> bool {
        self.committed.first().is_some_and(|first| !first.is_committed_with(event))
    }

    fn add(&mut self, event: StoredEvent) -> Result<(), Problem> {
        match event.event_type.as_str() {
            "turn.completed" => match decode(&event)? {
                EventData::TurnCompleted(completed) if completed.turn_id == self.turn_id => {
                    self.complete(completed);
                    self.committed.push(event.into());
                }
                _ => {}
            },
            "turn.rejected" => match decode(&event)? {
                EventData::TurnRejected(rejected) if rejected.turn_id == self.turn_id => self.reject(&event, rejected),
                _ => {}
            },
            "turn.charged" => match decode(&event)? {
                EventData::TurnCharged(charged) if charged.turn_id == self.turn_id => self.pay(&charged.usage),
                _ => {}
            },
            _ if !self.committed.is_empty() => self.committed.push(event.into()),
            _ => {}
        }
        Ok(())
    }

    fn complete(&mut self, turn: TurnCompleted) {
        self.status = "completed";
        self.pay(&turn.usage);
        self.saw = Some(Saw { based_on: turn.based_on, trust: turn.trust, manifest: turn.manifest });
        self.answered = Some(Answered {
            model: turn.model,
            text: turn.text,
            finish_reason: turn.finish_reason,
            model_ms: turn.model_ms,
            dropped_calls: turn.dropped_calls,
        });
    }

    fn reject(&mut self, event: &StoredEvent, rejected: TurnRejected) {
        if self.status == "open" {
            self.status = "rejected";
        }
        self.pay(&rejected.usage);
        let TurnRejected { code, problems, .. } = rejected;
        self.rejected.push(RejectedAnswer { seq: event.seq, at: event.at, code, problems });
    }

    fn pay(&mut self, usage: &Usage) {
        let mut sum = kernel::budget::Spent { usage: self.cost, ..kernel::budget::Spent::default() };
        sum.add(usage);
        self.cost = sum.usage;
    }
}

fn decode(stored: &StoredEvent) -> Result<EventData, Problem> {
    stored.decode().map(|event| event.data).map_err(|error| EngineError::from(error).into())
}
