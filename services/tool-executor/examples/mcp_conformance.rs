//! The client that the MCP conformance suite drives: the product's own connection, called as the suite wants it.
//!
//! The address of the suite's server is the last argument; `MCP_CONFORMANCE_SCENARIO` names the scenario and
//! `MCP_CONFORMANCE_CONTEXT` may hold what was agreed on beforehand. `infra/tests/test_mcp.py` runs it.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use engine::McpServer;
use futures::future::BoxFuture;
use reqwest::header::LOCATION;
use serde_json::{Map, Value, json};
use tool_executor::mcp::{Answer, Caller, Connection, Form, Means, OpenError, Progress, login};

/// Logins that are tried before we give up.
const MAX_LOGINS: usize = 3;
/// Where the suite's browser is sent back to; nobody listens there.
const REDIRECT: &str = "http://127.0.0.1:9/callback";
/// The document by which the suite knows clients that have one.
const METADATA_URL: &str = "https://conformance-test.local/client-metadata.json";

/// Answers with what the form itself proposes.
struct Obliging;

impl Caller for Obliging {
    fn progress(&self, _: Progress) {}

    fn answer(&self, form: Form) -> BoxFuture<'_, Answer> {
        Box::pin(std::future::ready(Answer::Given(form.defaults())))
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let Some(url) = std::env::args().next_back() else { return ExitCode::from(64) };
    let scenario = std::env::var("MCP_CONFORMANCE_SCENARIO").unwrap_or_default();
    let context: Value = std::env::var("MCP_CONFORMANCE_CONTEXT")
        .ok()
        .and_then(|context| serde_json::from_str(&context).ok())
        .unwrap_or_default();
    let folder = std::env::temp_dir().join(format!("mcp-conformance-{}", std::process::id()));
    let done = play(&url, &scenario, &context, &folder).await;
    // It may not have been needed.
    let _ = std::fs::remove_dir_all(&folder);
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{scenario}: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn play(url: &str, scenario: &str, context: &Value, folder: &Path) -> Result<(), OpenError> {
    let server = declared(url, scenario, context);
    let secret = context["client_secret"].as_str().map(|secret| ("ESC_SECRET_CLIENT".to_owned(), secret.to_owned()));
    let means = Means::standalone(secret, folder.join("tokens"), folder.join("servers"));
    let mut logins = 0;
    loop {
        let connection = match Connection::open(&server, &means, "default").await {
            Ok(connection) => connection,
            Err(error) => match &error.challenge {
                Some(challenge) if logins < MAX_LOGINS => {
                    logins += 1;
                    login(&server, means.tokens(), Some(challenge), REDIRECT, browse).await?;
                    continue;
                }
                _ => return Err(error),
            },
        };
        let called = call_all(&connection).await;
        connection.close().await;
        match (called, connection.challenge()) {
            (Err(_), Some(challenge)) if logins < MAX_LOGINS => {
                logins += 1;
                login(&server, means.tokens(), Some(&challenge), REDIRECT, browse).await?;
            }
            (called, _) => return called,
        }
    }
}

fn declared(url: &str, scenario: &str, context: &Value) -> Arc<McpServer> {
    let mut http = json!({"url": url, "allow_private": true});
    if scenario.starts_with("auth/") {
        http["oauth"] = json!({"client_metadata_url": METADATA_URL});
        if let Some(client_id) = context["client_id"].as_str() {
            http["oauth"]["client_id"] = client_id.into();
            http["oauth"]["client_secret"] = "secret:CLIENT".into();
        }
    }
    // JSON is YAML too.
    let file = json!({"name": "suite", "transport": {"http": http}}).to_string();
    Arc::new(McpServer::parse(&file).expect("a server file"))
}

/// Calls every tool once, with arguments that fit.
async fn call_all(connection: &Connection) -> Result<(), OpenError> {
    for tool in connection.list().await? {
        let properties = tool.input_schema.get("properties").and_then(Value::as_object).cloned().unwrap_or_default();
        let value = |schema: &Value| match schema["type"].as_str() {
            Some("number" | "integer") => json!(5),
            Some("boolean") => json!(true),
            _ => json!("test"),
        };
        let arguments: Map<_, _> = properties.iter().map(|(name, schema)| (name.clone(), value(schema))).collect();
        connection.call(&tool.name, arguments, Arc::new(Obliging)).await?;
    }
    Ok(())
}

/// The suite agrees at once: it sends the browser straight back.
async fn browse(url: String) -> Result<String, OpenError> {
    let failed = |words: String| OpenError { code: "browser", words, again: None, challenge: None };
    let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).no_proxy().build();
    let client = client.map_err(|error| failed(error.to_string()))?;
    let answer = client.get(&url).send().await.map_err(|error| failed(error.to_string()))?;
    let back = answer.headers().get(LOCATION).and_then(|location| location.to_str().ok());
    back.map(str::to_owned).ok_or_else(|| failed(format!("`{url}` answered {} and leads nowhere", answer.status())))
}
