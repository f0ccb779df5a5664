//! Committed events as callers see them.

use engine::StoredEvent;
use kernel::{Cause, RunId, Seq, Timestamp};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::schema;

/// A committed event.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "Event")]
pub(crate) struct EventView {
    /// `<run>-<seq>`.
    event_id: String,
    /// Which run.
    #[schema(value_type = uuid::Uuid)]
    run_id: RunId,
    /// Its number within the run.
    #[schema(value_type = u64)]
    seq: Seq,
    /// Its type, such as `run.created`.
    #[serde(rename = "type")]
    event_type: String,
    /// The version of its content.
    version: u16,
    /// When it was decided.
    at: Timestamp,
    /// What led to it.
    #[schema(value_type = schema::Cause)]
    cause: Cause,
    /// Its content, as `schemas/events` says for its type and version.
    #[schema(value_type = Object)]
    data: Box<RawValue>,
}

impl From<StoredEvent> for EventView {
    fn from(stored: StoredEvent) -> Self {
        Self {
            event_id: event_id(stored.run_id, stored.seq),
            run_id: stored.run_id,
            seq: stored.seq,
            event_type: stored.event_type,
            version: stored.version,
            at: stored.at,
            cause: stored.cause,
            data: stored.data,
        }
    }
}

impl EventView {
    /// Whether both came in one commit: decided at the same time, for the same cause.
    pub(crate) fn is_committed_with(&self, other: &StoredEvent) -> bool {
        self.at == other.at && self.cause == other.cause
    }
}

/// The id of an event over all runs.
pub(crate) fn event_id(run: RunId, seq: Seq) -> String {
    format!("{run}-{seq}")
}

/// The number of an event of `run` from its id, or from the number alone.
pub(crate) fn seq_of(run: RunId, id: &str) -> Option<Seq> {
    let number = match id.rsplit_once('-') {
        Some((named, number)) if named.parse::<RunId>() == Ok(run) => number,
        Some(_) => return None,
        None => id,
    };
    number.parse().ok().filter(|seq| *seq > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_named_by_its_id_or_its_number() {
        let run = RunId::mint();
        assert_eq!(seq_of(run, &event_id(run, 7)), Some(7));
        assert_eq!(seq_of(run, "7"), Some(7));
        for other in ["", "0", "-7", "x", &event_id(RunId::mint(), 7), &run.to_string()] {
            assert_eq!(seq_of(run, other), None, "{other}");
        }
    }
}
