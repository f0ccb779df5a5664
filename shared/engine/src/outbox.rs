//! How events leave: published behind the reply, and again by a sweeper if that did not happen.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use bus::{Bus, Outgoing, Publisher, header, subject};
use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use kernel::{
    Cause, Event, RunId, RunState, TenantId,
    call::{Call, CallStatus},
};
use sqlx::Row;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::{
    append::Pending,
    error::{EngineError, pg},
    gate::{HELD_AT_MOST, PublishGate},
    load::Loader,
    options::EngineOptions,
    pool::Pool,
};

/// Batches that may wait to be published; more make the committer wait.
const QUEUE: usize = 64;
/// Batches that may be held back; more are published all the same.
const HELD: usize = 256;

/// An event as a message: a CloudEvent in binary mode. `data` is its encoded content.
pub(crate) fn message(run: RunId, tenant: &TenantId, event: &Event, cause: &Cause, data: String) -> Outgoing {
    let event_type = event.data.type_name();
    outgoing(run, tenant.as_str(), event.seq, event_type, event.data.version(), event.at, cause, data)
        .msg_id(format!("{run}-{}", event.seq))
}

#[expect(clippy::too_many_arguments, reason = "the attributes of one CloudEvent, given once here and once from a row")]
fn outgoing(
    run: RunId,
    tenant: &str,
    seq: u64,
    event_type: &str,
    version: u16,
    at: kernel::Timestamp,
    cause: &Cause,
    data: String,
) -> Outgoing {
    let message = Outgoing::new(subject::evt(event_type, tenant, run), data)
        .header("ce-specversion", "1.0")
        .header("ce-id", format!("{run}-{seq}"))
        .header("ce-source", format!("/escapement/{tenant}"))
        .header("ce-type", event_type)
        .header("ce-subject", run)
        .header("ce-time", at)
        .header("ce-dataschema", format!("/schemas/events/{event_type}.v{version}.json"))
        .header("Content-Type", "application/json");
    match &cause.traceparent {
        // By its name in CloudEvents: at one that is called `traceparent` the server looks for whom to send traces of its own.
        Some(traceparent) if bus::is_traceparent(traceparent) => message.header(header::CE_TRACEPARENT, traceparent),
        _ => message,
    }
}

/// What a commit hands over to be published.
struct Batch {
    states: Vec<Arc<RunState>>,
    /// Those whose whole state is to be kept in Postgres too.
    checkpoints: Vec<Arc<RunState>>,
    messages: Vec<Outgoing>,
    outbox: Option<i64>,
}

/// Publishing behind one committer, in the order of its commits.
pub(crate) struct Publishing {
    queue: mpsc::Sender<Batch>,
    settled: mpsc::UnboundedReceiver<Settled>,
    /// Rows that were handed over and of which nothing was heard yet.
    under_way: usize,
    waiting: VecDeque<(i64, Instant)>,
    keep: Duration,
    checkpoint_every: u64,
}

/// An outbox row and when NATS had acknowledged its events; none if it did not.
type Settled = (i64, Option<Instant>);

impl Publishing {
    pub(crate) fn start(bus: &Bus, loader: Loader, options: &EngineOptions, tasks: &TaskTracker) -> Self {
        let (queue, batches) = mpsc::channel(QUEUE);
        let (report, settled) = mpsc::unbounded_channel();
        let (gate, within) = (options.gate.clone(), options.snapshots_within);
        tasks.spawn(publish(bus.publisher(), loader, batches, report, gate, within));
        let (keep, checkpoint_every) = (options.outbox_keep, options.checkpoint_every.max(1));
        Self { queue, settled, under_way: 0, waiting: VecDeque::new(), keep, checkpoint_every }
    }

    /// Takes what was committed, and the encoded events out of it.
    pub(crate) async fn hand_over(&mut self, committed: &mut [&mut Pending], outbox: Option<i64>) {
        let states = Vec::with_capacity(committed.len());
        let mut batch = Batch { states, checkpoints: Vec::new(), messages: Vec::new(), outbox };
        for pending in committed {
            batch.states.push(Arc::clone(&pending.after));
            let before = pending.before.as_ref().map_or(0, |before| before.seq);
            if before / self.checkpoint_every != pending.after.seq / self.checkpoint_every {
                batch.checkpoints.push(Arc::clone(&pending.after));
            }
            let encoded = std::mem::take(&mut pending.encoded);
            let event = |(event, data)| message(pending.run_id, &pending.after.tenant, event, &pending.cause, data);
            batch.messages.extend(pending.events.iter().zip(encoded).map(event));
        }
        match self.queue.send(batch).await {
            Ok(()) => self.under_way += usize::from(outbox.is_some()),
            Err(_) => tracing::error!("the publisher is gone: the outbox will be swept"),
        }
    }

    /// Outbox rows that are no longer needed: acknowledged so long ago that NATS has synced its disk.
    pub(crate) fn done(&mut self) -> Vec<i64> {
        while let Ok((row, acknowledged)) = self.settled.try_recv() {
            self.under_way -= 1;
            self.waiting.extend(acknowledged.map(|at| (row, at)));
        }
        let mut done = Vec::new();
        while let Some((row, _)) = self.waiting.front().filter(|(_, at)| at.elapsed() >= self.keep) {
            done.push(*row);
            self.waiting.pop_front();
        }
        done
    }

    /// Whether no row waits to be deleted, or will.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.under_way == 0
    }
}

async fn publish(
    publisher: Publisher,
    loader: Loader,
    mut batches: mpsc::Receiver<Batch>,
    report: mpsc::UnboundedSender<Settled>,
    gate: PublishGate,
    snapshots_within: Duration,
) {
    let sending = |batch| send(publisher.clone(), loader.clone(), batch, snapshots_within).boxed();
    let mut under_way = FuturesUnordered::new();
    // In the order of their commits, which is kept.
    let mut held: VecDeque<(tokio::time::Instant, Batch)> = VecDeque::new();
    loop {
        let may_go = held
            .front()
            .is_some_and(|(until, _)| !gate.is_held() || held.len() >= HELD || *until <= tokio::time::Instant::now());
        if may_go && under_way.len() < QUEUE {
            let Some((_, batch)) = held.pop_front() else { continue };
            under_way.push(sending(batch));
            continue;
        }
        let until = held.front().map(|(until, _)| *until).filter(|_| !may_go);
        tokio::select! {
            batch = batches.recv(), if held.len() < HELD => {
                let Some(batch) = batch else { break };
                held.push_back((tokio::time::Instant::now() + HELD_AT_MOST, batch));
            }
            () = gate.released(), if until.is_some() => {}
            () = tokio::time::sleep_until(until.unwrap_or_else(tokio::time::Instant::now)), if until.is_some() => {}
            Some((results, outbox)) = under_way.next() => settle(&results, outbox, &report),
            else => {}
        }
    }
    // At the shutdown nothing is held back any more.
    for (_, batch) in held {
        under_way.push(sending(batch));
    }
    while let Some((results, outbox)) = under_way.next().await {
        settle(&results, outbox, &report);
    }
}

async fn send(
    publisher: Publisher,
    loader: Loader,
    batch: Batch,
    snapshots_within: Duration,
) -> (Vec<Result<bus::Ack, bus::BusError>>, Option<i64>) {
    let Batch { states, checkpoints, messages, outbox } = batch;
    // The snapshots are on their way first, so that whoever hears of an event finds the state that goes with it: a stale one
    // costs its reader two looks into Postgres. Waiting for them to arrive would cost everybody more than that costs the few.
    let keeping = keep(&loader, &states, snapshots_within);
    let checkpointing = checkpoint(&loader, &checkpoints);
    let ((), published, ()) = futures::join!(keeping, publisher.publish_all(messages), checkpointing);
    (published, outbox)
}

fn settle(results: &[Result<bus::Ack, bus::BusError>], outbox: Option<i64>, report: &mpsc::UnboundedSender<Settled>) {
    let failure = results.iter().find_map(|result| result.as_ref().err());
    if let Some(error) = failure {
        metrics::counter!("engine_publish_failures_total").increment(1);
        tracing::warn!(error = error as &dyn std::error::Error, "events not published: the outbox keeps them");
    }
    if let Some(row) = outbox {
        // The committer may be gone at shutdown; the sweeper then deletes the row.
        let _ = report.send((row, failure.is_none().then(Instant::now)));
    }
}

/// Keeps states where loads find them. A store that does not answer holds up nothing for long.
async fn keep(loader: &Loader, states: &[Arc<RunState>], within: Duration) {
    match tokio::time::timeout(within, loader.snapshots.put(states)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "snapshots not written: runs load from the log");
        }
        Err(_) => tracing::warn!("snapshots not written in time: runs load from the log"),
    }
}

/// Keeps the whole state of long runs in Postgres now and then, so that no load folds a long log.
async fn checkpoint(loader: &Loader, states: &[Arc<RunState>]) {
    for state in states {
        let Ok(json) = serde_json::to_string(&**state) else { continue };
        let stored = sqlx::query(
            "insert into checkpoints (run_id, seq, state_version, state) values ($1, $2, $3, $4::json)
             on conflict (run_id, state_version) do update set seq = excluded.seq, state = excluded.state
             where checkpoints.seq < excluded.seq",
        )
        .bind(state.run_id.0)
        .bind(i64::try_from(state.seq).unwrap_or(i64::MAX))
        .bind(i32::try_from(kernel::STATE_VERSION).unwrap_or(i32::MAX))
        .bind(json)
        .execute(&loader.pool)
        .await;
        if let Err(error) = stored {
            tracing::warn!(error = &error as &dyn std::error::Error, run_id = %state.run_id, "checkpoint not written");
        }
    }
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Commits whose events were published again.
    pub commits: usize,
    /// Events published again.
    pub events: usize,
    /// Rows deleted, since their events are safe.
    pub deleted: u64,
}

/// The outbox: commits whose events are not known to be published for good.
#[derive(Clone)]
pub struct Outbox {
    pool: Pool,
    loader: Loader,
    publisher: Publisher,
    keep: Duration,
}

impl Outbox {
    pub(crate) fn new(pool: Pool, loader: Loader, bus: &Bus, keep: Duration) -> Self {
        Self { pool, loader, publisher: bus.publisher(), keep }
    }

    /// Publishes what has been waiting for longer than `older_than`, and deletes what was published long enough ago.
    ///
    /// # Errors
    /// When Postgres or NATS does not answer; what was not published stays.
    pub async fn sweep(&self, older_than: Duration, limit: i64) -> Result<Swept, EngineError> {
        let deleted = sqlx::query("delete from outbox where swept_at < now() - make_interval(secs => $1)")
            .bind(self.keep.as_secs_f64())
            .execute(&self.pool)
            .await
            .map_err(pg("cleaning the outbox"))?
            .rows_affected();
        let rows = sqlx::query(
            "select id, runs, from_seq, to_seq from outbox
             where swept_at is null and at < now() - make_interval(secs => $1) order by id limit $2",
        )
        .bind(older_than.as_secs_f64())
        .bind(limit)
        .fetch_all(&self.pool)
        .await
        .map_err(pg("reading the outbox"))?;
        let mut swept = Swept { deleted, ..Swept::default() };
        for row in rows {
            type Ranges = (i64, Vec<Uuid>, Vec<i64>, Vec<i64>);
            let read = || -> Result<Ranges, sqlx::Error> {
                Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?))
            };
            let (id, runs, from, to) = read().map_err(pg("reading the outbox"))?;
            swept.events += self.publish_ranges(&runs, &from, &to).await?;
            swept.commits += 1;
            sqlx::query("update outbox set swept_at = now() where id = $1")
                .bind(id)
                .execute(&self.pool)
                .await
                .map_err(pg("marking the outbox"))?;
        }
        Ok(swept)
    }

    async fn publish_ranges(&self, runs: &[Uuid], from: &[i64], to: &[i64]) -> Result<usize, EngineError> {
        let messages = sqlx::query(
            "select e.run_id, e.seq, e.tenant, e.type, e.version, (extract(epoch from e.at) * 1000000)::bigint,
                    e.cause::text, e.data::text
             from unnest($1::uuid[], $2::bigint[], $3::bigint[]) as r (run, lo, hi)
             join events e on e.run_id = r.run and e.seq between r.lo and r.hi
             order by e.run_id, e.seq",
        )
        .bind(runs)
        .bind(from)
        .bind(to)
        .fetch_all(&self.pool)
        .await
        .map_err(pg("reading events to publish"))?
        .iter()
        .map(|row| stored_message(row).map(|(message, id)| message.msg_id(id)))
        .collect::<Result<Vec<_>, _>>()?;
        self.publish_all(messages).await
    }

    /// Rings again for what a run waits for somebody to do: its open turn, its undispatched calls, effects to be undone. The messages carry no
    /// identity, so that the server does not take them for repetitions. Returns how many were sent.
    ///
    /// # Errors
    /// When Postgres or NATS does not answer.
    pub async fn ring(&self, run: RunId) -> Result<usize, EngineError> {
        let Some(state) = self.loader.current(run).await? else { return Ok(0) };
        if state.ended {
            return Ok(0);
        }
        let mut wanted: Vec<(&str, Option<Uuid>)> = Vec::new();
        if state.turn.is_some() {
            wanted.push(("run.runnable", None));
        }
        if state.to_compensate().is_some() {
            wanted.push(("run.cancel_requested", None));
        }
        let undispatched =
            |call: &Call| matches!(call.status, CallStatus::Requested | CallStatus::Approved) && call.put_off.is_none();
        let calls = state.calls.values().filter(|call| undispatched(call) || call.is_started());
        wanted.extend(calls.map(|call| ("tool.requested", Some(call.request.call_id.0))));
        self.ring_events(run, wanted).await
    }

    /// Rings for a run whose wait is to be verified. Returns how many messages were sent.
    ///
    /// # Errors
    /// When Postgres or NATS does not answer.
    pub async fn ring_wait(&self, run: RunId) -> Result<usize, EngineError> {
        self.ring_events(run, vec![("wait.registered", None)]).await
    }

    /// Publishes the last event of each type again, without identity.
    async fn ring_events(&self, run: RunId, wanted: Vec<(&str, Option<Uuid>)>) -> Result<usize, EngineError> {
        let mut messages = Vec::new();
        for (event_type, call) in wanted {
            let row = sqlx::query(
                "select run_id, seq, tenant, type, version, (extract(epoch from at) * 1000000)::bigint, cause::text, data::text
                 from events where run_id = $1 and type = $2 and ($3::text is null or data -> 'call' ->> 'call_id' = $3)
                 order by seq desc limit 1",
            )
            .bind(run.0)
            .bind(event_type)
            .bind(call.map(|call| call.to_string()))
            .fetch_optional(&self.pool)
            .await
            .map_err(pg("reading a doorbell"))?;
            if let Some(row) = row {
                messages.push(stored_message(&row)?.0);
            }
        }
        self.publish_all(messages).await
    }

    async fn publish_all(&self, messages: Vec<Outgoing>) -> Result<usize, EngineError> {
        let count = messages.len();
        for result in self.publisher.publish_all(messages).await {
            let bus = |source| EngineError::Bus { operation: "publishing events", source: Box::new(source) };
            result.map_err(bus)?;
        }
        Ok(count)
    }
}

/// A row of `events` as a message, and the identity that it was first published with.
fn stored_message(row: &sqlx::postgres::PgRow) -> Result<(Outgoing, String), EngineError> {
    type Parts = (Uuid, i64, String, String, i16, i64, String, String);
    let read = || -> Result<Parts, sqlx::Error> {
        Ok((
            row.try_get(0)?,
            row.try_get(1)?,
            row.try_get(2)?,
            row.try_get(3)?,
            row.try_get(4)?,
            row.try_get(5)?,
            row.try_get(6)?,
            row.try_get(7)?,
        ))
    };
    let (run, seq, tenant, event_type, version, at, cause, data) = read().map_err(pg("reading events to publish"))?;
    let cause: Cause =
        serde_json::from_str(&cause).map_err(|source| EngineError::Json { what: "a stored cause", source })?;
    let at = crate::load::timestamp(at);
    let (run, seq) = (RunId(run), seq.unsigned_abs());
    Ok((outgoing(run, &tenant, seq, &event_type, version.unsigned_abs(), at, &cause, data), format!("{run}-{seq}")))
}
