//! A run without stores: the kernel decides and folds, the planner's parts do the rest.

use std::{path::PathBuf, sync::LazyLock};

use engine::ToolCatalog;
use kernel::{
    Block, Command, Event, EventData, Rejection, RunId, RunState, Timestamp, Trust, TurnId,
    agent::AgentSpec,
    budget::Usage,
    call::{Call, CallFailure, CallResult},
    command::{CompleteCall, CreateRun, FailCall, StartCall},
    event::RunCreated,
    units::Duration,
};
use planner::{
    candidate::{self, Candidate, Reading},
    models::{
        Answer, ModelError, Models, ModelsOptions, Prompt, TurnKind, prices::Prices, remote::RemoteOptions, route,
        router::CallSite,
    },
    slice::{Slice, SliceInput, SliceLimits},
    tokens::Counter,
    toolbox::{CatalogueTool, Toolbox},
};
use serde_json::Value;

/// The root of the repository.
pub fn repository() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// A tool of the shipped catalogue.
pub fn tool(name: &str) -> Option<CatalogueTool> {
    static CATALOGUE: LazyLock<ToolCatalog> =
        LazyLock::new(|| ToolCatalog::load(repository().join("infra/agents")).unwrap());
    Some(CatalogueTool { spec: CATALOGUE.get(name)?, digest: CATALOGUE.digest(name)?.to_owned() })
}

pub fn agent(yaml: &str) -> AgentSpec {
    serde_saphyr::from_str(yaml).unwrap()
}

pub fn models(scenarios: PathBuf) -> Models {
    let options = ModelsOptions {
        scenarios,
        recordings: PathBuf::new(),
        retry_within: std::time::Duration::from_secs(2),
        remote: RemoteOptions::default(),
    };
    Models::new(options, Prices::shipped().unwrap())
}

pub struct Sim {
    pub state: RunState,
    pub agent: AgentSpec,
    pub toolbox: Toolbox,
    pub now: Timestamp,
    pub limits: SliceLimits,
    pub counter: Counter,
    models: Models,
}

impl Sim {
    /// A run of `agent` that began with `input`.
    pub fn start(agent: AgentSpec, objective: Block, input: Block, scenarios: PathBuf) -> Self {
        let now = Timestamp::UNIX_EPOCH;
        let created = RunCreated {
            acceptance: agent.acceptance.clone(),
            parallel_wake: agent.parallel_wake,
            debounce: agent.debounce,
            sampled: true,
            ..RunCreated::new(Default::default(), &agent.name, "digest of the agent", objective, input)
        };
        let create = Command::Create(Box::new(CreateRun { created, hold: None }));
        let state = kernel::decide(RunId::mint(), None, &create, now).unwrap().state;
        let tools = agent.tools.iter().filter_map(|name| tool(name)).collect();
        let toolbox = Toolbox::new(&agent.tools, &[], tools).unwrap();
        let (limits, counter) = (SliceLimits::default(), Counter::ESTIMATE);
        Self { state, agent, toolbox, now, limits, counter, models: models(scenarios) }
    }

    pub fn try_submit(&mut self, command: &Command) -> Result<Vec<Event>, Rejection> {
        let decision = kernel::decide(self.state.run_id, Some(&self.state), command, self.now)?;
        self.state = decision.state;
        Ok(decision.events)
    }

    pub fn submit(&mut self, command: &Command) -> Vec<Event> {
        self.try_submit(command).unwrap()
    }

    pub fn pass(&mut self, span: Duration) {
        self.now = kernel::units::later(self.now, span);
    }

    pub fn turn_id(&self) -> TurnId {
        self.state.turn.as_ref().expect("an open turn").turn_id
    }

    pub fn slice(&self) -> Slice {
        Slice::build(&SliceInput {
            state: &self.state,
            agent: &self.agent,
            counter: self.counter,
            tool_tokens: self.toolbox.tokens(self.counter),
            tools_trust: self.toolbox.trust(),
            missing_tools: self.toolbox.missing(),
            beside: &[],
            digests: &[],
            now: self.now,
            limits: self.limits,
        })
    }

    pub async fn ask(&self, slice: &Slice) -> Result<Answer, ModelError> {
        let turn = self.state.turn.as_ref().expect("an open turn");
        let prompt = Prompt {
            system: slice.system.clone(),
            user: slice.user.clone(),
            tools: self.toolbox.declarations(),
            tool_tokens: self.toolbox.tokens(self.counter),
            max_output_tokens: 4096,
            run_id: self.state.run_id,
            turn: turn.number,
            ask: 0,
        };
        let site = CallSite {
            traceparent: None,
            sampled: true,
            turn_id: turn.turn_id,
            tenant: &self.state.tenant,
            agent_digest: &self.state.agent_digest,
            kind: TurnKind::of(&self.state),
            left: route::share_left(&self.state),
        };
        let tracer = service::Tracer::disabled("planner");
        self.models
            .answer(&self.agent, &prompt, &site, &tracer, &|_| {})
            .await
            .map(|answered| answered.answer)
            .map_err(|unanswered| unanswered.error)
    }

    pub fn read(&self, answer: &Answer) -> Result<Candidate, Vec<String>> {
        self.read_from(answer, &self.slice())
    }

    pub fn read_from(&self, answer: &Answer, slice: &Slice) -> Result<Candidate, Vec<String>> {
        candidate::read(
            answer,
            &Reading {
                state: &self.state,
                agent: &self.agent,
                toolbox: &self.toolbox,
                slice,
                turn_id: self.turn_id(),
                now: self.now,
                model: "scripted:test",
                usage: Usage::default(),
                model_ms: 1,
                failures: &[],
            },
        )
    }

    /// One whole turn: slice, model, candidate, commit. Artifacts are not stored.
    pub async fn turn(&mut self) -> (Answer, Candidate) {
        let slice = self.slice();
        let answer = self.ask(&slice).await.unwrap();
        let candidate = self.read_from(&answer, &slice).unwrap();
        self.submit(&Command::CommitTurn(Box::new(candidate.outcome.clone())));
        (answer, candidate)
    }

    /// The open call of this tool.
    pub fn call(&self, tool: &str) -> Call {
        let found = self.state.calls.values().find(|call| call.request.tool == tool);
        found.unwrap_or_else(|| panic!("no open call of {tool}: {:?}", self.state.calls)).clone()
    }

    pub fn start_call(&mut self, tool: &str) -> Call {
        let call = self.call(tool);
        let call_id = call.request.call_id;
        let binding = call.grant.as_ref().map(|grant| grant.binding.clone()).unwrap_or_default();
        self.submit(&Command::StartCall(StartCall { call_id, executor: "x".to_owned(), binding }));
        call
    }

    pub fn complete(&mut self, tool: &str, text: &str) {
        let call = if self.call(tool).needs_start() { self.start_call(tool) } else { self.call(tool) };
        let source = format!("tool:{tool}/{}", call.request.call_id);
        let result = CallResult {
            block: Block::new(text, Trust::Untrusted, source),
            value: None,
            artifact: None,
            duration_ms: 5,
        };
        self.submit(&Command::CompleteCall(CompleteCall { call_id: call.request.call_id, result }));
    }

    pub fn fail(&mut self, tool: &str, text: &str) {
        let call = if self.call(tool).needs_start() { self.start_call(tool) } else { self.call(tool) };
        let block = Block::new(text, Trust::Untrusted, format!("tool:{tool}"));
        let failure = CallFailure { block, code: "exit_status".to_owned(), duration_ms: 5 };
        self.submit(&Command::FailCall(FailCall { call_id: call.request.call_id, failure }));
    }
}

/// The names of events.
pub fn names(events: &[Event]) -> Vec<&'static str> {
    events.iter().map(|event| event.data.type_name()).collect()
}

/// An answer with these calls.
pub fn calls(calls: &[(&str, Value)]) -> Answer {
    let call = |(name, arguments): &(&str, Value)| planner::models::ModelCall {
        id: None,
        name: (*name).to_owned(),
        arguments: planner::models::Arguments::Json(arguments.clone()),
    };
    Answer { model: "m".to_owned(), calls: calls.iter().map(call).collect(), ..Answer::default() }
}

pub fn operator(text: &str) -> Block {
    Block::new(text, Trust::Operator, "operator:ann")
}

pub fn outside(text: &str) -> Block {
    Block::new(text, Trust::Untrusted, "event:github/1")
}

/// Whether an event of this type is there.
pub fn has(events: &[Event], name: &str) -> bool {
    events.iter().map(|event| &event.data).map(EventData::type_name).any(|other| other == name)
}
