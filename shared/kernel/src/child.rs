//! Child runs: what a parent asks of one, what it knows of one, and what is to be done next to keep the two in step.
//!
//! Each of the two is a run with a log of its own, and no commit spans both. So everything that passes between them can be
//! done again: a child's id follows from its parent and the call, its creation, its end and what it gives back are told
//! under one name each. [`next_step`] says what is missing, from nothing but the two as they stand; whoever asks it again and
//! again brings them in step, whatever died in between.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    agent::{Criterion, ParallelWake},
    budget::{Limits, Spent},
    command::{ByParent, ChildReport, Command, CreateRun, HoldChild},
    event::RunCreated,
    ids::{CallId, RunId, TurnId},
    mutants::{Mutant, broken},
    state::RunState,
    trust::{Block, Trust},
    units::Duration,
};

/// Most children of a run that may be open at a time.
pub const MAX_CHILDREN: usize = 64;
/// How far below the first run a child may be.
pub const MAX_DEPTH: u32 = 4;
/// How often a child that failed is tried once more, if that is its policy.
pub const MAX_RETRIES: u32 = 2;
/// Most bytes of a child's answer that its parent is told.
const ANSWER_BYTES: usize = 16 * 1024;

/// The run that a child belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ParentRef {
    /// Which run.
    pub run_id: RunId,
    /// Its call that the child answers.
    pub call_id: CallId,
    /// How far the child is below the run that nobody started as a child, from 1.
    pub depth: u32,
    /// The agents above the child, from the first run's on.
    pub lineage: Vec<String>,
    /// Whether the run's effects are simulated, and so the child's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
}

/// What the parent does about a child that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// Its model is told, and decides.
    #[default]
    Continue,
    /// It fails as well.
    Fail,
    /// Another child takes over, [`MAX_RETRIES`] times; then the model is told.
    Retry,
}

/// A child as a turn asks for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SpawnRequest {
    /// Derived from the turn and the place in it, like a tool call's.
    pub call_id: CallId,
    /// Name of the child's agent.
    pub agent: String,
    /// Digest of that agent's definition.
    pub agent_digest: String,
    /// What it is to do.
    pub task: Block,
    /// The tools that it may use: never more than the parent's.
    pub tools: Vec<String>,
    /// What it may spend at most; it is given what its parent can spare of that.
    #[serde(default)]
    pub limits: Limits,
    /// What becomes of the parent if it fails.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// How it is known that the task is done.
    #[serde(default)]
    pub acceptance: Vec<Criterion>,
    /// Which ends of parallel calls wake it.
    #[serde(default)]
    pub parallel_wake: ParallelWake,
    /// How long its wakes are gathered.
    #[serde(default)]
    pub debounce: Duration,
}

/// An open child, as its parent knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Child {
    /// What was asked for.
    pub spawn: SpawnRequest,
    /// The turn that asked.
    pub turn_id: TurnId,
    /// Its run.
    pub child_id: RunId,
    /// How often it was tried, this time included.
    pub attempt: u32,
    /// What it may spend: the parent has set that aside.
    pub limits: Limits,
}

/// Something to do about a parent and a child.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// For which of the two.
    pub run_id: RunId,
    /// What.
    pub command: Command,
    /// The delivery key: the same whoever does it.
    pub key: String,
}

impl RunId {
    /// The run that answers a call of `parent` as its child, the same for whoever derives it.
    #[must_use]
    pub fn child(parent: Self, call: CallId, attempt: u32) -> Self {
        Self(Uuid::new_v5(&parent.0, format!("child/{call}/{attempt}").as_bytes()))
    }
}

impl RunState {
    /// How far it is below the run that nobody started as a child.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.parent.as_ref().map_or(0, |parent| parent.depth)
    }

    /// Whether it may use this tool, as far as its parents go. What its agent's file says is another question.
    #[must_use]
    pub fn may_use(&self, tool: &str) -> bool {
        self.tools.as_ref().is_none_or(|tools| allows(tools, tool))
    }

    /// What it and its ended children have spent.
    #[must_use]
    pub fn settled(&self) -> Spent {
        self.spent.plus(&self.children_spent)
    }

    /// What it, its ended children and, at the most, its open ones spend.
    #[must_use]
    pub fn committed(&self) -> Spent {
        self.children.values().fold(self.settled(), |sum, child| sum.plus(&child.limits.as_spent()))
    }

    /// Whether it has to wait with its next turn until a child gives back what it does not need.
    #[must_use]
    pub fn is_starved(&self) -> bool {
        !self.children.is_empty() && self.committed().forbids_turn(&self.limits).is_some()
    }

    /// What is left for itself and further children.
    #[must_use]
    pub fn left(&self, now: jiff::Timestamp) -> Limits {
        let wall = self.limits.wall.map(|wall| {
            let over = now.duration_since(self.created_at).as_millis();
            Duration::from_millis(wall.as_millis().saturating_sub(u64::try_from(over).unwrap_or(0)))
        });
        Limits { wall, ..self.limits.without(&self.committed()) }
    }
}

/// What brings the parent and the child of an open call nearer to each other; none if they are in step, or if the call is
/// not open. `child` is that child's run as it stands, if it exists. `hold` says why new runs may not begin at once, if so.
#[must_use]
pub fn next_step(parent: &RunState, call: CallId, child: Option<&RunState>, hold: Option<&str>) -> Option<Step> {
    let known = parent.children.get(&call)?;
    let Some(child) = child else {
        let ending = parent.ending.is_some();
        // A held parent begins nothing. An ending one has it begin, held, so that it can be ended like any other.
        let hold = if ending { Some("its parent is ending") } else { hold };
        return (ending || !parent.paused).then(|| create(parent, known, hold));
    };
    let run_id = known.child_id;
    if child.ended {
        let report = report(call, child)?;
        let key = format!("child/{run_id}");
        return Some(Step { run_id: parent.run_id, command: Command::SettleChild(Box::new(report)), key });
    }
    let by = parent.run_id;
    if parent.ending.is_some() {
        let end = ByParent { parent: by, reason: "its parent is ending".to_owned() };
        let command = Command::EndChild(end);
        let needed = child.ending.is_none() && !broken(Mutant::EndSparesChildren);
        return needed.then(|| Step { run_id, command, key: "parent/end".to_owned() });
    }
    let hold = parent.paused;
    if child.held_by_parent == hold || child.ending.is_some() || broken(Mutant::HoldSparesChildren) {
        return None;
    }
    let command = Command::HoldChild(HoldChild { parent: by, hold });
    // It is held and let go again and again, also by who looked long ago: each time is a delivery of its own.
    Some(Step { run_id, command, key: format!("parent/hold/{}/{}", parent.seq, child.seq) })
}

fn create(parent: &RunState, known: &Child, hold: Option<&str>) -> Step {
    let spawn = &known.spawn;
    let mut lineage = parent.parent.as_ref().map(|above| above.lineage.clone()).unwrap_or_default();
    lineage.push(parent.agent.clone());
    let objective = "Do what the run that started this one asks for, as your instructions say.";
    let created = RunCreated {
        tenant: parent.tenant.clone(),
        agent: spawn.agent.clone(),
        agent_digest: spawn.agent_digest.clone(),
        objective: Block::new(objective, Trust::System, "runtime"),
        input: spawn.task.clone(),
        acceptance: spawn.acceptance.clone(),
        limits: known.limits.clone(),
        conversation_id: None,
        metadata: parent.metadata.clone(),
        parallel_wake: spawn.parallel_wake,
        debounce: spawn.debounce,
        sampled: parent.sampled,
        trigger: None,
        parent: Some(Box::new(ParentRef {
            run_id: parent.run_id,
            call_id: spawn.call_id,
            depth: parent.depth() + 1,
            lineage,
            simulated: parent.simulated,
        })),
        roles: parent.roles.clone(),
        tools: Some(spawn.tools.clone()),
    };
    let command = Command::Create(Box::new(CreateRun { created, hold: hold.map(str::to_owned) }));
    Step { run_id: known.child_id, command, key: "create".to_owned() }
}

/// What an ended child gives back.
fn report(call_id: CallId, child: &RunState) -> Option<ChildReport> {
    let ending = child.ending.clone()?;
    // Whatever it says: it is believed no more than anything that it may have seen.
    let seen = if broken(Mutant::BelievesChildren) { Trust::Operator } else { child.lowest_trust };
    let trust = ending.text.trust.join(seen);
    let source = format!("run:{}", child.run_id);
    let answer = Block::new(ending.text.text, trust, source).excerpt(ANSWER_BYTES);
    let spent = if broken(Mutant::ChildrenCostNothing) { Spent::default() } else { child.settled() };
    Some(ChildReport { call_id, child_id: child.run_id, outcome: ending.outcome, rule: ending.rule, answer, spent })
}

/// Whether a list of tools has this one in it, by its name or, as `server.*`, by its server's.
#[must_use]
pub fn allows(tools: &BTreeSet<String>, tool: &str) -> bool {
    let by_server = |(server, _): (&str, &str)| tools.contains(&format!("{server}.*"));
    tools.contains(tool) || tool.split_once('.').is_some_and(by_server)
}

/// Whether all of `tools` are within `most`; no list is no bound.
#[must_use]
pub(crate) fn are_within(tools: &[String], most: Option<&BTreeSet<String>>) -> bool {
    most.is_none_or(|most| tools.iter().all(|tool| allows(most, tool)))
}
