use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Runs `esc` in the repository, with nothing of our own environment that could lead it elsewhere.
fn esc(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_esc"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ESC_")) {
        command.env_remove(name);
    }
    command.current_dir(repository()).args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The exit code of `esc`, what it said on stdout and on stderr.
pub fn said(words: &[&str]) -> (i32, String, String) {
    let output = esc(words);
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_committed_schemas_are_as_the_code_says() {
    let (code, out, err) = said(&["schemas", "--check"]);
    assert_eq!(code, 0, "{out}{err}");
}

#[test]
fn schemas_are_written_and_drift_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    assert_eq!(said(&["schemas", "--check", "--dir", folder]).0, 1);
    assert_eq!(said(&["schemas", "--write", "--dir", folder]).0, 0);
    assert_eq!(said(&["schemas", "--check", "--dir", folder]).0, 0);
    let file = dir.path().join("events/run.created.v1.json");
    let changed = std::fs::read_to_string(&file).unwrap().replace("\"run.created\"", "\"run.invented\"");
    std::fs::write(&file, changed).unwrap();
    let (code, out, err) = said(&["schemas", "--check", "--dir", folder]);
    assert_eq!(code, 1);
    assert!(out.contains("run.created.v1.json") && out.contains("run.invented"), "{out}");
    assert!(err.contains("esc schemas --write"), "{err}");
}

#[test]
fn what_does_not_answer_is_exit_code_3_with_a_remedy() {
    for words in [
        &["--url", "http://127.0.0.1:9", "runs"][..],
        &["health", "http://127.0.0.1:9"],
        &["--url", "http://127.0.0.1:9", "timeline", "0198c6a2-0000-7000-8000-000000000000"],
    ] {
        let (code, _, err) = said(words);
        assert_eq!(code, 3, "{words:?}: {err}");
        assert!(err.contains("→"), "{words:?}: {err}");
    }
}

#[test]
fn what_is_typed_wrong_is_exit_code_2() {
    for words in [
        &["launch"][..],
        &["--url", "nonsense", "runs"],
        &["agents", "apply", "/nowhere.yaml"],
        &["triggers", "test", "{}"],
        &["policy", "test", "/nowhere.json"],
        &["observe", "/nowhere.log"],
        &["publish", "github", "github.push", "--data", "{"],
    ] {
        let (code, _, err) = said(words);
        assert_eq!(code, 2, "{words:?}: {err}");
        assert!(!err.is_empty());
    }
}

#[test]
fn errors_are_json_when_asked_for() {
    let (code, out, err) = said(&["--json", "--url", "http://127.0.0.1:9", "runs"]);
    let error: serde_json::Value = serde_json::from_str(&err).unwrap();
    assert_eq!((code, error["exit_code"].as_i64()), (3, Some(3)));
    assert!(out.is_empty() && error["remedy"].is_string());
}

#[test]
fn the_shipped_policies_pass_their_cases() {
    let (code, out, err) = said(&["policy", "test", "infra/policies/tests.json"]);
    assert_eq!(code, 0, "{out}{err}");
}

#[test]
fn the_shipped_trigger_takes_a_push_and_nothing_else() {
    let push = r#"{"id": "1", "source": "/github", "type": "github.push", "data": {"ref": "refs/heads/x", "pull_request": 7}}"#;
    let (code, out, err) = said(&["triggers", "test", push]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("ci-keeper"), "{out}");
    let (code, out, _) = said(&["triggers", "test", r#"{"id": "1", "type": "github.issue", "data": {}}"#]);
    assert_eq!(code, 1);
    assert!(out.contains("github.push"), "{out}");
}

#[test]
fn rules_can_be_tried_on_a_log() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("build.log");
    std::fs::write(&log, "compile widget\ncompile gadget\nFAIL: adds two numbers\n").unwrap();
    let (code, out, err) = said(&["--json", "observe", log.to_str().unwrap(), "--agent", "ci-keeper"]);
    assert_eq!(code, 0, "{out}{err}");
    let answer: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(answer["lines"], 3);
    assert!(answer["wakes"].as_u64().unwrap() >= 1, "{out}");
    let (code, _, err) = said(&["observe", log.to_str().unwrap(), "--pack", "nonsense"]);
    assert_eq!(code, 2);
    assert!(err.contains("generic"), "the packs that there are: {err}");
}

#[test]
fn completions_are_printed() {
    for word in ["completions", "completion"] {
        let (code, out, _) = said(&[word, "bash"]);
        assert_eq!(code, 0);
        assert!(out.contains("timeline"));
    }
}
