//! The one door, as `engine` has it: decide on a snapshot, commit if the log has not moved on, decide again if it has.

use std::{collections::HashSet, sync::Arc};

use kernel::{
    Block, Command, Decision, Event, EventData, Rejection, RunId, RunState, Timestamp, Trust,
    audit::{RunAudit, rules},
    command::DeliverExternal,
    decide,
    event::{ExternalMatched, ExternalRef},
    wait::{Condition, ExternalPattern, Wait},
};

use crate::{
    tasks::Hand,
    world::{External, Row, Unpublished, World},
};

/// What a submitted command led to.
#[derive(Debug)]
pub struct Committed {
    pub events: Vec<Event>,
    pub state: Arc<RunState>,
    pub duplicate: bool,
}

/// A decision on its way into the log.
pub struct Pending {
    run: RunId,
    key: String,
    before: Option<Arc<RunState>>,
    after: RunState,
    events: Vec<Event>,
    /// What a look back without the lock has seen.
    seen: usize,
}

/// What became of it.
enum Fate {
    Committed(Arc<RunState>),
    Duplicate,
    Conflict,
    /// The outside event was another run's by then.
    Taken,
}

enum Sure {
    Ready(Box<Pending>),
    Answer(Result<Committed, Rejection>),
}

impl Hand {
    /// Submits a command. Dropped half-way, it leaves behind what a process leaves behind that dies there.
    pub async fn submit(&self, run: RunId, command: &Command, key: String) -> Result<Committed, Rejection> {
        let mut raced = false;
        loop {
            self.step().await;
            let pending = match self.with(|world| world.decide(run, command, &key, raced, self.clock(world))) {
                Sure::Ready(pending) => pending,
                Sure::Answer(answer) => return answer,
            };
            // Before the commit.
            self.step().await;
            let events = pending.events.clone();
            match self.with(|world| world.append(*pending, command.name())) {
                Fate::Committed(state) => {
                    self.publish(run, &events, &state);
                    // Committed, and nobody was told.
                    self.step().await;
                    return Ok(Committed { events, state, duplicate: false });
                }
                Fate::Conflict => raced = true,
                fate @ (Fate::Duplicate | Fate::Taken) => {
                    let state = self.with(|world| world.current(run)).ok_or(Rejection::NoSuchRun)?;
                    return Ok(Committed { events: Vec::new(), state, duplicate: matches!(fate, Fate::Duplicate) });
                }
            }
        }
    }

    /// Publishes behind the reply: the snapshot first, then the events.
    fn publish(&self, run: RunId, events: &[Event], state: &Arc<RunState>) {
        let (hand, events, state) = (self.clone(), events.to_vec(), Arc::clone(state));
        self.spawn("publish", async move {
            hand.step().await;
            hand.with(|world| world.store_snapshot(&state));
            hand.step().await;
            hand.with(|world| world.publish(run, &events));
        });
    }
}

impl World {
    fn decide(&mut self, run: RunId, command: &Command, key: &str, raced: bool, now: Timestamp) -> Sure {
        let hint = self.snapshots.get(&run).cloned().filter(|_| !raced);
        let creates = matches!(command, Command::Create(_));
        let on_hint = (!raced && (hint.is_some() || creates)).then(|| decide(run, hint.as_deref(), command, now));
        match on_hint {
            Some(Ok(decision)) if !decision.events.is_empty() => Sure::Ready(self.pending(run, key, hint, decision)),
            Some(Err(rejection)) if !self.protocol.refuse_on_log => Sure::Answer(Err(rejection)),
            _ => self.make_sure(run, command, key, now),
        }
    }

    /// Decides on the log itself. What is refused or empty here is final.
    fn make_sure(&mut self, run: RunId, command: &Command, key: &str, now: Timestamp) -> Sure {
        let current = self.current(run);
        let handled = self.protocol.inbox && self.runs.get(&run).is_some_and(|row| row.inbox.contains(key));
        if let Some(state) = current.clone().filter(|_| handled) {
            return Sure::Answer(Ok(Committed { events: Vec::new(), state, duplicate: true }));
        }
        match decide(run, current.as_deref(), command, now) {
            Ok(decision) if decision.events.is_empty() => {
                let state = Arc::new(decision.state);
                Sure::Answer(Ok(Committed { events: Vec::new(), state, duplicate: false }))
            }
            Ok(decision) => Sure::Ready(self.pending(run, key, current, decision)),
            Err(rejection) => Sure::Answer(Err(rejection)),
        }
    }

    fn pending(&self, run: RunId, key: &str, before: Option<Arc<RunState>>, decision: Decision) -> Box<Pending> {
        let Decision { events, state } = decision;
        let seen = self.externals.len();
        Box::new(Pending { run, key: key.to_owned(), before, after: state, events, seen })
    }

    /// The transaction of a commit.
    fn append(&mut self, mut pending: Pending, command: &'static str) -> Fate {
        let run = pending.run;
        if self.protocol.look_back {
            self.look_back(&mut pending);
        }
        if let Some(row) = self.runs.get_mut(&run) {
            if self.protocol.inbox && row.inbox.contains(&pending.key) {
                return Fate::Duplicate;
            }
            if !self.protocol.inbox_of_winners {
                row.inbox.insert(pending.key.clone());
            }
        }
        let row = self.runs.get(&run);
        let unmoved = match (&pending.before, row) {
            (None, None) => true,
            (Some(before), Some(row)) => {
                (!self.protocol.compare_seq || before.seq == row.state.seq)
                    && (!self.protocol.compare_time || before.updated_at == row.state.updated_at)
            }
            _ => false,
        };
        if !unmoved {
            return Fate::Conflict;
        }
        if self.protocol.exclusive_claims && !self.claim(&pending) {
            return Fate::Taken;
        }
        Fate::Committed(self.commit(pending, command))
    }

    /// Takes the exclusive outside events of a decision for its run.
    fn claim(&mut self, pending: &Pending) -> bool {
        let matched = pending.events.iter().filter_map(|event| match &event.data {
            EventData::ExternalMatched(matched) => Some(matched),
            _ => None,
        });
        let wants =
            |matched: &ExternalMatched| wanted_exclusively(pending, matched).then_some(matched.external.position);
        let positions: Vec<_> = matched.filter_map(wants).collect();
        let free = positions.iter().all(|position| self.claims.get(position).is_none_or(|by| *by == pending.run));
        if free {
            self.claims.extend(positions.into_iter().map(|position| (position, pending.run)));
        }
        free
    }

    fn commit(&mut self, pending: Pending, command: &'static str) -> Arc<RunState> {
        self.check_order(&pending);
        let Pending { run, key, before, after, events, .. } = pending;
        let (now, calm) = (self.now, self.choices.is_calm());
        let row = self.runs.entry(run).or_insert_with(|| Row {
            log: Vec::new(),
            state: Arc::new(after.clone()),
            inbox: HashSet::new(),
            committed: HashSet::new(),
            audit: RunAudit::new(run),
            older: None,
            updated: now,
        });
        for event in &events {
            row.audit.push(event);
        }
        row.audit.rest();
        let folded = row.audit.state().cloned().unwrap_or_else(|| after.clone());
        let (agrees, exclusive) = (folded == after, row.audit.take_exclusive());
        let mut violations = row.audit.take_violations();
        let state = Arc::new(folded);
        row.older = Some(std::mem::replace(&mut row.state, Arc::clone(&state)));
        row.updated = now;
        let once = row.committed.insert(key.clone());
        row.inbox.insert(key);
        let (from, to) = (events.first().map_or(1, |event| event.seq), state.seq);
        row.log.extend(events.iter().cloned());
        self.outbox.push(Unpublished { run, from, to, at: now });
        self.violations.append(&mut violations);
        self.expect(agrees, run, rules::FOLDS, || format!("`{command}`: decide and apply disagree"));
        self.expect(once, run, "world.delivered_once", || format!("`{command}` was committed twice"));
        let was = before.map(|before| before.status());
        let legal = was.is_none_or(|was| was.may_become(state.status()));
        self.expect(legal, run, "world.status", || format!("`{command}` led from {was:?} to {:?}", state.status()));
        for (position, _) in exclusive {
            let first = *self.taken.entry(position).or_insert(run);
            self.expect(first == run, run, rules::EXCLUSIVE, || format!("{position} was taken by {first} before"));
        }
        if !calm || self.trace.is_some() {
            self.say(|| {
                let names: Vec<_> = events.iter().map(|event| event.data.type_name()).collect();
                format!("run {} {command}: {}", short(run), names.join(", "))
            });
        }
        state
    }

    /// A condition has the oldest event that it means, of those that its run did not have when it began to wait.
    fn check_order(&mut self, pending: &Pending) {
        let mut skipped = Vec::new();
        for event in &pending.events {
            let EventData::ExternalMatched(matched) = &event.data else { continue };
            let Some((pattern, from)) = pattern_of(pending, matched) else { continue };
            let older = self.externals.iter().find(|external| {
                (from + 1..matched.external.position).contains(&external.position)
                    && external.received_at >= pending.after.created_at
                    && external.is_meant(&pattern)
                    && !(pattern.exclusive && self.is_anothers(external, pending.run))
            });
            skipped.extend(older.map(|older| (older.position, matched.external.position)));
        }
        for (older, position) in skipped {
            let detail = format!("it has the event at {position} before the one at {older}");
            self.violated(pending.run, "world.oldest_first", detail);
        }
    }

    /// Publishes the events of a commit. Whatever the bus does with them, it has acknowledged them.
    pub fn publish(&mut self, run: RunId, events: &[Event]) {
        for event in events {
            self.bus.publish_event(run, event, self.now, &mut self.choices);
        }
        let (first, last) = (events.first().map_or(0, |event| event.seq), events.last().map_or(0, |event| event.seq));
        self.outbox.retain(|row| row.run != run || row.from < first || row.to > last);
    }

    /// Lets a decision that registers a wait go on with the outside events that came before it.
    fn look_back(&self, pending: &mut Pending) {
        let registered = pending.events.iter().find_map(|event| match &event.data {
            EventData::WaitRegistered(registered) => Some(registered.wait.clone()),
            _ => None,
        });
        let Some(wait) =
            registered.filter(|wait| pending.after.wait.as_ref().is_some_and(|on| on.wait_id == wait.wait_id))
        else {
            return;
        };
        let seen = if self.protocol.look_back_locked { self.externals.len() } else { pending.seen };
        for (leaf, pattern) in patterns(&wait) {
            let state = &pending.after;
            let after = state.waits_from.get(&pattern.resource_key()).copied().unwrap_or(0);
            let found = self.externals[..seen].iter().find(|external| {
                external.position > after
                    && external.received_at >= state.created_at
                    && external.is_meant(&pattern)
                    && !(self.protocol.exclusive_claims && pattern.exclusive && self.is_anothers(external, pending.run))
            });
            if let Some(external) = found {
                let command = external.deliver_to(wait.wait_id, leaf);
                if let Ok(decision) = decide(pending.run, Some(&pending.after), &command, pending.after.updated_at) {
                    pending.events.extend(decision.events);
                    pending.after = decision.state;
                }
            }
        }
    }

    pub fn is_anothers(&self, external: &External, run: RunId) -> bool {
        self.claims.get(&external.position).is_some_and(|by| *by != run)
    }
}

/// Whether the condition that an outside event meets is an exclusive one.
fn wanted_exclusively(pending: &Pending, matched: &ExternalMatched) -> bool {
    pattern_of(pending, matched).is_some_and(|(pattern, _)| pattern.exclusive)
}

/// What the condition that an outside event meets is about, and the event that its run had last when it began to wait.
fn pattern_of(pending: &Pending, matched: &ExternalMatched) -> Option<(ExternalPattern, i64)> {
    let registered = pending.events.iter().find_map(|event| match &event.data {
        EventData::WaitRegistered(registered) => Some((&registered.wait, &pending.after)),
        _ => None,
    });
    let before = pending.before.as_deref().and_then(|state| Some((state.wait.as_ref()?, state)));
    let (wait, state) = registered.into_iter().chain(before).find(|(wait, _)| wait.wait_id == matched.wait_id)?;
    match &wait.on.leaves().get(usize::from(matched.leaf))?.condition {
        Condition::External(pattern) => {
            let from = state.waits_from.get(&pattern.resource_key()).copied().unwrap_or(0);
            Some((pattern.clone(), from))
        }
        _ => None,
    }
}

/// The unmet conditions of a wait that are about outside events, with their leaf numbers.
pub fn patterns(wait: &Wait) -> Vec<(u16, ExternalPattern)> {
    let leaves = wait.on.leaves().into_iter().zip(0..);
    leaves
        .filter_map(|(leaf, number)| match &leaf.condition {
            Condition::External(pattern) if leaf.met_by.is_none() => Some((number, pattern.clone())),
            _ => None,
        })
        .collect()
}

impl External {
    pub fn is_meant(&self, pattern: &ExternalPattern) -> bool {
        pattern.subject == self.subject && pattern.matches_type(self.event_type)
    }

    pub fn reference(&self) -> ExternalRef {
        ExternalRef {
            position: self.position,
            source: "forge".into(),
            id: self.name.to_string(),
            event_type: self.event_type.into(),
            resource_key: format!("forge:{}", self.subject),
            traceparent: None,
        }
    }

    pub fn deliver_to(&self, wait_id: kernel::WaitId, leaf: u16) -> Command {
        // The door claims too much: that outside events are data is for the rules to say.
        let block = Block::new(self.event_type, Trust::Operator, format!("event:forge/{}", self.name));
        Command::DeliverExternal(Box::new(DeliverExternal { external: self.reference(), wait_id, leaf, block }))
    }
}

/// The end of a run's id, by which traces call it.
pub fn short(run: RunId) -> u128 {
    run.0.as_u128() & 0xff
}
