//! Who people are, what they allow for good, what they are told, and what they did.

use std::time::Duration;

use engine::testing::TestStack;
use engine::{AuditEntry, AuditFilter, NewStanding, NewToken, NoticeKind, Shape, schema_state};
use kernel::{ApprovalId, Role, RunId, StandingId, TenantId, Timestamp};
use serde_json::json;
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

/// A question in this state, as the projection has it.
async fn question(postgres: &mut PgConnection, state: &str, by: Option<&str>) -> ApprovalId {
    let id = ApprovalId::mint();
    sqlx::query(
        "insert into approvals (approval_id, run_id, tenant, question, binding, trust, reasons, state, requested_at, expires_at,
                                decided_by)
         values ($1, gen_random_uuid(), 'default', 'may I?', '{}', 'system', '[]', $2, now(), now() + interval '1 hour', $3)",
    )
    .bind(id.0)
    .bind(state)
    .bind(by)
    .execute(&mut *postgres)
    .await
    .unwrap();
    id
}

#[tokio::test(flavor = "multi_thread")]
async fn a_due_notice_is_had_by_one_and_a_moot_one_by_nobody() {
    let stack = TestStack::new().await.unwrap();
    let mut postgres = stack.postgres().await.unwrap();
    let notices = stack.engine(Role::Approval).await.unwrap().notices();
    let now = Timestamp::now();
    let later = now + jiff::SignedDuration::from_hours(1);
    let (open, decided) = (question(&mut postgres, "open", None).await, question(&mut postgres, "open", None).await);
    for id in [open, decided] {
        let plan = [(NoticeKind::Asked, 0, now), (NoticeKind::Reminder, 0, later)];
        notices.plan(id, &plan).await.unwrap();
        notices.plan(id, &plan).await.unwrap();
    }
    let gone = question(&mut postgres, "granted", Some("ann")).await;
    notices.plan(gone, &[(NoticeKind::Asked, 0, now)]).await.unwrap();
    sqlx::query("update approvals set state = 'denied' where approval_id = $1")
        .bind(decided.0)
        .execute(&mut postgres)
        .await
        .unwrap();

    let hold = Duration::from_secs(60);
    let (one, two) = (notices.clone(), notices.clone());
    let (first, second) = futures::join!(one.claim_due(10, hold), two.claim_due(10, hold));
    let mut had = first.unwrap();
    had.extend(second.unwrap());
    let [notice] = had.as_slice() else { panic!("{had:?}") };
    assert_eq!((notice.approval_id, notice.kind, notice.attempts), (open, NoticeKind::Asked, 1));
    assert!(notices.claim_due(10, hold).await.unwrap().is_empty(), "it is claimed");
    notices.put_off(notice, now).await.unwrap();
    let again = notices.claim_due(10, hold).await.unwrap();
    assert_eq!(again.iter().map(|notice| notice.attempts).collect::<Vec<_>>(), [2]);
    notices.done(&again[0]).await.unwrap();
    let left: i64 = sqlx::query_scalar("select count(*) from approval_notices").fetch_one(&mut postgres).await.unwrap();
    assert_eq!(left, 2, "the two reminders");
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notice_of_a_kind_that_a_later_version_has_is_left_to_that_and_keeps_nobody() {
    let stack = TestStack::new().await.unwrap();
    let mut postgres = stack.postgres().await.unwrap();
    let notices = stack.engine(Role::Approval).await.unwrap().notices();
    let now = Timestamp::now();
    let (open, decided) = (question(&mut postgres, "open", None).await, question(&mut postgres, "denied", None).await);
    notices.plan(open, &[(NoticeKind::Endorsed, 0, now)]).await.unwrap();
    for id in [open, decided] {
        sqlx::query("insert into approval_notices (approval_id, kind, number, due) values ($1, 'sung', 0, 'epoch')")
            .bind(id.0)
            .execute(&mut postgres)
            .await
            .unwrap();
    }
    // The unknown one is the older, and would be all that there is room for.
    let had = notices.claim_due(2, Duration::from_secs(60)).await.unwrap();
    assert_eq!(had.iter().map(|notice| notice.kind).collect::<Vec<_>>(), [NoticeKind::Endorsed]);
    let left: Vec<(Uuid, i32)> =
        sqlx::query_as("select approval_id, attempts from approval_notices where kind = 'sung'")
            .fetch_all(&mut postgres)
            .await
            .unwrap();
    assert_eq!(left, [(open.0, 0)], "nobody has tried it, and the moot one is gone");
    stack.close().await.unwrap();
}

fn standing(approval_id: ApprovalId) -> NewStanding {
    NewStanding {
        standing_id: StandingId::mint(),
        tenant: TenantId::default(),
        agent: "helper".into(),
        agent_digest: "agent".into(),
        tool: "x.do".into(),
        schema_digest: "schema".into(),
        shape: "shape".into(),
        reasons: vec!["p: it asks".into()],
        arguments: json!({"to": "ann"}),
        approval_id,
        run_id: RunId::mint(),
        note: None,
        given_by: "ann".into(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_begun_and_left_counts_only_if_its_decision_was_taken_by_the_same_person() {
    let stack = TestStack::new().await.unwrap();
    let mut postgres = stack.postgres().await.unwrap();
    let standing_approvals = stack.engine(Role::Approval).await.unwrap().standing();
    let mut proposed = Vec::new();
    for (state, by) in [("granted", Some("ann")), ("granted", Some("bob")), ("denied", Some("ann")), ("open", None)] {
        let new = standing(question(&mut postgres, state, by).await);
        standing_approvals.propose(&new).await.unwrap();
        proposed.push(new.standing_id);
    }
    let tenant = TenantId::default();
    let in_force = async |id| standing_approvals.is_in_force(&tenant, id).await.unwrap();
    for id in &proposed {
        assert!(!in_force(*id).await, "nothing counts before it is confirmed");
    }
    assert_eq!(standing_approvals.settle().await.unwrap(), 0, "whoever began it may still be at it");
    let age = "update standing_approvals set given_at = now() - interval '1 minute'";
    sqlx::query(age).execute(&mut postgres).await.unwrap();
    assert_eq!(standing_approvals.settle().await.unwrap(), 3);
    let mut counts = Vec::new();
    for id in &proposed {
        counts.push(in_force(*id).await);
    }
    assert_eq!(counts, [true, false, false, false]);

    let fits = Shape { agent_digest: "agent", tool: "x.do", schema_digest: "schema", shape: "shape" };
    let asks = ["p: it asks".to_owned()];
    let covering = async |tenant: &str, shape: Shape<'_>, reasons: &[String]| {
        let tenant = tenant.parse().unwrap();
        standing_approvals.covering(&tenant, shape, reasons).await.unwrap().map(|row| row.standing_id)
    };
    assert_eq!(covering("default", fits, &asks).await, Some(proposed[0]));
    assert_eq!(covering("other", fits, &asks).await, None);
    for other in [
        Shape { agent_digest: "another", ..fits },
        Shape { tool: "x.undo", ..fits },
        Shape { schema_digest: "another", ..fits },
        Shape { shape: "another", ..fits },
    ] {
        assert_eq!(covering("default", other, &asks).await, None, "{other:?}");
    }
    assert_eq!(covering("default", fits, &["q: so does this".to_owned()]).await, None);
    stack.close().await.unwrap();
}

fn entry(tenant: &str, actor: &str) -> AuditEntry {
    AuditEntry {
        id: Uuid::now_v7(),
        // Postgres has microseconds.
        at: Timestamp::from_microsecond(Timestamp::now().as_microsecond()).unwrap(),
        tenant: tenant.parse().unwrap(),
        actor: actor.into(),
        roles: vec!["operator".into(), "viewer".into()],
        token_id: Some(Uuid::now_v7()),
        action: "freeze.set".into(),
        resource: "/v1/freeze".into(),
        outcome: "done".into(),
        address: Some("127.0.0.1".into()),
        forwarded: None,
        user_agent: Some("test".into()),
        evidence: Some(json!({"scope": "tenant"})),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_are_added_once_and_changed_by_nobody() {
    let stack = TestStack::new().await.unwrap();
    let trail = stack.engine(Role::Ingress).await.unwrap().trail();
    let entries = [entry("acme", "ann"), entry("acme", "bob"), entry("other", "eve")];
    trail.add(&entries).await.unwrap();
    trail.add(&entries).await.unwrap();
    let acme = "acme".parse().unwrap();
    let rows = trail.from(&acme, &AuditFilter::default(), None, 10).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.entry.actor.as_str()).collect::<Vec<_>>(), ["ann", "bob"]);
    let kept = serde_json::to_value(&rows[0].entry).unwrap();
    assert_eq!(kept, serde_json::to_value(&entries[0]).unwrap(), "it is kept as it was said");
    // In one object, as those who read it know it.
    let mut shown = serde_json::to_value(&rows[0]).unwrap();
    assert_eq!(shown["position"], rows[0].position);
    shown.as_object_mut().unwrap().remove("position");
    assert_eq!(shown, kept);
    let after = trail.from(&acme, &AuditFilter::default(), Some(rows[0].position), 10).await.unwrap();
    assert_eq!(after.len(), 1);
    let bob = AuditFilter { actor: Some("bob".into()), ..AuditFilter::default() };
    assert_eq!(trail.latest(&acme, &bob, None, 10).await.unwrap().len(), 1);
    let future = AuditFilter { since: Some(Timestamp::now()), ..AuditFilter::default() };
    assert!(trail.latest(&acme, &future, None, 10).await.unwrap().is_empty());
    let mut postgres = stack.postgres().await.unwrap();
    for statement in ["update audit set actor = 'nobody'", "delete from audit", "truncate audit"] {
        let mut transaction = postgres.begin().await.unwrap();
        let refused = sqlx::query(statement).execute(&mut *transaction).await.unwrap_err().to_string();
        assert!(refused.contains("only added to"), "{statement}: {refused}");
    }
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_a_newer_program_made_is_told_from_one_that_lacks_something() {
    let stack = TestStack::new().await.unwrap();
    let url = engine::testing::database_url();
    let state = schema_state(&url, stack.schema()).await.unwrap();
    assert!(state.pending.is_empty() && state.ahead.is_empty() && state.clock_ms.abs() < 60_000, "{state:?}");
    let mut postgres = stack.postgres().await.unwrap();
    let newer = "insert into _sqlx_migrations (version, description, success, checksum, execution_time)
                 values (9999, 'of the future', true, '', 0)";
    sqlx::query(newer).execute(&mut postgres).await.unwrap();
    let older = "delete from _sqlx_migrations where version = 18";
    sqlx::query(older).execute(&mut postgres).await.unwrap();
    let state = schema_state(&url, stack.schema()).await.unwrap();
    assert_eq!(
        (state.pending.as_slice(), state.ahead.as_slice()),
        (["0018 people".to_owned()].as_slice(), [9999].as_slice())
    );
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_has_had_a_token_in_hand_is_known() {
    let stack = TestStack::new().await.unwrap();
    let tokens = stack.engine(Role::Ingress).await.unwrap().tokens();
    let acme: TenantId = "acme".parse().unwrap();
    let make = async |tenant: &TenantId, name: &str, created_by: &str| {
        let new = NewToken {
            tenant: tenant.clone(),
            name: name.to_owned(),
            roles: vec!["admin".to_owned()],
            sha256: *Uuid::new_v5(&Uuid::nil(), format!("{tenant}/{name}/{created_by}").as_bytes())
                .as_bytes()
                .repeat(2)
                .first_chunk()
                .unwrap(),
            expires_at: Timestamp::now() + jiff::SignedDuration::from_hours(1),
            created_by: created_by.to_owned(),
        };
        tokens.create(&new).await.unwrap().expect("the name is free").token_id
    };
    let ann = make(&acme, "ann", "root").await;
    let laptop = make(&acme, "laptop", "ann").await;
    let phone = make(&acme, "phone", "laptop").await;
    // Of another tenant, by people who are called the same.
    make(&TenantId::default(), "ann", "eve").await;
    assert_eq!(tokens.makers(&acme, ann).await.unwrap(), ["root"]);
    assert_eq!(tokens.makers(&acme, laptop).await.unwrap(), ["ann", "root"]);
    assert_eq!(tokens.makers(&acme, phone).await.unwrap(), ["ann", "laptop", "root"]);
    assert!(tokens.makers(&TenantId::default(), phone).await.unwrap().is_empty());
    // A name that is free again, and comes back in a circle: whoever had it before counts on.
    tokens.revoke(&acme, ann, "root").await.unwrap().unwrap();
    make(&acme, "ann", "phone").await;
    assert_eq!(tokens.makers(&acme, phone).await.unwrap(), ["ann", "laptop", "phone", "root"]);
    stack.close().await.unwrap();
}
