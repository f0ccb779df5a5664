//! What is asked of the service: how somebody decides, whether that makes sense, and what it comes to for the run.

use engine::ApprovalRow;
use kernel::{ApprovalId, Command, RunState, TenantId, call::Verdict, command::DecideApproval};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Refusal, decided_before};

/// Roles of a person who may decide.
const MAY_DECIDE: [&str; 2] = ["operator", "admin"];
/// Most bytes of a person's name: who signs in has the address of their issuer in it.
const NAME_BYTES: usize = 2048;
/// Most bytes of what a person writes.
const REASON_BYTES: usize = 16 * 1024;
/// What is asked for.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Question {
    pub(super) tenant: TenantId,
    pub(super) approval_id: ApprovalId,
    pub(super) decision: Verdict,
    /// The arguments as the person edited them.
    #[serde(default)]
    arguments: Option<Value>,
    /// In place of arguments: those that the first of two people has agreed to, by their digest.
    #[serde(default)]
    as_endorsed: Option<String>,
    #[serde(default)]
    pub(super) reason: Option<String>,
    /// Whether all calls of this shape are allowed from now on.
    #[serde(default)]
    pub(super) always: bool,
    /// The authenticated person.
    pub(super) by: String,
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

impl Question {
    /// Reads and checks what needs no look at the log.
    pub(super) fn read(body: &[u8]) -> Result<Self, Refusal> {
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
    pub(super) fn key(&self) -> String {
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
    pub(super) fn fits(&self, row: &ApprovalRow) -> Result<(), Refusal> {
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
    pub(super) fn is_about(&self, run: &RunState) -> bool {
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
    pub(super) fn takes_two(&self, run: &RunState) -> bool {
        run.approvals.get(&self.approval_id).is_some_and(|approval| approval.two_people)
    }

    /// How the question stands after this answer: the first yes of two leaves it open, and others may have answered since.
    pub(super) fn outcome(&self, run: &RunState) -> &'static str {
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
    pub(super) fn digest(&self, row: &ApprovalRow, command: &Command) -> Option<String> {
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
    pub(super) fn command(&self, row: &ApprovalRow, run: &RunState) -> Result<Command, Refusal> {
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

/// How a question stands after this answer.
pub(super) const fn state_of(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Approve => "granted",
        Verdict::Deny => "denied",
    }
}

#[cfg(test)]
mod tests {
    use kernel::{Block, Event, RunId, Timestamp, Trust, apply, event::RunCreated};
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
