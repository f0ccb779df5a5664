use std::fs;
use std::thread;

use policy::{Answer, Policies, PolicyStore};
use serde_json::json;

use crate::{dir, merge};

const FREE: &str = "@id(\"free\") permit (principal, action, resource);";
const ASK: &str = "@id(\"ask\") @ask(\"why\") permit (principal, action, resource);";

#[test]
fn a_changed_file_is_taken_and_a_broken_one_is_not() {
    let arguments = json!({});
    let dir = dir(FREE);
    let path = dir.path().join("test.cedar");
    let store = PolicyStore::open(dir.path()).unwrap();
    let answer = || store.current().decide(&merge(&arguments)).answer;
    let first = store.current().version().to_owned();
    assert_eq!(store.reload().unwrap(), None);

    fs::write(&path, ASK).unwrap();
    let second = store.reload_if_changed().unwrap().unwrap();
    assert_eq!((answer(), store.current().version()), (Answer::Ask, second.as_str()));

    fs::write(&path, "nonsense").unwrap();
    assert!(store.reload_if_changed().is_err());
    assert!(store.failure().unwrap().contains("test.cedar:1"), "{:?}", store.failure());
    assert_eq!((answer(), store.current().version()), (Answer::Ask, second.as_str()));
    assert_eq!(store.reload_if_changed().unwrap(), None, "a broken set is reported once");
    assert!(store.reload().is_err(), "unless it is asked for");

    fs::write(&path, ASK).unwrap();
    assert_eq!(store.reload_if_changed().unwrap(), None);
    assert_eq!(store.failure(), None, "back to what is in force");

    fs::write(&path, FREE).unwrap();
    assert_eq!(store.reload().unwrap(), Some(first));
    assert_eq!(answer(), Answer::Allow);
}

#[test]
fn a_directory_that_vanishes_leaves_the_old_set() {
    let arguments = json!({});
    let dir = dir(ASK);
    let store = PolicyStore::open(dir.path()).unwrap();
    dir.close().unwrap();
    assert!(store.reload_if_changed().is_err());
    assert_eq!(store.reload_if_changed().unwrap(), None);
    assert_eq!(store.current().decide(&merge(&arguments)).answer, Answer::Ask);
}

#[test]
fn the_shipped_set_stands_in_for_a_missing_directory_only() {
    let dir = dir("nonsense");
    let store = PolicyStore::open_or_embedded(&dir.path().join("absent")).unwrap();
    assert_eq!(store.current().version(), Policies::embedded().version());
    assert_eq!(store.reload().unwrap(), None);
    assert!(PolicyStore::open_or_embedded(dir.path()).is_err());
}

#[test]
fn decisions_go_on_while_the_set_is_swapped() {
    let dir = dir(FREE);
    let path = dir.path().join("test.cedar");
    let store = PolicyStore::open(dir.path()).unwrap();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let arguments = json!({"a": 1});
                for _ in 0..200 {
                    let policies = store.current();
                    let decision = policies.decide(&merge(&arguments));
                    assert_eq!(decision.policy_version, policies.version());
                    assert_ne!(decision.answer, Answer::Deny);
                }
            });
        }
        for round in 0..20 {
            fs::write(&path, if round % 2 == 0 { ASK } else { FREE }).unwrap();
            store.reload().unwrap();
        }
    });
}
