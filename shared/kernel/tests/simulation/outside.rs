//! Effects on their way, effects that happened, and processes that go on by themselves.

use std::collections::BTreeMap;

use kernel::{CallId, RunId};

use crate::bus::Exited;

#[derive(Debug, Default)]
pub struct Outside {
    landed: BTreeMap<CallId, u32>,
    under_way: Vec<UnderWay>,
    pub activities: BTreeMap<CallId, Activity>,
}

/// A request that was sent and has not arrived.
#[derive(Debug)]
struct UnderWay {
    run: RunId,
    call: CallId,
    repeatable: bool,
    until: i64,
}

/// A process, its output, and whether somebody has its files.
#[derive(Clone, Debug)]
pub struct Activity {
    pub lines: Vec<bool>,
    pub exit: Option<Exited>,
    pub deadline: i64,
}

impl Outside {
    pub fn send(&mut self, run: RunId, call: CallId, repeatable: bool, until: i64) {
        self.under_way.push(UnderWay { run, call, repeatable, until });
    }

    /// What has been on its way for too long by then.
    pub fn overdue(&self, by: i64) -> Vec<(RunId, CallId)> {
        self.under_way.iter().filter(|effect| effect.until <= by).map(|effect| (effect.run, effect.call)).collect()
    }

    pub fn on_their_way(&self) -> Vec<(RunId, CallId)> {
        self.overdue(i64::MAX)
    }

    /// One of the requests for a call arrives or is lost. Says whether it may be repeated; none if there is none.
    pub fn arrive(&mut self, call: CallId, lands: bool) -> Option<bool> {
        let at = self.under_way.iter().position(|effect| effect.call == call)?;
        let effect = self.under_way.remove(at);
        *self.landed.entry(call).or_default() += u32::from(lands);
        Some(effect.repeatable)
    }

    /// How often an effect has happened.
    pub fn landed(&self, call: CallId) -> u32 {
        self.landed.get(&call).copied().unwrap_or(0)
    }

    /// Starts a process, unless somebody has its files already.
    pub fn spawn(&mut self, call: CallId, deadline: i64) -> bool {
        let free = !self.activities.contains_key(&call);
        if free {
            *self.landed.entry(call).or_default() += 1;
            self.activities.insert(call, Activity { lines: Vec::new(), exit: None, deadline });
        }
        free
    }

    /// Takes the files of a process; there may never have been one.
    pub fn attach(&mut self, call: CallId) -> &mut Activity {
        let lost = || Activity { lines: Vec::new(), exit: Some(Exited::Lost), deadline: 0 };
        self.activities.entry(call).or_insert_with(lost)
    }

    /// All processes come to their end.
    pub fn finish_activities(&mut self) {
        for activity in self.activities.values_mut() {
            activity.exit.get_or_insert(Exited::Well);
        }
    }

    pub fn running(&self) -> Vec<CallId> {
        self.activities.iter().filter(|(_, activity)| activity.exit.is_none()).map(|(call, _)| *call).collect()
    }
}
