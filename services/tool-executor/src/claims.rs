//! Which calls this process works on: messages about one call may come side by side.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use kernel::CallId;

/// The calls that are worked on here.
#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<HashSet<CallId>>);

/// Keeps a call from being worked on twice by one process, until it is dropped.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    claims: &'a Claims,
    call: CallId,
}

impl Claims {
    /// The call, if nobody here has it.
    pub fn take(&self, call: CallId) -> Option<Claim<'_>> {
        let is_free = self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(call);
        // Made only for who has it: dropping one gives the call back.
        is_free.then(|| Claim { claims: self, call })
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.claims.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_too_late_leaves_the_call_to_who_has_it() {
        let (claims, call) = (Claims::default(), CallId::mint());
        let first = claims.take(call);
        assert!(first.is_some());
        assert!(claims.take(call).is_none());
        assert!(claims.take(call).is_none(), "that one was refused gives nothing back");
        assert!(claims.take(CallId::mint()).is_some());
        drop(first);
        assert!(claims.take(call).is_some());
    }
}
