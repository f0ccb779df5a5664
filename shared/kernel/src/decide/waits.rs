//! What meets a wait: time and events from outside.

use super::Decider;
use crate::{
    budget::LimitName,
    command::{DeliverExternal, FireTimer},
    event::{BudgetExceeded, Ending, ExternalMatched, Outcome, TimerFired, TimerPurpose, WaitExpired},
    rejection::Rejection,
    trust::{Block, Trust},
    wait::Condition,
};

impl Decider {
    /// A timer that is not set (any more), or not due yet, does nothing: it may be fired twice, or by a wrong clock.
    pub(super) fn fire_timer(&mut self, fire: &FireTimer) -> Result<(), Rejection> {
        let Some(timer) = self.state.timers.get(&fire.timer_id).copied().filter(|timer| timer.due <= self.now) else {
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
            TimerPurpose::Wall => {
                self.emit(BudgetExceeded { limit: LimitName::Wall });
                let text = Block::new("The wall time is used up.", Trust::System, "runtime");
                let ending = Ending { outcome: Outcome::Failed, rule: LimitName::Wall.into(), text };
                if self.state.ending.is_none() {
                    self.begin_end(ending);
                }
            }
        }
        Ok(())
    }

    /// An event for a wait that is gone, or for a condition that was met, does nothing.
    pub(super) fn deliver_external(&mut self, deliver: &DeliverExternal) -> Result<(), Rejection> {
        let leaves = self.state.wait.as_ref().filter(|wait| wait.wait_id == deliver.wait_id);
        let meets = leaves.is_some_and(|wait| {
            wait.on
                .leaves()
                .get(usize::from(deliver.leaf))
                .is_some_and(|leaf| leaf.met_by.is_none() && matches!(leaf.condition, Condition::External(_)))
        });
        if meets {
            let DeliverExternal { external, wait_id, leaf, block } = deliver.clone();
            // Whatever the door says: an event from outside is data.
            let block = Block { trust: Trust::Untrusted, ..block };
            self.emit(ExternalMatched { external, wait_id, leaf, block });
        }
        Ok(())
    }
}
