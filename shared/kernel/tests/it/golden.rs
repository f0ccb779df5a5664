//! Stored logs stay readable, and the names in them stay what they are.

use std::collections::BTreeSet;

use kernel::{CallId, EventData, RunId, STATE_VERSION, Timestamp, apply, event::Event};
use serde_json::Value;

/// One event a line, as `{"type", "version", "data"}`, written by the first version: never edited, only added to.
const OLDEST: &str = include_str!("../golden/log-v1.jsonl");
/// What came to be said later, written by the first version that said it.
const LATER: &str = include_str!("../golden/later-v1.jsonl");
/// The version of the state, and what such a state has in it, a name a line.
const STATE: &str = include_str!("../golden/state.txt");

fn stored(log: &str) -> Vec<EventData> {
    log.lines()
        .map(|line| {
            let row: Value = serde_json::from_str(line).unwrap();
            let version = u16::try_from(row["version"].as_u64().unwrap()).unwrap();
            EventData::decode(row["type"].as_str().unwrap(), version, &row["data"].to_string()).unwrap()
        })
        .collect()
}

#[test]
fn the_oldest_log_loads() {
    let run = RunId::mint();
    let mut state = None;
    for (data, seq) in stored(OLDEST).into_iter().zip(1..) {
        let event = Event { seq, at: Timestamp::UNIX_EPOCH, data };
        state = Some(apply(state, run, &event).unwrap());
    }
    assert!(state.unwrap().ended);
}

#[test]
fn what_came_to_be_said_later_loads() {
    let run = RunId::mint();
    let mut state = None;
    for (data, seq) in stored(LATER).into_iter().zip(1..) {
        let event = Event { seq, at: Timestamp::UNIX_EPOCH, data };
        state = Some(apply(state, run, &event).unwrap());
    }
    let state = state.unwrap();
    assert!(state.approvals.is_empty() && state.endorsed.is_empty());
    assert_eq!(state.decided.back().unwrap().1, "approved");
    assert_eq!((state.plan_revision, state.resets_failed, state.spent.usage.input_tokens), (1, 1, 130));
}

/// The names of all that is in it; what is kept under an id counts once.
fn names(value: &Value, path: &str, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let name = if name.parse::<CallId>().is_ok() { "*" } else { name };
                let path = format!("{path}/{name}");
                names(value, &path, into);
                into.insert(path);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| names(item, path, into)),
        _ => {}
    }
}

/// Snapshots are kept under the version. A service of before a new field would read one that has it, leave the field out, and
/// write the rest back for everybody.
#[test]
fn a_state_of_another_shape_has_another_version() {
    let (run, mut found) = (RunId::mint(), BTreeSet::new());
    for log in [OLDEST, LATER] {
        let mut state = None;
        for (data, seq) in stored(log).into_iter().zip(1..) {
            let event = Event { seq, at: Timestamp::UNIX_EPOCH, data };
            let next = apply(state, run, &event).unwrap();
            names(&serde_json::to_value(&next).unwrap(), "", &mut found);
            state = Some(next);
        }
    }
    let found = found.iter().fold(format!("STATE_VERSION {STATE_VERSION}\n"), |text, name| text + name + "\n");
    assert!(
        found == STATE,
        "the shape of the state is not that of golden/state.txt: raise STATE_VERSION, and write down there what it is now:\n{found}"
    );
}

#[test]
fn the_oldest_log_is_written_as_it_was() {
    for log in [OLDEST, LATER] {
        for (data, line) in stored(log).iter().zip(log.lines()) {
            let row: Value = serde_json::from_str(line).unwrap();
            let written: Value = serde_json::from_str(&data.encode().unwrap()).unwrap();
            assert_eq!(written, row["data"], "{}", data.type_name());
            assert_eq!(data.type_name(), row["type"]);
        }
    }
}

#[test]
fn an_unknown_or_newer_event_says_what_to_do() {
    let error = EventData::decode("run.exploded", 1, "{}").unwrap_err();
    assert!(error.to_string().contains("run.exploded"), "{error}");
    let error = EventData::decode("run.paused", 99, "{}").unwrap_err();
    assert!(error.to_string().contains("newer"), "{error}");
}

#[test]
fn type_names_are_unique_and_well_formed() {
    let mut names = EventData::TYPES.to_vec();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), EventData::TYPES.len());
    assert!(names.iter().all(|name| name.split('.').count() == 2));
    assert_eq!(EventData::schemas().len(), names.len());
}
