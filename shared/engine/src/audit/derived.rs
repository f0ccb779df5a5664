//! What the tables beside the log hold, and what they should.

use std::collections::{BTreeMap, HashMap};

use kernel::{
    RunId, RunState, STATE_VERSION, Status, Timestamp,
    call::CallStatus,
    tool::CallKind,
    wait::{Condition, Wait},
};
use serde_json::{Value, json};
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::Seen;
use crate::error::{EngineError, pg};

/// Rows by table and key.
pub(super) type Rows = BTreeMap<(String, String), Value>;

/// Columns that hold a time: the log keeps nanoseconds of what a model asked for, Postgres the nearest microsecond.
const TIMES: [&str; 8] =
    ["created_at", "updated_at", "not_before", "due", "deadline", "since", "started_at", "expires_at"];

const ROWS: &str = "
select 'runs' as name, run_id, '' as key, json_build_object(
    'tenant', tenant, 'agent', agent, 'agent_digest', agent_digest, 'sampled', sampled,
    'created_at', (extract(epoch from created_at) * 1000000)::bigint,
    'updated_at', (extract(epoch from updated_at) * 1000000)::bigint,
    'seq', seq, 'status', status, 'rule', rule, 'attention', attention, 'turn_id', turn_id,
    'not_before', (extract(epoch from not_before) * 1000000)::bigint, 'wake_kinds', array_to_string(wake_kinds, ','),
    'turns', turns, 'tool_calls', tool_calls, 'model_calls', model_calls, 'input_tokens', input_tokens,
    'cached_tokens', cached_tokens, 'output_tokens', output_tokens, 'cost', cost_microusd,
    'parent_id', parent_id, 'lineage', lineage)::text as row
from runs where run_id = any ($1)
union all
select 'waits', run_id, wait_id || '/' || leaf, json_build_object(
    'tenant', tenant, 'kind', kind, 'resource_key', resource_key, 'event_type', event_type, 'filter', filter,
    'exclusive', exclusive, 'why', why, 'due', (extract(epoch from due) * 1000000)::bigint,
    'deadline', (extract(epoch from deadline) * 1000000)::bigint,
    'since', (extract(epoch from since) * 1000000)::bigint)::text
from waits where run_id = any ($1)
union all
select 'timers', run_id, timer_id::text, json_build_object(
    'due', (extract(epoch from due) * 1000000)::bigint, 'purpose', purpose)::text
from timers where run_id = any ($1)
union all
select 'started_calls', run_id, call_id::text, json_build_object(
    'tenant', tenant, 'tool', tool, 'activity', activity, 'status', status, 'executor', executor,
    'started_at', (extract(epoch from started_at) * 1000000)::bigint)::text
from started_calls where run_id = any ($1)
union all
select 'approvals', run_id, approval_id::text, json_build_object(
    'tenant', tenant, 'call_id', call_id, 'tool', tool, 'state', state,
    'two_people', two_people, 'endorsed_by', endorsed ->> 'by',
    'expires_at', (extract(epoch from expires_at) * 1000000)::bigint)::text
from approvals where run_id = any ($1)
union all
select 'artifacts', run_id, artifact_id || '/' || version, json_build_object(
    'tenant', tenant, 'name', name, 'digest', digest, 'bytes', bytes, 'media_type', media_type, 'trust', trust)::text
from artifacts where run_id = any ($1)
union all
select 'children', run_id, child_id::text, json_build_object(
    'call_id', call_id, 'started_at', (extract(epoch from started_at) * 1000000)::bigint)::text
from children where run_id = any ($1)";

/// The rows of these runs.
pub(super) async fn rows(view: &mut PgConnection, runs: &[Uuid]) -> Result<HashMap<RunId, Rows>, EngineError> {
    let read = || pg("reading the tables beside the log");
    let found = sqlx::query(ROWS).bind(runs).fetch_all(view).await.map_err(read())?;
    let mut rows: HashMap<RunId, Rows> = HashMap::with_capacity(runs.len());
    for row in found {
        let parts = || -> Result<(String, Uuid, String, String), sqlx::Error> {
            Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?))
        };
        let (name, run, key, json) = parts().map_err(read())?;
        let json = serde_json::from_str(&json).map_err(|source| EngineError::Json { what: "a row", source })?;
        rows.entry(RunId(run)).or_default().insert((name, key), json);
    }
    Ok(rows)
}

/// The checkpoints of these runs, those of this version and that can be read.
pub(super) async fn checkpoints(
    view: &mut PgConnection,
    runs: &[Uuid],
) -> Result<HashMap<RunId, RunState>, EngineError> {
    let read = || pg("reading checkpoints");
    let rows = sqlx::query("select state::text from checkpoints where run_id = any ($1) and state_version = $2")
        .bind(runs)
        .bind(i32::try_from(STATE_VERSION).unwrap_or(i32::MAX))
        .fetch_all(view)
        .await
        .map_err(read())?;
    let mut states = HashMap::new();
    for row in rows {
        let json: String = row.try_get(0).map_err(read())?;
        let state: RunState =
            serde_json::from_str(&json).map_err(|source| EngineError::Json { what: "a checkpoint", source })?;
        states.insert(state.run_id, state);
    }
    Ok(states)
}

/// The rows that a run should have.
pub(super) fn expected(state: &RunState, seen: &Seen) -> Rows {
    let tenant = state.tenant.as_str();
    let mut rows = Rows::new();
    let mut row = |table: &str, key: String, value: Value| rows.insert((table.to_owned(), key), value);
    row("runs", String::new(), run(state));
    for (leaf, value) in state.wait.iter().flat_map(|wait| leaves(state, wait)) {
        row("waits", leaf, value);
    }
    for (id, timer) in &state.timers {
        row("timers", id.to_string(), json!({ "due": micros(timer.due), "purpose": timer.purpose }));
    }
    for call in state.started_calls() {
        let value = json!({
            "tenant": tenant, "tool": call.request.tool, "activity": call.request.kind == CallKind::Activity,
            "status": if call.status == CallStatus::InDoubt { "in_doubt" } else { "started" },
            "executor": call.executor, "started_at": call.started_at.map(micros),
        });
        row("started_calls", call.request.call_id.to_string(), value);
    }
    for child in state.children.values() {
        let value = json!({ "call_id": child.spawn.call_id, "started_at": seen.children.get(&child.child_id) });
        row("children", child.child_id.to_string(), value);
    }
    for (id, (verdict, approval)) in &seen.approvals {
        let value = json!({
            "tenant": tenant, "call_id": approval.call_id, "tool": approval.tool, "state": verdict,
            "two_people": approval.two_people, "endorsed_by": seen.endorsed.get(id),
            "expires_at": micros(approval.expires_at),
        });
        row("approvals", id.to_string(), value);
    }
    for ((id, version), artifact) in &seen.artifacts {
        let value = json!({
            "tenant": tenant, "name": artifact.name, "digest": artifact.digest, "bytes": artifact.bytes,
            "media_type": artifact.media_type, "trust": artifact.trust.as_str(),
        });
        row("artifacts", format!("{id}/{version}"), value);
    }
    rows
}

fn run(state: &RunState) -> Value {
    let status = state.status();
    let kinds: Vec<_> = match status {
        Status::Waiting => state.wake_kinds().into_iter().map(kernel::wait::WakeKind::as_str).collect(),
        _ => Vec::new(),
    };
    let dispatchable = |call: &kernel::call::Call| {
        let held = call.put_off.is_some() || (state.paused && !call.request.is_compensation());
        matches!(call.status, CallStatus::Requested | CallStatus::Approved) && !held
    };
    let to_do = state.to_compensate().is_some() || state.calls.values().any(dispatchable);
    let wanted = to_do || (!state.paused && (state.queued || state.turn.is_some()));
    let turn = state.turn.as_ref();
    let usage = &state.spent.usage;
    json!({
        "tenant": state.tenant, "agent": state.agent, "agent_digest": state.agent_digest, "sampled": state.sampled,
        "created_at": micros(state.created_at), "updated_at": micros(state.updated_at), "seq": state.seq,
        "status": status.as_str(), "rule": state.ending.as_ref().map(|ending| ending.rule),
        "attention": wanted && !state.ended, "turn_id": turn.map(|turn| turn.turn_id),
        "not_before": turn.and_then(|turn| turn.not_before).map(micros), "wake_kinds": kinds.join(","),
        "turns": state.spent.turns, "tool_calls": state.spent.tool_calls, "model_calls": usage.model_calls,
        "input_tokens": usage.input_tokens, "cached_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens, "cost": usage.cost_microusd,
        "parent_id": state.parent.as_ref().map(|parent| parent.run_id),
        "lineage": state.parent.as_ref().map(|parent| parent.lineage.clone()).unwrap_or_default(),
    })
}

fn leaves(state: &RunState, wait: &Wait) -> Vec<(String, Value)> {
    let of = |condition: &Condition| {
        let external = match condition {
            Condition::External(pattern) => Some(pattern),
            _ => None,
        };
        let due = match condition {
            Condition::Timer { due, .. } => Some(micros(*due)),
            Condition::External(pattern) if pattern.verify.is_some() => state.wait_since.map(micros),
            _ => None,
        };
        json!({
            "tenant": state.tenant, "kind": condition.wake_kind().as_str(),
            "resource_key": external.map(kernel::wait::ExternalPattern::resource_key),
            "event_type": external.map(|pattern| &pattern.event_type),
            "filter": external.and_then(|pattern| pattern.filter.as_ref()),
            "exclusive": external.is_some_and(|pattern| pattern.exclusive), "why": wait.why, "due": due,
            "deadline": wait.deadline.map(micros), "since": state.wait_since.map(micros),
        })
    };
    let leaves = wait.on.leaves().into_iter().enumerate();
    leaves.map(|(number, leaf)| (format!("{}/{number}", wait.wait_id), of(&leaf.condition))).collect()
}

/// Rule and detail of each row that is not as it should be.
pub(super) fn differences(mut found: Rows, expected: &Rows) -> Vec<(String, String)> {
    let mut differences = Vec::new();
    for (place, wanted) in expected {
        let (table, key) = place;
        match found.remove(place) {
            None => differences.push((format!("{table}.missing"), format!("there is no row {key}"))),
            Some(row) => {
                let words = fields(&row, wanted);
                if !words.is_empty() {
                    differences.push((format!("{table}.differs"), format!("{key} {words}").trim_start().to_owned()));
                }
            }
        }
    }
    let left = found.into_keys().map(|(table, key)| (format!("{table}.left"), format!("row {key} should be gone")));
    differences.extend(left);
    differences
}

fn micros(at: Timestamp) -> i64 {
    at.as_microsecond()
}

/// The fields of a state that are not as the log has them.
pub(super) fn state_differences(copy: &RunState, state: &RunState) -> String {
    let value = |state: &RunState| serde_json::to_value(state).unwrap_or_default();
    let words = fields(&value(copy), &value(state));
    if words.is_empty() { "they differ in what JSON does not show".to_owned() } else { words }
}

/// In words, where two objects differ.
fn fields(found: &Value, wanted: &Value) -> String {
    let (Some(found), Some(wanted)) = (found.as_object(), wanted.as_object()) else { return String::new() };
    let names: std::collections::BTreeSet<_> = found.keys().chain(wanted.keys()).collect();
    let words = names.into_iter().filter_map(|name| {
        let of = |object: &serde_json::Map<String, Value>| object.get(name).cloned().unwrap_or_default();
        let (is, should) = (of(found), of(wanted));
        let near = TIMES.contains(&name.as_str())
            && matches!((is.as_i64(), should.as_i64()), (Some(is), Some(should)) if is.abs_diff(should) <= 1);
        let short = |value: &Value| kernel::excerpt(&value.to_string(), 200);
        (is != should && !near).then(|| format!("{name} is {}, not {}", short(&is), short(&should)))
    });
    words.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(table: &str, value: Value) -> ((String, String), Value) {
        ((table.to_owned(), "1".to_owned()), value)
    }

    #[test]
    fn what_is_missing_left_or_different_is_named() {
        let found = Rows::from([
            row("timers", json!({ "due": 5, "purpose": "wait" })),
            row("waits", json!({ "since": 7, "kind": "timer" })),
            row("approvals", json!({})),
        ]);
        let expected = Rows::from([
            row("timers", json!({ "due": 6, "purpose": "wall" })),
            row("waits", json!({ "since": 9, "kind": "timer" })),
            row("artifacts", json!({})),
        ]);
        let differences = differences(found, &expected);
        let rules: Vec<_> = differences.iter().map(|(rule, detail)| format!("{rule}: {detail}")).collect();
        assert_eq!(
            rules,
            [
                "artifacts.missing: there is no row 1",
                "timers.differs: 1 purpose is \"wait\", not \"wall\"",
                "waits.differs: 1 since is 7, not 9",
                "approvals.left: row 1 should be gone",
            ]
        );
    }
}
