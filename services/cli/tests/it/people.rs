//! Who gets in, and who did what, from the shell.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::doctor::Whole;
use crate::program::repository;

/// The exit code of `esc`, and what it said on stdout and stderr, as the holder of a token.
pub async fn esc(whole: &Whole, token: &str, words: &[&str]) -> (i32, String, String) {
    let mut environment = whole.environment();
    environment.retain(|(name, _)| *name != "ESC_TOKEN");
    environment.push(("ESC_TOKEN", token.to_owned()));
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let asking = tokio::task::spawn_blocking(move || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_esc"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ESC_")) {
            command.env_remove(name);
        }
        command.current_dir(repository()).envs(environment).args(words).output().unwrap()
    });
    let output = asking.await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// What the audit trail shows, once that is as wanted, or was not for a minute: if the database takes its time, an act is
/// answered before it is in the trail.
async fn audit_until(whole: &Whole, words: &[&str], is_wanted: impl Fn(&str) -> bool) -> (i32, String, String) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let said = esc(whole, "whole", &[&["audit"][..], words].concat()).await;
        if is_wanted(&said.1) || Instant::now() > end {
            return said;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_made_used_listed_and_revoked_and_all_of_it_is_on_record() {
    let whole = Whole::new().await;
    let made = ["--json", "tokens", "create", "ann", "--role", "viewer", "--role", "publisher", "--expires", "30d"];
    let (code, out, err) = esc(&whole, "whole", &made).await;
    assert_eq!(code, 0, "{out}{err}");
    let made: Value = serde_json::from_str(&out).unwrap();
    let token = made["token"].as_str().unwrap().to_owned();
    // Before there is another act, which it might come after.
    let is_kept = |out: &str| out.contains("/v1/tokens");
    let (_, out, _) = audit_until(&whole, &["list", "--action", "tokens.create"], is_kept).await;
    assert!(out.contains("whole") && out.contains("/v1/tokens") && out.contains("127.0.0.1"), "{out}");
    assert_eq!(esc(&whole, &token, &["runs"]).await.0, 0);
    let (code, _, err) = esc(&whole, &token, &["tokens", "list"]).await;
    assert_eq!(code, 2);
    assert!(err.contains("admin"), "{err}");
    let (_, out, _) = esc(&whole, "whole", &["tokens", "list"]).await;
    assert!(out.contains("ann") && out.contains("viewer,publisher") && !out.contains(&token), "{out}");
    let (code, _, err) = esc(&whole, "whole", &["tokens", "revoke", "bob"]).await;
    assert_eq!(code, 2);
    assert!(err.contains("esc tokens list"), "{err}");
    assert_eq!(esc(&whole, "whole", &["tokens", "revoke", "ann"]).await.0, 0);
    let (code, _, err) = esc(&whole, &token, &["runs"]).await;
    assert_eq!(code, 2);
    assert!(err.contains("revoked"), "{err}");

    let are_kept = |out: &str| out.lines().count() >= 2;
    let (code, out, err) = audit_until(&whole, &["export", "--since", "1h"], are_kept).await;
    assert_eq!(code, 0, "{err}");
    let events: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["escapement.audit.tokens.create", "escapement.audit.tokens.delete"]);
    let last = events[0]["sequence"].as_str().unwrap();
    let (_, out, _) = esc(&whole, "whole", &["audit", "export", "--after", last]).await;
    assert_eq!(out.lines().count(), 1, "an export goes on where the last one ended");
    let (code, out, _) = esc(&whole, "whole", &["standing", "list"]).await;
    assert!(code == 0 && out.contains("--always"), "{out}");
    whole.close().await;
}
