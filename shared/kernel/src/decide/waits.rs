//! What meets a wait: time and events from outside.

use super::Decider;
use crate::{
    budget::LimitName,
    command::{DeliverExternal, FireTimer},
    event::{ExternalMatched, TimerFired, TimerPurpose, ToolDue, WaitExpired},
    mutants::{Mutant, broken},
    rejection::Rejection,
    state::Timer,
    trust::{Block, Trust},
    wait::Condition,
};

impl Decider {
    /// A timer that is not set (any more), or not due yet, does nothing: it may be fired twice, or by a wrong clock.
    pub(super) fn fire_timer(&mut self, fire: &FireTimer) -> Result<(), Rejection> {
        let is_due = |timer: &Timer| timer.due <= self.now || broken(Mutant::FiresEarly);
        let Some(timer) = self.state.timers.get(&fire.timer_id).copied().filter(is_due) else {
            return Ok(());
        };
        self.emit(TimerFired { timer_id: fire.timer_id, due: timer.due });
        match timer.purpose {
            TimerPurpose::Wait => {}
            TimerPurpose::Deadline => {
                let unmet = self.state.wait.as_ref().filter(|wait| !wait.on.is_met());
                if let Some(wait_id) = unmet.map(|wait| wait.wait_id) {
                    self.emit(WaitExpired { wait_id });
                    self.cancel_wait_timers();
                }
            }
            TimerPurpose::Retry => {
                let put_off = self
                    .state
                    .calls
                    .values()
                    .find(|call| call.put_off.is_some_and(|put_off| put_off.timer_id == fire.timer_id));
                if let Some(call_id) = put_off.map(|call| call.request.call_id) {
                    self.emit(ToolDue { call_id });
                }
            }
            TimerPurpose::Wall => {
                if self.state.ending.is_none() {
                    self.reach_limit(LimitName::Wall, "The wall time is used up.");
                }
            }
        }
        Ok(())
    }

    /// An event for a wait that is gone, for a condition that was met, or from before what the run consumed last when it
    /// registered the wait, does nothing.
    pub(super) fn deliver_external(&mut self, deliver: &DeliverExternal) -> Result<(), Rejection> {
        let leaves = self.state.wait.as_ref().filter(|wait| wait.wait_id == deliver.wait_id);
        let from = self.state.waits_from.get(&deliver.external.resource_key);
        let is_new = from.is_none_or(|from| deliver.external.position > *from) || broken(Mutant::ConsumesAgain);
        let meets = is_new
            && leaves.is_some_and(|wait| {
                wait.on
                    .leaves()
                    .get(usize::from(deliver.leaf))
                    .filter(|leaf| leaf.met_by.is_none() || broken(Mutant::MeetsAgain))
                    .is_some_and(|leaf| matches!(leaf.condition, Condition::External(_)))
            });
        if meets {
            let DeliverExternal { external, wait_id, leaf, block } = deliver.clone();
            // Whatever the door says: an event from outside is data.
            let trust = if broken(Mutant::BelievesOutside) { block.trust } else { Trust::Untrusted };
            let block = Block { trust, ..block };
            self.emit(ExternalMatched { external, wait_id, leaf, block });
        }
        Ok(())
    }
}
