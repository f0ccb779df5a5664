//! Activities: commands that go on by themselves, also without the executor that started them.
//!
//! A command writes to files that its supervisor owns. Whoever holds the call's lease follows them and publishes frames;
//! if that executor is gone, the next one goes on where it stopped. The executor never says that an activity has
//! completed: its exit frame does, and the observer concludes from it.

mod answer;
mod files;
mod follower;
mod group;
mod input;
mod limits;
mod processes;
mod publish;
mod remote;
mod supervisor;
mod tail;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bus::Publisher;
use engine::{Engine, Lease};
use jiff::Timestamp;
use kernel::call::Call;
use kernel::units::later;
use kernel::{CallId, RunId, RunState, TenantId};
use service::Shutdown;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::beside::Held;
use crate::confine::Confinement;
use crate::secrets::Secrets;
use crate::workspace::{Workspace, Workspaces};
use files::{Files, Home, Meta};
use follower::{Follower, Registered};
use processes::Processes;
use tail::Follow;

pub(crate) use answer::{Answer, End, answer, tidy};
pub(crate) use files::Caps;
pub(crate) use group::Groups;
pub use group::NoGroups;
pub(crate) use input::Piece;
pub(crate) use limits::PerProcess;
pub(crate) use remote::{Elsewhere, handle};
pub(crate) use supervisor::ProcessCommand;

/// How long after its time-out an activity of an unreachable machine is taken for lost.
const FOREIGN_MARGIN: Duration = Duration::from_secs(60);

/// The limits on activities.
#[derive(Clone, Copy, Debug)]
pub struct ActivityLimits {
    /// Started by one executor at once.
    pub concurrent: usize,
    /// What a command may use of which nothing else is known.
    pub caps: Caps,
    /// From TERM to KILL.
    pub kill_grace: Duration,
}

/// What is known of an activity from the log.
#[derive(Clone, Debug)]
pub(crate) struct Activity {
    pub tenant: TenantId,
    pub run: RunId,
    pub call: CallId,
    pub tool: String,
    pub agent_digest: String,
    /// When it has to be over.
    pub deadline: Timestamp,
}

impl Activity {
    /// From the state of its run.
    pub fn of(state: &RunState, call: &Call) -> Self {
        let started = call.started_at.unwrap_or(state.updated_at);
        Self {
            tenant: state.tenant.clone(),
            run: state.run_id,
            call: call.request.call_id,
            tool: call.request.tool.clone(),
            agent_digest: state.agent_digest.clone(),
            deadline: later(started, call.request.timeout),
        }
    }
}

/// What came of taking up an activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attached {
    /// It is being followed to its end.
    Following,
    /// Somebody on this machine follows it.
    Held,
    /// Its processes are on another machine, and its time is not over: nothing can be said yet.
    Elsewhere,
}

/// The activities that this executor follows. Cheap to clone.
#[derive(Clone)]
pub struct Activities {
    inner: Arc<Inner>,
}

struct Inner {
    engine: Engine,
    publisher: Publisher,
    workspaces: Workspaces,
    limits: ActivityLimits,
    confinement: Confinement,
    groups: Groups,
    secrets: Secrets,
    shutdown: Shutdown,
    room: Arc<Semaphore>,
    live: Mutex<HashMap<CallId, Live>>,
}

/// An activity that is being followed.
struct Live {
    run: RunId,
    wanted: CancellationToken,
    files: Files,
    caps: Caps,
    /// Told why the command has to end, if it uses more than it may.
    beyond: watch::Sender<Option<&'static str>>,
    /// Whose and about what events call back, and what is rung then.
    callback: Option<(TenantId, String, Arc<Notify>)>,
}

/// Room for one more activity.
#[derive(Debug)]
pub struct Room(#[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit);

/// Keeps a piece of input for a command that takes it and runs; whoever follows it hands it over. Whether there is one.
///
/// # Errors
/// If its files can't be used.
pub(crate) fn send(workspace: &Workspace, call: CallId, piece: &Piece) -> io::Result<bool> {
    let files = Files::new(workspace, call);
    if !files.exist() || !files.takes_input() || files.exit_status().is_some() || files.is_done() {
        return Ok(false);
    }
    input::add(&files, piece)?;
    Ok(true)
}

impl Activities {
    /// None yet.
    #[must_use]
    pub fn new(
        engine: Engine,
        publisher: Publisher,
        workspaces: Workspaces,
        limits: ActivityLimits,
        bounds: (Confinement, Groups),
        secrets: Secrets,
        shutdown: Shutdown,
    ) -> Self {
        let room = Arc::new(Semaphore::new(limits.concurrent));
        let live = Mutex::default();
        let closing = shutdown.closing();
        let (confinement, groups) = bounds;
        let inner = Arc::new(Inner {
            engine,
            publisher,
            workspaces,
            limits,
            confinement,
            groups,
            secrets,
            shutdown,
            room,
            live,
        });
        let watching = watch_use(Arc::downgrade(&inner));
        inner.shutdown.spawn_background(closing.run_until_cancelled_owned(watching));
        Self { inner }
    }

    /// Room for one more, if there is any.
    #[must_use]
    pub fn room(&self) -> Option<Room> {
        self.inner.room.clone().try_acquire_owned().ok().map(Room)
    }

    /// Whether there is room for one more.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.inner.room.available_permits() > 0
    }

    /// Starts the command of a call whose `tool.started` is committed, and follows it as long as the lease is held.
    pub(crate) async fn start(
        &self,
        activity: Activity,
        command: &ProcessCommand,
        traceparent: String,
        lease: Lease,
        held: Held,
        room: Room,
    ) -> io::Result<()> {
        let files = self.files(&activity);
        let meta = Meta { home: Home::here(), traceparent: traceparent.clone(), caps: command.caps };
        files.create(&meta)?;
        let lock = files.lock()?.ok_or_else(|| io::Error::other("somebody follows this activity already"))?;
        let exited = Arc::new(Notify::new());
        let group = self.inner.groups.of(activity.call);
        supervisor::spawn(activity.call, &files.dir(), command, &self.inner.confinement, &group, exited.clone())
            .await?;
        let follow = self.follow(activity, files, &meta, lock, exited);
        self.keep_following(follow, lease, held, Some(room), None);
        Ok(())
    }

    /// Follows an activity that goes on elsewhere, from wherever it was left, as long as the lease is held.
    ///
    /// # Errors
    /// If its files can't be used.
    pub(crate) fn follow_remote(
        &self,
        activity: Activity,
        asks: Elsewhere,
        lease: Lease,
        held: Held,
    ) -> io::Result<Attached> {
        let files = self.files(&activity);
        let meta = match files.meta() {
            Some(meta) => {
                metrics::counter!("tool_executor_reattached_total").increment(1);
                meta
            }
            None => {
                let caps = self.inner.limits.caps;
                let meta = Meta { home: Home::here(), traceparent: asks.traceparent.clone(), caps };
                files.create(&meta)?;
                meta
            }
        };
        let Some(lock) = files.lock()? else { return Ok(Attached::Held) };
        let room = self.room();
        let follow = Follow { remote: true, ..self.follow(activity, files, &meta, lock, Arc::new(Notify::new())) };
        self.keep_following(follow, lease, held, room, Some(asks));
        Ok(Attached::Following)
    }

    /// Takes up an activity that somebody else started and follows it to its end, or says that it is lost.
    ///
    /// # Errors
    /// If its files can't be used.
    pub(crate) fn attach(
        &self,
        activity: Activity,
        traceparent: String,
        lease: Lease,
        held: Held,
    ) -> io::Result<Attached> {
        let files = self.files(&activity);
        let meta = files.meta();
        if let Some(meta) = &meta
            && !can_judge(&meta.home, &files, activity.deadline)
        {
            return Ok(Attached::Elsewhere);
        }
        let (meta, is_new) = match meta {
            Some(meta) => (meta, false),
            None => (Meta { home: Home::here(), traceparent, caps: self.inner.limits.caps }, true),
        };
        if is_new {
            // It never came to run, or its workspace is gone: followed from empty files, its end is that it is lost.
            files.create(&meta)?;
        }
        let Some(lock) = files.lock()? else { return Ok(Attached::Held) };
        tracing::info!(run_id = %activity.run, call = %activity.call, "taking up an activity");
        metrics::counter!("tool_executor_reattached_total").increment(1);
        let room = self.room();
        let follow = self.follow(activity, files, &meta, lock, Arc::new(Notify::new()));
        self.keep_following(follow, lease, held, room, None);
        Ok(Attached::Following)
    }

    /// Ends all activities of a run that this executor follows.
    pub fn cancel_run(&self, run: RunId) {
        for live in self.live().values().filter(|live| live.run == run) {
            live.wanted.cancel();
        }
    }

    /// Ends those of these calls that this executor follows.
    pub fn cancel_calls(&self, calls: &[CallId]) {
        let live = self.live();
        for live in calls.iter().filter_map(|call| live.get(call)) {
            live.wanted.cancel();
        }
    }

    /// An outside event has come about a resource: what goes on elsewhere and is known by it is asked how it stands.
    pub fn called_back(&self, tenant: &TenantId, resource: &str) {
        for (whose, about, news) in self.live().values().filter_map(|live| live.callback.as_ref()) {
            if whose == tenant && about == resource {
                news.notify_one();
            }
        }
    }

    /// Whether this executor follows the call.
    #[must_use]
    pub fn follows(&self, call: CallId) -> bool {
        self.live().contains_key(&call)
    }

    /// Calls with files of an activity of which the end was not published, by run: what an executor may have left behind.
    #[must_use]
    pub fn left_behind(&self) -> Vec<(RunId, CallId)> {
        let folders = |path: &std::path::Path| std::fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
        let mut found = Vec::new();
        for run in folders(self.inner.workspaces.root()) {
            let Some(run_id) = run.file_name().to_str().and_then(|name| name.parse::<RunId>().ok()) else { continue };
            for call in folders(&run.path().join(crate::workspace::RESERVED)) {
                let Some(call_id) = call.file_name().to_str().and_then(|name| name.parse::<CallId>().ok()) else {
                    continue;
                };
                let files = Files::new(&self.inner.workspaces.of(run_id), call_id);
                if files.exist() && !files.is_done() {
                    found.push((run_id, call_id));
                }
            }
        }
        found
    }

    fn files(&self, activity: &Activity) -> Files {
        Files::new(&self.inner.workspaces.of(activity.run), activity.call)
    }

    fn live(&self) -> std::sync::MutexGuard<'_, HashMap<CallId, Live>> {
        self.inner.live()
    }

    fn follow(&self, activity: Activity, files: Files, meta: &Meta, lock: File, exited: Arc<Notify>) -> Follow {
        let (beyond, _) = watch::channel(None);
        // A file from before there were caps has none in it.
        let caps = if meta.caps == Caps::default() { self.inner.limits.caps } else { meta.caps };
        Follow {
            processes: Processes::new(activity.call, &files, self.inner.groups.of(activity.call)),
            files,
            activity,
            publisher: self.inner.publisher.clone(),
            secrets: self.inner.secrets.clone(),
            traceparent: meta.traceparent.clone(),
            caps,
            beyond,
            exited,
            remote: false,
            lock,
        }
    }

    fn keep_following(
        &self,
        follow: Follow,
        lease: Lease,
        held: Held,
        room: Option<Room>,
        elsewhere: Option<Elsewhere>,
    ) {
        let (activity, files) = (follow.activity.clone(), follow.files.clone());
        let wanted = CancellationToken::new();
        let live = Live {
            run: activity.run,
            wanted: wanted.clone(),
            files: files.clone(),
            caps: follow.caps,
            beyond: follow.beyond.clone(),
            callback: elsewhere
                .as_ref()
                .and_then(|asks| Some((asks.tenant.clone(), asks.callback.clone()?, asks.news.clone()))),
        };
        let processes = follow.processes.clone();
        let beyond = follow.beyond.subscribe();
        self.live().insert(activity.call, live);
        let _registered = Registered { activities: self.clone(), call: activity.call };
        let activities = self.clone();
        let (ending, asks) = match elsewhere {
            Some(elsewhere) => {
                let (ending, ends) = watch::channel(None);
                (Some(ending), Some(elsewhere.ask_to_the_end(files.clone(), ends)))
            }
            None => (None, None),
        };
        let follower = Follower {
            activities,
            activity,
            files,
            processes,
            lease,
            wanted,
            beyond,
            held,
            ending,
            _registered,
            _room: room,
        };
        self.inner.shutdown.spawn(follower.run(follow, asks));
        metrics::gauge!("tool_executor_activities").set(self.live().len() as f64);
    }
}

impl Inner {
    fn live(&self) -> std::sync::MutexGuard<'_, HashMap<CallId, Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks now and then what the commands use together, and has those ended that use more than they may.
async fn watch_use(inner: Weak<Inner>) {
    loop {
        tokio::time::sleep(limits::LOOK).await;
        let Some(inner) = inner.upgrade() else { return };
        let followed: Vec<_> = inner.live().iter().map(|(call, live)| (*call, live.files.clone())).collect();
        if followed.is_empty() {
            continue;
        }
        let groups = inner.groups.clone();
        let looking = tokio::task::spawn_blocking(move || {
            let of =
                |(call, files): (CallId, Files)| limits::Command { call, leader: files.pid(), group: groups.of(call) };
            limits::used(&followed.into_iter().map(of).collect::<Vec<_>>())
        });
        for (call, used) in looking.await.unwrap_or_default() {
            if let Some(live) = inner.live().get(&call)
                && let Some(reason) = used.beyond(&live.caps)
            {
                live.beyond.send_if_modified(|told| told.is_none() && told.replace(reason).is_none());
            }
        }
    }
}

impl std::fmt::Debug for Activities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Activities").field("limits", &self.inner.limits).finish_non_exhaustive()
    }
}

/// Whether this process can tell what became of an activity: it is over, its processes are in sight, or they must be gone.
fn can_judge(home: &Home, files: &Files, deadline: Timestamp) -> bool {
    let here = Home::here();
    let restarted = home.host == here.host;
    let overdue = deadline.checked_add(FOREIGN_MARGIN).is_ok_and(|until| Timestamp::now() > until);
    files.exit_status().is_some() || home.pids == here.pids || restarted || overdue
}
