//! Events that only one waiting run may have.
//!
//! An exclusive wait takes such an event by a claim in the event's row: which run, which wait, which condition. Claims are
//! made and looked at under the lock on (tenant, resource key), so there is one at a time, and a claim outlives whoever
//! made it. Two take them:
//!
//! - **Dispatch** claims the event for the longest waiting, then delivers. If the wait turns out not to take it (it was
//!   replaced or met meanwhile), the claim is released and the next in line may have it. Whoever dies in between leaves
//!   the event undispatched; the next one to dispatch it finds the claim and delivers to its holder first.
//! - **Look-back** claims in the transaction that commits the wait together with its having the event, and only if that
//!   commit stands.
//!
//! A claim *holds* while its condition waits, or once its run has the event, which the log says. Otherwise it is void and is
//! taken over as if it were not there. A wait that ended or a condition that was met never wants an event again, so a void claim
//! stays void. Thus exactly one run has the event, and none only if none waits.

use kernel::{RunId, WaitId};
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::{
    Externals, RecordedExternal, WaitMatch, lock_key,
    waits::{wait_columns, wait_match},
};
use crate::{
    append::Pending,
    error::{EngineError, pg},
    reads::row::micros,
};

/// What came of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventClaim {
    /// The event is this wait's to have: deliver it, and release it if it is not taken.
    Won,
    /// The event is another's to have, and whether it takes it is not known yet: deliver it there first.
    Held(Box<WaitMatch>),
    /// Another run has it.
    Taken,
    /// The wait is gone.
    Gone,
}

/// Whether the run and wait of the claim on `external_events x` have the event.
macro_rules! claim_is_consumed {
    () => {
        "coalesce((select true from events e
                   where e.type = 'external.matched' and (e.data -> 'external' ->> 'position')::bigint = x.position
                     and e.run_id = x.claimed_run and e.data ->> 'wait_id' = x.claimed_wait::text limit 1), false)"
    };
}

/// Whether the condition of the claim on `external_events x` waits.
macro_rules! claim_waits {
    () => {
        "coalesce((select true from waits w
                   where w.run_id = x.claimed_run and w.wait_id = x.claimed_wait and w.leaf = x.claimed_leaf limit 1), false)"
    };
}

/// Whether nobody has a claim that holds on `external_events x`.
macro_rules! is_unclaimed {
    () => {
        concat!(
            "(x.claimed_run is null or not (",
            crate::externals::claim::claim_waits!(),
            " or ",
            crate::externals::claim::claim_is_consumed!(),
            "))"
        )
    };
}

pub(super) use {claim_is_consumed, claim_waits, is_unclaimed};

impl Externals {
    /// Claims an event for an exclusive wait that matches it, filter and all.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn claim(&self, recorded: &RecordedExternal, wait: &WaitMatch) -> Result<EventClaim, EngineError> {
        let claiming = || pg("claiming an outside event");
        let position = recorded.external.position;
        let mut transaction = self.pool.begin().await.map_err(claiming())?;
        lock_key(&mut transaction, &recorded.tenant, &recorded.external.resource_key).await?;
        let claim = match holder(&mut transaction, position).await? {
            Some(Holder { is_consumed: true, .. }) => EventClaim::Taken,
            Some(holder) if !holder.is(wait) => match waiting(&mut transaction, &holder.claim).await? {
                Some(other) => EventClaim::Held(Box::new(other)),
                None => take(&mut transaction, position, wait).await?,
            },
            _ => take(&mut transaction, position, wait).await?,
        };
        transaction.commit().await.map_err(claiming())?;
        Ok(claim)
    }

    /// Gives back an event that its claimer did not take. Does nothing if the claim is another's, or if it was taken after all.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn release(&self, recorded: &RecordedExternal, wait: &WaitMatch) -> Result<(), EngineError> {
        let releasing = || pg("releasing an outside event");
        let mut transaction = self.pool.begin().await.map_err(releasing())?;
        lock_key(&mut transaction, &recorded.tenant, &recorded.external.resource_key).await?;
        sqlx::query(concat!(
            "update external_events x
             set claimed_run = null, claimed_wait = null, claimed_leaf = null, claimed_at = null
             where position = $1 and claimed_run = $2 and claimed_wait = $3 and claimed_leaf = $4 and not ",
            claim_is_consumed!()
        ))
        .bind(recorded.external.position)
        .bind(wait.run_id.0)
        .bind(wait.wait_id.0)
        .bind(i32::from(wait.leaf))
        .execute(&mut *transaction)
        .await
        .map_err(releasing())?;
        transaction.commit().await.map_err(releasing())
    }
}

/// Claims an event for the wait that `pending` is about to register, if that commit will stand. The lock on the key must be
/// held, and the event must have been seen unclaimed under it. The row of the run stays locked, so that nothing comes between.
pub(crate) async fn claim_earlier(
    transaction: &mut PgConnection,
    pending: &Pending,
    position: i64,
    wait: WaitId,
    leaf: u16,
) -> Result<bool, EngineError> {
    let expected = pending.before.as_ref().map_or(0, |before| before.seq);
    let expected_at = pending.before.as_ref().map_or(0, |before| before.updated_at.as_microsecond());
    let claimed = sqlx::query(
        "with mine as materialized (
            select run_id from runs
            where run_id = $1 and seq = $2 and updated_at = timestamptz 'epoch' + $7 * interval '1 microsecond'
              and (select true from inbox i where i.run_id = $1 and i.key = $3 limit 1) is null
            for update
         )
         update external_events x
         set claimed_run = $1, claimed_wait = $4, claimed_leaf = $5, claimed_at = now()
         where position = $6 and exists (select from mine)",
    )
    .bind(pending.run_id.0)
    .bind(i64::try_from(expected).unwrap_or(i64::MAX))
    .bind(&pending.key)
    .bind(wait.0)
    .bind(i32::from(leaf))
    .bind(position)
    .bind(expected_at)
    .execute(transaction)
    .await
    .map_err(pg("claiming an earlier event"))?;
    Ok(claimed.rows_affected() == 1)
}

/// Which condition of which wait of which run.
type Claimed = (RunId, WaitId, i32);

struct Holder {
    claim: Claimed,
    is_consumed: bool,
}

impl Holder {
    fn is(&self, wait: &WaitMatch) -> bool {
        self.claim == (wait.run_id, wait.wait_id, i32::from(wait.leaf))
    }
}

/// Who has a claim on the event.
async fn holder(transaction: &mut PgConnection, position: i64) -> Result<Option<Holder>, EngineError> {
    let read = || pg("looking at a claim");
    let row = sqlx::query(concat!(
        "select claimed_run, claimed_wait, claimed_leaf, ",
        claim_is_consumed!(),
        " from external_events x where position = $1 and claimed_run is not null"
    ))
    .bind(position)
    .fetch_optional(transaction)
    .await
    .map_err(read())?;
    let holder = |row: sqlx::postgres::PgRow| {
        let claim = (RunId(row.try_get(0)?), WaitId(row.try_get::<Uuid, _>(1)?), row.try_get(2)?);
        Ok(Holder { claim, is_consumed: row.try_get(3)? })
    };
    row.map(holder).transpose().map_err(read())
}

/// The condition of a claim, if it waits.
async fn waiting(
    transaction: &mut PgConnection,
    (run, wait, leaf): &Claimed,
) -> Result<Option<WaitMatch>, EngineError> {
    let read = || pg("looking for the wait of a claim");
    let row = sqlx::query(concat!(
        "select ",
        wait_columns!(),
        " from waits w cross join lateral (select sampled from runs where run_id = w.run_id limit 1) r
         where w.run_id = $1 and w.wait_id = $2 and w.leaf = $3"
    ))
    .bind(run.0)
    .bind(wait.0)
    .bind(leaf)
    .fetch_optional(transaction)
    .await
    .map_err(read())?;
    row.as_ref().map(wait_match).transpose().map_err(read())
}

/// Writes the claim, if the wait is still there.
async fn take(transaction: &mut PgConnection, position: i64, wait: &WaitMatch) -> Result<EventClaim, EngineError> {
    let taken = sqlx::query(
        "update external_events set claimed_run = $2, claimed_wait = $3, claimed_leaf = $4, claimed_at = now()
         where position = $1
           and (select true from waits w where w.run_id = $2 and w.wait_id = $3 and w.leaf = $4 limit 1)",
    )
    .bind(position)
    .bind(wait.run_id.0)
    .bind(wait.wait_id.0)
    .bind(i32::from(wait.leaf))
    .execute(transaction)
    .await
    .map_err(pg("claiming an outside event"))?;
    Ok(if taken.rows_affected() == 1 { EventClaim::Won } else { EventClaim::Gone })
}
