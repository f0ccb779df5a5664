//! What an agent may look up: its own circle's memories and the collections that its file names, believed as far as they are.

use engine::{NewDocument, chunks_of};
use kernel::{
    Block, Role, TenantId, Trust,
    memory::{MemoryPlace, MemoryScope},
};
use serde_json::json;

use crate::house::House;

fn document(collection: &str, text: &str) -> NewDocument {
    NewDocument {
        collection: collection.into(),
        name: "rules.md".into(),
        digest: "d".into(),
        media_type: "text/markdown".into(),
        bytes: text.len() as u64,
        trust: Trust::Trusted,
        added_by: "operator:ann".into(),
        chunks: chunks_of(text),
    }
}

#[tokio::test]
async fn an_agent_searches_what_it_may_know_and_no_more() {
    let house = House::new(&["memory.search", "knowledge.search"], &[], "{}\nknowledge: [handbook]").await;
    let executor = house.executor();
    let (engine, tenant) = (house.engine(Role::Ingress).await, TenantId::default());
    engine.knowledge().put(&tenant, &document("handbook", "# Refunds\nAsk Ann about refunds.\n")).await.unwrap();
    engine.knowledge().put(&tenant, &document("secret", "Refunds will be cut.")).await.unwrap();
    let keep = |owner: &'static str, text: &'static str, trust| {
        let place = MemoryPlace { scope: MemoryScope::Agent, owner: owner.into(), key: "refunds".into() };
        let memories = engine.memories();
        async move {
            let block = Block::new(text, trust, "model:x");
            memories.put(&TenantId::default(), &place, &block, "run:1", None).await.unwrap();
        }
    };
    keep("tester", "Refunds take a week.", Trust::Untrusted).await;
    keep("other", "Refunds are a secret.", Trust::Trusted).await;

    let look = async |tool: &str, arguments| {
        let (run, call_id) = house.run_one(tool, arguments, Trust::Operator).await;
        house.end_of(run, call_id).await
    };
    let (end, _, found) = look("knowledge.search", json!({"query": "a refund"})).await;
    assert_eq!((end, found.trust), ("tool.completed", Trust::Trusted), "{}", found.text);
    assert!(found.text.contains("Ask Ann") && !found.text.contains("cut"), "{}", found.text);
    let (end, code, _) = look("knowledge.search", json!({"query": "a refund", "collection": "secret"})).await;
    assert_eq!((end, code.as_str()), ("tool.failed", "invalid_arguments"));

    let (end, _, found) = look("memory.search", json!({"query": "refunds"})).await;
    assert_eq!((end, found.trust), ("tool.completed", Trust::Untrusted), "it stays what it was: {}", found.text);
    assert!(found.text.contains("a week") && !found.text.contains("secret"), "{}", found.text);
    let (end, _, found) = look("memory.search", json!({"query": "zebras"})).await;
    assert_eq!((end, found.text.contains("Nothing was found")), ("tool.completed", true), "{}", found.text);
    house.close(vec![executor]).await;
}
