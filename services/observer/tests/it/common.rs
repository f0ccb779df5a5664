//! A run with an activity under way, the executor's part of it, and observers.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bus::{Outgoing, Publisher, header, subject};
use engine::{Engine, StoredEvent, testing::TestStack};
use kernel::{
    Block, CallId, Cause, Command, Role, RunId, RunState, TenantId, Timestamp, Trust,
    call::{Binding, CallRequest, Exit, Observation},
    command::{CreateRun, StartCall, TurnOutcome},
    event::{EventData, RunCreated},
    tool::{CallKind, Effect},
    units,
};
use service::{Running, testing};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

pub const DEADLINE: Duration = Duration::from_secs(60);
/// How long, in milliseconds, an observer keeps its partitions if it stands still, as on a busy machine: who lost one would
/// read it again, and ask again.
const LEASE: u64 = 30_000;
/// The same of one that is to die: so long nobody reads what it has read.
pub const SHORT_LEASE: u64 = 2000;

pub struct World {
    pub stack: TestStack,
    pub ingress: Engine,
    planner: Engine,
    executor: Engine,
}

impl World {
    pub async fn new() -> Self {
        let stack = TestStack::new().await.unwrap();
        let ingress = stack.engine(Role::Ingress).await.unwrap();
        let planner = stack.engine(Role::Planner).await.unwrap();
        let executor = stack.engine(Role::ToolExecutor).await.unwrap();
        Self { stack, ingress, planner, executor }
    }

    /// An observer as a process would be.
    pub fn observer(&self) -> Running {
        self.observer_with(|_| {})
    }

    /// One that is to be dropped, which is a crash: others soon read what it has read.
    pub fn mortal_observer(&self) -> Running {
        self.observer_with(|config| config.lease_millis = SHORT_LEASE)
    }

    pub fn observer_with(&self, change: impl FnOnce(&mut observer::Config)) -> Running {
        let common = testing::common("observer", &self.stack);
        let mut config =
            observer::Config { common, checkpoint_millis: 100, lease_millis: LEASE, ..observer::Config::default() };
        change(&mut config);
        service::spawn("observer", config, observer::run).unwrap()
    }

    /// An observer that is a process of its own, and stumbles where `failpoints` says, if the build has such points.
    pub fn observer_process(&self, failpoints: &str) -> Process {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_observer"));
        command
            .env_clear()
            .env("FAILPOINTS", failpoints)
            .env("ESC_NATS_URL", bus::testing::url())
            .env("ESC_DATABASE_URL", engine::testing::database_url())
            .env("ESC_REDIS_URL", engine::testing::redis_url())
            .env("ESC_NAMESPACE", self.stack.namespace())
            .env("ESC_SCHEMA", self.stack.schema())
            .env("ESC_LOG", "warn")
            .env("ESC_LISTEN", "127.0.0.1:0")
            .env("ESC_OBSERVER__CHECKPOINT_MILLIS", "100")
            .env("ESC_OBSERVER__LEASE_MILLIS", "500")
            .kill_on_drop(true);
        Process(command.spawn().unwrap())
    }

    /// A run whose agent has these rules (YAML, indented by two), with a started call of `shell.run`.
    pub async fn activity(&self, rules: &str) -> Activity {
        let yaml = format!("name: watcher\nmodel: scripted:none\ninstructions: watch\nobserve:\n{rules}");
        let tenant = TenantId::default();
        let version = self.ingress.agents().put(&tenant, &yaml, "test").await.unwrap();
        let text = Block::new("Build it.", Trust::Operator, "operator:ann");
        let created =
            RunCreated { sampled: true, ..RunCreated::new(tenant, "watcher", &version.digest, text.clone(), text) };
        let run = RunId::mint();
        let create = Command::Create(Box::new(CreateRun { created, hold: None }));
        let state = self.ingress.submit(run, create, "create", Cause::default()).await.unwrap().state;
        let call = CallId::derive(run, "call/1");
        let turn = Command::CommitTurn(Box::new(outcome(&state, call)));
        self.planner.submit(run, turn, "turn", Cause::default()).await.unwrap();
        let start = StartCall { call_id: call, executor: "test".into(), binding: Binding::default() };
        self.executor.submit(run, Command::StartCall(start), "start", Cause::default()).await.unwrap();
        Activity { run, call, digest: version.digest, publisher: self.stack.bus().publisher(), offset: 0, lines: 0 }
    }

    pub async fn state(&self, run: RunId) -> Arc<RunState> {
        self.ingress.load(run).await.unwrap().expect("the run exists")
    }

    pub async fn events(&self, run: RunId) -> Vec<StoredEvent> {
        self.ingress.reads().events(&TenantId::default(), run, 0, 1000).await.unwrap()
    }

    pub async fn observations(&self, run: RunId) -> Vec<Observation> {
        let events = self.events(run).await;
        let recorded = events.iter().filter(|event| event.event_type == "observation.recorded");
        let read = |event: &StoredEvent| match event.decode().unwrap().data {
            EventData::ObservationRecorded(recorded) => recorded.observation,
            other => panic!("{other:?}"),
        };
        recorded.map(read).collect()
    }

    /// Waits for the end of the call, and gives the types of the log's events.
    pub async fn concluded(&self, activity: &Activity) -> Vec<String> {
        self.until("end of the call", async || !self.state(activity.run).await.calls.contains_key(&activity.call))
            .await;
        self.events(activity.run).await.into_iter().map(|event| event.event_type.to_string()).collect()
    }

    /// Waits until all signals were handed out to observers.
    pub async fn all_is_given(&self) {
        self.until("last of the signals", async || self.unread().await.is_some_and(|(pending, _)| pending == 0)).await;
    }

    /// Waits until all signals are acknowledged: from then on nobody reads them again.
    pub async fn all_is_read(&self) {
        self.until("end of the signals", async || self.unread().await == Some((0, 0))).await;
    }

    /// Whether an observer asks for signals.
    pub async fn has_reader(&self) -> bool {
        let status = self.stack.bus().consumer_status("observer-0").await;
        status.is_ok_and(|status| status.waiting > 0)
    }

    /// Signals that were not handed out, and those that were and are not acknowledged; none if nobody can tell now.
    async fn unread(&self) -> Option<(u64, u64)> {
        let (bus, mut unread) = (self.stack.bus(), (0, 0));
        for number in 0..bus::PARTITIONS {
            let status = bus.consumer_status(&format!("observer-{number}")).await.ok()?;
            unread = (unread.0 + status.pending, unread.1 + status.unacknowledged);
        }
        Some(unread)
    }

    /// Looks again and again until it holds.
    pub async fn until(&self, what: &str, mut holds: impl AsyncFnMut() -> bool) {
        let begun = Instant::now();
        while !holds().await {
            assert!(begun.elapsed() < DEADLINE, "no {what} within {DEADLINE:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub async fn close(self) {
        self.stack.close().await.unwrap();
    }
}

/// The executor's part of a call.
pub struct Activity {
    pub run: RunId,
    pub call: CallId,
    digest: String,
    publisher: Publisher,
    pub offset: u64,
    pub lines: u64,
}

impl Activity {
    pub fn frame(&mut self, body: &str) -> Outgoing {
        let frame = self.message(body).msg_id(format!("{}:{}", self.call, self.offset));
        self.offset += body.len() as u64;
        self.lines += body.matches('\n').count() as u64;
        frame
    }

    pub async fn say(&mut self, body: &str) {
        let frame = self.frame(body);
        self.publisher.publish(frame).await.unwrap();
    }

    /// Lines, a hundred to a frame, cut without regard to where they end.
    pub async fn say_all(&mut self, lines: impl Iterator<Item = String>) {
        let text: String = lines.collect();
        let mut frames = Vec::new();
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let cut = (4001..=rest.len()).find(|at| rest.is_char_boundary(*at)).unwrap_or(rest.len());
            let (body, tail) = rest.split_at(cut);
            frames.push(self.frame(body));
            rest = tail;
        }
        for outcome in self.publisher.publish_all(frames).await {
            outcome.unwrap();
        }
    }

    pub async fn exit(&self, code: i32) {
        let exit =
            Exit { code: Some(code), signal: None, reason: "exited".into(), bytes: self.offset, lines: self.lines };
        let exit = serde_json::to_string(&exit).unwrap();
        let frame = self.message("").header(header::EXIT, exit).msg_id(format!("{}:exit", self.call));
        self.publisher.publish(frame).await.unwrap();
    }

    fn message(&self, body: &str) -> Outgoing {
        let traceparent = format!("00-{}-00f067aa0ba902b7-01", self.run.trace_id());
        Outgoing::new(subject::sig(TenantId::default(), self.run, self.call), body.to_owned())
            .header(header::OFFSET, self.offset)
            .header(header::LINE, self.lines)
            .header(header::STREAM, "both")
            .header(header::TIME, Timestamp::now())
            .header(header::TOOL, "shell.run")
            .header(header::AGENT, &self.digest)
            .traceparent(&traceparent)
    }
}

fn outcome(state: &RunState, call_id: CallId) -> TurnOutcome {
    let call = CallRequest {
        call_id,
        tool: "shell.run".into(),
        arguments: serde_json::json!({ "command": "make" }),
        kind: CallKind::Activity,
        effect: Effect::Write,
        idempotent: false,
        schema_digest: String::new(),
        trust: Trust::Operator,
        compensation: Default::default(),
        timeout: units::Duration::from_secs(600),
    };
    let turn_id = state.turn.as_ref().expect("an open turn").turn_id;
    TurnOutcome { calls: vec![call], ..TurnOutcome::empty(turn_id, state.seq, "scripted:test", Trust::Operator) }
}

/// An observer that is a process.
pub struct Process(tokio::process::Child);

impl Process {
    /// Ends it at once, as a power cut would.
    pub async fn kill(mut self) {
        self.0.kill().await.unwrap();
    }
}

/// The partitions that an observer says it reads.
pub async fn partitions(addr: SocketAddr) -> Vec<u64> {
    let mut stream = tokio::net::TcpStream::connect(addr).await.unwrap();
    let request = "GET /partitions HTTP/1.1\r\nhost: observer\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let body: serde_json::Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    body["partitions"].as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
}
