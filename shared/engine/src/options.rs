//! How an engine is set up.

use std::time::Duration;

use kernel::Role;

use crate::gate::PublishGate;

/// How long Postgres may take to have a connection free, if nothing else is said.
pub(crate) const POSTGRES_WITHIN: Duration = Duration::from_secs(10);
/// How long Redis may take to answer, if nothing else is said.
pub(crate) const REDIS_WITHIN: Duration = Duration::from_secs(5);

/// Where the stores are and which service this engine is the door of.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// `postgres://user:password@host:port/database`, as the service's own role.
    pub database_url: String,
    /// `redis://:password@host:port/0`.
    pub redis_url: String,
    /// Prefix of Redis keys; empty in production.
    pub namespace: String,
    /// Postgres schema.
    pub schema: String,
    /// Whose door it is: decides which commands pass.
    pub role: Role,
    /// A name of this process, unique among its like.
    pub instance: String,
    /// Most Postgres connections.
    pub pool_size: u32,
    /// How long Postgres may take to have a connection free.
    pub postgres_within: Duration,
    /// How long Redis may take to connect, and to answer.
    pub redis_within: Duration,
    /// How long the snapshots of a commit may take to be written; those that take longer are given up.
    pub snapshots_within: Duration,
    /// How long Postgres may take to search documents.
    pub search_within: Duration,
    /// Most commands in one commit.
    pub batch: usize,
    /// Tasks that commit side by side.
    pub committers: usize,
    /// How long the outbox keeps what NATS has acknowledged: longer than NATS takes to sync its disk.
    pub outbox_keep: Duration,
    /// How long an outside event may have come before the wait that wants it.
    pub lookback: Duration,
    /// Events between two checkpoints of a run's whole state in Postgres.
    pub checkpoint_every: u64,
    /// Holds back what is published, while there is something more urgent.
    pub gate: PublishGate,
}

impl EngineOptions {
    /// The usual settings for `role`.
    #[must_use]
    pub fn new(role: Role, database_url: impl Into<String>, redis_url: impl Into<String>) -> Self {
        Self {
            database_url: database_url.into(),
            redis_url: redis_url.into(),
            namespace: String::new(),
            schema: "escapement".to_owned(),
            role,
            instance: format!("{}-{}", role.as_str(), uuid::Uuid::now_v7().simple()),
            pool_size: 8,
            postgres_within: POSTGRES_WITHIN,
            redis_within: REDIS_WITHIN,
            snapshots_within: Duration::from_millis(100),
            search_within: Duration::from_secs(2),
            batch: 256,
            committers: 1,
            outbox_keep: Duration::from_secs(3),
            lookback: Duration::from_secs(3600),
            checkpoint_every: 500,
            gate: PublishGate::default(),
        }
    }

    /// The same, but for stores that take this long: for tests, which are not about how busy the machine is.
    #[must_use]
    pub fn patient(self, patience: Duration) -> Self {
        Self {
            postgres_within: patience,
            redis_within: patience,
            snapshots_within: patience,
            search_within: patience,
            ..self
        }
    }
}
