//! What models were paid for is in the log, whatever came of it, and once.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    Json, Router,
    body::Body,
    extract::Query,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{post, put},
};
use futures::future::BoxFuture;
use kernel::{
    Block, Cause, Command, Event, EventData, Role, RunId, Status, Trust, TurnId,
    budget::{Spent, Usage},
    command::ReviseRun,
    event::{PaidFor, Rule, TurnCharged},
};
use serde_json::{Value, json};

use crate::{
    endings::{House, echo},
    turns::World,
};

/// Tokens that each answer of the stand-in costs.
const COST: u64 = 15;

/// What a model answers to what it is asked, the number of the request with it.
pub type Model = Arc<dyn Fn(usize, Value) -> BoxFuture<'static, Response> + Send + Sync>;

/// Serves a model as OpenAI's are, and counts what it is asked.
pub async fn served(model: Model) -> (String, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let answer = move |Json(body): Json<Value>| {
        let number = counter.fetch_add(1, Ordering::SeqCst);
        model(number, body)
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let router = Router::new().route("/v1/chat/completions", post(answer));
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, asked)
}

/// An answer that calls this.
fn calls(name: &str, arguments: &Value) -> Response {
    calls_counted(name, arguments, COST - 5)
}

/// The same, with what the provider says that the prompt was.
pub fn calls_counted(name: &str, arguments: &Value, prompt_tokens: u64) -> Response {
    let call = json!({"index": 0, "id": "c", "function": {"name": name, "arguments": arguments.to_string()}});
    let choice = json!({"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"});
    let usage = json!({"prompt_tokens": prompt_tokens, "completion_tokens": 5});
    let event = json!({"model": "m", "choices": [choice], "usage": usage});
    let body = Body::from(format!("data: {event}\n\ndata: [DONE]\n\n"));
    Response::builder().header("content-type", "text/event-stream").body(body).unwrap()
}

fn offers(asked: &Value, tool: &str) -> bool {
    let tools = asked["tools"].as_array().into_iter().flatten();
    tools.filter_map(|offered| offered["function"]["name"].as_str()).any(|name| name == tool)
}

fn charges(events: &[Event]) -> Vec<&TurnCharged> {
    let charges = events.iter().filter_map(|event| match &event.data {
        EventData::TurnCharged(charged) => Some(charged),
        _ => None,
    });
    charges.collect()
}

fn usage_of(data: &EventData) -> Option<&Usage> {
    match data {
        EventData::TurnCompleted(turn) => Some(&turn.usage),
        EventData::TurnRejected(turn) => Some(&turn.usage),
        EventData::TurnCharged(charged) => Some(&charged.usage),
        EventData::ContextCompacted(compacted) => Some(&compacted.usage),
        EventData::ContextReset(reset) => Some(&reset.usage),
        _ => None,
    }
}

/// What the run has spent is what its events say, and that is all that the model was asked.
fn adds_up(events: &[Event], spent: &Spent, asked: usize) {
    let mut sum = Spent::default();
    events.iter().filter_map(|event| usage_of(&event.data)).for_each(|usage| sum.add(usage));
    assert_eq!(sum.usage, spent.usage);
    assert_eq!(spent.usage.model_calls as usize, asked, "each answer counts, and once");
    assert_eq!(spent.usage.tokens(), COST * asked as u64);
}

const AGENT: &str = "instructions: Play.\ntools: [test.echo]\n";

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_no_use_are_paid_for_also_if_the_model_then_goes_away() {
    let world = World::with("  - text: unused\n").await;
    let refusals = Arc::new(AtomicUsize::new(0));
    let down = Arc::clone(&refusals);
    // Two answers that can't be used, then it is busy, then it is well again.
    let model: Model = Arc::new(move |number, _| {
        let busy = number == 2;
        down.fetch_add(usize::from(busy), Ordering::SeqCst);
        Box::pin(async move {
            match number {
                0 | 1 => calls("rocket_launch", &json!({})),
                2 => (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"error": {"message": "busy"}}))).into_response(),
                _ => calls("complete", &json!({"summary": "done"})),
            }
        })
    });
    let (url, asked) = served(model).await;
    let planner = world.planner_with(|config| config.model_retry_seconds = 0);
    let run = world.run_of(&format!("name: demo\nmodel: mine:m\nbase_url: {url}\n{AGENT}")).await;
    let state = world.until(run, |state| state.ended).await;
    assert_eq!((state.status(), state.spent.turns), (Status::Completed, 1), "{:?}", state.ending);
    let events = world.events(run).await;
    let [charged] = charges(&events)[..] else { panic!("{:?}", charges(&events)) };
    assert_eq!((charged.paid_for, charged.usage.tokens()), (PaidFor::Answer, 2 * COST));
    assert!(charged.reason.contains("no model answered"), "{}", charged.reason);
    assert_eq!(charged.failures[0].kind, "unknown_tool", "{:?}", charged.failures);
    let answered = asked.load(Ordering::SeqCst) - refusals.load(Ordering::SeqCst);
    adds_up(&events, &state.spent, answered);
    world.close(vec![planner]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_paid_for_nothing_uses_up_the_budget() {
    let world = World::with("  - text: unused\n").await;
    // It never comes to anything: one answer that can't be used, then it is busy, again and again.
    let model: Model = Arc::new(|number, _| {
        Box::pin(async move {
            match number % 2 {
                0 => calls("rocket_launch", &json!({})),
                _ => (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"error": {"message": "busy"}}))).into_response(),
            }
        })
    });
    let (url, _) = served(model).await;
    let planner = world.planner_with(|config| config.model_retry_seconds = 0);
    let yaml = format!("name: demo\nmodel: mine:m\nbase_url: {url}\nbudget: {{tokens: {}}}\n{AGENT}", 2 * COST);
    let run = world.run_of(&yaml).await;
    let state = world.until(run, |state| state.ended).await;
    assert_eq!(state.ending.as_ref().unwrap().rule, Rule::MaxTokens, "{:?}", state.ending);
    assert_eq!((charges(&world.events(run).await).len(), state.spent.turns), (2, 0));
    world.close(vec![planner]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_summary_that_comes_too_late_is_paid_for() {
    let mut world = World::with("  - text: unused\n").await;
    world.artifact_url = handoffs(0).await;
    let ingress = world.stack.engine(Role::Ingress).await.unwrap();
    let revised = Arc::new(Mutex::new(None::<RunId>));
    let which = Arc::clone(&revised);
    // While it writes a summary, the operator changes what the run is to reach.
    let model: Model = Arc::new(move |number, asked| {
        let (ingress, run) = (ingress.clone(), *which.lock().unwrap());
        Box::pin(async move {
            if offers(&asked, "write_summary") {
                let objective = Some(Block::new("Another one.", Trust::Operator, "operator:ann"));
                let revise = ReviseRun { objective, by: "ann".to_owned(), ..ReviseRun::default() };
                let command = Command::Revise(Box::new(revise));
                ingress.submit(run.unwrap(), command, "revise", Cause::default()).await.unwrap();
                return calls("write_summary", &json!({"facts": ["it is late"]}));
            }
            match number {
                0 | 1 => calls("test_echo", &json!({"text": format!("turn {number}")})),
                _ => calls("complete", &json!({"summary": "done"})),
            }
        })
    });
    let (url, asked) = served(model).await;
    let yaml = format!("name: demo\nmodel: mine:m\nbase_url: {url}\ncontrols: {{reset: 2}}\n{AGENT}");
    let run = world.run_of(&yaml).await;
    *revised.lock().unwrap() = Some(run);
    let planner = world.planner();
    let house = House::of(&world.stack, Arc::new(Mutex::new(vec![run])), echo).await;
    let state = world.until(run, |state| state.ended).await;
    assert_eq!(state.ending.as_ref().unwrap().rule, Rule::GoalMet, "{:?}", state.ending);
    assert_eq!((state.objective.text.as_str(), state.last_reset), ("Another one.", 0));
    let events = world.events(run).await;
    let [charged] = charges(&events)[..] else { panic!("{:?}", charges(&events)) };
    assert_eq!((charged.paid_for, charged.usage.tokens()), (PaidFor::Summary, COST));
    adds_up(&events, &state.spent, asked.load(Ordering::SeqCst));
    drop(house);
    world.close(vec![planner]).await;
}

/// An artifact service that refuses the first handoffs, so many of them.
async fn handoffs(refuses: usize) -> String {
    let left = Arc::new(AtomicUsize::new(refuses));
    let keep = move |Query(query): Query<Value>, body: String| {
        let refused = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        async move {
            if refused {
                return (StatusCode::PAYLOAD_TOO_LARGE, "full").into_response();
            }
            let artifact = json!({
                "artifact_id": kernel::ArtifactId::mint(), "name": query["name"], "version": 1, "digest": "d",
                "bytes": body.len(), "media_type": query["media_type"], "trust": query["trust"],
            });
            Json(artifact).into_response()
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new().route("/internal/artifacts", put(keep));
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handoff_that_cannot_be_stored_is_not_paid_for_in_every_turn() {
    let mut world = World::with(
        r#"
  - calls: [{tool: write_summary, arguments: {facts: ["so far"]}}]
  - when: {turn: 20}
    calls: [{tool: complete, arguments: {summary: done}}]
  - calls: [{tool: test.echo, arguments: {text: "turn {{turn}}"}}]
"#,
    )
    .await;
    world.artifact_url = handoffs(3).await;
    let planner = world.planner();
    let yaml = format!("name: demo\nmodel: scripted:demo\ncontrols: {{reset: 6}}\n{AGENT}");
    let run = world.run_of(&yaml).await;
    let house = House::of(&world.stack, Arc::new(Mutex::new(vec![run])), echo).await;
    let state = world.until(run, |state| state.ended).await;
    assert_eq!(state.ending.as_ref().unwrap().rule, Rule::GoalMet, "{:?}", state.ending);
    let number = |turn: TurnId| (1..=20).find(|number| TurnId::derive(run, &format!("turn/{number}")) == turn).unwrap();
    let (mut failed, mut begun) = (Vec::new(), Vec::new());
    for event in world.events(run).await {
        match event.data {
            EventData::ContextCompacted(compacted) => {
                if let Some(why) = &compacted.not_reset {
                    assert!(why.contains("full"), "{why}");
                    failed.push(number(compacted.turn_id));
                }
            }
            EventData::ContextReset(reset) => begun.push(number(reset.turn_id)),
            _ => {}
        }
    }
    assert_eq!(failed, [7, 9, 13], "later each time");
    assert_eq!(begun, [19], "no later than it would be time again anyway");
    assert_eq!((state.resets_failed, state.last_reset), (0, 19));
    drop(house);
    world.close(vec![planner]).await;
}
