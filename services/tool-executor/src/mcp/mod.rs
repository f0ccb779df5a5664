//! MCP: the tools, resources and prompts of servers that the operator declared.
//!
//! A server's file says how it is reached, how far it is trusted and what its tools may do. The executor finds out what a
//! server offers and records it; the planner offers it from there, and a run holds on to what it was offered until it is told
//! of a change. A call goes to the server only as long as the tool is what the run saw.
//!
//! | to change | open |
//! | --- | --- |
//! | how a server is reached | `stdio.rs`, `http.rs`, `sessions.rs`, `oauth.rs` |
//! | what happens on a connection | `connection.rs`, `flight.rs`; what a server may ask of us: `ours.rs`, `caller.rs` |
//! | when connections come and go | `servers.rs` |
//! | what becomes of a tool's declaration | `declare.rs`, `words.rs`, `labels.rs`, `stale.rs` |
//! | what happens in a call | `call.rs`, `task.rs`, `person.rs` |
//! | what becomes of a result | `content.rs` |

mod call;
mod caller;
mod connection;
mod content;
mod declare;
mod error;
mod flight;
mod http;
mod labels;
mod means;
mod oauth;
mod ours;
mod person;
mod servers;
mod sessions;
mod stale;
mod stdio;
mod task;
mod words;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use engine::{Engine, EngineError, McpCatalogue, McpServers, McpTool};
use kernel::state::SCHEMA_CHANGED;
use kernel::tool::{McpRun, ToolRun, ToolSpec};
use kernel::{CallId, RunId, TenantId, Trust};
use tokio_util::sync::CancellationToken;

use crate::artifacts::ArtifactClient;
use crate::registry::{Refusal, Tool};
use crate::secrets::Secrets;
use servers::Servers;

pub use caller::{Answer, Caller, Form, Progress};
pub use connection::Connection;
pub use error::OpenError;
pub use means::Means;
pub use oauth::{Tokens, login};

/// Tools whose declarations are kept ready.
const MOST_READY: usize = 2048;
/// Pause after a server could not be looked at, at first and at most.
const DISCOVER_AGAIN: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(300));

/// A call to a server, as far as its tool's declaration says.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    /// Which part of which server.
    pub run: McpRun,
    /// How it is called here.
    pub name: String,
    /// Of the declaration that the run was offered.
    pub digest: String,
}

impl Remote {
    /// From a declaration.
    pub fn new(run: &McpRun, spec: &ToolSpec, digest: &str) -> Self {
        Self { run: run.clone(), name: spec.name.clone(), digest: digest.to_owned() }
    }

    /// How far a result may be believed of a server that is trusted so far.
    const fn believed(&self, server: Trust) -> Trust {
        if self.run.open_world { Trust::Untrusted } else { server }
    }
}

/// The MCP servers of this executor. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Mcp {
    inner: Arc<Inner>,
}

struct Inner {
    engine: Engine,
    catalogue: McpCatalogue,
    declared: McpServers,
    servers: Servers,
    artifacts: ArtifactClient,
    secrets: Secrets,
    /// By digest.
    ready: Mutex<HashMap<String, Arc<Tool>>>,
    /// Calls under way, to be cancelled with their runs.
    running: Mutex<HashMap<CallId, (RunId, CancellationToken)>>,
}

impl Mcp {
    /// With the declared servers, at most `most` connections at once.
    pub fn new(
        engine: &Engine,
        declared: McpServers,
        means: Means,
        artifacts: ArtifactClient,
        secrets: Secrets,
        most: usize,
    ) -> Self {
        let catalogue = engine.mcp();
        let servers = Servers::new(means, engine.clone(), most);
        let (ready, running) = Default::default();
        let inner = Inner { engine: engine.clone(), catalogue, declared, servers, artifacts, secrets, ready, running };
        Self { inner: Arc::new(inner) }
    }

    /// The tool of a name, if its declaration is the one that the run was offered, and the tenant may use its server.
    pub async fn find(
        &self,
        tenant: &TenantId,
        name: &str,
        seen: &str,
    ) -> Result<Result<Arc<Tool>, Refusal>, EngineError> {
        let inner = &self.inner;
        let Some(now) = inner.catalogue.now(name).await? else {
            let was_there = inner.catalogue.was_there(name).await?;
            return Ok(Err(if was_there {
                Refusal::new(SCHEMA_CHANGED, servers::gone(name))
            } else {
                Refusal::new("unknown_tool", format!("there is no tool `{}`", words::clean(name, 100)))
            }));
        };
        let ToolRun::Mcp(run) = &now.spec.run else {
            return Ok(Err(Refusal::new("misconfigured", format!("`{name}` is no tool of an MCP server"))));
        };
        if !inner.declared.get(&run.server).is_some_and(|server| server.serves(tenant)) {
            let words = format!("the MCP server `{}` is not there for this run", run.server);
            return Ok(Err(Refusal::new("unknown_tool", words)));
        }
        if now.digest != seen {
            return Ok(Err(Refusal::new(SCHEMA_CHANGED, servers::changed(name))));
        }
        Ok(Ok(self.ready(now)))
    }

    /// The tool that was called by a name, as it was declared then; none if that version is not kept any more.
    pub async fn as_called(&self, name: &str, digest: &str) -> Result<Option<Arc<Tool>>, EngineError> {
        if let Some(tool) = lock(&self.inner.ready).get(digest) {
            return Ok(Some(tool.clone()));
        }
        let version = self.inner.catalogue.version(name, digest).await?;
        Ok(version.map(|version| self.ready(version)))
    }

    fn ready(&self, version: McpTool) -> Arc<Tool> {
        let mut ready = lock(&self.inner.ready);
        if let Some(tool) = ready.get(&version.digest) {
            return tool.clone();
        }
        if ready.len() >= MOST_READY {
            ready.clear();
        }
        let tool = Arc::new(Tool::new(version.spec, version.digest.clone(), &|_| None));
        ready.insert(version.digest, tool.clone());
        tool
    }

    /// Cancels the calls of a run that is ending.
    pub fn cancel_run(&self, run: RunId) {
        for (of, cancelled) in lock(&self.inner.running).values() {
            if *of == run {
                cancelled.cancel();
            }
        }
    }

    /// Looks at what the declared servers offer, each until that was seen once. What is no longer declared is offered no more.
    pub async fn discover(self) {
        let inner = &self.inner;
        self.retire().await;
        let all = inner.declared.all().map(|server| async move {
            let mut pause = DISCOVER_AGAIN.0;
            while let Err(error) = inner.servers.discover(server).await {
                if error.again.is_none() {
                    tracing::error!(server = server.name, %error, "an MCP server can't be used as it is declared");
                    return;
                }
                tokio::time::sleep(pause.max(error.again.unwrap_or_default())).await;
                pause = (pause * 2).min(DISCOVER_AGAIN.1);
            }
        });
        futures::future::join_all(all).await;
    }

    async fn retire(&self) {
        let names: Vec<_> = self.inner.declared.all().map(|server| server.name.as_str()).collect();
        let policy = bus::retry::Policy::exponential(DISCOVER_AGAIN.0, DISCOVER_AGAIN.1);
        let retire = || self.inner.catalogue.retire(&names);
        match bus::retry::when(policy, EngineError::is_transient, retire).await {
            Ok(gone) if gone.is_empty() => {}
            Ok(gone) => {
                tracing::info!(?gone, "tools of MCP servers that are not declared any more are offered no more")
            }
            Err(error) => tracing::error!(%error, "tools of MCP servers that are gone may still be offered"),
        }
    }

    /// Closes what is not used, for as long as this is waited for.
    pub async fn tidy(self) {
        self.inner.servers.clone().tidy().await;
    }

    /// Ends all servers.
    pub async fn close(&self) {
        self.inner.servers.close().await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
