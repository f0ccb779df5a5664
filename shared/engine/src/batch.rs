//! Gathering commands, deciding them, committing them, in batches as large as the load makes them.
//!
//! A command alone is committed at once. Where commands come side by side, a committer rests after each commit for about as
//! long as that took: most of a commit's price is by the batch (statements, wake-ups, a sync of the disk), and what gathers
//! meanwhile shares it. It rests no longer than until so many wait that more would not make a difference.
//!
//! A decision may be made on an old snapshot: a commit then finds that `runs.seq` has moved on and is tried again on the log.
//! A refusal, or "nothing to do", changes nothing that could be compared, so it is final only when the snapshot was seen to
//! be current, and the delivery not to have been handled before.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use kernel::{Cause, Command, Decision, EventData, Rejection, RunId, RunState, Timestamp, decide};
use sqlx::Row;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::{
    append::{Appended, Fate, Pending, append},
    engine::Committed,
    error::{EngineError, SubmitError, pg},
    load::Loader,
    lookback,
    options::EngineOptions,
    outbox::Publishing,
    pool::{Lent, Pool},
};

/// Races that a command may lose before its sender is told to come back later.
const MAX_RACES: u32 = 16;
/// How often an idle committer clears the outbox of what is safely published.
const TIDY: Duration = Duration::from_secs(1);
/// The longest rest between two commits.
const MAX_REST: Duration = Duration::from_millis(10);
/// Commands that end a rest: what a commit costs by the batch is little by then, beside what it costs by the command.
const ENOUGH: usize = 64;
/// Waits that are registered in one transaction: it holds the locks of all their keys, and events on these wait for it.
const LOOKING_BACK: usize = 32;

type Reply = oneshot::Sender<Result<Committed, SubmitError>>;

/// A command in the queue.
pub(crate) struct Job {
    run_id: RunId,
    command: Command,
    key: String,
    cause: Cause,
    /// The run as its sender has just seen it.
    seen: Option<Arc<RunState>>,
    reply: Reply,
    races: u32,
    queued: Instant,
}

impl Job {
    pub(crate) fn new(run_id: RunId, command: Command, key: String, cause: Cause, reply: Reply) -> Self {
        Self { run_id, command, key, cause, seen: None, reply, races: 0, queued: Instant::now() }
    }

    /// To be decided on `seen`, if that is still how the run stands.
    pub(crate) fn seeing(self, seen: Arc<RunState>) -> Self {
        Self { seen: Some(seen), ..self }
    }

    pub(crate) const fn run_id(&self) -> RunId {
        self.run_id
    }

    pub(crate) const fn command(&self) -> &Command {
        &self.command
    }

    fn creates(&self) -> bool {
        matches!(self.command, Command::Create(_) | Command::Fork(_))
    }

    fn answer(self, answer: Result<Committed, SubmitError>) {
        let outcome = match &answer {
            Ok(committed) if committed.duplicate => "duplicate",
            Ok(_) => "committed",
            Err(SubmitError::Rejected(_)) => "rejected",
            Err(SubmitError::Engine(_)) => "failed",
        };
        metrics::histogram!("engine_submit_seconds", "command" => self.command.name(), "outcome" => outcome)
            .record(self.queued.elapsed().as_secs_f64());
        // Whoever asked may have stopped waiting; the log has the answer.
        let _ = self.reply.send(answer);
    }
}

/// A task that commits what comes in.
pub(crate) struct Committer {
    options: EngineOptions,
    loader: Loader,
    publishing: Publishing,
    /// Commands that could not be in the current batch: their run was in it already, or they lost a race.
    later: VecDeque<Job>,
    /// Kept between commits.
    connection: Option<Lent>,
}

impl Committer {
    pub(crate) fn new(options: EngineOptions, loader: Loader, publishing: Publishing) -> Self {
        Self { options, loader, publishing, later: VecDeque::new(), connection: None }
    }

    /// Commits until the queue is closed and empty.
    pub(crate) async fn run(mut self, mut queue: mpsc::Receiver<Job>) {
        let mut rest_until = None;
        loop {
            if self.later.is_empty() {
                tokio::select! {
                    job = queue.recv() => match job {
                        Some(job) => self.later.push_back(job),
                        None => break,
                    },
                    () = tokio::time::sleep(TIDY), if !self.publishing.is_idle() => {
                        self.tidy().await;
                        continue;
                    }
                }
            }
            self.gather(&mut queue, rest_until.take()).await;
            let batch = self.next_batch();
            let (size, begun) = (batch.len(), Instant::now());
            metrics::histogram!("engine_batch_commands").record(size as f64);
            self.process(batch).await;
            rest_until = (size > 1).then(|| tokio::time::Instant::now() + begun.elapsed().min(MAX_REST));
        }
    }

    /// Takes what queues up until the rest is over or there is enough, and what has queued up by then.
    async fn gather(&mut self, queue: &mut mpsc::Receiver<Job>, rest_until: Option<tokio::time::Instant>) {
        while let Some(until) = rest_until.filter(|_| self.later.len() < ENOUGH) {
            // At the shutdown nothing more comes: what is here goes at once.
            let Ok(Some(job)) = tokio::time::timeout_at(until, queue.recv()).await else { break };
            self.later.push_back(job);
        }
        while self.later.len() < self.options.batch {
            let Ok(job) = queue.try_recv() else { break };
            self.later.push_back(job);
        }
    }

    /// At most one command a run, in order of arrival.
    fn next_batch(&mut self) -> Vec<Job> {
        let mut runs = HashSet::new();
        let mut batch = Vec::new();
        let mut rest = VecDeque::new();
        for job in self.later.drain(..) {
            if batch.len() < self.options.batch && runs.insert(job.run_id) {
                batch.push(job);
            } else {
                rest.push_back(job);
            }
        }
        self.later = rest;
        batch
    }

    async fn process(&mut self, batch: Vec<Job>) {
        let unseen = |job: &&Job| !job.creates() && job.seen.is_none();
        let unseen: Vec<RunId> = batch.iter().filter(unseen).map(|job| job.run_id).collect();
        let mut hints = if unseen.is_empty() { HashMap::new() } else { self.loader.hints(&unseen).await };
        let now = Timestamp::now();
        let mut ready = Vec::new();
        let mut unsure = Vec::new();
        for mut job in batch {
            let hint = job.seen.take().or_else(|| hints.remove(&job.run_id));
            // What lost a race lost it to a newer log than the snapshot.
            let usable = job.races == 0 && (hint.is_some() || job.creates());
            match usable.then(|| decide(job.run_id, hint.as_deref(), &job.command, now)) {
                Some(Ok(decision)) if !decision.events.is_empty() => ready.extend(pending(job, hint, decision)),
                _ => unsure.push((job, hint)),
            }
        }
        if !unsure.is_empty() {
            ready.extend(self.make_sure(unsure, now).await);
        }
        // Rows are locked in the order of their ids by every committer, so that none waits for another in a circle.
        ready.sort_unstable_by_key(|(_, pending)| pending.run_id);
        let (mut looking_back, plain): (Vec<_>, Vec<_>) =
            ready.into_iter().partition(|(_, pending)| registers_external(&pending.events));
        if !plain.is_empty() {
            self.commit(plain).await;
        }
        while !looking_back.is_empty() {
            let rest = looking_back.split_off(looking_back.len().min(LOOKING_BACK));
            self.commit_looking_back(looking_back, now).await;
            looking_back = rest;
        }
    }

    /// Decides on the log itself. What is refused or empty here is final: the inbox is asked after the run was loaded, so
    /// that a delivery which another process commits meanwhile is found in one or the other.
    async fn make_sure(&mut self, unsure: Vec<(Job, Option<Arc<RunState>>)>, now: Timestamp) -> Vec<(Job, Pending)> {
        let mut loaded = Vec::with_capacity(unsure.len());
        for (job, hint) in unsure {
            match self.loader.catch_up(job.run_id, hint).await {
                Ok(state) => loaded.push((job, state)),
                Err(error) => job.answer(Err(error.into())),
            }
        }
        let handled = match handled_before(&self.loader.pool, &loaded).await {
            Ok(handled) => handled,
            Err(error) => {
                fail_all(loaded.into_iter().map(|(job, _)| job), error);
                return Vec::new();
            }
        };
        let mut ready = Vec::new();
        for (job, state) in loaded {
            if handled.contains(&job.run_id) {
                self.answer_duplicate(job).await;
                continue;
            }
            match decide(job.run_id, state.as_deref(), &job.command, now) {
                Ok(decision) if decision.events.is_empty() => {
                    let state = Arc::new(decision.state);
                    job.answer(Ok(Committed { events: Vec::new(), state, duplicate: false }));
                }
                Ok(decision) => ready.extend(pending(job, state, decision)),
                Err(rejection) => job.answer(Err(rejection.into())),
            }
        }
        ready
    }

    async fn commit(&mut self, batch: Vec<(Job, Pending)>) {
        let (jobs, pendings): (Vec<Job>, Vec<Pending>) = batch.into_iter().unzip();
        fail::fail_point!("engine.before_commit");
        let published = self.publishing.done();
        match self.append(&pendings, &published).await {
            Ok(appended) => self.reply(jobs, pendings, appended).await,
            Err(error) if error.is_transient() || jobs.len() == 1 => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    commands = jobs.len(),
                    "a batch was not committed"
                );
                fail_all(jobs, error);
            }
            Err(error) => {
                // One command that Postgres cannot take must not take the others along: halve until it stands alone.
                tracing::warn!(error = &error as &dyn std::error::Error, commands = jobs.len(), "bisecting a batch");
                let mut left: Vec<_> = jobs.into_iter().zip(pendings).collect();
                let right = left.split_off(left.len() / 2);
                Box::pin(self.commit(left)).await;
                Box::pin(self.commit(right)).await;
            }
        }
    }

    /// Appends over the kept connection. One that failed is given up; whether its last statement counted, the inbox knows.
    async fn append(&mut self, batch: &[Pending], published: &[i64]) -> Result<Appended, EngineError> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.loader.pool.acquire().await.map_err(pg("acquiring a connection"))?,
        };
        let appended = append(&mut connection, batch, published).await;
        if appended.is_ok() {
            self.connection = Some(connection);
        }
        appended
    }

    /// Commits registrations of waits for outside events. Both sides, the wait and the event, take the same lock before
    /// they look for each other, so that whoever comes second sees the first.
    async fn commit_looking_back(&mut self, batch: Vec<(Job, Pending)>, now: Timestamp) {
        let (jobs, mut pendings): (Vec<Job>, Vec<Pending>) = batch.into_iter().unzip();
        let lookback = self.options.lookback;
        let result = async {
            let mut transaction = self.loader.pool.begin().await.map_err(pg("beginning a transaction"))?;
            lookback::meet_earlier(&mut transaction, &mut pendings, lookback).await?;
            let appended = append(&mut transaction, &pendings, &[]).await?;
            transaction.commit().await.map_err(pg("committing waits"))?;
            Ok::<_, EngineError>(appended)
        };
        match result.await {
            Ok(appended) => self.reply(jobs, pendings, appended).await,
            Err(error) if error.is_transient() || jobs.len() == 1 => fail_all(jobs, error),
            Err(error) => {
                // What was found by looking back went with the transaction: each is decided anew, and stands alone.
                tracing::warn!(error = &error as &dyn std::error::Error, commands = jobs.len(), "splitting a batch");
                for job in jobs {
                    for alone in self.make_sure(vec![(job, None)], now).await {
                        Box::pin(self.commit_looking_back(vec![alone], now)).await;
                    }
                }
            }
        }
    }

    async fn reply(&mut self, jobs: Vec<Job>, mut pendings: Vec<Pending>, appended: Appended) {
        fail::fail_point!("engine.after_commit");
        let fate = |pending: &Pending| appended.fates.get(&pending.run_id).copied().unwrap_or(Fate::Conflict);
        let mut committed: Vec<_> = pendings.iter_mut().filter(|each| fate(each) == Fate::Committed).collect();
        let events = committed.iter().map(|pending| pending.events.len() as u64).sum();
        metrics::counter!("engine_events_total").increment(events);
        if !committed.is_empty() {
            self.publishing.hand_over(&mut committed, appended.outbox).await;
        }
        for (job, pending) in jobs.into_iter().zip(pendings) {
            match fate(&pending) {
                Fate::Committed => {
                    let Pending { events, after, .. } = pending;
                    crate::economics::committed(&events);
                    job.answer(Ok(Committed { events, state: after, duplicate: false }));
                }
                Fate::Duplicate => self.answer_duplicate(job).await,
                Fate::Conflict => self.race_again(job),
                Fate::Frozen => job.answer(Err(Rejection::Frozen.into())),
            }
        }
    }

    async fn answer_duplicate(&self, job: Job) {
        match self.loader.current(job.run_id).await {
            Ok(Some(state)) => job.answer(Ok(Committed { events: Vec::new(), state, duplicate: true })),
            Ok(None) => job.answer(Err(Rejection::NoSuchRun.into())),
            Err(error) => job.answer(Err(error.into())),
        }
    }

    fn race_again(&mut self, mut job: Job) {
        metrics::counter!("engine_conflicts_total").increment(1);
        job.races += 1;
        if job.races > MAX_RACES {
            let races = job.races;
            job.answer(Err(EngineError::Contended(races).into()));
        } else {
            self.later.push_front(job);
        }
    }

    async fn tidy(&mut self) {
        let done = self.publishing.done();
        if done.is_empty() {
            return;
        }
        if let Err(error) =
            sqlx::query("delete from outbox where id = any ($1)").bind(&done).execute(&self.loader.pool).await
        {
            tracing::debug!(error = &error as &dyn std::error::Error, "the outbox will be swept instead");
        }
    }
}

/// The decision on its way into the log; none if it can't get there, and its sender knows.
fn pending(job: Job, before: Option<Arc<RunState>>, decision: Decision) -> Option<(Job, Pending)> {
    match Pending::new(job.run_id, job.key.clone(), job.cause.clone(), before, decision) {
        Ok(pending) => Some((job, pending)),
        Err(error) => {
            job.answer(Err(error.into()));
            None
        }
    }
}

/// Whether a wait for outside events is among the events.
fn registers_external(events: &[kernel::Event]) -> bool {
    events.iter().any(|event| match &event.data {
        EventData::WaitRegistered(registered) => !lookback::patterns(&registered.wait).is_empty(),
        _ => false,
    })
}

/// The runs of those jobs whose delivery is in the inbox.
async fn handled_before(pool: &Pool, jobs: &[(Job, Option<Arc<RunState>>)]) -> Result<HashSet<RunId>, EngineError> {
    let runs: Vec<Uuid> = jobs.iter().map(|(job, _)| job.run_id.0).collect();
    let keys: Vec<&str> = jobs.iter().map(|(job, _)| job.key.as_str()).collect();
    sqlx::query(
        // One look by index for each, whatever the inbox holds: a plain join may be planned to read all of it.
        "select j.run from unnest($1::uuid[], $2::text[]) as j (run, key)
         cross join lateral (select 1 from inbox i where i.run_id = j.run and i.key = j.key limit 1) as seen",
    )
    .bind(runs)
    .bind(keys)
    .fetch_all(pool)
    .await
    .map_err(pg("reading the inbox"))?
    .into_iter()
    .map(|row| row.try_get(0).map(RunId).map_err(pg("reading the inbox")))
    .collect()
}

/// Tells all senders of a batch the same: the first gets the error itself, the others its words.
fn fail_all(jobs: impl IntoIterator<Item = Job>, error: EngineError) {
    let transient = error.is_transient();
    let words = error.to_string();
    let mut error = Some(error);
    for job in jobs {
        let error = error.take().unwrap_or_else(|| EngineError::Batch { transient, words: words.clone() });
        job.answer(Err(error.into()));
    }
}
