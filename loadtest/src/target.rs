//! The stack under load, as its users reach it: the HTTP API, and committed events on NATS.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bus::{Bus, BusOptions, Subject};
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::sync::{Mutex, mpsc};

/// What can go wrong; for people.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// A committed event that a driver waits for.
#[derive(Debug)]
pub struct Seen {
    /// Such as `run.completed`.
    pub event_type: String,
    /// Its content.
    pub data: Value,
}

type Routes = Arc<Mutex<HashMap<String, mpsc::UnboundedSender<Seen>>>>;

/// A stack, and the events of the runs that somebody listens to.
#[derive(Clone)]
pub struct Target {
    http: reqwest::Client,
    url: String,
    token: String,
    routes: Routes,
}

/// The types that drivers wait for.
const WANTED: [&str; 5] = ["approval.requested", "turn.completed", "run.completed", "run.failed", "run.waiting"];

impl Target {
    /// Connects to the stack that the environment names.
    pub async fn from_env() -> Result<Self, Error> {
        let url = variable("ESC_URL")?;
        let token = variable("ESC_TOKEN")?;
        let bus = Bus::connect(BusOptions::new(variable("ESC_NATS_URL")?, "loadtest")).await?;
        let http = reqwest::Client::builder().timeout(Duration::from_secs(60)).build()?;
        let routes = Routes::default();
        for event_type in WANTED {
            let subject = format!("evt.{event_type}.default.*");
            tokio::spawn(route(bus.subscribe(&subject).await?, Arc::clone(&routes)));
        }
        bus.flush().await?;
        Ok(Self { http, url, token, routes })
    }

    /// Starts a run and listens to it. What it says before the answer tells its id is not heard: [`Target::events`] has it.
    pub async fn start(&self, agent: &str, input: &str) -> Result<(String, mpsc::UnboundedReceiver<Seen>), Error> {
        let answer = self.post("/v1/runs", &json!({ "agent": agent, "input": input })).await?;
        let run = answer["run_id"].as_str().ok_or("the answer has no run_id")?.to_owned();
        let (send, receive) = mpsc::unbounded_channel();
        self.routes.lock().await.insert(run.clone(), send);
        Ok((run, receive))
    }

    /// Stops listening to a run.
    pub async fn forget(&self, run: &str) {
        self.routes.lock().await.remove(run);
    }

    /// What a run has said so far, by type and content.
    pub async fn events(&self, run: &str) -> Result<Vec<Seen>, Error> {
        let page = self.get(&format!("/v1/runs/{run}/events?limit=1000")).await?;
        let events = page["items"].as_array().cloned().unwrap_or_default();
        Ok(events
            .into_iter()
            .map(|event| Seen {
                event_type: event["type"].as_str().unwrap_or_default().to_owned(),
                data: event["data"].clone(),
            })
            .collect())
    }

    /// Puts an agent definition in.
    pub async fn put_agent(&self, name: &str, yaml: &'static str) -> Result<(), Error> {
        let request = self.http.put(format!("{}/v1/agents/{name}", self.url)).bearer_auth(&self.token).body(yaml);
        answer(request.header("content-type", "application/yaml").send().await?).await.map(drop)
    }

    /// Sends JSON.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, Error> {
        let request = self.http.post(format!("{}{path}", self.url)).bearer_auth(&self.token).json(body);
        answer(request.send().await?).await
    }

    async fn get(&self, path: &str) -> Result<Value, Error> {
        answer(self.http.get(format!("{}{path}", self.url)).bearer_auth(&self.token).send().await?).await
    }
}

async fn answer(response: reqwest::Response) -> Result<Value, Error> {
    let status = response.status();
    let text = response.text().await?;
    if !status.is_success() {
        return Err(format!("the stack answers {status}: {text}").into());
    }
    Ok(serde_json::from_str(&text).unwrap_or(Value::Null))
}

async fn route(mut events: bus::Subscription, routes: Routes) {
    while let Some(message) = events.next().await {
        let Ok(Subject::Event { entity, verb, run, .. }) = Subject::parse(&message.subject) else { continue };
        let listener = routes.lock().await.get(&run).cloned();
        if let Some(listener) = listener {
            let event_type = format!("{entity}.{verb}");
            let data = serde_json::from_slice(&message.payload).unwrap_or(Value::Null);
            // The driver may have given up on the run.
            let _ = listener.send(Seen { event_type, data });
        }
    }
}

fn variable(name: &str) -> Result<String, Error> {
    std::env::var(name).map_err(|_| format!("{name} is not set: source .local/env, or use loadtest/run").into())
}
