//! Forks whose effects are simulated.

use std::sync::{Arc, Mutex};

use engine::ForkPoint;
use kernel::{
    Cause, Command, RunId, Trust,
    command::{CreateRun, ForkRun},
    event::{Rule, RunForked},
};

use crate::{
    endings::{House, echo},
    turns::{Stored, World, artifact_service},
};

/// An evaluator looks in a child run: that has no effects either, and so nothing keeps the fork from being judged.
#[tokio::test(flavor = "multi_thread")]
async fn a_simulated_fork_is_evaluated_and_ends() {
    let mut world = World::with("  - calls: [{tool: complete, arguments: {summary: \"it answers\"}}]\n").await;
    world.artifact_url = artifact_service(Stored::default()).await;
    let judge = r"name: judge
steps:
  - when: {turn: 1}
    calls: [{tool: test.echo, arguments: {text: look}}]
  - when: {sees: 'Effects are simulated[\s\S]*echo of look|echo of look[\s\S]*Effects are simulated'}
    calls: [{tool: complete, arguments: {summary: the page answers}}]
  - calls: [{tool: fail, arguments: {reason: nobody said that effects are simulated}}]
";
    std::fs::write(world.folder.path().join("scenarios/judge.yaml"), judge).unwrap();
    let yaml = "name: judge\nmodel: scripted:judge\ninstructions: Judge.\ntools: [test.echo]\n";
    world.ingress.agents().put(&world.tenant, yaml, "ann").await.unwrap();
    let planner = world.planner();
    let yaml = "name: demo\nmodel: scripted:demo\ninstructions: Play.\ntools: [test.echo]\nevaluator: judge\n\
                acceptance: [the page answers]\n";
    let origin = world.run_of(yaml).await;
    let runs = Arc::new(Mutex::new(vec![origin]));
    let house = House::of(&world.stack, Arc::clone(&runs), echo).await;
    world.until(origin, |state| state.ended).await;

    let ForkPoint { origin, created, carried, .. } =
        world.ingress.forks().point(&world.tenant, origin, 1).await.unwrap().unwrap();
    let forked = RunForked { origin, effects: false, carried };
    let fork = RunId::mint();
    let command = ForkRun { create: CreateRun { created, hold: None }, forked };
    world.ingress.submit(fork, Command::Fork(Box::new(command)), "fork", Cause::default()).await.unwrap();
    runs.lock().unwrap().push(fork);

    let state = world.until(fork, |state| state.ended).await;
    let ending = state.ending.as_ref().unwrap();
    assert_eq!(ending.rule, Rule::GoalVerified, "{}", ending.text.text);
    assert_eq!(state.verdicts[0].evidence.trust, Trust::Untrusted);
    let call = state.verdicts[0].call_id.unwrap();
    let child = world.ingress.load(RunId::child(fork, call, 1)).await.unwrap().unwrap();
    assert!(child.simulated && child.origin.is_none(), "what looks into it has no effects either");
    drop(house);
    world.close(vec![planner]).await;
}
