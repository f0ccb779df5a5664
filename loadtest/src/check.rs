//! The invariants over the log of the stack that was under load.

use std::time::Duration;

use engine::AuditOptions;
use serde_json::Value;

use crate::target::Error;

/// What to look at, and how strictly.
#[derive(clap::Args)]
pub struct Options {
    /// Nothing is under way any more, so nothing may be left undone either: no open turn, no lost wake, nothing unpublished.
    #[arg(long)]
    settled: bool,
    /// Seconds for which something may be nobody's before it counts as forgotten.
    #[arg(long, default_value_t = 30.0)]
    grace: f64,
    /// Postgres, as a user that may read everything.
    #[arg(long, env = "ESC_DATABASE_URL", hide_env_values = true)]
    database_url: String,
    /// Its schema.
    #[arg(long, env = "ESC_SCHEMA", default_value = "escapement")]
    schema: String,
    /// Redis or Valkey.
    #[arg(long, env = "ESC_REDIS_URL", hide_env_values = true)]
    redis_url: String,
    /// Prefix of its keys.
    #[arg(long, env = "ESC_NAMESPACE", default_value = "")]
    namespace: String,
}

/// Reads the whole log and what is derived from it.
pub async fn check(options: &Options) -> Result<Value, Error> {
    let options = AuditOptions {
        database_url: options.database_url.clone(),
        schema: options.schema.clone(),
        redis_url: options.redis_url.clone(),
        namespace: options.namespace.clone(),
        settled: options.settled,
        grace: Duration::try_from_secs_f64(options.grace)?,
    };
    Ok(serde_json::to_value(engine::audit(&options).await?)?)
}
