//! Facts about a run. The names are literals on the wire and in the log: they never follow a Rust name.

mod contents;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use contents::*;

pub use crate::fork::RunForked;
use crate::ids::{RunId, Seq, TenantId};

/// An event in its place: what `decide` makes and `apply` folds.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Its number within the run.
    pub seq: Seq,
    /// When it was decided.
    pub at: Timestamp,
    /// What happened.
    pub data: EventData,
}

/// A stored event that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// No such type is known to this version.
    #[error("event type `{0}` is not known to this version; run the newer one")]
    UnknownType(String),
    /// A later version than this code knows.
    #[error("event `{event_type}` has version {version}, this version reads up to {known}; run the newer one")]
    TooNew {
        /// The type.
        event_type: String,
        /// Its version.
        version: u16,
        /// The newest version known.
        known: u16,
    },
    /// The content does not fit the type.
    #[error("event `{event_type}` version {version} does not decode")]
    Malformed {
        /// The type.
        event_type: String,
        /// Its version.
        version: u16,
        /// What serde says.
        #[source]
        source: serde_json::Error,
    },
}

macro_rules! events {
    ($($(#[$doc:meta])* $variant:ident = $name:literal v $version:literal;)*) => {
        /// What happened, by type.
        #[derive(Clone, Debug, PartialEq)]
        pub enum EventData {
            $($(#[$doc])* $variant($variant),)*
        }

        impl EventData {
            /// All type names.
            pub const TYPES: &'static [&'static str] = &[$($name),*];

            /// The name of its type: a literal, pinned by golden files.
            #[must_use]
            pub const fn type_name(&self) -> &'static str {
                match self { $(Self::$variant(_) => $name,)* }
            }

            /// The version in which this code writes it.
            #[must_use]
            pub const fn version(&self) -> u16 {
                match self { $(Self::$variant(_) => $version,)* }
            }

            /// Its content as JSON.
            ///
            /// # Errors
            /// None for values that came through a door: maps have string keys and numbers are finite.
            pub fn encode(&self) -> Result<String, serde_json::Error> {
                match self { $(Self::$variant(data) => serde_json::to_string(data),)* }
            }

            /// Reads a stored event, lifting older versions.
            ///
            /// # Errors
            /// [`DecodeError`], naming the type.
            pub fn decode(event_type: &str, version: u16, data: &str) -> Result<Self, DecodeError> {
                match event_type {
                    $($name => {
                        if version > $version {
                            return Err(DecodeError::TooNew {
                                event_type: event_type.to_owned(), version, known: $version,
                            });
                        }
                        crate::upcast::decode(event_type, version, data).map(Self::$variant)
                    })*
                    _ => Err(DecodeError::UnknownType(event_type.to_owned())),
                }
            }

            /// The JSON Schema of each type's content, by name.
            #[must_use]
            pub fn schemas() -> Vec<(&'static str, u16, schemars::Schema)> {
                vec![$(($name, $version, schemars::schema_for!($variant))),*]
            }
        }

        $(impl From<$variant> for EventData {
            fn from(data: $variant) -> Self {
                Self::$variant(data)
            }
        })*
    };
}

events! {
    /// A run exists.
    RunCreated = "run.created" v 1;
    /// It waits for admission.
    RunQueued = "run.queued" v 1;
    /// A turn is open.
    RunRunnable = "run.runnable" v 1;
    /// It sleeps on a registered wait.
    RunWaiting = "run.waiting" v 1;
    /// An operator holds it.
    RunPaused = "run.paused" v 1;
    /// An operator lets it go on.
    RunResumed = "run.resumed" v 1;
    /// It is ending and started calls have to stop.
    RunCancelRequested = "run.cancel_requested" v 1;
    /// It ended with its objective reached.
    RunCompleted = "run.completed" v 1;
    /// It ended without.
    RunFailed = "run.failed" v 1;
    /// An operator ended it.
    RunCancelled = "run.cancelled" v 1;
    /// It goes on from where another run stood.
    RunForked = "run.forked" v 1;
    /// An operator changed what it is to reach, or with what.
    RunRevised = "run.revised" v 1;
    /// A turn's outcome was committed.
    TurnCompleted = "turn.completed" v 1;
    /// A turn's outcome was refused; its cost stays.
    TurnRejected = "turn.rejected" v 1;
    /// Something was paid for a turn that nothing came of, and that does not end by it.
    TurnCharged = "turn.charged" v 1;
    /// Something was said in the run.
    MessageAdded = "message.added" v 1;
    /// The plan changed.
    PlanUpdated = "plan.updated" v 1;
    /// A run says that it is done, and that is being looked into.
    AcceptanceRequested = "acceptance.requested" v 1;
    /// It was looked into.
    AcceptanceJudged = "acceptance.judged" v 1;
    /// Older history became a summary.
    ContextCompacted = "context.compacted" v 1;
    /// A run begins anew, with a handoff.
    ContextReset = "context.reset" v 1;
    /// A run goes in circles.
    DriftNoticed = "drift.noticed" v 1;
    /// A tool call was asked for.
    ToolRequested = "tool.requested" v 1;
    /// It may not happen.
    ToolDenied = "tool.denied" v 1;
    /// Its effect is about to happen.
    ToolStarted = "tool.started" v 1;
    /// Something is known of it that is not its end.
    ToolProgressed = "tool.progressed" v 1;
    /// It was put off until now.
    ToolDue = "tool.due" v 1;
    /// It ended well.
    ToolCompleted = "tool.completed" v 1;
    /// It ended badly.
    ToolFailed = "tool.failed" v 1;
    /// It was stopped or never started.
    ToolCancelled = "tool.cancelled" v 1;
    /// Nobody knows whether it happened.
    ToolInDoubt = "tool.in_doubt" v 1;
    /// The doubt was looked into.
    ToolReconciled = "tool.reconciled" v 1;
    /// A child run was asked for.
    SubagentStarted = "subagent.started" v 1;
    /// It ended with its task done.
    SubagentCompleted = "subagent.completed" v 1;
    /// It ended without.
    SubagentFailed = "subagent.failed" v 1;
    /// It was ended by others.
    SubagentCancelled = "subagent.cancelled" v 1;
    /// An observer concluded something.
    ObservationRecorded = "observation.recorded" v 1;
    /// A wait was registered.
    WaitRegistered = "wait.registered" v 1;
    /// A wait holds.
    WaitSatisfied = "wait.satisfied" v 1;
    /// A wait's deadline came first.
    WaitExpired = "wait.expired" v 1;
    /// A wait was replaced, or its run is ending.
    WaitCancelled = "wait.cancelled" v 1;
    /// Something is due at a time.
    TimerSet = "timer.set" v 1;
    /// That time has come.
    TimerFired = "timer.fired" v 1;
    /// It is no longer wanted.
    TimerCancelled = "timer.cancelled" v 1;
    /// A person is asked.
    ApprovalRequested = "approval.requested" v 1;
    /// A person said yes, and another one has to.
    ApprovalEndorsed = "approval.endorsed" v 1;
    /// A person said yes.
    ApprovalGranted = "approval.granted" v 1;
    /// A person said no.
    ApprovalDenied = "approval.denied" v 1;
    /// No answer came in time, or none is needed any more.
    ApprovalExpired = "approval.expired" v 1;
    /// An artifact's first version.
    ArtifactCreated = "artifact.created" v 1;
    /// A later version of an artifact.
    ArtifactUpdated = "artifact.updated" v 1;
    /// Something is remembered for later runs.
    MemoryWritten = "memory.written" v 1;
    /// It is forgotten.
    MemoryDeleted = "memory.deleted" v 1;
    /// A skill was opened, and is kept as it was then.
    SkillOpened = "skill.opened" v 1;
    /// A limit was reached.
    BudgetExceeded = "budget.exceeded" v 1;
    /// The limits changed.
    BudgetChanged = "budget.changed" v 1;
    /// Somebody vouches for a text from outside.
    TrustDeclassified = "trust.declassified" v 1;
    /// An event from outside met this run's wait.
    ExternalMatched = "external.matched" v 1;
}

/// The run that an event belongs to, with what readers outside need of its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// Which run.
    pub run_id: RunId,
    /// Whose run.
    pub tenant: TenantId,
    /// The event in its place.
    pub event: Event,
    /// What caused it.
    pub cause: Cause,
}

/// What led to a commit: kept with its events, so that an effect can be followed back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Cause {
    /// The service that submitted.
    #[serde(default)]
    pub service: String,
    /// The event (seq of the same run) that it acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<Seq>,
    /// W3C `traceparent` of the span that it acted in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// The person behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<String>,
}
