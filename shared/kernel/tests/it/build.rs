//! Runs, calls and outcomes for tests.

use kernel::{
    ApprovalId, Block, CallId, Command, Decision, Rejection, RunId, RunState, Seq, TenantId, Timestamp, Trust, TurnId,
    budget::{Limits, Usage},
    call::{Approval, Binding, CallRequest, CallResult, Verdict},
    command::{AddMessage, ByOperator, CompleteCall, CreateRun, DecideApproval, TurnOutcome},
    decide,
    event::RunCreated,
    tool::{CallKind, Effect},
    units::Duration,
};

pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

pub fn block(text: &str) -> Block {
    Block::new(text, Trust::Operator, "operator:test")
}

pub fn created(limits: Limits) -> RunCreated {
    let (objective, input) = (block("test the rules"), block("begin"));
    RunCreated { limits, sampled: true, ..RunCreated::new(TenantId::default(), "tester", "digest", objective, input) }
}

/// A run and the time in it.
pub struct Run {
    pub id: RunId,
    pub state: Option<RunState>,
    pub log: Vec<kernel::Event>,
    pub now: i64,
}

impl Run {
    pub fn new() -> Self {
        Self { id: RunId::mint(), state: None, log: Vec::new(), now: 0 }
    }

    pub fn started(limits: Limits) -> Self {
        let mut run = Self::new();
        run.must(Command::Create(Box::new(CreateRun { created: created(limits), hold: None })));
        run
    }

    pub fn state(&self) -> &RunState {
        self.state.as_ref().unwrap()
    }

    /// Decides and, if the rules allow it, goes on from there.
    pub fn send(&mut self, command: &Command) -> Result<Vec<&'static str>, Rejection> {
        self.now += 1;
        let Decision { events, state } = decide(self.id, self.state.as_ref(), command, at(self.now))?;
        let names = events.iter().map(|event| event.data.type_name()).collect();
        self.log.extend(events);
        self.state = Some(state);
        Ok(names)
    }

    pub fn must(&mut self, command: Command) -> Vec<&'static str> {
        self.send(&command).unwrap()
    }

    /// An outcome of the open turn that does nothing yet.
    pub fn outcome(&self) -> TurnOutcome {
        let turn_id = self.state().turn.as_ref().map_or(TurnId(self.id.0), |turn| turn.turn_id);
        outcome(turn_id, self.state().seq)
    }

    pub fn commit(&mut self, outcome: TurnOutcome) -> Vec<&'static str> {
        self.must(Command::CommitTurn(Box::new(outcome)))
    }

    /// A call that nobody asked for before, with the given effect.
    pub fn call(&self, name: &str, effect: Effect, kind: CallKind) -> CallRequest {
        CallRequest {
            call_id: CallId::derive(self.id, &format!("{name}/{}", self.state().seq)),
            tool: format!("test.{name}"),
            arguments: serde_json::json!({ "name": name }),
            kind,
            effect,
            idempotent: false,
            schema_digest: "schema".into(),
            trust: Trust::Operator,
            timeout: Duration::from_secs(10),
            compensation: Default::default(),
        }
    }

    /// Commits a turn that asks for `calls`.
    pub fn request(&mut self, calls: Vec<CallRequest>) -> Vec<CallId> {
        let ids = calls.iter().map(|call| call.call_id).collect();
        let outcome = TurnOutcome { calls, ..self.outcome() };
        self.commit(outcome);
        ids
    }
}

pub fn outcome(turn_id: TurnId, based_on: Seq) -> TurnOutcome {
    TurnOutcome {
        usage: Usage { model_calls: 1, input_tokens: 10, output_tokens: 5, ..Usage::default() },
        model_ms: 1,
        ..TurnOutcome::empty(turn_id, based_on, "scripted:test", Trust::Operator)
    }
}

pub fn completed(call_id: CallId) -> Command {
    let result = CallResult {
        block: Block::new("done", Trust::Untrusted, "tool:test"),
        value: None,
        artifact: None,
        duration_ms: 1,
    };
    Command::CompleteCall(CompleteCall { call_id, result })
}

pub fn approval(run: &Run, call_id: Option<CallId>, name: &str) -> Approval {
    Approval {
        approval_id: ApprovalId::derive(run.id, &format!("approval/{name}")),
        call_id,
        question: block("may it?"),
        tool: call_id.map(|_| "test.write".into()),
        arguments: None,
        binding: Binding { arguments: "a".into(), schema: "s".into(), policy: "p".into() },
        trust: Trust::Untrusted,
        reasons: vec!["because".into()],
        two_people: false,
        shown: Default::default(),
        expires_at: at(1_000_000),
    }
}

/// What a person says to a question, and nothing besides.
pub fn decision(approval_id: ApprovalId, verdict: Verdict, by: &str) -> DecideApproval {
    let (edited, reason, standing, aliases) = (None, None, None, Vec::new());
    DecideApproval { approval_id, verdict, edited, reason, by: by.into(), aliases, standing }
}

pub fn ann(reason: Option<&str>) -> ByOperator {
    ByOperator { by: "ann".into(), reason: reason.map(str::to_owned) }
}

/// An operator writes.
pub fn said(text: &str) -> Command {
    Command::AddMessage(AddMessage { block: block(text) })
}
