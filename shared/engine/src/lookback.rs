//! Outside events that came before the wait that wants them.

use std::{collections::HashSet, time::Duration};

use kernel::{
    Block, Command, Decision, EventData, Trust, WaitId,
    command::DeliverExternal,
    decide,
    wait::{Condition, ExternalPattern, Wait},
};
use sqlx::{Postgres, Transaction};

use crate::{
    append::Pending,
    error::EngineError,
    externals::{self, Candidate, Earlier},
    matching::Filter,
};

/// The conditions of a wait that are about outside events, with their leaf numbers.
pub(crate) fn patterns(wait: &Wait) -> Vec<(u16, &ExternalPattern)> {
    let leaves = wait.on.leaves().into_iter().enumerate();
    leaves
        .filter_map(|(number, leaf)| match &leaf.condition {
            Condition::External(pattern) if leaf.met_by.is_none() => Some((u16::try_from(number).ok()?, pattern)),
            _ => None,
        })
        .collect()
}

/// Takes the locks of the resource keys of all waits that are about to be registered, looks for events that came before them,
/// and lets each decision go on with them: the run's own turn may thus end with the next one open.
///
/// What is claimed counts with the commit: `batch` must be appended in the same transaction.
pub(crate) async fn meet_earlier(
    transaction: &mut Transaction<'_, Postgres>,
    batch: &mut [Pending],
    window: Duration,
) -> Result<(), EngineError> {
    let waits: Vec<_> = batch.iter().map(registered).collect();
    let mut locks = Vec::new();
    for (pending, wait) in batch.iter().zip(&waits) {
        let tenant = pending.after.tenant.as_str();
        let keys = wait.iter().flat_map(patterns).map(|(_, pattern)| pattern.resource_key());
        locks.extend(keys.map(|key| externals::lock_name(tenant, &key)));
    }
    locks.sort_unstable();
    locks.dedup();
    externals::lock_keys(transaction, &locks).await?;
    let mut claimed = HashSet::new();
    for (pending, wait) in batch.iter_mut().zip(waits) {
        if let Some(wait) = wait {
            meet_earlier_of(transaction, pending, &wait, window, &mut claimed).await?;
        }
    }
    Ok(())
}

fn registered(pending: &Pending) -> Option<Wait> {
    pending.events.iter().find_map(|event| match &event.data {
        EventData::WaitRegistered(registered) => Some(registered.wait.clone()),
        _ => None,
    })
}

/// Looks back for one wait. `claimed` are the places of events that waits of this batch have claimed: until it is
/// appended, nothing else shows that these claims hold.
async fn meet_earlier_of(
    transaction: &mut Transaction<'_, Postgres>,
    pending: &mut Pending,
    wait: &Wait,
    window: Duration,
    claimed: &mut HashSet<i64>,
) -> Result<(), EngineError> {
    let tenant = pending.after.tenant.as_str().to_owned();
    // What was consumed before this wait: two conditions on one key may be met by two events in any order, or by the same.
    let consumed = pending.after.consumed.clone();
    let mut own = Vec::new();
    for (leaf, pattern) in patterns(wait) {
        let after = consumed.get(&pattern.resource_key()).copied().unwrap_or(0);
        let earlier = Earlier::new(&tenant, pattern, after, pending.after.created_at, window);
        if let Some(candidate) = first_meant(transaction, pattern, earlier, claimed).await? {
            let position = candidate.external.position;
            if meet(transaction, pending, wait.wait_id, leaf, pattern.exclusive, candidate).await? {
                own.push(position);
            }
        }
    }
    // Only now: two conditions of one wait may be met by the same event.
    claimed.extend(own);
    Ok(())
}

/// The oldest of the earlier events that is meant. One on which the filter makes no sense is not.
async fn first_meant(
    transaction: &mut Transaction<'_, Postgres>,
    pattern: &ExternalPattern,
    mut earlier: Earlier<'_>,
    claimed: &HashSet<i64>,
) -> Result<Option<Candidate>, EngineError> {
    // A filter that does not compile was refused at the turn; here it means nothing, rather than everything.
    let Ok(filter) = pattern.filter.as_deref().map(Filter::compile).transpose() else { return Ok(None) };
    let is_free = |event: &Candidate| !(pattern.exclusive && claimed.contains(&event.external.position));
    let is_meant = |event: &Candidate| {
        is_free(event) && filter.as_ref().is_none_or(|filter| filter.matches(&event.event).unwrap_or(false))
    };
    loop {
        let page = earlier.page(transaction).await?;
        if page.is_empty() {
            return Ok(None);
        }
        if let Some(found) = page.into_iter().find(is_meant) {
            return Ok(Some(found));
        }
    }
}

/// Lets the decision go on with an event. Tells whether it was claimed for that.
async fn meet(
    transaction: &mut Transaction<'_, Postgres>,
    pending: &mut Pending,
    wait_id: WaitId,
    leaf: u16,
    is_exclusive: bool,
    candidate: Candidate,
) -> Result<bool, EngineError> {
    let position = candidate.external.position;
    let text = serde_json::to_string_pretty(&candidate.event).unwrap_or_default();
    let source = format!("event:{}/{}", candidate.external.source, candidate.external.id);
    let block = Block::new(text, Trust::Untrusted, source);
    let deliver = DeliverExternal { external: candidate.external, wait_id, leaf, block };
    // Nothing to decide: the wait was met by what an earlier condition found.
    let Some(decision) = next(pending, deliver) else { return Ok(false) };
    if is_exclusive && !externals::claim_earlier(transaction, pending, position, wait_id, leaf).await? {
        // The run has moved on: this commit will not stand.
        return Ok(false);
    }
    pending.go_on(decision)?;
    Ok(is_exclusive)
}

fn next(pending: &Pending, deliver: DeliverExternal) -> Option<Decision> {
    let now = pending.after.updated_at;
    let command = Command::DeliverExternal(Box::new(deliver));
    decide(pending.run_id, Some(&pending.after), &command, now).ok().filter(|decision| !decision.events.is_empty())
}
