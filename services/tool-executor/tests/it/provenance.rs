//! Whose words the arguments of a call are decides whether a person is asked.

use kernel::command::Declassify;
use kernel::event::EventData;
use kernel::{Command, Role, Trust};
use serde_json::json;

use crate::house::House;
use crate::server::Server;

/// A tool that reaches somebody, and one that lists whom there is.
fn tools(server: &Server) -> [(&'static str, String); 2] {
    let send = format!(
        "name: x.send\ndescription: Sends.\neffect: external\ninput:\n  type: object\n  properties:\n    \
         to: {{ type: string, x-matters: true }}\n    body: {{ type: string }}\n\
         run: {{ http: {{ method: POST, url: \"{}\", allow_private: true }} }}\n",
        server.url("/effect")
    );
    let list = format!(
        "name: x.list\ndescription: Lists.\neffect: read\nidempotent: true\ninput:\n  type: object\n  properties:\n    \
         note: {{ type: string }}\n\
         output: {{ properties: {{ headers: {{ properties: {{ host: {{ x-trust: system }}, x-note: {{ x-trust: system }} }} }} }} }}\n\
         run: {{ http: {{ method: GET, url: \"{}\", headers: {{ X-Note: \"{{note}}\" }}, allow_private: true }} }}\n",
        server.url("/echo")
    );
    [("x.send", send), ("x.list", list)]
}

#[tokio::test]
async fn the_operators_address_passes_and_a_strangers_is_asked_about_and_shown_as_one() {
    let server = Server::start().await;
    let house = House::new(&[], &tools(&server), "{}").await;
    let executor = house.executor();
    let send = |to: &str, body: &str| house.call("x.send", json!({"to": to, "body": body}), Trust::Untrusted);
    let calls = vec![
        send("Ann@example.com", "what a web page said"),
        send("eve@evil.example", "hello"),
        send("ann@example.com", "see www.evil.example"),
    ];
    let ids: Vec<_> = calls.iter().map(|call| call.call_id).collect();
    let run = house.run_for("Mail the summary to ann@example.com, please.", calls).await;

    assert_eq!(house.end_of(run, ids[0]).await.0, "tool.completed");
    let questions = [house.question(run, 1).await, house.question(run, 2).await];
    for question in &questions {
        assert_eq!(question.trust, Trust::Untrusted);
        assert!(question.reasons[0].starts_with("ask-untrusted: "), "{:?}", question.reasons);
    }
    let of = |id| questions.iter().find(|question| question.call_id == Some(id)).unwrap();
    let words = &of(ids[1]).question.text;
    assert!(words.contains("\n`/to`: untrusted, from nowhere (it was found nowhere"), "{words}");
    let words = &of(ids[2]).question.text;
    assert!(words.contains("\n`/body`: untrusted, from nowhere (of what it refers to, the least"), "{words}");
    assert!(words.contains("\n`/to`: operator, from operator:test (it is named)"), "{words}");
    assert!(!words.contains("evil"), "what a stranger wrote does not stand beside the runtime's words: {words}");
    assert_eq!(server.done().len(), 1);
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_yes_to_one_call_is_no_yes_to_its_values_but_an_edit_is() {
    let server = Server::start().await;
    let house = House::new(&[], &tools(&server), "{}").await;
    let executor = house.executor();
    let send = |to: &str| house.call("x.send", json!({"to": to, "body": "hi"}), Trust::Untrusted);
    let first = send("eve@evil.example");
    let id = first.call_id;
    let run = house.run_for("Go.", vec![first]).await;
    house.decide(run, house.question(run, 1).await.approval_id, None).await;
    assert_eq!(house.end_of(run, id).await.0, "tool.completed");

    let again = send("eve@evil.example");
    let id = again.call_id;
    house.turn(run, vec![again]).await;
    let question = house.question(run, 2).await;
    assert_eq!(question.trust, Trust::Untrusted, "asked again");
    let edited = json!({"to": "bob@example.com", "body": "hi"});
    house.decide(run, question.approval_id, Some((edited.clone(), policy::digest(&edited)))).await;
    assert_eq!(house.end_of(run, id).await.0, "tool.completed");

    let third = send("bob@example.com");
    let id = third.call_id;
    house.turn(run, vec![third]).await;
    assert_eq!(house.end_of(run, id).await.0, "tool.completed");
    assert_eq!(house.count(run, "approval.requested").await, 2, "the operator wrote that address");
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_read_that_is_sent_where_a_stranger_says_is_asked_about_though_its_tool_marks_nothing() {
    let server = Server::start().await;
    let look = format!(
        "name: x.look\ndescription: Looks.\neffect: read\nidempotent: true\n\
         input: {{ type: object, properties: {{ url: {{ type: string }}, query: {{ type: string }} }} }}\n\
         run: {{ http: {{ method: GET, url: \"{}\", allow_private: true }} }}\n",
        server.url("/echo")
    );
    let house = House::new(&[], &[("x.look", look)], "{ hosts: [docs.example.com] }").await;
    let executor = house.executor();
    let look = |arguments| house.call("x.look", arguments, Trust::Untrusted);
    let calls = vec![
        look(json!({"url": "www.example.com"})),
        look(json!({"url": "docs.example.com/page"})),
        look(json!({"query": "what a stranger said about kernel.decide"})),
        look(json!({"url": "evil.example"})),
        look(json!({"query": "https://evil.example/?q=secret"})),
    ];
    let ids: Vec<_> = calls.iter().map(|call| call.call_id).collect();
    let run = house.run_for("Read www.example.com.", calls).await;
    for id in &ids[..3] {
        assert_eq!(house.end_of(run, *id).await.0, "tool.completed");
    }
    for number in [1, 2] {
        let question = house.question(run, number).await;
        assert!(ids[3..].contains(&question.call_id.unwrap()));
        assert!(question.reasons[0].starts_with("ask-untrusted-read: "), "{:?}", question.reasons);
    }
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn what_an_operator_vouches_for_passes_and_nothing_beside_it() {
    let server = Server::start().await;
    let house = House::new(&[], &tools(&server), "{}").await;
    let executor = house.executor();
    let send = |to: &str| house.call("x.send", json!({"to": to, "body": "hi"}), Trust::Untrusted);
    let list = house.call("x.list", json!({"note": "n"}), Trust::Untrusted);
    let id = list.call_id;
    let run = house.run_for("Invite Dora.", vec![list]).await;
    assert_eq!(house.end_of(run, id).await.0, "tool.completed");
    let vouch =
        Declassify { text: "dora@example.com".into(), from: 1, by: "ann".into(), reason: "I know her address".into() };
    house.submit(Role::Ingress, run, Command::Declassify(vouch), "vouch").await;

    let (vouched, longer) = (send("dora@example.com"), send("dora@example.com.evil.example"));
    let (id, asked) = (vouched.call_id, longer.call_id);
    house.turn(run, vec![vouched, longer]).await;
    assert_eq!(house.end_of(run, id).await.0, "tool.completed");
    let question = house.question(run, 1).await;
    assert_eq!((question.call_id, question.trust), (Some(asked), Trust::Untrusted));
    assert_eq!(house.count(run, "approval.requested").await, 1);
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn what_no_schema_names_is_asked_about_beside_arguments_that_are_marked() {
    let server = Server::start().await;
    let house = House::new(&[], &tools(&server), "{}").await;
    let executor = house.executor();
    let sent = json!({"to": "ann@example.com", "body": "hi", "bcc": "eve@evil.example"});
    let call = house.call("x.send", sent, Trust::Untrusted);
    let run = house.run_for("Mail the summary to ann@example.com, please.", vec![call]).await;
    let question = house.question(run, 1).await;
    assert_eq!(question.trust, Trust::Untrusted);
    assert!(question.question.text.contains("`/bcc`: untrusted"), "{}", question.question.text);
    assert_eq!(server.done().len(), 0);
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_result_vouches_for_what_its_system_assigns_and_not_for_what_it_was_given() {
    let server = Server::start().await;
    let house = House::new(&[], &tools(&server), "{}").await;
    let executor = house.executor();
    let list = house.call("x.list", json!({"note": "f-7"}), Trust::Untrusted);
    let id = list.call_id;
    let run = house.run_for("Go.", vec![list]).await;
    let (end, _, block) = house.end_of(run, id).await;
    assert_eq!(end, "tool.completed", "{}", block.text);

    let send = |to: &str| house.call("x.send", json!({"to": to, "body": "hi"}), Trust::Untrusted);
    let (assigned, given) = (send(&server.addr.to_string()), send("f-7"));
    let id = assigned.call_id;
    house.turn(run, vec![assigned, given]).await;
    assert_eq!(house.end_of(run, id).await.0, "tool.completed");
    // The server only gave this one back: a stranger's value does not become the system's on the way.
    let question = house.question(run, 1).await;
    assert_eq!((question.trust, question.arguments), (Trust::Untrusted, Some(json!({"to": "f-7", "body": "hi"}))));
    assert!(question.question.text.contains("`/to`: untrusted"), "{}", question.question.text);
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn an_obligation_is_kept_or_the_call_is_refused() {
    let server = Server::start().await;
    let declared =
        [("x.do", server.effect_tool("x.do", "60s", false)), ("x.sure", server.effect_tool("x.sure", "60s", true))];
    let house = House::new(&[], &declared, "{}").await;
    let policies = house.path("policies");
    std::fs::create_dir(&policies).unwrap();
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../../infra/policies/");
    std::fs::copy(format!("{shipped}schema.cedarschema"), policies.join("schema.cedarschema")).unwrap();
    let policy =
        |obligation: &str| format!("@id(\"a\") @obligation(\"{obligation}\") permit (principal, action, resource);");
    std::fs::write(policies.join("a.cedar"), policy("verify_after")).unwrap();
    let mut config = house.config();
    config.common.policies_dir = policies.clone();
    let executor = house.executor_with(config);
    let call = |tool: &str| house.call(tool, json!({"number": 1}), Trust::Operator);

    let (blind, sure) = (call("x.do"), call("x.sure"));
    let ids = [blind.call_id, sure.call_id];
    let run = house.run(vec![blind, sure]).await;
    let (end, code, block) = house.end_of(run, ids[0]).await;
    assert_eq!((end, code.as_str()), ("tool.denied", "policy"));
    assert!(block.text.contains("no `probe`"), "{}", block.text);
    assert_eq!(house.end_of(run, ids[1]).await.0, "tool.completed");
    assert_eq!(server.done().len(), 1);

    // The policies change while it runs.
    std::fs::write(policies.join("a.cedar"), policy("two_people")).unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        let run = house.run(vec![call("x.do")]).await;
        let asked = house.event(run, |events| {
            events.iter().find_map(|event| match event {
                EventData::ApprovalRequested(asked) => Some(Some(asked.approval.clone())),
                EventData::ToolDenied(_) => Some(None),
                _ => None,
            })
        });
        if let Some(asked) = asked.await {
            assert!(asked.two_people, "{asked:?}");
            break;
        }
        assert!(std::time::Instant::now() < deadline, "the changed policy is not in force");
    }
    house.close(vec![executor]).await;
}
