//! What can go wrong below the rules.

use kernel::{DecodeError, HeadlessLog, Rejection};

/// A failure of the stores or the bus, named after the operation.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Postgres did not do it.
    #[error("Postgres: {operation} failed")]
    Postgres {
        /// What was tried.
        operation: &'static str,
        /// Why not.
        #[source]
        source: sqlx::Error,
    },
    /// Redis did not do it.
    #[error("Redis: {operation} failed")]
    Redis {
        /// What was tried.
        operation: &'static str,
        /// Why not.
        #[source]
        source: redis::RedisError,
    },
    /// NATS did not do it.
    #[error("NATS: {operation} failed")]
    Bus {
        /// What was tried.
        operation: &'static str,
        /// Why not.
        #[source]
        source: Box<bus::BusError>,
    },
    /// A stored event cannot be read. If a newer version wrote it, then trying again elsewhere may help, but not here.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A log without its first event.
    #[error(transparent)]
    Headless(#[from] HeadlessLog),
    /// A stored document cannot be read or written.
    #[error("{what} is not the JSON it should be")]
    Json {
        /// Which document.
        what: &'static str,
        /// Why not.
        #[source]
        source: serde_json::Error,
    },
    /// An option that cannot work.
    #[error("{0}")]
    Config(String),
    /// The engine is shutting down and takes nothing more.
    #[error("the engine is draining: try another instance")]
    Draining,
    /// It was in a batch that failed as a whole; another sender has the source.
    #[error("{words}")]
    Batch {
        /// Whether trying again later may help.
        transient: bool,
        /// What was wrong.
        words: String,
    },
    /// Others were faster again and again.
    #[error("run is too contended: lost {0} races in a row")]
    Contended(u32),
}

impl EngineError {
    /// Whether trying again later may help.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Postgres { source, .. } => is_transient(source),
            Self::Redis { .. } | Self::Draining | Self::Contended(_) => true,
            Self::Bus { source, .. } => source.is_transient(),
            Self::Batch { transient, .. } => *transient,
            Self::Decode(_) | Self::Headless(_) | Self::Json { .. } | Self::Config(_) => false,
        }
    }
}

fn is_transient(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => true,
        // Class 08 connection, 40 rollback (deadlock, serialization), 53 resources, 55 locks, 57 operator intervention.
        sqlx::Error::Database(error) => {
            error.code().is_some_and(|code| ["08", "40", "53", "55", "57"].iter().any(|class| code.starts_with(class)))
        }
        _ => false,
    }
}

/// Names the operation of a failed query.
pub(crate) fn pg(operation: &'static str) -> impl FnOnce(sqlx::Error) -> EngineError {
    move |source| EngineError::Postgres { operation, source }
}

/// Names the operation of a failed Redis command.
pub(crate) fn rd(operation: &'static str) -> impl FnOnce(redis::RedisError) -> EngineError {
    move |source| EngineError::Redis { operation, source }
}

/// Why a command was not committed.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// The rules forbid it. Final.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// It could not be tried.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl SubmitError {
    /// Whether trying again later may help.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Rejected(_) => false,
            Self::Engine(error) => error.is_transient(),
        }
    }
}
