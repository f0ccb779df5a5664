//! Outside events that came before the wait that wants them.

use std::{sync::Arc, time::Duration};

use kernel::{
    Block, Command, EventData, Trust,
    command::DeliverExternal,
    decide,
    wait::{Condition, ExternalPattern, Wait},
};
use sqlx::{Postgres, Transaction};

use crate::{append::Pending, error::EngineError, externals, matching::Filter};

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

/// Takes the locks of the wait's resource keys, looks for events that came before it, and lets the decision go on with them:
/// the run's own turn may thus end with the next one open.
pub(crate) async fn meet_earlier(
    transaction: &mut Transaction<'_, Postgres>,
    pending: &mut Pending,
    window: Duration,
) -> Result<(), EngineError> {
    let wait = pending.events.iter().find_map(|event| match &event.data {
        EventData::WaitRegistered(registered) => Some(registered.wait.clone()),
        _ => None,
    });
    let Some(wait) = wait else { return Ok(()) };
    let tenant = pending.after.tenant.as_str().to_owned();
    let mut keys: Vec<_> = patterns(&wait).iter().map(|(_, pattern)| pattern.resource_key()).collect();
    keys.sort_unstable();
    keys.dedup();
    externals::lock_keys(transaction, &tenant, &keys).await?;
    for (leaf, pattern) in patterns(&wait) {
        let state = &pending.after;
        let after = state.consumed.get(&pattern.resource_key()).copied().unwrap_or(0);
        let since = state.created_at;
        let earlier = externals::lookback(transaction, &tenant, &pattern.resource_key(), after, since, window).await?;
        // A filter that does not compile was refused at the turn; here it means nothing, rather than everything.
        let Ok(filter) = pattern.filter.as_deref().map(Filter::compile).transpose() else { continue };
        if let Some(candidate) = earlier.into_iter().find(|each| is_meant(pattern, filter.as_ref(), each)) {
            let text = serde_json::to_string_pretty(&candidate.event).unwrap_or_default();
            let source = format!("event:{}/{}", candidate.external.source, candidate.external.id);
            let deliver = DeliverExternal {
                external: candidate.external,
                wait_id: wait.wait_id,
                leaf,
                block: Block::new(text, Trust::Untrusted, source),
            };
            continue_with(pending, deliver);
        }
    }
    Ok(())
}

/// Whether an earlier event is meant. One on which the filter makes no sense is not.
fn is_meant(pattern: &ExternalPattern, filter: Option<&Filter>, candidate: &externals::Candidate) -> bool {
    pattern.matches_type(&candidate.external.event_type)
        && filter.is_none_or(|filter| filter.matches(&candidate.event).unwrap_or(false))
}

fn continue_with(pending: &mut Pending, deliver: DeliverExternal) {
    let now = pending.after.updated_at;
    let command = Command::DeliverExternal(Box::new(deliver));
    if let Ok(decision) = decide(pending.run_id, Some(&pending.after), &command, now) {
        pending.events.extend(decision.events);
        pending.after = Arc::new(decision.state);
    }
}
