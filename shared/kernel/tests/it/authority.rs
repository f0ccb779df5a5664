//! Who may say what: the rules here, and the permissions on NATS, which are written by hand beside them.

use std::collections::{BTreeMap, BTreeSet};

use kernel::{EventData, Role};
use serde_json::Value;

fn permissions() -> Value {
    serde_json::from_str(include_str!("../../../../infra/nats/permissions.json")).unwrap()
}

fn writers(event_type: &str) -> BTreeSet<&'static str> {
    Role::ALL.into_iter().filter(|role| role.may_write(event_type)).map(Role::as_str).collect()
}

/// Services that publish for others what the log holds already.
fn sweepers(permissions: &Value) -> BTreeSet<&str> {
    let users = permissions["users"].as_object().unwrap();
    users.iter().filter(|(_, user)| user["sweeps"] == true).map(|(name, _)| name.as_str()).collect()
}

#[test]
fn who_may_write_an_event_may_announce_it_and_nobody_else() {
    let permissions = permissions();
    let sweepers = sweepers(&permissions);
    let exclusive: BTreeMap<&str, BTreeSet<&str>> = permissions["exclusive"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(subject, users)| {
            let users = users.as_array().unwrap().iter().map(|user| user.as_str().unwrap());
            (subject.strip_prefix("evt.").unwrap(), users.collect())
        })
        .collect();
    for event_type in EventData::TYPES.iter().copied() {
        let writers = writers(event_type);
        match exclusive.get(event_type) {
            None => assert_eq!(
                writers.len(),
                Role::ALL.len(),
                "`{event_type}` is announced by all, and written by {writers:?}"
            ),
            Some(named) => {
                assert!(named.is_subset(&writers), "{event_type}: {named:?} announce it, and {writers:?} write it");
                let missing: BTreeSet<_> = writers.difference(named).filter(|role| !sweepers.contains(*role)).collect();
                assert!(missing.is_empty(), "{event_type}: {missing:?} write it, and can't announce it");
            }
        }
    }
}

/// What only a person, or a rule that a person set, may bring about: no service that reads what strangers wrote is among its
/// writers.
#[test]
fn no_service_that_reads_strangers_words_writes_what_only_people_may_say() {
    for event_type in [
        "approval.endorsed",
        "approval.granted",
        "approval.denied",
        "budget.changed",
        "run.paused",
        "run.resumed",
        "trust.declassified",
    ] {
        for role in [Role::Planner, Role::ToolExecutor, Role::Observer, Role::Artifact] {
            assert!(!role.may_write(event_type), "{} may write `{event_type}`", role.as_str());
        }
    }
}
