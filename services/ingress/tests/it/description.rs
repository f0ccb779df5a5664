//! The description of the API: kept in the repository, served, and true.

use std::collections::BTreeSet;
use std::path::Path;

use reqwest::{Method, StatusCode};
use serde_json::Value;

use crate::harness::Door;

#[test]
fn the_kept_description_is_the_one_that_the_code_gives() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schemas/openapi.json");
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == ingress::openapi(), "schemas/openapi.json is out of date: `esc schemas --write` mends it");
}

#[test]
fn every_reference_leads_somewhere() {
    let document: Value = serde_json::from_str(ingress::openapi()).unwrap();
    let mut open = vec![&document];
    let mut references = 0;
    while let Some(value) = open.pop() {
        match value {
            Value::Object(map) => {
                if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
                    references += 1;
                    assert!(document.pointer(&reference[1..]).is_some(), "{reference}");
                }
                open.extend(map.values());
            }
            Value::Array(items) => open.extend(items),
            _ => {}
        }
    }
    assert!(references > 50, "{references}");
}

#[tokio::test]
async fn every_described_call_exists_and_wants_a_token() {
    let door = Door::open().await;
    let document: Value =
        door.http.get(format!("{}/openapi.json", door.url)).send().await.unwrap().json().await.unwrap();
    assert_eq!(document["openapi"].as_str().map(|version| &version[..3]), Some("3.1"));
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap().iter().filter(|(name, _)| *name != "parameters") {
            let method: Method = method.to_uppercase().parse().unwrap();
            // No id of anything: a call that is there says what it lacks, and not that the path is unknown.
            let url = format!("{}{}", door.url, path.replace('{', "x-").replace('}', ""));
            let response = door.http.request(method.clone(), &url).send().await.unwrap();
            // One that says so lets everybody in: a webhook, which is signed.
            if operation["security"].is_null() {
                assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{method} {path}");
            }
            let response = door.http.request(method.clone(), &url).bearer_auth("acme-admin").send().await.unwrap();
            assert_ne!(response.status(), StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
            if !response.status().is_success() {
                let problem: Value = response.json().await.unwrap();
                assert_ne!(problem["code"], "unknown_path", "{method} {path}");
            }
        }
    }
    door.close().await;
}

/// `schemas/asyncapi.yaml` is written by hand, since most of it is prose; what it lists has to be what there is.
#[test]
fn the_kept_description_of_nats_names_every_event_and_every_subject() {
    let schemas = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schemas");
    let text = std::fs::read_to_string(schemas.join("asyncapi.yaml")).unwrap();
    let document: Value = serde_saphyr::from_str(&text).unwrap();
    let listed = document["channels"]["events"]["messages"].as_object().unwrap().keys();
    let listed: BTreeSet<&str> = listed.map(String::as_str).collect();
    assert_eq!(listed, kernel::EventData::TYPES.iter().copied().collect());
    for (event_type, version, _) in kernel::EventData::schemas() {
        let payload = &document["components"]["messages"][event_type]["payload"]["$ref"];
        assert_eq!(*payload, format!("./events/{event_type}.v{version}.json"));
    }
    let addresses: BTreeSet<&str> = document["channels"]
        .as_object()
        .unwrap()
        .values()
        .map(|channel| channel["address"].as_str().unwrap())
        .collect();
    let known = [
        "in.{tenant}.{source}.{type}",
        "log.{tenant}.{service}",
        "sig.{tenant}.{run}.{call}",
        "evt.{entity}.{verb}.{tenant}.{run}",
        "evt.action.recorded.{tenant}.{action}",
        "live.{tenant}.{run}",
        "dlq.{consumer}",
        "svc.approval.decide",
        "svc.tool-executor.verify",
        "svc.tool-executor.preview",
        "svc.tool-executor.check",
        "svc.planner.classify",
    ];
    assert_eq!(addresses, known.into_iter().collect());
}

/// What follows one of these in the source is a code.
const CODED: [&str; 7] =
    ["bad_request(", "not_found(", "conflict(", "unprocessable(", "unavailable(", "unauthorized(", "StatusCode::"];

/// The codes that the source of a module names: the first text after a status.
fn codes_in(source: &str) -> BTreeSet<String> {
    let plain = |text: &str| text.len() > 3 && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let source = source.split("#[cfg(test)]").next().unwrap();
    let mut codes = BTreeSet::new();
    for start in CODED {
        for rest in source.split(start).skip(1) {
            let rest =
                rest.trim_start_matches(|c: char| c.is_ascii_uppercase() || c == '_' || c == ',' || c.is_whitespace());
            let code = rest.strip_prefix('"').and_then(|rest| rest.split('"').next()).filter(|code| plain(code));
            codes.extend(code.map(str::to_owned));
        }
    }
    codes
}

#[test]
fn all_error_codes_are_on_the_page() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(crate_dir.join("errors.md")).unwrap();
    let (mut open, mut codes) = (vec![crate_dir.join("src")], BTreeSet::new());
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            codes.extend(codes_in(&std::fs::read_to_string(&path).unwrap()));
        }
    }
    assert!(codes.len() > 50 && codes.contains("unknown_run"), "{codes:?}");
    let missing: Vec<_> = codes.iter().filter(|code| !page.contains(&format!("`{code}`"))).collect();
    assert!(missing.is_empty(), "errors.md says nothing of {missing:?}");
}
