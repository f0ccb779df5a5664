//! Keeping time: what is due is decided under the lock of its schedule, by whichever scheduler has it, and carried out after
//! that. Who dies in between leaves a firing that is begun again when its claim has run out, under the same names.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kernel::RunId;
use sqlx::{PgConnection, postgres::PgRow};
use uuid::Uuid;

use super::{
    Cadence, Schedule, Schedules, cadence_of, ids,
    plan::{OpenFiring, OpenState, Settled, Subject, consider, settle},
    reading, schedule,
};
use crate::{
    error::{EngineError, pg},
    reads::row::{Cells, instant, micros},
};

/// For how long a firing that was begun is nobody else's.
const CLAIM: Duration = Duration::from_secs(10);
/// When a schedule that can't be used is looked at again.
const BROKEN_AGAIN: Duration = Duration::from_secs(3600);

/// What was decided and is now to be carried out.
#[derive(Debug, Default)]
pub struct Decided {
    /// Firings to begin.
    pub begin: Vec<Begin>,
    /// Runs to cancel, and the name of the schedule that wants it.
    pub cancel: Vec<(RunId, String)>,
    /// Whether there may be more to decide.
    pub more: bool,
}

/// A firing to begin: beginning it twice under these names is beginning it once.
#[derive(Clone, Debug)]
pub struct Begin {
    /// The schedule as it was when that was decided.
    pub schedule: Arc<Schedule>,
    /// The time that it is for.
    pub fire_at: Timestamp,
    /// The run to start, if it is one.
    pub run_id: RunId,
    /// The id of the event to publish, if it is one.
    pub event_id: String,
}

/// What came of a firing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its run was started.
    Started,
    /// Its event was published.
    Published,
    /// It can't be done, and why.
    Failed(String),
}

/// The schedules whose time to look has come at $1, or that a clock which was ahead has looked at too far.
pub(crate) const DUE: &str = reading!(
    "where look_at <= (timestamptz 'epoch' + $1::bigint * interval '1 microsecond')
     or considered_until > (timestamptz 'epoch' + $1::bigint * interval '1 microsecond') + interval '1 minute'
     order by look_at limit $2 for update skip locked"
);

/// A schedule at hand.
struct AtHand {
    schedule: Arc<Schedule>,
    cadence: Option<Cadence>,
    considered_until: Timestamp,
    open: Vec<OpenFiring>,
}

/// What is to be written of all schedules at hand, by position.
#[derive(Default)]
struct Writes {
    begin: (Vec<Uuid>, Vec<i64>, Vec<Uuid>),
    skip: (Vec<Uuid>, Vec<i64>, Vec<String>),
    missed: (Vec<Uuid>, Vec<i64>, Vec<String>),
    schedules: (Vec<Uuid>, Vec<i64>, Vec<Option<i64>>),
}

impl Schedules {
    /// When there is something to decide next; none if there never is.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn next_look(&self) -> Result<Option<Timestamp>, EngineError> {
        let read = || pg("looking for the next schedule");
        let row = sqlx::query(concat!(
            "select ",
            micros!("look_at"),
            " from schedules where look_at is not null order by schedules.look_at limit 1"
        ))
        .fetch_optional(&self.pool)
        .await
        .map_err(read())?;
        row.map(|row| Cells(&row).time("look_at")).transpose().map_err(read())
    }

    /// Decides about the schedules whose time to look has come by `now`, `limit` of them at most. Those that another scheduler
    /// is deciding about, or somebody is changing, are left to them.
    ///
    /// # Errors
    /// When Postgres does not do it; then nothing is decided.
    pub async fn decide(&self, now: Timestamp, limit: u32) -> Result<Decided, EngineError> {
        let mut transaction = self.pool.begin().await.map_err(pg("beginning to decide"))?;
        let mut at_hand = due(&mut transaction, now, limit).await?;
        if at_hand.is_empty() {
            return Ok(Decided::default());
        }
        let mut writes = Writes::default();
        note_times(&mut transaction, &mut at_hand, &mut writes, now).await?;
        let mut decided =
            Decided { more: at_hand.len() >= usize::try_from(limit).unwrap_or(usize::MAX), ..Decided::default() };
        for each in &at_hand {
            let settled = settle(&each.open, each.schedule.paused, each.schedule.spec.overlap(), now);
            each.take(&settled, &mut decided, &mut writes, now);
        }
        writes.write(&mut transaction, now).await?;
        transaction.commit().await.map_err(pg("committing what was decided"))?;
        Ok(decided)
    }

    /// Notes what came of a firing that was begun.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn conclude(&self, begun: &Begin, outcome: &Outcome) -> Result<(), EngineError> {
        let (state, note) = match outcome {
            Outcome::Started => ("started", None),
            Outcome::Published => ("published", None),
            Outcome::Failed(why) => ("failed", Some(why)),
        };
        let has_run = matches!(outcome, Outcome::Started).then_some(begun.run_id.0);
        sqlx::query(concat!(
            "update firings set state = $3, note = $4, run_id = $5, claimed_until = null
             where schedule_id = $1 and state = 'starting' and fire_at = ",
            instant!("$2")
        ))
        .bind(begun.schedule.schedule_id)
        .bind(begun.fire_at.as_microsecond())
        .bind(state)
        .bind(note)
        .bind(has_run)
        .execute(&self.pool)
        .await
        .map_err(pg("noting what came of a firing"))?;
        Ok(())
    }
}

/// Locks the schedules that are due, and reads what is open of them. Runs that have ended are noted on the way.
async fn due(transaction: &mut PgConnection, now: Timestamp, limit: u32) -> Result<Vec<AtHand>, EngineError> {
    let read = || pg("claiming schedules");
    let rows = sqlx::query(DUE)
        .bind(now.as_microsecond())
        .bind(i64::from(limit))
        .fetch_all(&mut *transaction)
        .await
        .map_err(read())?;
    let mut at_hand = Vec::with_capacity(rows.len());
    for row in &rows {
        let (schedule, considered_until) = schedule(row).map_err(read())?;
        let cadence = cadence_of(&schedule.spec).map_err(|error| {
            let (name, tenant) = (&schedule.spec.name, &schedule.tenant);
            tracing::error!(name, %tenant, %error, "a schedule can't be used and does not fire: put it in anew");
        });
        at_hand.push(AtHand {
            schedule: Arc::new(schedule),
            cadence: cadence.ok(),
            considered_until,
            open: Vec::new(),
        });
    }
    let ids: Vec<Uuid> = at_hand.iter().map(|each| each.schedule.schedule_id).collect();
    sqlx::query(
        "update firings f set state = 'ended' where f.schedule_id = any ($1) and f.state = 'started' and not exists
         (select from runs r where r.run_id = f.run_id and r.status not in ('completed', 'failed', 'cancelled'))",
    )
    .bind(&ids)
    .execute(&mut *transaction)
    .await
    .map_err(pg("noting runs that have ended"))?;
    let mut open = open_firings(transaction, &ids).await?;
    for each in &mut at_hand {
        each.open = open.remove(&each.schedule.schedule_id).unwrap_or_default();
    }
    Ok(at_hand)
}

async fn open_firings(
    transaction: &mut PgConnection,
    ids: &[Uuid],
) -> Result<HashMap<Uuid, Vec<OpenFiring>>, EngineError> {
    let read = || pg("reading open firings");
    let rows = sqlx::query(concat!(
        "select schedule_id, kind, at_once, state, run_id, ",
        micros!("fire_at"),
        ", ",
        micros!("due"),
        ", ",
        micros!("claimed_until"),
        "
         from firings where schedule_id = any ($1) and state in ('waiting', 'starting', 'started')
         order by firings.fire_at"
    ))
    .bind(ids)
    .fetch_all(transaction)
    .await
    .map_err(read())?;
    let mut open: HashMap<Uuid, Vec<OpenFiring>> = HashMap::new();
    for row in &rows {
        let (schedule_id, firing) = open_firing(row).map_err(read())?;
        open.entry(schedule_id).or_default().push(firing);
    }
    Ok(open)
}

fn open_firing(row: &PgRow) -> Result<(Uuid, OpenFiring), sqlx::Error> {
    let row = Cells(row);
    let schedule_id = row.get("schedule_id")?;
    let fire_at = row.time("fire_at")?;
    let state = match row.get::<String>("state")?.as_str() {
        "waiting" => OpenState::Waiting,
        "starting" => OpenState::Starting(row.time_if_any("claimed_until")?.unwrap_or(Timestamp::MIN)),
        _ => OpenState::Running(
            row.get::<Option<Uuid>>("run_id")?.map_or_else(|| ids::run_id(schedule_id, fire_at), RunId),
        ),
    };
    let firing =
        OpenFiring { fire_at, due: row.time("due")?, kind: row.word("kind")?, at_once: row.get("at_once")?, state };
    Ok((schedule_id, firing))
}

/// Notes the times that have come, each once, and adds what is new to what is open.
async fn note_times(
    transaction: &mut PgConnection,
    at_hand: &mut [AtHand],
    writes: &mut Writes,
    now: Timestamp,
) -> Result<(), EngineError> {
    let mut new: HashMap<(Uuid, i64), OpenFiring> = HashMap::new();
    for each in at_hand.iter_mut() {
        let Some(cadence) = &each.cadence else { continue };
        let schedule = &each.schedule;
        let subject = Subject {
            schedule_id: schedule.schedule_id,
            spec: &schedule.spec,
            cadence,
            paused: schedule.paused,
            considered_until: each.considered_until,
        };
        let considered = consider(subject, now);
        each.considered_until = considered.until;
        if let Some((last, words)) = considered.missed {
            let (name, tenant) = (&schedule.spec.name, &schedule.tenant);
            tracing::warn!(name, %tenant, %last, "times of a schedule were missed: {words}");
            metrics::counter!("engine_schedule_missed_total").increment(1);
            push(&mut writes.missed, schedule.schedule_id, last, words);
        }
        let firings = considered.new.into_iter();
        new.extend(firings.map(|firing| ((schedule.schedule_id, firing.fire_at.as_microsecond()), firing)));
    }
    let inserted = insert_times(transaction, &new, now).await?;
    for each in at_hand.iter_mut() {
        let id = each.schedule.schedule_id;
        let mine = inserted.iter().filter(|(schedule, _)| *schedule == id).filter_map(|key| new.remove(key));
        each.open.extend(mine);
        each.open.sort_by_key(|firing| firing.fire_at);
    }
    Ok(())
}

/// Those that were not known.
async fn insert_times(
    transaction: &mut PgConnection,
    new: &HashMap<(Uuid, i64), OpenFiring>,
    now: Timestamp,
) -> Result<HashSet<(Uuid, i64)>, EngineError> {
    if new.is_empty() {
        return Ok(HashSet::new());
    }
    let noting = || pg("noting the times of schedules");
    let mut rows: (Vec<Uuid>, Vec<i64>, Vec<i64>, Vec<String>) = Default::default();
    for ((schedule_id, fire_at), firing) in new {
        rows.0.push(*schedule_id);
        rows.1.push(*fire_at);
        rows.2.push(firing.due.as_microsecond());
        rows.3.push(word(firing.kind)?);
    }
    let inserted = sqlx::query(concat!(
        "insert into firings (schedule_id, fire_at, due, kind, state, decided_at)
         select n.id, timestamptz 'epoch' + n.at * interval '1 microsecond',
                timestamptz 'epoch' + n.due * interval '1 microsecond', n.kind, 'waiting', ",
        instant!("$5"),
        " from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[]) as n (id, at, due, kind)
         on conflict do nothing returning schedule_id, ",
        micros!("fire_at")
    ))
    .bind(&rows.0)
    .bind(&rows.1)
    .bind(&rows.2)
    .bind(&rows.3)
    .bind(now.as_microsecond())
    .fetch_all(transaction)
    .await
    .map_err(noting())?;
    let key = |row: &PgRow| Ok((Cells(row).get("schedule_id")?, Cells(row).get("fire_at")?));
    inserted.iter().map(key).collect::<Result<_, sqlx::Error>>().map_err(noting())
}

fn word(kind: super::FiringKind) -> Result<String, EngineError> {
    let json =
        serde_json::to_value(kind).map_err(|source| EngineError::Json { what: "the kind of a firing", source })?;
    Ok(json.as_str().unwrap_or_default().to_owned())
}

fn push<T>(rows: &mut (Vec<Uuid>, Vec<i64>, Vec<T>), schedule_id: Uuid, at: Timestamp, value: T) {
    rows.0.push(schedule_id);
    rows.1.push(at.as_microsecond());
    rows.2.push(value);
}

impl AtHand {
    /// Adds what was settled of this schedule to what is carried out and written.
    fn take(&self, settled: &Settled, decided: &mut Decided, writes: &mut Writes, now: Timestamp) {
        let (schedule, id) = (&self.schedule, self.schedule.schedule_id);
        for fire_at in &settled.begin {
            let run_id = ids::run_id(id, *fire_at);
            push(&mut writes.begin, id, *fire_at, run_id.0);
            let event_id = ids::event_id(id, *fire_at);
            decided.begin.push(Begin { schedule: Arc::clone(schedule), fire_at: *fire_at, run_id, event_id });
        }
        for (fire_at, why) in &settled.skip {
            push(&mut writes.skip, id, *fire_at, why.clone());
        }
        decided.cancel.extend(settled.cancel.iter().map(|run| (*run, schedule.spec.name.clone())));
        let later = |by: Duration| now.checked_add(by).unwrap_or(Timestamp::MAX);
        let next = match &self.cadence {
            Some(cadence) if !schedule.paused => cadence.next_after(self.considered_until),
            Some(_) => None,
            None => Some(later(BROKEN_AGAIN)),
        };
        let begun = (!settled.begin.is_empty()).then(|| later(CLAIM));
        let look_at = [next, settled.look_at, begun].into_iter().flatten().min();
        push(&mut writes.schedules, id, self.considered_until, look_at.map(Timestamp::as_microsecond));
    }
}

impl Writes {
    async fn write(&self, transaction: &mut PgConnection, now: Timestamp) -> Result<(), EngineError> {
        let claim = now.checked_add(CLAIM).unwrap_or(Timestamp::MAX).as_microsecond();
        sqlx::query(concat!(
            "update firings f set state = 'starting', run_id = n.run, claimed_until = ",
            instant!("$4"),
            " from unnest($1::uuid[], $2::bigint[], $3::uuid[]) as n (id, at, run)
             where f.schedule_id = n.id and f.fire_at = timestamptz 'epoch' + n.at * interval '1 microsecond'"
        ))
        .bind(&self.begin.0)
        .bind(&self.begin.1)
        .bind(&self.begin.2)
        .bind(claim)
        .execute(&mut *transaction)
        .await
        .map_err(pg("noting what begins"))?;
        sqlx::query(
            "update firings f set state = 'skipped', note = n.why
             from unnest($1::uuid[], $2::bigint[], $3::text[]) as n (id, at, why)
             where f.schedule_id = n.id and f.fire_at = timestamptz 'epoch' + n.at * interval '1 microsecond'",
        )
        .bind(&self.skip.0)
        .bind(&self.skip.1)
        .bind(&self.skip.2)
        .execute(&mut *transaction)
        .await
        .map_err(pg("noting what is left out"))?;
        sqlx::query(concat!(
            "insert into firings (schedule_id, fire_at, due, kind, state, note, decided_at)
             select n.id, n.at, n.at, 'regular', 'missed', n.why, ",
            instant!("$4"),
            " from (select id, why, timestamptz 'epoch' + at * interval '1 microsecond' as at
                    from unnest($1::uuid[], $2::bigint[], $3::text[]) as m (id, at, why)) n
             on conflict do nothing"
        ))
        .bind(&self.missed.0)
        .bind(&self.missed.1)
        .bind(&self.missed.2)
        .bind(now.as_microsecond())
        .execute(&mut *transaction)
        .await
        .map_err(pg("noting what was missed"))?;
        sqlx::query(
            "update schedules s
             set considered_until = timestamptz 'epoch' + n.until * interval '1 microsecond',
                 look_at = timestamptz 'epoch' + n.look * interval '1 microsecond'
             from unnest($1::uuid[], $2::bigint[], $3::bigint[]) as n (id, until, look) where s.schedule_id = n.id",
        )
        .bind(&self.schedules.0)
        .bind(&self.schedules.1)
        .bind(&self.schedules.2)
        .execute(transaction)
        .await
        .map_err(pg("noting when to look again"))?;
        Ok(())
    }
}
