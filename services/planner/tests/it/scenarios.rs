//! The shipped scenarios, played against the kernel.

use kernel::{
    Block, Command, Status, Trust,
    call::{Approval, Evidence, Exit, Observation, Verdict},
    command::{ConcludeCall, DecideApproval, FireTimer},
    units::Duration,
};
use planner::models::scripted::scenario::Scenario;
use serde_json::json;

use crate::sim::{Sim, agent, operator, outside, repository};

fn shipped(yaml: &str, input: Block) -> Sim {
    Sim::start(agent(yaml), operator("Do it."), input, repository().join("infra/agents/scenarios"))
}

fn ci_keeper() -> Sim {
    let yaml = std::fs::read_to_string(repository().join("infra/agents/agents/ci-keeper.yaml")).unwrap();
    let data = json!({
        "ref": "refs/heads/discounts",
        "after": "5f2a1c9e0b7d4a6f8c3e2d1b0a9f8e7d6c5b4a39",
        "repository": {"name": "shop", "full_name": "acme/shop"},
        "pull_request": {"number": 7},
    });
    shipped(&yaml, outside(&data.to_string()))
}

fn exit(code: i32) -> Exit {
    Exit { code: Some(code), signal: None, reason: "exited".to_owned(), bytes: 90_000, lines: 6_000 }
}

/// What an observer says at the end of a pipeline.
fn conclude(sim: &mut Sim, code: i32, evidence: &str) {
    let call = sim.start_call("shell.run");
    let evidence = Evidence {
        excerpt: evidence.to_owned(),
        offset: 88_000,
        line: 5_990,
        rule: "failure".to_owned(),
        ..Evidence::default()
    };
    let observation = Observation {
        call_id: Some(call.request.call_id),
        phase: if code == 0 { "completed" } else { "failure" }.to_owned(),
        changed: "The process ended.".to_owned(),
        anomaly: code != 0,
        decision: Some("the process ended".to_owned()),
        evidence: if code == 0 { vec![] } else { vec![evidence] },
        missing: None,
        counts: Default::default(),
    };
    let conclude = ConcludeCall {
        call_id: call.request.call_id,
        exit: exit(code),
        succeeded: code == 0,
        observation,
        asked: None,
        duration_ms: 7_000,
    };
    sim.submit(&Command::ConcludeCall(Box::new(conclude)));
}

const EVIDENCE: &str = "FAIL: test_discount_rounds_half_up (tests.test_pricing.Pricing.test_discount_rounds_half_up)\n    self.assertEqual(discounted(1995, 15), 1696)  # 1695.75\nAssertionError: 1695 != 1696";

fn source() -> String {
    std::fs::read_to_string(repository().join("infra/sample/shop/shop/pricing.py")).unwrap()
}

/// Up to the question whether the merge may be.
async fn up_to_the_merge(sim: &mut Sim) {
    sim.turn().await;
    let checkout = sim.call("repo.checkout").request.arguments;
    assert_eq!(checkout["repository"], "shop");
    assert!(checkout["ref"].as_str().unwrap().starts_with("5f2a1c9"));
    sim.complete("repo.checkout", "checked out 9 files");

    sim.turn().await;
    assert_eq!(sim.call("shell.run").request.arguments, json!({"command": "./ci test"}));
    conclude(sim, 1, EVIDENCE);

    let (answer, _) = sim.turn().await;
    assert!(answer.text.contains("1695 where 1696"), "{}", answer.text);
    assert_eq!(sim.call("file.read").request.arguments, json!({"path": "shop/pricing.py"}));
    sim.complete("file.read", &source());

    sim.turn().await;
    let written = sim.call("file.write").request.arguments;
    let mended =
        source().replace("total_cents * (100 - percent) // 100", "(total_cents * (100 - percent) + 50) // 100");
    assert_eq!(written["content"].as_str().unwrap(), mended, "the shipped project, with its one line mended");
    sim.complete("file.write", "wrote shop/pricing.py");

    sim.turn().await;
    conclude(sim, 0, "");

    sim.turn().await;
    let merge = sim.call("github.merge");
    assert_eq!(merge.request.trust, Trust::Untrusted, "so a person is asked");
    let wanted = json!({
        "owner": "acme", "repository": "shop", "number": 7, "sha": "5f2a1c9e0b7d4a6f8c3e2d1b0a9f8e7d6c5b4a39",
        "commit_title": "Merge pull request 7: round discounts half up",
    });
    assert_eq!(merge.request.arguments, wanted);
}

fn decide(sim: &mut Sim, verdict: Verdict) {
    let call = sim.call("github.merge");
    let approval = Approval {
        approval_id: kernel::ApprovalId::derive(sim.state.run_id, "merge"),
        call_id: Some(call.request.call_id),
        question: Block::new("May it merge?", Trust::System, "runtime"),
        tool: Some("github.merge".to_owned()),
        arguments: Some(call.request.arguments.clone()),
        binding: Default::default(),
        trust: Trust::Untrusted,
        reasons: vec![],
        two_people: false,
        shown: Default::default(),
        expires_at: kernel::units::later(sim.now, Duration::from_secs(3600)),
    };
    let approval_id = approval.approval_id;
    sim.submit(&Command::AskApproval(Box::new(approval)));
    assert_eq!(sim.state.status(), Status::Waiting);
    let by = "ann".to_owned();
    sim.submit(&Command::DecideApproval(DecideApproval {
        approval_id,
        verdict,
        edited: None,
        reason: None,
        by,
        aliases: Vec::new(),
        standing: None,
    }));
}

#[tokio::test]
async fn the_main_job_is_played_to_its_end() {
    let mut sim = ci_keeper();
    up_to_the_merge(&mut sim).await;
    decide(&mut sim, Verdict::Approve);
    sim.complete("github.merge", r#"{"merged": true, "sha": "5f2a1c9"}"#);

    sim.turn().await;
    assert_eq!(sim.state.status(), Status::Waiting);
    sim.pass(Duration::from_secs(3));
    let (&timer_id, _) = sim.state.timers.iter().find(|(_, timer)| timer.due <= sim.now).unwrap();
    sim.submit(&Command::FireTimer(FireTimer { timer_id }));

    sim.turn().await;
    sim.complete("github.get_pull", r#"{"number": 7, "state": "closed", "merged": true}"#);
    let (_, candidate) = sim.turn().await;
    assert_eq!(candidate.drafts[0].name, "report.md");
    assert!(candidate.drafts[0].content.contains("acme/shop"));
    assert_eq!(sim.state.status(), Status::Completed, "{:?}", sim.state.ending);
    assert_eq!(sim.state.spent.turns, 9);
}

#[tokio::test]
async fn a_refused_merge_ends_it_without_one() {
    let mut sim = ci_keeper();
    up_to_the_merge(&mut sim).await;
    decide(&mut sim, Verdict::Deny);
    sim.turn().await;
    assert_eq!(sim.state.status(), Status::Failed);
}

#[tokio::test]
async fn a_wake_in_the_middle_changes_nothing() {
    let mut sim = ci_keeper();
    sim.turn().await;
    sim.complete("repo.checkout", "checked out");
    sim.turn().await;
    sim.start_call("shell.run");
    let block = operator("How is it going?");
    sim.submit(&Command::AddMessage(kernel::command::AddMessage { block }));
    sim.turn().await;
    assert_eq!(sim.state.status(), Status::Waiting, "it goes on waiting for the pipeline");
    assert!(sim.state.wait.is_some());
}

#[tokio::test]
async fn what_cannot_be_checked_out_ends_it() {
    let mut sim = ci_keeper();
    sim.turn().await;
    sim.fail("repo.checkout", "there is no repository `shop`");
    sim.turn().await;
    assert_eq!(sim.state.status(), Status::Failed);
}

#[tokio::test]
async fn an_event_without_coordinates_ends_it() {
    let yaml = std::fs::read_to_string(repository().join("infra/agents/agents/ci-keeper.yaml")).unwrap();
    let mut sim = shipped(&yaml, outside("{}"));
    sim.turn().await;
    assert_eq!(sim.state.status(), Status::Failed);
}

#[tokio::test]
async fn the_load_test_loops_five_times_and_asks() {
    let yaml = "name: loop\nmodel: scripted:loop-steps\ninstructions: Loop.\ntools: [test.echo]\n";
    let mut sim = shipped(yaml, operator("Go."));
    for step in 1..=5 {
        sim.turn().await;
        let text = sim.call("test.echo").request.arguments["text"].as_str().unwrap().to_owned();
        assert!(text.starts_with(&format!("step {step} of")), "{text}");
        sim.complete("test.echo", &text);
    }
    sim.turn().await;
    let (&approval_id, _) = sim.state.approvals.iter().next().unwrap();
    let (verdict, by) = (Verdict::Approve, "ann".to_owned());
    sim.submit(&Command::DecideApproval(DecideApproval {
        approval_id,
        verdict,
        edited: None,
        reason: None,
        by,
        aliases: Vec::new(),
        standing: None,
    }));
    sim.turn().await;
    assert_eq!(sim.state.status(), Status::Completed);
    assert_eq!(sim.state.spent.turns, 7);
}

#[test]
fn every_shipped_scenario_can_be_read() {
    let folder = repository().join("infra/agents/scenarios");
    let mut names = Vec::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let yaml = std::fs::read_to_string(&path).unwrap();
        Scenario::parse(&name, &yaml).unwrap_or_else(|error| panic!("{error}"));
        names.push(name);
    }
    assert!(names.iter().any(|name| name == "ci-keeper"), "{names:?}");
}
