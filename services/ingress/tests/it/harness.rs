//! A public door on a free port, over a stack of its own, and hands of the services behind it.

use std::future::Future;
use std::time::Duration;

use bus::Bus;
use engine::testing::TestStack;
use engine::{Committed, Engine};
use ingress::Config;
use kernel::budget::Usage;
use kernel::call::{Approval, Binding, CallRequest};
use kernel::command::{TurnOutcome, WaitRequest};
use kernel::tool::{CallKind, Effect};
use kernel::wait::{Condition, ExternalPattern};
use kernel::{ApprovalId, Block, CallId, Cause, Command, Role, RunId, RunState, Timestamp, Trust};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use service::{Common, Running};
use sha2::{Digest, Sha256};

/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// An agent without anything special.
pub const HELPER: &str = "
name: helper
model: scripted:helper
instructions: Help.
budget: { turns: 10, cost_usd: 2.0 }
";

/// A door, and what is behind it.
pub struct Door {
    pub stack: TestStack,
    pub url: String,
    pub http: reqwest::Client,
    running: Option<Running>,
    pub tokens: tempfile::NamedTempFile,
}

/// The tokens are named `<tenant>-<role>`.
fn token_file() -> tempfile::NamedTempFile {
    let roles = ["viewer", "user", "operator", "admin", "publisher"];
    let rows: Vec<Value> = ["acme", "other"]
        .iter()
        .flat_map(|tenant| {
            roles.iter().map(move |role| {
                let token = format!("{tenant}-{role}");
                let hash = hex::encode(Sha256::digest(&token));
                json!({"name": token, "tenant": tenant, "roles": [role], "sha256": hash})
            })
        })
        .chain([json!({
            "name": "late", "tenant": "acme", "roles": ["admin"], "expires": "2020-01-01T00:00:00Z",
            "sha256": hex::encode(Sha256::digest("late")),
        })])
        .collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), Value::from(rows).to_string()).unwrap();
    file
}

impl Door {
    pub async fn open() -> Self {
        Self::open_with(|_| {}).await
    }

    pub async fn open_with(change: impl FnOnce(&mut Config)) -> Self {
        let stack = TestStack::new().await.unwrap();
        let tokens = token_file();
        let mut config = config(&stack, tokens.path());
        change(&mut config);
        let mut running = service::spawn("ingress", config, ingress::run).unwrap();
        let Some(addr) = running.listening().await else { panic!("{:?}", running.stop().await) };
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let door = Self { stack, url: format!("http://{addr}"), http, running: Some(running), tokens };
        door.put_agent(HELPER).await;
        door
    }

    pub fn bus(&self) -> Bus {
        self.stack.bus()
    }

    /// A request with a token of the tenant `acme`.
    pub fn request(&self, method: Method, path: &str, role: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.url)).bearer_auth(format!("acme-{role}"))
    }

    pub async fn get(&self, path: &str) -> Value {
        json_of(self.request(Method::GET, path, "viewer").send().await.unwrap()).await
    }

    /// As an operator.
    pub async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        answer(self.request(Method::POST, path, "operator").json(body).send().await.unwrap()).await
    }

    pub async fn put_agent(&self, yaml: &str) -> Value {
        let spec = engine::parse(yaml).unwrap();
        let path = format!("/v1/agents/{}", spec.name);
        json_of(self.request(Method::PUT, &path, "admin").body(yaml.to_owned()).send().await.unwrap()).await
    }

    /// A run of `helper`.
    pub async fn run(&self) -> RunId {
        let (status, body) = self.post("/v1/runs", &json!({"agent": "helper", "input": "go"})).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{body}");
        body["run_id"].as_str().unwrap().parse().unwrap()
    }

    pub async fn engine(&self, role: Role) -> Engine {
        self.stack.engine(role).await.unwrap()
    }

    pub async fn events(&self, run: RunId) -> Vec<Value> {
        self.get(&format!("/v1/runs/{run}/events?limit=1000")).await["items"].as_array().unwrap().clone()
    }

    /// Begins the end of the service; streams hear of it.
    pub async fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop().await.unwrap();
        }
    }

    pub async fn close(mut self) {
        self.stop().await;
        self.stack.close().await.unwrap();
    }
}

pub fn config(stack: &TestStack, tokens: &std::path::Path) -> Config {
    Config {
        common: Common { drain_seconds: 10, ..service::testing::common("ingress", stack) },
        tokens: tokens.to_owned(),
        sweep_seconds: 1,
        pool_size: 4,
        ..Config::default()
    }
}

pub async fn answer(response: Response) -> (StatusCode, Value) {
    let status = response.status();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

pub async fn json_of(response: Response) -> Value {
    let (status, body) = answer(response).await;
    assert!(status.is_success(), "{status}: {body}");
    body
}

/// Asks until there is an answer.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, ask: impl Fn() -> F) -> T {
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.unwrap_or_else(|_| panic!("never: {what}"))
}

pub fn block(text: &str) -> Block {
    Block::new(text, Trust::System, "test")
}

pub fn cause(service: &str, seq: u64) -> Cause {
    Cause { service: service.into(), seq: Some(seq), ..Cause::default() }
}

/// An outcome of the open turn that says something and does no more.
pub fn outcome(state: &RunState) -> TurnOutcome {
    let turn_id = state.turn.as_ref().unwrap().turn_id;
    TurnOutcome {
        say: vec![block("working on it")],
        usage: Usage { model_calls: 1, input_tokens: 100, output_tokens: 10, ..Usage::default() },
        model_ms: 5,
        ..TurnOutcome::empty(turn_id, state.seq, "scripted:helper", Trust::Operator)
    }
}

pub fn wait_for_event(subject: &str, filter: Option<&str>, exclusive: bool) -> WaitRequest {
    let pattern = ExternalPattern {
        source: "ci".into(),
        event_type: "build.*".into(),
        subject: subject.into(),
        filter: filter.map(str::to_owned),
        exclusive,
        verify: None,
    };
    WaitRequest {
        on: Condition::External(pattern).into(),
        why: "the build".into(),
        assumes: None,
        expects: None,
        deadline: None,
    }
}

/// Commits a turn's outcome as a planner would, caused by what opened the turn.
pub async fn commit(planner: &Engine, run: RunId, change: impl FnOnce(&RunState, &mut TurnOutcome)) -> Committed {
    let state = planner.load(run).await.unwrap().unwrap();
    let mut outcome = outcome(&state);
    change(&state, &mut outcome);
    let opened_by = state.turn.as_ref().unwrap().opened_by;
    let key = format!("turn/{}", outcome.turn_id);
    planner.submit(run, Command::CommitTurn(Box::new(outcome)), key, cause("planner", opened_by)).await.unwrap()
}

/// A call of a tool outside that needs a yes.
pub fn merge_call(state: &RunState) -> CallRequest {
    CallRequest {
        call_id: CallId::derive(state.run_id, &format!("call/{}", state.seq)),
        tool: "forge.merge".into(),
        arguments: json!({"pull": 7}),
        kind: CallKind::Call,
        effect: Effect::External,
        idempotent: false,
        schema_digest: "schema".into(),
        trust: Trust::Untrusted,
        compensation: Default::default(),
        timeout: kernel::units::Duration::from_secs(30),
    }
}

/// A question about a call that is open for an hour.
pub fn question(state: &RunState, call: CallId) -> Approval {
    Approval {
        approval_id: ApprovalId::derive(state.run_id, "approval"),
        call_id: Some(call),
        question: block("Merge pull request 7?"),
        tool: Some("forge.merge".into()),
        arguments: Some(json!({"pull": 7})),
        binding: Binding::default(),
        trust: Trust::Untrusted,
        reasons: vec!["merging is for people".into()],
        two_people: false,
        shown: Default::default(),
        expires_at: Timestamp::now().checked_add(jiff::SignedDuration::from_hours(1)).unwrap(),
    }
}
