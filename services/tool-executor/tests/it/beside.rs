//! What runs beside what.

use kernel::event::EventData;
use kernel::{CallId, RunId, Trust};
use serde_json::json;
use tool_executor::Config;

use crate::house::House;

/// A command that takes as long as it finds no file `go`, and writes down when it begins and ends.
fn tool(name: &str, concurrency: &str) -> (String, String) {
    let yaml = format!(
        "name: {name}\ndescription: Waits.\nkind: activity\neffect: write\ntimeout: 10m\n\
         concurrency: {concurrency}\n\
         input: {{ type: object, properties: {{ what: {{ type: string }} }}, required: [what], additionalProperties: false }}\n\
         run: {{ process: {{ command: [sh, -c, \"echo begin; until [ -e go ]; do sleep 0.02; done; echo end\", sh, \"{{what}}\"] }} }}\n"
    );
    (name.to_owned(), yaml)
}

async fn ask(house: &House, calls: &[(&str, &str)]) -> (RunId, Vec<CallId>) {
    let calls: Vec<_> =
        calls.iter().map(|(tool, what)| house.call(tool, json!({ "what": what }), Trust::Operator)).collect();
    let ids = calls.iter().map(|call| call.call_id).collect();
    (house.run(calls).await, ids)
}

async fn started(house: &House, run: RunId, call: CallId) {
    house
        .event(run, |events| {
            let is_it = |event: &EventData| matches!(event, EventData::ToolStarted(started) if started.call_id == call);
            events.iter().any(is_it).then_some(())
        })
        .await;
}

async fn starts(house: &House, run: RunId) -> usize {
    house.count(run, "tool.started").await
}

fn go(house: &House, run: RunId) {
    std::fs::write(house.path("workspaces").join(run.to_string()).join("go"), "").unwrap();
}

#[tokio::test]
async fn calls_of_a_turn_that_may_not_run_at_once_run_in_order() {
    let (alone, any) = (tool("x.alone", "{}"), tool("x.any", "{ parallel: true }"));
    let house = House::new(&[], &[(&alone.0, alone.1.clone()), (&any.0, any.1.clone())], "{}").await;
    let executors = vec![house.executor(), house.executor()];
    let (run, calls) = ask(&house, &[("x.any", "a"), ("x.any", "b"), ("x.alone", "c"), ("x.any", "d")]).await;
    started(&house, run, calls[0]).await;
    started(&house, run, calls[1]).await;
    // A run of its own is not held up, and its end shows that the others had their time to begin.
    let (other, own) = ask(&house, &[("x.alone", "e")]).await;
    started(&house, other, own[0]).await;
    go(&house, other);
    house.output(own[0]).await;
    assert_eq!(starts(&house, run).await, 2, "what runs alone waits for those before it, and those behind wait for it");
    go(&house, run);
    for call in &calls[..2] {
        let (_, exit) = house.output(*call).await;
        house.conclude(run, *call, exit).await;
    }
    let (_, exit) = house.output(calls[2]).await;
    assert_eq!(starts(&house, run).await, 3);
    house.conclude(run, calls[2], exit).await;
    let (output, _) = house.output(calls[3]).await;
    assert_eq!(output, b"begin\nend\n");
    house.close(executors).await;
}

#[tokio::test]
async fn a_resource_is_held_across_runs_until_its_holder_is_done_or_dead() {
    let locked = tool("x.lock", "{ parallel: true, locks: [\"thing/{what}\"] }");
    let house = House::new(&[], &[(&locked.0, locked.1.clone())], "{}").await;
    let first = house.executor();
    let (one, one_calls) = ask(&house, &[("x.lock", "a")]).await;
    started(&house, one, one_calls[0]).await;
    let second = house.executor();
    let (two, two_calls) = ask(&house, &[("x.lock", "a"), ("x.lock", "b")]).await;
    started(&house, two, two_calls[1]).await;
    assert_eq!(starts(&house, two).await, 1, "`thing/a` is taken, `thing/b` is free");
    // Its executor dies, another takes it up, and the resource with it.
    drop(first);
    go(&house, one);
    // What the dead one alone knew of, nothing but the scheduler's bell tells of.
    let (output, _) = house.while_ringing(one, house.output(one_calls[0])).await;
    assert_eq!(output, b"begin\nend\n");
    house.while_ringing(two, started(&house, two, two_calls[0])).await;
    go(&house, two);
    house.output(two_calls[0]).await;
    house.close(vec![second]).await;
}

#[tokio::test]
async fn no_more_calls_reach_a_target_than_it_takes() {
    let limited = tool("x.few", "{ parallel: true, per_target: 2, target: \"machine\" }");
    let house = House::new(&[], &[(&limited.0, limited.1.clone())], "{}").await;
    let executors = vec![house.executor(), house.executor_with(Config { activities: 8, ..house.config() })];
    let (one, one_calls) = ask(&house, &[("x.few", "a"), ("x.few", "b")]).await;
    started(&house, one, one_calls[0]).await;
    started(&house, one, one_calls[1]).await;
    let (two, two_calls) = ask(&house, &[("x.few", "c")]).await;
    go(&house, one);
    house.output(one_calls[0]).await;
    started(&house, two, two_calls[0]).await;
    go(&house, two);
    house.output(two_calls[0]).await;
    house.output(one_calls[1]).await;
    house.close(executors).await;
}

#[tokio::test]
async fn what_waits_for_another_call_holds_nobody_up() {
    let alone = tool("x.alone", "{}");
    let house = House::new(&[], &[(&alone.0, alone.1.clone())], "{}").await;
    // Two messages at once: were a waiting call to hold one of these places, nothing would pass.
    let executor = house.executor_with(Config { concurrency: 2, ..house.config() });
    let (run, calls) = ask(&house, &[("x.alone", "a"), ("x.alone", "b"), ("x.alone", "c"), ("x.alone", "d")]).await;
    started(&house, run, calls[0]).await;
    let (other, own) = ask(&house, &[("x.alone", "e")]).await;
    started(&house, other, own[0]).await;
    assert_eq!(starts(&house, run).await, 1);
    go(&house, run);
    go(&house, other);
    for call in &calls {
        let (_, exit) = house.output(*call).await;
        house.conclude(run, *call, exit).await;
    }
    assert_eq!(starts(&house, run).await, 4, "one after the other, without the scheduler");
    house.close(vec![executor]).await;
}
