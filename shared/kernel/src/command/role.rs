//! The services, as far as authority goes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The services, as far as authority goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The public door.
    Ingress,
    /// Decides what to want.
    Planner,
    /// Touches the world.
    ToolExecutor,
    /// Concludes.
    Observer,
    /// Keeps time.
    Scheduler,
    /// Asks people.
    Approval,
    /// Keeps content.
    Artifact,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Ingress,
        Self::Planner,
        Self::ToolExecutor,
        Self::Observer,
        Self::Scheduler,
        Self::Approval,
        Self::Artifact,
    ];

    /// The service's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Planner => "planner",
            Self::ToolExecutor => "tool-executor",
            Self::Observer => "observer",
            Self::Scheduler => "scheduler",
            Self::Approval => "approval",
            Self::Artifact => "artifact",
        }
    }

    /// Whether this service may put an event of this type into the log. What only one kind of authority may say is only
    /// its service's to write; the consequences that any command may have are everybody's.
    #[must_use]
    pub fn may_write(self, event_type: &str) -> bool {
        match event_type {
            "run.created" | "run.queued" | "run.paused" | "run.resumed" | "budget.changed" => {
                matches!(self, Self::Ingress | Self::Scheduler)
            }
            "run.forked" | "run.revised" | "trust.declassified" => self == Self::Ingress,
            "memory.written" | "memory.deleted" | "skill.opened" => self == Self::Planner,
            "turn.completed"
            | "turn.rejected"
            | "turn.charged"
            | "plan.updated"
            | "wait.registered"
            | "run.waiting"
            | "acceptance.requested"
            | "acceptance.judged"
            | "context.compacted"
            | "context.reset"
            | "drift.noticed" => self == Self::Planner,
            "tool.requested" => matches!(self, Self::Planner | Self::ToolExecutor),
            "artifact.created" | "artifact.updated" => {
                matches!(self, Self::Planner | Self::Artifact | Self::Ingress)
            }
            "message.added" => matches!(self, Self::Ingress | Self::Planner),
            "tool.started" | "tool.progressed" | "tool.in_doubt" | "tool.reconciled" => self == Self::ToolExecutor,
            "tool.completed" | "tool.failed" => matches!(self, Self::ToolExecutor | Self::Observer),
            "tool.denied" => matches!(self, Self::ToolExecutor | Self::Approval),
            "subagent.started" => matches!(self, Self::Planner | Self::Scheduler),
            "subagent.completed" | "subagent.failed" | "subagent.cancelled" => self == Self::Scheduler,
            "observation.recorded" => matches!(self, Self::Observer | Self::ToolExecutor),
            "approval.requested" => matches!(self, Self::ToolExecutor | Self::Planner),
            "approval.endorsed" | "approval.granted" | "approval.denied" => self == Self::Approval,
            "timer.fired" | "tool.due" => self == Self::Scheduler,
            "external.matched" => matches!(self, Self::Ingress | Self::Planner),
            _ => true,
        }
    }
}
