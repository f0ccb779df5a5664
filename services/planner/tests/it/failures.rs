//! Every way in which a model can fail has a rule: what is done, within which bounds, and what is written down.

use std::{
    collections::VecDeque,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, body::Body, extract::Request, http::StatusCode, response::Response};
use kernel::{RunId, TenantId, TurnId, agent::AgentSpec, model::ModelFailure};
use planner::models::{
    Models, ModelsOptions, Piece, Prompt, TurnKind, Unanswered, prices::Prices, remote::RemoteOptions,
    router::Answered, router::CallSite,
};
use serde_json::{Value, json};

use crate::sim::agent;

/// Far more time than anything takes here: a machine that stands still for a while is no failure of a model.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a stand-in does with a request; the last one goes for all that come after it.
#[derive(Clone, Debug)]
enum Does {
    Says(&'static str),
    Ends(&'static str, &'static str),
    Calls(Vec<Value>),
    Status(u16, Vec<(&'static str, &'static str)>, Value),
    Breaks,
    Hangs,
    Garbles,
    Nothing,
}

fn chunk(delta: Value, finish: Value) -> String {
    let usage = json!({"prompt_tokens": 10, "completion_tokens": 5});
    let event =
        json!({"model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": usage});
    format!("data: {event}\n\n")
}

fn respond(does: Does) -> Response {
    let stream =
        |text: String| Response::builder().header("content-type", "text/event-stream").body(Body::from(text)).unwrap();
    match does {
        Does::Says(text) => stream(chunk(json!({"content": text}), json!("stop"))),
        Does::Ends(text, finish) => stream(chunk(json!({"content": text}), json!(finish))),
        Does::Calls(calls) => stream(chunk(json!({"tool_calls": calls}), json!("tool_calls"))),
        Does::Status(status, headers, body) => {
            let mut answer = Response::builder().status(StatusCode::from_u16(status).unwrap());
            for (name, value) in headers {
                answer = answer.header(name, value);
            }
            answer.body(Body::from(body.to_string())).unwrap()
        }
        Does::Breaks => {
            let pieces = [Ok(chunk(json!({"content": "I beg"}), Value::Null)), Err(std::io::Error::other("gone"))];
            Response::new(Body::from_stream(futures::stream::iter(pieces)))
        }
        Does::Hangs => {
            use futures::StreamExt;
            let first = futures::stream::iter([Ok::<_, std::io::Error>(chunk(json!({"content": "I"}), Value::Null))]);
            Response::new(Body::from_stream(first.chain(futures::stream::pending())))
        }
        Does::Garbles => stream("data: <html>oops</html>\n\n".to_owned()),
        Does::Nothing => stream(String::new()),
    }
}

/// A stand-in for two providers: `first:m` and `second:m`, by the path that their addresses begin with.
struct StandIn {
    url: String,
    asked: Arc<Mutex<usize>>,
}

async fn stand_in(script: Vec<Does>) -> StandIn {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let (script, asked) = (Arc::new(Mutex::new(VecDeque::from(script))), Arc::new(Mutex::new(0)));
    let counter = Arc::clone(&asked);
    let answer = move |_: Request| {
        let mut script = script.lock().unwrap();
        *counter.lock().unwrap() += 1;
        let next = if script.len() > 1 { script.pop_front().unwrap() } else { script[0].clone() };
        async move { respond(next) }
    };
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await });
    StandIn { url, asked }
}

/// Models that are tried again for so long, and whose answers may stop for `between` in the middle.
fn models(retry_within: Duration, between: Duration) -> Models {
    let remote = RemoteOptions { connect: PATIENCE, first: PATIENCE, between, ..RemoteOptions::default() };
    let options = ModelsOptions { scenarios: PathBuf::new(), recordings: PathBuf::new(), retry_within, remote };
    Models::new(options, Prices::shipped().unwrap())
}

fn prompt(ask: u32) -> Prompt {
    Prompt {
        system: "Rules.".to_owned(),
        user: "What next?".to_owned(),
        tools: Arc::new([]),
        tool_tokens: 0,
        max_output_tokens: 100,
        run_id: RunId::mint(),
        turn: 1,
        ask,
    }
}

async fn ask(agent: &AgentSpec, ask: u32) -> (Result<Answered, Unanswered>, String) {
    ask_of(&models(PATIENCE, PATIENCE), agent, ask).await
}

async fn ask_of(models: &Models, agent: &AgentSpec, ask: u32) -> (Result<Answered, Unanswered>, String) {
    let tenant = TenantId::default();
    let site = CallSite {
        traceparent: None,
        sampled: false,
        turn_id: TurnId::mint(),
        tenant: &tenant,
        agent_digest: "d",
        kind: TurnKind::Routine,
        left: 1.0,
    };
    let told = Mutex::new(String::new());
    let on_delta = |piece: Piece<'_>| match piece {
        Piece::More(text) => told.lock().unwrap().push_str(text),
        Piece::Anew => told.lock().unwrap().clear(),
    };
    let tracer = service::Tracer::disabled("planner");
    let answered = models.answer(agent, &prompt(ask), &site, &tracer, &on_delta).await;
    let told = told.lock().unwrap().clone();
    (answered, told)
}

fn one(url: &str) -> AgentSpec {
    agent(&format!("name: a\nmodel: mine:m\nbase_url: {url}\ninstructions: Do.\n"))
}

fn rules(failures: &[ModelFailure]) -> Vec<(&str, &str)> {
    failures.iter().map(|failure| (failure.kind.as_str(), failure.rule.as_str())).collect()
}

#[tokio::test]
async fn what_may_pass_is_tried_again_and_written_down() {
    let error = |kind: &str| json!({"error": {"type": kind, "message": "no"}});
    for (does, kind) in [
        (Does::Status(429, vec![("retry-after", "0.3")], error("rate_limit_error")), "rate_limited"),
        (Does::Status(500, vec![], error("server_error")), "overloaded"),
        (Does::Status(529, vec![], error("overloaded_error")), "overloaded"),
        (Does::Status(504, vec![], json!({})), "timed_out"),
        (Does::Breaks, "reset"),
        (Does::Hangs, "timed_out"),
        (Does::Nothing, "reset"),
    ] {
        let server = stand_in(vec![does.clone(), Does::Says("At last.")]).await;
        // Only a model that hangs is waited out.
        let between = if matches!(does, Does::Hangs) { Duration::from_secs(2) } else { PATIENCE };
        let (answered, told) = ask_of(&models(PATIENCE, between), &one(&server.url), 0).await;
        let answered = answered.unwrap_or_else(|error| panic!("{does:?}: {error:?}"));
        assert_eq!(answered.answer.text, "At last.", "{does:?}");
        assert_eq!(told, "At last.", "what was said before it failed does not count: {does:?}");
        assert_eq!(rules(&answered.failures), [(kind, "retried")], "{does:?}");
        assert_eq!(*server.asked.lock().unwrap(), 2, "{does:?}");
    }
}

#[tokio::test]
async fn trying_ends_and_the_turn_is_put_off() {
    let models = models(Duration::from_secs(30), PATIENCE);
    let busy = |headers| Does::Status(503, headers, json!({"error": {"message": "busy"}}));
    // The waits before it take more than a second together, so that there is no time left for the last one.
    let last = busy(vec![("retry-after", "29")]);
    let server = stand_in(vec![busy(vec![]), busy(vec![]), busy(vec![]), last]).await;
    let unanswered = ask_of(&models, &one(&server.url), 0).await.0.unwrap_err();
    assert!(unanswered.error.is_transient());
    let kept = rules(&unanswered.failures);
    assert_eq!(kept.last(), Some(&("overloaded", "put_off")), "{kept:?}");
    assert_eq!(*server.asked.lock().unwrap(), 4, "bounded");
    // A provider that wants to be left alone for longer than there is time is left alone.
    let later = Does::Status(429, vec![("retry-after", "60")], json!({}));
    let server = stand_in(vec![later]).await;
    let unanswered = ask_of(&models, &one(&server.url), 0).await.0.unwrap_err();
    assert_eq!((*server.asked.lock().unwrap(), unanswered.error.retry_after), (1, Some(Duration::from_secs(60))));
}

#[tokio::test]
async fn what_will_not_pass_is_asked_of_the_next_model() {
    let error = |kind: &str, code: &str| json!({"error": {"type": kind, "code": code, "message": "no"}});
    for (does, kind, rule) in [
        (Does::Status(400, vec![], error("invalid_request_error", "")), "rejected", "gave_up"),
        (Does::Status(401, vec![], error("authentication_error", "")), "unauthorized", "gave_up"),
        (Does::Status(404, vec![], error("not_found_error", "")), "not_found", "gave_up"),
        (Does::Status(429, vec![], error("insufficient_quota", "insufficient_quota")), "exhausted", "put_off"),
        (Does::Ends("", "content_filter"), "refused", "gave_up"),
    ] {
        let server = stand_in(vec![does.clone(), Does::Says("I will.")]).await;
        let both =
            agent(&format!("name: a\nmodel: [mine:first, mine:second]\nbase_url: {}\ninstructions: Do.\n", server.url));
        let answered = ask(&both, 0).await.0.unwrap_or_else(|error| panic!("{does:?}: {error:?}"));
        assert_eq!(answered.model, "mine:second", "{does:?}");
        assert_eq!(rules(&answered.failures), [(kind, "next_model")], "{does:?}");
        // And where there is no other, it ends.
        let server = stand_in(vec![does.clone()]).await;
        let unanswered = ask(&one(&server.url), 0).await.0.unwrap_err();
        assert_eq!(rules(&unanswered.failures), [(kind, rule)], "{does:?}");
        assert_eq!(*server.asked.lock().unwrap(), 1, "{does:?}");
        if kind == "refused" {
            assert_eq!(unanswered.usage.input_tokens, 10, "a refusal is paid for");
        }
    }
}

#[tokio::test]
async fn what_the_model_can_mend_it_is_told() {
    for (does, kind) in [(Does::Ends("", "stop"), "empty"), (Does::Garbles, "garbled")] {
        let server = stand_in(vec![does.clone()]).await;
        let both =
            agent(&format!("name: a\nmodel: [mine:first, mine:second]\nbase_url: {}\ninstructions: Do.\n", server.url));
        let unanswered = ask(&both, 0).await.0.unwrap_err();
        assert!(unanswered.error.is_to_be_told(), "{does:?}");
        assert_eq!(rules(&unanswered.failures), [(kind, "asked_again")], "{does:?}");
        assert_eq!(unanswered.failures[0].model, "mine:first");
        // The third time another one is asked.
        let third = ask(&both, 2).await.0.unwrap_err();
        assert_eq!(third.failures[0].model, "mine:second");
    }
}

#[tokio::test]
async fn odd_answers_are_read_as_what_they_are() {
    let call =
        |id: Option<&str>, text: &str| json!({"index": 0, "id": id, "function": {"name": "say", "arguments": text}});
    let server = stand_in(vec![Does::Calls(vec![call(None, "{\"text\":\"a\"}")]), Does::Ends("half", "length")]).await;
    let nameless = ask(&one(&server.url), 0).await.0.unwrap();
    assert_eq!((nameless.answer.calls.len(), nameless.answer.calls[0].id.as_deref()), (1, None));
    let cut = ask(&one(&server.url), 0).await.0.unwrap();
    assert_eq!(cut.answer.finish.as_str(), "length");
}
