//! The handle that services hold.

use std::{hash::Hasher, str::FromStr, sync::Arc, time::Duration};

use bus::Bus;
use kernel::{Cause, Command, Event, Rejection, RunId, RunState};
use redis::aio::ConnectionManager;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::TaskTracker;

use crate::{
    batch::{Committer, Job},
    error::{EngineError, SubmitError, pg, rd},
    load::Loader,
    options::EngineOptions,
    outbox::{Outbox, Publishing},
    pool::Pool,
    snapshot::{RedisKeys, Snapshots},
};

/// How long a store may take to answer for the first time.
const CONNECT_WITHIN: Duration = Duration::from_secs(30);
/// Commands that may wait in front of a committer; more make `submit` wait.
const QUEUE: usize = 4096;

/// What a command led to.
#[derive(Clone, Debug)]
pub struct Committed {
    /// The new events; none if there was nothing to do, or if it was delivered before.
    pub events: Vec<Event>,
    /// The run as it stands now.
    pub state: Arc<RunState>,
    /// Whether this delivery had been handled before.
    pub duplicate: bool,
}

/// The one door to runs. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    options: EngineOptions,
    bus: Bus,
    loader: Loader,
    redis: ConnectionManager,
    keys: RedisKeys,
    agents: crate::Agents,
    committers: std::sync::RwLock<Vec<mpsc::Sender<Job>>>,
    tasks: TaskTracker,
}

impl Engine {
    /// Connects to the stores and starts committing.
    ///
    /// # Errors
    /// When an address is malformed or a store does not answer.
    pub async fn start(options: EngineOptions, bus: Bus) -> Result<Self, EngineError> {
        #[cfg(feature = "failpoints")]
        arm_failpoints();
        // A service that starts while a store is being restarted waits for it, as it does once it runs.
        let policy = bus::retry::Policy::exponential(Duration::from_millis(50), Duration::from_secs(2));
        let policy = policy.within(CONNECT_WITHIN);
        // In boxes: each is larger than all else here, and so would be whatever awaits this.
        let (size, within) = (options.pool_size, options.postgres_within);
        let to_postgres = || Box::pin(connect(&options.database_url, &options.schema, size, within));
        let pool = bus::retry::when(policy, is_worth_waiting, to_postgres).await?;
        let to_redis = || Box::pin(connect_redis(&options.redis_url, options.redis_within));
        let redis = bus::retry::when(policy, is_worth_waiting, to_redis).await?;
        let keys = RedisKeys::new(&options.namespace);
        let loader = Loader { pool: pool.clone(), snapshots: Snapshots::new(redis.clone(), keys.clone()) };
        let tasks = TaskTracker::new();
        let committers = (0..options.committers.max(1))
            .map(|_| {
                let (send, receive) = mpsc::channel(QUEUE);
                let publishing = Publishing::start(&bus, loader.clone(), &options, &tasks);
                tasks.spawn(Committer::new(options.clone(), loader.clone(), publishing).run(receive));
                send
            })
            .collect();
        tasks.close();
        let committers = std::sync::RwLock::new(committers);
        let agents = crate::Agents::new(pool);
        Ok(Self { inner: Arc::new(Inner { options, bus, loader, redis, keys, agents, committers, tasks }) })
    }

    /// Asks for a change of a run, and waits until it is in the log.
    ///
    /// `key` names the delivery that this comes from, such as the id of the message, so that handling it again changes nothing.
    ///
    /// # Errors
    /// [`SubmitError::Rejected`] if the rules forbid it, [`SubmitError::Engine`] if it could not be tried.
    pub async fn submit(
        &self,
        run: RunId,
        command: Command,
        key: impl Into<String>,
        cause: Cause,
    ) -> Result<Committed, SubmitError> {
        let (reply, answer) = oneshot::channel();
        self.queue(Job::new(run, command, key.into(), cause, reply), answer).await
    }

    /// As [`Engine::submit`], for a sender who has just loaded the run: it need not be read again. If it has moved on since,
    /// the command is decided on the run as it is then, all the same.
    ///
    /// # Errors
    /// As [`Engine::submit`].
    pub async fn submit_on(
        &self,
        seen: &Arc<RunState>,
        command: Command,
        key: impl Into<String>,
        cause: Cause,
    ) -> Result<Committed, SubmitError> {
        let (reply, answer) = oneshot::channel();
        let job = Job::new(seen.run_id, command, key.into(), cause, reply).seeing(Arc::clone(seen));
        self.queue(job, answer).await
    }

    async fn queue(
        &self,
        job: Job,
        answer: oneshot::Receiver<Result<Committed, SubmitError>>,
    ) -> Result<Committed, SubmitError> {
        let role = self.inner.options.role;
        if !job.command().allowed_to(role) {
            return Err(Rejection::NotAllowed(role, job.command().name()).into());
        }
        let committer = self.committer(job.run_id()).ok_or(EngineError::Draining)?;
        committer.send(job).await.map_err(|_| EngineError::Draining)?;
        answer.await.map_err(|_| EngineError::Draining)?
    }

    /// Commands of one run go through one committer, so that they queue up instead of racing each other.
    fn committer(&self, run: RunId) -> Option<mpsc::Sender<Job>> {
        let committers = self.inner.committers.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut hasher = std::hash::DefaultHasher::new();
        hasher.write(run.0.as_bytes());
        let count = u64::try_from(committers.len()).ok().filter(|count| *count > 0)?;
        usize::try_from(hasher.finish() % count).ok().and_then(|index| committers.get(index).cloned())
    }

    /// The run as the log has it at the time of the call.
    ///
    /// # Errors
    /// When Postgres does not answer, or the log does not decode.
    pub async fn load(&self, run: RunId) -> Result<Option<Arc<RunState>>, EngineError> {
        Box::pin(self.inner.loader.current(run)).await
    }

    /// The run, at least as far as `seq`: for handlers that were told of `seq`. A snapshot is enough if it is that new and
    /// shows something to do; what is then done is compared with the log. That there is nothing to do is for the log to say:
    /// a snapshot may be of one that Postgres has lost.
    ///
    /// # Errors
    /// As [`Engine::load`].
    pub async fn load_at_least(
        &self,
        run: RunId,
        seq: kernel::Seq,
        has_work: impl FnOnce(&RunState) -> bool,
    ) -> Result<Option<Arc<RunState>>, EngineError> {
        let hint = self.inner.loader.hints(&[run]).await.remove(&run);
        match hint {
            Some(state) if state.seq >= seq && has_work(&state) => Ok(Some(state)),
            // Boxed: it is rare, and would make everything that may come here as large as itself.
            hint => Box::pin(self.inner.loader.catch_up(run, hint)).await,
        }
    }

    /// Runs as their snapshots have them, to be given to [`Engine::submit_on`] later: what has moved on by then is read again
    /// there. Runs without a snapshot are missing.
    pub async fn glimpse(&self, runs: &[RunId]) -> std::collections::HashMap<RunId, Arc<RunState>> {
        self.inner.loader.hints(runs).await
    }

    /// Takes nothing more, and returns when all that was accepted is committed and published.
    pub async fn drain(&self) {
        self.inner.committers.write().unwrap_or_else(std::sync::PoisonError::into_inner).clear();
        self.inner.tasks.wait().await;
    }

    /// Whether the stores answer: for readiness.
    ///
    /// # Errors
    /// The first store that does not.
    pub async fn ping(&self) -> Result<(), EngineError> {
        sqlx::query("select 1").execute(self.pool()).await.map_err(pg("ping"))?;
        let mut redis = self.inner.redis.clone();
        redis::cmd("PING").query_async::<()>(&mut redis).await.map_err(rd("ping"))
    }

    /// The bus that this engine publishes on.
    #[must_use]
    pub fn bus(&self) -> &Bus {
        &self.inner.bus
    }

    /// How it was set up.
    #[must_use]
    pub fn options(&self) -> &EngineOptions {
        &self.inner.options
    }

    /// What a crash or a lost stream left unpublished.
    #[must_use]
    pub fn outbox(&self) -> Outbox {
        Outbox::new(self.pool().clone(), self.inner.loader.clone(), &self.inner.bus, self.inner.options.outbox_keep)
    }

    /// Queries over runs and what belongs to them.
    #[must_use]
    pub fn reads(&self) -> crate::Reads {
        crate::Reads::new(self.pool().clone())
    }

    /// Leases: hints about who works on what.
    #[must_use]
    pub fn leases(&self) -> crate::Leases {
        crate::Leases::new(self.inner.redis.clone(), self.inner.keys.clone())
    }

    /// Limits that all instances share.
    #[must_use]
    pub fn limiter(&self) -> crate::Limiter {
        crate::Limiter::new(self.inner.redis.clone(), self.inner.keys.clone())
    }

    /// Due timers and approvals.
    #[must_use]
    pub fn timers(&self) -> crate::Timers {
        crate::Timers::new(self.pool().clone())
    }

    /// Events from outside.
    #[must_use]
    pub fn externals(&self) -> crate::Externals {
        crate::Externals::new(self.pool().clone())
    }

    /// Agent definitions.
    #[must_use]
    pub fn agents(&self) -> crate::Agents {
        self.inner.agents.clone()
    }

    /// The tools of MCP servers.
    #[must_use]
    pub fn mcp(&self) -> crate::McpCatalogue {
        crate::McpCatalogue::new(self.pool().clone())
    }

    /// How far observers have read.
    #[must_use]
    pub fn checkpoints(&self) -> crate::ObserverCheckpoints {
        crate::ObserverCheckpoints::new(self.pool().clone())
    }

    /// Where archived raw output is.
    #[must_use]
    pub fn segments(&self) -> crate::Segments {
        crate::Segments::new(self.pool().clone())
    }

    /// Actions on services.
    #[must_use]
    pub fn actions(&self) -> crate::Actions {
        crate::Actions::new(self.pool().clone())
    }

    /// Watched services.
    #[must_use]
    pub fn services(&self) -> crate::Services {
        crate::Services::new(self.pool().clone())
    }

    /// Requests that carried an idempotency key.
    #[must_use]
    pub fn idempotency(&self) -> crate::IdempotencyKeys {
        crate::IdempotencyKeys::new(self.pool().clone())
    }

    /// What is to be done at times that come again.
    #[must_use]
    pub fn schedules(&self) -> crate::Schedules {
        crate::Schedules::new(self.pool().clone())
    }

    /// Starts that triggers hold back.
    #[must_use]
    pub fn gatherings(&self) -> crate::Gatherings {
        crate::Gatherings::new(self.pool().clone(), self.agents())
    }

    /// What runs knew before their turns.
    #[must_use]
    pub fn forks(&self) -> crate::Forks {
        crate::Forks::new(self.pool().clone(), self.inner.loader.clone())
    }

    /// The kill switch.
    #[must_use]
    pub fn freezes(&self) -> crate::Freezes {
        crate::Freezes::new(self.pool().clone())
    }

    /// A person's yes to all calls of one shape.
    #[must_use]
    pub fn standing(&self) -> crate::StandingApprovals {
        crate::StandingApprovals::new(self.pool().clone())
    }

    /// When people are told of open questions.
    #[must_use]
    pub fn notices(&self) -> crate::Notices {
        crate::Notices::new(self.pool().clone())
    }

    /// API tokens.
    #[must_use]
    pub fn tokens(&self) -> crate::ApiTokens {
        crate::ApiTokens::new(self.pool().clone())
    }

    /// The audit trail.
    #[must_use]
    pub fn trail(&self) -> crate::AuditTrail {
        crate::AuditTrail::new(self.pool().clone())
    }

    /// What runs remember for later runs.
    #[must_use]
    pub fn memories(&self) -> crate::Memories {
        crate::Memories::new(self.pool().clone())
    }

    /// Documents that agents know.
    #[must_use]
    pub fn knowledge(&self) -> crate::Knowledge {
        crate::Knowledge::new(self.pool().clone(), self.inner.options.search_within)
    }

    /// Skills as runs opened them.
    #[must_use]
    pub fn skills(&self) -> crate::SkillVersions {
        crate::SkillVersions::new(self.pool().clone())
    }

    /// What is forgotten after a while.
    #[must_use]
    pub fn retention(&self) -> crate::Retention {
        crate::Retention::new(self.pool().clone())
    }

    fn pool(&self) -> &Pool {
        &self.inner.loader.pool
    }
}

/// Lets `FAILPOINTS` say where this process is to stumble, for as long as it lives.
#[cfg(feature = "failpoints")]
fn arm_failpoints() {
    static ARMED: std::sync::Once = std::sync::Once::new();
    ARMED.call_once(|| std::mem::forget(fail::FailScenario::setup()));
}

/// Whether a store that could not be reached may be there soon. A refused password stays refused.
fn is_worth_waiting(error: &EngineError) -> bool {
    let refused =
        matches!(error, EngineError::Redis { source, .. } if source.kind() == redis::ErrorKind::AuthenticationFailed);
    let worth = error.is_transient() && !refused;
    if worth {
        tracing::warn!(error = error as &dyn std::error::Error, "waiting for a store to answer");
    }
    worth
}

/// A pool whose connections look in `schema` and plan once, and that has one free `within` that time.
pub(crate) async fn connect(url: &str, schema: &str, size: u32, within: Duration) -> Result<Pool, EngineError> {
    let options = PgConnectOptions::from_str(url)
        .map_err(|_| EngineError::Config("ESC_DATABASE_URL is not a postgres:// address".to_owned()))?
        // Plans are made once, when tables may be young and small: one that reads a whole table would be kept as it grows.
        .options([
            ("search_path", schema),
            ("plan_cache_mode", "force_generic_plan"),
            ("enable_seqscan", "off"),
            ("jit", "off"),
        ]);
    PgPoolOptions::new()
        .max_connections(size)
        .acquire_timeout(within)
        .connect_with(options)
        .await
        .map(Pool::new)
        .map_err(pg("connecting"))
}

/// A connection that is made, and answers, `within` that time.
pub(crate) async fn connect_redis(url: &str, within: Duration) -> Result<ConnectionManager, EngineError> {
    let bad = |_| EngineError::Config("ESC_REDIS_URL is not a redis:// address".to_owned());
    let info = redis::IntoConnectionInfo::into_connection_info(url).map_err(bad)?;
    // The client leaves Nagle's algorithm on by default, which stalls small pipelines.
    let info = info.set_tcp_settings(redis::io::tcp::TcpSettings::default().set_nodelay(true));
    bus::settle_cryptography();
    let client = redis::Client::open(info).map_err(rd("connecting"))?;
    let config = redis::aio::ConnectionManagerConfig::new()
        .set_connection_timeout(Some(within))
        .set_response_timeout(Some(within));
    ConnectionManager::new_with_config(client, config).await.map_err(rd("connecting"))
}
