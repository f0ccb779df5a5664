//! Connections to Postgres, shared by all that one process asks.
//!
//! sqlx's pool asks the server whether a connection is alive before it lends it and once more when it comes back, so that a
//! question by index costs three round trips instead of one. A connection that has just answered is alive: it is kept here and
//! lent again at once. What was not used for a while, was cut off in the middle or failed goes back through sqlx's pool,
//! which looks after it.

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use futures::{StreamExt, TryFutureExt, TryStreamExt, future::BoxFuture, stream::BoxStream};
use sqlx::{
    Either, Error, Execute, Executor, PgConnection, PgPool, Postgres, SqlStr, Transaction,
    pool::PoolConnection,
    postgres::{PgDatabaseError, PgQueryResult, PgRow, PgSeverity, PgStatement, PgTypeInfo},
};

/// How long after its last answer a connection is taken to be alive.
const WARM: Duration = Duration::from_secs(1);

/// The connections. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    inner: PgPool,
    bench: Arc<Mutex<Bench>>,
}

/// Connections that have just answered.
#[derive(Debug, Default)]
struct Bench {
    /// The one used last is the last.
    warm: Vec<(PoolConnection<Postgres>, Instant)>,
    /// Those who wait for sqlx's pool to have one for them. While anybody does, none is kept here.
    waiting: usize,
    is_closed: bool,
}

impl Pool {
    pub(crate) fn new(inner: PgPool) -> Self {
        Self { inner, bench: Arc::default() }
    }

    /// A connection for several statements.
    pub(crate) async fn acquire(&self) -> Result<Lent, Error> {
        let connection = match self.warm_or_wait() {
            Ok(connection) => connection,
            Err(_waiting) => self.inner.acquire().await?,
        };
        Ok(Lent { connection: Some(connection), is_well: false, bench: Arc::clone(&self.bench) })
    }

    /// A transaction. One that is given up is ended by sqlx's pool, to which the connection goes back in any case.
    ///
    /// It begins in a task of its own, whether or not anybody still waits for it: given up on the way, it would be open, and
    /// sqlx would not know. The connection would be lent again like that, and nothing that is asked on it would be committed.
    pub(crate) async fn begin(&self) -> Result<Transaction<'static, Postgres>, Error> {
        let connection = match self.warm_or_wait() {
            Ok(connection) => connection,
            Err(_waiting) => self.inner.acquire().await?,
        };
        tokio::spawn(Transaction::begin(connection, None)).await.unwrap_or(Err(Error::WorkerCrashed))
    }

    /// Closes all connections, and waits for those that are lent.
    pub(crate) async fn close(&self) {
        let kept = {
            let mut bench = self.bench();
            bench.is_closed = true;
            std::mem::take(&mut bench.warm)
        };
        drop(kept);
        self.inner.close().await;
    }

    /// One that has just answered, or a place among those who wait.
    fn warm_or_wait(&self) -> Result<PoolConnection<Postgres>, Waiting<'_>> {
        let mut bench = self.bench();
        let cold = match bench.warm.pop() {
            Some((connection, since)) if since.elapsed() < WARM => return Ok(connection),
            // The others are colder still. sqlx's pool asks them whether they are alive, as they come back and as it lends them.
            Some(cold) => std::iter::once(cold).chain(std::mem::take(&mut bench.warm)).collect(),
            None => Vec::new(),
        };
        bench.waiting += 1;
        drop(bench);
        drop(cold);
        Err(Waiting { bench: &self.bench })
    }

    fn bench(&self) -> MutexGuard<'_, Bench> {
        lock(&self.bench)
    }

    /// Asks one question, and keeps the connection if it was answered.
    async fn ask<T>(&self, question: impl AsyncFnOnce(&mut PgConnection) -> Result<T, Error>) -> Result<T, Error> {
        let mut lent = self.acquire().await?;
        let answer = question(&mut lent).await;
        if answer.as_ref().err().is_none_or(leaves_alive) {
            lent.mark_well();
        } else {
            // What ended this one may have ended the others: they are asked before they are lent again.
            let doubtful = std::mem::take(&mut self.bench().warm);
            drop(doubtful);
        }
        answer
    }
}

/// Whether the server answered, and goes on listening.
fn leaves_alive(error: &Error) -> bool {
    match error {
        Error::RowNotFound => true,
        Error::Database(error) => error
            .try_downcast_ref::<PgDatabaseError>()
            .is_none_or(|error| !matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic)),
        _ => false,
    }
}

fn lock(bench: &Mutex<Bench>) -> MutexGuard<'_, Bench> {
    bench.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Somebody among those who wait for sqlx's pool.
struct Waiting<'a> {
    bench: &'a Mutex<Bench>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        lock(self.bench).waiting -= 1;
    }
}

/// A connection that somebody uses.
#[derive(Debug)]
pub(crate) struct Lent {
    /// There until it is dropped.
    connection: Option<PoolConnection<Postgres>>,
    is_well: bool,
    bench: Arc<Mutex<Bench>>,
}

impl Lent {
    /// Says that the last statement was answered to its end, and that no transaction is open: it may be lent again as it is.
    fn mark_well(&mut self) {
        self.is_well = true;
    }
}

impl Deref for Lent {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.connection.as_ref().expect("there until it is dropped")
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.connection.as_mut().expect("there until it is dropped")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        let mut bench = lock(&self.bench);
        // Who waits is woken by sqlx's pool alone.
        if self.is_well && bench.waiting == 0 && !bench.is_closed {
            bench.warm.push((connection, Instant::now()));
        } else {
            drop(bench);
            drop(connection);
        }
    }
}

impl<'p> Executor<'p> for &'p Pool {
    type Database = Postgres;

    fn execute<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<PgQueryResult, Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        Box::pin(self.ask(async |connection| connection.execute(query).await))
    }

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        // Read to its end before it is handed on, so that the connection is known to be well: what is read here comes by pages.
        let all = self.ask(async |connection| connection.fetch_many(query).try_collect::<Vec<_>>().await);
        all.map_ok(|steps| futures::stream::iter(steps.into_iter().map(Ok))).try_flatten_stream().boxed()
    }

    fn fetch_all<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Vec<PgRow>, Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        Box::pin(self.ask(async |connection| connection.fetch_all(query).await))
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<PgRow>, Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        Box::pin(self.ask(async |connection| connection.fetch_optional(query).await))
    }

    fn prepare_with<'e>(self, sql: SqlStr, parameters: &'e [PgTypeInfo]) -> BoxFuture<'e, Result<PgStatement, Error>>
    where
        'p: 'e,
    {
        Box::pin(self.ask(async |connection| connection.prepare_with(sql, parameters).await))
    }
}

#[cfg(test)]
mod tests {
    use sqlx::{Row, query};

    use super::*;
    use crate::{
        engine::connect,
        testing::{PATIENCE, database_url},
    };

    /// Connections for one test, which may take their time: tests are not about how busy the machine is.
    async fn pool(size: u32) -> Pool {
        connect(&database_url(), "public", size, PATIENCE).await.unwrap()
    }

    async fn number(pool: &Pool, sql: &'static str) -> Result<i32, Error> {
        query(sql).fetch_one(pool).await?.try_get(0)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn everybody_who_waits_gets_one() {
        let pool = pool(2).await;
        let all = (0..300).map(|each| {
            let pool = pool.clone();
            tokio::spawn(async move {
                if each % 10 > 0 {
                    return number(&pool, "select 1").await.unwrap();
                }
                let mut transaction = pool.begin().await.unwrap();
                let one = query("select 1").fetch_one(&mut *transaction).await.unwrap().try_get(0);
                transaction.commit().await.unwrap();
                one.unwrap()
            })
        });
        let answers = futures::future::try_join_all(all).await.unwrap();
        assert_eq!(answers.iter().sum::<i32>(), 300);
        assert!(pool.inner.size() <= 2);
    }

    #[tokio::test]
    async fn one_that_was_cut_off_is_not_lent_again() {
        let (pool, other) = (pool(1).await, pool(1).await);
        let first = number(&pool, "select pg_backend_pid()").await.unwrap();
        assert_eq!(number(&pool, "select pg_backend_pid()").await.unwrap(), first, "one that answered is kept");
        query("select pg_terminate_backend($1)").bind(first).execute(&other).await.unwrap();
        // At once, it may be found to be gone only as it is used.
        let _ = number(&pool, "select 1").await;
        assert_ne!(number(&pool, "select pg_backend_pid()").await.unwrap(), first);
    }

    #[tokio::test]
    async fn an_answer_that_nobody_waited_for_is_no_answer_to_the_next() {
        let (pool, other) = (pool(1).await, pool(1).await);
        // Held by another, so that the answer cannot come before nobody waits for it any more.
        let mut holder = other.acquire().await.unwrap();
        query("select pg_advisory_lock(742119)").execute(&mut *holder).await.unwrap();
        let slow = number(&pool, "select 7 from pg_advisory_lock(742119)");
        assert!(tokio::time::timeout(Duration::from_millis(50), slow).await.is_err());
        query("select pg_advisory_unlock(742119)").execute(&mut *holder).await.unwrap();
        assert_eq!(number(&pool, "select 42").await.unwrap(), 42);
        let wrong = number(&pool, "select 1 / 0").await;
        assert!(matches!(wrong, Err(Error::Database(_))), "{wrong:?}");
        assert_eq!(number(&pool, "select 43").await.unwrap(), 43);
    }

    #[tokio::test]
    async fn a_transaction_that_was_given_up_as_it_began_is_over() {
        let (pool, other) = (pool(1).await, pool(1).await);
        for polls in 0..5 {
            number(&pool, "select 1").await.unwrap();
            let mut begun = Box::pin(pool.begin());
            for _ in 0..polls {
                if futures::poll!(begun.as_mut()).is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            drop(begun);
            // Held until the end of its transaction, which is that of its statement unless another one is open.
            number(&pool, "select 1 from pg_advisory_xact_lock(742120)").await.unwrap();
            let free = number(&other, "select pg_try_advisory_xact_lock(742120)::int").await.unwrap();
            assert_eq!(free, 1, "given up after {polls} polls");
        }
    }

    #[tokio::test]
    async fn what_is_read_piece_by_piece_finds_a_connection_too() {
        let pool = pool(2).await;
        let both = futures::future::try_join(number(&pool, "select 1"), number(&pool, "select 2"));
        assert_eq!(both.await.unwrap(), (1, 2), "now all are kept");
        let three: Vec<i32> = sqlx::query_scalar("select generate_series(1, 3)").fetch_all(&pool).await.unwrap();
        assert_eq!(three, [1, 2, 3]);
        tokio::time::timeout(PATIENCE, pool.close()).await.unwrap();
    }
}
