//! From a model's answer to a candidate: everything it wants, checked, or what is wrong with it, in words for the model.

use kernel::{
    ApprovalId, Block, CallId, RunState, Timestamp, TurnId,
    agent::AgentSpec,
    budget::Usage,
    call::{Approval, Binding},
    command::{EndRequest, TurnOutcome},
    memory::{MemoryChange, MemoryPlace, MemoryScope},
    model::ModelFailure,
    units,
};
use serde_json::Value;

use crate::{
    models::{Answer, Arguments, Finish, ModelCall},
    recall,
    skills::SkillAsked,
    slice::Slice,
    spawn::SpawnDraft,
    toolbox::{CatalogueTool, Offered, Toolbox},
    verbs::{self, Draft, Names, SpawnAgent, Spoken, Verb, WaitFor},
};

/// Most tool calls of one answer.
pub const MAX_CALLS: usize = 16;
/// Most bytes of one call's arguments.
pub const ARGUMENT_BYTES: usize = 512 * 1024;
/// Most bytes of text that is kept of an answer.
const TEXT_BYTES: usize = 64 * 1024;

/// A turn's outcome that could be committed once its artifacts are stored.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The outcome, without artifacts.
    pub outcome: TurnOutcome,
    /// Artifacts to store first.
    pub drafts: Vec<Draft>,
    /// Agents to look up and start.
    pub spawns: Vec<SpawnDraft>,
    /// Skills to open.
    pub skills: Vec<SkillAsked>,
}

impl Candidate {
    /// Whether it wants nothing but to read: then it is shown what it wants, and asked again.
    #[must_use]
    pub fn only_reads(&self) -> bool {
        let outcome = &self.outcome;
        let wants = !outcome.calls.is_empty()
            || outcome.wait.is_some()
            || outcome.question.is_some()
            || outcome.plan.is_some()
            || outcome.end.is_some()
            || !outcome.say.is_empty()
            || !outcome.memories.is_empty();
        !self.skills.is_empty() && !wants && self.drafts.is_empty() && self.spawns.is_empty()
    }
}

/// What an answer is read against.
#[derive(Clone, Copy)]
pub struct Reading<'a> {
    /// The run as the slice showed it.
    pub state: &'a RunState,
    /// Its agent.
    pub agent: &'a AgentSpec,
    /// What was offered.
    pub toolbox: &'a Toolbox,
    /// What was shown.
    pub slice: &'a Slice,
    /// The open turn.
    pub turn_id: TurnId,
    /// The time.
    pub now: Timestamp,
    /// `provider:model` that answered.
    pub model: &'a str,
    /// What the turn has consumed, re-asks included.
    pub usage: Usage,
    /// How long the model took in all, in milliseconds.
    pub model_ms: u64,
    /// Model calls of the turn that gave nothing usable.
    pub failures: &'a [ModelFailure],
}

/// Reads an answer.
///
/// # Errors
/// What is wrong with it, in words for the model.
pub fn read(answer: &Answer, reading: &Reading<'_>) -> Result<Candidate, Vec<String>> {
    let mut gathered = Gathered {
        reading,
        problems: Vec::new(),
        outcome: reading.blank(answer),
        drafts: Vec::new(),
        spawns: Vec::new(),
        skills: Vec::new(),
        wait: None,
    };
    if answer.finish == Finish::Length {
        let words = "the answer was cut off at the limit of output: answer shorter, or in several turns";
        gathered.problems.push(words.to_owned());
    }
    for (index, call) in answer.calls.iter().enumerate() {
        // A server that says a call twice means it once. Ids are only looked at for that: calls are told apart by their place.
        let is_echo = call.id.is_some() && answer.calls[..index].contains(call);
        if !is_echo {
            gathered.take(index, call);
        }
    }
    gathered.resolve_wait();
    gathered.check_ends();
    if gathered.problems.is_empty() {
        Ok(Candidate {
            outcome: gathered.outcome,
            drafts: gathered.drafts,
            spawns: gathered.spawns,
            skills: gathered.skills,
        })
    } else {
        Err(gathered.problems)
    }
}

impl Reading<'_> {
    fn block(&self, text: impl Into<String>) -> Block {
        // A model that saw data may repeat it: its words are believed no more than what it saw.
        Block::new(text, self.slice.trust, format!("model:{}", self.model))
    }

    fn blank(&self, answer: &Answer) -> TurnOutcome {
        let text = kernel::excerpt(answer.text.trim(), TEXT_BYTES);
        TurnOutcome {
            text: (!text.is_empty()).then(|| self.block(text)),
            usage: self.usage,
            manifest: self.slice.manifest.clone(),
            finish_reason: Some(answer.finish.as_str().to_owned()),
            model_ms: self.model_ms,
            failures: self.failures.to_vec(),
            ..TurnOutcome::empty(self.turn_id, self.slice.based_on, self.model, self.slice.trust)
        }
    }
}

struct Gathered<'a> {
    reading: &'a Reading<'a>,
    problems: Vec<String>,
    outcome: TurnOutcome,
    drafts: Vec<Draft>,
    spawns: Vec<SpawnDraft>,
    skills: Vec<SkillAsked>,
    wait: Option<WaitFor>,
}

impl Gathered<'_> {
    fn take(&mut self, index: usize, call: &ModelCall) {
        let Some(offer) = self.reading.toolbox.find(&call.name) else {
            let names: Vec<_> = self.reading.toolbox.names().collect();
            let name = kernel::excerpt(&call.name, 80);
            self.problems.push(format!("there is no tool `{name}`; there are: {}", names.join(", ")));
            return;
        };
        let arguments = match arguments_of(call) {
            Ok(arguments) => arguments,
            Err(problem) => return self.problems.push(problem),
        };
        let wrong = offer.problems(&arguments);
        if !wrong.is_empty() {
            self.problems.push(format!("`{}`: {}", call.name, wrong.join("; ")));
            return;
        }
        match &offer.offered {
            Offered::Tool(tool) => self.request(index, tool, arguments),
            Offered::Verb(verb) => match verbs::read(*verb, arguments) {
                Ok(Spoken::SpawnAgent(asked)) => self.spawn(index, asked),
                Ok(spoken) => self.say(*verb, spoken),
                Err(problem) => self.problems.push(format!("`{}`: {problem}", call.name)),
            },
        }
    }

    fn request(&mut self, index: usize, tool: &CatalogueTool, arguments: Value) {
        if self.outcome.calls.len() == MAX_CALLS {
            return self.problems.push(format!("more than {MAX_CALLS} tool calls in one answer"));
        }
        let reading = self.reading;
        let call_id = CallId::derive(reading.state.run_id, &format!("{}/{index}", reading.turn_id));
        self.outcome.calls.push(tool.call(call_id, arguments, reading.slice.trust));
    }

    fn spawn(&mut self, index: usize, asked: SpawnAgent) {
        let reading = self.reading;
        let SpawnAgent { agent, task, budget, on_failure } = asked;
        let call_id = CallId::derive(reading.state.run_id, &format!("{}/{index}", reading.turn_id));
        self.spawns.push(SpawnDraft { call_id, agent, task: reading.block(task), budget, on_failure });
    }

    fn say(&mut self, verb: Verb, spoken: Spoken) {
        let taken = match spoken {
            Spoken::UpdatePlan(plan) => self.outcome.plan.replace(plan).is_some(),
            Spoken::WaitFor(wait) => self.wait.replace(wait).is_some(),
            Spoken::AskOperator { question, expires } => {
                let asked = self.ask(question, expires);
                self.outcome.question.replace(asked).is_some()
            }
            Spoken::Complete(summary) => self.end(EndRequest::Complete(self.reading.block(summary))),
            Spoken::Fail(reason) => self.end(EndRequest::Fail(self.reading.block(reason))),
            // Any number of them: see `spawn`.
            Spoken::SpawnAgent(_) => false,
            Spoken::UseSkill(asked) => {
                self.skills.push(asked);
                false
            }
            Spoken::Remember(kept) => {
                self.remember(kept);
                false
            }
            Spoken::Say(text) => {
                self.outcome.say.push(self.reading.block(text));
                false
            }
            Spoken::CreateArtifact(draft) => {
                let twice = self.drafts.iter().any(|other| other.name == draft.name);
                self.drafts.push(draft);
                twice
            }
        };
        if taken {
            let what = if verb == Verb::CreateArtifact { " with the same name" } else { "" };
            self.problems.push(format!("`{}` stands twice{what} in one answer", verb.name()));
        }
    }

    fn remember(&mut self, kept: verbs::Remembered) {
        let Reading { state, now, .. } = *self.reading;
        let owner = match kept.scope {
            MemoryScope::Tenant => String::new(),
            MemoryScope::Agent => state.agent.clone(),
            MemoryScope::User => match recall::user_of(state) {
                Some(user) => user.to_owned(),
                None => {
                    let words = "`remember`: this run is for no user that is known: use the scope `agent`";
                    return self.problems.push(words.to_owned());
                }
            },
        };
        let place = MemoryPlace { scope: kept.scope, owner, key: kept.key };
        let expires_at = kept.expires.map(|when| when.after(now));
        if expires_at.is_some_and(|at| at <= now) {
            return self.problems.push("`remember`: `expires` is over already".to_owned());
        }
        self.outcome.memories.push(match kept.text {
            Some(text) => MemoryChange::Write { place, block: self.reading.block(text), expires_at },
            None => MemoryChange::Delete { place },
        });
    }

    fn end(&mut self, end: EndRequest) -> bool {
        self.outcome.end.replace(end).is_some()
    }

    fn ask(&self, question: String, expires: Option<verbs::When>) -> Approval {
        let Reading { state, agent, turn_id, now, .. } = *self.reading;
        Approval {
            approval_id: ApprovalId::derive(state.run_id, &format!("{turn_id}/question")),
            call_id: None,
            question: self.reading.block(question),
            tool: None,
            arguments: None,
            binding: Binding::default(),
            trust: self.reading.slice.trust,
            reasons: Vec::new(),
            two_people: false,
            shown: Default::default(),
            expires_at: expires.map_or_else(|| units::later(now, agent.approval_expiry), |when| when.after(now)),
        }
    }

    fn resolve_wait(&mut self) {
        let Some(wait) = &self.wait else { return };
        let Reading { state, turn_id, now, .. } = *self.reading;
        let spawned = self.spawns.iter().map(|spawn| (spawn.agent.clone(), spawn.call_id));
        let called = self.outcome.calls.iter().map(|call| (call.tool.clone(), call.call_id));
        let answer: Vec<_> = called.chain(spawned).collect();
        let children = state.children.values().map(|child| (child.spawn.agent.clone(), child.spawn.call_id));
        let calls = state.calls.values().map(|call| (call.request.tool.clone(), call.request.call_id));
        let open: Vec<_> = calls.chain(children).collect();
        match verbs::resolve(wait, &Names { answer: &answer, open: &open }, (state.run_id, turn_id), now) {
            Ok(request) => self.outcome.wait = Some(request),
            Err(problem) => self.problems.push(format!("`wait_for`: {problem}")),
        }
        if self.outcome.wait.as_ref().and_then(|wait| wait.deadline).is_some_and(|deadline| deadline <= now) {
            self.problems.push("`wait_for`: the deadline is over already".to_owned());
        }
    }

    fn check_ends(&mut self) {
        if self.outcome.question.as_ref().is_some_and(|question| question.expires_at <= self.reading.now) {
            self.problems.push("`ask_operator`: `expires` is over already".to_owned());
        }
    }
}

fn arguments_of(call: &ModelCall) -> Result<Value, String> {
    let name = kernel::excerpt(&call.name, 80);
    let value = match &call.arguments {
        Arguments::Malformed(raw) => {
            let problem = match serde_json::from_str::<Value>(raw) {
                Ok(_) => "they are a text, not an object".to_owned(),
                Err(error) => error.to_string(),
            };
            let begins = kernel::excerpt(raw, 120);
            return Err(format!("the arguments of `{name}` are not valid JSON: {problem}. They were: {begins}"));
        }
        Arguments::Json(value) => value,
    };
    if !value.is_object() {
        return Err(format!("the arguments of `{name}` are not a JSON object"));
    }
    let bytes = value.to_string().len();
    if bytes > ARGUMENT_BYTES {
        return Err(format!("the arguments of `{name}` take {bytes} bytes, more than {ARGUMENT_BYTES}"));
    }
    Ok(value.clone())
}
