//! Creating, admitting, holding and ending runs; messages and budgets.

use jiff::Timestamp;

use super::{Decider, Decision, begin};
use crate::{
    call::ArtifactRef,
    child::are_within,
    command::{AddMessage, ByOperator, ChangeBudget, CreateRun, Declassify, ForkRun, ReviseRun},
    event::{
        ApprovalExpired, ArtifactCreated, ArtifactUpdated, BudgetChanged, Ending, MessageAdded, Outcome, Rule,
        RunPaused, RunQueued, RunResumed, RunRevised, Speaker, TimerPurpose, TimerSet, TrustDeclassified,
    },
    ids::{RunId, TimerId},
    mutants::{Mutant, broken},
    rejection::Rejection,
    state::RunState,
    trust::{Block, Trust},
    units::{Duration, later},
};

/// Bytes of a text that is vouched for: a value to act on, not a page.
const MAX_VOUCHED: usize = 4096;

pub(super) fn create(
    run_id: RunId,
    state: Option<&RunState>,
    create: &CreateRun,
    now: Timestamp,
) -> Result<Decision, Rejection> {
    if state.is_some() {
        return Err(Rejection::RunExists);
    }
    Ok(begin(run_id, create.created.clone().into(), now)?.begun(create))
}

/// A run that knows from its beginning what another one knew.
pub(super) fn fork(
    run_id: RunId,
    state: Option<&RunState>,
    fork: &ForkRun,
    now: Timestamp,
) -> Result<Decision, Rejection> {
    if state.is_some() {
        return Err(Rejection::RunExists);
    }
    let mut decider = begin(run_id, fork.create.created.clone().into(), now)?;
    decider.emit(fork.forked.clone());
    Ok(decider.begun(&fork.create))
}

impl Decider {
    /// What follows when a run exists.
    fn begun(mut self, create: &CreateRun) -> Decision {
        if let Some(wall) = create.created.limits.wall {
            let timer_id = TimerId::derive(self.state.run_id, "wall");
            self.emit(TimerSet { timer_id, due: later(self.now, wall), purpose: TimerPurpose::Wall });
        }
        match &create.hold {
            Some(reason) => self.emit(RunQueued { reason: reason.clone() }),
            None => self.open_turn(None, None),
        }
        self.into_decision()
    }

    pub(super) fn admit(&mut self) -> Result<(), Rejection> {
        self.refuse_if_ending()?;
        if !self.state.queued {
            return Err(Rejection::NotQueued);
        }
        if self.state.paused {
            return Err(Rejection::Paused);
        }
        self.open_turn(None, None);
        Ok(())
    }

    pub(super) fn add_message(&mut self, message: &AddMessage) -> Result<(), Rejection> {
        self.refuse_if_ending()?;
        self.emit(MessageAdded { role: Speaker::Operator, block: message.block.clone() });
        Ok(())
    }

    pub(super) fn pause(&mut self, by: &ByOperator) -> Result<(), Rejection> {
        self.refuse_if_ending()?;
        if !self.state.held_by_operator {
            self.emit(RunPaused { by: by.by.clone(), by_parent: false });
        }
        Ok(())
    }

    pub(super) fn resume(&mut self, by: &ByOperator) -> Result<(), Rejection> {
        self.refuse_if_ending()?;
        if !self.state.held_by_operator {
            let parent = self.state.parent.as_ref().filter(|_| self.state.held_by_parent);
            return Err(parent.map_or(Rejection::NotPaused, |parent| Rejection::HeldByParent(parent.run_id)));
        }
        self.emit(RunResumed { by: by.by.clone(), by_parent: false });
        self.say_again();
        Ok(())
    }

    /// Whoever was told of the open turn may have let it go while the run was held: says it again, now that it is not.
    pub(super) fn say_again(&mut self) {
        // One that is parked meanwhile is rung for again when it goes on.
        if !self.state.paused
            && self.state.parked.is_none()
            && let Some(turn) = self.state.turn.take()
        {
            self.open_turn(turn.wake, None);
        }
    }

    pub(super) fn cancel(&mut self, by: &ByOperator) -> Result<(), Rejection> {
        if self.state.ending.is_some() {
            return Ok(());
        }
        let words = by.reason.as_deref().unwrap_or("no reason given");
        let text = Block::new(words, Trust::Operator, format!("operator:{}", by.by));
        self.begin_end(Ending { outcome: Outcome::Cancelled, rule: Rule::Cancelled, text });
        Ok(())
    }

    pub(super) fn change_budget(&mut self, change: &ChangeBudget) -> Result<(), Rejection> {
        self.refuse_if_ending()?;
        let before = self.state.limits.wall;
        // What a child may spend was set aside by its parent, who goes by that.
        let given = self.state.parent.as_ref().map(|parent| (parent.run_id, &self.state.given));
        if let Some((parent, given)) = given.filter(|_| !broken(Mutant::ChildTakesMore))
            && change.limits.stricter(given) != change.limits
        {
            return Err(Rejection::BeyondParent(parent));
        }
        // What happens at a limit stays as it was, unless something is said about that.
        let at_limit = change.limits.at_limit.or(self.state.limits.at_limit);
        let limits = crate::budget::Limits { at_limit, ..change.limits.clone() };
        let parked = self.state.parked;
        self.emit(BudgetChanged { limits, by: change.by.clone() });
        if let Some(parked) = parked.filter(|_| self.state.parked.is_none()) {
            let reason = "the budget was changed".to_owned();
            self.emit(ApprovalExpired { approval_id: parked.approval_id, reason });
        }
        self.follow_wall(before);
        Ok(())
    }

    /// Sets the timer of the wall time anew, if that is not what it was. It also rings anew for a run that goes on after its time
    /// has run out while it was stopped: nothing else would end that.
    pub(super) fn follow_wall(&mut self, before: Option<Duration>) {
        let is_set = self.state.timers.values().any(|timer| timer.purpose == TimerPurpose::Wall);
        let is_lost = before.is_some() && !is_set && self.state.parked.is_none();
        if self.state.limits.wall == before && !is_lost {
            return;
        }
        self.cancel_timers(|purpose| purpose == TimerPurpose::Wall);
        if let Some(wall) = self.state.limits.wall {
            let timer_id = TimerId::derive(self.state.run_id, &format!("wall/{}", self.state.seq));
            let due = later(self.state.created_at, wall);
            self.emit(TimerSet { timer_id, due, purpose: TimerPurpose::Wall });
        }
    }

    /// An operator vouches for a text that came from outside: for this text alone, and in this run alone.
    pub(super) fn declassify(&mut self, declassify: &Declassify) -> Result<(), Rejection> {
        self.refuse_if_ending()?;
        let Declassify { text, from, by, reason } = declassify.clone();
        let problem = if text.trim().is_empty() || text.len() > MAX_VOUCHED {
            Some(format!("`text`: vouch for 1 to {MAX_VOUCHED} bytes"))
        } else if from == 0 || from > self.state.seq {
            Some("`from`: the run has no such event".to_owned())
        } else {
            reason.trim().is_empty().then(|| "`reason`: say why it may be believed".to_owned())
        };
        if let Some(problem) = problem {
            return Err(Rejection::CannotVouch(problem));
        }
        self.emit(TrustDeclassified { text, from, trust: Trust::Trusted, by, reason });
        Ok(())
    }

    /// Takes note of what somebody has given the run. Whoever that is: what is in it may come from anywhere.
    pub(super) fn be_given(&mut self, artifact: &ArtifactRef) -> Result<(), Rejection> {
        self.refuse_if_ending()?;
        let known = self.state.artifacts.iter().find(|known| known.artifact_id == artifact.artifact_id);
        let version = known.map_or(artifact.version, |known| artifact.version.max(known.version + 1));
        let artifact = ArtifactRef { version, trust: Trust::Untrusted, ..artifact.clone() };
        if version == 1 {
            self.emit(ArtifactCreated { artifact });
        } else {
            self.emit(ArtifactUpdated { artifact });
        }
        Ok(())
    }

    /// Changes what the run is to reach, or with what. The model is told as if the operator had written it: what it wanted to
    /// begin without knowing is dropped, and it looks again.
    pub(super) fn revise(&mut self, revise: &ReviseRun) -> Result<(), Rejection> {
        self.refuse_if_ending()?;
        let parent = self.state.parent.as_ref().map(|parent| parent.run_id);
        if let (Some(parent), Some(tools)) = (parent, &revise.tools)
            && !are_within(tools, self.state.tools.as_ref())
        {
            return Err(Rejection::BeyondParent(parent));
        }
        let was_judged = self.state.is_to_be_judged();
        let ReviseRun { objective, acceptance, tools, limits, by, reason } = revise.clone();
        let changed = [
            objective.as_ref().map(|objective| format!("The objective is now: {}", objective.text)),
            acceptance.as_ref().map(|_| "The criteria for being done have changed.".to_owned()),
            tools.as_ref().map(|tools| format!("The tools are now: {}.", tools.join(", "))),
        ];
        let mut words: Vec<_> = changed.into_iter().flatten().collect();
        if !words.is_empty() {
            words.extend(reason.clone());
            let revision = self.state.revision + 1;
            self.emit(RunRevised { revision, objective, acceptance, tools, by: by.clone(), reason });
            let block = Block::new(words.join("\n"), Trust::Operator, format!("operator:{by}"));
            self.emit(MessageAdded { role: Speaker::Operator, block });
        }
        if let Some(limits) = limits {
            self.change_budget(&ChangeBudget { limits, by })?;
        }
        let for_verdicts = was_judged && !self.state.is_to_be_judged() && self.state.turn.is_some();
        if for_verdicts && self.state.settled().forbids_turn(&self.state.limits).is_some() {
            // It was open for what came of the old criteria: now it would be for a model, and there is nothing left for that.
            self.open_turn(None, None);
        }
        Ok(())
    }
}
