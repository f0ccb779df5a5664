//! Taking decisions: `svc.approval.decide`, asked by the public door on behalf of an authenticated person.

mod question;

use std::time::Duration;

use bus::{Bus, BusError, Message, Problem, subject};
use bytes::Bytes;
use engine::{ApprovalRow, Engine, EngineError, Reads, SubmitError};
use kernel::{ApprovalId, Command, Rejection, RunId, RunState, Seq, StandingId, Timestamp, command::DecideApproval};
use serde::Serialize;
use serde_json::{Value, json};
use service::{Tracer, telemetry::genai};

use crate::{span_of, standing::Steward};
use question::{Question, state_of};

/// How long the tool-executor may take to judge edited arguments.
const PREVIEW_WITHIN: Duration = Duration::from_secs(5);

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
