//! Watched services: how far their logs were read, how well they are, what is missing, and where their logs are kept.

use std::time::Duration;

use kernel::{TenantId, Timestamp};
use serde_json::value::RawValue;
use sqlx::postgres::PgRow;

use crate::{
    error::{EngineError, pg},
    pool::Pool,
    reads::row::{Cells, instant, micros},
};

/// What is kept about watched services. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Services {
    pool: Pool,
}

/// How far the log of a service was read.
#[derive(Clone, Debug)]
pub struct ServiceCheckpoint {
    /// Whose.
    pub tenant: TenantId,
    /// Which service.
    pub service: String,
    /// The partition of the signals that its log is in.
    pub partition: u8,
    /// When the stream was made that `stream_seq` counts in, in microseconds since 1970.
    pub stream_made: i64,
    /// The last message that the state includes.
    pub stream_seq: u64,
    /// What an observer has in mind of it.
    pub state: Box<RawValue>,
}

/// How well a service is, by one rule of one agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alert {
    /// Whose.
    pub tenant: TenantId,
    /// Which service.
    pub service: String,
    /// The agent that watches it.
    pub agent: String,
    /// Its rule.
    pub rule: String,
    /// `firing` or `recovered`.
    pub state: String,
    /// Since when it was not well.
    pub since: Timestamp,
    /// When it last changed.
    pub changed_at: Timestamp,
    /// What was seen.
    pub what: String,
}

/// Signals that are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignalGap {
    /// Whose, if that is known.
    pub tenant: Option<TenantId>,
    /// Which service's, if that is known.
    pub service: Option<String>,
    /// Not before.
    pub from: Timestamp,
    /// Not after.
    pub to: Timestamp,
    /// At most so many messages or records.
    pub messages: u64,
    /// Why they are missing.
    pub why: String,
}

/// An archived piece of the log of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceSegment {
    /// Whose.
    pub tenant: TenantId,
    /// Which service.
    pub service: String,
    /// First message.
    pub from_seq: u64,
    /// Last message.
    pub to_seq: u64,
    /// When the first was stored by the bus.
    pub from_at: Timestamp,
    /// When the last was.
    pub to_at: Timestamp,
    /// Records in it.
    pub records: u64,
    /// Bytes before compression.
    pub bytes: u64,
    /// Where the object store has it.
    pub object_key: String,
}

impl Services {
    pub(crate) fn new(pool: Pool) -> Self {
        Self { pool }
    }

    /// How far the logs in a partition were read.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn checkpoints(&self, partition: u8) -> Result<Vec<ServiceCheckpoint>, EngineError> {
        let read = || pg("reading checkpoints of services");
        let rows = sqlx::query(
            "select tenant, service, partition, stream_made, stream_seq, state from service_checkpoints where partition = $1",
        )
        .bind(i16::from(partition))
        .fetch_all(&self.pool)
        .await
        .map_err(read())?;
        rows.iter().map(checkpoint).collect::<Result<_, _>>().map_err(read())
    }

    /// Keeps how far logs were read; one that has read less of the same stream than what is there changes nothing.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn save(&self, checkpoints: Vec<ServiceCheckpoint>) -> Result<(), EngineError> {
        if checkpoints.is_empty() {
            return Ok(());
        }
        let (mut tenants, mut services, mut partitions) = (Vec::new(), Vec::new(), Vec::new());
        let (mut made, mut seqs, mut states) = (Vec::new(), Vec::new(), Vec::new());
        for checkpoint in checkpoints {
            tenants.push(checkpoint.tenant.to_string());
            services.push(checkpoint.service);
            partitions.push(i16::from(checkpoint.partition));
            made.push(checkpoint.stream_made);
            seqs.push(i64::try_from(checkpoint.stream_seq).unwrap_or(i64::MAX));
            states.push(Box::<str>::from(checkpoint.state).into_string());
        }
        sqlx::query(
            "insert into service_checkpoints as c (tenant, service, partition, stream_made, stream_seq, state)
             select s.tenant, s.service, s.partition, s.made, s.seq, s.state::json
             from unnest($1::text[], $2::text[], $3::smallint[], $4::bigint[], $5::bigint[], $6::text[])
                  as s (tenant, service, partition, made, seq, state)
             on conflict (tenant, service) do update
             set partition = excluded.partition, stream_made = excluded.stream_made, stream_seq = excluded.stream_seq,
                 state = excluded.state, updated_at = now()
             where (c.stream_made, c.stream_seq) <= (excluded.stream_made, excluded.stream_seq)",
        )
        .bind(tenants)
        .bind(services)
        .bind(partitions)
        .bind(made)
        .bind(seqs)
        .bind(states)
        .execute(&self.pool)
        .await
        .map_err(pg("writing checkpoints of services"))?;
        Ok(())
    }

    /// Keeps how well a service is.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn set_alert(&self, alert: &Alert) -> Result<(), EngineError> {
        sqlx::query(concat!(
            "insert into alerts (tenant, service, agent, rule, state, since, changed_at, what)
             values ($1, $2, $3, $4, $5, ",
            instant!("$6"),
            ", ",
            instant!("$7"),
            ", $8)
             on conflict (tenant, service, agent, rule) do update
             set state = excluded.state, since = excluded.since, changed_at = excluded.changed_at, what = excluded.what
             where alerts.changed_at <= excluded.changed_at"
        ))
        .bind(alert.tenant.as_str())
        .bind(&alert.service)
        .bind(&alert.agent)
        .bind(&alert.rule)
        .bind(&alert.state)
        .bind(alert.since.as_microsecond())
        .bind(alert.changed_at.as_microsecond())
        .bind(&alert.what)
        .execute(&self.pool)
        .await
        .map_err(pg("keeping an alarm"))?;
        Ok(())
    }

    /// The alarms of a tenant, firing ones first.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn alerts(&self, tenant: &TenantId, limit: u32) -> Result<Vec<Alert>, EngineError> {
        let read = || pg("listing alarms");
        let rows = sqlx::query(concat!(
            "select tenant, service, agent, rule, state, ",
            micros!("since"),
            ", ",
            micros!("changed_at"),
            ", what
             from alerts where tenant = $1 order by state, changed_at desc limit $2"
        ))
        .bind(tenant.as_str())
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .map_err(read())?;
        rows.iter().map(alert).collect::<Result<_, _>>().map_err(read())
    }

    /// Notes that signals are missing.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn note_gap(&self, gap: &SignalGap) -> Result<(), EngineError> {
        sqlx::query(concat!(
            "insert into signal_gaps (tenant, service, from_at, to_at, messages, why) values ($1, $2, ",
            instant!("$3"),
            ", ",
            instant!("$4"),
            ", $5, $6)"
        ))
        .bind(gap.tenant.as_ref().map(TenantId::as_str))
        .bind(gap.service.as_deref())
        .bind(gap.from.as_microsecond())
        .bind(gap.to.as_microsecond())
        .bind(i64::try_from(gap.messages).unwrap_or(i64::MAX))
        .bind(&gap.why)
        .execute(&self.pool)
        .await
        .map_err(pg("noting missing signals"))?;
        Ok(())
    }

    /// Signals that are missing since a time and may be of this tenant, latest first.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn gaps(&self, tenant: &TenantId, since: Timestamp, limit: u32) -> Result<Vec<SignalGap>, EngineError> {
        let read = || pg("listing missing signals");
        let rows = sqlx::query(concat!(
            "select tenant, service, ",
            micros!("from_at"),
            ", ",
            micros!("to_at"),
            ", messages, why
             from signal_gaps where (tenant is null or tenant = $1) and to_at >= ",
            instant!("$2"),
            " order by to_at desc limit $3"
        ))
        .bind(tenant.as_str())
        .bind(since.as_microsecond())
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .map_err(read())?;
        rows.iter().map(gap).collect::<Result<_, _>>().map_err(read())
    }

    /// Records an archived piece.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn insert_segment(&self, segment: &ServiceSegment) -> Result<(), EngineError> {
        let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        sqlx::query(concat!(
            "insert into service_segments
                 (tenant, service, from_seq, to_seq, from_at, to_at, records, bytes, object_key)
             values ($1, $2, $3, $4, ",
            instant!("$5"),
            ", ",
            instant!("$6"),
            ", $7, $8, $9) on conflict do nothing"
        ))
        .bind(segment.tenant.as_str())
        .bind(&segment.service)
        .bind(number(segment.from_seq))
        .bind(number(segment.to_seq))
        .bind(segment.from_at.as_microsecond())
        .bind(segment.to_at.as_microsecond())
        .bind(number(segment.records))
        .bind(number(segment.bytes))
        .bind(&segment.object_key)
        .execute(&self.pool)
        .await
        .map_err(pg("recording a piece of a log"))?;
        Ok(())
    }

    /// Forgets pieces of logs, some at a time, whose last message is older than `age`, and says how many. Their objects are
    /// noted as abandoned in the same step.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn forget_segments(&self, age: Duration, most: u32) -> Result<u64, EngineError> {
        let gone = sqlx::query(
            "delete from service_segments where ctid = any (array(
                 select s.ctid from service_segments s where s.to_at < now() - make_interval(secs => $1)
                 limit $2 for update skip locked))",
        )
        .bind(age.as_secs_f64())
        .bind(i64::from(most))
        .execute(&self.pool)
        .await
        .map_err(pg("forgetting pieces of logs"))?;
        Ok(gone.rows_affected())
    }

    /// The pieces of a service's log that were stored by the bus within a time, oldest first.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn segments(
        &self,
        tenant: &TenantId,
        service: &str,
        from: Timestamp,
        to: Timestamp,
        limit: u32,
    ) -> Result<Vec<ServiceSegment>, EngineError> {
        let read = || pg("listing pieces of a log");
        let rows = sqlx::query(concat!(
            "select tenant, service, from_seq, to_seq, ",
            micros!("from_at"),
            ", ",
            micros!("to_at"),
            ", records, bytes,
                    object_key
             from service_segments
             where tenant = $1 and service = $2 and to_at >= ",
            instant!("$3"),
            " and from_at <= ",
            instant!("$4"),
            " order by from_at, from_seq limit $5"
        ))
        .bind(tenant.as_str())
        .bind(service)
        .bind(from.as_microsecond())
        .bind(to.as_microsecond())
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .map_err(read())?;
        rows.iter().map(segment).collect::<Result<_, _>>().map_err(read())
    }
}

fn checkpoint(row: &PgRow) -> Result<ServiceCheckpoint, sqlx::Error> {
    let row = Cells(row);
    Ok(ServiceCheckpoint {
        tenant: row.tenant()?,
        service: row.get("service")?,
        partition: u8::try_from(row.get::<i16>("partition")?).unwrap_or(u8::MAX),
        stream_made: row.get("stream_made")?,
        stream_seq: row.count("stream_seq")?,
        state: row.raw("state")?,
    })
}

fn alert(row: &PgRow) -> Result<Alert, sqlx::Error> {
    let row = Cells(row);
    Ok(Alert {
        tenant: row.tenant()?,
        service: row.get("service")?,
        agent: row.get("agent")?,
        rule: row.get("rule")?,
        state: row.get("state")?,
        since: row.time("since")?,
        changed_at: row.time("changed_at")?,
        what: row.get("what")?,
    })
}

fn gap(row: &PgRow) -> Result<SignalGap, sqlx::Error> {
    let row = Cells(row);
    let tenant: Option<String> = row.get("tenant")?;
    Ok(SignalGap {
        tenant: tenant.and_then(|tenant| tenant.parse().ok()),
        service: row.get("service")?,
        from: row.time("from_at")?,
        to: row.time("to_at")?,
        messages: row.count("messages")?,
        why: row.get("why")?,
    })
}

fn segment(row: &PgRow) -> Result<ServiceSegment, sqlx::Error> {
    let row = Cells(row);
    Ok(ServiceSegment {
        tenant: row.tenant()?,
        service: row.get("service")?,
        from_seq: row.count("from_seq")?,
        to_seq: row.count("to_seq")?,
        from_at: row.time("from_at")?,
        to_at: row.time("to_at")?,
        records: row.count("records")?,
        bytes: row.count("bytes")?,
        object_key: row.get("object_key")?,
    })
}
