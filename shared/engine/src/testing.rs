//! For tests against real parts: a system of one's own on shared servers, and its end.
//!
//! The servers are named by `ESC_TEST_NATS_URL`, `ESC_TEST_DATABASE_URL` (a superuser) and `ESC_TEST_REDIS_URL`.

use std::{
    collections::HashMap,
    env,
    str::FromStr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use bus::{Bus, testing::TestBus};
use kernel::Role;
use redis::aio::MultiplexedConnection;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row, postgres::PgConnectOptions};
use uuid::Uuid;

use crate::{
    engine::Engine,
    error::{EngineError, pg, rd},
    migrate::migrate_within,
    options::EngineOptions,
    snapshot::RedisKeys,
};

/// What the schemas of tests begin with.
const PREFIX: &str = "test_";
/// A schema that is older than this was left behind by a test that died.
const ABANDONED: Duration = Duration::from_secs(3600);
/// How long a store may take to answer: tests are not about how busy the machine is.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A whole system for one test: streams, schema and keys that nobody else uses.
///
/// ```no_run
/// # async fn example() -> Result<(), engine::EngineError> {
/// let stack = engine::testing::TestStack::new().await?;
/// let planner = stack.engine(kernel::Role::Planner).await?;
/// // ...
/// stack.close().await
/// # }
/// ```
///
/// [`TestStack::close`] drains the engines, checks that nothing is left behind, and removes everything. A test that fails
/// before leaves its schema to the next run, which removes what is an hour old.
pub struct TestStack {
    bus: TestBus,
    schema: String,
    namespace: String,
    engines: Mutex<HashMap<Role, Vec<Engine>>>,
}

/// The address of the Postgres server to test against, as a superuser.
#[must_use]
pub fn database_url() -> String {
    env::var("ESC_TEST_DATABASE_URL").unwrap_or_else(|_| "postgres://postgres@127.0.0.1:15432/postgres".to_owned())
}

/// The address of the Redis server to test against.
#[must_use]
pub fn redis_url() -> String {
    env::var("ESC_TEST_REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:16379/0".to_owned())
}

/// A connection to that server: to look, or to break something.
///
/// # Errors
/// When Redis cannot be reached.
pub async fn redis() -> Result<MultiplexedConnection, EngineError> {
    let client = redis::Client::open(redis_url()).map_err(rd("connecting"))?;
    // The client's own patience is half a second.
    let config =
        redis::AsyncConnectionConfig::new().set_connection_timeout(Some(PATIENCE)).set_response_timeout(Some(PATIENCE));
    client.get_multiplexed_async_connection_with_config(&config).await.map_err(rd("connecting"))
}

impl TestStack {
    /// Makes the streams and the schema.
    ///
    /// # Errors
    /// When a server cannot be reached or refuses.
    pub async fn new() -> Result<Self, EngineError> {
        // The time goes into the name, so that what is left behind can be told by its age; the random end makes it unique.
        let id = Uuid::now_v7().simple().to_string();
        let schema = format!("{PREFIX}{id}");
        let bus = async {
            TestBus::start()
                .await
                .map_err(|source| EngineError::Bus { operation: "starting", source: Box::new(source) })
        };
        let (bus, ()) = futures::future::try_join(bus, migrate_within(&database_url(), &schema, PATIENCE)).await?;
        let namespace = bus.namespace().as_str().to_owned();
        Ok(Self { bus, schema, namespace, engines: Mutex::default() })
    }

    /// The bus in the test's namespace.
    #[must_use]
    pub fn bus(&self) -> Bus {
        (*self.bus).clone()
    }

    /// The Postgres schema.
    #[must_use]
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// What streams, subjects and Redis keys are prefixed with.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Options for an engine of this system, to be changed at will.
    #[must_use]
    pub fn options(&self, role: Role) -> EngineOptions {
        EngineOptions {
            namespace: self.namespace.clone(),
            schema: self.schema.clone(),
            pool_size: 4,
            ..EngineOptions::new(role, database_url(), redis_url()).patient(PATIENCE)
        }
    }

    /// The door of one service; the same one for the same role.
    ///
    /// # Errors
    /// When a store cannot be reached.
    pub async fn engine(&self, role: Role) -> Result<Engine, EngineError> {
        let known = self.lock().get(&role).and_then(|engines| engines.first().cloned());
        match known {
            Some(engine) => Ok(engine),
            None => self.another_engine(self.options(role)).await,
        }
    }

    /// One more door, as another process would have it.
    ///
    /// # Errors
    /// When a store cannot be reached.
    pub async fn another_engine(&self, options: EngineOptions) -> Result<Engine, EngineError> {
        let role = options.role;
        let engine = Engine::start(options, self.bus()).await?;
        self.lock().entry(role).or_default().push(engine.clone());
        Ok(engine)
    }

    /// A connection that may do everything, in the test's schema: to look, or to break something.
    ///
    /// # Errors
    /// When Postgres cannot be reached.
    pub async fn postgres(&self) -> Result<PgConnection, EngineError> {
        let options = connect_options(&self.schema)?;
        PgConnection::connect_with(&options).await.map_err(pg("connecting"))
    }

    /// Runs statements that may do everything, in the test's schema: for tests of those who don't speak to Postgres themselves.
    ///
    /// # Errors
    /// When Postgres cannot be reached, or refuses.
    pub async fn sql(&self, statements: &str) -> Result<(), EngineError> {
        let mut connection = self.postgres().await?;
        connection.execute(AssertSqlSafe(statements.to_owned())).await.map_err(pg("running a test's statements"))?;
        Ok(())
    }

    /// The address of the Postgres server, for whoever connects to it as to a database of its own: the test's schema.
    #[must_use]
    pub fn database_url(&self) -> String {
        let url = database_url();
        let more = if url.contains('?') { '&' } else { '?' };
        format!("{url}{more}options[search_path]={}", self.schema)
    }

    /// All rows of all tables and all that is in Redis, as text: to look for what must not be anywhere.
    ///
    /// # Errors
    /// When a store cannot be reached.
    pub async fn everything(&self) -> Result<String, EngineError> {
        let reading = || pg("reading everything");
        let mut connection = self.postgres().await?;
        let tables = "select c.relname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
                      where n.nspname = $1 and c.relkind in ('r', 'p') and not c.relispartition";
        let tables: Vec<String> =
            sqlx::query_scalar(tables).bind(&self.schema).fetch_all(&mut connection).await.map_err(reading())?;
        let mut everything = String::new();
        for table in tables {
            let rows = AssertSqlSafe(format!("select t::text from {}.{table} t", self.schema));
            let rows: Vec<String> = sqlx::query_scalar(rows).fetch_all(&mut connection).await.map_err(reading())?;
            rows.iter().for_each(|row| everything += &format!("{table}: {row}\n"));
        }
        let (mut redis, keys) = keys(&self.namespace).await?;
        for key in keys {
            // Of other types than strings there is nothing with content.
            let value: Result<Vec<u8>, _> = redis::cmd("GET").arg(&key).query_async(&mut redis).await;
            everything += &format!("{key}: {}\n", String::from_utf8_lossy(&value.unwrap_or_default()));
        }
        Ok(everything)
    }

    /// Drains the engines, checks that they left nothing behind, and removes everything.
    ///
    /// # Errors
    /// When something was left behind, or cannot be removed.
    pub async fn close(self) -> Result<(), EngineError> {
        let engines: Vec<_> = self.lock().drain().flat_map(|(_, engines)| engines).collect();
        futures::future::join_all(engines.iter().map(Engine::drain)).await;
        let left = self.left_behind().await;
        let mut connection = self.postgres().await?;
        drop_schema(&mut connection, &self.schema).await?;
        drop_abandoned(&mut connection).await?;
        forget_keys(&self.namespace).await?;
        self.bus
            .end()
            .await
            .map_err(|source| EngineError::Bus { operation: "removing streams", source: Box::new(source) })?;
        left
    }

    /// What a drained system must not have: a run ahead of its log, or a timer that belongs to none.
    async fn left_behind(&self) -> Result<(), EngineError> {
        let check = || pg("checking what is left behind");
        let mut connection = self.postgres().await?;
        let row = sqlx::query(
            "select (select count(*) from runs r
                     where r.seq <> (select coalesce(max(e.seq), 0) from events e where e.run_id = r.run_id)) as astray,
                    (select count(*) from events e where not exists (select from runs r where r.run_id = e.run_id)) as headless,
                    (select count(*) from timers t join runs r using (run_id)
                     where r.status in ('completed', 'failed', 'cancelled')) as timers,
                    (select count(*) from waits w join runs r using (run_id)
                     where r.status in ('completed', 'failed', 'cancelled')) as waits",
        )
        .fetch_one(&mut connection)
        .await
        .map_err(check())?;
        for what in ["astray", "headless", "timers", "waits"] {
            let count: i64 = row.try_get(what).map_err(check())?;
            if count > 0 {
                return Err(EngineError::Config(format!("{count} rows left behind: {what}")));
            }
        }
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Role, Vec<Engine>>> {
        self.engines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn connect_options(schema: &str) -> Result<PgConnectOptions, EngineError> {
    let options = PgConnectOptions::from_str(&database_url())
        .map_err(|_| EngineError::Config("ESC_TEST_DATABASE_URL is not a postgres:// address".to_owned()))?;
    Ok(options.options([("search_path", schema), ("client_min_messages", "warning")]))
}

async fn drop_schema(connection: &mut PgConnection, schema: &str) -> Result<(), EngineError> {
    let drop = format!("drop schema if exists {schema} cascade");
    connection.execute(AssertSqlSafe(drop)).await.map_err(pg("dropping a test's schema"))?;
    Ok(())
}

/// Removes the schemas of tests that died long ago.
async fn drop_abandoned(connection: &mut PgConnection) -> Result<(), EngineError> {
    let rows = sqlx::query("select nspname::text from pg_namespace where starts_with(nspname, $1)")
        .bind(PREFIX)
        .fetch_all(&mut *connection)
        .await
        .map_err(pg("looking for abandoned schemas"))?;
    for row in rows {
        let schema: String = row.try_get(0).map_err(pg("looking for abandoned schemas"))?;
        if is_abandoned(&schema) {
            drop_schema(connection, &schema).await?;
        }
    }
    Ok(())
}

fn is_abandoned(schema: &str) -> bool {
    let id = schema.strip_prefix(PREFIX).and_then(|id| Uuid::try_parse(id).ok());
    let made = id.and_then(|id| id.get_timestamp()).map(|made| made.to_unix());
    let now = jiff::Timestamp::now().as_second();
    made.is_some_and(|(seconds, _)| now.saturating_sub_unsigned(seconds) > ABANDONED.as_secs().cast_signed())
}

async fn forget_keys(namespace: &str) -> Result<(), EngineError> {
    let (mut redis, keys) = keys(namespace).await?;
    for some in keys.chunks(1000) {
        redis::cmd("UNLINK").arg(some).query_async::<()>(&mut redis).await.map_err(rd("forgetting a test's keys"))?;
    }
    Ok(())
}

/// All keys of a namespace, and a connection to go on with.
async fn keys(namespace: &str) -> Result<(MultiplexedConnection, Vec<String>), EngineError> {
    let looking = || rd("looking for a test's keys");
    let mut redis = redis().await?;
    let pattern = format!("{}*", RedisKeys::new(namespace).prefix());
    let (mut cursor, mut all) = (0_u64, Vec::new());
    loop {
        let (next, keys): (u64, Vec<String>) = redis::cmd("SCAN")
            .arg(cursor)
            .arg("MATCH")
            .arg(&pattern)
            .arg("COUNT")
            .arg(1000)
            .query_async(&mut redis)
            .await
            .map_err(looking())?;
        all.extend(keys);
        if next == 0 {
            return Ok((redis, all));
        }
        cursor = next;
    }
}
