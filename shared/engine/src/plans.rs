//! What is asked often costs the same however much there is: it goes by an index to the few rows that it wants, whatever the
//! statistics say.

use sqlx::{AssertSqlSafe, PgConnection, Row};

use crate::{
    externals::{
        earlier::EARLIER,
        waits::{MATCHING, UNDER_WAY},
    },
    reads::{
        children::OUT_OF_STEP,
        events::PAGE,
        upkeep::{ATTENTION, VERIFIED},
    },
    testing::TestStack,
    timers::{CLAIM, NEXT},
};

/// Many rows of everything, few of which are meant by any statement.
const FILL: &str = "
    insert into timers (timer_id, run_id, due, purpose)
    select gen_random_uuid(), gen_random_uuid(), now() + interval '1 day' + n * interval '1 s', 'wait'
    from generate_series(1, 20000) n;
    insert into runs (run_id, tenant, agent, agent_digest, objective, sampled, created_at, updated_at, seq, status, attention)
    select gen_random_uuid(), 'default', 'a', 'd', 'o', true, now(), now(), 2, 'waiting', n % 100 = 0
    from generate_series(1, 20000) n;
    insert into events (run_id, seq, tenant, type, version, at, cause, data)
    select md5((n / 10000)::text)::uuid, n % 10000, 'default', case n % 100 when 0 then 'external.matched' else 'x' end, 1, now(),
           '{}', json_build_object('external', json_build_object('position', n), 'wait_id', gen_random_uuid())
    from generate_series(1, 40000) n;
    insert into waits (run_id, wait_id, leaf, tenant, kind, resource_key, event_type, why, since)
    select r.run_id, gen_random_uuid(), 0, 'default', 'external', 'forge:' || row_number() over (), 'forge.*', '', now()
    from runs r;
    insert into children (child_id, run_id, call_id, started_at)
    select gen_random_uuid(), r.run_id, gen_random_uuid(), now() from runs r;
    insert into external_events (tenant, source, id, type, subject, resource_key, event, dispatched_at)
    select 'default', 'forge', n, 'forge.push', n, 'forge:' || n, '{}', case when n % 10 > 0 then now() end
    from generate_series(1, 20000) n;";

async fn plan(postgres: &mut PgConnection, statement: &str) -> String {
    let explain = format!("explain (generic_plan) {statement}");
    let rows = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_all(postgres).await.unwrap();
    rows.iter().map(|row| row.get::<String, _>(0)).collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_reads_a_whole_table() {
    let stack = TestStack::new().await.unwrap();
    let mut postgres = stack.postgres().await.unwrap();
    let statements = [
        (CLAIM, "timers_due"),
        (NEXT, "timers_due"),
        (PAGE, "events_pkey"),
        (ATTENTION, "runs_attention"),
        (VERIFIED, "waits_verified"),
        (MATCHING, "waits_in_line"),
        (MATCHING, "events_by_external"),
        (EARLIER, "external_events_by_key"),
        (EARLIER, "events_by_external"),
        (UNDER_WAY, "external_events_under_way"),
        (OUT_OF_STEP, "children_pkey"),
        (OUT_OF_STEP, "runs_pkey"),
    ];
    for when in ["empty", "filled", "analysed"] {
        match when {
            "filled" => drop(sqlx::raw_sql(FILL).execute(&mut postgres).await.unwrap()),
            "analysed" => drop(sqlx::raw_sql("analyze").execute(&mut postgres).await.unwrap()),
            _ => {}
        }
        for (statement, index) in statements {
            let plan = plan(&mut postgres, statement).await;
            let by_index = plan.contains(index) && !plan.contains("Seq Scan") && !plan.contains("Hash");
            // What is empty may be read whole: then there is nothing to read.
            assert!(by_index || when == "empty", "{when}: not by {index}\n{plan}");
            assert!(!plan.contains("Hash"), "{when}\n{plan}");
            // Whatever the plan, a page of a long log ends where it ends.
            assert!(statement != PAGE || plan.contains("seq <= "), "{when}\n{plan}");
        }
    }
    sqlx::raw_sql("truncate runs, events, waits, timers, children").execute(&mut postgres).await.unwrap();
    stack.close().await.unwrap();
}
