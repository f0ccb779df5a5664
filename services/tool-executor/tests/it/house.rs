//! A house of one's own: real parts, one agent, runs whose turns the test plays, and executors that come and go.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bus::{ConsumeOptions, Delivery, Outcome, header};
use engine::testing::TestStack;
use engine::{Engine, SubmitError, ToolCatalog};
use jiff::Timestamp;
use kernel::call::{Approval, Attempt, CallRequest, Compensation, Exit, Observation, Verdict};
use kernel::command::{
    ByOperator, Command, ConcludeCall, CreateRun, DecideApproval, FireTimer, TurnOutcome, WaitRequest,
};
use kernel::event::{EventData, RunCreated, TimerPurpose};
use kernel::{ApprovalId, Block, CallId, Cause, Role, RunId, RunState, TenantId, Trust};
use serde_json::Value;
use service::{Common, Running};
use tokio_util::sync::CancellationToken;
use tool_executor::Config;

use crate::server::Server;

/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(90);

pub struct House {
    pub stack: TestStack,
    pub dir: tempfile::TempDir,
    agent: String,
    digest: String,
    frames: Arc<Mutex<Vec<Delivery>>>,
    stop: CancellationToken,
}

impl House {
    /// With an agent that has these tools beside the declared ones, and may do what `allow` says (YAML).
    pub async fn new(tools: &[&str], declared: &[(&str, String)], allow: &str) -> Self {
        let stack = TestStack::new().await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let files = dir.path().join("agents/tools");
        std::fs::create_dir_all(&files).unwrap();
        for (name, yaml) in declared {
            std::fs::write(files.join(format!("{name}.yaml")), yaml).unwrap();
        }
        let names: Vec<_> = tools.iter().copied().chain(declared.iter().map(|(name, _)| *name)).collect();
        let yaml = format!(
            "name: tester\nmodel: scripted:none\ninstructions: Test.\ntools: [{}]\nallow: {allow}\n",
            names.join(", ")
        );
        let ingress = stack.engine(Role::Ingress).await.unwrap();
        let version = ingress.agents().put(&TenantId::default(), &yaml, "test").await.unwrap();
        let frames = Arc::new(Mutex::new(Vec::new()));
        let (sink, stop) = (frames.clone(), CancellationToken::new());
        let handler = move |delivery: Delivery| {
            sink.lock().unwrap().push(delivery);
            async { Ok(Outcome::Ack) }
        };
        stack.bus().consume("artifact", ConsumeOptions::default(), handler, stop.clone()).unwrap();
        Self { stack, dir, agent: version.name.clone(), digest: version.digest.clone(), frames, stop }
    }

    /// A house with one tool of its own, `x.do`, which does an effect at this server.
    pub async fn with_effect(server: &Server) -> Self {
        Self::new(&[], &[("x.do", server.effect_tool("x.do", "60s", false))], "{}").await
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn config(&self) -> Config {
        let common = Common {
            drain_seconds: 5,
            agents_dir: self.path("agents"),
            // The shipped ones.
            policies_dir: self.path("no-policies"),
            workspaces: self.path("workspaces"),
            // Nobody listens on the port of "discard".
            artifact_url: "http://127.0.0.1:9".to_owned(),
            ..service::testing::common("tool-executor", &self.stack)
        };
        Config {
            common,
            secrets_dir: self.path("secrets"),
            checkout_root: self.path("repositories"),
            // Longer than anything is held up: who dies here lets go of its leases at once.
            lease_seconds: 30,
            begin_within: Duration::from_secs(30),
            ..Config::default()
        }
    }

    pub fn executor(&self) -> Running {
        self.executor_with(self.config())
    }

    pub fn executor_with(&self, config: Config) -> Running {
        service::spawn("tool-executor", config, tool_executor::run).unwrap()
    }

    pub async fn engine(&self, role: Role) -> Engine {
        self.stack.engine(role).await.unwrap()
    }

    /// The settings of an executor under these policies, which replace those written before.
    pub fn config_under(&self, policies: &str) -> Config {
        let folder = self.path("policies");
        std::fs::create_dir_all(&folder).unwrap();
        let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../../infra/policies/schema.cedarschema");
        std::fs::copy(shipped, folder.join("schema.cedarschema")).unwrap();
        std::fs::write(folder.join("a.cedar"), policies).unwrap();
        let mut config = self.config();
        config.common.policies_dir = folder;
        config
    }

    /// A call as a planner would ask for it.
    pub fn call(&self, tool: &str, arguments: Value, trust: Trust) -> CallRequest {
        let catalog = ToolCatalog::load(self.path("agents")).unwrap();
        let spec = catalog.get(tool);
        CallRequest {
            call_id: CallId::mint(),
            tool: tool.to_owned(),
            arguments,
            kind: spec.as_ref().map(|spec| spec.kind).unwrap_or_default(),
            effect: spec.as_ref().map_or(kernel::tool::Effect::Read, |spec| spec.effect),
            idempotent: spec.as_ref().is_some_and(|spec| spec.idempotent),
            schema_digest: catalog.digest(tool).unwrap_or_default().to_owned(),
            trust,
            compensation: match spec.as_ref().and_then(|spec| spec.compensate.as_ref()) {
                Some(_) => Compensation::Declared,
                None => Compensation::None,
            },
            timeout: spec.map_or(kernel::units::Duration::from_secs(5), |spec| spec.timeout),
        }
    }

    /// A run whose first turn asks for these calls.
    pub async fn run(&self, calls: Vec<CallRequest>) -> RunId {
        self.prepared_run(calls, &[]).await
    }

    /// A run whose first turn asks for one call.
    pub async fn run_one(&self, tool: &str, arguments: Value, trust: Trust) -> (RunId, CallId) {
        let call = self.call(tool, arguments, trust);
        let call_id = call.call_id;
        (self.run(vec![call]).await, call_id)
    }

    /// As [`run`](Self::run), for what an operator asks.
    pub async fn run_for(&self, objective: &str, calls: Vec<CallRequest>) -> RunId {
        self.run_with(objective, calls, &[], None).await
    }

    /// A run whose workspace has these files, and whose first turn asks for these calls.
    pub async fn prepared_run(&self, calls: Vec<CallRequest>, files: &[(&str, &str)]) -> RunId {
        self.run_with("Test.", calls, files, None).await
    }

    /// A run whose first turn asks for these calls, and waits.
    pub async fn run_that(&self, calls: Vec<CallRequest>, wait: Option<WaitRequest>) -> RunId {
        self.run_with("Test.", calls, &[], wait).await
    }

    async fn run_with(
        &self,
        objective: &str,
        calls: Vec<CallRequest>,
        files: &[(&str, &str)],
        wait: Option<WaitRequest>,
    ) -> RunId {
        let run = RunId::mint();
        for (name, content) in files {
            let folder = self.path("workspaces").join(run.to_string());
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(name), content).unwrap();
        }
        let asked = Block::new(objective, Trust::Operator, "operator:test");
        let created = RunCreated {
            sampled: true,
            roles: vec!["user".to_owned()],
            ..RunCreated::new(TenantId::default(), &self.agent, &self.digest, asked.clone(), asked)
        };
        let create = Command::Create(Box::new(CreateRun { created, hold: None }));
        let state = self.submit(Role::Ingress, run, create, "create").await;
        self.commit(run, &state, calls, wait).await;
        run
    }

    /// The open turn of a run asks for these calls.
    pub async fn turn(&self, run: RunId, calls: Vec<CallRequest>) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let engine = self.engine(Role::Planner).await;
        loop {
            let state = engine.load(run).await.unwrap().unwrap();
            if state.turn.is_some() {
                return self.commit(run, &state, calls, None).await;
            }
            assert!(tokio::time::Instant::now() < deadline, "no turn opens");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn commit(&self, run: RunId, state: &RunState, calls: Vec<CallRequest>, wait: Option<WaitRequest>) {
        let turn_id = state.turn.as_ref().unwrap().turn_id;
        let outcome = TurnOutcome { calls, wait, ..TurnOutcome::empty(turn_id, state.seq, "test", Trust::Operator) };
        let key = format!("turn/{}", outcome.turn_id);
        self.submit(Role::Planner, run, Command::CommitTurn(Box::new(outcome)), &key).await;
    }

    pub async fn submit(&self, role: Role, run: RunId, command: Command, key: &str) -> Arc<RunState> {
        self.engine(role).await.submit(run, command, key, Cause::default()).await.unwrap().state
    }

    pub async fn decide(&self, run: RunId, approval_id: ApprovalId, edited: Option<(Value, String)>) {
        self.agree(run, approval_id, "ann", edited).await.unwrap();
    }

    /// Somebody says yes, to these arguments if they are edited.
    pub async fn agree(
        &self,
        run: RunId,
        approval_id: ApprovalId,
        by: &str,
        edited: Option<(Value, String)>,
    ) -> Result<Arc<RunState>, SubmitError> {
        let decision = DecideApproval { edited, ..decision(approval_id, Verdict::Approve, by) };
        // Every press of the button is a request of its own.
        let key = format!("decide/{approval_id}/{}", CallId::mint());
        let engine = self.engine(Role::Approval).await;
        let committed = engine.submit(run, Command::DecideApproval(decision), key, Cause::default()).await?;
        Ok(committed.state)
    }

    pub async fn cancel(&self, run: RunId) {
        let by = ByOperator { by: "ann".to_owned(), reason: None };
        self.submit(Role::Ingress, run, Command::Cancel(by), "cancel").await;
    }

    /// What an observer does at the end of an activity.
    pub async fn conclude(&self, run: RunId, call_id: CallId, exit: Exit) {
        let observation = Observation {
            call_id: Some(call_id),
            phase: "completed".to_owned(),
            changed: "It ended.".to_owned(),
            anomaly: false,
            decision: None,
            evidence: Vec::new(),
            missing: None,
            counts: Default::default(),
        };
        let succeeded = exit.is_success();
        let conclude = ConcludeCall { call_id, succeeded, exit, observation, asked: None, duration_ms: 1 };
        let key = format!("conclude/{call_id}");
        self.submit(Role::Observer, run, Command::ConcludeCall(Box::new(conclude)), &key).await;
    }

    /// Waits until `look` finds something in the events of the run.
    pub async fn event<T>(&self, run: RunId, look: impl Fn(&[EventData]) -> Option<T>) -> T {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let events = self.events(run).await;
            if let Some(found) = look(&events) {
                return found;
            }
            let names: Vec<_> = events.iter().map(EventData::type_name).collect();
            assert!(tokio::time::Instant::now() < deadline, "it did not come; the run has {names:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub async fn events(&self, run: RunId) -> Vec<EventData> {
        let reads = self.engine(Role::Ingress).await.reads();
        let stored = reads.events(&TenantId::default(), run, 0, 1000).await.unwrap();
        stored.iter().map(|event| event.decode().unwrap().data).collect()
    }

    /// Plays the scheduler: fires each timer of a put-off call of the run as it comes due, as long as it is polled.
    pub async fn keep_time(&self, run: RunId) -> std::convert::Infallible {
        let (engine, ingress) = (self.engine(Role::Scheduler).await, self.engine(Role::Ingress).await);
        loop {
            let state = ingress.load(run).await.unwrap().unwrap();
            for (timer_id, timer) in state.timers.iter().filter(|(_, timer)| timer.purpose == TimerPurpose::Retry) {
                let left = std::time::Duration::try_from(timer.due.duration_since(Timestamp::now()));
                tokio::time::sleep(left.unwrap_or_default()).await;
                let fire = Command::FireTimer(FireTimer { timer_id: *timer_id });
                let _ = engine.submit(run, fire, format!("timer/{timer_id}"), Cause::default()).await;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Does something while `keep_ringing` goes on.
    pub async fn while_ringing<T>(&self, run: RunId, what: impl Future<Output = T>) -> T {
        tokio::select! {
            done = what => done,
            never = self.keep_ringing(run) => match never {},
        }
    }

    /// Does something while `keep_time` goes on.
    pub async fn while_time_is_kept<T>(&self, run: RunId, what: impl Future<Output = T>) -> T {
        tokio::select! {
            done = what => done,
            never = self.keep_time(run) => match never {},
        }
    }

    /// Plays the scheduler: rings for what nobody is at, as long as it is polled.
    pub async fn keep_ringing(&self, run: RunId) -> std::convert::Infallible {
        let outbox = self.engine(Role::Scheduler).await.outbox();
        loop {
            outbox.ring(run).await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Waits until a frame of a call holds this.
    pub async fn frame(&self, call: CallId, words: &str) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let holds = |frame: &Delivery| frame.payload.windows(words.len()).any(|part| part == words.as_bytes());
        while !self.frames(call).iter().any(holds) {
            assert!(tokio::time::Instant::now() < deadline, "no frame holds {words:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The attempts of a call that were followed by another, by their codes.
    pub async fn attempts(&self, run: RunId) -> Vec<String> {
        let events = self.events(run).await;
        let attempts = events.into_iter().filter_map(|event| match event {
            EventData::ToolProgressed(progressed) => progressed.attempt,
            _ => None,
        });
        let words = |attempt: Attempt| {
            let of = if attempt.dry_run { " (dry run)" } else { "" };
            format!("{} {}{of}", attempt.class.as_str(), attempt.code)
        };
        attempts.map(words).collect()
    }

    /// How many events of this type the run has.
    pub async fn count(&self, run: RunId, event_type: &str) -> usize {
        self.events(run).await.iter().filter(|event| event.type_name() == event_type).count()
    }

    /// Waits for the `number`th question (from 1) of the run.
    pub async fn question(&self, run: RunId, number: usize) -> Approval {
        self.event(run, |events| {
            let mut asked = events.iter().filter_map(|event| match event {
                EventData::ApprovalRequested(asked) => Some(asked.approval.clone()),
                _ => None,
            });
            asked.nth(number - 1)
        })
        .await
    }

    /// Waits for the end of a call and gives its type, its code if it has one, and what the model is shown.
    pub async fn end_of(&self, run: RunId, call: CallId) -> (&'static str, String, Block) {
        self.event(run, |events| {
            events.iter().find_map(|event| match event {
                EventData::ToolDenied(denied) if denied.call_id == call => {
                    Some((event.type_name(), denied.code.clone(), denied.reason.clone()))
                }
                EventData::ToolCompleted(done) if done.call_id == call => {
                    Some((event.type_name(), String::new(), done.result.block.clone()))
                }
                EventData::ToolFailed(failed) if failed.call_id == call => {
                    Some((event.type_name(), failed.failure.code.clone(), failed.failure.block.clone()))
                }
                EventData::ToolReconciled(reconciled)
                    if reconciled.call_id == call && reconciled.finding == kernel::event::Finding::Unknown =>
                {
                    Some((event.type_name(), "unknown".to_owned(), reconciled.evidence.clone()))
                }
                _ => None,
            })
        })
        .await
    }

    /// Waits until the call has started.
    pub async fn started(&self, run: RunId) {
        self.event(run, |events| events.iter().any(|event| event.type_name() == "tool.started").then_some(())).await;
    }

    /// Waits for the exit frame of a call and gives its whole output, put together frame by frame without gap or overlap.
    pub async fn output(&self, call: CallId) -> (Vec<u8>, Exit) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let frames = self.frames(call);
            if let Some(exit) = frames.iter().find_map(|frame| frame.headers.get(header::EXIT)) {
                let exit: Exit = serde_json::from_str(exit).unwrap();
                // The consumer is free in its order, and its last messages may be on their way.
                if put_together(&frames).len() as u64 == exit.bytes {
                    return (checked(&frames, &exit), exit);
                }
            }
            let seen = frames.len();
            assert!(tokio::time::Instant::now() < deadline, "the output did not end; {seen} frames came");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The stored frames of a call so far, in the order of the stream.
    pub fn frames(&self, call: CallId) -> Vec<Delivery> {
        let all = self.frames.lock().unwrap();
        let mut frames: Vec<_> =
            all.iter().filter(|frame| frame.subject.ends_with(&call.to_string())).cloned().collect();
        frames.sort_by_key(|frame| frame.stream_seq);
        frames.dedup_by_key(|frame| frame.stream_seq);
        frames
    }

    pub async fn close(self, executors: Vec<Running>) {
        for executor in executors {
            executor.stop().await.unwrap();
        }
        self.stop.cancel();
        self.stack.close().await.unwrap();
    }
}

fn put_together(frames: &[Delivery]) -> Vec<u8> {
    frames.iter().flat_map(|frame| frame.payload.to_vec()).collect()
}

fn checked(frames: &[Delivery], exit: &Exit) -> Vec<u8> {
    let number = |frame: &Delivery, name| frame.headers.get(name).unwrap().parse::<u64>().unwrap();
    let (mut offset, mut line) = (0, 0);
    for frame in frames {
        assert_eq!(number(frame, header::OFFSET), offset, "a gap or an overlap");
        assert_eq!(number(frame, header::LINE), line);
        offset += frame.payload.len() as u64;
        line += frame.payload.iter().filter(|byte| **byte == b'\n').count() as u64;
        for name in [header::STREAM, header::TIME, header::TOOL, header::AGENT, header::TRACEPARENT] {
            assert!(frame.headers.get(name).is_some_and(|value| !value.is_empty()), "{name} is missing");
        }
        assert!(frame.headers.get(header::TIME).unwrap().parse::<Timestamp>().is_ok());
    }
    assert!(frames.last().unwrap().headers.get(header::EXIT).is_some(), "the exit frame is last");
    assert_eq!(exit.bytes, offset);
    put_together(frames)
}

/// A plain word of a person about a question.
pub fn decision(approval_id: ApprovalId, verdict: Verdict, by: &str) -> DecideApproval {
    DecideApproval {
        approval_id,
        verdict,
        edited: None,
        reason: None,
        by: by.to_owned(),
        aliases: Vec::new(),
        standing: None,
    }
}
