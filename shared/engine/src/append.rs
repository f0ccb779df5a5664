//! Committing a batch of decisions: one statement, one round trip.

use std::collections::HashMap;
use std::sync::Arc;

use kernel::{
    Cause, Decision, Event, EventData, RunId, RunState, Status,
    call::{Call, CallStatus},
};
use serde::Serialize;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::{
    error::{EngineError, pg},
    projection::Side,
};

/// A decision on its way into the log.
pub(crate) struct Pending {
    pub(crate) run_id: RunId,
    pub(crate) key: String,
    pub(crate) cause: Cause,
    /// The state that it was decided on; none for a new run.
    pub(crate) before: Option<Arc<RunState>>,
    pub(crate) after: Arc<RunState>,
    pub(crate) events: Vec<Event>,
    /// The content of each event as it is stored and published: encoding costs more than deciding, so it is done once.
    pub(crate) encoded: Vec<String>,
}

impl Pending {
    /// What was decided on `before`.
    ///
    /// # Errors
    /// When an event of the decision does not encode.
    pub(crate) fn new(
        run_id: RunId,
        key: String,
        cause: Cause,
        before: Option<Arc<RunState>>,
        decision: Decision,
    ) -> Result<Self, EngineError> {
        let encoded = encode(&decision.events)?;
        let (after, events) = (Arc::new(decision.state), decision.events);
        Ok(Self { run_id, key, cause, before, after, events, encoded })
    }

    /// Adds what was decided on the state after it, to be committed together.
    ///
    /// # Errors
    /// When an event of the decision does not encode; then nothing is added.
    pub(crate) fn go_on(&mut self, decision: Decision) -> Result<(), EngineError> {
        self.encoded.extend(encode(&decision.events)?);
        self.events.extend(decision.events);
        self.after = Arc::new(decision.state);
        Ok(())
    }
}

fn encode(events: &[Event]) -> Result<Vec<String>, EngineError> {
    let encode = |event: &Event| event.data.encode().map_err(|source| EngineError::Json { what: "an event", source });
    events.iter().map(encode).collect()
}

/// What became of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is in the log.
    Committed,
    /// Its delivery key is there already.
    Duplicate,
    /// The run has moved on since it was loaded.
    Conflict,
    /// It would start something in a frozen scope.
    Frozen,
}

/// What became of a batch.
pub(crate) struct Appended {
    pub(crate) fates: HashMap<RunId, Fate>,
    /// The outbox row of what was committed.
    pub(crate) outbox: Option<i64>,
}

/// Commits a batch: at most one decision a run, sorted by run.
///
/// # Errors
/// When Postgres does not take it; then nothing of the batch is committed.
pub(crate) async fn append(
    connection: &mut PgConnection,
    batch: &[Pending],
    published: &[i64],
) -> Result<Appended, EngineError> {
    let commands = Commands::of(batch);
    let events = Events::of(batch)?;
    let (created, side) = documents(batch)?;
    let row = sqlx::query(
        "select append_batch($1, $2, $3, $4, $5::json, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15,
         $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28::json, $29, $30, $31::json)",
    )
    .bind(&commands.run)
    .bind(&commands.expected)
    .bind(&commands.seq)
    .bind(&commands.key)
    .bind(created)
    .bind(&commands.status)
    .bind(&commands.rule)
    .bind(&commands.at)
    .bind(&commands.attention)
    .bind(&commands.turn)
    .bind(&commands.not_before)
    .bind(&commands.wake_kinds)
    .bind(&commands.turns)
    .bind(&commands.tool_calls)
    .bind(&commands.model_calls)
    .bind(&commands.input_tokens)
    .bind(&commands.cached_tokens)
    .bind(&commands.output_tokens)
    .bind(&commands.cost)
    .bind(&events.run)
    .bind(&events.seq)
    .bind(&events.tenant)
    .bind(&events.event_type)
    .bind(&events.version)
    .bind(&events.at)
    .bind(&events.cause)
    .bind(&events.data)
    .bind(side)
    .bind(if published.is_empty() { None } else { Some(published) })
    .bind(&commands.expected_at)
    .bind(starts(batch)?)
    .fetch_one(connection)
    .await
    .map_err(pg("appending to the log"))?;

    // The fate of each command in their order, and last the row of the outbox, or 0.
    let mut fates: Vec<i64> = row.try_get(0).map_err(pg("reading what was appended"))?;
    let outbox = fates.pop().filter(|row| *row != 0);
    let fates = batch.iter().zip(fates).map(|(pending, outcome)| {
        let fate = match outcome {
            0 => Fate::Committed,
            1 => Fate::Duplicate,
            3 => Fate::Frozen,
            _ => Fate::Conflict,
        };
        (pending.run_id, fate)
    });
    Ok(Appended { fates: fates.collect(), outbox })
}

/// Whether somebody should act on the run now: a turn is open, a call is to be dispatched, or it waits for admission.
fn wants_attention(state: &RunState) -> bool {
    let held = |call: &Call| state.paused && !call.request.is_compensation();
    let dispatchable = |call: &Call| {
        matches!(call.status, CallStatus::Requested | CallStatus::Approved) && call.put_off.is_none() && !held(call)
    };
    // What undoes effects goes on while the run is held: it was asked to end.
    let undoes = state.to_compensate().is_some() || state.calls.values().any(dispatchable);
    !state.ended && (undoes || (!state.paused && (state.queued || state.turn.is_some())))
}

/// The columns of `runs` that every commit sets, by position.
#[derive(Default)]
struct Commands<'a> {
    run: Vec<Uuid>,
    expected: Vec<i64>,
    /// When the event came that `expected` numbers, as the state has it that was decided on.
    expected_at: Vec<Option<i64>>,
    seq: Vec<i64>,
    key: Vec<&'a str>,
    status: Vec<&'static str>,
    rule: Vec<Option<String>>,
    at: Vec<i64>,
    attention: Vec<bool>,
    turn: Vec<Option<Uuid>>,
    not_before: Vec<Option<i64>>,
    wake_kinds: Vec<String>,
    turns: Vec<i32>,
    tool_calls: Vec<i32>,
    model_calls: Vec<i32>,
    input_tokens: Vec<i64>,
    cached_tokens: Vec<i64>,
    output_tokens: Vec<i64>,
    cost: Vec<i64>,
}

impl<'a> Commands<'a> {
    fn of(batch: &'a [Pending]) -> Self {
        let mut commands = Self::default();
        for pending in batch {
            commands.push(pending);
        }
        commands
    }

    fn push(&mut self, pending: &'a Pending) {
        let state = &pending.after;
        let status = state.status();
        let turn = state.turn.as_ref();
        let kinds: Vec<_> = match status {
            Status::Waiting => state.wake_kinds().into_iter().map(kernel::wait::WakeKind::as_str).collect(),
            _ => Vec::new(),
        };
        let rule = state.ending.as_ref().and_then(|ending| serde_json::to_value(ending.rule).ok());
        let usage = &state.spent.usage;
        self.run.push(pending.run_id.0);
        self.expected.push(big(pending.before.as_ref().map_or(0, |before| before.seq)));
        self.expected_at.push(pending.before.as_ref().map(|before| before.updated_at.as_microsecond()));
        self.seq.push(big(state.seq));
        self.key.push(&pending.key);
        self.status.push(status.as_str());
        self.rule.push(rule.and_then(|rule| rule.as_str().map(str::to_owned)));
        self.at.push(state.updated_at.as_microsecond());
        self.attention.push(wants_attention(state));
        self.turn.push(turn.map(|turn| turn.turn_id.0));
        self.not_before.push(turn.and_then(|turn| turn.not_before).map(kernel::Timestamp::as_microsecond));
        self.wake_kinds.push(kinds.join(","));
        self.turns.push(int(state.spent.turns));
        self.tool_calls.push(int(state.spent.tool_calls));
        self.model_calls.push(int(usage.model_calls));
        self.input_tokens.push(big(usage.input_tokens));
        self.cached_tokens.push(big(usage.cached_tokens));
        self.output_tokens.push(big(usage.output_tokens));
        self.cost.push(big(usage.cost_microusd));
    }
}

/// The columns of `events`, by position.
#[derive(Default)]
struct Events<'a> {
    run: Vec<Uuid>,
    seq: Vec<i64>,
    tenant: Vec<&'a str>,
    event_type: Vec<&'static str>,
    version: Vec<i16>,
    at: Vec<i64>,
    cause: Vec<String>,
    data: Vec<&'a str>,
}

impl<'a> Events<'a> {
    fn of(batch: &'a [Pending]) -> Result<Self, EngineError> {
        let mut events = Self::default();
        for pending in batch {
            let cause = json("a cause", &pending.cause)?;
            for (event, data) in pending.events.iter().zip(&pending.encoded) {
                events.run.push(pending.run_id.0);
                events.seq.push(big(event.seq));
                events.tenant.push(pending.after.tenant.as_str());
                events.event_type.push(event.data.type_name());
                events.version.push(i16::try_from(event.data.version()).unwrap_or(i16::MAX));
                events.at.push(event.at.as_microsecond());
                events.cause.push(cause.clone());
                events.data.push(data);
            }
        }
        Ok(events)
    }
}

/// A new row of `runs`: what never changes.
#[derive(Serialize)]
struct Created<'a> {
    run_id: RunId,
    tenant: &'a str,
    agent: &'a str,
    agent_digest: &'a str,
    objective: String,
    conversation_id: Option<kernel::ConversationId>,
    metadata: &'a serde_json::Map<String, serde_json::Value>,
    sampled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_id: Option<RunId>,
    lineage: &'a [String],
}

/// A call that a commit starts: kept out if its scope is frozen.
#[derive(Serialize)]
struct Start<'a> {
    run_id: RunId,
    tool: &'a str,
}

fn starts(batch: &[Pending]) -> Result<Option<String>, EngineError> {
    let mut starts = Vec::new();
    for pending in batch {
        for event in &pending.events {
            if let EventData::ToolStarted(started) = &event.data
                && let Some(call) = pending.after.calls.get(&started.call_id)
            {
                starts.push(Start { run_id: pending.run_id, tool: &call.request.tool });
            }
        }
    }
    if starts.is_empty() { Ok(None) } else { json("starts", &starts).map(Some) }
}

/// Bytes of the objective that lists show.
const LISTED_OBJECTIVE: usize = 400;

fn documents(batch: &[Pending]) -> Result<(Option<String>, Option<String>), EngineError> {
    let mut side = Side::default();
    let mut created = Vec::new();
    for pending in batch {
        let state = &pending.after;
        side.add(pending.before.as_deref(), state, &pending.events);
        if pending.before.is_none() {
            created.push(Created {
                run_id: pending.run_id,
                tenant: state.tenant.as_str(),
                agent: &state.agent,
                agent_digest: &state.agent_digest,
                objective: kernel::excerpt(&state.objective.text, LISTED_OBJECTIVE),
                conversation_id: state.conversation_id,
                metadata: &state.metadata,
                sampled: state.sampled,
                parent_id: state.parent.as_ref().map(|parent| parent.run_id),
                lineage: state.parent.as_ref().map_or(&[][..], |parent| &parent.lineage),
            });
        }
    }
    let created = if created.is_empty() { None } else { Some(json("new runs", &created)?) };
    let side = if side.is_empty() { None } else { Some(json("projections", &side)?) };
    Ok((created, side))
}

fn json(what: &'static str, value: &impl Serialize) -> Result<String, EngineError> {
    serde_json::to_string(value).map_err(|source| EngineError::Json { what, source })
}

fn big(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn int(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
