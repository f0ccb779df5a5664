//! Runs put into a stack's log through the engine, without its services: for more runs, or longer ones, than there is time to
//! make in the usual way. The log, its projections and the snapshots are those of the stack; the doorbells ring in a namespace
//! of their own, so that no service takes up a turn before it is committed here.

use std::sync::Arc;

use bus::{Bus, BusOptions, Limits as StreamLimits, Namespace, Topology, testing::TestBus};
use engine::{Engine, EngineOptions};
use kernel::{
    Cause, Command, Role, RunId, RunState, TenantId,
    command::WaitRequest,
    wait::{Condition, WaitExpr},
};

use crate::{commands, target::Error};

/// Where the stores of a stack are, and the keys to all of them: as in `.local/env.operator`.
#[derive(clap::Args)]
pub struct Stores {
    /// Postgres, as the owner of the schema.
    #[arg(long, env = "ESC_DATABASE_URL", default_value = "")]
    database_url: String,
    /// NATS, as a user that may create streams.
    #[arg(long, env = "ESC_NATS_URL", default_value = "")]
    nats_url: String,
    /// Redis or Valkey.
    #[arg(long, env = "ESC_REDIS_URL", default_value = "")]
    redis_url: String,
}

/// The way into the log.
pub struct Door {
    ingress: Engine,
    planner: Engine,
    bus: TestBus,
    /// The same log seen without any snapshot.
    cold: Engine,
    agent: String,
    digest: String,
}

impl Door {
    /// Connects; runs will be of `agent`, which the stack must know.
    pub async fn open(stores: &Stores, agent: &str) -> Result<Self, Error> {
        if [&stores.database_url, &stores.nats_url, &stores.redis_url].iter().any(|url| url.is_empty()) {
            return Err(
                "this needs ESC_DATABASE_URL, ESC_NATS_URL and ESC_REDIS_URL: source .local/env.operator".into()
            );
        }
        let name = unique_name();
        let options = BusOptions {
            namespace: Namespace::new(name.clone())?,
            ..BusOptions::new(stores.nats_url.clone(), "loadtest")
        };
        let bus = Bus::connect(options).await?;
        bus.reconcile(&Topology::standard(&StreamLimits::for_tests())).await?;
        let options = |role| EngineOptions::new(role, stores.database_url.clone(), stores.redis_url.clone());
        let ingress = Engine::start(options(Role::Ingress), bus.clone()).await?;
        let planner = Engine::start(options(Role::Planner), bus.clone()).await?;
        let cold = Engine::start(EngineOptions { namespace: name, ..options(Role::Artifact) }, bus.clone()).await?;
        let head = ingress.agents().head(&TenantId::default(), agent).await?;
        let digest = head.ok_or_else(|| format!("there is no agent `{agent}`"))?.digest.clone();
        Ok(Self { ingress, planner, bus: TestBus::adopt(bus), cold, agent: agent.to_owned(), digest })
    }

    /// Waits until all is published, and leaves nothing behind but the runs.
    pub async fn close(self) -> Result<(), Error> {
        for engine in [&self.ingress, &self.planner, &self.cold] {
            engine.drain().await;
        }
        Ok(self.bus.end().await?)
    }

    /// A new run that sleeps until `wait` says otherwise.
    pub async fn asleep(&self, wait: impl FnOnce(RunId) -> WaitRequest) -> Result<RunId, Error> {
        let run = RunId::mint();
        let state = self.submit(&self.ingress, run, commands::create(&self.agent, &self.digest)).await?;
        self.turn(&state, 0, wait(run)).await?;
        Ok(run)
    }

    /// Commits the open turn of a run: `say` messages, and then it waits.
    pub async fn turn(&self, state: &RunState, say: usize, wait: WaitRequest) -> Result<Arc<RunState>, Error> {
        let command = commands::turn(state, say, wait).ok_or("no turn is open")?;
        self.submit(&self.planner, state.run_id, command).await
    }

    /// Wakes a run by a message.
    pub async fn message(&self, run: RunId) -> Result<Arc<RunState>, Error> {
        self.submit(&self.ingress, run, commands::message()).await
    }

    /// The run as a service loads it.
    pub async fn load(&self, run: RunId) -> Result<Arc<RunState>, Error> {
        Ok(self.planner.load(run).await?.ok_or("there is no such run")?)
    }

    /// The run as a service loads it that finds no snapshot.
    pub async fn load_cold(&self, run: RunId) -> Result<Arc<RunState>, Error> {
        Ok(self.cold.load(run).await?.ok_or("there is no such run")?)
    }

    async fn submit(&self, engine: &Engine, run: RunId, command: Command) -> Result<Arc<RunState>, Error> {
        let key = format!("loadtest/{}", uuid::Uuid::now_v7());
        Ok(engine.submit(run, command, key, Cause::default()).await?.state)
    }
}

/// Sleeping until the operator writes.
pub fn until_called() -> WaitRequest {
    wait_for(Condition::OperatorInput { approval_id: None })
}

/// Sleeping until one thing happens.
pub fn wait_for(condition: Condition) -> WaitRequest {
    let why = "nothing to do until then".to_owned();
    WaitRequest { on: WaitExpr::from(condition), why, assumes: None, expects: None, deadline: None }
}

/// A namespace that nobody else uses: the random end of an id, since a namespace is 32 characters at most.
pub fn unique_name() -> String {
    format!("load{}", &RunId::mint().0.simple().to_string()[16..])
}
