//! Agent definitions, stored by content.

use engine::{AgentError, testing::TestStack};
use kernel::{Role, TenantId};

fn yaml(input: &str, filter: &str) -> String {
    format!(
        "name: keeper\nmodel: scripted:keeper\ninstructions: Keep it green.\ntools: [shell.run]\n\
         triggers:\n  - on: github.*\n    where: {filter}\n    start: {{ input: {input} }}\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_keeps_its_version_while_the_name_moves_on() {
    let stack = TestStack::new().await.unwrap();
    let agents = stack.engine(Role::Ingress).await.unwrap().agents();
    let (tenant, other) = (TenantId::default(), "other".parse::<TenantId>().unwrap());

    let first = agents.put(&tenant, &yaml("one", "data.ok"), "ann").await.unwrap();
    let again = agents.put(&tenant, &format!("# same\n{}", yaml("one", "data.ok")), "bob").await.unwrap();
    assert_eq!(first.digest, again.digest, "a comment changes nothing that is meant");
    let second = agents.put(&tenant, &yaml("two", "data.ok"), "bob").await.unwrap();
    assert_ne!(first.digest, second.digest);

    assert_eq!(agents.head(&tenant, "keeper").await.unwrap().unwrap().digest, second.digest);
    let kept = agents.by_digest(&tenant, "keeper", &first.digest).await.unwrap().unwrap();
    assert_eq!(*kept, first);
    assert_eq!(kept.spec.triggers[0].start.input, "one");
    let remembered = agents.by_digest(&tenant, "keeper", &first.digest).await.unwrap().unwrap();
    assert!(std::sync::Arc::ptr_eq(&kept, &remembered));

    assert!(agents.head(&tenant, "nobody").await.unwrap().is_none());
    assert!(agents.by_digest(&tenant, "somebody", &first.digest).await.unwrap().is_none());
    assert!(agents.head(&other, "keeper").await.unwrap().is_none());
    assert!(agents.by_digest(&other, "keeper", &first.digest).await.unwrap().is_none());
    let listed = agents.list(&tenant).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].version.digest.as_str(), listed[0].changed_by.as_str()), (second.digest.as_str(), "bob"));
    let versions = agents.versions(&tenant, "keeper").await.unwrap();
    let told: Vec<_> = versions.iter().map(|past| (past.version.digest.as_str(), past.is_head)).collect();
    assert_eq!(told, [(second.digest.as_str(), true), (first.digest.as_str(), false)], "the latest first");
    assert!(agents.versions(&other, "keeper").await.unwrap().is_empty());
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_file_changes_nothing() {
    let stack = TestStack::new().await.unwrap();
    let agents = stack.engine(Role::Ingress).await.unwrap().agents();
    let tenant = TenantId::default();
    agents.put(&tenant, &yaml("one", "data.ok"), "ann").await.unwrap();
    for wrong in [yaml("two", "dta.ok"), yaml("two", "data.ok").replace("tools", "tolls"), "[".to_owned()] {
        let error = agents.put(&tenant, &wrong, "ann").await.unwrap_err();
        assert!(matches!(&error, AgentError::File(at) if at.line.is_some()), "{error}");
    }
    let head = agents.head(&tenant, "keeper").await.unwrap().unwrap();
    assert_eq!(head.spec.triggers[0].start.input, "one");
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn triggers_are_ready_to_be_tried() {
    let stack = TestStack::new().await.unwrap();
    let agents = stack.engine(Role::Ingress).await.unwrap().agents();
    let tenant = TenantId::default();
    assert!(agents.triggers(&tenant).await.unwrap().is_empty());
    agents.put(&tenant, &yaml("one", "data.ok"), "ann").await.unwrap();
    let triggers = agents.triggers(&tenant).await.unwrap();
    assert_eq!(triggers.len(), 1, "one's own change shows at once");
    assert!(triggers[0].wants("github", "github.push") && !triggers[0].wants("gitlab", "gitlab.push"));
    let filter = triggers[0].filter.as_ref().unwrap();
    assert_eq!(filter.matches(&serde_json::json!({"data": {"ok": true}})), Ok(true));
    assert_eq!(triggers[0].trigger().unwrap().start.input, "one");

    // A definition that this version cannot read takes only itself out.
    let mut postgres = stack.postgres().await.unwrap();
    for sql in [
        "insert into agents (tenant, name, digest, source, spec) values ('default', 'newer', 'd', '', '{\"name\": \"newer\"}')",
        "insert into agent_heads (tenant, name, digest, changed_by) values ('default', 'newer', 'd', 'ann')",
    ] {
        sqlx::query(sql).execute(&mut postgres).await.unwrap();
    }
    let fresh = stack.another_engine(stack.options(Role::Ingress)).await.unwrap().agents();
    assert_eq!(fresh.triggers(&tenant).await.unwrap().len(), 1);
    assert!(fresh.head(&tenant, "newer").await.is_err());
    stack.close().await.unwrap();
}
