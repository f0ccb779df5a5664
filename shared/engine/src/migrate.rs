//! Bringing a schema up to date, and giving each service's role the least that it needs.

use std::{sync::LazyLock, time::Duration};

use kernel::{EventData, Role, Timestamp};
use sqlx::{
    AssertSqlSafe, Executor, PgConnection, Row, SqlSafeStr,
    migrate::{Migration, MigrationType, Migrator},
};

use crate::{
    engine::connect,
    error::{EngineError, pg},
    options::POSTGRES_WITHIN,
};

/// Pairs of a file's name and what is in it.
macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../schemas/postgres/", $name, ".sql")))),*]
    };
}

/// All of `schemas/postgres`, in the order of their numbers.
const FILES: &[(&str, &str)] = files![
    "0001_log",
    "0002_append",
    "0003_steady_append",
    "0004_claims_and_retention",
    "0005_one_log",
    "0006_children_and_freezes",
    "0007_mcp",
    "0008_schedules",
    "0009_verified_waits",
    "0010_services",
    "0013_retention_of_signals",
    "0016_memory_and_knowledge",
    "0017_doors",
    "0018_people",
    "0019_one_round_trip",
    "0030_two_people",
    "0031_audit_by_schema",
];

static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(|| {
    let migration = |(name, sql): &(&'static str, &'static str)| {
        let (number, description) = name.split_once('_')?;
        let number = number.parse().ok()?;
        let description = description.replace('_', " ").into();
        Some(Migration::new(number, description, MigrationType::Simple, sql.into_sql_str(), false))
    };
    Migrator::with_migrations(FILES.iter().filter_map(migration).collect())
});

/// Creates or updates `schema` in the database at `owner_url`, and the rights of the services' roles that exist there.
///
/// # Errors
/// When Postgres refuses, or the name of the schema is not one.
pub async fn migrate(owner_url: &str, schema: &str) -> Result<(), EngineError> {
    migrate_within(owner_url, schema, POSTGRES_WITHIN).await
}

/// As [`migrate`], with a Postgres that may take this long to connect.
pub(crate) async fn migrate_within(owner_url: &str, schema: &str, within: Duration) -> Result<(), EngineError> {
    let fits = !schema.is_empty()
        && schema.len() <= 63
        && schema.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    if !fits {
        return Err(EngineError::Config(format!("ESC_SCHEMA `{schema}` is not 1 to 63 of a-z, 0-9 and `_`")));
    }
    let pool = connect(owner_url, schema, 1, within).await?;
    let mut connection = pool.acquire().await.map_err(pg("connecting"))?;
    // Only one at a time, also of those who start together.
    run(&mut connection, "select pg_advisory_lock(7113574)".to_owned(), "locking for migration").await?;
    let result = migrate_locked(&mut connection, schema).await;
    run(&mut connection, "select pg_advisory_unlock(7113574)".to_owned(), "unlocking").await?;
    drop(connection);
    pool.close().await;
    result
}

/// How a schema stands to this program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchemaState {
    /// What [`migrate`] would still do, by description; nothing if it is up to date.
    pub pending: Vec<String>,
    /// What a newer program has done, by number: this one does not know what it means.
    pub ahead: Vec<i64>,
    /// Milliseconds that the clock of Postgres is ahead of this machine's for certain: how long its word was under way is not
    /// known, and counts for nothing.
    pub clock_ms: i64,
}

/// How `schema` stands to this program. Changes nothing.
///
/// # Errors
/// When Postgres does not answer, or refuses the user.
pub async fn schema_state(url: &str, schema: &str) -> Result<SchemaState, EngineError> {
    let read = || pg("looking at the schema");
    let pool = connect(url, schema, 1, POSTGRES_WITHIN).await?;
    let mut connection = pool.acquire().await.map_err(read())?;
    let asked = Timestamp::now().as_millisecond();
    let there: i64 = sqlx::query("select (extract(epoch from clock_timestamp()) * 1000)::bigint")
        .fetch_one(&mut *connection)
        .await
        .and_then(|row| row.try_get(0))
        .map_err(read())?;
    let clock_ms = certainly_ahead(there, asked, Timestamp::now().as_millisecond());
    drop(connection);
    let table: Option<String> = sqlx::query("select to_regclass($1)::text")
        .bind(format!("{schema}._sqlx_migrations"))
        .fetch_one(&pool)
        .await
        .and_then(|row| row.try_get(0))
        .map_err(read())?;
    let rows = match table {
        Some(_) => {
            sqlx::query("select version from _sqlx_migrations where success").fetch_all(&pool).await.map_err(read())?
        }
        None => Vec::new(),
    };
    let done: Vec<i64> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().map_err(read())?;
    pool.close().await;
    let pending = MIGRATIONS.iter().filter(|migration| !done.contains(&migration.version));
    let pending = pending.map(|migration| format!("{:04} {}", migration.version, migration.description)).collect();
    let known = |version: &i64| MIGRATIONS.iter().any(|migration| migration.version == *version);
    let mut ahead: Vec<i64> = done.iter().copied().filter(|version| !known(version)).collect();
    ahead.sort_unstable();
    Ok(SchemaState { pending, ahead, clock_ms })
}

/// How far a clock is ahead that said `there` between these two times.
fn certainly_ahead(there: i64, asked: i64, answered: i64) -> i64 {
    there - there.clamp(asked, answered.max(asked))
}

async fn migrate_locked(connection: &mut PgConnection, schema: &str) -> Result<(), EngineError> {
    run(connection, format!("create schema if not exists {schema}"), "creating the schema").await?;
    MIGRATIONS
        .run_direct(None, &mut *connection, false)
        .await
        .map_err(|error| EngineError::Postgres { operation: "migrating", source: sqlx::Error::from(error) })?;
    for role in Role::ALL {
        let name = format!("esc_{}", role.as_str().replace('-', "_"));
        let exists = sqlx::query("select exists (select from pg_roles where rolname = $1)")
            .bind(&name)
            .fetch_one(&mut *connection)
            .await
            .and_then(|row| row.try_get::<bool, _>(0))
            .map_err(pg("looking for a role"))?;
        if exists {
            grant(connection, schema, role, &name).await?;
        }
    }
    Ok(())
}

/// Rights of one service: read everything, write through `append`, and of the log only the event types that it may cause.
async fn grant(connection: &mut PgConnection, schema: &str, role: Role, name: &str) -> Result<(), EngineError> {
    let types: Vec<_> =
        EventData::TYPES.iter().filter(|name| role.may_write(name)).map(|name| format!("'{name}'")).collect();
    let own_tables = match role {
        Role::Ingress => {
            "external_events, agents, agent_heads, idempotency_keys, schedules, firings, actions, gatherings, gathered, memories, knowledge_documents, knowledge_chunks"
        }
        Role::Observer => "observer_checkpoints, actions, action_slices, service_checkpoints, alerts, signal_gaps",
        Role::Artifact => "signal_segments, service_segments, abandoned_objects",
        Role::Scheduler => "inbox, idempotency_keys, schedules, firings, gatherings, gathered",
        Role::ToolExecutor => "mcp_tools, mcp_tasks, schedules",
        _ => "outbox",
    };
    let statements = [
        format!("grant usage on schema {schema} to {name}"),
        format!("grant select on all tables in schema {schema} to {name}"),
        format!("grant usage on all sequences in schema {schema} to {name}"),
        format!("grant insert on events, inbox, checkpoints to {name}"),
        format!(
            "grant insert, update, delete on runs, outbox, waits, timers, started_calls, approvals, artifacts, children to {name}"
        ),
        format!("grant update on checkpoints to {name}"),
        format!("grant insert, update, delete on {own_tables} to {name}"),
        "alter table events enable row level security".to_owned(),
        format!("drop policy if exists read_{name} on events"),
        format!("create policy read_{name} on events for select to {name} using (true)"),
        format!("drop policy if exists write_{name} on events"),
        format!(
            "create policy write_{name} on events for insert to {name} with check (type = any (array[{}]))",
            types.join(", ")
        ),
        format!("drop policy if exists read_{name} on schedules"),
        format!("create policy read_{name} on schedules for select to {name} using (true)"),
        format!("drop policy if exists write_{name} on schedules"),
    ];
    for statement in statements.into_iter().chain(special_rights(role, name)).chain([rights_over_people(role, name)]) {
        run(connection, statement, "granting rights").await?;
    }
    Ok(())
}

/// What only one service may do, and no more of it than it needs.
fn special_rights(role: Role, name: &str) -> Vec<String> {
    match role {
        // Its waits claim earlier events.
        Role::Planner => vec![
            format!("grant update (claimed_run, claimed_wait, claimed_leaf, claimed_at) on external_events to {name}"),
            // What a skill said is only ever added.
            format!("grant insert on skill_versions to {name}"),
        ],
        // What it concludes beside runs is recorded like an event from outside; ingress brings it on.
        Role::Observer => vec![format!("grant insert on external_events to {name}")],
        // It publishes the events of schedules. It forgets. The log itself gets smaller only through this function, which looks at what it removes.
        Role::Scheduler => vec![
            format!("grant insert, delete on external_events to {name}"),
            format!("grant delete on actions, signal_gaps to {name}"),
            format!("grant execute on function remove_ended_runs to {name}"),
            format!("create policy write_{name} on schedules for all to {name} using (true)"),
        ],
        Role::Ingress => vec![
            format!("create policy write_{name} on schedules for all to {name} using (true)"),
            // Who threw the kill switch is only ever added to.
            format!("grant insert on freezes to {name}"),
        ],
        // What agents make, and that is never believed like a person's word.
        Role::ToolExecutor => vec![format!(
            "create policy write_{name} on schedules for all to {name} using (agent is not null)
             with check (agent is not null and trust in ('untrusted', 'trusted'))"
        )],
        _ => Vec::new(),
    }
}

/// Who people are, what they allow for good and what they did. Whoever may add may do no more, so that nobody edits the past.
/// In one statement, so that a service that runs never finds itself without its rights.
fn rights_over_people(role: Role, name: &str) -> String {
    let revoke = format!("revoke all on api_tokens, audit, standing_approvals, approval_notices from {name}");
    let grants: &[(&str, &str)] = match role {
        Role::Ingress => &[
            ("select, insert", "api_tokens, audit"),
            ("update (last_used_at, revoked_at, revoked_by)", "api_tokens"),
            ("select", "standing_approvals, approval_notices"),
            ("update (revoked_at, revoked_by)", "standing_approvals"),
        ],
        Role::Approval => &[
            ("select, insert", "audit, standing_approvals"),
            ("update (confirmed_at, last_used_at, uses, revoked_at, revoked_by)", "standing_approvals"),
            ("select, insert, update, delete", "approval_notices"),
        ],
        Role::ToolExecutor => &[("select", "standing_approvals")],
        _ => &[],
    };
    let grants = grants.iter().map(|(rights, tables)| format!("grant {rights} on {tables} to {name}"));
    std::iter::once(revoke).chain(grants).collect::<Vec<_>>().join("; ")
}

async fn run(connection: &mut PgConnection, sql: String, operation: &'static str) -> Result<(), EngineError> {
    // Every part is a literal or a name that was checked.
    connection.execute(AssertSqlSafe(sql)).await.map_err(pg(operation))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{FILES, MIGRATIONS, certainly_ahead};

    #[test]
    fn what_a_clock_may_have_said_in_time_is_not_wrong() {
        let ahead = |there| certainly_ahead(there, 1_000, 9_000);
        assert_eq!((ahead(1_000), ahead(5_000), ahead(9_000)), (0, 0, 0));
        assert_eq!((ahead(400), ahead(9_700)), (-600, 700));
        assert_eq!(certainly_ahead(500, 1_000, 400), -500, "this machine's was put back meanwhile");
    }

    /// Two of one number, as two branches leave them, would make the second unappliable.
    #[test]
    fn no_two_migrations_have_one_number() {
        let numbers: Vec<i64> = MIGRATIONS.iter().map(|migration| migration.version).collect();
        assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
    }

    #[test]
    fn every_file_of_the_folder_is_a_migration() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../schemas/postgres");
        let mut there: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().to_str()?.strip_suffix(".sql").map(str::to_owned))
            .collect();
        there.sort_unstable();
        assert_eq!(there, FILES.iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>());
        assert_eq!(MIGRATIONS.iter().count(), FILES.len(), "a name without a number");
    }
}
