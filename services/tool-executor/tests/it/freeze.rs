//! The kill switch, next to the effects.

use engine::FreezeScope;
use kernel::{Role, TenantId, Trust};
use serde_json::json;

use crate::house::House;
use crate::server::Server;

#[tokio::test]
async fn what_is_frozen_does_not_happen_and_goes_on_when_it_is_lifted() {
    let server = Server::start().await;
    let allow = format!("{{ hosts: [\"{}\"] }}", server.addr);
    let house =
        House::new(&["file.write", "http.get"], &[("x.do", server.effect_tool("x.do", "60s", false))], &allow).await;
    let executor = house.executor();
    let ingress = house.engine(Role::Ingress).await;
    let freeze = async |on| {
        ingress.freezes().set(&TenantId::default(), &FreezeScope::Tenant, on, "ann", None).await.unwrap();
    };
    freeze(true).await;
    // One that needs a start in the log, one that needs none, and one that only reads.
    let put = house.call("x.do", json!({"number": 1}), Trust::Operator);
    let write = house.call("file.write", json!({"path": "a.txt", "content": "a"}), Trust::Operator);
    let get = house.call("http.get", json!({"url": server.url("/echo")}), Trust::Operator);
    let ids = [put.call_id, write.call_id, get.call_id];
    let run = house.run(vec![put, write, get]).await;
    assert_eq!(house.end_of(run, ids[2]).await.0, "tool.completed", "reads are free");
    // Rung for again, as the scheduler does: still nothing.
    ingress.outbox().ring(run).await.unwrap();
    let after = house.call("http.get", json!({"url": server.url("/echo")}), Trust::Operator);
    let (after_id, other) = (after.call_id, house.run(vec![after]).await);
    assert_eq!(house.end_of(other, after_id).await.0, "tool.completed");
    let state = ingress.load(run).await.unwrap().unwrap();
    assert!(state.calls.values().all(|call| !call.is_started()) && state.calls.len() == 2);
    assert!(
        server.seen("/private").is_empty() && !house.path("workspaces").join(run.to_string()).join("a.txt").exists()
    );

    freeze(false).await;
    ingress.outbox().ring(run).await.unwrap();
    assert_eq!(house.end_of(run, ids[0]).await.0, "tool.completed");
    assert_eq!(house.end_of(run, ids[1]).await.0, "tool.completed");
    assert_eq!(server.done().len(), 1);
    house.close(vec![executor]).await;
}
