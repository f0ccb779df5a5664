//! Calls that are tried out before they happen, since a policy obliges to that.

use std::time::Duration;

use kernel::Trust;
use kernel::call::Observation;
use kernel::event::EventData;
use serde_json::json;
use service::Running;
use tool_executor::Config;

use crate::house::House;
use crate::server::Server;

const POLICIES: &str = "
    @id(\"read\") permit (principal, action == Action::\"read\", resource);
    @id(\"external\") @obligation(\"dry_run_first\") permit (principal, action == Action::\"external\", resource);
    @id(\"destructive\") @ask(\"it can't be undone\") @obligation(\"dry_run_first\")
    permit (principal, action == Action::\"destructive\", resource);";

/// A tool that is tried out with an argument of its own, one that is by another tool, and one that can't be.
fn tools(server: &Server) -> [(&'static str, String); 4] {
    let tool = |name: &str, effect: &str, method: &str, path: &str, more: &str| {
        format!(
            "name: {name}\ndescription: Does it.\neffect: {effect}\n{more}\
             input: {{ type: object, properties: {{ node: {{ type: string }}, dry: {{ type: boolean }} }}, additionalProperties: false }}\n\
             run: {{ http: {{ method: {method}, url: \"{}\", allow_private: true }} }}\n",
            server.url(path)
        )
    };
    let drain =
        tool("x.drain", "destructive", "POST", "/drain/{node}/{dry}", "dry_run: { arguments: { dry: true } }\n");
    let undo = format!(
        "dry_run: {{ tool: x.check }}\ncompensate: {{ http: {{ method: POST, url: \"{}\", allow_private: true }} }}\n",
        server.url("/undo/{node}")
    );
    let moves = tool("x.move", "external", "POST", "/move/{node}", &undo);
    let check = tool("x.check", "read", "GET", "/check/{node}", "idempotent: true\n");
    let bare = tool("x.bare", "external", "POST", "/bare/{node}", "");
    [("x.drain", drain), ("x.move", moves), ("x.check", check), ("x.bare", bare)]
}

/// A command that is tried out by another tool, and takes as long as it finds no file `go`.
const LONG: &str = "name: x.long\ndescription: Waits.\nkind: activity\neffect: external\ntimeout: 60s\n\
    dry_run: { tool: x.check }\n\
    input: { type: object, properties: { node: { type: string } }, additionalProperties: false }\n\
    run: { process: { command: [sh, -c, \"until [ -e go ]; do sleep 0.02; done\"] } }\n";

/// An executor of this house under these policies.
fn executor(house: &House, policies: &str) -> Running {
    house.executor_with(house.config_under(policies))
}

fn observed(events: &[EventData]) -> Vec<Observation> {
    let observed = events.iter().filter_map(|event| match event {
        EventData::ObservationRecorded(observed) => Some(observed.observation.clone()),
        _ => None,
    });
    observed.collect()
}

#[tokio::test]
async fn a_person_is_shown_what_would_come_of_it_and_it_is_tried_out_again_as_it_was_allowed() {
    let server = Server::start().await;
    server.answer("/drain/n1/true", 200, "would move 7 jobs".to_owned());
    let house = House::new(&[], &tools(&server), "{}").await;
    let executor = executor(&house, POLICIES);
    let (run, id) = house.run_one("x.drain", json!({"node": "n1"}), Trust::Operator).await;

    let question = house.question(run, 1).await;
    let shown = question.shown.evidence.last().unwrap();
    assert_eq!((shown.source.as_str(), shown.trust), (format!("tool:x.drain.dry-run/{id}").as_str(), Trust::Untrusted));
    assert!(shown.text.starts_with("Dry run: ") && shown.text.contains("would move 7 jobs"), "{}", shown.text);
    let tried = server.seen("/drain/n1/true");
    assert_eq!(tried.len(), 1);
    // Or the other side would take the call for a repetition of this, and not do it.
    assert_ne!(tried[0]["idempotency-key"].to_str().unwrap(), id.to_string());
    assert!(server.seen("/drain/n1/").is_empty());

    // What the person allows is another node, which nobody has tried out.
    let edited = json!({"node": "n2"});
    house.decide(run, question.approval_id, Some((edited.clone(), policy::digest(&edited)))).await;
    assert_eq!(house.end_of(run, id).await.0, "tool.completed");
    assert_eq!((server.seen("/drain/n2/true").len(), server.seen("/drain/n2/").len()), (1, 1));
    assert!(server.seen("/drain/n1/").is_empty());
    let observed = observed(&house.events(run).await);
    assert_eq!((observed.len(), observed[0].phase.as_str(), observed[0].call_id), (1, "dry_run", Some(id)));
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn two_people_are_shown_what_would_come_of_it() {
    let server = Server::start().await;
    server.answer("/drain/n1/true", 200, "would move 7 jobs".to_owned());
    let house = House::new(&[], &tools(&server), "{}").await;
    let both = "@id(\"both\") @obligation(\"dry_run_first, two_people\") permit (principal, action, resource);";
    let executor = executor(&house, both);
    let (run, id) = house.run_one("x.drain", json!({"node": "n1"}), Trust::Operator).await;
    let question = house.question(run, 1).await;
    assert!(question.two_people);
    assert!(question.shown.evidence.last().unwrap().text.contains("would move 7 jobs"));
    house.agree(run, question.approval_id, "ann", None).await.unwrap();
    assert_eq!((server.seen("/drain/n1/true").len(), server.seen("/drain/n1/").len()), (1, 0));
    house.agree(run, question.approval_id, "bob", None).await.unwrap();
    assert_eq!(house.end_of(run, id).await.0, "tool.completed");
    assert_eq!((server.seen("/drain/n1/true").len(), server.seen("/drain/n1/").len()), (2, 1));
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_call_whose_dry_run_fails_does_not_happen() {
    let server = Server::start().await;
    server.answer("/check/n1", 409, "n1 is in use".to_owned());
    server.answer("/drain/n1/true", 422, "no such node".to_owned());
    let house = House::new(&[], &tools(&server), "{}").await;
    let executor = executor(&house, POLICIES);
    let call = |tool: &str, node: &str| house.call(tool, json!({ "node": node }), Trust::Operator);
    let calls = vec![call("x.move", "n1"), call("x.move", "n2"), call("x.drain", "n1")];
    let ids: Vec<_> = calls.iter().map(|call| call.call_id).collect();
    let run = house.run(calls).await;

    for (id, said) in [(ids[0], "n1 is in use"), (ids[2], "no such node")] {
        let (end, code, block) = house.end_of(run, id).await;
        assert_eq!((end, code.as_str(), block.trust), ("tool.denied", "dry_run_failed", Trust::Untrusted));
        assert!(block.text.contains("was not carried out") && block.text.contains(said), "{}", block.text);
    }
    assert!(server.seen("/move/n1").is_empty() && server.seen("/drain/n1/").is_empty());
    assert_eq!(house.count(run, "approval.requested").await, 0, "nobody is asked about what can't be done");

    assert_eq!(house.end_of(run, ids[1]).await.0, "tool.completed");
    assert_eq!((server.seen("/check/n2").len(), server.seen("/move/n2").len()), (1, 1));
    let observed = observed(&house.events(run).await);
    assert_eq!((observed.len(), observed[0].call_id), (1, Some(ids[1])));

    // What undoes it was agreed to with it, and is not tried out.
    house.cancel(run).await;
    house.event(run, |events| events.iter().any(|event| event.type_name() == "run.cancelled").then_some(())).await;
    assert_eq!((server.seen("/check/n2").len(), server.seen("/undo/n2").len()), (1, 1));
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn what_can_not_be_tried_out_or_read_back_is_refused() {
    let server = Server::start().await;
    let declared: Vec<_> = tools(&server).into_iter().chain([("x.job", server.job_tool("x.job", false))]).collect();
    let house = House::new(&[], &declared, "{}").await;
    let forbids_looks = "
        @id(\"read\") @ask(\"it looks\") permit (principal, action == Action::\"read\", resource);
        @id(\"job\") @obligation(\"verify_after\") permit (principal, action, resource == Tool::\"x.job\");
        @id(\"external\") @obligation(\"dry_run_first\") permit (principal, action == Action::\"external\", resource)
        unless { resource == Tool::\"x.job\" };";
    let executor = executor(&house, forbids_looks);
    let call = |tool: &str, arguments| house.call(tool, arguments, Trust::Operator);
    let calls = vec![
        call("x.bare", json!({"node": "n1"})),
        call("x.job", json!({"number": 1})),
        call("x.move", json!({"node": "n1"})),
    ];
    let ids: Vec<_> = calls.iter().map(|call| call.call_id).collect();
    let run = house.run(calls).await;
    for (id, why) in ids.into_iter().zip(["the tool has no `dry_run`", "goes on by itself", "it looks"]) {
        let (end, code, block) = house.end_of(run, id).await;
        assert_eq!((end, code.as_str()), ("tool.denied", "policy"));
        assert!(block.text.contains(why), "{}", block.text);
    }
    assert!(server.jobs().is_empty());
    assert!(["/bare/n1", "/move/n1", "/check/n1"].iter().all(|path| server.seen(path).is_empty()));
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_call_that_a_limit_admits_is_not_held_up_by_its_own_dry_run() {
    let server = Server::start().await;
    let house = House::new(&[], &tools(&server), "{}").await;
    let rate_limits = ["tool:x.drain=1/1h", "tool:x.check=1/1h"].map(str::to_owned).to_vec();
    let executor = house.executor_with(Config { rate_limits, ..house.config_under(POLICIES) });
    let one = async |tool: &str, node: &str| house.run_one(tool, json!({ "node": node }), Trust::Operator).await;
    let (run, id) = one("x.drain", "n1").await;
    let question = house.question(run, 1).await;
    house.decide(run, question.approval_id, None).await;
    assert_eq!(house.end_of(run, id).await.0, "tool.completed");
    assert_eq!((server.seen("/drain/n1/true").len(), server.seen("/drain/n1/").len()), (2, 1));

    let (run, id) = one("x.move", "n1").await;
    assert_eq!(house.end_of(run, id).await.0, "tool.completed");
    // What has to wait is not carried out, and not denied either.
    let (run, _) = one("x.move", "n2").await;
    let reason = house.event(run, |events| {
        events.iter().find_map(|event| match event {
            EventData::ToolProgressed(progressed) => Some(progressed.reason.clone()),
            EventData::ToolDenied(denied) => Some(Some(denied.code.clone())),
            _ => None,
        })
    });
    assert_eq!(reason.await.as_deref(), Some("rate_limited"));
    assert!(server.seen("/check/n2").is_empty() && server.seen("/move/n2").is_empty());
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_call_and_its_dry_run_are_one_to_a_limit_on_what_both_go_to() {
    let server = Server::start().await;
    let house = House::new(&[], &tools(&server), "{}").await;
    let rate_limits = ["target:*=1/1h", "tenant:*=1/1h"].map(str::to_owned).to_vec();
    let executor = house.executor_with(Config { rate_limits, ..house.config_under(POLICIES) });
    let (run, id) = house.run_one("x.move", json!({"node": "n1"}), Trust::Operator).await;
    assert_eq!(house.end_of(run, id).await.0, "tool.completed");
    assert_eq!((server.seen("/check/n1").len(), server.seen("/move/n1").len()), (1, 1));
    assert_eq!(house.count(run, "tool.progressed").await, 0);
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_dry_run_that_is_refused_for_now_is_tried_again_later_as_often_as_its_tool_may_be() {
    let server = Server::start().await;
    let house = House::new(&[], &tools(&server), "{}").await;
    let executor = executor(&house, POLICIES);
    // Longer than a call is held for, and as long as a tool waits that says nothing else.
    server.be_busy("/check/n1", 1, 4);
    server.be_busy("/drain/n1/true", 1, 4);
    server.be_busy("/check/n2", 9, 21);
    let moves = async |node: &str| {
        let (run, id) = house.run_one("x.move", json!({ "node": node }), Trust::Operator).await;
        (run, house.while_time_is_kept(run, house.end_of(run, id)).await)
    };
    let drains = async |node: &str| {
        let (run, _) = house.run_one("x.drain", json!({ "node": node }), Trust::Operator).await;
        house.while_time_is_kept(run, house.question(run, 1)).await
    };
    // In boxes: beside each other on the stack they are too large for it.
    let ((run, moved), question, (_, denied)) =
        tokio::join!(Box::pin(moves("n1")), Box::pin(drains("n1")), Box::pin(moves("n2")));
    assert_eq!(moved.0, "tool.completed");
    assert_eq!((server.seen("/check/n1").len(), server.seen("/move/n1").len()), (2, 1));
    assert_eq!(house.attempts(run).await, ["retry http_status (dry run)"]);
    // A person is asked once it could be tried out.
    assert_eq!(server.seen("/drain/n1/true").len(), 2);
    assert!(question.shown.evidence.last().unwrap().text.starts_with("Dry run: "));

    // It asks for more patience than the tool has.
    assert_eq!((denied.0, denied.1.as_str()), ("tool.denied", "dry_run_failed"));
    assert_eq!((server.seen("/check/n2").len(), server.seen("/move/n2").len()), (1, 0));
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_dry_run_fails_no_more_often_over_all_starts_than_its_tool_allows() {
    let server = Server::start().await;
    let mut declared = tools(&server);
    declared[2].1.push_str("retry: { attempts: 3 }\n");
    let house = House::new(&[], &declared, "{}").await;
    let executor = executor(&house, POLICIES);
    server.be_busy("/check/n1", 1, 4);
    // In the second start it is asked twice, since it does not ask to wait for long.
    server.be_busy("/check/n1", 9, 1);
    let (run, id) = house.run_one("x.move", json!({"node": "n1"}), Trust::Operator).await;
    let (end, code, block) = house.while_time_is_kept(run, house.end_of(run, id)).await;
    assert_eq!((end, code.as_str()), ("tool.denied", "dry_run_failed"), "{}", block.text);
    assert!(block.text.contains("it asks to wait 1 s"), "{}", block.text);
    assert_eq!((server.seen("/check/n1").len(), server.seen("/move/n1").len()), (3, 0));
    assert_eq!(house.attempts(run).await, ["retry http_status (dry run)"; 2], "the last is the call's end");
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_call_has_as_many_attempts_of_its_own_as_without_a_dry_run() {
    let server = Server::start().await;
    let mut declared = tools(&server);
    declared[1].1.push_str("retry: { attempts: 2 }\n");
    let house = House::new(&[], &declared, "{}").await;
    let executor = executor(&house, POLICIES);
    server.be_busy("/check/n1", 1, 1);
    server.be_busy("/move/n1", 1, 1);
    let (run, id) = house.run_one("x.move", json!({"node": "n1"}), Trust::Operator).await;
    let (end, ..) = house.while_time_is_kept(run, house.end_of(run, id)).await;
    assert_eq!(end, "tool.completed");
    assert_eq!(house.attempts(run).await, ["retry http_status (dry run)", "retry http_status"]);
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn what_a_person_has_agreed_to_is_tried_out_as_often_as_if_it_never_was() {
    let server = Server::start().await;
    let mut declared = tools(&server);
    declared[0].1.push_str("retry: { attempts: 2 }\n");
    let house = House::new(&[], &declared, "{}").await;
    let executor = executor(&house, POLICIES);
    // Once before the question, and once after the yes: more in all than one of its attempts may fail.
    server.be_busy("/drain/n1/true", 1, 1);
    let (run, id) = house.run_one("x.drain", json!({"node": "n1"}), Trust::Operator).await;
    let question = house.question(run, 1).await;
    server.be_busy("/drain/n1/true", 1, 1);
    house.decide(run, question.approval_id, None).await;
    let (end, _, block) = house.end_of(run, id).await;
    assert_eq!(end, "tool.completed", "{}", block.text);
    assert_eq!((server.seen("/drain/n1/true").len(), server.seen("/drain/n1/").len()), (4, 1));
    assert_eq!(house.attempts(run).await, ["retry http_status (dry run)"; 2]);
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn an_activity_that_there_is_no_room_for_is_not_tried_out_yet() {
    let server = Server::start().await;
    let declared: Vec<_> = tools(&server).into_iter().chain([("x.long", LONG.to_owned())]).collect();
    let house = House::new(&[], &declared, "{}").await;
    let executor = house.executor_with(Config { activities: 1, ..house.config_under(POLICIES) });
    let call = |node: &str| vec![house.call("x.long", json!({ "node": node }), Trust::Operator)];
    let first = house.run(call("n1")).await;
    house.started(first).await;
    let second = house.prepared_run(call("n2"), &[("go", "")]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(server.seen("/check/n2").is_empty());
    std::fs::write(house.path("workspaces").join(first.to_string()).join("go"), "").unwrap();
    house.started(second).await;
    assert_eq!((server.seen("/check/n1").len(), server.seen("/check/n2").len()), (1, 1));
    house.close(vec![executor]).await;
}
