//! What a run waits for, and what comes of that: timers, answers of people, events from outside.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    call::{Approval, Binding, Endorsement},
    ids::{ApprovalId, Seq, StandingId, TimerId, WaitId},
    trust::Block,
    wait::{Wait, WakeKind},
};

content! {
    /// Content of `wait.registered`.
    WaitRegistered {
        /// The wait.
        wait: Wait,
    }
    /// Content of `wait.satisfied`.
    WaitSatisfied {
        /// Which wait.
        wait_id: WaitId,
        /// The seq of the fact that did it.
        by: Seq,
        /// What kind of fact.
        kind: WakeKind,
    }
    /// Content of `wait.expired`.
    WaitExpired {
        /// Which wait.
        wait_id: WaitId,
    }
    /// Content of `wait.cancelled`.
    WaitCancelled {
        /// Which wait.
        wait_id: WaitId,
        /// Why.
        reason: String,
    }
    /// Content of `timer.set`.
    TimerSet {
        /// Which timer.
        timer_id: TimerId,
        /// When it is due.
        #[schemars(with = "String")]
        due: Timestamp,
        /// What for.
        purpose: TimerPurpose,
    }
    /// Content of `timer.fired`.
    TimerFired {
        /// Which timer.
        timer_id: TimerId,
        /// When it was due.
        #[schemars(with = "String")]
        due: Timestamp,
    }
    /// Content of `timer.cancelled`.
    TimerCancelled {
        /// Which timers.
        timer_ids: Vec<TimerId>,
    }
    /// Content of `approval.requested`.
    ApprovalRequested {
        /// The question.
        approval: Approval,
    }
    /// Content of `approval.endorsed`: the first yes to a question that takes two people.
    ApprovalEndorsed {
        /// Which approval.
        approval_id: ApprovalId,
        /// The authenticated operator.
        by: String,
        /// Names that may be the same person's: of whoever made the token that they came with.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        aliases: Vec<String>,
        /// The arguments as the operator edited them: the other person has to agree to these.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        arguments: Option<serde_json::Value>,
        /// What the yes is bound to.
        binding: Binding,
        /// What the operator wrote.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    }
    /// Content of `approval.granted`.
    ApprovalGranted {
        /// Which approval.
        approval_id: ApprovalId,
        /// The authenticated operator.
        by: String,
        /// The arguments as the operator edited them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        arguments: Option<serde_json::Value>,
        /// What the yes is bound to.
        binding: Binding,
        /// What the operator wrote.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// The standing approval that decided in the operator's name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        standing: Option<StandingId>,
        /// Who had said yes to the same before, where two people have to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        endorsed_by: Option<String>,
        /// Names that may be the operator's own, where two people have to: of whoever made the token that they came with.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        aliases: Vec<String>,
    }
    /// Content of `approval.denied`.
    ApprovalDenied {
        /// Which approval.
        approval_id: ApprovalId,
        /// The authenticated operator.
        by: String,
        /// What the operator wrote; the model sees it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    }
    /// Content of `approval.expired`.
    ApprovalExpired {
        /// Which approval.
        approval_id: ApprovalId,
        /// `no_answer`, or why it is moot.
        reason: String,
    }
    /// Content of `external.matched`.
    ExternalMatched {
        /// Which outside event.
        external: ExternalRef,
        /// Which wait.
        wait_id: WaitId,
        /// Which condition of it.
        leaf: u16,
        /// What the event says: always data.
        block: Block,
    }
    /// An event from outside, by its coordinates.
    ExternalRef {
        /// Its place in the table of outside events.
        position: i64,
        /// Source token, such as `github`.
        source: String,
        /// CloudEvent id.
        id: String,
        /// CloudEvent type.
        event_type: String,
        /// `<source>:<subject>`.
        resource_key: String,
        /// W3C trace context that came with it, for a span link.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        traceparent: Option<String>,
    }
}

impl ApprovalEndorsed {
    /// What is kept of it, as of `at`.
    #[must_use]
    pub fn endorsement(&self, at: Timestamp) -> Endorsement {
        let Self { by, aliases, arguments, binding, reason, .. } = self.clone();
        Endorsement { by, aliases, at, arguments, binding, reason }
    }
}

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TimerPurpose {
    /// A condition of a wait.
    Wait,
    /// A wait's deadline.
    Deadline,
    /// The run's wall time is used up.
    Wall,
    /// A call that was put off may go on.
    Retry,
}
