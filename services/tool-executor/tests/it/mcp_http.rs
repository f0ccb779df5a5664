//! MCP servers behind HTTP, on good and bad days.

use std::collections::HashSet;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::stream;
use kernel::{Block, Trust};
use serde_json::{Value, json};
use service::Running;

use crate::desk;
use crate::house::House;

const SESSION: &str = "mcp-session-id";

/// What is answered to the next call of a tool, instead of its result.
#[derive(Clone, Copy, Debug)]
enum Plan {
    /// A status and what else stands in the head.
    Status(u16, Option<(&'static str, &'static str)>),
    /// Half of an answer.
    Break,
    /// Nothing, and no end.
    Hang,
    /// Signs of life, and no end.
    Drip,
    /// More than is read.
    Flood,
}

/// A server that keeps sessions in its memory.
#[derive(Clone)]
struct Server {
    at: SocketAddr,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    sessions: HashSet<String>,
    opened: usize,
    /// As the reference implementation does, a session that it does not know is an error in words.
    in_words: bool,
    plan: Vec<Plan>,
    /// Calls that arrived, and those that had their effect.
    arrived: usize,
    done: usize,
    /// Requests to where a redirect would lead.
    elsewhere: usize,
}

impl Server {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self { at: listener.local_addr().unwrap(), shared: Arc::default() };
        let router = Router::new()
            .route("/mcp", post(message).get(async || StatusCode::METHOD_NOT_ALLOWED).delete(async || StatusCode::OK))
            .route("/elsewhere", get(elsewhere).post(elsewhere))
            .with_state(server.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        server
    }

    fn plan(&self, plan: &[Plan]) {
        self.shared.lock().unwrap().plan = plan.to_vec();
    }

    /// As a restart does.
    fn forget(&self) {
        self.shared.lock().unwrap().sessions.clear();
    }

    fn counts(&self) -> (usize, usize) {
        let shared = self.shared.lock().unwrap();
        (shared.arrived, shared.done)
    }
}

async fn elsewhere(State(server): State<Server>) -> StatusCode {
    server.shared.lock().unwrap().elsewhere += 1;
    StatusCode::OK
}

async fn message(State(server): State<Server>, headers: HeaderMap, Json(asked): Json<Value>) -> Response {
    let id = asked["id"].clone();
    let answer = |result: Value| Json(json!({"jsonrpc": "2.0", "id": id, "result": result})).into_response();
    let session = headers.get(SESSION).map(|session| session.to_str().unwrap().to_owned());
    if asked["method"] == "initialize" {
        let mut shared = server.shared.lock().unwrap();
        shared.opened += 1;
        let session = format!("session-{}", shared.opened);
        shared.sessions.insert(session.clone());
        let version = &asked["params"]["protocolVersion"];
        let offers = json!({"tools": {}});
        let info = json!({"name": "net", "version": "1"});
        let mut answer = answer(json!({"protocolVersion": version, "capabilities": offers, "serverInfo": info}));
        answer.headers_mut().insert(SESSION, session.parse().unwrap());
        return answer;
    }
    {
        let shared = server.shared.lock().unwrap();
        if !session.is_some_and(|session| shared.sessions.contains(&session)) {
            let words = "Bad Request: No valid session ID provided";
            let error = json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32000, "message": words}});
            let status = if shared.in_words { StatusCode::BAD_REQUEST } else { StatusCode::NOT_FOUND };
            return (status, Json(error)).into_response();
        }
    }
    match asked["method"].as_str().unwrap_or_default() {
        "tools/list" => {
            let tool = |name: &str| json!({"name": name, "inputSchema": {"type": "object"}});
            answer(json!({"tools": [tool("look"), tool("do"), tool("wait")]}))
        }
        "tools/call" => {
            let plan = {
                let mut shared = server.shared.lock().unwrap();
                shared.arrived += 1;
                let plan = (!shared.plan.is_empty()).then(|| shared.plan.remove(0));
                shared.done += usize::from(plan.is_none());
                plan
            };
            match plan {
                None => answer(json!({"content": [{"type": "text", "text": "done"}]})),
                Some(plan) => badly(plan),
            }
        }
        _ => StatusCode::ACCEPTED.into_response(),
    }
}

fn badly(plan: Plan) -> Response {
    let json = [(header::CONTENT_TYPE, "application/json")];
    let sse = [(header::CONTENT_TYPE, "text/event-stream")];
    match plan {
        Plan::Status(status, more) => {
            let mut response = StatusCode::from_u16(status).unwrap().into_response();
            if let Some((name, value)) = more {
                response.headers_mut().insert(name, value.parse().unwrap());
            }
            response
        }
        Plan::Break => {
            let broken = std::io::Error::other("the cable is cut");
            let pieces = [Ok(Bytes::from_static(b"{\"jsonrpc\": \"2.0\", ")), Err(broken)];
            (json, Body::from_stream(stream::iter(pieces))).into_response()
        }
        Plan::Hang => (sse, Body::from_stream(stream::pending::<Result<Bytes, Infallible>>())).into_response(),
        Plan::Drip => {
            let drops = stream::unfold((), |()| async {
                tokio::time::sleep(Duration::from_millis(20)).await;
                Some((Ok::<_, Infallible>(Bytes::from_static(b": still here\n\n")), ()))
            });
            (sse, Body::from_stream(drops)).into_response()
        }
        Plan::Flood => {
            let flood = stream::repeat_with(|| Ok::<_, Infallible>(Bytes::from_static(&[b' '; 4096])));
            (json, Body::from_stream(flood)).into_response()
        }
    }
}

/// A house with such a server, called `net`: `look` reads, of `do` nothing is known, nor of `wait`, which is soon given up.
struct Bench {
    house: House,
    server: Server,
    executor: Running,
}

impl Bench {
    async fn new() -> Self {
        let (house, server) = (House::new(&["net.*"], &[], "{}").await, Server::start().await);
        std::fs::create_dir_all(house.path("agents/servers")).unwrap();
        let file = json!({
            "name": "net",
            "transport": {"http": {"url": format!("http://{}/mcp", server.at), "allow_private": true}},
            "tools": {"look": {"effect": "read", "idempotent": true}, "wait": {"timeout": "2s"}},
            "timeouts": {"call": "30s"},
            "limits": {"message_bytes": 100_000},
        });
        std::fs::write(house.path("agents/servers/net.yaml"), file.to_string()).unwrap();
        let executor = house.executor();
        Self { house, server, executor }
    }

    /// Calls a tool and gives how it ended, its code, and what the model is shown.
    async fn result(&self, name: &str) -> (&'static str, String, Block) {
        let call = desk::request(&desk::found(&self.house, name).await, json!({}), Trust::Operator);
        let call_id = call.call_id;
        let run = self.house.run(vec![call]).await;
        self.house.while_time_is_kept(run, self.house.end_of(run, call_id)).await
    }

    async fn close(self) {
        self.house.close(vec![self.executor]).await;
    }
}

#[tokio::test]
async fn a_server_that_was_restarted_is_used_again_and_nothing_is_done_twice() {
    let bench = Bench::new().await;
    assert_eq!(bench.result("net.do").await.0, "tool.completed");
    // By the protocol: it says that it did nothing, so the call is made again.
    bench.server.forget();
    assert_eq!(bench.result("net.do").await.0, "tool.completed");
    assert_eq!(bench.server.counts(), (2, 2));
    // By the reference implementation: the same in words, in an error that names no request.
    bench.server.shared.lock().unwrap().in_words = true;
    bench.server.forget();
    assert_eq!(bench.result("net.do").await.0, "tool.completed");
    bench.server.forget();
    assert_eq!(bench.result("net.look").await.0, "tool.completed");
    assert_eq!(bench.server.counts(), (4, 4));
    bench.close().await;
}

#[tokio::test]
async fn what_passes_is_tried_again_as_late_as_the_server_asks() {
    let bench = Bench::new().await;
    let busy = Plan::Status(429, Some(("retry-after", "1")));
    bench.server.plan(&[busy, busy]);
    let began = tokio::time::Instant::now();
    assert_eq!(bench.result("net.do").await.0, "tool.completed");
    assert!(began.elapsed() >= Duration::from_secs(2), "it asked for a second, twice");
    assert_eq!(bench.server.counts(), (3, 1));
    bench.server.plan(&[Plan::Status(500, None), Plan::Break]);
    assert_eq!(bench.result("net.look").await.0, "tool.completed");
    assert_eq!(bench.server.counts(), (6, 2));
    bench.close().await;
}

#[tokio::test]
async fn however_badly_it_answers_the_call_ends_and_is_not_repeated_if_that_could_do_harm() {
    let bench = Bench::new().await;
    for (plan, end) in [
        // It says itself that it failed.
        (Plan::Status(500, None), ("tool.failed", "http_status")),
        // Nobody knows.
        (Plan::Break, ("tool.reconciled", "unknown")),
        (Plan::Hang, ("tool.reconciled", "unknown")),
        (Plan::Drip, ("tool.reconciled", "unknown")),
        (Plan::Flood, ("tool.reconciled", "unknown")),
        (Plan::Status(302, Some(("location", "/elsewhere"))), ("tool.reconciled", "unknown")),
    ] {
        let before = bench.server.counts().0;
        bench.server.plan(&[plan]);
        let tool = if matches!(plan, Plan::Hang | Plan::Drip) { "net.wait" } else { "net.do" };
        let (have, code, block) = bench.result(tool).await;
        assert_eq!((have, code.as_str()), end, "{plan:?}: {}", block.text);
        assert_eq!(bench.server.counts().0, before + 1, "{plan:?}");
    }
    assert_eq!(bench.server.shared.lock().unwrap().elsewhere, 0, "where it points to is not looked at");
    assert_eq!(bench.result("net.do").await.0, "tool.completed", "and it is used again");
    bench.close().await;
}
