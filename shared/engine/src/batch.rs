//! Gathering commands, deciding them, committing them: natural batches, no waiting window.
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
use sqlx::{PgPool, Row};
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
};

/// Races that a command may lose before its sender is told to come back later.
const MAX_RACES: u32 = 16;
/// How often an idle committer clears the outbox of what is safely published.
const TIDY: Duration = Duration::from_secs(1);

type Reply = oneshot::Sender<Result<Committed, SubmitError>>;

/// A command in the queue.
pub(crate) struct Job {
    run_id: RunId,
    command: Command,
    key: String,
    cause: Cause,
    reply: Reply,
    races: u32,
    queued: Instant,
}

impl Job {
    pub(crate) fn new(run_id: RunId, command: Command, key: String, cause: Cause, reply: Reply) -> Self {
        Self { run_id, command, key, cause, reply, races: 0, queued: Instant::now() }
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
}

impl Committer {
    pub(crate) fn new(options: EngineOptions, loader: Loader, publishing: Publishing) -> Self {
        Self { options, loader, publishing, later: VecDeque::new() }
    }

    /// Commits until the queue is closed and empty.
    pub(crate) async fn run(mut self, mut queue: mpsc::Receiver<Job>) {
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
            while self.later.len() < self.options.batch {
                let Ok(job) = queue.try_recv() else { break };
                self.later.push_back(job);
            }
            let batch = self.next_batch();
            metrics::histogram!("engine_batch_commands").record(batch.len() as f64);
            self.process(batch).await;
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
        let known: Vec<RunId> =
            batch.iter().filter(|job| job.command.tenant().is_none()).map(|job| job.run_id).collect();
        let mut hints = if known.is_empty() { HashMap::new() } else { self.loader.hints(&known).await };
        let now = Timestamp::now();
        let mut ready = Vec::new();
        let mut unsure = Vec::new();
        for job in batch {
            let hint = hints.remove(&job.run_id);
            // What lost a race lost it to a newer log than the snapshot.
            let usable = job.races == 0 && (hint.is_some() || job.command.tenant().is_some());
            match usable.then(|| decide(job.run_id, hint.as_ref(), &job.command, now)) {
                Some(Ok(decision)) if !decision.events.is_empty() => ready.push(pending(job, hint, decision)),
                _ => unsure.push((job, hint)),
            }
        }
        if !unsure.is_empty() {
            ready.extend(self.make_sure(unsure, now).await);
        }
        // Rows are locked in the order of their ids by every committer, so that none waits for another in a circle.
        ready.sort_unstable_by_key(|(_, pending)| pending.run_id);
        let (looking_back, plain): (Vec<_>, Vec<_>) =
            ready.into_iter().partition(|(_, pending)| registers_external(&pending.events));
        if !plain.is_empty() {
            self.commit(plain).await;
        }
        for each in looking_back {
            self.commit_looking_back(each).await;
        }
    }

    /// Decides on the log itself. What is refused or empty here is final.
    async fn make_sure(&mut self, unsure: Vec<(Job, Option<RunState>)>, now: Timestamp) -> Vec<(Job, Pending)> {
        let handled = match handled_before(&self.loader.pool, &unsure).await {
            Ok(handled) => handled,
            Err(error) => {
                fail_all(unsure.into_iter().map(|(job, _)| job), error);
                return Vec::new();
            }
        };
        let mut ready = Vec::new();
        for (job, hint) in unsure {
            let state = match self.loader.catch_up(job.run_id, hint).await {
                Ok(state) => state,
                Err(error) => {
                    job.answer(Err(error.into()));
                    continue;
                }
            };
            if let Some(state) = state.as_ref().filter(|_| handled.contains(&job.run_id)) {
                let state = Arc::clone(state);
                job.answer(Ok(Committed { events: Vec::new(), state, duplicate: true }));
                continue;
            }
            match decide(job.run_id, state.as_deref(), &job.command, now) {
                Ok(decision) if decision.events.is_empty() => {
                    let state = Arc::new(decision.state);
                    job.answer(Ok(Committed { events: Vec::new(), state, duplicate: false }));
                }
                Ok(decision) => {
                    let before = state.map(Arc::unwrap_or_clone);
                    ready.push(pending(job, before, decision));
                }
                Err(rejection) => job.answer(Err(rejection.into())),
            }
        }
        ready
    }

    async fn commit(&mut self, batch: Vec<(Job, Pending)>) {
        let (jobs, pendings): (Vec<Job>, Vec<Pending>) = batch.into_iter().unzip();
        fail::fail_point!("engine.before_commit");
        let published = self.publishing.done();
        let appended = match self.loader.pool.acquire().await {
            Ok(mut connection) => append(&mut connection, &pendings, &published).await,
            Err(error) => Err(pg("acquiring a connection")(error)),
        };
        match appended {
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

    /// Commits the registration of a wait for outside events. Both sides, the wait and the event, take the same lock before
    /// they look for each other, so that whoever comes second sees the first.
    async fn commit_looking_back(&mut self, (job, mut pending): (Job, Pending)) {
        let lookback = self.options.lookback;
        let result = async {
            let mut transaction = self.loader.pool.begin().await.map_err(pg("beginning a transaction"))?;
            lookback::meet_earlier(&mut transaction, &mut pending, lookback).await?;
            let appended = append(&mut transaction, std::slice::from_ref(&pending), &[]).await?;
            transaction.commit().await.map_err(pg("committing a wait"))?;
            Ok::<_, EngineError>(appended)
        };
        match result.await {
            Ok(appended) => self.reply(vec![job], vec![pending], appended).await,
            Err(error) => job.answer(Err(error.into())),
        }
    }

    async fn reply(&mut self, jobs: Vec<Job>, pendings: Vec<Pending>, appended: Appended) {
        fail::fail_point!("engine.after_commit");
        let fate = |pending: &Pending| appended.fates.get(&pending.run_id).copied().unwrap_or(Fate::Conflict);
        let committed: Vec<&Pending> = pendings.iter().filter(|each| fate(each) == Fate::Committed).collect();
        metrics::counter!("engine_events_total")
            .increment(committed.iter().map(|pending| pending.events.len() as u64).sum());
        if !committed.is_empty() {
            self.publishing.hand_over(&committed, appended.outbox).await;
        }
        for (job, pending) in jobs.into_iter().zip(pendings) {
            match fate(&pending) {
                Fate::Committed => {
                    let Pending { events, after, .. } = pending;
                    job.answer(Ok(Committed { events, state: after, duplicate: false }));
                }
                Fate::Duplicate => self.answer_duplicate(job).await,
                Fate::Conflict => self.race_again(job),
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

fn pending(job: Job, before: Option<RunState>, decision: Decision) -> (Job, Pending) {
    let pending = Pending {
        run_id: job.run_id,
        key: job.key.clone(),
        cause: job.cause.clone(),
        before,
        after: Arc::new(decision.state),
        events: decision.events,
    };
    (job, pending)
}

/// Whether a wait for outside events is among the events.
fn registers_external(events: &[kernel::Event]) -> bool {
    events.iter().any(|event| match &event.data {
        EventData::WaitRegistered(registered) => !lookback::patterns(&registered.wait).is_empty(),
        _ => false,
    })
}

/// The runs of those jobs whose delivery is in the inbox.
async fn handled_before(pool: &PgPool, jobs: &[(Job, Option<RunState>)]) -> Result<HashSet<RunId>, EngineError> {
    let runs: Vec<Uuid> = jobs.iter().map(|(job, _)| job.run_id.0).collect();
    let keys: Vec<&str> = jobs.iter().map(|(job, _)| job.key.as_str()).collect();
    sqlx::query(
        "select i.run_id from unnest($1::uuid[], $2::text[]) as j (run, key)
         join inbox i on i.run_id = j.run and i.key = j.key",
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
