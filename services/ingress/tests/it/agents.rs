//! Agent definitions over HTTP.

use kernel::RunId;
use reqwest::Method;
use serde_json::json;

use crate::harness::{Door, HELPER, answer};

#[tokio::test]
async fn a_run_keeps_the_version_that_it_started_with() {
    let door = Door::open().await;
    let first = door.get("/v1/agents/helper").await;
    assert_eq!(first["spec"]["instructions"], "Help.");
    assert_eq!(first["changed_by"], "acme-admin");
    let run: RunId = door.run().await;

    let again = door.put_agent(HELPER).await;
    assert_eq!(again["digest"], first["digest"], "the same content is the same version");
    let second = door.put_agent(&HELPER.replace("Help.", "Help more.")).await;
    assert_ne!(second["digest"], first["digest"]);
    assert_eq!(door.get("/v1/agents").await["items"].as_array().unwrap().len(), 1);

    let shown = door.get(&format!("/v1/runs/{run}")).await;
    assert_eq!(shown["agent_digest"], first["digest"]);
    let next = door.run().await;
    assert_eq!(door.get(&format!("/v1/runs/{next}")).await["agent_digest"], second["digest"]);
    assert_eq!(door.get("/v1/runs?agent=nobody").await["items"], json!([]));
    let versions = door.get("/v1/agents/helper/versions").await;
    let told = |at: usize| (versions["items"][at]["digest"].clone(), versions["items"][at]["head"].clone());
    assert_eq!([told(0), told(1)], [(second["digest"].clone(), json!(true)), (first["digest"].clone(), json!(false))]);
    assert_eq!(versions["items"][1]["spec"]["instructions"], "Help.", "what the run follows can be read");
    let unknown = door.request(Method::GET, "/v1/agents/nobody/versions", "viewer").send().await.unwrap();
    assert_eq!(answer(unknown).await.1["code"], "unknown_agent");
    door.close().await;
}
