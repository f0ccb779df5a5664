//! One partition of the signals, read in order by one observer at a time.
//!
//! What was read is acknowledged only after it is in a checkpoint, or in the log: whoever comes next goes on from there,
//! reads a little of it again, and comes to the same conclusions.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use bus::{Bus, BusError, BusState, Delivery, OrderedOptions, OrderedPull};
use engine::{Engine, EngineError, ObserverCheckpoint};
use futures::future::join_all;
use kernel::{CallId, Timestamp};
use tokio::{task::JoinError, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    asking::{Adviser, Asking},
    call::{Desk, Gone, Tracked},
    conclude::Report,
    losses::Losses,
    meter,
    miners::{Miners, Source},
    services::{LogMeans, Logs},
    signal::{self, Address, NotAFrame},
    tell::{Teller, Told},
};

/// How often it is looked whether the stream has dropped anything unread.
const LOSSES_EVERY: Duration = Duration::from_secs(5);
/// How often what is due is looked for.
const TICK: Duration = Duration::from_millis(200);
/// After so long without a message there is none, whatever the server said last.
const QUIET: Duration = Duration::from_secs(10);
/// So long after the start the first messages have come, if there are any.
const FIRST: Duration = Duration::from_secs(1);

/// Why a partition can't be read any longer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PartitionError {
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("who told the end of a call ended badly")]
    Asking(#[from] JoinError),
}

/// What a partition's reader works with. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Means {
    pub(crate) bus: Bus,
    pub(crate) engine: Engine,
    pub(crate) desk: Desk,
    pub(crate) teller: Teller,
    pub(crate) adviser: Adviser,
    pub(crate) logs: LogMeans,
    pub(crate) checkpoint_every: Duration,
}

/// A reader of one partition.
pub(crate) struct Partition {
    number: u8,
    means: Means,
    pull: OrderedPull,
    calls: HashMap<CallId, Tracked>,
    /// The logs of services that are in this partition.
    logs: Logs,
    gone: Gone,
    miners: Miners,
    /// Calls that have ended, and about which somebody is asked.
    asking: Asking,
    /// Calls whose checkpoints are not needed any more.
    ended: Vec<CallId>,
    /// The last message that was read, and the last that was acknowledged.
    read: u64,
    acknowledged: u64,
    saved_at: Instant,
    /// Messages that the server still held behind the last one.
    pending: Option<u64>,
    heard_at: Instant,
    /// What was said may have got lost, or be on its way: after a takeover or a long pause, without a connection, where the
    /// stream dropped something.
    was_deaf: bool,
    ticked_at: Instant,
    losses: Losses,
    looked_at: Instant,
}

impl Partition {
    /// Goes on where the last observer of this partition stopped.
    pub(crate) async fn open(number: u8, means: Means) -> Result<Self, PartitionError> {
        let pull = means.bus.ordered_pull(&format!("observer-{number}"), OrderedOptions::default()).await?;
        // After the pull: it mends a consumer that is missing.
        let losses = Losses::since_last(&means.bus, &format!("observer-{number}")).await?;
        let logs = Logs::open(number, means.logs.clone(), pull.stream_made()).await?;
        let left = means.desk.left_behind(number).await?;
        let calls = left.into_iter().map(|call| (call.address.call_id, call)).collect();
        let now = Instant::now();
        let mut partition = Self {
            number,
            means,
            pull,
            calls,
            logs,
            gone: Gone::default(),
            miners: Miners::new(number),
            asking: Asking::default(),
            ended: Vec::new(),
            read: 0,
            acknowledged: 0,
            saved_at: now,
            pending: None,
            heard_at: now,
            was_deaf: true,
            ticked_at: now,
            losses,
            looked_at: now.checked_sub(LOSSES_EVERY).unwrap_or(now),
        };
        partition.open_miners().await?;
        Ok(partition)
    }

    /// Reads until told to stop; then leaves everything in order for the next one.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<(), PartitionError> {
        let mut tick = tokio::time::interval(TICK.min(self.means.checkpoint_every));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                _ = tick.tick() => self.tick().await?,
                Some(told) = self.asking.next() => self.close(told?),
                batch = self.pull.next() => self.take(batch?).await?,
            }
        }
        self.checkpoint().await
    }

    async fn take(&mut self, batch: Vec<Delivery>) -> Result<(), PartitionError> {
        let Some(last) = batch.last() else { return Ok(()) };
        let (read, pending) = (last.stream_seq, last.pending);
        self.open_new(&batch).await?;
        let mut reports: BTreeMap<CallId, Vec<Report>> = BTreeMap::new();
        let (mut frames, mut lines, mut bytes) = (0, 0, 0);
        for delivery in &batch {
            let Some((call_id, told)) = self.read(delivery).await? else { continue };
            if let Some(call) = self.calls.get(&call_id) {
                let counts = call.watch.counts();
                (frames, lines, bytes) =
                    (frames + 1, lines + counts.lines - told.lines_before, bytes + delivery.payload.len() as u64);
            }
            if !told.reports.is_empty() {
                reports.entry(call_id).or_default().extend(told.reports);
            }
        }
        meter::signals(frames, lines, bytes);
        self.tell(reports).await;
        self.read = read;
        self.pending = Some(pending);
        self.heard_at = Instant::now();
        Ok(())
    }

    /// Opens the calls that this batch is the first word of.
    async fn open_new(&mut self, batch: &[Delivery]) -> Result<(), PartitionError> {
        let mut new: HashMap<CallId, (Address, Option<&str>)> = HashMap::new();
        for delivery in batch {
            if let Ok(address) = signal::address(delivery)
                && !self.calls.contains_key(&address.call_id)
                && !self.gone.has(address.call_id)
            {
                new.entry(address.call_id).or_insert_with(|| (address, delivery.traceparent()));
            }
        }
        let ids: Vec<CallId> = new.keys().copied().collect();
        let checkpoints = self.means.desk.checkpoints(&ids).await?;
        let opening = new.into_iter().map(|(call_id, (address, traceparent))| {
            let checkpoint = checkpoints.iter().find(|checkpoint| checkpoint.call_id == call_id);
            let desk = &self.means.desk;
            async move { (call_id, desk.open(&address, traceparent, checkpoint).await) }
        });
        for (call_id, opened) in join_all(opening).await {
            match opened? {
                Some(call) => drop(self.calls.insert(call_id, call)),
                None => self.gone.add(call_id),
            }
        }
        self.open_miners().await
    }

    /// Loads what was learned of the sources that are read and not known yet.
    async fn open_miners(&mut self) -> Result<(), PartitionError> {
        let sources: BTreeMap<CallId, &Source> = (self.calls.values())
            .map(|call| &call.source)
            .filter(|source| !self.miners.has(source))
            .map(|source| (source.id(self.number), source))
            .collect();
        let ids: Vec<CallId> = sources.keys().copied().collect();
        let stored = self.means.desk.checkpoints(&ids).await?;
        for (id, source) in sources {
            self.miners.open(source, stored.iter().find(|stored| stored.call_id == id));
        }
        Ok(())
    }

    /// Reads one message into its call.
    async fn read(&mut self, delivery: &Delivery) -> Result<Option<(CallId, Read)>, PartitionError> {
        let parsed = signal::address(delivery).and_then(|address| Ok((address, signal::frame(delivery)?)));
        let (address, frame) = match parsed {
            Ok(parsed) => parsed,
            Err(NotAFrame::Log) => {
                self.logs.read(delivery).await?;
                return Ok(None);
            }
            Err(error) => {
                meter::passed_over("malformed");
                tracing::warn!(subject = %delivery.subject, %error, "a message among the signals is no frame");
                return Ok(None);
            }
        };
        let call_id = address.call_id;
        let Some(call) = self.calls.get_mut(&call_id) else {
            meter::passed_over("call_gone");
            return Ok(None);
        };
        if frame.offset > call.watch.next_offset() {
            // Either output is missing, or another observer has read on in the meantime and its checkpoint says so.
            let checkpoints = self.means.desk.checkpoints(&[call_id]).await?;
            if let Some(newer) = checkpoints.first().filter(|newer| newer.stream_seq > call.stream_seq)
                && let Some(opened) = self.means.desk.open(&address, None, Some(newer)).await?
            {
                *call = opened;
            }
        }
        // Only the end can leave the rules in doubt.
        let before = (frame.exit.is_some() && call.may_be_asked_about()).then(|| stored(call, self.number));
        call.stream_seq = call.stream_seq.max(delivery.stream_seq);
        call.is_dirty = true;
        let lines_before = call.watch.counts().lines;
        if self.was_deaf {
            // What is missing between this and what was read before may have been said to nobody.
            call.watch.hears_from(Timestamp::now());
        }
        let reports = call.watch.frame(&call.rules, self.miners.of(&call.source), &frame);
        if reports.iter().any(|report| call.is_asked_about(report)) {
            self.asking.hold(call_id, delivery.stream_seq, before.flatten());
        }
        Ok(Some((call_id, Read { reports, lines_before })))
    }

    /// Tells the reports, each call's in order. One that somebody is to be asked about is told later.
    async fn tell(&mut self, reports: BTreeMap<CallId, Vec<Report>>) {
        let told: Vec<(CallId, After)> = {
            let (calls, teller) = (&self.calls, &self.means.teller);
            let telling = reports.into_iter().filter_map(|(call_id, reports)| {
                let call = calls.get(&call_id)?;
                Some(async move {
                    for report in reports {
                        if call.is_asked_about(&report) {
                            return (call_id, After::Asks(Box::new(report)));
                        }
                        if teller.tell(call, report.guarded(call.gate.as_ref())).await == Told::CallGone {
                            return (call_id, After::Over);
                        }
                    }
                    (call_id, if call.watch.has_ended() { After::Over } else { After::Open })
                })
            });
            join_all(telling).await
        };
        for (call_id, after) in told {
            match after {
                After::Open => {}
                After::Over => self.close(call_id),
                After::Asks(report) => {
                    if let Some(call) = self.calls.remove(&call_id) {
                        self.gone.add(call_id);
                        self.asking.begin(&self.means.adviser, &self.means.teller, call, *report);
                    }
                }
            }
        }
    }

    /// There is nothing more to say of a call.
    fn close(&mut self, call_id: CallId) {
        self.calls.remove(&call_id);
        self.gone.add(call_id);
        self.asking.release(call_id);
        self.ended.push(call_id);
    }

    async fn tick(&mut self) -> Result<(), PartitionError> {
        // Whoever was held up for so long knows nothing of what came meanwhile.
        self.was_deaf |= self.ticked_at.elapsed() >= QUIET;
        self.ticked_at = Instant::now();
        let is_caught_up = self.is_caught_up();
        self.look_for_losses(is_caught_up).await?;
        if is_caught_up && std::mem::take(&mut self.was_deaf) {
            // Who was quiet till now may have been talking to nobody. To be behind is another thing: what was said meanwhile comes.
            let now = Timestamp::now();
            self.logs.hears_from(now);
            self.calls.values_mut().for_each(|call| call.watch.hears_from(now));
        }
        self.logs.tick(is_caught_up).await?;
        if is_caught_up {
            let now = Timestamp::now();
            let mut reports = BTreeMap::new();
            for (call_id, call) in &mut self.calls {
                let due = call.watch.due(&call.rules, now);
                if !due.is_empty() {
                    call.is_dirty = true;
                    reports.insert(*call_id, due);
                }
            }
            self.tell(reports).await;
        }
        if self.saved_at.elapsed() >= self.means.checkpoint_every {
            self.checkpoint().await?;
        }
        Ok(())
    }

    /// Notes what the stream has dropped unread. Whoever keeps up loses nothing.
    async fn look_for_losses(&mut self, is_caught_up: bool) -> Result<(), PartitionError> {
        self.losses.read(self.read);
        if self.looked_at.elapsed() < LOSSES_EVERY {
            return Ok(());
        }
        self.looked_at = Instant::now();
        if let Some(gap) = self.losses.look(&self.means.bus, is_caught_up).await? {
            self.was_deaf = true;
            self.means.logs.herald.gap(&gap).await;
        }
        Ok(())
    }

    /// Whether nothing more has been said than was read: only then is silence silence.
    fn is_caught_up(&mut self) -> bool {
        if self.means.bus.state() != BusState::Connected {
            self.was_deaf = true;
            self.heard_at = Instant::now();
            self.pending = None;
            return false;
        }
        let quiet = self.heard_at.elapsed();
        match self.pending {
            Some(0) => true,
            Some(_) => quiet >= QUIET,
            None => quiet >= FIRST,
        }
    }

    /// Stores what changed, and only then acknowledges.
    async fn checkpoint(&mut self) -> Result<(), PartitionError> {
        self.saved_at = Instant::now();
        meter::calls(self.number, self.calls.len());
        let changed = self.calls.values().filter(|call| call.is_dirty);
        let mut checkpoints: Vec<_> = changed.filter_map(|call| stored(call, self.number)).collect();
        checkpoints.extend(self.asking.take_unstored());
        checkpoints.extend(self.miners.take_unstored());
        self.means.engine.checkpoints().save(checkpoints).await?;
        self.calls.values_mut().for_each(|call| call.is_dirty = false);
        if !self.ended.is_empty() {
            self.means.engine.checkpoints().remove(&self.ended).await?;
            self.ended.clear();
        }
        let through = self.asking.through(self.logs.checkpoint(self.read).await?);
        if through > self.acknowledged {
            self.pull.ack_through(through).await?;
            self.acknowledged = through;
        }
        Ok(())
    }
}

/// A call as it is stored.
fn stored(call: &Tracked, partition: u8) -> Option<ObserverCheckpoint> {
    call.checkpoint(partition)
        .inspect_err(|error| tracing::error!(call = %call.address.call_id, %error, "a call's state can't be written"))
        .ok()
}

/// What is left to do for a call once its reports are told.
enum After {
    /// It goes on.
    Open,
    /// Nothing: it has ended.
    Over,
    /// Its end is told once somebody was asked.
    Asks(Box<Report>),
}

/// What reading a message led to.
struct Read {
    reports: Vec<Report>,
    lines_before: u64,
}
