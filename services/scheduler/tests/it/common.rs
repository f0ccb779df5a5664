//! What the tests share: a system of their own, runs in it, and a scheduler that runs in this process.

use std::time::{Duration, Instant};

use engine::{Engine, testing::TestStack};
use kernel::{
    Block, CallId, Cause, Command, Event, Role, RunId, RunState, TenantId, Timestamp, Trust,
    call::{Binding, CallRequest},
    command::{AddMessage, ByOperator, CreateRun, StartCall, TurnOutcome, WaitRequest},
    event::RunCreated,
    tool::{CallKind, Effect},
    wait::{Condition, WaitExpr},
};
use scheduler::Config;
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

impl System {
    pub async fn new() -> Self {
        let stack = TestStack::new().await.unwrap();
        let ingress = stack.engine(Role::Ingress).await.unwrap();
        let planner = stack.engine(Role::Planner).await.unwrap();
        let executor = stack.engine(Role::ToolExecutor).await.unwrap();
        Self { stack, ingress, planner, executor }
    }

    /// Starts a scheduler, and waits until it listens.
    pub async fn scheduler(&self, change: impl FnOnce(&mut Config)) -> Running {
        let mut config = Config { common: testing::common("scheduler", &self.stack), ..Config::default() };
        change(&mut config);
        let mut running = service::spawn("scheduler", config, scheduler::run).unwrap();
        running.listening().await.expect("the scheduler runs");
        running
    }

    /// A new run, held if a reason is given.
    pub async fn create(&self, hold: Option<&str>) -> RunId {
        create(&self.ingress, hold).await
    }

    /// The run's open turn waits for `on`.
    pub async fn wait_for(&self, run: RunId, on: impl FnOnce(&RunState) -> Condition) {
        let state = self.state(run).await;
        self.wait(run, on(&state).into(), None).await;
    }

    /// The run's open turn waits for what `on` says, until `deadline`.
    pub async fn wait(&self, run: RunId, on: WaitExpr, deadline: Option<Timestamp>) {
        let state = self.state(run).await;
        let wait = WaitRequest { on, why: "the test".into(), assumes: None, expects: None, deadline };
        self.commit(&state, |outcome| outcome.wait = Some(wait)).await;
    }

    /// The run's open turn calls something with an effect, and an executor starts it.
    pub async fn start_call(&self, run: RunId) -> CallId {
        let state = self.state(run).await;
        let call_id = CallId::derive(run, "call");
        let call = CallRequest {
            call_id,
            tool: "shell.run".into(),
            arguments: serde_json::json!({}),
            kind: CallKind::Activity,
            effect: Effect::Write,
            idempotent: false,
            schema_digest: String::new(),
            trust: Trust::Operator,
            compensation: Default::default(),
            timeout: kernel::units::Duration::from_secs(60),
        };
        self.commit(&state, |outcome| outcome.calls = vec![call]).await;
        let start = StartCall { call_id, executor: "gone".into(), binding: Binding::default() };
        self.executor.submit(run, Command::StartCall(start), "start", Cause::default()).await.unwrap();
        call_id
    }

    /// The operator writes into the run.
    pub async fn say(&self, run: RunId) {
        let block = Block::new("Go on.", Trust::Operator, "operator:ann");
        let command = Command::AddMessage(AddMessage { block });
        self.ingress.submit(run, command, "say", Cause::default()).await.unwrap();
    }

    pub async fn cancel(&self, run: RunId) {
        let cancel = Command::Cancel(ByOperator { by: "ann".into(), reason: None });
        self.ingress.submit(run, cancel, "cancel", Cause::default()).await.unwrap();
    }

    /// A planner's answer to a turn that may be over.
    pub async fn try_commit(
        &self,
        state: &RunState,
        turn_id: kernel::TurnId,
        text: Block,
    ) -> Result<engine::Committed, engine::SubmitError> {
        let outcome = TurnOutcome { text: Some(text), ..blank(turn_id, state.seq) };
        let command = Command::CommitTurn(Box::new(outcome));
        self.planner.submit(state.run_id, command, format!("late/{turn_id}"), Cause::default()).await
    }

    pub async fn commit(&self, state: &RunState, change: impl FnOnce(&mut TurnOutcome)) {
        let mut outcome = blank(state.turn.as_ref().expect("an open turn").turn_id, state.seq);
        change(&mut outcome);
        let key = format!("turn/{}", outcome.turn_id);
        let command = Command::CommitTurn(Box::new(outcome));
        self.planner.submit(state.run_id, command, key, Cause::default()).await.unwrap();
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
}

/// An outcome that does nothing yet.
fn blank(turn_id: kernel::TurnId, based_on: kernel::Seq) -> TurnOutcome {
    TurnOutcome::empty(turn_id, based_on, "scripted:test", Trust::Operator)
}

/// A new run by any door that may make one.
pub async fn create(engine: &Engine, hold: Option<&str>) -> RunId {
    let run = RunId::mint();
    let text = Block::new("Do it.", Trust::Operator, "operator:ann");
    let created = RunCreated::new(TenantId::default(), "test", "0", text.clone(), text);
    let create = CreateRun { created, hold: hold.map(str::to_owned) };
    engine.submit(run, Command::Create(Box::new(create)), "create", Cause::default()).await.unwrap();
    run
}

/// In so many milliseconds.
pub fn soon(millis: i64) -> Timestamp {
    Timestamp::now().checked_add(jiff::SignedDuration::from_millis(millis)).unwrap()
}
