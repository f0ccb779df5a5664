//! Tool calls, their approvals, and what an observer concludes about them.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    ids::{ApprovalId, CallId, Seq, StandingId, TimerId, TurnId},
    tool::{self, CallKind, Effect},
    trust::{Block, Trust},
    units::Duration,
};

/// A tool call as a turn asks for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CallRequest {
    /// Derived from the turn and the call's place in it.
    pub call_id: CallId,
    /// Which tool.
    pub tool: String,
    /// With what.
    pub arguments: serde_json::Value,
    /// Whether it answers or goes on by itself.
    #[serde(default)]
    pub kind: CallKind,
    /// What it does to the world.
    pub effect: Effect,
    /// Whether doing it twice is the same as doing it once.
    #[serde(default)]
    pub idempotent: bool,
    /// Digest of the tool's declaration that the model saw.
    pub schema_digest: String,
    /// The least trusted thing that the model saw when it asked.
    pub trust: Trust,
    /// How long one attempt may take.
    pub timeout: Duration,
    /// Whether its effect can be undone, or whether it undoes another one's.
    #[serde(default, skip_serializing_if = "Compensation::is_none")]
    pub compensation: Compensation,
}

impl CallRequest {
    /// Whether it undoes the effect of another call: then it is the runtime's, and runs while the run is ending.
    #[must_use]
    pub const fn is_compensation(&self) -> bool {
        matches!(self.compensation, Compensation::Of(_))
    }
}

/// What a call has to do with undoing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Compensation {
    /// Nothing.
    #[default]
    None,
    /// Its tool says how its effect is undone, should the run be cancelled or fail.
    Declared,
    /// It undoes the effect of this call.
    Of(CallId),
}

impl Compensation {
    fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// What is done about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorClass {
    /// The model is told: it may call otherwise.
    GiveBack,
    /// It may pass: another attempt follows, later and later.
    Retry,
    /// Nothing that a model or time could change: a person has to.
    Stop,
}

impl ErrorClass {
    /// The name used on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::GiveBack => "give_back",
            Self::Retry => "retry",
            Self::Stop => "stop",
        }
    }
}

/// An attempt of a call that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Attempt {
    /// From 1, over all starts of the call; dry runs are counted apart.
    pub number: u32,
    /// When it began.
    #[schemars(with = "String")]
    pub began: Timestamp,
    /// How long it took, in milliseconds.
    #[serde(default)]
    pub took_ms: u64,
    /// What is done about it.
    pub class: ErrorClass,
    /// A stable word, as in `tool.failed`.
    pub code: String,
    /// What went wrong. May hold text from outside: data, like any other.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub said: String,
    /// The host, server or tool that it went to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// It only tried the call out, since a policy obliges to that: a dry run has attempts of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// A call that is put off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PutOff {
    /// The timer that lets it go on.
    pub timer_id: TimerId,
    /// When.
    #[schemars(with = "String")]
    pub until: Timestamp,
}

/// How far a call has come. Ended calls leave the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CallStatus {
    /// An executor should take it.
    Requested,
    /// A person was asked.
    AwaitingApproval,
    /// A person said yes; an executor should take it.
    Approved,
    /// Its effect may have happened.
    Started,
    /// Its executor is gone: its effect may or may not have happened.
    InDoubt,
}

/// A person's yes, bound to exactly what was shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Grant {
    /// Which approval.
    pub approval_id: ApprovalId,
    /// What it binds to.
    pub binding: Binding,
    /// The standing approval that gave it in place of a person; void once that is revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standing: Option<StandingId>,
    /// The other person, who had said yes to the same before, if two were asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endorsed_by: Option<String>,
}

/// The first yes to a question that takes two people. It is bound like a grant, belongs to one question, and goes with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Endorsement {
    /// The authenticated operator.
    pub by: String,
    /// Names that may be the same person's, see [`Endorsement::may_be_of`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// When.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// The arguments as the operator edited them: the other person has to agree to these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<serde_json::Value>,
    /// What the yes is bound to.
    pub binding: Binding,
    /// What the operator wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Endorsement {
    /// Whether it may have been given by this person, as far as anybody can know: under the same name, or with a token that one
    /// of the two made, and so had in hand.
    #[must_use]
    pub fn may_be_of(&self, name: &str, aliases: &[String]) -> bool {
        self.by == name || self.aliases.iter().any(|alias| alias == name) || aliases.contains(&self.by)
    }
}

/// What an approval is bound to: if anything of it changed by the time of dispatch, it is void.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Binding {
    /// SHA-256 of the canonical arguments.
    pub arguments: String,
    /// Digest of the tool's declaration.
    pub schema: String,
    /// Version of the policies that asked.
    pub policy: String,
}

/// An open call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Call {
    /// What was asked for (with the arguments as a person edited them, if one did).
    pub request: CallRequest,
    /// The turn that asked.
    pub turn_id: TurnId,
    /// The event that asked, so that the calls of one turn have an order.
    pub asked: Seq,
    /// How far it has come.
    pub status: CallStatus,
    /// Starts so far.
    pub attempts: u32,
    /// When it last started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub started_at: Option<Timestamp>,
    /// Which executor instance started it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
    /// The approval that holds it or lets it pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval_id: Option<ApprovalId>,
    /// The yes, once given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<Grant>,
    /// Attempts that failed, over all starts.
    #[serde(default)]
    pub failed_attempts: u32,
    /// Dry runs of it that failed and were followed by another, since it was asked for or agreed to.
    #[serde(default)]
    pub failed_dry_runs: u32,
    /// Until when nobody should take it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub put_off: Option<PutOff>,
    /// Where it goes on outside, for an activity that lives there: what its status is asked with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<serde_json::Value>,
}

impl Call {
    /// Just asked for, by the event `asked`.
    #[must_use]
    pub const fn requested(request: CallRequest, turn_id: TurnId, asked: Seq) -> Self {
        Self {
            request,
            turn_id,
            asked,
            status: CallStatus::Requested,
            attempts: 0,
            started_at: None,
            executor: None,
            approval_id: None,
            grant: None,
            failed_attempts: 0,
            failed_dry_runs: 0,
            put_off: None,
            handle: None,
        }
    }

    /// Whether `tool.started` must come before its effect.
    #[must_use]
    pub const fn needs_start(&self) -> bool {
        tool::needs_start(self.request.kind, self.request.effect, self.request.idempotent)
    }

    /// Whether its effect may have happened.
    #[must_use]
    pub const fn is_started(&self) -> bool {
        matches!(self.status, CallStatus::Started | CallStatus::InDoubt)
    }

    /// The key that goes out with every attempt, so that the other side can tell a repetition.
    #[must_use]
    pub fn idempotency_key(&self) -> String {
        self.request.call_id.to_string()
    }
}

/// How a call ended well.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CallResult {
    /// What the model is shown: the result or an excerpt of it.
    pub block: Block,
    /// The structured result, if small.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<serde_json::Value>,
    /// The artifact that holds the whole, if it was cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<ArtifactRef>,
    /// How long the attempt took, in milliseconds.
    #[serde(default)]
    pub duration_ms: u64,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CallFailure {
    /// What the model is shown.
    pub block: Block,
    /// A stable word, such as `timeout`, `http_status`, `exit_status`, `unknown_tool`, `invalid_arguments`.
    pub code: String,
    /// How long the attempt took, in milliseconds.
    #[serde(default)]
    pub duration_ms: u64,
}

/// A reference to a version of an artifact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ArtifactRef {
    /// Which artifact.
    pub artifact_id: crate::ArtifactId,
    /// Its name within the run.
    pub name: String,
    /// Which version, from 1.
    pub version: u32,
    /// SHA-256 of the content, hex.
    pub digest: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Media type.
    pub media_type: String,
    /// How far its content may be believed.
    pub trust: Trust,
}

/// A question to a person.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Approval {
    /// Its id, derived from what asks.
    pub approval_id: ApprovalId,
    /// The call that it lets pass; none for a plain question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<CallId>,
    /// What is asked, in words.
    pub question: Block,
    /// Which tool: for a call, or if a tool itself asks while it is at work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The arguments as shown; if a tool asks, what it would be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<serde_json::Value>,
    /// What the yes is bound to.
    #[serde(default)]
    pub binding: Binding,
    /// The lowest trust behind the arguments.
    pub trust: Trust,
    /// The policies that asked, with their words.
    #[serde(default)]
    pub reasons: Vec<String>,
    /// Whether it takes the yes of two different people. One no is enough.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub two_people: bool,
    /// What the person is shown beside it. It stays in the log; the state of the run has no use for it.
    #[serde(default, skip_serializing_if = "Shown::is_empty")]
    pub shown: Shown,
    /// When no answer becomes a no.
    #[schemars(with = "String")]
    pub expires_at: Timestamp,
}

/// What a person is shown of a call, to decide on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Shown {
    /// Where the arguments come from.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub origins: Vec<ArgumentOrigin>,
    /// What the model said when it asked for the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub said: Option<Block>,
    /// What the model had before it: what it was woken by, the latest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<Block>,
    /// Digest of the call's shape: of what decides in its arguments and of the kinds of the rest. None if nobody may allow
    /// all calls of that shape once and for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shape: Option<String>,
}

impl Shown {
    /// Whether there is nothing to show.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Where an argument of a call comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ArgumentOrigin {
    /// JSON pointer into the arguments.
    pub pointer: String,
    /// The highest trust of the places that hold all of it.
    pub trust: Trust,
    /// That place, such as `operator:ann`; `nowhere` if it was not found.
    pub source: String,
    /// How it was found, in words.
    pub rule: String,
    /// Whether it decides.
    pub matters: bool,
}

impl Approval {
    /// Whether the run itself asks: neither a call that is held for it, nor a tool that needs something while it is at work.
    #[must_use]
    pub const fn is_question(&self) -> bool {
        self.call_id.is_none() && self.tool.is_none()
    }
}

/// What a person may answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Yes.
    Approve,
    /// No.
    Deny,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Exit {
    /// Exit status, if it ended by itself.
    pub code: Option<i32>,
    /// Signal that ended it.
    pub signal: Option<i32>,
    /// `exited`, `timeout`, `cancelled`, `output_cap`, `process_cap`, `memory_cap` or `lost`.
    pub reason: String,
    /// Bytes of output in all.
    pub bytes: u64,
    /// Lines of output in all.
    pub lines: u64,
}

impl Exit {
    /// Whether it ended by itself with status 0.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.reason == "exited" && self.code == Some(0)
    }
}

/// What an observer concluded from signals: what changed, never what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Observation {
    /// The call whose output was observed, if it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<CallId>,
    /// `started`, `progress`, `failure`, `silence`, `completed`, …
    pub phase: String,
    /// What changed since the last report, in one or two sentences.
    pub changed: String,
    /// Whether this is out of the ordinary.
    #[serde(default)]
    pub anomaly: bool,
    /// Why a decision is needed; none means the model is left asleep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<String>,
    /// The least that shows it.
    #[serde(default)]
    pub evidence: Vec<Evidence>,
    /// What could not be seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// What it was concluded from.
    #[serde(default)]
    pub counts: SignalCounts,
}

impl Observation {
    /// What a model is shown of it: what changed, the evidence, what is missing. Text from outside.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = self.changed.clone();
        for evidence in &self.evidence {
            text.push_str(&format!("\n--- line {} ({})\n{}", evidence.line, evidence.rule, evidence.excerpt));
        }
        if let Some(missing) = &self.missing {
            text.push_str(&format!("\nmissing: {missing}"));
        }
        text
    }
}

/// An excerpt of raw output and where it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    /// The lines.
    pub excerpt: String,
    /// Byte offset of the excerpt in the stream.
    pub offset: u64,
    /// Number of its first line, from 1.
    pub line: u64,
    /// The rule that picked it.
    pub rule: String,
    /// The service whose log it is from. Then `offset` is the number of the message that held it, and `line` its place there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// When that message was stored: message numbers begin anew if a stream is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub at: Option<Timestamp>,
}

/// Signals behind an observation, since the start of the call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SignalCounts {
    /// Frames read.
    pub frames: u64,
    /// Lines read.
    pub lines: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Observations folded into state without a wake.
    pub suppressed: u64,
    /// Bytes known to be missing.
    pub gap_bytes: u64,
}
