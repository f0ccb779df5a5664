//! Taking decisions: `svc.approval.decide`, asked by the public door on behalf of an authenticated person.

use std::time::Duration;

use bus::{Bus, BusError, Message, Problem, subject};
use bytes::Bytes;
use engine::{ApprovalRow, Engine, EngineError, Reads, SubmitError};
use kernel::{
    ApprovalId, Command, Rejection, RunId, RunState, Seq, StandingId, TenantId, Timestamp, call::Verdict,
    command::DecideApproval,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use service::{Tracer, telemetry::genai};
use uuid::Uuid;

use crate::{span_of, standing::Steward};

/// Roles of a person who may decide.
const MAY_DECIDE: [&str; 2] = ["operator", "admin"];
/// Most bytes of a person's name: who signs in has the address of their issuer in it.
const NAME_BYTES: usize = 2048;
/// Most bytes of what a person writes.
const REASON_BYTES: usize = 16 * 1024;
/// How long the tool-executor may take to judge edited arguments.
const PREVIEW_WITHIN: Duration = Duration::from_secs(5);

/// What is asked for.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Question {
    tenant: TenantId,
    approval_id: ApprovalId,
    decision: Verdict,
    /// The arguments as the person edited them.
    #[serde(default)]
    arguments: Option<Value>,
    /// In place of arguments: those that the first of two people has agreed to, by their digest.
    #[serde(default)]
    as_endorsed: Option<String>,
    #[serde(default)]
    reason: Option<String>,
    /// Whether all calls of this shape are allowed from now on.
    #[serde(default)]
    always: bool,
    /// The authenticated person.
    by: String,
    /// Names that may be the same person's: of whoever made the token that they came with. They count where two have to agree; a
    /// door that does not say them knows nothing of that, so there they may not be missing.
    #[serde(default)]
    aliases: Option<Vec<String>>,
    /// What the person may do.
    roles: Vec<String>,
    /// The same for every repetition of one request; each is its own otherwise.
    #[serde(default)]
    request_id: Option<String>,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Decided {
    approval_id: ApprovalId,
    run_id: RunId,
    /// `granted`, `denied`, or `endorsed` if it takes another person. That of the question: another answer may have ended it
    /// right after this one.
    state: &'static str,
    by: String,
    /// Of the arguments that a yes is to.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    /// The last event of the run.
    seq: Seq,
    /// What allows all calls of this shape from now on.
    #[serde(skip_serializing_if = "Option::is_none")]
    standing_id: Option<StandingId>,
}

/// Why not, for people; the code of its problem has the meaning of an HTTP status.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("the request can't be read: {0}")]
    Unreadable(serde_json::Error),
    #[error("{0}")]
    Invalid(&'static str),
    #[error("the edited arguments can't be used: {0}")]
    Edited(String),
    #[error("`{0}` may not decide: it takes the role `operator` or `admin`")]
    Role(String),
    #[error("there is no approval {0}")]
    Unknown(ApprovalId),
    #[error("{0}")]
    AlreadyDecided(String),
    #[error("already_endorsed: approval {0} takes two people, and {1}")]
    AlreadyEndorsed(ApprovalId, String),
    #[error(
        "endorsed_otherwise: approval {0} takes two people who agree to the same arguments, and `{1}` has agreed to others"
    )]
    EndorsedOtherwise(ApprovalId, String),
    #[error("not_endorsed: nobody has agreed to anything of approval {0} yet")]
    NotEndorsed(ApprovalId),
    #[error(
        "makers_unknown: approval {0} takes two people, and the service that asks does not say who made the token of this one: it is older than this service"
    )]
    MakersUnknown(ApprovalId),
    #[error("approval {0} expired at {1}")]
    Expired(ApprovalId, Timestamp),
    #[error(transparent)]
    Rejected(Rejection),
    #[error("the log can't be reached at the moment")]
    Unavailable(#[source] EngineError),
}

/// Takes decisions. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Decider {
    engine: Engine,
    reads: Reads,
    bus: Bus,
    steward: Steward,
    tracer: Tracer,
}

impl Decider {
    pub(crate) fn new(engine: &Engine, steward: Steward, tracer: Tracer) -> Self {
        Self { engine: engine.clone(), reads: engine.reads(), bus: engine.bus().clone(), steward, tracer }
    }

    /// Answers one request.
    pub(crate) async fn answer(self, message: Message) -> Result<Bytes, Problem> {
        let begun = std::time::Instant::now();
        let decided = self.decide(&message).await;
        let outcome = decided.as_ref().map_or("refused", |decided| decided.state);
        metrics::histogram!("approval_decide_seconds", "outcome" => outcome).record(begun.elapsed());
        let decided = decided.map_err(|refusal| refusal.problem())?;
        serde_json::to_vec(&decided).map(Bytes::from).map_err(|error| Problem::internal(error.to_string()))
    }

    async fn decide(&self, message: &Message) -> Result<Decided, Refusal> {
        let question = Question::read(&message.payload)?;
        let row = self.reads.approval(&question.tenant, question.approval_id).await.map_err(Refusal::Unavailable)?;
        let row = row.ok_or(Refusal::Unknown(question.approval_id))?;
        question.fits(&row)?;
        // Any snapshot will do that has what is answered: what else it lacks, the commit finds out.
        let run = self.engine.load_at_least(row.run_id, 0, |run| question.is_about(run)).await;
        let run = run.map_err(Refusal::Unavailable)?.ok_or(Refusal::Unknown(question.approval_id))?;
        let command = question.command(&row, &run)?;
        let digest = question.digest(&row, &command);
        self.preview(&row, &command).await?;
        let standing_id = self.propose(&question, &row, &run).await?;
        let (span, mut cause) = span_of(&self.tracer, "approve", &run);
        span.set_attribute("escapement.approval.id", question.approval_id.to_string());
        span.set_attribute("escapement.approval.decision", state_of(question.decision));
        span.set_attribute("escapement.approval.people", if question.takes_two(&run) { 2_i64 } else { 1 });
        span.set_attribute(genai::TENANT, row.tenant.to_string());
        if let Some(tool) = &row.tool {
            span.set_attribute(genai::TOOL_NAME, tool.clone());
        }
        cause.operator = Some(question.by.clone());
        let submitted = span.instrument(self.engine.submit_on(&run, command, question.key(), cause)).await;
        let committed = match submitted {
            Ok(committed) => committed,
            Err(error) => {
                span.record_error("refused", &error);
                // An earlier decision of the same person, without it, would be taken for the one that it was given with. Of what
                // failed otherwise nobody knows yet whether it was taken.
                if let (Some(id), SubmitError::Rejected(_)) = (standing_id, &error) {
                    self.withdraw(id).await;
                }
                return Err(refusal(error, &row, &question.by));
            }
        };
        let standing_id = self.conclude(standing_id, question.approval_id, &committed.state).await?;
        let state = question.outcome(&committed.state);
        span.set_attribute("escapement.approval.state", state);
        span.in_scope(|| {
            tracing::info!(
                standing = standing_id.map(|id| id.to_string()), approval_id = %question.approval_id, by = question.by, decision = state, "decided"
            );
        });
        Ok(Decided {
            approval_id: question.approval_id,
            run_id: row.run_id,
            state,
            by: question.by,
            digest,
            seq: committed.state.seq,
            standing_id,
        })
    }

    /// Has edited arguments judged by the schema and the policies, as they will be when the call is dispatched. If nobody can
    /// judge them now, that is when it is done.
    async fn preview(&self, row: &ApprovalRow, command: &Command) -> Result<(), Refusal> {
        let Command::DecideApproval(DecideApproval { edited: Some((arguments, _)), .. }) = command else {
            return Ok(());
        };
        let Some(call_id) = row.call_id.filter(|_| row.state == "open") else { return Ok(()) };
        let question = json!({
            "tenant": row.tenant, "run_id": row.run_id, "call_id": call_id, "approval_id": row.approval_id,
            "arguments": arguments,
        });
        let subject = subject::svc("tool-executor", "preview");
        match self.bus.request_json::<_, Value>(&subject, &question, PREVIEW_WITHIN).await {
            Ok(_) => Ok(()),
            Err(BusError::Refused { code: 422, message, .. }) => Err(Refusal::Edited(message)),
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "edited arguments are judged at dispatch only"
                );
                Ok(())
            }
        }
    }

    /// Writes down that all calls of this shape are allowed, to count once this decision is taken. Beside a decision that was
    /// taken before nothing new is written down: a repetition finds what the first time left.
    async fn propose(
        &self,
        question: &Question,
        row: &ApprovalRow,
        run: &RunState,
    ) -> Result<Option<StandingId>, Refusal> {
        if !question.always {
            return Ok(None);
        }
        if question.takes_two(run) {
            return Err(Refusal::Invalid("`always` is not for this: two people have to agree to each such call"));
        }
        if row.state != "open" {
            return Ok(Some(Steward::id_of(row, &question.by)));
        }
        let proposed = self.steward.propose(row, run, question.reason.as_deref(), &question.by).await;
        let id = proposed.map_err(Refusal::Unavailable)?;
        id.map(Some).ok_or(Refusal::Invalid(
            "`always` is not for this: what destroys, pays or moves things is asked about each time, and so are questions",
        ))
    }
}

impl Decider {
    /// Lets what was given with a decision count, if that is what the run has.
    async fn conclude(
        &self,
        standing: Option<StandingId>,
        approval: ApprovalId,
        run: &RunState,
    ) -> Result<Option<StandingId>, Refusal> {
        let Some(id) = standing else { return Ok(None) };
        if !run.decided.iter().any(|(decided, how)| *decided == approval && how == "approved") {
            self.withdraw(id).await;
            return Ok(None);
        }
        self.steward.confirm(id).await.map_err(Refusal::Unavailable)?;
        Ok(Some(id))
    }

    /// Lets what was given with a decision that was not taken not count.
    async fn withdraw(&self, id: StandingId) {
        if let Err(error) = self.steward.withdraw(id).await {
            tracing::error!(error = &error as &dyn std::error::Error, standing = %id, "a standing approval is not taken back");
        }
    }
}

impl Question {
    /// Reads and checks what needs no look at the log.
    fn read(body: &[u8]) -> Result<Self, Refusal> {
        let mut question: Self = serde_json::from_slice(body).map_err(Refusal::Unreadable)?;
        if question.by.is_empty() || question.by.len() > NAME_BYTES {
            return Err(Refusal::Invalid("`by` has to name the person"));
        }
        if !question.roles.iter().any(|role| MAY_DECIDE.contains(&role.as_str())) {
            return Err(Refusal::Role(question.by));
        }
        if question.arguments.is_some() && question.decision == Verdict::Deny {
            return Err(Refusal::Invalid("`arguments` make no sense with a no"));
        }
        if question.as_endorsed.is_some() && (question.decision == Verdict::Deny || question.arguments.is_some()) {
            return Err(Refusal::Invalid("`as_endorsed` goes with a yes, and without `arguments`"));
        }
        let otherwise = question.arguments.is_some() || question.as_endorsed.is_some();
        if question.always && (question.decision == Verdict::Deny || otherwise) {
            return Err(Refusal::Invalid("`always` goes with a yes to the arguments as shown"));
        }
        // Postgres takes no NUL.
        question.reason = question.reason.map(|reason| kernel::excerpt(&reason.replace('\0', ""), REASON_BYTES));
        if let Some(arguments) = &mut question.arguments {
            bus::clean_nul(arguments);
        }
        Ok(question)
    }

    /// Names the request to the engine. What is decided is part of it: with anything else in it, a request is no repetition.
    fn key(&self) -> String {
        let request = self.request_id.clone().unwrap_or_else(|| Uuid::now_v7().simple().to_string());
        let mut asked = json!({
            "by": self.by, "request": request, "decision": self.decision, "arguments": self.arguments,
            "reason": self.reason, "always": self.always,
        });
        if let Some(digest) = &self.as_endorsed {
            asked["as_endorsed"] = json!(digest);
        }
        format!("approval/{}/{}", self.approval_id, policy::digest(&asked))
    }

    /// Whether the question is still to be decided, and this is an answer to it. A decision that was taken meanwhile is found by
    /// the engine; this tells who took an earlier one.
    fn fits(&self, row: &ApprovalRow) -> Result<(), Refusal> {
        // A repetition of the request that decided must hear the same again: the engine knows it by its key.
        let may_be_repeated = self.request_id.is_some() && row.state == state_of(self.decision);
        if row.state != "open" && !may_be_repeated {
            return Err(decided_before(row));
        }
        if self.arguments.is_some() && row.arguments.is_none() {
            return Err(Refusal::Invalid("`arguments` make no sense for a plain question: answer in `reason`"));
        }
        Ok(())
    }

    /// Whether the run is known far enough to answer.
    fn is_about(&self, run: &RunState) -> bool {
        match self.as_endorsed {
            Some(_) => run.endorsed.contains_key(&self.approval_id),
            None => run.approvals.contains_key(&self.approval_id),
        }
    }

    /// How the run, which knows it from its log, has decided the question.
    fn decided<'a>(&self, run: &'a RunState) -> Option<&'a str> {
        run.decided.iter().rev().find(|(id, _)| *id == self.approval_id).map(|(_, how)| how.as_str())
    }

    /// Whether the question takes two people, as the log has it. Every service may write the table of questions.
    fn takes_two(&self, run: &RunState) -> bool {
        run.approvals.get(&self.approval_id).is_some_and(|approval| approval.two_people)
    }

    /// How the question stands after this answer: the first yes of two leaves it open, and others may have answered since.
    fn outcome(&self, run: &RunState) -> &'static str {
        if run.approvals.contains_key(&self.approval_id) {
            return "endorsed";
        }
        match self.decided(run) {
            Some("approved") => "granted",
            Some("denied") => "denied",
            Some("expired") => "expired",
            // So long ago that the run does not remember.
            _ => state_of(self.decision),
        }
    }

    /// The digest of the arguments that it says yes to.
    fn digest(&self, row: &ApprovalRow, command: &Command) -> Option<String> {
        match command {
            Command::DecideApproval(DecideApproval { verdict: Verdict::Approve, edited, .. }) => {
                let edited = edited.as_ref().map(|(_, digest)| digest).or(self.as_endorsed.as_ref());
                Some(edited.unwrap_or(&row.binding.arguments).clone())
            }
            _ => None,
        }
    }

    /// The arguments that it says yes to, if they are not those that were asked about.
    fn edited(&self, row: &ApprovalRow, run: &RunState) -> Result<Option<(Value, String)>, Refusal> {
        let id = self.approval_id;
        let Some(endorsed) = &self.as_endorsed else {
            let edited = self.arguments.clone().map(|arguments| {
                let digest = policy::digest(&arguments);
                (arguments, digest)
            });
            // What was shown, sent back, is no edit.
            return Ok(edited.filter(|(_, digest)| *digest != row.binding.arguments));
        };
        match run.endorsed.get(&id) {
            Some(first) if first.binding.arguments == *endorsed => {
                Ok(first.arguments.clone().map(|arguments| (arguments, endorsed.clone())))
            }
            Some(first) => Err(Refusal::EndorsedOtherwise(id, first.by.clone())),
            // The engine tells a repetition from what comes too late.
            None if self.decided(run).is_some() => Ok(None),
            None => Err(Refusal::NotEndorsed(id)),
        }
    }

    /// What it comes to.
    fn command(&self, row: &ApprovalRow, run: &RunState) -> Result<Command, Refusal> {
        let may_take_two = self.takes_two(run) || !self.is_about(run) && self.decided(run).is_none();
        if self.decision == Verdict::Approve && self.aliases.is_none() && may_take_two {
            return Err(Refusal::MakersUnknown(self.approval_id));
        }
        Ok(Command::DecideApproval(DecideApproval {
            approval_id: self.approval_id,
            verdict: self.decision,
            edited: self.edited(row, run)?,
            reason: self.reason.clone(),
            by: self.by.clone(),
            aliases: self.aliases.clone().unwrap_or_default(),
            standing: None,
        }))
    }
}

impl Refusal {
    fn problem(&self) -> Problem {
        let code = match self {
            Self::Unreadable(_) | Self::Invalid(_) => 400,
            Self::Edited(_) => 422,
            Self::Role(_) => 403,
            Self::Unknown(_) => 404,
            Self::AlreadyDecided(_)
            | Self::AlreadyEndorsed(..)
            | Self::EndorsedOtherwise(..)
            | Self::NotEndorsed(_)
            | Self::Rejected(_) => 409,
            Self::MakersUnknown(_) => {
                tracing::warn!(error = self as &dyn std::error::Error, "a decision is not taken");
                503
            }
            Self::Expired(..) => 410,
            Self::Unavailable(error) => {
                tracing::warn!(error = error as &dyn std::error::Error, "a decision can't be taken at the moment");
                503
            }
        };
        Problem::new(code, self.to_string())
    }
}

fn refusal(error: SubmitError, row: &ApprovalRow, by: &str) -> Refusal {
    match error {
        SubmitError::Rejected(Rejection::AlreadyDecided(id, how)) => {
            if row.state == "open" {
                Refusal::AlreadyDecided(format!("approval {id} was {how} a moment ago"))
            } else {
                decided_before(row)
            }
        }
        SubmitError::Rejected(Rejection::AlreadyEndorsed(id, first)) => {
            let why = if first == by {
                format!("`{first}` has agreed to it already: somebody else has to")
            } else {
                format!(
                    "`{first}` has agreed to it already: one of you made the other's token and has had it in hand, so for this you count as one person"
                )
            };
            Refusal::AlreadyEndorsed(id, why)
        }
        SubmitError::Rejected(Rejection::EndorsedOtherwise(id, first)) => Refusal::EndorsedOtherwise(id, first),
        SubmitError::Rejected(Rejection::ApprovalExpired(id)) => Refusal::Expired(id, row.expires_at),
        SubmitError::Rejected(Rejection::Ended(_) | Rejection::ApprovalNotOpen(_)) if row.state != "open" => {
            decided_before(row)
        }
        SubmitError::Rejected(rejection) => Refusal::Rejected(rejection),
        SubmitError::Engine(error) => Refusal::Unavailable(error),
    }
}

fn decided_before(row: &ApprovalRow) -> Refusal {
    if row.state == "expired" {
        return Refusal::Expired(row.approval_id, row.decided_at.unwrap_or(row.expires_at));
    }
    let by = row.decided_by.as_deref().map(|by| format!(" by {by}")).unwrap_or_default();
    let at = row.decided_at.map(|at| format!(" at {at}")).unwrap_or_default();
    Refusal::AlreadyDecided(format!("approval {} was {}{by}{at}", row.approval_id, row.state))
}

const fn state_of(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Approve => "granted",
        Verdict::Deny => "denied",
    }
}

#[cfg(test)]
mod tests {
    use kernel::{Block, Event, Trust, apply, event::RunCreated};
    use serde_json::json;

    use super::*;

    fn question(change: impl FnOnce(&mut Value)) -> Result<Question, Refusal> {
        let mut body = json!({
            "tenant": "default", "approval_id": ApprovalId::mint(), "decision": "approve", "by": "ann", "roles": ["operator"],
        });
        change(&mut body);
        Question::read(body.to_string().as_bytes())
    }

    #[test]
    fn only_operators_and_admins_decide() {
        assert!(question(|_| {}).is_ok());
        assert!(question(|body| body["roles"] = json!(["viewer", "admin"])).is_ok());
        for roles in [json!([]), json!(["viewer", "user", "publisher"]), json!(["Operator"])] {
            let refusal = question(|body| body["roles"] = roles).unwrap_err();
            assert_eq!(refusal.problem().code, 403);
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_before_anything_is_read() {
        for change in [
            (|body: &mut Value| body["by"] = json!("")) as fn(&mut Value),
            |body| body["decision"] = json!("maybe"),
            |body| body["tenant"] = json!("No.Tenant"),
            |body| {
                body["decision"] = json!("deny");
                body["arguments"] = json!({});
            },
            |body| {
                body["decision"] = json!("deny");
                body["always"] = json!(true);
            },
            |body| {
                body["always"] = json!(true);
                body["arguments"] = json!({});
            },
            |body| {
                body["as_endorsed"] = json!("digest");
                body["arguments"] = json!({});
            },
        ] {
            assert_eq!(question(change).unwrap_err().problem().code, 400);
        }
    }

    #[test]
    fn a_yes_that_a_no_has_overtaken_is_not_said_to_be_granted() {
        let question = question(|_| {}).unwrap();
        let text = Block::new("Do it.", Trust::Operator, "operator:ann");
        let created = RunCreated::new(TenantId::default(), "test", "0", text.clone(), text);
        let event = Event { seq: 1, at: Timestamp::UNIX_EPOCH, data: created.into() };
        let mut run = apply(None, RunId::mint(), &event).unwrap();
        for (how, expected) in [("approved", "granted"), ("denied", "denied"), ("expired", "expired")] {
            run.decided.push_back((question.approval_id, how.to_owned()));
            assert_eq!(question.outcome(&run), expected);
        }
    }

    #[test]
    fn nothing_reaches_the_log_that_postgres_cannot_take() {
        let question = question(|body| {
            body["reason"] = json!("a\u{0}b");
            body["arguments"] = json!({"x": ["\u{0}"]});
        });
        let question = question.unwrap();
        assert_eq!(question.reason.as_deref(), Some("ab"));
        assert!(!question.arguments.unwrap().to_string().contains("\\u0000"));
    }
}
