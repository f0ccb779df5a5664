//! The stack under load, as its users reach it: the HTTP API, and committed events on NATS.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bus::{Bus, BusOptions, Message, Subject};
use futures::StreamExt;
use kernel::Timestamp;
use serde_json::{Value, json};
use tokio::sync::{Mutex, mpsc};

/// What can go wrong; for people.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// A committed event that a driver waits for.
#[derive(Debug)]
pub struct Seen {
    /// The run that it happened to.
    pub run: String,
    /// Such as `run.completed`.
    pub event_type: String,
    /// When it was decided.
    pub at: Timestamp,
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
    bus: Bus,
    routes: Routes,
}

impl Target {
    /// Connects to the stack that the environment names, to hear of events of these types.
    pub async fn from_env(wanted: &[&str]) -> Result<Self, Error> {
        let url = variable("ESC_URL")?;
        let token = variable("ESC_TOKEN")?;
        let bus = Bus::connect(BusOptions::new(variable("ESC_NATS_URL")?, "loadtest")).await?;
        let http = reqwest::Client::builder().timeout(Duration::from_secs(60)).build()?;
        let routes = Routes::default();
        for event_type in wanted {
            let subject = format!("evt.{event_type}.default.*");
            tokio::spawn(route(bus.subscribe(&subject).await?, Arc::clone(&routes)));
        }
        bus.flush().await?;
        Ok(Self { http, url, token, bus, routes })
    }

    /// All events of a type from now on, of whatever run.
    pub async fn subscribe(&self, event_type: &str) -> Result<mpsc::UnboundedReceiver<Seen>, Error> {
        let mut events = self.bus.subscribe(&format!("evt.{event_type}.default.*")).await?;
        self.bus.flush().await?;
        let (send, receive) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(message) = events.next().await {
                if seen(&message).is_some_and(|seen| send.send(seen).is_err()) {
                    break;
                }
            }
        });
        Ok(receive)
    }

    /// Starts a run and listens to it. What it says before the answer tells its id is not heard: [`Target::events`] has it.
    pub async fn start(&self, agent: &str, input: &str) -> Result<(String, mpsc::UnboundedReceiver<Seen>), Error> {
        let answer = self.post("/v1/runs", &json!({ "agent": agent, "input": input })).await?;
        let run = answer["run_id"].as_str().ok_or("the answer has no run_id")?.to_owned();
        let events = self.listen(&run).await;
        Ok((run, events))
    }

    /// What a run says from now on.
    pub async fn listen(&self, run: &str) -> mpsc::UnboundedReceiver<Seen> {
        let (send, receive) = mpsc::unbounded_channel();
        self.routes.lock().await.insert(run.to_owned(), send);
        receive
    }

    /// Stops listening to a run.
    pub async fn forget(&self, run: &str) {
        self.routes.lock().await.remove(run);
    }

    /// What a run has said so far.
    pub async fn events(&self, run: &str) -> Result<Vec<Seen>, Error> {
        let page = self.get(&format!("/v1/runs/{run}/events?limit=1000")).await?;
        let events = page["items"].as_array().cloned().unwrap_or_default();
        events
            .into_iter()
            .map(|event| {
                Ok(Seen {
                    run: run.to_owned(),
                    event_type: event["type"].as_str().unwrap_or_default().to_owned(),
                    at: serde_json::from_value(event["at"].clone())?,
                    data: event["data"].clone(),
                })
            })
            .collect()
    }

    /// All that a run has said, however much it is.
    pub async fn all_events(&self, run: &str) -> Result<Vec<Seen>, Error> {
        let (mut all, mut after) = (Vec::new(), 0);
        loop {
            let page = self.get(&format!("/v1/runs/{run}/events?limit=1000&after={after}")).await?;
            let items = page["items"].as_array().cloned().unwrap_or_default();
            let Some(last) = items.last().and_then(|event| event["seq"].as_u64()) else { return Ok(all) };
            after = last;
            for event in items {
                all.push(Seen {
                    run: run.to_owned(),
                    event_type: event["type"].as_str().unwrap_or_default().to_owned(),
                    at: serde_json::from_value(event["at"].clone())?,
                    data: event["data"].clone(),
                });
            }
        }
    }

    /// Opens the event stream of a run behind event `last`, or from now on.
    pub async fn stream(
        &self,
        http: &reqwest::Client,
        run: &str,
        last: Option<u64>,
    ) -> Result<reqwest::Response, Error> {
        let request = http.get(format!("{}/v1/runs/{run}/stream", self.url)).bearer_auth(&self.token);
        let request = match last {
            Some(last) => request.header("last-event-id", last.to_string()),
            None => request,
        };
        Ok(request.send().await?.error_for_status()?)
    }

    /// Puts an agent definition in.
    pub async fn put_agent(&self, name: &str, yaml: impl Into<reqwest::Body>) -> Result<(), Error> {
        let request = self.http.put(format!("{}/v1/agents/{name}", self.url)).bearer_auth(&self.token).body(yaml);
        answer(request.header("content-type", "application/yaml").send().await?).await.map(drop)
    }

    /// Sends JSON that replaces what is there.
    pub async fn put(&self, path: &str, body: &Value) -> Result<Value, Error> {
        let request = self.http.put(format!("{}{path}", self.url)).bearer_auth(&self.token).json(body);
        answer(request.send().await?).await
    }

    /// Sends JSON.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, Error> {
        let request = self.http.post(format!("{}{path}", self.url)).bearer_auth(&self.token).json(body);
        answer(request.send().await?).await
    }

    /// Reads JSON.
    pub async fn get(&self, path: &str) -> Result<Value, Error> {
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
        let Ok(Subject::Event { run, .. }) = Subject::parse(&message.subject) else { continue };
        let listener = routes.lock().await.get(&run).cloned();
        if let Some(listener) = listener
            && let Some(seen) = seen(&message)
        {
            // The driver may have given up on the run.
            let _ = listener.send(seen);
        }
    }
}

fn seen(message: &Message) -> Option<Seen> {
    let Ok(Subject::Event { entity, verb, run, .. }) = Subject::parse(&message.subject) else { return None };
    Some(Seen {
        run,
        event_type: format!("{entity}.{verb}"),
        at: message.headers.get("ce-time")?.parse().ok()?,
        data: serde_json::from_slice(&message.payload).unwrap_or(Value::Null),
    })
}

fn variable(name: &str) -> Result<String, Error> {
    std::env::var(name).map_err(|_| format!("{name} is not set: source .local/env, or use loadtest/run").into())
}
