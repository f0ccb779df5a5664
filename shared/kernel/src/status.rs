//! The statuses of a run and the table of legal transitions between them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where a run stands. `running` is not among them: it is `runnable` with a live lease, and only reads show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Waits for admission: its tenant runs as much as it may.
    Queued,
    /// A turn is open: a planner should take it.
    Runnable,
    /// Nothing to do until one of its waits, calls or approvals is answered.
    Waiting,
    /// Held by an operator; facts are still recorded.
    Paused,
    /// Ending: no new work starts; started calls are being stopped.
    Cancelling,
    /// Ended with its objective reached.
    Completed,
    /// Ended without.
    Failed,
    /// Ended by an operator.
    Cancelled,
}

use Status::{Cancelled, Cancelling, Completed, Failed, Paused, Queued, Runnable, Waiting};

impl Status {
    /// All of them.
    pub const ALL: [Self; 8] = [Queued, Runnable, Waiting, Paused, Cancelling, Completed, Failed, Cancelled];

    /// Whether nothing can follow.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Completed | Failed | Cancelled)
    }

    /// The statuses that one commit may lead to from here. Staying is always allowed, except that terminal runs change no more.
    #[must_use]
    pub const fn next(self) -> &'static [Self] {
        match self {
            // One without any budget asks for it before it begins.
            Queued => &[Runnable, Waiting, Paused, Cancelled, Failed],
            Runnable => &[Waiting, Paused, Cancelling, Completed, Failed, Cancelled],
            Waiting => &[Runnable, Paused, Cancelling, Completed, Failed, Cancelled],
            Paused => &[Queued, Runnable, Waiting, Cancelling, Completed, Failed, Cancelled],
            Cancelling => &[Completed, Failed, Cancelled],
            Completed | Failed | Cancelled => &[],
        }
    }

    /// Whether one commit may lead from here to `to`.
    #[must_use]
    pub fn may_become(self, to: Self) -> bool {
        (self == to && !self.is_terminal()) || self.next().contains(&to)
    }

    /// The name used on the wire and in Postgres.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Queued => "queued",
            Runnable => "runnable",
            Waiting => "waiting",
            Paused => "paused",
            Cancelling => "cancelling",
            Completed => "completed",
            Failed => "failed",
            Cancelled => "cancelled",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_is_terminal() {
        for from in Status::ALL.into_iter().filter(|status| status.is_terminal()) {
            for to in Status::ALL {
                assert!(!from.may_become(to), "{from:?} -> {to:?}");
            }
        }
    }

    #[test]
    fn names_are_the_wire_names() {
        for status in Status::ALL {
            assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
        }
    }
}
