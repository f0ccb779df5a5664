//! What the streams of a process have in common. A run that is followed has one subscription and one reading of the log, however
//! many follow it, and one question to Postgres now and then asks how far all of them are: thousands of open streams on which
//! nothing happens cost next to nothing, and an event that thousands wait for is read once.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bus::{Bus, BusError, Subscription, subject};
use engine::{Engine, EngineError, Reads, StoredEvent};
use futures::{FutureExt as _, StreamExt as _};
use kernel::{RunId, Seq, TenantId};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::api::event::EventView;

/// Most events that a run with several readers keeps for those that come a moment later.
const KEPT: usize = 64;
/// Most bytes of them, unless a single one is larger.
const KEPT_BYTES: usize = 256 * 1024;
/// Events that a reader reads at once at first; then it goes by what they take.
const FIRST_PAGE: u32 = 32;
/// The fewest.
const LEAST_PAGE: u32 = 4;
/// The most.
const LARGEST_PAGE: u32 = 256;
/// A full page of fewer bytes calls for a larger one, one of more than four times as many for a smaller one.
const SMALL_PAGE: usize = 64 * 1024;
/// The log is looked at once more so soon after a run was first followed: until then the server may not have known of the
/// subscription.
const SECOND_LOOK: Duration = Duration::from_millis(500);
/// Runs in one question to Postgres.
const RUNS_AT_ONCE: usize = 1000;
/// How long a log that can't be read is left alone, by all of its readers.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// The runs that are followed in this process. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Tails {
    shared: Arc<Shared>,
}

struct Shared {
    bus: Bus,
    reads: Reads,
    tails: Mutex<HashMap<Key, Weak<Tail>>>,
}

type Key = (TenantId, RunId);

/// The end of a run's log, as all of its readers here see it.
struct Tail {
    key: Key,
    shared: Arc<Shared>,
    /// Counts the bells: may ring for nothing, and may fail to.
    rung: Arc<watch::Sender<u64>>,
    kept: tokio::sync::Mutex<Kept>,
    /// The last event that the readers here know of; 0 before the first of them.
    known: AtomicU64,
    born: Instant,
    looked: AtomicBool,
    _listening: AbortOnDropHandle<()>,
}

/// What of the log is at hand: events without a hole.
#[derive(Default)]
struct Kept {
    /// The number that they lie behind; none until somebody reads.
    after: Option<Seq>,
    events: VecDeque<Arc<Shown>>,
    bytes: usize,
    /// How often it had rung when the log was last read to its end.
    fresh: u64,
    failed: Option<(Instant, Unread)>,
}

/// A committed event as readers get it.
#[derive(Debug)]
pub(crate) struct Shown {
    /// Its number.
    pub seq: Seq,
    /// Its type.
    pub event_type: String,
    /// Itself, as JSON in one line.
    pub data: String,
}

/// The log can't be read: for now, or at all. It has been logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// Later it may be.
    Now,
    /// Not by this version of the program.
    Ever,
}

/// A reader of a run.
pub(crate) struct Follower {
    tail: Arc<Tail>,
    bell: watch::Receiver<u64>,
    /// The log is known to reach to here.
    reaches: Seq,
    page: u32,
}

impl Tails {
    pub(crate) fn new(engine: &Engine) -> Self {
        let shared = Shared { bus: engine.bus().clone(), reads: engine.reads(), tails: Mutex::default() };
        Self { shared: Arc::new(shared) }
    }

    /// Somebody who follows the run from now on.
    pub(crate) async fn follow(&self, tenant: &TenantId, run: RunId) -> Result<Follower, BusError> {
        let key = (tenant.clone(), run);
        let known = self.shared.tails().get(&key).and_then(Weak::upgrade);
        let tail = match known {
            Some(tail) => tail,
            None => {
                let bells = self.shared.bus.subscribe(&subject::evt_of_run(tenant, run)).await?;
                self.shared.adopt(Arc::new(Tail::new(key, Arc::clone(&self.shared), bells)))
            }
        };
        Ok(Follower { bell: tail.rung.subscribe(), tail, reaches: 0, page: FIRST_PAGE })
    }

    /// Looks now and then how far the runs are that are followed, for bells that nobody heard; until it is stopped.
    pub(crate) async fn look(self, every: Duration, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(SECOND_LOOK.min(every));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut all_at = Instant::now() + every;
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            let now = Instant::now();
            let all = now >= all_at;
            if all {
                all_at = now + every;
            }
            let tails = self.shared.followed(|tail| all || tail.wants_second_look(now));
            for tails in tails.chunks(RUNS_AT_ONCE) {
                self.look_at(tails).await;
            }
        }
    }

    async fn look_at(&self, tails: &[Arc<Tail>]) {
        let runs: Vec<_> = tails.iter().map(|tail| tail.key.1).collect();
        match self.shared.reads.last_events(&runs).await {
            Ok(last) => {
                let last: HashMap<_, _> = last.into_iter().collect();
                for tail in tails {
                    tail.looked.store(true, Ordering::Relaxed);
                    if last.get(&tail.key.1).is_some_and(|seq| *seq > tail.known.load(Ordering::Relaxed)) {
                        tail.ring();
                    }
                }
            }
            Err(error) => tracing::debug!(error = &error as &dyn std::error::Error, "can't look how far runs are"),
        }
    }
}

impl Shared {
    /// The tail that serves its run from now on: this one, unless somebody else was quicker.
    fn adopt(&self, tail: Arc<Tail>) -> Arc<Tail> {
        let mut tails = self.tails();
        let entry = tails.entry(tail.key.clone()).or_default();
        match entry.upgrade() {
            Some(quicker) => {
                // One that is dropped takes itself out of the table.
                drop(tails);
                quicker
            }
            None => {
                *entry = Arc::downgrade(&tail);
                tail
            }
        }
    }

    fn followed(&self, which: impl Fn(&Tail) -> bool) -> Vec<Arc<Tail>> {
        // All of them, since one that is dropped here takes itself out of the table.
        let all: Vec<_> = self.tails().values().filter_map(Weak::upgrade).collect();
        all.into_iter().filter(|tail| which(tail)).collect()
    }

    fn tails(&self) -> MutexGuard<'_, HashMap<Key, Weak<Tail>>> {
        self.tails.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tail {
    fn new(key: Key, shared: Arc<Shared>, mut bells: Subscription) -> Self {
        let rung = Arc::new(watch::Sender::new(0));
        let ring = Arc::clone(&rung);
        // A task of its own, so that bells don't pile up in front of readers that have stopped reading.
        let listening = tokio::spawn(async move {
            while bells.next().await.is_some() {
                // Those of one commit come together.
                while let Some(Some(_)) = bells.next().now_or_never() {}
                ring.send_modify(|rung| *rung += 1);
            }
        });
        Self {
            key,
            shared,
            rung,
            kept: tokio::sync::Mutex::default(),
            known: AtomicU64::new(0),
            born: Instant::now(),
            looked: AtomicBool::new(false),
            _listening: AbortOnDropHandle::new(listening),
        }
    }

    fn ring(&self) {
        self.rung.send_modify(|rung| *rung += 1);
    }

    fn wants_second_look(&self, now: Instant) -> bool {
        !self.looked.load(Ordering::Relaxed) && now.duration_since(self.born) >= SECOND_LOOK
    }

    async fn page(&self, after: Seq, most: u32) -> Result<Vec<Arc<Shown>>, Unread> {
        let (tenant, run) = &self.key;
        let page = self.shared.reads.events(tenant, *run, after, most).await.map_err(|error| unread(*run, &error))?;
        page.into_iter().map(|stored| shown(stored).map(Arc::new)).collect()
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        let mut tails = self.shared.tails();
        // Another one may serve the run by now.
        if tails.get(&self.key).is_some_and(|tail| tail.strong_count() == 0) {
            tails.remove(&self.key);
        }
    }
}

fn unread(run: RunId, error: &EngineError) -> Unread {
    if error.is_transient() {
        tracing::debug!(run_id = %run, error = error as &dyn std::error::Error, "the log can't be read for now");
        return Unread::Now;
    }
    tracing::error!(run_id = %run, error = error as &dyn std::error::Error, "streams end: the log can't be read");
    Unread::Ever
}

fn shown(stored: StoredEvent) -> Result<Shown, Unread> {
    let (run, seq, event_type) = (stored.run_id, stored.seq, stored.event_type.clone());
    match serde_json::to_string(&EventView::from(stored)) {
        Ok(mut data) => {
            // Between the parts of JSON they say nothing, and within strings there are none.
            data.retain(|c| c != '\n' && c != '\r');
            Ok(Shown { seq, event_type, data })
        }
        // A stored event is valid JSON; if it were not, leaving it out in silence would be a gap.
        Err(error) => {
            tracing::error!(run_id = %run, seq, %error, "an event can't be sent");
            Err(Unread::Ever)
        }
    }
}

impl Follower {
    /// Says how far the log is known to reach, from a snapshot that the reader begins with.
    pub(crate) fn begin(&mut self, seq: Seq) {
        self.reaches = seq;
        let before = self.tail.known.fetch_max(seq, Ordering::Relaxed);
        // Whoever was here before has not heard of it, and if its bell was lost never will.
        if before != 0 && before < seq {
            self.tail.ring();
        }
    }

    /// Comes back when there may be more. May be dropped and called again.
    pub(crate) async fn rung(&mut self) {
        if self.bell.changed().await.is_err() {
            // Its sender lives as long as the tail.
            std::future::pending().await
        }
    }

    /// Events behind `after` in order, and whether there may be more behind them. May be dropped and called again.
    pub(crate) async fn read(&mut self, after: Seq) -> Result<(Vec<Arc<Shown>>, bool), Unread> {
        let rung = *self.bell.borrow_and_update();
        let read = self.read_kept(after, rung).await?;
        let (events, more) = match read {
            Some(read) => read,
            // From far back, at its own pace.
            None => {
                let page = self.tail.page(after, self.page).await?;
                let is_full = page.len() >= self.page as usize;
                (page, is_full)
            }
        };
        self.pace(&events);
        Ok((events, more))
    }

    /// The same of what is at hand, or is read now and kept for others; none for who is further back than that.
    async fn read_kept(&self, after: Seq, rung: u64) -> Result<Option<(Vec<Arc<Shown>>, bool)>, Unread> {
        let mut kept = self.tail.kept.lock().await;
        if let Some((at, unread)) = kept.failed
            && at.elapsed() < PAUSE
        {
            return Err(unread);
        }
        if !kept.begins_at_or_before(after) {
            return Ok(None);
        }
        let mut is_full = false;
        if kept.fresh < rung || kept.last() < self.reaches {
            // What rings from here on may be in the page or not.
            let now = *self.tail.rung.borrow();
            match self.tail.page(kept.last(), self.page).await {
                Ok(page) => {
                    is_full = page.len() >= self.page as usize;
                    if !is_full {
                        kept.fresh = now;
                    }
                    kept.add(page);
                    self.tail.known.fetch_max(kept.last(), Ordering::Relaxed);
                }
                Err(unread) => {
                    kept.failed = Some((Instant::now(), unread));
                    return Err(unread);
                }
            }
        }
        let events = kept.behind(after, self.page as usize);
        let last = events.last().map_or(after, |event| event.seq);
        let more = last < kept.last() || is_full;
        kept.trim(Arc::strong_count(&self.tail) == 1);
        Ok(Some((events, more)))
    }

    /// So that a page is worth its question, and a reader that has stopped reading holds no more than a few hundred kilobytes.
    fn pace(&mut self, events: &[Arc<Shown>]) {
        if events.len() < self.page as usize {
            return;
        }
        let bytes: usize = events.iter().map(|event| event.data.len()).sum();
        if bytes > 4 * SMALL_PAGE {
            self.page = (self.page / 2).max(LEAST_PAGE);
        } else if bytes < SMALL_PAGE {
            self.page = (self.page * 2).min(LARGEST_PAGE);
        }
    }
}

impl Kept {
    /// The last event that was read.
    fn last(&self) -> Seq {
        self.events.back().map_or(self.after.unwrap_or_default(), |event| event.seq)
    }

    /// Whether all that is behind `after` is at hand or still to be read. Whoever is first, or far ahead, says where to go on.
    fn begins_at_or_before(&mut self, after: Seq) -> bool {
        if self.after.is_none() || self.last() + (KEPT as u64) < after {
            self.events.clear();
            (self.after, self.bytes) = (Some(after), 0);
        }
        self.after.is_some_and(|first| first <= after)
    }

    fn add(&mut self, page: Vec<Arc<Shown>>) {
        self.bytes += page.iter().map(|event| event.data.len()).sum::<usize>();
        self.events.extend(page);
    }

    fn behind(&self, after: Seq, most: usize) -> Vec<Arc<Shown>> {
        let begin = self.events.partition_point(|event| event.seq <= after);
        self.events.iter().skip(begin).take(most).cloned().collect()
    }

    /// Forgets what is too much; all of it if nobody else reads.
    fn trim(&mut self, is_alone: bool) {
        let most = if is_alone { 0 } else { KEPT };
        while self.events.len() > most || (self.events.len() > 1 && self.bytes > KEPT_BYTES) {
            let Some(event) = self.events.pop_front() else { return };
            self.after = Some(event.seq);
            self.bytes -= event.data.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(seqs: std::ops::RangeInclusive<Seq>, bytes: usize) -> Vec<Arc<Shown>> {
        seqs.map(|seq| Arc::new(Shown { seq, event_type: "message.added".into(), data: "x".repeat(bytes) })).collect()
    }

    fn seqs(events: &[Arc<Shown>]) -> Vec<Seq> {
        events.iter().map(|event| event.seq).collect()
    }

    #[test]
    fn what_is_kept_has_no_hole_and_is_bounded() {
        let mut kept = Kept::default();
        assert!(kept.begins_at_or_before(10), "the first reader says where to begin");
        kept.add(page(11..=20, 10));
        assert!(kept.begins_at_or_before(15) && !kept.begins_at_or_before(9));
        assert_eq!(seqs(&kept.behind(15, 3)), [16, 17, 18]);
        kept.add(page(21..=200, 10));
        kept.trim(false);
        assert_eq!((kept.events.len(), kept.last(), kept.after), (KEPT, 200, Some(200 - KEPT as u64)));
        assert!(!kept.begins_at_or_before(20), "whoever is further back reads alone");
        kept.add(page(201..=201, KEPT_BYTES + 1));
        kept.trim(false);
        assert_eq!(seqs(&kept.behind(0, 9)), [201], "one that is too large by itself is there for all of them");
        kept.trim(true);
        assert_eq!((kept.events.len(), kept.bytes, kept.last()), (0, 0, 201), "nothing is kept for nobody");
        assert!(kept.begins_at_or_before(201));
    }

    #[test]
    fn a_reader_that_is_far_ahead_leaves_the_others_behind() {
        let mut kept = Kept::default();
        assert!(kept.begins_at_or_before(0));
        kept.add(page(1..=5, 10));
        assert!(kept.begins_at_or_before(7) && kept.last() == 5, "a little way is read for all");
        assert!(kept.begins_at_or_before(1000), "it is not read up to there for their sake");
        assert_eq!((kept.last(), kept.bytes), (1000, 0));
        assert!(!kept.begins_at_or_before(5));
    }
}
