//! Artifact services over real parts, and a run to store for.

use std::time::{Duration, Instant};

use engine::{Engine, testing::TestStack};
use kernel::{
    Block, Cause, Command, Role, RunId, TenantId, Trust,
    call::ArtifactRef,
    command::{CreateRun, EndRequest, TurnOutcome},
    event::RunCreated,
};
use reqwest::{Client, RequestBuilder};
use service::{Running, testing};

pub const DEADLINE: Duration = Duration::from_secs(60);
pub const TOKEN: &str = "the services' own";

pub struct World {
    pub stack: TestStack,
    pub folder: tempfile::TempDir,
    ingress: Engine,
    planner: Engine,
}

/// A service that runs. Dropping it is a crash.
pub struct Service {
    pub running: Running,
    base: String,
    client: Client,
}

impl World {
    pub async fn new() -> Self {
        let stack = TestStack::new().await.unwrap();
        let ingress = stack.engine(Role::Ingress).await.unwrap();
        let planner = stack.engine(Role::Planner).await.unwrap();
        Self { stack, folder: tempfile::tempdir().unwrap(), ingress, planner }
    }

    pub async fn service(&self) -> Service {
        self.service_with(|_| {}).await
    }

    pub async fn service_with(&self, change: impl FnOnce(&mut artifact::Config)) -> Service {
        let common = testing::common("artifact", &self.stack);
        let mut config = artifact::Config { common, segment_millis: 100, ..artifact::Config::default() };
        config.common.artifacts_url = self.folder.path().to_str().unwrap().to_owned();
        config.common.internal_token = TOKEN.into();
        change(&mut config);
        let mut running = service::spawn("artifact", config, artifact::run).unwrap();
        let base = format!("http://{}", running.listening().await.unwrap());
        Service { running, base, client: Client::builder().no_proxy().build().unwrap() }
    }

    pub async fn run(&self) -> RunId {
        let run = RunId::mint();
        let text = Block::new("Write it.", Trust::Operator, "operator:ann");
        let created = RunCreated::new(TenantId::default(), "writer", "0", text.clone(), text);
        let create = Command::Create(Box::new(CreateRun { created, hold: None }));
        self.ingress.submit(run, create, "create", Cause::default()).await.unwrap();
        run
    }

    /// Commits an artifact with the end of the run, as the planner does.
    pub async fn commit(&self, run: RunId, artifact: ArtifactRef) {
        let state = self.ingress.load(run).await.unwrap().unwrap();
        let turn_id = state.turn.as_ref().expect("an open turn").turn_id;
        let outcome = TurnOutcome {
            artifacts: vec![artifact],
            end: Some(EndRequest::Complete(Block::new("Written.", Trust::Operator, "model:test"))),
            ..TurnOutcome::empty(turn_id, state.seq, "scripted:test", Trust::Operator)
        };
        let key = format!("turn/{}", outcome.turn_id);
        let command = Command::CommitTurn(Box::new(outcome));
        self.planner.submit(run, command, key, Cause::default()).await.unwrap();
    }

    pub async fn close(self) {
        self.stack.close().await.unwrap();
    }
}

impl Service {
    pub fn get(&self, path: &str) -> RequestBuilder {
        self.client.get(format!("{}{path}", self.base)).bearer_auth(TOKEN)
    }

    pub fn put(&self, run: RunId, name: &str) -> RequestBuilder {
        let run = run.to_string();
        let query = [
            ("tenant", "default"),
            ("run_id", &run),
            ("name", name),
            ("media_type", "text/plain"),
            ("trust", "trusted"),
        ];
        let url = reqwest::Url::parse_with_params(&format!("{}/internal/artifacts", self.base), query).unwrap();
        self.client.put(url).bearer_auth(TOKEN)
    }

    pub async fn stop(self) {
        self.running.stop().await.unwrap();
    }
}

/// Looks again and again until it holds.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < DEADLINE, "no {what} within {DEADLINE:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
