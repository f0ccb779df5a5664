//! A stand-in for the outside: counts what it receives, and misbehaves when told to.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{any, get, post, put};
use axum::{Json, Router};
use serde_json::{Value, json};

#[derive(Clone)]
pub struct Server {
    pub addr: SocketAddr,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    /// Idempotency keys of effects that were asked for, in order.
    asked: Vec<String>,
    /// Bodies of effects that happened.
    done: Vec<Value>,
    /// What to do with the next effects, first first; after that they happen and are answered.
    plan: Vec<Plan>,
    /// Artifacts that were stored: their name and content.
    kept: Vec<(String, String)>,
    /// Jobs that were started: their key, and how they stand.
    jobs: Vec<(String, String)>,
    /// Requests by path.
    seen: Vec<(String, HeaderMap)>,
    /// What to answer at some paths.
    answers: HashMap<String, (StatusCode, String)>,
    /// For how many seconds each of the next requests to a path is told that it is busy.
    busy: HashMap<String, VecDeque<u64>>,
}

/// What becomes of an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// It happens, and no answer ever comes.
    HappenAndHang,
    /// It does not happen, and no answer ever comes.
    Hang,
    /// It does not happen, and 503 is answered.
    Unavailable,
    /// It does not happen, and 429 is answered.
    Busy,
}

impl Server {
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self { addr: listener.local_addr().unwrap(), shared: Arc::default() };
        let router = Router::new()
            .route("/effect", post(effect).get(read_back))
            .route("/jobs", post(start_job))
            .route("/jobs/{id}", get(job).delete(cancel_job))
            .route("/jobs-by-key/{key}", get(job_by_key))
            .route("/flaky/{id}", any(flaky))
            .route("/large", get(async || "x".repeat(40_000)))
            .route("/endless", get(endless))
            .route("/internal/artifacts", put(keep))
            .route("/internal/artifacts/{id}", get(kept))
            .route("/away", get(async || Redirect::temporary("http://example.invalid/")))
            .route("/loop", get(async || Redirect::temporary("/loop")))
            .route("/moved", get(async || Redirect::temporary("/echo")))
            .route("/missing", get(async || (StatusCode::NOT_FOUND, "no such thing")))
            .fallback(echo)
            .with_state(server.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        server
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    pub fn plan(&self, plan: &[Plan]) {
        self.shared.lock().unwrap().plan = plan.to_vec();
    }

    /// Answers every request to a path with this from now on.
    pub fn answer(&self, path: &str, status: u16, body: String) {
        let status = StatusCode::from_u16(status).unwrap();
        self.shared.lock().unwrap().answers.insert(path.to_owned(), (status, body));
    }

    /// Answers the next requests to a path with 429, which asks to wait for so many seconds. What was said so before comes
    /// first.
    pub fn be_busy(&self, path: &str, times: usize, seconds: u64) {
        let mut shared = self.shared.lock().unwrap();
        shared.busy.entry(path.to_owned()).or_default().extend(std::iter::repeat_n(seconds, times));
    }

    pub fn asked(&self) -> Vec<String> {
        self.shared.lock().unwrap().asked.clone()
    }

    pub fn done(&self) -> Vec<Value> {
        self.shared.lock().unwrap().done.clone()
    }

    /// Headers of the requests to a path.
    pub fn seen(&self, path: &str) -> Vec<HeaderMap> {
        let shared = self.shared.lock().unwrap();
        shared.seen.iter().filter(|(seen, _)| seen == path).map(|(_, headers)| headers.clone()).collect()
    }

    /// How each job that was started stands.
    pub fn jobs(&self) -> Vec<String> {
        self.shared.lock().unwrap().jobs.iter().map(|(_, state)| state.clone()).collect()
    }

    /// From now on the job stands so.
    pub fn set_job(&self, id: usize, state: &str) {
        self.shared.lock().unwrap().jobs[id].1 = state.to_owned();
    }

    /// The declaration of a job behind HTTP.
    pub fn job_tool(&self, name: &str, idempotent: bool) -> String {
        format!(
            "name: {name}\ndescription: Runs a job.\nkind: activity\neffect: external\nidempotent: {idempotent}\ntimeout: 1m\n\
             input: {{ type: object, properties: {{ number: {{ type: integer }} }} }}\n\
             run: {{ http: {{ method: POST, url: \"{jobs}\", allow_private: true }} }}\n\
             status: {{ http: {{ method: GET, url: \"{jobs}/{{result.id}}\", allow_private: true }}, state: /state, done: [passed], failed: [failed, cancelled] }}\n\
             cancel: {{ http: {{ method: DELETE, url: \"{jobs}/{{result.id}}\", allow_private: true }} }}\n\
             probe: {{ http: {{ method: GET, url: \"{by_key}/{{idempotency_key}}\", allow_private: true }}, done: /id }}\n",
            jobs = self.url("/jobs"),
            by_key = self.url("/jobs-by-key"),
        )
    }

    fn next(&self) -> Option<Plan> {
        let plan = &mut self.shared.lock().unwrap().plan;
        (!plan.is_empty()).then(|| plan.remove(0))
    }

    /// The declaration of a tool that does the effect.
    pub fn effect_tool(&self, name: &str, timeout: &str, probe: bool) -> String {
        let probe = if probe {
            format!(
                "probe: {{ http: {{ method: GET, url: \"{}\", allow_private: true }}, done: /done }}\n",
                self.url("/effect")
            )
        } else {
            String::new()
        };
        format!(
            "name: {name}\ndescription: Does it.\neffect: external\ntimeout: {timeout}\n\
             input: {{ type: object, properties: {{ number: {{ type: integer }} }}, required: [number] }}\n\
             run: {{ http: {{ method: POST, url: \"{}\", body: {{ number: \"{{number}}\" }}, allow_private: true }} }}\n{probe}",
            self.url("/effect")
        )
    }
}

async fn effect(State(server): State<Server>, headers: HeaderMap, Json(body): Json<Value>) -> Response {
    let plan = server.next();
    {
        let mut shared = server.shared.lock().unwrap();
        shared.asked.push(headers["idempotency-key"].to_str().unwrap().to_owned());
        if matches!(plan, None | Some(Plan::HappenAndHang)) {
            shared.done.push(body);
        }
    }
    match plan {
        None => Json(json!({ "ok": true, "id": format!("effect-{}", server.asked().len()) })).into_response(),
        Some(Plan::Unavailable) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        Some(Plan::Busy) => (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "1")], "later").into_response(),
        Some(Plan::HappenAndHang | Plan::Hang) => std::future::pending().await,
    }
}

/// Starts a job; by plan without an answer.
async fn start_job(State(server): State<Server>, headers: HeaderMap) -> Response {
    let plan = server.next();
    let id = {
        let mut shared = server.shared.lock().unwrap();
        shared.jobs.push((headers["idempotency-key"].to_str().unwrap().to_owned(), "queued".to_owned()));
        shared.jobs.len() - 1
    };
    match plan {
        None => (StatusCode::CREATED, Json(json!({ "id": id }))).into_response(),
        Some(_) => std::future::pending().await,
    }
}

async fn job(State(server): State<Server>, Path(id): Path<usize>) -> Response {
    match server.jobs().get(id) {
        Some(state) => Json(json!({ "id": id, "state": state })).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

async fn cancel_job(State(server): State<Server>, Path(id): Path<usize>) -> StatusCode {
    server.set_job(id, "cancelled");
    StatusCode::NO_CONTENT
}

async fn job_by_key(State(server): State<Server>, Path(key): Path<String>) -> Response {
    let found = server.shared.lock().unwrap().jobs.iter().position(|(known, _)| *known == key);
    found.map_or(StatusCode::NOT_FOUND.into_response(), |id| Json(json!({ "id": id })).into_response())
}

async fn read_back(State(server): State<Server>) -> Json<Value> {
    let done = server.done();
    Json(json!({ "done": !done.is_empty(), "count": done.len() }))
}

/// 503 twice, then well.
async fn flaky(State(server): State<Server>, Path(id): Path<String>, headers: HeaderMap) -> Response {
    let path = format!("/flaky/{id}");
    server.shared.lock().unwrap().seen.push((path.clone(), headers));
    if server.seen(&path).len() <= 2 {
        StatusCode::SERVICE_UNAVAILABLE.into_response()
    } else {
        "at last".into_response()
    }
}

async fn endless() -> Body {
    let chunks = futures::stream::unfold((), |()| async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        Some((Ok::<_, std::convert::Infallible>("more "), ()))
    });
    Body::from_stream(chunks)
}

/// What came, headers included; or what was said to be answered there.
async fn echo(State(server): State<Server>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    server.shared.lock().unwrap().seen.push((path.clone(), request.headers().clone()));
    let busy = server.shared.lock().unwrap().busy.get_mut(&path).and_then(VecDeque::pop_front);
    if let Some(seconds) = busy {
        return (StatusCode::TOO_MANY_REQUESTS, [("retry-after", seconds.to_string())], "later").into_response();
    }
    if let Some(answer) = server.shared.lock().unwrap().answers.get(&path).cloned() {
        return answer.into_response();
    }
    let headers: Value = request
        .headers()
        .iter()
        .map(|(name, value)| (name.to_string(), Value::from(value.to_str().unwrap_or_default())))
        .collect::<serde_json::Map<_, _>>()
        .into();
    Json(json!({ "uri": request.uri().to_string(), "headers": headers })).into_response()
}

/// As the artifact service does it.
async fn keep(State(server): State<Server>, Query(query): Query<HashMap<String, String>>, body: String) -> Json<Value> {
    let run: kernel::RunId = query["run_id"].parse().unwrap();
    let artifact_id = kernel::ArtifactId::derive(run, &query["name"]);
    let answer = json!({
        "artifact_id": artifact_id, "name": query["name"], "version": 1, "digest": "d", "bytes": body.len(),
        "media_type": query["media_type"], "trust": query["trust"],
    });
    server.shared.lock().unwrap().kept.push((artifact_id.to_string(), body));
    Json(answer)
}

async fn kept(
    State(server): State<Server>,
    Path(id): Path<String>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    let shared = server.shared.lock().unwrap();
    let found = shared.kept.iter().find(|(kept, _)| *kept == id).filter(|_| query["tenant"] == "default");
    found.map_or(StatusCode::NOT_FOUND.into_response(), |(_, body)| body.clone().into_response())
}
