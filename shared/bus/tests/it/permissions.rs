//! The consumers that users may pull from, as `infra/nats/permissions.json` says by hand, are those that there are.

use std::collections::{BTreeMap, BTreeSet};

use bus::Topology;
use serde_json::Value;

#[test]
fn the_permissions_name_every_stream_and_consumer_and_no_other() {
    let permissions: Value = serde_json::from_str(include_str!("../../../../infra/nats/permissions.json")).unwrap();
    let names = |value: &Value| -> BTreeSet<String> {
        value.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
    };
    let listed: BTreeMap<String, BTreeSet<String>> =
        permissions["streams"].as_object().unwrap().iter().map(|(name, of)| (name.clone(), names(of))).collect();
    let topology = Topology::default();
    let mut declared: BTreeMap<String, BTreeSet<String>> =
        topology.streams.iter().map(|stream| (stream.name.to_string(), BTreeSet::new())).collect();
    for consumer in &topology.consumers {
        declared.entry(consumer.stream.to_string()).or_default().insert(consumer.name.to_string());
    }
    assert_eq!(listed, declared);
    for (user, rights) in permissions["users"].as_object().unwrap() {
        for (stream, consumers) in rights["consumes"].as_object().into_iter().flatten() {
            let unknown: Vec<_> = names(consumers).difference(&declared[stream]).cloned().collect();
            assert!(unknown.is_empty(), "{user} may consume {unknown:?} of {stream}");
        }
    }
}
