//! Creating, admitting, holding and ending runs; messages and budgets.

use jiff::Timestamp;

use super::{Decider, Decision, begin};
use crate::{
    command::{AddMessage, ByOperator, ChangeBudget, CreateRun},
    event::{
        BudgetChanged, Ending, MessageAdded, Outcome, Rule, RunPaused, RunQueued, RunResumed, Speaker, TimerPurpose,
        TimerSet,
    },
    ids::{RunId, TimerId},
    mutants::{Mutant, broken},
    rejection::Rejection,
    state::RunState,
    trust::{Block, Trust},
    units::later,
};

pub(super) fn create(
    run_id: RunId,
    state: Option<&RunState>,
    create: &CreateRun,
    now: Timestamp,
) -> Result<Decision, Rejection> {
    if state.is_some() {
        return Err(Rejection::RunExists);
    }
    let mut decider = begin(run_id, create.created.clone().into(), now)?;
    if let Some(wall) = create.created.limits.wall {
        let timer_id = TimerId::derive(run_id, "wall");
        decider.emit(TimerSet { timer_id, due: later(now, wall), purpose: TimerPurpose::Wall });
    }
    match &create.hold {
        Some(reason) => decider.emit(RunQueued { reason: reason.clone() }),
        None => decider.open_turn(None, None),
    }
    Ok(decider.into_decision())
}

impl Decider {
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
        if !self.state.paused
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
        self.emit(BudgetChanged { limits: change.limits.clone(), by: change.by.clone() });
        if change.limits.wall != before {
            self.cancel_timers(|purpose| purpose == TimerPurpose::Wall);
            if let Some(wall) = change.limits.wall {
                let timer_id = TimerId::derive(self.state.run_id, &format!("wall/{}", self.state.seq));
                let due = later(self.state.created_at, wall);
                self.emit(TimerSet { timer_id, due, purpose: TimerPurpose::Wall });
            }
        }
        Ok(())
    }
}
