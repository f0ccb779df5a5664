//! What a line says, by the rules.

use kernel::observe::WakeWhen;

use super::OWN_SCORE;
use crate::timed::TimedHit;

/// Packs whose programs were recognised, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Active(pub u32);

impl Active {
    pub(super) fn has(self, pack: u8) -> bool {
        self.0 & (1 << pack) != 0
    }
}

/// What a line says, by the rules.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hits {
    /// It shows a failure.
    pub failure: Option<Failure>,
    /// It says that something went well.
    pub success: bool,
    /// A program's last word on whether it went well.
    pub verdict: Option<bool>,
    /// How far it has come.
    pub progress: Option<Progress>,
    /// It begins or ends a section, by its place.
    pub section: Option<Edge>,
    /// What counts for windows of time.
    pub timed: Vec<TimedHit>,
}

/// An end of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// It begins here.
    From(usize),
    /// It ends here.
    To(usize),
}

/// A line that shows a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which rule, by its place.
    pub rule: usize,
    /// How likely the line is the cause itself.
    pub score: u8,
    /// Whether and when it wakes while the program runs.
    pub wake: WakeWhen,
    /// It only says that something failed before it.
    pub is_consequence: bool,
    /// Lines before it that explain it.
    pub before: usize,
    /// Lines after it that explain it.
    pub after: usize,
    /// Where in the line, roughly.
    pub at: usize,
}

impl Failure {
    /// Whether it is worth waking for while the program runs.
    #[must_use]
    pub const fn wakes(&self) -> bool {
        matches!(self.wake, WakeWhen::Now | WakeWhen::Settled)
    }

    /// Whether the agent itself calls it one.
    #[must_use]
    pub const fn is_own(&self) -> bool {
        self.score == OWN_SCORE
    }
}

/// How far the output says that the program is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// In the program's own words: outside text.
    pub phase: Option<String>,
    /// Of the whole.
    pub percent: Option<u8>,
}

impl Progress {
    /// With what another one says beyond it.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self { phase: self.phase.or(other.phase), percent: self.percent.or(other.percent) }
    }
}
