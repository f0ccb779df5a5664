//! A question that takes two people, answered from the shell.

use std::time::{Duration, Instant};

use kernel::call::{Approval, Binding};
use kernel::command::{Command, CreateRun};
use kernel::event::RunCreated;
use kernel::{ApprovalId, Block, Cause, Role, RunId, TenantId, Timestamp, Trust};
use serde_json::{Value, json};

use crate::doctor::Whole;
use crate::people::esc;

/// A run of the tenant `whole` that asks two people.
async fn asking(whole: &Whole) -> ApprovalId {
    let (run, tenant): (_, TenantId) = (RunId::mint(), "whole".parse().unwrap());
    let text = Block::new("Do it.", Trust::Operator, "operator:ann");
    let created = RunCreated::new(tenant, "helper", "0", text.clone(), text);
    let create = Command::Create(Box::new(CreateRun { created, hold: None }));
    whole.engine(Role::Ingress).await.submit(run, create, "create", Cause::default()).await.unwrap();
    let approval = Approval {
        approval_id: ApprovalId::derive(run, "two"),
        call_id: None,
        question: Block::new("May it merge?", Trust::System, "policy"),
        tool: Some("github.merge".into()),
        arguments: Some(json!({"pull": 7})),
        binding: Binding { arguments: "as it was asked".into(), ..Binding::default() },
        trust: Trust::System,
        reasons: Vec::new(),
        two_people: true,
        shown: Default::default(),
        expires_at: Timestamp::now() + jiff::SignedDuration::from_hours(1),
    };
    let id = approval.approval_id;
    let ask = Command::AskApproval(Box::new(approval));
    whole.engine(Role::ToolExecutor).await.submit(run, ask, "ask", Cause::default()).await.unwrap();
    id
}

async fn token(whole: &Whole, name: &str) -> String {
    let (code, out, err) = esc(whole, "whole", &["--json", "tokens", "create", name, "--role", "operator"]).await;
    assert_eq!(code, 0, "{out}{err}");
    serde_json::from_str::<Value>(&out).unwrap()["token"].as_str().unwrap().to_owned()
}

/// As [`esc`]. None if a service did not answer in time: of what was asked nobody knows whether it was done.
async fn heard(whole: &Whole, token: &str, words: &[&str]) -> Option<(i32, String, String)> {
    let said = esc(whole, token, words).await;
    (said.0 != 3).then_some(said)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_people_agree_from_the_shell_to_what_one_of_them_changed() {
    let whole = Whole::new().await;
    let approval = whole.approval().await;
    let (ann, bob) = (token(&whole, "ann").await, token(&whole, "bob").await);
    // An answer that was not heard of is not given again, as it may have been taken: there is another question then.
    let end = Instant::now() + Duration::from_secs(180);
    while agree(&whole, &ann, &bob).await.is_none() {
        assert!(Instant::now() < end, "the services answer in time");
    }
    approval.stop().await.unwrap();
    whole.close().await;
}

/// They do, about a question of their own. None if a service did not answer in time.
async fn agree(whole: &Whole, ann: &str, bob: &str) -> Option<()> {
    let id = asking(whole).await.to_string();
    let (_, out, _) = heard(whole, ann, &["approvals"]).await?;
    assert!(out.contains("two people have to agree"), "{out}");
    let (code, _, err) = heard(whole, ann, &["approve", &id, "--as-changed"]).await?;
    assert!(code == 2 && err.contains("nobody has changed"), "{err}");

    let (code, out, err) = heard(whole, ann, &["approve", &id, "--arguments", r#"{"pull": 8}"#]).await?;
    assert!(code == 0 && out.contains("agreed to: one more person is needed"), "{out}{err}");
    let (_, out, _) = heard(whole, bob, &["approvals"]).await?;
    for words in ["agreed: ann", r#"with other arguments: {"pull":8}"#, "one more person is needed"] {
        assert!(out.contains(words), "{words} is missing: {out}");
    }
    let (code, _, err) = heard(whole, ann, &["approve", &id, "--as-changed"]).await?;
    assert!(code != 0 && err.contains("let somebody else approve it"), "{err}");
    let (code, _, err) = heard(whole, bob, &["approve", &id]).await?;
    assert!(code != 0 && err.contains("--as-changed"), "{err}");
    let (code, out, err) = heard(whole, bob, &["approve", &id, "--as-changed"]).await?;
    assert!(code == 0 && out.contains("approved"), "{out}{err}");
    let (_, out, _) = heard(whole, bob, &["approvals", "--state", "granted"]).await?;
    assert!(out.contains("agreed: ann") && out.contains("by bob") && !out.contains("is needed"), "{out}");
    Some(())
}
