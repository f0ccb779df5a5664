//! Finding and ending the processes of a call, children that detached themselves included.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use kernel::CallId;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::files::Files;
use super::group::Group;
use super::supervisor::MARK;

/// How long processes that were killed may take to vanish.
const VANISH: Duration = Duration::from_secs(5);
/// Pause between two looks at the processes.
const LOOK: Duration = Duration::from_millis(50);
/// Looks in a row for processes that still multiply, until those that were found are killed.
const STOPS: usize = 200;

/// All that belongs to one call.
#[derive(Clone, Debug)]
pub(super) struct Processes {
    call: CallId,
    leader: Leader,
    group: Group,
}

/// Where it is known who began the processes of a call.
#[derive(Clone, Debug)]
enum Leader {
    /// The supervisor has written itself down.
    Recorded(Files),
    /// Whoever started it knows.
    Known(i32),
}

/// Who is left alone when processes are ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spare {
    /// The supervisor, which then records how its command ended.
    Supervisor,
    /// Nobody: it has been recorded, and whoever passes for the supervisor now has nothing left to do.
    Nobody,
}

/// Whether process `pid` is alive and belongs to the call: a process id alone may be somebody else's by now.
pub(super) fn belongs(pid: i32, call: CallId) -> bool {
    let mark = format!("{MARK}={call}");
    std::fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes()))
}

/// Whether a process of the call is in the middle of reading what comes through the pipe of its input. Not known where the
/// system does not tell.
pub(super) fn reads_input(call: CallId, pipe: &Path) -> bool {
    pids().any(|pid| {
        let reads = || {
            let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
            let mut words = call.split(' ');
            words.next() == Some(READ) && words.next() == Some("0x0")
        };
        belongs(pid, call) && has_open(pid, 0, pipe) && reads()
    })
}

/// The number of the system call `read`.
const READ: &str = if cfg!(target_arch = "x86_64") { "0" } else { "63" };

fn pids() -> impl Iterator<Item = i32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten();
    processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Whether this file descriptor of a process is this file.
fn has_open(pid: i32, fd: u32, file: &Path) -> bool {
    std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).is_ok_and(|open| open == file)
}

/// Where a live process stands among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Relations {
    parent: i32,
    group: i32,
    session: i32,
}

fn relations(pid: i32) -> Option<Relations> {
    parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// None for one that has ended and only waits to be noticed.
fn parse(stat: &str) -> Option<Relations> {
    // The command's name may hold anything; behind its closing bracket come state, parent, group, session.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let zombie = matches!(fields.next(), Some("Z" | "X"));
    let mut number = || fields.next()?.parse().ok();
    let (parent, group, session) = (number()?, number()?, number()?);
    (!zombie).then_some(Relations { parent, group, session })
}

/// Those that are found, and all that descend from them.
fn with_descendants(mut found: BTreeSet<i32>, all: &[(i32, Relations)]) -> BTreeSet<i32> {
    loop {
        let before = found.len();
        let descends = |(_, relations): &&(i32, Relations)| found.contains(&relations.parent);
        let more: Vec<i32> = all.iter().filter(descends).map(|(pid, _)| *pid).collect();
        found.extend(more);
        if found.len() == before {
            return found;
        }
    }
}

fn send(pid: i32, signal: Signal) {
    // It may have ended just now.
    let _ = kill(Pid::from_raw(pid), signal);
}

impl Processes {
    pub fn new(call: CallId, files: &Files, group: Group) -> Self {
        Self { call, leader: Leader::Recorded(files.clone()), group }
    }

    /// Those that process `pid` began, without anybody who records how they end.
    pub fn of(call: CallId, pid: i32, group: Group) -> Self {
        Self { call, leader: Leader::Known(pid), group }
    }

    /// The supervisor, while it lives.
    pub fn supervisor(&self) -> Option<i32> {
        let leader = match &self.leader {
            Leader::Recorded(files) => files.pid(),
            Leader::Known(pid) => Some(*pid),
        };
        leader.filter(|pid| belongs(*pid, self.call))
    }

    /// Ends all processes of the call: TERM, after `grace` KILL, for good. Whatever is left alive after that can't be killed,
    /// and is said. Without a grace nobody is asked first.
    pub async fn terminate(&self, grace: Duration, spare: Spare) {
        if !grace.is_zero() && self.gone_after(Signal::SIGTERM, grace, spare).await {
            return;
        }
        let (own, held) = (self.clone(), self.group.hold());
        let stopping = move || match own.supervisor().filter(|_| held) {
            // Nothing can be started now, not even what records the end.
            Some(supervisor) => send(supervisor, Signal::SIGSTOP),
            None => own.stop(spare),
        };
        let _ = tokio::task::spawn_blocking(stopping).await;
        let gone = self.gone_after(Signal::SIGKILL, VANISH, spare).await;
        self.group.let_go();
        if let Some(supervisor) = self.supervisor() {
            send(supervisor, Signal::SIGCONT);
        }
        if !gone {
            tracing::error!(call = %self.call, "processes of an activity can't be killed");
        }
    }

    /// Whether the command was refused a process, as it had as many as it may.
    pub fn refused(&self) -> bool {
        self.group.refused()
    }

    /// Kills the supervisor itself: for one that does not record the end of its command.
    pub fn kill_supervisor(&self) {
        if let Some(pid) = self.supervisor() {
            send(pid, Signal::SIGKILL);
        }
    }

    /// Gives up what was kept for the call in the system, once its last process is gone.
    pub async fn clear(&self) {
        let deadline = tokio::time::Instant::now() + VANISH;
        // The supervisor may be about to end.
        while !self.group.remove() && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// All that are in the call's control group, that carry its mark, are of the supervisor's session or group, write to its
    /// output, or descend from any of these. Without a control group, one that threw off all of that at once, and whose
    /// supervisor is gone, is none of ours any more as far as anybody can tell.
    fn members(&self, spare: Spare) -> BTreeSet<i32> {
        let supervisor = self.supervisor();
        let output = match &self.leader {
            Leader::Recorded(files) => Some(files.output_path()),
            Leader::Known(_) => None,
        };
        let all: Vec<_> = pids().filter_map(|pid| Some((pid, relations(pid)?))).collect();
        let grouped = self.group.processes();
        let is_kin = |pid: i32, relations: Relations| {
            grouped.contains(&pid)
                || supervisor.is_some_and(|own| [pid, relations.group, relations.session].contains(&own))
                || belongs(pid, self.call)
                || output.as_ref().is_some_and(|output| [1, 2].iter().any(|fd| has_open(pid, *fd, output)))
        };
        let found = all.iter().filter(|(pid, relations)| is_kin(*pid, *relations)).map(|(pid, _)| *pid).collect();
        let mut found = with_descendants(found, &all);
        // What it runs as is not what it is: this process is no child of its own.
        found.remove(&i32::try_from(std::process::id()).unwrap_or_default());
        if spare == Spare::Supervisor
            && let Some(supervisor) = supervisor
        {
            found.remove(&supervisor);
        }
        found
    }

    /// Stops processes where no control group holds them, until a look finds none that was not stopped before: who is
    /// stopped makes no more of them. The supervisor's group is stopped at a stroke, which no process in the middle of
    /// making another escapes.
    fn stop(&self, spare: Spare) {
        let mut stopped = BTreeSet::new();
        for _ in 0..STOPS {
            if let Some(supervisor) = self.supervisor() {
                let _ = killpg(Pid::from_raw(supervisor), Signal::SIGSTOP);
            }
            let found = self.members(spare);
            let fresh: Vec<_> = found.difference(&stopped).copied().collect();
            if fresh.is_empty() {
                return;
            }
            fresh.iter().for_each(|pid| send(*pid, Signal::SIGSTOP));
            stopped.extend(fresh);
        }
    }

    /// Sends a signal until no process is left or the time is over; TERM only once to each.
    async fn gone_after(&self, signal: Signal, within: Duration, spare: Spare) -> bool {
        let deadline = tokio::time::Instant::now() + within;
        let mut told = BTreeSet::new();
        loop {
            let own = self.clone();
            let left = tokio::task::spawn_blocking(move || own.members(spare)).await.unwrap_or_default();
            if left.is_empty() {
                return true;
            }
            for pid in left.iter().filter(|pid| signal == Signal::SIGKILL || !told.contains(*pid)) {
                send(*pid, signal);
            }
            told = left;
            if tokio::time::Instant::now() >= deadline {
                return false;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(parent: i32, group: i32) -> Relations {
        Relations { parent, group, session: group }
    }

    #[test]
    fn who_descends_from_one_that_is_found_is_found() {
        let all = [(10, of(1, 10)), (13, of(12, 13)), (11, of(10, 10)), (12, of(11, 12)), (20, of(1, 20))];
        assert_eq!(with_descendants(BTreeSet::from([11]), &all), BTreeSet::from([11, 12, 13]));
    }

    #[test]
    fn what_has_ended_is_nobody() {
        assert_eq!(parse("7 (a) Z b) S 3 4 5 0 -1"), Some(Relations { parent: 3, group: 4, session: 5 }));
        assert_eq!(parse("7 (sh) Z 3 4 5 0 -1"), None);
        assert_eq!(parse("nonsense"), None);
    }
}
