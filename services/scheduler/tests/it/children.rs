//! Child runs on real parts: created, settled, held and ended with their parents, whoever dies in between.

use std::time::Instant;

use kernel::{
    Block, CallId, Cause, Command, RunId, RunState, Status, Trust,
    agent::ParallelWake,
    budget::{Limits, Usage},
    child::{OnFailure, SpawnRequest},
    command::{ByOperator, EndRequest},
};

use crate::common::System;

fn spawn(state: &RunState, number: usize) -> SpawnRequest {
    SpawnRequest {
        call_id: CallId::derive(state.run_id, &format!("spawn/{number}/{}", state.seq)),
        agent: "helper".into(),
        agent_digest: "0".into(),
        task: Block::new("help", Trust::Operator, "model:test"),
        tools: vec!["test.echo".into()],
        limits: Limits::default(),
        on_failure: OnFailure::Continue,
        acceptance: Vec::new(),
        parallel_wake: ParallelWake::All,
        debounce: kernel::units::Duration::default(),
    }
}

impl System {
    /// The run's open turn starts so many children.
    async fn spawn(&self, run: RunId, count: usize) -> Vec<RunId> {
        let state = self.state(run).await;
        let spawns: Vec<_> = (0..count).map(|number| spawn(&state, number)).collect();
        self.commit(&state, |outcome| outcome.spawns = spawns.clone()).await;
        spawns.iter().map(|spawn| RunId::child(run, spawn.call_id, 1)).collect()
    }

    async fn exists(&self, run: RunId) -> Option<()> {
        self.ingress.load(run).await.unwrap().map(drop)
    }

    async fn all_are(&self, runs: &[RunId], status: Status) -> Option<()> {
        for run in runs {
            let state = self.ingress.load(*run).await.unwrap()?;
            (state.status() == status).then_some(())?;
        }
        Some(())
    }

    /// The open turn of a run ends it, and costs something.
    async fn complete(&self, run: RunId, answer: &str) {
        let state = self.state(run).await;
        let block = Block::new(answer, Trust::Operator, "model:test");
        self.commit(&state, |outcome| {
            outcome.end = Some(EndRequest::Complete(block));
            outcome.usage = Usage { model_calls: 1, input_tokens: 100, output_tokens: 10, ..Usage::default() };
        })
        .await;
    }
}

fn by() -> ByOperator {
    ByOperator { by: "ann".into(), reason: None }
}

#[tokio::test(flavor = "multi_thread")]
async fn children_work_beside_their_parent_and_give_back_what_is_left() {
    let system = System::new().await;
    let scheduler = system.scheduler(|_| {}).await;
    let parent = system.create(None).await;
    let children = system.spawn(parent, 3).await;
    system.until("the children", async || system.all_are(&children, Status::Runnable).await).await;
    let child = system.state(children[0]).await;
    assert_eq!(child.parent.as_ref().map(|of| (of.run_id, of.depth)), Some((parent, 1)));
    assert_eq!(child.parent.as_ref().unwrap().lineage, ["test"]);
    let listed = system.ingress.reads().children(&"default".parse().unwrap(), parent).await.unwrap();
    assert_eq!(listed.len(), 3);
    for child in &children {
        system.complete(*child, "done").await;
    }
    system.until("the parent's turn", async || system.all_are(&[parent], Status::Runnable).await).await;
    let state = system.state(parent).await;
    assert!(state.children.is_empty());
    assert_eq!((state.children_spent.turns, state.children_spent.usage.input_tokens), (3, 300));
    assert_eq!(system.events(parent, "subagent.completed").await.len(), 3);
    assert_eq!(state.turns_opened, 2, "one wake");
    scheduler.stop().await.unwrap();
    system.close().await;
}

/// Nobody listens while a child is asked for, and while it ends: looking finds both.
#[tokio::test(flavor = "multi_thread")]
async fn what_rang_for_nobody_is_found_by_looking() {
    let system = System::new().await;
    let parent = system.create(None).await;
    let children = system.spawn(parent, 2).await;
    let out_of_step = system.ingress.reads().children_out_of_step(None, 10).await.unwrap();
    assert_eq!(out_of_step.len(), 2);
    let scheduler = system.scheduler(|config| config.tend_seconds = 1).await;
    system.until("the children", async || system.all_are(&children, Status::Runnable).await).await;
    scheduler.stop().await.unwrap();
    for child in &children {
        system.complete(*child, "done").await;
    }
    // Two at once: each is created, and settled, once.
    let one = system.scheduler(|config| config.tend_seconds = 1).await;
    let two = system.scheduler(|config| config.tend_seconds = 1).await;
    system.until("the parent's turn", async || system.all_are(&[parent], Status::Runnable).await).await;
    assert_eq!(system.events(parent, "subagent.completed").await.len(), 2);
    assert!(system.ingress.reads().children_out_of_step(None, 10).await.unwrap().is_empty());
    one.stop().await.unwrap();
    two.stop().await.unwrap();
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn children_are_held_and_let_go_with_their_parent() {
    let system = System::new().await;
    let scheduler = system.scheduler(|_| {}).await;
    let parent = system.create(None).await;
    let children = system.spawn(parent, 2).await;
    system.until("the children", async || system.all_are(&children, Status::Runnable).await).await;
    // One of them is held by a person as well.
    let pause = |run, key: &'static str| system.ingress.submit(run, Command::Pause(by()), key, Cause::default());
    pause(children[0], "own").await.unwrap();
    pause(parent, "parent").await.unwrap();
    system.until("the hold", async || system.all_are(&children, Status::Paused).await).await;
    system.until("the hold of both", async || system.state(children[0]).await.held_by_parent.then_some(())).await;
    system.ingress.submit(parent, Command::Resume(by()), "resume", Cause::default()).await.unwrap();
    system.until("the other", async || system.all_are(&children[1..], Status::Runnable).await).await;
    system.until("its own hold", async || (!system.state(children[0]).await.held_by_parent).then_some(())).await;
    assert_eq!(system.state(children[0]).await.status(), Status::Paused);
    scheduler.stop().await.unwrap();
    system.close().await;
}

/// A tree of fifty runs below one, three deep, all at something: one press of a button, and all stand still.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_run_reaches_fifty_below_it() {
    let system = System::new().await;
    let scheduler = system.scheduler(|_| {}).await;
    let root = system.create(None).await;
    let mut tree = system.spawn(root, 5).await;
    system.until("the first generation", async || system.all_are(&tree, Status::Runnable).await).await;
    for child in tree.clone() {
        let below = system.spawn(child, 4).await;
        system.until("the second generation", async || system.all_are(&below, Status::Runnable).await).await;
        tree.extend(&below);
        let deepest = system.spawn(below[0], 5).await;
        system.until("the third generation", async || system.all_are(&deepest, Status::Runnable).await).await;
        tree.extend(&deepest);
    }
    assert_eq!(tree.len(), 50);
    let spent = |states: &[std::sync::Arc<RunState>]| states.iter().map(|state| state.spent.turns).sum::<u32>();
    let mut states = Vec::new();
    for run in &tree {
        states.push(system.state(*run).await);
    }
    // Some are in the middle of a turn: what they come to afterwards is not committed.
    let under_way: Vec<_> = states.iter().filter(|state| state.turn.is_some()).cloned().collect();
    assert!(under_way.len() >= 25);
    let before = spent(&states);

    let begun = Instant::now();
    system.cancel(root).await;
    system.until("the end of all", async || system.all_are(&[root], Status::Cancelled).await).await;
    println!("fifty runs ended {:?} after their root was cancelled", begun.elapsed());
    assert!(system.all_are(&tree, Status::Cancelled).await.is_some());
    for state in under_way {
        let late = Block::new("late", Trust::Operator, "model:test");
        let turn_id = state.turn.as_ref().unwrap().turn_id;
        let refused = system.try_commit(&state, turn_id, late).await;
        assert!(refused.is_err(), "{refused:?}");
    }
    let mut after = Vec::new();
    for run in &tree {
        after.push(system.state(*run).await);
    }
    assert_eq!(spent(&after), before, "nothing was spent afterwards");
    assert!(after.iter().all(|state| state.calls.is_empty() && state.children.is_empty()));
    scheduler.stop().await.unwrap();
    system.close().await;
}

/// Cancelled before its child exists: that is created only to be ended, and the parent ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_was_never_created_does_not_keep_its_parent_from_ending() {
    let system = System::new().await;
    let parent = system.create(None).await;
    let children = system.spawn(parent, 1).await;
    system.cancel(parent).await;
    assert_eq!(system.state(parent).await.status(), Status::Cancelling);
    assert!(system.exists(children[0]).await.is_none());
    let scheduler = system.scheduler(|config| config.tend_seconds = 1).await;
    system.until("the end", async || system.all_are(&[parent], Status::Cancelled).await).await;
    assert_eq!(system.state(children[0]).await.status(), Status::Cancelled);
    scheduler.stop().await.unwrap();
    system.close().await;
}
