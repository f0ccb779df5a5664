//! Questions to Postgres databases that are not ours, for tools that read.
//!
//! A question can do nothing but read, and nothing that fills its parameters can change it:
//!
//! - It stands in a subquery, where only a query can stand, and goes out by the extended protocol, which takes one statement.
//! - Its parameters are bound by the server. They are texts; the statement casts what is to be something else: `$1::bigint`.
//! - Its transaction is read only, which nothing within a query can undo, and is never committed.
//! - The server gives it up in time, and what comes back is bounded by rows and by bytes.
//!
//! Whom it is asked of, and as whom, the URL alone says, and a connection to another machine is in clear text only if that says so.
//!
//! Functions that it calls have the rights of whoever it connects as: that should be somebody who may only read.

use std::net::IpAddr;
use std::time::Duration;

use futures::TryStreamExt as _;
use serde_json::value::RawValue;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};
use url::Url;

/// What the server says of a statement that it gave up, as its time was over.
const CANCELLED: &str = "57014";

/// The port of a URL that names none.
const PORT: u16 = 5432;
/// What a row is called. A column of this name would be taken for the row, so it is one that nobody writes.
const ROW: &str = "esc_row_";

/// What is asked, and how much may come back.
#[derive(Clone, Copy)]
pub struct ForeignQuestion<'a> {
    /// The connection URL of the database. Never shown.
    pub url: &'a str,
    /// A query, with `$1`, `$2` and so on for its parameters.
    pub statement: &'a str,
    /// What the parameters are; none is null.
    pub parameters: &'a [Option<String>],
    /// Rows at most.
    pub rows: u32,
    /// Bytes of all rows together at most, as JSON.
    pub bytes: usize,
    /// How long all of it may take, connecting included.
    pub within: Duration,
}

/// What came back.
#[derive(Debug, Default)]
pub struct ForeignRows {
    /// Each row as a JSON object of its columns.
    pub rows: Vec<Box<RawValue>>,
    /// There were more than may come back.
    pub more: bool,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ForeignError {
    /// The URL is none, or names no host or no user. It is not shown: there may be a password in it.
    #[error(
        "the connection URL of the database is none, or without a host or a user: write `postgres://user:password@host:port/database`"
    )]
    Url,
    /// The database can't be reached, or does not let us in.
    #[error("the database can't be reached: {0}")]
    Unreachable(String),
    /// It does not take the statement, or failed while it was at it.
    #[error("the database says: {0}")]
    Refused(String),
    /// It took too long.
    #[error("the database took longer than {0:?}")]
    TimedOut(Duration),
    /// One row alone is more than may come back.
    #[error("a row has more than {0} bytes: ask for fewer or shorter columns")]
    TooLarge(usize),
    /// The connection broke, or the answer makes no sense.
    #[error("the connection to the database broke: {0}")]
    Broken(String),
}

impl ForeignError {
    /// Whether another try may work.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::TimedOut(_) | Self::Broken(_))
    }

    /// Whether its words may hold some of what is stored in the database.
    #[must_use]
    pub const fn holds_data(&self) -> bool {
        matches!(self, Self::Refused(_))
    }
}

/// Asks a database, over a connection that is made for this and closed again.
///
/// # Errors
/// [`ForeignError`]; nothing has changed in any case.
pub async fn ask_foreign(question: ForeignQuestion<'_>) -> Result<ForeignRows, ForeignError> {
    tokio::time::timeout(question.within, ask(question)).await.unwrap_or(Err(ForeignError::TimedOut(question.within)))
}

async fn ask(question: ForeignQuestion<'_>) -> Result<ForeignRows, ForeignError> {
    let options = options(question.url)?;
    // Statements are kept nowhere: neither in a log, nor by name in a connection that a pooler may hand to others.
    let options = options.application_name("escapement").statement_cache_capacity(0).disable_statement_logging();
    let mut connection = options.connect().await.map_err(|error| ForeignError::Unreachable(words(&error)))?;
    let answer = read(&mut connection, question).await;
    // What is open is given up with the connection.
    drop(connection.close().await);
    answer
}

/// How to connect, by the URL alone: sqlx takes what that leaves out from the `PG…` variables and the password file of this
/// process, which are meant for others. (`PGOPTIONS` and the certificates of `PGSSL…` can't be kept out; they let nobody in by
/// themselves.)
fn options(url: &str) -> Result<PgConnectOptions, ForeignError> {
    let url = Url::parse(url).map_err(|_| ForeignError::Url)?;
    let says = |keys: &[&str]| url.query_pairs().any(|(key, _)| keys.contains(&&*key));
    let has_host = url.host_str().is_some_and(|host| !host.is_empty()) || says(&["host", "hostaddr"]);
    let has_user = !url.username().is_empty() || says(&["user"]);
    if !has_host || !has_user {
        return Err(ForeignError::Url);
    }
    let mut options = PgConnectOptions::from_url(&url).map_err(|_| ForeignError::Url)?;
    if url.password().is_none() && !says(&["password"]) {
        options = options.password("");
    }
    if url.port().is_none() && !says(&["port"]) {
        options = options.port(PORT);
    }
    if url.path().trim_start_matches('/').is_empty() && !says(&["dbname"]) {
        let user = options.get_username().to_owned();
        options = options.database(&user);
    }
    if !says(&["sslmode", "ssl-mode"]) {
        let mode = if is_here(&options) { PgSslMode::Prefer } else { PgSslMode::VerifyFull };
        options = options.ssl_mode(mode);
    }
    Ok(options)
}

/// Whether what is said to the database stays on this machine.
fn is_here(options: &PgConnectOptions) -> bool {
    let host = options.get_host();
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    options.get_socket().is_some() || host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

async fn read(connection: &mut PgConnection, question: ForeignQuestion<'_>) -> Result<ForeignRows, ForeignError> {
    let begin = format!("begin transaction read only; set local statement_timeout = {}", millis(question.within));
    let refused = |error| refused(&error, question.within);
    sqlx::raw_sql(AssertSqlSafe(begin)).execute(&mut *connection).await.map_err(refused)?;
    let mut query = sqlx::query_scalar(AssertSqlSafe(wrapped(question))).persistent(false);
    for parameter in question.parameters {
        query = query.bind(parameter);
    }
    let mut stream = query.fetch(connection);
    let mut answer = ForeignRows::default();
    let mut left = question.bytes;
    while let Some(row) = stream.try_next().await.map_err(refused)? {
        let row: String = row;
        if row.len() > question.bytes {
            return Err(ForeignError::TooLarge(question.bytes));
        }
        if row.len() > left || answer.rows.len() >= question.rows as usize {
            answer.more = true;
            break;
        }
        left -= row.len();
        answer.rows.push(RawValue::from_string(row).map_err(|error| ForeignError::Broken(error.to_string()))?);
    }
    Ok(answer)
}

/// The statement within a query that gives each of its rows as JSON. One that is longer than may come back is cut by the server,
/// which shows by its length.
fn wrapped(question: ForeignQuestion<'_>) -> String {
    let statement = question.statement.trim().trim_end_matches(';');
    let (bytes, rows) = (question.bytes.saturating_add(1), u64::from(question.rows).saturating_add(1));
    // On lines of their own: the statement may end with a comment.
    format!("select left(row_to_json({ROW})::text, {bytes}) from (\n{statement}\n) as {ROW} limit {rows}")
}

fn millis(within: Duration) -> u64 {
    u64::try_from(within.as_millis()).unwrap_or(u64::MAX).clamp(1, 24 * 3_600_000)
}

fn refused(error: &sqlx::Error, within: Duration) -> ForeignError {
    match error {
        sqlx::Error::Database(said) if said.code().as_deref() == Some(CANCELLED) => ForeignError::TimedOut(within),
        sqlx::Error::Database(_) => ForeignError::Refused(words(error)),
        _ => ForeignError::Broken(words(error)),
    }
}

/// What the server says, without what it says beside.
fn words(error: &sqlx::Error) -> String {
    let said = error.as_database_error().map_or_else(|| error.to_string(), |error| error.message().to_owned());
    kernel::excerpt(&said, 500)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(statement: &str) -> ForeignQuestion<'_> {
        ForeignQuestion { url: "", statement, parameters: &[], rows: 2, bytes: 10, within: Duration::from_secs(1) }
    }

    #[test]
    fn a_comment_at_the_end_hides_nothing() {
        let wrapped = wrapped(question("select 1 -- all of it;"));
        assert!(wrapped.ends_with("\n) as esc_row_ limit 3"), "{wrapped}");
        assert!(super::wrapped(question(" select 1; ")).contains("(\nselect 1\n)"));
    }

    #[test]
    fn a_connection_to_another_machine_is_verified_unless_its_url_says_otherwise() {
        let mode = |url: &str| options(url).unwrap().get_ssl_mode();
        for url in ["postgres://u:p@db.example/d", "postgres://u@192.0.2.1", "postgres://u@localhost/d?host=db.example"]
        {
            assert!(matches!(mode(url), PgSslMode::VerifyFull), "{url}");
        }
        for host in ["localhost", "127.0.0.2", "[::1]", "%2Frun%2Fpostgresql"] {
            assert!(matches!(mode(&format!("postgres://u:p@{host}/d")), PgSslMode::Prefer), "{host}");
        }
        assert!(matches!(mode("postgres://u:p@db.example/d?sslmode=require"), PgSslMode::Require));
        assert!(matches!(mode("postgres://u:p@localhost/d?ssl-mode=verify-ca"), PgSslMode::VerifyCa));
    }

    #[test]
    fn what_a_url_leaves_out_is_nobody_elses() {
        for url in [
            "postgres://",
            "postgres:///d",
            "postgres://db.example/d",
            "postgres://:p@db.example/d",
            "postgres:///d?user=u",
        ] {
            assert!(matches!(options(url), Err(ForeignError::Url)), "{url}");
        }
        let options = options("postgres://u@db.example").unwrap();
        assert_eq!((options.get_port(), options.get_database()), (5432, Some("u")));
        // Not none, which would be filled in.
        assert!(format!("{options:?}").contains("password: Some(\"\")"));
        assert_eq!(super::options("postgres:///d?host=/run&user=u").unwrap().get_username(), "u");
    }

    #[tokio::test]
    async fn a_url_that_is_none_is_not_shown() {
        let url = "postgres://u:hunter22@[";
        let error = ask_foreign(ForeignQuestion { url, ..question("select 1") }).await.unwrap_err();
        assert!(!error.is_transient() && !error.to_string().contains("hunter22"), "{error}");
    }
}
