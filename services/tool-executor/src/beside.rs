//! What may run beside what: the calls of one turn, the resources of a tenant, and the calls to one target.
//!
//! Calls of one turn wait for each other in the order in which the turn asked for them; that follows from the log alone.
//! Resources and places at a target are leases in Redis, shared by all executors. They are all taken at once or none is,
//! so two calls never wait for each other. They are held for a call, not for an executor: if that dies, whoever takes up the
//! call has them again, and if nobody does, they lapse.

use std::collections::BTreeSet;
use std::time::Duration;

use engine::{EngineError, Lease, Leases};
use kernel::call::{Call, CallStatus};
use kernel::{CallId, RunState, TenantId};

use crate::registry::Registry;

/// How long a call waits here, before its message is given back to be delivered again.
const PATIENCE: Duration = Duration::from_millis(300);
/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// What a call needs for itself while it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Resources that nobody else may touch.
    pub locks: BTreeSet<String>,
    /// One of this many places at a target.
    pub place: Option<(String, u32)>,
}

/// What a call holds. Dropped, it is given up soon.
#[derive(Debug, Default)]
pub(crate) struct Held(Vec<Lease>);

impl Held {
    /// Gives everything up and waits until others can have it.
    pub async fn release(self) {
        for lease in self.0 {
            lease.release().await;
        }
    }
}

/// Whether a call may begin.
#[derive(Debug)]
pub(crate) enum Entry {
    /// Now; it holds what it needs.
    Free(Held),
    /// Not yet, in words.
    Blocked(String),
}

/// How many of an executor's leases long what its calls hold is left to whoever takes them up after its death.
const LEFT_FOR: u32 = 6;

/// Takes what calls need. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Locks {
    leases: Leases,
    ttl: Duration,
}

impl Locks {
    /// For executors of which another takes up the calls `lease` after its death.
    pub fn new(leases: Leases, lease: Duration) -> Self {
        Self { leases, ttl: lease * LEFT_FOR }
    }

    /// Takes all that a call needs, waiting a little if somebody has it.
    pub async fn enter(&self, tenant: &TenantId, call: CallId, needs: &Needs) -> Result<Entry, EngineError> {
        if needs.locks.is_empty() && needs.place.is_none() {
            return Ok(Entry::Free(Held::default()));
        }
        let until = tokio::time::Instant::now() + PATIENCE;
        loop {
            let blocked = match self.try_all(tenant, call, needs).await? {
                Ok(held) => return Ok(Entry::Free(held)),
                Err(blocked) => blocked,
            };
            if tokio::time::Instant::now() + LOOK > until {
                return Ok(Entry::Blocked(blocked));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Takes again what an activity held whose executor is gone. It goes on in any case, so what somebody else has by now
    /// is only said.
    pub async fn retake(&self, tenant: &TenantId, call: CallId, needs: &Needs) -> Held {
        match self.try_all(tenant, call, needs).await {
            Ok(Ok(held)) => held,
            Ok(Err(blocked)) => {
                tracing::warn!(%call, blocked, "an activity goes on without what it had locked: somebody else has it now");
                Held::default()
            }
            Err(error) => {
                tracing::warn!(%call, %error, "an activity goes on without what it had locked");
                Held::default()
            }
        }
    }

    /// All or nothing: what was taken before something that can't be had is given up before anything is said.
    async fn try_all(
        &self,
        tenant: &TenantId,
        call: CallId,
        needs: &Needs,
    ) -> Result<Result<Held, String>, EngineError> {
        let mut held = Held::default();
        // A set, so everybody takes them in the same order: two calls that want the same meet at the first of them.
        for lock in &needs.locks {
            match self.lease(&format!("lock/{tenant}/{lock}"), call).await {
                Ok(Some(lease)) => held.0.push(lease),
                Ok(None) => {
                    held.release().await;
                    return Ok(Err(format!("another call holds `{lock}`")));
                }
                Err(error) => {
                    held.release().await;
                    return Err(error);
                }
            }
        }
        let Some((target, places)) = &needs.place else { return Ok(Ok(held)) };
        match self.place(target, *places, call).await {
            Ok(Some(lease)) => {
                held.0.push(lease);
                Ok(Ok(held))
            }
            Ok(None) => {
                held.release().await;
                Ok(Err(format!("{places} calls to `{target}` are under way, and no more are allowed at once")))
            }
            Err(error) => {
                held.release().await;
                Err(error)
            }
        }
    }

    async fn place(&self, target: &str, places: u32, call: CallId) -> Result<Option<Lease>, EngineError> {
        let names: Vec<_> = (0..places).map(|place| format!("place/{target}/{place}")).collect();
        let taken = self.leases.held_many(&names).await?;
        for (name, _) in names.iter().zip(taken).filter(|(_, taken)| !taken) {
            if let Some(lease) = self.lease(name, call).await? {
                return Ok(Some(lease));
            }
        }
        Ok(None)
    }

    async fn lease(&self, name: &str, call: CallId) -> Result<Option<Lease>, EngineError> {
        self.leases.acquire_for(name, &call.to_string(), self.ttl).await
    }
}

/// The call of the same turn that has to end before this one may begin.
///
/// Two calls may run at once if both are declared to run beside others and they touch different resources. Of two that may
/// not, the one that was asked for first goes first; one that waits for a person lets the others pass, and so do those that are
/// held up otherwise.
pub(crate) fn ahead<'s>(state: &'s RunState, call: &Call, registry: &Registry, held_up: &[CallId]) -> Option<&'s Call> {
    let mut others = state.calls.values().filter(|other| {
        other.turn_id == call.turn_id
            && other.request.call_id != call.request.call_id
            && !held_up.contains(&other.request.call_id)
            && (other.is_started() || (other.status != CallStatus::AwaitingApproval && before(other, call)))
    });
    // Most turns ask for one call: then nothing is looked up.
    let first = others.next()?;
    let own = registry.manners(state, call);
    std::iter::once(first).chain(others).find(|other| own.conflict_with(&registry.manners(state, other)))
}

fn before(one: &Call, other: &Call) -> bool {
    (one.asked, one.request.call_id) < (other.asked, other.request.call_id)
}

/// How a call behaves beside others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manners {
    pub parallel: bool,
    pub locks: BTreeSet<String>,
}

impl Manners {
    fn conflict_with(&self, other: &Self) -> bool {
        !self.parallel || !other.parallel || !self.locks.is_disjoint(&other.locks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manners(parallel: bool, locks: &[&str]) -> Manners {
        Manners { parallel, locks: locks.iter().map(|lock| (*lock).to_owned()).collect() }
    }

    #[test]
    fn only_what_is_declared_and_touches_nothing_in_common_runs_at_once() {
        let free = manners(true, &[]);
        assert!(!free.conflict_with(&free));
        assert!(free.conflict_with(&manners(false, &[])) && manners(false, &[]).conflict_with(&free));
        assert!(!manners(true, &["a"]).conflict_with(&manners(true, &["b"])));
        assert!(manners(true, &["a", "b"]).conflict_with(&manners(true, &["b", "c"])));
    }
}
