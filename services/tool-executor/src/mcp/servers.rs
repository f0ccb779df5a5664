//! The connections of this executor: one for each tenant and server, opened when it is needed, opened again after it broke
//! (at growing intervals), closed when nobody uses it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use engine::{Engine, McpServer, McpTool};
use kernel::TenantId;
use kernel::state::SCHEMA_CHANGED;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::connection::Connection;
use super::error::OpenError;
use super::means::Means;
use super::{declare, stale};
use crate::outcome::{Happened, ToolError};

/// A connection that lived this long was sound.
const SOUND: Duration = Duration::from_secs(60);
/// The longest pause before a server is started once more.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How often it is looked whether connections are still used.
const TIDY_EVERY: Duration = Duration::from_secs(2);
/// How long changes are gathered before a list is read again, at first and if they never stop.
const GATHER: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(30));
/// A list that stood this long is calm.
const CALM: Duration = Duration::from_secs(60);
/// Whose the connection is that is there only to see what a server offers.
const NOBODY: &str = "_";

/// The connections. Cheap to clone.
#[derive(Clone)]
pub(super) struct Servers {
    means: Means,
    engine: Engine,
    slots: Arc<Mutex<Slots>>,
    room: Arc<Semaphore>,
}

/// By tenant and server.
type Slots = HashMap<(String, String), Arc<Slot>>;

/// Where a tenant's connection to a server is, or will be.
#[derive(Default)]
struct Slot {
    state: tokio::sync::Mutex<State>,
}

#[derive(Default)]
struct State {
    live: Option<Arc<Live>>,
    /// Failures in a row.
    failures: u32,
    not_before: Option<Instant>,
}

/// A connection that is there, and what its server offers.
pub(super) struct Live {
    pub connection: Connection,
    server: Arc<McpServer>,
    engine: Engine,
    /// Whose it is; nobody's if it is there to see what there is.
    tenant: Option<TenantId>,
    /// Digests by name.
    listed: RwLock<HashMap<String, String>>,
    listing: tokio::sync::Mutex<()>,
    used: Mutex<Instant>,
    calls: Semaphore,
    _room: OwnedSemaphorePermit,
}

impl Servers {
    /// At most `most` connections at once.
    pub fn new(means: Means, engine: Engine, most: usize) -> Self {
        Self { means, engine, slots: Arc::default(), room: Arc::new(Semaphore::new(most.max(1))) }
    }

    /// A tenant's connection to a server, opened if there is none.
    pub async fn of(&self, tenant: &TenantId, server: &Arc<McpServer>) -> Result<Arc<Live>, OpenError> {
        self.connected(Some(tenant), server).await
    }

    /// Sees what a server offers, so that it can be offered.
    pub async fn discover(&self, server: &Arc<McpServer>) -> Result<(), OpenError> {
        self.connected(None, server).await.map(drop)
    }

    async fn connected(&self, of: Option<&TenantId>, server: &Arc<McpServer>) -> Result<Arc<Live>, OpenError> {
        let tenant = of.map_or(NOBODY, TenantId::as_str);
        let slot = self.slots().entry((tenant.to_owned(), server.name.clone())).or_default().clone();
        let mut state = slot.state.lock().await;
        if let Some(live) = &state.live {
            if live.connection.is_alive() {
                live.touch();
                return Ok(live.clone());
            }
            let failures = if live.connection.age() > SOUND { 1 } else { state.failures + 1 };
            state.fail(failures);
            state.live = None;
            tracing::warn!(server = server.name, tenant, failures, "an MCP server has gone away");
            metrics::counter!("tool_executor_mcp_deaths_total", "server" => server.name.clone()).increment(1);
        }
        if let Some(wait) = state.pause() {
            let words = format!("it failed {} times in a row; it is tried again in {wait:?}", state.failures);
            return Err(OpenError { again: Some(wait), ..OpenError::unreachable(words) });
        }
        let opened = self.open(of, server).await;
        match &opened {
            Ok(live) => state.live = Some(live.clone()),
            Err(error) => {
                tracing::warn!(server = server.name, tenant, code = error.code, %error, "an MCP server can't be used");
                if error.again.is_some() && error.code != "busy" {
                    let failures = state.failures + 1;
                    state.fail(failures);
                }
            }
        }
        opened
    }

    async fn open(&self, of: Option<&TenantId>, server: &Arc<McpServer>) -> Result<Arc<Live>, OpenError> {
        let tenant = of.map_or(NOBODY, TenantId::as_str);
        let room = match self.room.clone().try_acquire_owned() {
            Ok(room) => room,
            Err(_) => {
                self.make_room().await;
                let busy = |_| OpenError {
                    code: "busy",
                    again: Some(Duration::from_secs(1)),
                    ..OpenError::unreachable("as many MCP servers as may are in use here")
                };
                self.room.clone().try_acquire_owned().map_err(busy)?
            }
        };
        let connection = Connection::open(server, &self.means, tenant).await?;
        let live = Arc::new(Live {
            connection,
            server: server.clone(),
            engine: self.engine.clone(),
            tenant: of.cloned(),
            listed: RwLock::default(),
            listing: tokio::sync::Mutex::default(),
            used: Mutex::new(Instant::now()),
            calls: Semaphore::new(server.limits.concurrent),
            _room: room,
        });
        if let Err(error) = live.list().await {
            live.connection.close().await;
            return Err(OpenError {
                again: error.again,
                ..OpenError::unreachable(format!("its tools can't be listed: {error}"))
            });
        }
        tokio::spawn(follow(live.clone()));
        tracing::info!(server = server.name, tenant, "an MCP server is in use");
        Ok(live)
    }

    /// Closes the connection that has been idle for the longest.
    async fn make_room(&self) {
        let mut idle = Vec::new();
        for slot in self.all() {
            if let Ok(state) = slot.state.try_lock()
                && let Some(live) = state.live.as_ref().filter(|live| live.connection.in_flight() == 0)
            {
                idle.push((live.unused_for(), slot.clone()));
            }
        }
        let Some((_, slot)) = idle.into_iter().max_by_key(|(unused, _)| *unused) else { return };
        let live = slot.state.try_lock().ok().and_then(|mut state| state.live.take());
        if let Some(live) = live {
            live.connection.close().await;
        }
    }

    /// Closes what nobody uses, now and then.
    pub async fn tidy(self) {
        let mut every = tokio::time::interval(TIDY_EVERY);
        every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            every.tick().await;
            for slot in self.all() {
                let Ok(mut state) = slot.state.try_lock() else { continue };
                let is_idle = |live: &mut Arc<Live>| {
                    let unused = live.unused_for() >= live.server.timeouts.idle.std();
                    // One that died by itself is noticed by whoever needs it next, who counts it.
                    unused && live.connection.in_flight() == 0 && live.connection.is_alive()
                };
                if let Some(live) = state.live.take_if(is_idle) {
                    tracing::info!(server = live.server.name, "an MCP server is not used any more and is stopped");
                    drop(state);
                    live.connection.close().await;
                }
            }
        }
    }

    /// Closes everything.
    pub async fn close(&self) {
        let closing = self.all().into_iter().map(|slot| async move {
            let live = slot.state.lock().await.live.take();
            if let Some(live) = live {
                live.connection.close().await;
            }
        });
        futures::future::join_all(closing).await;
    }

    fn all(&self) -> Vec<Arc<Slot>> {
        self.slots().values().cloned().collect()
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn fail(&mut self, failures: u32) {
        self.failures = failures;
        self.not_before = pause_after(failures).map(|pause| Instant::now() + pause);
    }

    fn pause(&self) -> Option<Duration> {
        let left = self.not_before?.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }
}

/// Once is an accident; then at growing intervals.
fn pause_after(failures: u32) -> Option<Duration> {
    let seconds = 1_u64.checked_shl(failures.checked_sub(2)?).unwrap_or(u64::MAX);
    Some(Duration::from_secs(seconds).min(LONGEST_PAUSE))
}

/// Reads the list again whenever the server says that it has changed.
async fn follow(live: Arc<Live>) {
    let mut gather = GATHER.0;
    loop {
        let since = Instant::now();
        if !live.connection.changed().await {
            return;
        }
        // A server that changes its mind all the time is heard less and less; a call looks for itself anyway.
        gather = if since.elapsed() >= CALM { GATHER.0 } else { (gather * 2).min(GATHER.1) };
        tokio::select! {
            () = tokio::time::sleep(gather) => {}
            () = live.connection.closed() => return,
        }
        if let Err(error) = live.list().await {
            tracing::warn!(server = live.server.name, %error, "the changed tools of an MCP server can't be listed");
        }
    }
}

impl Live {
    /// Reads what the server offers, and lets everybody know.
    async fn list(&self) -> Result<(), ToolError> {
        let _alone = self.listing.lock().await;
        if !self.connection.is_stale() {
            return Ok(());
        }
        let listed = self.connection.tools().await?;
        let (resources, prompts) = self.connection.offers();
        let tools = declare::tools(&self.server, &listed, resources, prompts);
        let change = self.engine.mcp().record(&self.server.name, &tools).await.map_err(|error| {
            ToolError::transient("store", format!("its tools can't be recorded: {error}"), Happened::No)
        })?;
        if !change.is_empty() {
            let server = &self.server.name;
            tracing::info!(server, changed = ?change.changed, gone = ?change.gone, "the tools of an MCP server have changed");
        }
        let digests: HashMap<_, _> =
            tools.into_iter().map(|McpTool { spec, digest }| (spec.name.clone(), digest)).collect();
        if let Some(tenant) = &self.tenant
            && let Err(error) = stale::withdraw(&self.engine, tenant, &self.server.name, &digests).await
        {
            tracing::warn!(server = self.server.name, %error, "questions about changed tools may stay open");
        }
        *self.listed.write().unwrap_or_else(PoisonError::into_inner) = digests;
        Ok(())
    }

    /// Whether a tool is still what it was when it was offered.
    pub async fn still(&self, name: &str, digest: &str) -> Result<(), ToolError> {
        if self.connection.is_stale() {
            self.list().await?;
        }
        let same = {
            let listed = self.listed.read().unwrap_or_else(PoisonError::into_inner);
            listed.get(name).map(|now| now == digest)
        };
        match same {
            Some(true) => Ok(()),
            Some(false) => Err(ToolError::final_(SCHEMA_CHANGED, changed(name))),
            None => Err(ToolError::final_(SCHEMA_CHANGED, gone(name))),
        }
    }

    /// Waits for a place among the calls that the server may have at once.
    pub async fn place(&self, within: Duration) -> Result<tokio::sync::SemaphorePermit<'_>, ToolError> {
        let busy = || ToolError::transient("busy", "the server has as many calls as it may", Happened::No);
        let place = tokio::time::timeout(within, self.calls.acquire()).await.map_err(|_| busy())?;
        place.map_err(|_| busy())
    }

    /// Whether its questions are put to a person.
    pub fn asks(&self) -> bool {
        self.server.elicitation == engine::Elicitation::Ask
    }

    pub fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn unused_for(&self) -> Duration {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}

/// What a run is told whose tool is not what it was.
pub(super) fn changed(name: &str) -> String {
    format!(
        "`{name}` has changed since you saw it. Nothing was done. You are offered it as it is now: look at it again"
    )
}

/// What a run is told whose tool is gone.
pub(super) fn gone(name: &str) -> String {
    format!("`{name}` is no longer offered by its server. Nothing was done")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_minute() {
        let seconds = |failures| pause_after(failures).map(|pause| pause.as_secs());
        assert_eq!(
            [0, 1, 2, 3, 4, 8, 60, 400].map(seconds),
            [None, None, Some(1), Some(2), Some(4), Some(60), Some(60), Some(60)]
        );
    }
}
