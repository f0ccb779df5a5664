//! The world that the roles act in: what Postgres, Redis, NATS, the clock and the outside are to them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use kernel::{
    CallId, Event, RunId, RunState, Seq, Timestamp, TurnId,
    audit::{RunAudit, Violation},
};

use crate::{bus::Bus, choice::Choices, outside::Outside, protocol::Protocol};

/// Beginning of time, in milliseconds since 1970.
const EPOCH: i64 = 1_800_000_000_000;

pub struct World {
    pub protocol: Protocol,
    pub choices: Choices,
    /// Milliseconds since the beginning.
    pub now: i64,
    pub runs: BTreeMap<RunId, Row>,
    pub outbox: Vec<Unpublished>,
    pub externals: Vec<External>,
    /// Who took an outside event that only one may have.
    pub claims: HashMap<i64, RunId>,
    /// By which run exclusive events were consumed, as its log says.
    pub taken: HashMap<i64, RunId>,
    pub bus: Bus,
    pub snapshots: HashMap<RunId, Arc<RunState>>,
    pub leases: BTreeMap<String, Lease>,
    /// Calls that a process works on.
    pub claimed: HashSet<(Process, CallId)>,
    pub outside: Outside,
    /// Digests of stored content.
    pub content: HashSet<String>,
    pub policy: u32,
    pub names: u64,
    pub violations: Vec<Violation>,
    pub trace: Option<Vec<String>>,
}

/// A run as Postgres has it.
pub struct Row {
    pub log: Vec<Event>,
    pub state: Arc<RunState>,
    pub inbox: HashSet<String>,
    /// Deliveries that were committed, as they were.
    pub committed: HashSet<String>,
    pub audit: RunAudit,
    /// A state that was current once.
    pub older: Option<Arc<RunState>>,
    pub updated: i64,
}

/// A commit of which nobody knows that it was published.
#[derive(Clone, Debug)]
pub struct Unpublished {
    pub run: RunId,
    pub from: Seq,
    pub to: Seq,
    pub at: i64,
}

/// An event from outside, as it is recorded.
#[derive(Clone, Debug)]
pub struct External {
    pub position: i64,
    pub name: u64,
    pub subject: &'static str,
    pub event_type: &'static str,
    pub received_at: Timestamp,
    pub dispatched: bool,
    pub recorded: i64,
}

/// A lease: its holder renews it while it lives.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    pub holder: Process,
    pub expires: Option<i64>,
}

/// A process of a role: an instance, and how often it was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    pub instance: usize,
    pub incarnation: u32,
}

impl World {
    pub fn new(protocol: Protocol, choices: Choices, traced: bool) -> Self {
        Self {
            protocol,
            choices,
            now: 0,
            runs: BTreeMap::new(),
            outbox: Vec::new(),
            externals: Vec::new(),
            claims: HashMap::new(),
            taken: HashMap::new(),
            bus: Bus::default(),
            snapshots: HashMap::new(),
            leases: BTreeMap::new(),
            claimed: HashSet::new(),
            outside: Outside::default(),
            content: HashSet::new(),
            policy: 0,
            names: 0,
            violations: Vec::new(),
            trace: traced.then(Vec::new),
        }
    }

    /// A name that nobody else has.
    pub fn name(&mut self) -> u64 {
        self.names += 1;
        self.names
    }

    pub fn time(&self) -> Timestamp {
        timestamp(self.now)
    }

    /// Says what happens, for whoever reads a failed schedule.
    pub fn say(&mut self, words: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>9.3} s  {}", now as f64 / 1000.0, words()));
        }
    }

    pub fn violated(&mut self, run_id: RunId, rule: &'static str, detail: impl Into<String>) {
        self.violations.push(Violation { run_id, seq: None, rule, detail: detail.into() });
    }

    pub fn expect(&mut self, holds: bool, run: RunId, rule: &'static str, detail: impl FnOnce() -> String) {
        if !holds {
            self.violated(run, rule, detail());
        }
    }

    /// The run as the log has it.
    pub fn current(&self, run: RunId) -> Option<Arc<RunState>> {
        self.runs.get(&run).map(|row| Arc::clone(&row.state))
    }

    /// Earlier events about the same thing that are not dispatched yet, oldest first.
    pub fn under_way_before(&self, external: &External) -> Vec<External> {
        let before = |each: &&External| {
            each.position < external.position && each.subject == external.subject && !each.dispatched
        };
        self.externals.iter().filter(before).cloned().collect()
    }

    /// Stores a snapshot unless a newer one is there.
    pub fn store_snapshot(&mut self, state: &Arc<RunState>) {
        let newer = self.snapshots.get(&state.run_id).is_none_or(|stored| stored.seq < state.seq);
        if newer {
            self.snapshots.insert(state.run_id, Arc::clone(state));
        }
    }

    /// Takes a lease unless somebody has it.
    pub fn acquire(&mut self, name: &str, holder: Process) -> bool {
        let free = self.leases.get(name).is_none_or(|lease| lease.expires.is_some_and(|at| at <= self.now));
        if free {
            self.leases.insert(name.to_owned(), Lease { holder, expires: None });
        }
        free
    }

    pub fn release(&mut self, name: &str, holder: Process) {
        if self.leases.get(name).is_some_and(|lease| lease.holder == holder) {
            self.leases.remove(name);
        }
    }

    pub fn is_held(&self, name: &str) -> bool {
        self.leases.get(name).is_some_and(|lease| lease.expires.is_none_or(|at| at > self.now))
    }

    pub fn holds(&self, name: &str, holder: Process) -> bool {
        self.leases.get(name).is_some_and(|lease| lease.holder == holder)
    }

    /// Nobody renews what a dead process held.
    pub fn died(&mut self, process: Process) {
        let lapses = self.now + 8000;
        for lease in self.leases.values_mut().filter(|lease| lease.holder == process) {
            lease.expires = Some(lapses);
        }
    }

    /// Lets time pass. What is on its way for too long arrives or is lost before.
    pub fn pass(&mut self, millis: i64) {
        let until = self.now + millis;
        for (run, call) in self.outside.overdue(until) {
            let lands = self.choices.chance(50);
            self.settle_effect(run, call, lands);
        }
        self.now = until;
    }

    /// An effect that was on its way happens or does not.
    pub fn settle_effect(&mut self, run: RunId, call: CallId, lands: bool) {
        let Some(repeatable) = self.outside.arrive(call, lands) else { return };
        let times = self.outside.landed(call);
        self.say(|| format!("the effect of {call} {}", if lands { "happens" } else { "is lost" }));
        self.expect(repeatable || times <= 1, run, "world.effect_once", || format!("{call} happened {times} times"));
    }

    /// Open turns of whose planner nothing is heard, calls of whose executor nothing is heard, and runs to be admitted.
    pub fn neglected(&self, older_than: i64) -> BTreeSet<RunId> {
        let neglected = self.runs.iter().filter(|(_, row)| {
            let state = &row.state;
            let old = row.updated + older_than <= self.now;
            let turn = state.turn.as_ref().filter(|_| !state.paused);
            let turn_neglected = turn.is_some_and(|turn| old && !self.is_held(&turn_lease(turn.turn_id)));
            let undispatched = |call: &&kernel::call::Call| {
                use kernel::call::CallStatus::{Approved, Requested};
                (!state.paused || call.request.is_compensation()) && matches!(call.status, Requested | Approved)
            };
            let abandoned = state.started_calls().any(|call| !self.is_held(&call_lease(call.request.call_id)));
            !state.ended
                && (turn_neglected
                    || abandoned
                    || (old && state.to_compensate().is_some())
                    || (old && state.calls.values().any(|call| undispatched(&call))))
        });
        neglected.map(|(run, _)| *run).collect()
    }
}

pub fn timestamp(now: i64) -> Timestamp {
    Timestamp::from_millisecond(EPOCH + now).unwrap()
}

pub fn turn_lease(turn: TurnId) -> String {
    format!("turn/{turn}")
}

pub fn call_lease(call: CallId) -> String {
    format!("call/{call}")
}
