//! Files that the services read at their start, and where traces go.

use std::time::Duration;

use engine::ToolCatalog;
use service::Common;
use tokio::net::TcpStream;

use super::{Check, State};
use crate::commands::agents;

/// How long a collector of traces may take to answer.
const COLLECTOR_WITHIN: Duration = Duration::from_secs(3);

/// Looks at policies, tools and agents, where this shell sees them.
pub fn look(common: &Common) -> Vec<Check> {
    vec![policies(common), tools(common), agent_files(common)]
}

fn policies(common: &Common) -> Check {
    let dir = &common.policies_dir;
    if !dir.is_dir() {
        let words = format!("{} is not here: the shipped ones are in force", dir.display());
        return Check::new("policies", State::Unseen, words);
    }
    match policy::Policies::load(dir) {
        Ok(policies) => Check::ok("policies", format!("{} in {}", policies.ids().len(), dir.display())),
        Err(error) => Check::wrong(
            "policies",
            error.to_string().replace('\n', "; "),
            "mend them: until then the services keep those before, and don't start anew",
        ),
    }
}

fn tools(common: &Common) -> Check {
    let dir = &common.agents_dir;
    if !dir.is_dir() {
        return Check::new("tools", State::Unseen, format!("{} is not here", dir.display()));
    }
    match ToolCatalog::load(dir) {
        Ok(tools) => {
            let servers = tools.servers().all().count();
            Check::ok("tools", format!("{} can be had, and those of {servers} MCP servers", tools.all().len()))
        }
        Err(error) => Check::wrong("tools", error.to_string(), "mend the file: the tool-executor does not start"),
    }
}

fn agent_files(common: &Common) -> Check {
    let dir = common.agents_dir.join("agents");
    if !dir.is_dir() {
        return Check::new("agent files", State::Unseen, format!("{} is not here", dir.display()));
    }
    match agents::all() {
        Ok(agents) => Check::ok("agent files", format!("{} can be read", agents.len())),
        Err(error) => Check::wrong("agent files", error.to_string(), "mend it: `esc agents apply` refuses it as it is"),
    }
}

/// Whether something listens where traces are to go; nothing if they go nowhere.
pub async fn collector(common: &Common) -> Option<Check> {
    let endpoint = common.otlp_endpoint.as_str();
    if endpoint.is_empty() {
        return None;
    }
    let url: Option<reqwest::Url> = endpoint.parse().ok();
    let Some((host, port)) = url.and_then(|url| Some((url.host_str()?.to_owned(), url.port_or_known_default()?)))
    else {
        let remedy = "such as ESC_OTLP_ENDPOINT=http://127.0.0.1:4317";
        return Some(Check::wrong("traces", format!("`{endpoint}` is not an address"), remedy));
    };
    let connecting = TcpStream::connect((host.trim_matches(['[', ']']), port));
    Some(match tokio::time::timeout(COLLECTOR_WITHIN, connecting).await {
        Ok(Ok(_)) => Check::ok("traces", format!("something listens at {endpoint}")),
        Ok(Err(error)) => silent(endpoint, &error.to_string()),
        Err(_) => silent(endpoint, "no answer"),
    })
}

fn silent(endpoint: &str, why: &str) -> Check {
    let remedy = "start the collector, or unset ESC_OTLP_ENDPOINT: spans are dropped meanwhile, all else goes on";
    Check { remedy: Some(remedy.to_owned()), ..Check::new("traces", State::Unreachable, format!("{endpoint}: {why}")) }
}
