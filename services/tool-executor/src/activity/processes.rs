//! Finding and ending the processes of a call, children that detached themselves included.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kernel::CallId;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::supervisor::MARK;

/// How long processes that were killed may take to vanish.
const VANISH: Duration = Duration::from_secs(5);
/// Pause between two looks at the processes.
const LOOK: Duration = Duration::from_millis(50);
/// So many processes are not ended one by one, since they multiply meanwhile, but with their whole group at once, the
/// supervisor included.
const SWARM: usize = 64;

/// Whether process `pid` is alive and belongs to the call: a process id alone may be somebody else's by now.
pub(super) fn belongs(pid: i32, call: CallId) -> bool {
    let mark = format!("{MARK}={call}");
    std::fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes()))
}

/// The processes of a call but its supervisor: all that carry its mark, all in the supervisor's group, all that write to its
/// output, and all that descend from any of these. One that threw off its mark, its group, its output and its parents at once
/// is none of ours any more, as far as anybody can tell without a control group.
pub(super) fn members(call: CallId, supervisor: Option<i32>, output: &Path) -> Vec<i32> {
    let supervisor = supervisor.filter(|pid| belongs(*pid, call));
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let processes: Vec<_> = processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, relations(pid)?)))
        .collect();
    let marked = |pid: i32, relations: Relations| {
        belongs(pid, call)
            || supervisor.is_some_and(|group| relations.group == group)
            || [1, 2].iter().any(|fd| has_open(pid, *fd, output))
    };
    let mut found: BTreeSet<i32> =
        processes.iter().filter(|(pid, relations)| marked(*pid, *relations)).map(|(pid, _)| *pid).collect();
    loop {
        let before = found.len();
        let descends = |(_, relations): &&(i32, Relations)| found.contains(&relations.parent);
        let more: Vec<i32> = processes.iter().filter(descends).map(|(pid, _)| *pid).collect();
        found.extend(more);
        if found.len() == before {
            break;
        }
    }
    // What it runs as is not what it is: this process is no child of its own.
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    found.into_iter().filter(|pid| Some(*pid) != supervisor && *pid != own).collect()
}

/// Whether a process of the call is in the middle of reading what comes through the pipe of its input. Not known where the
/// system does not tell.
pub(super) fn reads_input(call: CallId, pipe: &Path) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else { return false };
    processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).any(|pid| {
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

/// Whether this file descriptor of a process is this file.
fn has_open(pid: i32, fd: u32, file: &Path) -> bool {
    std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).is_ok_and(|open| open == file)
}

/// Where a live process stands among others.
#[derive(Clone, Copy, Debug)]
struct Relations {
    parent: i32,
    group: i32,
}

fn relations(pid: i32) -> Option<Relations> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name may hold anything; behind its closing bracket come state, parent, group.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let zombie = fields.next() == Some("Z");
    let mut number = || fields.next()?.parse().ok();
    let (parent, group) = (number()?, number()?);
    (!zombie).then_some(Relations { parent, group })
}

/// Ends all processes of a call but the supervisor, which then records how: TERM, after `grace` KILL. Whatever is left
/// alive after that can't be killed, and is said.
pub(super) async fn terminate(call: CallId, supervisor: Option<i32>, output: PathBuf, grace: Duration) {
    if gone_after(call, supervisor, &output, Signal::SIGTERM, grace, false).await {
        return;
    }
    if !gone_after(call, supervisor, &output, Signal::SIGKILL, VANISH, true).await {
        tracing::error!(%call, "processes of an activity can't be killed");
    }
}

/// Kills the supervisor itself: for one that does not record the end of its command.
pub(super) fn kill_supervisor(call: CallId, supervisor: Option<i32>) {
    if let Some(pid) = supervisor.filter(|pid| belongs(*pid, call)) {
        // It may have ended just now.
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}

/// Sends a signal, once or at every look, until no process is left or the time is over.
async fn gone_after(
    call: CallId,
    supervisor: Option<i32>,
    output: &Path,
    signal: Signal,
    within: Duration,
    again: bool,
) -> bool {
    let deadline = tokio::time::Instant::now() + within;
    let mut told = Vec::new();
    loop {
        let output = output.to_owned();
        let left = tokio::task::spawn_blocking(move || members(call, supervisor, &output)).await.unwrap_or_default();
        if left.is_empty() {
            return true;
        }
        let swarm = left.len() > SWARM;
        if let Some(group) = supervisor.filter(|pid| swarm && signal == Signal::SIGKILL && belongs(*pid, call)) {
            let _ = killpg(Pid::from_raw(group), signal);
        }
        for pid in left.iter().filter(|pid| again || !told.contains(*pid)) {
            // It may have ended just now.
            let _ = kill(Pid::from_raw(*pid), signal);
        }
        told = left;
        if tokio::time::Instant::now() >= deadline {
            return false;
        }
        // A swarm outside the group is only outrun.
        if !swarm {
            tokio::time::sleep(LOOK).await;
        }
    }
}
