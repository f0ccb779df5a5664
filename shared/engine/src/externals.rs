//! Events from outside: each recorded once, and brought together with the waits that want them.
//!
//! An event and the wait that wants it may commit at the same moment, and under READ COMMITTED each would miss the other.
//! So both sides take the same transaction-level lock on (tenant, resource key), in a statement of its own, before they
//! look for each other: whoever comes second sees the first.

pub(crate) mod claim;
pub(crate) mod earlier;
pub(crate) mod waits;

use std::time::Duration;

use bus::CloudEvent;
use kernel::{TenantId, Timestamp, event::ExternalRef, wait};
use serde_json::Value;
use sha2::{Digest, Sha256};
use sqlx::{PgConnection, postgres::PgRow};

use crate::{
    error::{EngineError, pg},
    pool::Pool,
    reads::row::{Cells, instant, micros},
};

pub use claim::EventClaim;
pub(crate) use claim::claim_earlier;
pub(crate) use earlier::{Candidate, Earlier};
pub use waits::{MATCHES, WaitMatch};

/// The source of what the observer concludes beside runs. It is no source that anybody outside may name.
pub const OBSERVER: &str = "observer";
/// A watched service is not well.
pub const HEALTH_FIRING: &str = "observer.health.firing";
/// It is well again.
pub const HEALTH_RECOVERED: &str = "observer.health.recovered";
/// Something is out of the ordinary at a watched service, or not any more, and nobody is to be woken for it.
pub const HEALTH_NOTICED: &str = "observer.health.noticed";
/// What came of an action that no run asked about.
pub const ACTION_CONCLUDED: &str = "observer.action.concluded";
/// The longest resource key, in bytes: what Postgres can index.
pub const MAX_RESOURCE_KEY: usize = 1024;

/// The events from outside. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Externals {
    pool: Pool,
}

/// An event from outside, as it is recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedExternal {
    /// Whose.
    pub tenant: TenantId,
    /// Where it stands and what it is.
    pub external: ExternalRef,
    /// The event as JSON, as filters see it.
    pub event: Value,
    /// When it first came.
    pub received_at: Timestamp,
    /// Whether this is the first time that it came.
    pub is_new: bool,
    /// Whether triggers and waits have been dealt with.
    pub dispatched: bool,
}

/// Why an event could not be recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The source and the subject together are too long.
    #[error(
        "source and subject are {bytes} bytes together, more than the {MAX_RESOURCE_KEY} that are taken: shorten the subject"
    )]
    KeyTooLong {
        /// How long they are.
        bytes: usize,
    },
    /// The store did not do it.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl RecordError {
    /// Whether trying again later may help.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::KeyTooLong { .. } => false,
            Self::Engine(error) => error.is_transient(),
        }
    }
}

impl Externals {
    pub(crate) fn new(pool: Pool) -> Self {
        Self { pool }
    }

    /// Whether an event can be recorded, as far as it depends on the event: what is handed in together can be refused together.
    ///
    /// # Errors
    /// When its key is too long.
    pub fn check(source: &str, event: &CloudEvent) -> Result<(), RecordError> {
        resource_key(source, event).map(drop)
    }

    /// Records an event, and finds the registered waits that are about it, longest waiting first: the first [`MATCHES`] of
    /// them, see [`Externals::matching`] for more. `source` is the token of the subject that it came on, such as `github`.
    ///
    /// The same event (by tenant, `source`, and the CloudEvent's own source and id) is recorded once. A wait that is
    /// registered after this call finds the event by itself, one that was registered before is among the matches.
    ///
    /// # Errors
    /// When the subject is too long, or Postgres does not do it.
    pub async fn record_and_match(
        &self,
        tenant: &TenantId,
        source: &str,
        event: &CloudEvent,
        traceparent: Option<&str>,
    ) -> Result<(RecordedExternal, Vec<WaitMatch>), RecordError> {
        let record = || pg("recording an outside event");
        let key = resource_key(source, event)?;
        let json = event.to_json();
        let mut transaction = self.pool.begin().await.map_err(record())?;
        lock_key(&mut transaction, tenant, &key).await?;
        // The clock is this process's, as it is for the creation of runs, with which it is compared.
        let received_at = Timestamp::now();
        let incoming = Incoming { tenant, source, event, json: &json, key: &key, traceparent, received_at };
        let recorded = match insert(&mut transaction, &incoming).await? {
            Some(position) => RecordedExternal {
                tenant: tenant.clone(),
                external: incoming.at(position),
                event: json,
                received_at,
                is_new: true,
                dispatched: false,
            },
            None => known(&mut transaction, &incoming).await?,
        };
        let matches = waits::matching(&mut transaction, &recorded, None).await?;
        transaction.commit().await.map_err(record())?;
        Ok((recorded, matches))
    }

    /// Records an event without looking for waits; see [`Externals::record_and_match`].
    ///
    /// # Errors
    /// As there.
    pub async fn record(
        &self,
        tenant: &TenantId,
        source: &str,
        event: &CloudEvent,
        traceparent: Option<&str>,
    ) -> Result<RecordedExternal, RecordError> {
        self.record_and_match(tenant, source, event, traceparent).await.map(|(recorded, _)| recorded)
    }

    /// Notes that triggers and waits have been dealt with.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn mark_dispatched(&self, position: i64) -> Result<(), EngineError> {
        sqlx::query("update external_events set dispatched_at = now() where position = $1 and dispatched_at is null")
            .bind(position)
            .execute(&self.pool)
            .await
            .map_err(pg("marking an outside event"))?;
        Ok(())
    }

    /// Events that were recorded at least `older_than` ago and not dealt with, oldest first, from behind a place: whoever
    /// recorded them is gone.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn undispatched_after(
        &self,
        position: i64,
        older_than: Duration,
        limit: u32,
    ) -> Result<Vec<RecordedExternal>, EngineError> {
        let read = || pg("looking for undispatched outside events");
        let before = Timestamp::now().checked_sub(older_than).unwrap_or(Timestamp::MIN);
        let rows = sqlx::query(concat!(
            "select position, tenant, source, event, traceparent, false as dispatched, ",
            micros!("received_at"),
            "
             from external_events
             where dispatched_at is null and position > $3 and received_at <= ",
            instant!("$1"),
            " order by position limit $2"
        ))
        .bind(before.as_microsecond())
        .bind(i64::from(limit))
        .bind(position)
        .fetch_all(&self.pool)
        .await
        .map_err(read())?;
        rows.iter().map(recorded).collect::<Result<_, _>>().map_err(read())
    }
}

/// The name of the lock on (tenant, key).
pub(crate) fn lock_name(tenant: &str, key: &str) -> String {
    format!("{tenant}/{key}")
}

/// Takes locks in the order of their names, which must be sorted, until the transaction ends.
///
/// Only the statements after this one see what the others who held the locks have committed.
pub(crate) async fn lock_keys(transaction: &mut PgConnection, names: &[String]) -> Result<(), EngineError> {
    if names.is_empty() {
        return Ok(());
    }
    sqlx::query("select pg_advisory_xact_lock(hashtextextended(name, 0)) from unnest($1::text[]) as k (name)")
        .bind(names)
        .execute(transaction)
        .await
        .map_err(pg("locking resource keys"))?;
    Ok(())
}

/// Takes the lock of an event's key.
async fn lock_key(transaction: &mut PgConnection, tenant: &TenantId, key: &str) -> Result<(), EngineError> {
    lock_keys(transaction, &[lock_name(tenant.as_str(), key)]).await
}

/// An event on its way into the table.
struct Incoming<'a> {
    tenant: &'a TenantId,
    source: &'a str,
    event: &'a CloudEvent,
    json: &'a Value,
    key: &'a str,
    traceparent: Option<&'a str>,
    received_at: Timestamp,
}

impl Incoming<'_> {
    fn at(&self, position: i64) -> ExternalRef {
        ExternalRef {
            position,
            source: self.source.to_owned(),
            id: self.event.id.clone(),
            event_type: self.event.event_type.clone(),
            resource_key: self.key.to_owned(),
            traceparent: self.traceparent.map(str::to_owned),
        }
    }

    /// What makes it unique within its tenant and source token: ids are unique within the CloudEvent's own source only.
    fn identity(&self) -> String {
        let identity = format!("{} {}", self.event.source, self.event.id);
        if identity.len() <= MAX_RESOURCE_KEY {
            return identity;
        }
        Sha256::digest(identity).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The place of the event; none if it was recorded before.
async fn insert(transaction: &mut PgConnection, incoming: &Incoming<'_>) -> Result<Option<i64>, EngineError> {
    let row =
        sqlx::query(concat!(
        "insert into external_events (tenant, source, id, type, subject, resource_key, event, traceparent, received_at)
         values ($1, $2, $3, $4, $5, $6, $7, $8, ", instant!("$9"), ") on conflict do nothing returning position"
    ))
        .bind(incoming.tenant.as_str())
        .bind(incoming.source)
        .bind(incoming.identity())
        .bind(&incoming.event.event_type)
        .bind(incoming.event.subject.as_deref().unwrap_or_default())
        .bind(incoming.key)
        .bind(sqlx::types::Json(incoming.json))
        .bind(incoming.traceparent)
        .bind(incoming.received_at.as_microsecond())
        .fetch_optional(transaction)
        .await
        .map_err(pg("recording an outside event"))?;
    row.map(|row| Cells(&row).get("position")).transpose().map_err(pg("recording an outside event"))
}

/// The event as it was recorded the first time.
async fn known(transaction: &mut PgConnection, incoming: &Incoming<'_>) -> Result<RecordedExternal, EngineError> {
    let read = || pg("reading a known outside event");
    let row = sqlx::query(concat!(
        "select position, tenant, source, event, traceparent, dispatched_at is not null as dispatched, ",
        micros!("received_at"),
        "
         from external_events where tenant = $1 and source = $2 and id = $3",
    ))
    .bind(incoming.tenant.as_str())
    .bind(incoming.source)
    .bind(incoming.identity())
    .fetch_one(transaction)
    .await
    .map_err(read())?;
    recorded(&row).map_err(read())
}

/// Whether `wanted`, in which a `*` at the end stands for any rest, means this type.
#[must_use]
pub fn wants_type(wanted: &str, event_type: &str) -> bool {
    wanted.strip_suffix('*').map_or(wanted == event_type, |start| event_type.starts_with(start))
}

/// `<source>:<subject>`, if it can be a key.
fn resource_key(source: &str, event: &CloudEvent) -> Result<String, RecordError> {
    let key = wait::resource_key(source, event.subject.as_deref().unwrap_or_default());
    if key.len() > MAX_RESOURCE_KEY { Err(RecordError::KeyTooLong { bytes: key.len() }) } else { Ok(key) }
}

pub(crate) fn recorded(row: &PgRow) -> Result<RecordedExternal, sqlx::Error> {
    let row = Cells(row);
    let event: Value = row.json("event")?;
    let attribute = |name: &str| event.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let source: String = row.get("source")?;
    Ok(RecordedExternal {
        tenant: row.tenant()?,
        external: ExternalRef {
            position: row.get("position")?,
            id: attribute("id"),
            event_type: attribute("type"),
            resource_key: wait::resource_key(&source, &attribute("subject")),
            source,
            traceparent: row.get("traceparent")?,
        },
        event,
        received_at: row.time("received_at")?,
        is_new: false,
        dispatched: row.get("dispatched")?,
    })
}
