//! Finding and ending the processes of a call, children that detached themselves included.

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

/// The processes of a call but its supervisor: all that carry its mark, and all in the supervisor's group.
pub(super) fn members(call: CallId, supervisor: Option<i32>) -> Vec<i32> {
    let supervisor = supervisor.filter(|pid| belongs(*pid, call));
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| Some(*pid) != supervisor)
        .filter(|pid| belongs(*pid, call) || supervisor.is_some_and(|group| group_of(*pid) == Some(group)))
        .collect()
}

/// The process group of a live process.
fn group_of(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name may hold anything; behind its closing bracket come state, parent, group.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let zombie = fields.next() == Some("Z");
    fields.nth(1)?.parse().ok().filter(|_| !zombie)
}

/// Ends all processes of a call but the supervisor, which then records how: TERM, after `grace` KILL. Whatever is left
/// alive after that can't be killed, and is said.
pub(super) async fn terminate(call: CallId, supervisor: Option<i32>, grace: Duration) {
    if gone_after(call, supervisor, Signal::SIGTERM, grace, false).await {
        return;
    }
    if !gone_after(call, supervisor, Signal::SIGKILL, VANISH, true).await {
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
async fn gone_after(call: CallId, supervisor: Option<i32>, signal: Signal, within: Duration, again: bool) -> bool {
    let deadline = tokio::time::Instant::now() + within;
    let mut told = Vec::new();
    loop {
        let left = tokio::task::spawn_blocking(move || members(call, supervisor)).await.unwrap_or_default();
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
