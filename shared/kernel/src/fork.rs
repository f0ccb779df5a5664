//! Forks: a run that goes on from where another one stood before one of its turns.
//!
//! A fork is a run of its own, with its own log, its own ids and its own budget; nothing that it does reaches the run it came
//! from. What that run had done by then comes along as what it is, a record: facts, history, plan, artifacts, with their
//! trust. Whatever was under way there is not under way here. Unless effects are allowed, its own effects stop at the door:
//! no call that could be seen outside starts, and nothing is remembered for others, of it or of a run below it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    call::ArtifactRef,
    context::Summary,
    event::{Event, PlanStep},
    ids::{RunId, Seq},
    state::{Entry, Fact, FactKind, RunState},
    trust::{Block, Trust},
};

/// What a run is told whose effects are simulated.
pub(crate) const SIMULATED: &str = "Effects are simulated: calls that would change something outside are not made, but for those whose results are on record, \
     and nothing is remembered for later runs.";

/// Where a fork came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Origin {
    /// Which run.
    pub run_id: RunId,
    /// The last of its events that the fork knows.
    pub seq: Seq,
    /// The number of its turn that the fork takes anew.
    pub turn: u32,
}

/// Content of `run.forked`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunForked {
    /// Where it came from.
    pub origin: Origin,
    /// Whether its calls may change anything outside.
    pub effects: bool,
    /// What it brings along.
    pub carried: Carried,
}

/// What a fork brings along. The numbers in it are those of the log that it came from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Carried {
    /// What its first turn is told.
    pub facts: Vec<Fact>,
    /// What went before that, in excerpts.
    pub history: Vec<Entry>,
    /// What went before that, in fewer words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<Summary>,
    /// The plan.
    pub plan: Vec<PlanStep>,
    /// Its revision.
    pub plan_revision: u32,
    /// Artifacts.
    pub artifacts: Vec<ArtifactRef>,
    /// By resource key, the last outside event that was consumed.
    pub consumed: BTreeMap<String, i64>,
}

impl Carried {
    /// What is known in a state. Of calls that were open then, the facts come from whoever knows how they ended.
    #[must_use]
    pub fn of(state: &RunState) -> Self {
        let mut carried = Self {
            facts: state.facts.iter().cloned().collect(),
            history: state.history.iter().cloned().collect(),
            summary: state.summary.clone(),
            plan: state.plan.clone(),
            plan_revision: state.plan_revision,
            artifacts: state.artifacts.iter().cloned().collect(),
            consumed: state.consumed.clone(),
        };
        // What made the run less believed may be gone from its past, and lives on in its plan.
        if Trust::join_all(carried.trusts()) > state.lowest_trust {
            let block = Block::new("Not all of what it saw came along.", state.lowest_trust, "runtime");
            let title = "The run that this one goes on from had seen more".to_owned();
            carried.history.insert(0, Entry { seq: 0, at: state.updated_at, title, block });
        }
        carried
    }

    /// The trust of everything in it.
    pub fn trusts(&self) -> impl Iterator<Item = Trust> {
        let facts = self.facts.iter().map(|fact| fact.block.trust);
        let history = self.history.iter().map(|entry| entry.block.trust);
        let summary = self.summary.iter().map(|summary| summary.body.trust);
        facts.chain(history).chain(summary).chain(self.artifacts.iter().map(|artifact| artifact.trust))
    }
}

impl RunState {
    pub(crate) fn fold_fork(&mut self, event: &Event, forked: &RunForked) {
        let RunForked { origin, effects, carried } = forked;
        self.origin = Some(*origin);
        self.simulated = !effects;
        // The input is among them, if it was not seen yet.
        self.facts.clear();
        if let Some(summary) = &carried.summary {
            self.lowest_trust = self.lowest_trust.join(summary.body.trust);
            // What is in the history comes after it.
            self.summary = Some(Summary { upto: event.seq.saturating_sub(1), ..summary.clone() });
        }
        for entry in &carried.history {
            self.push_history(Entry { seq: event.seq, ..entry.clone() });
        }
        for fact in &carried.facts {
            self.push_fact(Fact { seq: event.seq, call_id: None, ..fact.clone() });
        }
        self.plan.clone_from(&carried.plan);
        self.plan_revision = carried.plan_revision;
        for artifact in &carried.artifacts {
            self.lowest_trust = self.lowest_trust.join(artifact.trust);
            self.artifacts.push_back(artifact.clone());
        }
        self.consumed.extend(carried.consumed.clone());
        let mut words = format!(
            "You go on from turn {} of the run {}, as it stood then. Nothing that was under way there is under way here.",
            origin.turn, origin.run_id
        );
        if self.simulated {
            words.push(' ');
            words.push_str(SIMULATED);
        }
        let block = Block::new(words, Trust::System, "runtime");
        let title = "This run is a fork".to_owned();
        let (seq, at, kind) = (event.seq, event.at, FactKind::Notice);
        self.push_fact(Fact { seq, at, kind, title, block, call_id: None });
    }
}
