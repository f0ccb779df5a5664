//! The lines of open actions, gathered from the logs of services as they are read.
//!
//! A line that bears an id of one action is no other's, whenever that action is heard of: when a window opens, what was taken for
//! another's merely by its time and place is looked at again, as far back as messages are held.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use engine::{ActionSlice, Actions, EngineError};
use jiff::{SignedDuration, Timestamp};
use kernel::{ActionId, TenantId};
use serde_json::value::to_raw_value;
use signals::Record;

use super::{
    Place,
    evidence::Line,
    pace::Learned,
    ring::{Held, Ring},
};
use crate::{
    meter,
    windows::{
        OpenWindows, TenantWindows, Window, WindowSet,
        slice::{By, Relation, Slice, SliceKey, distance, relation},
    },
};

/// How long the first lines of an action are gathered before one of their traces is taken for its own.
const ADOPT_AFTER: SignedDuration = SignedDuration::from_secs(1);
/// Traces that an action may turn out to be.
const CANDIDATES: usize = 8;
/// How long the ids of an action are known after its window has closed, and of how many: its last lines are no other's.
const CLOSED_FOR: SignedDuration = SignedDuration::from_secs(60);
const CLOSED: usize = 1024;

/// What is gathered in one partition.
pub(super) struct Gatherer {
    windows: OpenWindows,
    actions: Actions,
    open: Arc<WindowSet>,
    /// Windows that were open a moment ago, and when they were found closed.
    closed: Vec<(Timestamp, Arc<Window>)>,
    slices: HashMap<SliceKey, Slice>,
    dirty: BTreeSet<SliceKey>,
    /// By action that names no id, the traces at its time and place and how far from it they are.
    candidates: HashMap<ActionId, Vec<(i64, String)>>,
    ring: Ring,
}

/// The slices that a message has touched.
#[derive(Default)]
pub(super) struct Touched(BTreeSet<SliceKey>);

impl Gatherer {
    /// Goes on with what was found. What stands in other partitions is there too, and is never touched.
    pub(super) async fn open(windows: OpenWindows, actions: Actions) -> Result<Self, EngineError> {
        let open = windows.refresh().await?;
        let ids: Vec<ActionId> = open.all().map(|window| window.id()).collect();
        let mut slices = HashMap::new();
        for slice in actions.slices(&ids).await? {
            match serde_json::from_str(slice.state.get()) {
                Ok(state) => drop(slices.insert((slice.action_id, slice.service), state)),
                Err(error) => {
                    tracing::warn!(action = %slice.action_id, %error, "what was found about an action can't be read");
                    meter::passed_over("slice");
                }
            }
        }
        Ok(Self {
            windows,
            actions,
            open,
            closed: Vec::new(),
            slices,
            dirty: BTreeSet::new(),
            candidates: HashMap::new(),
            ring: Ring::default(),
        })
    }

    /// Whether any action of a tenant is open.
    pub(super) fn listens_to(&self, tenant: &TenantId) -> bool {
        self.open.of(tenant).is_some()
    }

    /// Brings a line to the open windows that it may belong to.
    pub(super) fn line(
        &mut self,
        (tenant, service): (&TenantId, &str),
        raw: &[u8],
        record: &Record,
        place: Place,
        touched: &mut Touched,
    ) {
        let set = Arc::clone(&self.open);
        let Some(open) = set.of(tenant) else { return };
        let mut near: Vec<&Arc<Window>> = Vec::new();
        let mut is_owned = false;
        for window in open.of_line(service, raw) {
            match relation(&window.action, &window.ids, service, record, place.at) {
                Relation::Own => {
                    is_owned = true;
                    self.take(window, service, record, place, By::Id, touched);
                }
                Relation::Near => near.push(window),
                Relation::Other if window.ids.is_empty() => self.propose(window, record, place),
                Relation::Other | Relation::None => {}
            }
        }
        if is_owned || near.is_empty() || self.is_of_closed(tenant, record) {
            return;
        }
        if let [window] = near.as_slice() {
            return self.take(window, service, record, place, By::Nearness, touched);
        }
        // Nobody can say whose it is: it counts for none of them.
        for window in near {
            if let Some(slice) = self.slice(window, service, place.seq, touched) {
                slice.shared += 1;
            }
        }
    }

    /// Whether a record bears an id of an action that was open a moment ago.
    fn is_of_closed(&self, tenant: &TenantId, record: &Record) -> bool {
        let names = |window: &Window| window.ids.iter().any(|id| record.mentions(id));
        self.closed.iter().any(|(_, window)| window.action.tenant == *tenant && names(window))
    }

    fn take(
        &mut self,
        window: &Arc<Window>,
        service: &str,
        record: &Record,
        place: Place,
        by: By,
        touched: &mut Touched,
    ) {
        let line = Line::new(record, place.seq, place.index, place.at);
        if let Some(slice) = self.slice(window, service, place.seq, touched) {
            slice.take(window.rule(), record, line, by);
        }
    }

    /// The slice that a line of message `seq` goes into; none if it includes that message already.
    fn slice(&mut self, window: &Window, service: &str, seq: u64, touched: &mut Touched) -> Option<&mut Slice> {
        let key = (window.id(), service.to_owned());
        let slice = self.slices.entry(key.clone()).or_default();
        let is_new = seq > slice.seen;
        if is_new {
            touched.0.insert(key);
        }
        is_new.then_some(slice)
    }

    /// All lines of a message are read: from now on its slices include it.
    pub(super) fn close_message(&mut self, seq: u64, touched: Touched) {
        for key in touched.0 {
            if let Some(slice) = self.slices.get_mut(&key) {
                slice.seen = slice.seen.max(seq);
            }
            self.dirty.insert(key);
        }
    }

    /// Brings what the pace of a service's lines tells to the open windows at that service.
    pub(super) fn learned(&mut self, tenant: &TenantId, service: &str, learned: &Learned) {
        let set = Arc::clone(&self.open);
        let Some(open) = set.of(tenant) else { return };
        for window in open.windows.iter().filter(|window| window.action.service == service) {
            let key = (window.id(), service.to_owned());
            if self.slices.entry(key.clone()).or_default().learn(learned) {
                self.dirty.insert(key);
            }
        }
    }

    /// Notes that an action without an id may be of the trace of this record.
    fn propose(&mut self, window: &Window, record: &Record, place: Place) {
        let Some(trace) = &record.trace_id else { return };
        let apart = distance(&window.action, record, place.at);
        let candidates = self.candidates.entry(window.id()).or_default();
        match candidates.iter_mut().find(|(_, known)| known == trace) {
            Some((nearest, _)) => *nearest = apart.min(*nearest),
            None => candidates.push((apart, trace.clone())),
        }
        candidates.sort();
        candidates.truncate(CANDIDATES);
    }

    /// If windows have opened, or have got to know an id, looks at the last seconds again for their sake.
    pub(super) fn look_again(&mut self) {
        let now = self.windows.current();
        if Arc::ptr_eq(&now, &self.open) {
            return;
        }
        let before = std::mem::replace(&mut self.open, Arc::clone(&now));
        self.forget_closed(&before);
        let changed: Vec<Arc<Window>> = now
            .all()
            .filter(|window| {
                let known = before.get(&window.action.tenant, window.id());
                known.is_none_or(|known| known.ids != window.ids)
            })
            .cloned()
            .collect();
        for window in &changed {
            if before.get(&window.action.tenant, window.id()).is_some() {
                // Its lines are known by an id only now: what was found before was found without.
                self.slices.retain(|(id, _), _| *id != window.id());
            }
            self.look_back(window);
        }
        let is_changed = |window: &Arc<Window>| changed.iter().any(|one| one.id() == window.id());
        for window in now.all().filter(|window| !is_changed(window)) {
            let has_company = |one: &Arc<Window>| {
                (&one.action.tenant, &one.action.service) == (&window.action.tenant, &window.action.service)
            };
            if changed.iter().any(has_company) {
                self.look_at_near_again(window);
            }
        }
    }

    fn forget_closed(&mut self, before: &WindowSet) {
        let now = Timestamp::now();
        let open = Arc::clone(&self.open);
        let is_open = |id: ActionId| open.all().any(|window| window.id() == id);
        self.slices.retain(|(id, _), _| is_open(*id));
        self.dirty.retain(|(id, _)| is_open(*id));
        self.candidates.retain(|id, _| is_open(*id));
        self.closed.extend(before.all().filter(|window| !is_open(window.id())).map(|window| (now, Arc::clone(window))));
        let beyond = self.closed.len().saturating_sub(CLOSED);
        self.closed.drain(..beyond);
    }

    fn look_back(&mut self, window: &Arc<Window>) {
        let set = Arc::clone(&self.open);
        let Some(open) = set.of(&window.action.tenant) else { return };
        let held: Vec<Held> = self.ring.of(&window.action.tenant).cloned().collect();
        for message in held {
            let mut touched = Touched::default();
            for (raw, place) in places(&message) {
                if !open.of_line(&message.service, &raw).any(|one| one.id() == window.id()) {
                    continue;
                }
                let record = Record::from_line(&raw);
                match relation(&window.action, &window.ids, &message.service, &record, place.at) {
                    Relation::Own => self.take(window, &message.service, &record, place, By::Id, &mut touched),
                    Relation::Near => self.take_near(open, window, &message.service, &record, place, &mut touched),
                    Relation::Other if window.ids.is_empty() => self.propose(window, &record, place),
                    Relation::Other | Relation::None => {}
                }
            }
            self.close_message(message.seq, touched);
        }
    }

    /// Another action was heard of at the same service: what was taken for this one's by time and place may be that one's.
    fn look_at_near_again(&mut self, window: &Arc<Window>) {
        let set = Arc::clone(&self.open);
        let Some(open) = set.of(&window.action.tenant) else { return };
        let key = (window.id(), window.action.service.clone());
        let held: Vec<Held> =
            self.ring.of(&window.action.tenant).filter(|held| held.service == key.1).cloned().collect();
        let (Some(first), Some(slice)) = (held.first().map(|held| held.seq), self.slices.get_mut(&key)) else { return };
        if slice.near == 0 {
            return;
        }
        let seen = slice.seen;
        slice.forget_near(first);
        // What it includes of these messages by id stays; only the rest is taken anew.
        slice.seen = first.saturating_sub(1);
        for message in held.iter().filter(|message| message.seq <= seen) {
            let mut touched = Touched::default();
            for (raw, place) in places(message) {
                let record = Record::from_line(&raw);
                if relation(&window.action, &window.ids, &key.1, &record, place.at) == Relation::Near {
                    self.take_near(open, window, &key.1, &record, place, &mut touched);
                }
            }
            self.close_message(message.seq, touched);
        }
        if let Some(slice) = self.slices.get_mut(&key) {
            slice.seen = seen;
        }
        self.dirty.insert(key);
    }

    fn take_near(
        &mut self,
        open: &TenantWindows,
        window: &Arc<Window>,
        service: &str,
        record: &Record,
        place: Place,
        touched: &mut Touched,
    ) {
        let of = |other: &Arc<Window>| relation(&other.action, &other.ids, service, record, place.at);
        let relations: Vec<Relation> = open.windows.iter().map(of).collect();
        if relations.contains(&Relation::Own) || self.is_of_closed(&window.action.tenant, record) {
            return;
        }
        if relations.iter().filter(|relation| **relation == Relation::Near).count() > 1 {
            if let Some(slice) = self.slice(window, service, place.seq, touched) {
                slice.shared += 1;
            }
        } else {
            self.take(window, service, record, place, By::Nearness, touched);
        }
    }

    /// A message was read. It is held for actions that are heard of later.
    pub(super) fn hold(&mut self, held: Held) {
        self.ring.push(held);
    }

    /// The first message that must not be acknowledged yet.
    pub(super) fn first_held(&self) -> Option<u64> {
        self.ring.first()
    }

    /// What time alone brings: windows that opened, traces to adopt.
    pub(super) async fn tick(&mut self, now: Timestamp) -> Result<(), EngineError> {
        self.look_again();
        self.adopt(now).await?;
        self.ring.expire(now);
        self.closed.retain(|(at, _)| now.duration_since(*at) < CLOSED_FOR);
        Ok(())
    }

    /// Takes the nearest trace for an action's own, once its first lines had the time to come.
    async fn adopt(&mut self, now: Timestamp) -> Result<(), EngineError> {
        let mut is_news = false;
        for (id, traces) in std::mem::take(&mut self.candidates) {
            let Some(window) = self.open.all().find(|window| window.id() == id && window.ids.is_empty()) else {
                continue;
            };
            if now.duration_since(window.opened_at) < ADOPT_AFTER {
                self.candidates.insert(id, traces);
                continue;
            }
            let tenant = &window.action.tenant;
            for (_, trace) in &traces {
                if self.actions.adopt(tenant, id, trace).await? {
                    is_news = true;
                    break;
                }
            }
        }
        if is_news {
            self.windows.refresh().await?;
            self.look_again();
        }
        Ok(())
    }

    /// Stores what was found about actions: whoever judges them waits for it.
    pub(super) async fn flush(&mut self) -> Result<(), EngineError> {
        let mut slices = Vec::new();
        for key in &self.dirty {
            let Some(slice) = self.slices.get(key) else { continue };
            match to_raw_value(slice) {
                Ok(state) => {
                    let (action_id, service) = key.clone();
                    slices.push(ActionSlice { action_id, service, stream_seq: slice.seen, state });
                }
                Err(error) => tracing::error!(action = %key.0, %error, "what was found can't be written"),
            }
        }
        self.actions.save_slices(slices).await?;
        self.dirty.clear();
        Ok(())
    }
}

/// The lines of a message, and where each stands.
fn places(message: &Held) -> Vec<(Cow<'_, [u8]>, Place)> {
    let lines = signals::lines(&message.payload).into_iter().zip(0_u32..);
    lines.map(|(raw, index)| (raw, Place { seq: message.seq, index, at: message.at })).collect()
}
