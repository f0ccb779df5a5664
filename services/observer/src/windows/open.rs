//! The windows that are open, as every reader of logs needs them: by tenant, with all their ids in one automaton.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, LazyLock, Mutex, PoisonError},
    time::Duration,
};

use aho_corasick::{AhoCorasick, AhoCorasickBuilder};
use engine::{ActionRow, ActionState, Actions, EngineError};
use kernel::{ActionId, TenantId, Timestamp, action::Action};
use tokio_util::sync::CancellationToken;

use crate::services::watches::{CompiledAction, CompiledWatch, WatchBook};

/// How often it is looked for new windows. What was said meanwhile is looked at again.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// Windows that are looked after at once, of all tenants; further ones wait their turn.
const MOST: u32 = 4096;

/// An open window.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) action: Action,
    /// The ids by which its lines are known, with the trace that was adopted.
    pub(crate) ids: BTreeSet<String>,
    pub(crate) opened_at: Timestamp,
    watch: Option<Arc<CompiledWatch>>,
}

impl Window {
    pub(crate) fn new(row: ActionRow, watches: &[Arc<CompiledWatch>]) -> Self {
        let ids = row.action.ids().into_iter().map(str::to_owned).chain(row.adopted).collect();
        let about = |watch: &&Arc<CompiledWatch>| watch.actions.is_some() && watch.watch.is_about(&row.action.service);
        let watch = watches.iter().find(about).cloned();
        Self { action: row.action, ids, opened_at: row.opened_at, watch }
    }

    pub(crate) fn id(&self) -> ActionId {
        self.action.action_id
    }

    /// What the action leads to, by the first agent that says so.
    pub(crate) fn rule(&self) -> &CompiledAction {
        static NONE: LazyLock<CompiledAction> = LazyLock::new(CompiledAction::default);
        self.watch.as_ref().and_then(|watch| watch.actions.as_ref()).unwrap_or(&NONE)
    }

    /// The agent whose rule that is.
    pub(crate) fn agent(&self) -> Option<&str> {
        self.watch.as_ref().map(|watch| watch.agent.as_str())
    }

    fn is_like(&self, other: &Self) -> bool {
        let same_rule = match (&self.watch, &other.watch) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        };
        same_rule && self.id() == other.id() && self.ids == other.ids
    }
}

/// The open windows of one tenant.
#[derive(Debug, Default)]
pub(crate) struct TenantWindows {
    pub(crate) windows: Vec<Arc<Window>>,
    /// All their ids, and for each the place of its window.
    ids: Option<AhoCorasick>,
    owners: Vec<usize>,
}

impl TenantWindows {
    fn new(windows: Vec<Arc<Window>>) -> Self {
        let all = windows.iter().enumerate().flat_map(|(at, window)| window.ids.iter().map(move |id| (at, id.clone())));
        let (owners, ids): (Vec<usize>, Vec<String>) = all.unzip();
        let built = AhoCorasickBuilder::new().ascii_case_insensitive(true).build(&ids);
        let ids = built.inspect_err(|error| tracing::error!(%error, "the ids of actions can't be looked for")).ok();
        Self { windows, ids, owners }
    }

    /// The windows that a line of this service may belong to: those whose ids stand in it, and those of the service itself.
    pub(crate) fn of_line<'a>(&'a self, service: &'a str, line: &[u8]) -> impl Iterator<Item = &'a Arc<Window>> {
        let mut found: BTreeSet<usize> = BTreeSet::new();
        if let Some(ids) = &self.ids {
            found.extend(found_in(ids, line).into_iter().map(|pattern| self.owners[pattern]));
        }
        let windows = self.windows.iter().enumerate();
        windows
            .filter(move |(at, window)| found.contains(at) || window.action.service == service)
            .map(|(_, window)| window)
    }
}

/// The places of all ids in a line, also of those that overlap.
fn found_in(ids: &AhoCorasick, line: &[u8]) -> Vec<usize> {
    match ids.try_find_overlapping_iter(line) {
        Ok(found) => found.map(|found| found.pattern().as_usize()).collect(),
        Err(_) => ids.find_iter(line).map(|found| found.pattern().as_usize()).collect(),
    }
}

/// All open windows at one time.
#[derive(Debug, Default)]
pub(crate) struct WindowSet {
    tenants: HashMap<TenantId, TenantWindows>,
}

impl WindowSet {
    pub(crate) fn of(&self, tenant: &TenantId) -> Option<&TenantWindows> {
        self.tenants.get(tenant)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Window>> {
        self.tenants.values().flat_map(|tenant| &tenant.windows)
    }

    pub(crate) fn get(&self, tenant: &TenantId, id: ActionId) -> Option<&Arc<Window>> {
        self.of(tenant)?.windows.iter().find(|window| window.id() == id)
    }
}

/// The open windows, kept up to date for all readers of this process. Cheap to clone.
#[derive(Clone)]
pub(crate) struct OpenWindows {
    actions: Actions,
    book: WatchBook,
    current: Arc<Mutex<Arc<WindowSet>>>,
}

impl OpenWindows {
    pub(crate) fn new(actions: Actions, book: WatchBook) -> Self {
        Self { actions, book, current: Arc::default() }
    }

    /// The windows as they were seen last.
    pub(crate) fn current(&self) -> Arc<WindowSet> {
        Arc::clone(&self.lock())
    }

    /// Looks again and again, until told to stop.
    pub(crate) async fn follow(self, stop: CancellationToken) {
        let mut every = tokio::time::interval(LOOK_EVERY);
        every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while stop.run_until_cancelled(every.tick()).await.is_some() {
            if let Err(error) = self.refresh().await {
                tracing::warn!(%error, "can't look for open actions");
            }
        }
    }

    /// Looks which windows are open. A window that has not changed stays the same one.
    pub(crate) async fn refresh(&self) -> Result<Arc<WindowSet>, EngineError> {
        let rows = self.actions.unfinished(MOST).await?;
        let mut tenants: HashMap<TenantId, Vec<ActionRow>> = HashMap::new();
        for row in rows.into_iter().filter(|row| row.state == ActionState::Open) {
            tenants.entry(row.action.tenant.clone()).or_default().push(row);
        }
        let before = self.current();
        let mut same = tenants.len() == before.tenants.len();
        let mut fresh = HashMap::new();
        for (tenant, rows) in tenants {
            let watches = self.book.of(&tenant).await?;
            let count = before.of(&tenant).map_or(0, |known| known.windows.len());
            same &= count == rows.len();
            let windows = rows.into_iter().map(|row| {
                let window = Window::new(row, &watches);
                match before.get(&tenant, window.id()).filter(|known| known.is_like(&window)) {
                    Some(known) => Arc::clone(known),
                    None => {
                        same = false;
                        Arc::new(window)
                    }
                }
            });
            let windows: Vec<_> = windows.collect();
            fresh.insert(tenant, windows);
        }
        if same {
            return Ok(before);
        }
        let tenants = fresh.into_iter().map(|(tenant, windows)| (tenant, TenantWindows::new(windows))).collect();
        let set = Arc::new(WindowSet { tenants });
        metrics::gauge!("observer_open_actions").set(set.all().count() as f64);
        *self.lock() = Arc::clone(&set);
        Ok(set)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Arc<WindowSet>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
