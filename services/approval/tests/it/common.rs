//! What the tests share: a system of their own, questions in it, and an approval service that runs in this process.

use std::time::{Duration, Instant};

use approval::Config;
use bus::{BusError, subject};
use engine::{ApprovalRow, Engine, testing::TestStack};
use kernel::{
    ApprovalId, Block, CallId, Cause, Command, Event, Role, RunId, RunState, TenantId, Timestamp, Trust,
    call::{Approval, Binding, CallRequest},
    command::{CreateRun, TurnOutcome},
    event::RunCreated,
    tool::{CallKind, Effect},
};
use serde_json::{Value, json};
use service::{Running, testing};

/// Longest wait for anything.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// A system with the doors that the tests need.
pub struct System {
    pub stack: TestStack,
    pub ingress: Engine,
    pub planner: Engine,
    pub executor: Engine,
}

/// A question about a call.
pub struct Asked {
    pub run: RunId,
    pub call: CallId,
    pub id: ApprovalId,
}

impl System {
    pub async fn new() -> Self {
        let stack = TestStack::new().await.unwrap();
        let ingress = stack.engine(Role::Ingress).await.unwrap();
        let planner = stack.engine(Role::Planner).await.unwrap();
        let executor = stack.engine(Role::ToolExecutor).await.unwrap();
        Self { stack, ingress, planner, executor }
    }

    /// Starts an approval service, and waits until it listens.
    pub async fn approval(&self, change: impl FnOnce(&mut Config)) -> Running {
        let mut config = Config { common: testing::common("approval", &self.stack), ..Config::default() };
        change(&mut config);
        let mut running = service::spawn("approval", config, approval::run).unwrap();
        running.listening().await.expect("the service runs");
        running
    }

    /// A run that asks about a call, to be answered within so many milliseconds.
    pub async fn ask(&self, within: i64) -> Asked {
        self.ask_about(within, |_| {}).await
    }

    /// As [`System::ask`], about something else.
    pub async fn ask_about(&self, within: i64, change: impl FnOnce(&mut Approval)) -> Asked {
        let run = self.create().await;
        let state = self.state(run).await;
        let call = CallId::derive(run, "call");
        let request = CallRequest {
            call_id: call,
            tool: "github.merge".into(),
            arguments: json!({"pull": 7}),
            kind: CallKind::Call,
            effect: Effect::External,
            idempotent: false,
            schema_digest: "schema".into(),
            trust: Trust::Untrusted,
            compensation: Default::default(),
            timeout: kernel::units::Duration::from_secs(60),
        };
        self.commit(&state, request).await;
        let id = ApprovalId::derive(run, "approval");
        let mut approval = Approval {
            approval_id: id,
            call_id: Some(call),
            question: Block::new("May it?", Trust::System, "runtime"),
            tool: Some("github.merge".into()),
            arguments: Some(json!({"pull": 7})),
            binding: Binding {
                arguments: policy::digest(&json!({"pull": 7})),
                schema: "schema".into(),
                policy: "policy".into(),
            },
            trust: Trust::Untrusted,
            reasons: vec!["it changes something outside".into()],
            two_people: false,
            shown: Default::default(),
            expires_at: Timestamp::now().checked_add(jiff::SignedDuration::from_millis(within)).unwrap(),
        };
        change(&mut approval);
        let command = Command::AskApproval(Box::new(approval));
        self.executor.submit(run, command, "ask", Cause::default()).await.unwrap();
        Asked { run, call, id }
    }

    /// Asks the service to decide, as the public door does.
    pub async fn decide(&self, asked: &Asked, change: impl FnOnce(&mut Value)) -> Result<Value, BusError> {
        let mut question = json!({
            "tenant": "default", "approval_id": asked.id, "decision": "approve", "by": "ann", "aliases": [],
            "roles": ["operator"],
        });
        change(&mut question);
        self.stack.bus().request_json(&subject::svc("approval", "decide"), &question, DEADLINE).await
    }

    pub async fn row(&self, asked: &Asked) -> ApprovalRow {
        self.ingress.reads().approval(&TenantId::default(), asked.id).await.unwrap().expect("the question exists")
    }

    pub async fn state(&self, run: RunId) -> std::sync::Arc<RunState> {
        self.ingress.load(run).await.unwrap().expect("the run exists")
    }

    /// Events of this type in the log of the run.
    pub async fn events(&self, run: RunId, event_type: &str) -> Vec<Event> {
        let stored = self.ingress.reads().events(&TenantId::default(), run, 0, 1000).await.unwrap();
        stored.iter().filter(|event| event.event_type == event_type).map(|event| event.decode().unwrap()).collect()
    }

    /// Looks again and again until something is there.
    pub async fn until<T>(&self, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(found) = look().await {
                return found;
            }
            assert!(begun.elapsed() < DEADLINE, "no {what} within {DEADLINE:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub async fn close(self) {
        self.stack.close().await.unwrap();
    }

    async fn create(&self) -> RunId {
        let run = RunId::mint();
        let text = Block::new("Do it.", Trust::Operator, "operator:ann");
        let created = RunCreated::new(TenantId::default(), "test", "0", text.clone(), text);
        let created = RunCreated { sampled: true, ..created };
        let create = Command::Create(Box::new(CreateRun { created, hold: None }));
        self.ingress.submit(run, create, "create", Cause::default()).await.unwrap();
        run
    }

    async fn commit(&self, state: &RunState, call: CallRequest) {
        let turn_id = state.turn.as_ref().expect("an open turn").turn_id;
        let outcome = TurnOutcome::empty(turn_id, state.seq, "scripted:test", Trust::Untrusted);
        let outcome = TurnOutcome { calls: vec![call], ..outcome };
        let command = Command::CommitTurn(Box::new(outcome));
        self.planner.submit(state.run_id, command, "turn", Cause::default()).await.unwrap();
    }
}

/// The code of a refusal and its words.
pub fn refusal(answer: Result<Value, BusError>) -> (u16, String) {
    match answer {
        Err(BusError::Refused { code, message, .. }) => (code, message),
        other => panic!("not refused: {other:?}"),
    }
}
