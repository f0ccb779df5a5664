//! Secrets are planted wherever a tool may use one, come back in every form, and are then looked for everywhere.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kernel::{Trust, call::Exit};
use serde_json::json;

use crate::house::House;
use crate::server::{Plan, Server};

const CANARY: &str = "cAn4ry/T0ken+w1th \"quotes\" & more";
const LINE: &str = "k3y-l1ne-of-a-secret-of-several-lines";

/// Every way in which the outside may write the secret down.
fn forms() -> Vec<String> {
    let hex: String = CANARY.bytes().map(|byte| format!("{byte:02x}")).collect();
    let percent: String = CANARY
        .bytes()
        .map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect();
    vec![
        CANARY.to_owned(),
        json!(CANARY).to_string(),
        STANDARD.encode(CANARY),
        STANDARD.encode(format!("user:{CANARY}")),
        hex.to_ascii_uppercase(),
        hex,
        percent,
        format!("begin\n{LINE}\nend"),
    ]
}

/// What must be nowhere: a piece of each form that stands the same in every text, whatever is quoted around it.
fn traces() -> Vec<String> {
    let piece = |form: String| form.chars().skip(2).take(12).collect();
    forms().into_iter().filter(|form| !form.contains(LINE)).map(piece).chain([LINE.to_owned()]).collect()
}

fn plant(house: &House) {
    std::fs::create_dir(house.path("secrets")).unwrap();
    std::fs::write(house.path("secrets/CANARY"), CANARY).unwrap();
    std::fs::write(house.path("secrets/SEVERAL"), format!("begin\n{LINE}\nend\n")).unwrap();
}

fn assert_clean(place: &str, text: &str) {
    for trace in traces() {
        assert!(!text.contains(&trace), "{place} holds {trace}");
    }
}

#[tokio::test]
async fn a_secret_that_comes_back_is_nowhere() {
    let server = Server::start().await;
    let http = format!(
        "name: x.look\ndescription: Looks.\neffect: read\nidempotent: true\n\
         input: {{ type: object, properties: {{}}, additionalProperties: false }}\n\
         run: {{ http: {{ method: GET, url: \"{}\", headers: {{ Authorization: \"secret:CANARY\" }}, allow_private: true }} }}\n",
        server.url("/forms")
    );
    let failing = http.replace("x.look", "x.fail").replace("/forms", "/forms-500");
    // The answer that fails is what is written down when a call is in doubt, and when it is asked about in vain.
    let doubted = format!(
        "{}probe: {{ http: {{ method: GET, url: \"{}\", allow_private: true }}, done: /done }}\n",
        failing.replace("x.fail", "x.doubt").replace("effect: read\nidempotent: true", "effect: external\ntimeout: 1s"),
        server.url("/forms-500"),
    );
    // As a program writes it, a few bytes at a time.
    let dripping = "for i in $(seq 1 4); do printf '%s\\n' \"$TOKEN\" | fold -b -w 7 | while IFS= read -r part; do printf '%s' \"$part\"; sleep 0.03; done; echo; done; \
                    printf '%s' \"$TOKEN\" | base64 -w 0; echo; echo \"$SEVERAL\"; cat forms";
    let process = format!(
        "name: x.print\ndescription: Prints.\nkind: activity\neffect: write\n\
         input: {{ type: object, properties: {{}}, additionalProperties: false }}\n\
         run: {{ process: {{ command: [sh, -c, {}], env: {{ TOKEN: \"secret:CANARY\", SEVERAL: \"secret:SEVERAL\" }} }} }}\n",
        json!(dripping)
    );
    let tools = [("x.look", http), ("x.fail", failing), ("x.doubt", doubted), ("x.print", process)];
    let house = House::new(&["file.read"], &tools, "{}").await;
    plant(&house);
    server.answer("/forms", 200, forms().join("\n"));
    server.answer("/forms-500", 500, forms().join("\n"));
    let mut config = house.config();
    config.doubt_seconds = 1;
    config.common.artifact_url = server.url("/");
    let executor = house.executor_with(config);

    let calls: Vec<_> =
        ["x.look", "x.fail", "x.doubt", "x.print"].map(|tool| house.call(tool, json!({}), Trust::Operator)).to_vec();
    let ids: Vec<_> = calls.iter().map(|call| call.call_id).collect();
    let run = house.prepared_run(calls, &[("forms", &forms().join("\n"))]).await;
    let (end, _, block) = house.end_of(run, ids[0]).await;
    assert_eq!(end, "tool.completed");
    assert!(block.text.contains("[secret CANARY]") && block.text.contains("[secret SEVERAL]"), "{}", block.text);
    assert_eq!(server.seen("/forms")[0]["authorization"], CANARY, "it does go out");
    assert_eq!(house.end_of(run, ids[1]).await.0, "tool.failed");
    house.end_of(run, ids[2]).await;
    let (output, exit): (Vec<u8>, Exit) = house.output(ids[3]).await;
    let output = String::from_utf8(output).unwrap();
    assert!(exit.is_success() && output.contains("******"), "{output}");
    assert_clean("the output", &output);
    // What a command left in the workspace is a file like any other.
    let read = house.call("file.read", json!({"path": "forms"}), Trust::Operator);
    let read_id = read.call_id;
    let second = house.prepared_run(vec![read], &[("forms", &forms().join("\n"))]).await;
    assert_eq!(house.end_of(second, read_id).await.0, "tool.completed");

    let everything = house.stack.everything().await.unwrap();
    assert!(everything.contains("x.look") && everything.contains("[secret CANARY]"), "the search finds what is there");
    assert_clean("Postgres or Redis", &everything);
    for call in &ids {
        for frame in house.frames(*call) {
            assert_clean("a frame", &String::from_utf8_lossy(&frame.payload));
            assert_clean("a header", &format!("{:?}", frame.headers));
        }
    }
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_secret_that_is_not_there_is_named_and_nothing_is_sent() {
    let server = Server::start().await;
    server.plan(&[Plan::Unavailable]);
    let tool = server
        .effect_tool("x.do", "60s", false)
        .replace("allow_private: true", "headers: { A: \"secret:GONE\" }, allow_private: true");
    let house = House::new(&[], &[("x.do", tool)], "{}").await;
    let executor = house.executor();
    let (run, id) = house.run_one("x.do", json!({"number": 1}), Trust::Operator).await;
    let (end, code, block) = house.end_of(run, id).await;
    assert_eq!((end, code.as_str()), ("tool.failed", "misconfigured"));
    assert!(block.text.contains("ESC_SECRET_GONE"), "{}", block.text);
    assert!(server.asked().is_empty());
    house.close(vec![executor]).await;
}
