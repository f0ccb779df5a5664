//! What a command may use: each of its processes by limits of the system, all of them together by looking now and then.

use std::collections::HashMap;
use std::io;
use std::process::Child;
use std::time::Duration;

use kernel::CallId;

use super::files::Caps;
use super::group::Group;

/// How often it is looked what commands use, while there are any.
pub(super) const LOOK: Duration = Duration::from_millis(250);

/// Limits on each process of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PerProcess {
    /// Open files.
    pub open_files: u64,
    /// Largest file that it may write, in bytes; 0 is no limit.
    pub file_bytes: u64,
    /// Processor time; none is no limit.
    pub cpu: Option<Duration>,
}

/// So many times what a command may have, those may have together that share its user: other commands are among them.
#[cfg(target_os = "linux")]
const SHARED: u64 = 4;

/// Sets the limits of a process that waits for its start; what it starts has them too. `processes` bounds, where nothing
/// better does, how many its user may have beside those that there are now; 0 is no limit. Root is not bound by that.
#[cfg(target_os = "linux")]
pub(super) fn apply(child: &Child, limits: &PerProcess, processes: u64) -> io::Result<()> {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};

    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    // None would be this very process.
    let pid = pid.ok_or_else(|| io::Error::other("the supervisor has no process id"))?;
    let set = |resource, soft: u64, hard: u64| {
        // Only ever lower: what the executor itself may not have, nobody can give.
        let own = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX);
        let limit = Rlimit { current: Some(soft.min(own)), maximum: Some(hard.min(own)) };
        prlimit(Some(pid), resource, limit).map(|_| ()).map_err(io::Error::from)
    };
    set(Resource::Core, 0, 0)?;
    set(Resource::Nofile, limits.open_files, limits.open_files)?;
    if limits.file_bytes > 0 {
        set(Resource::Fsize, limits.file_bytes, limits.file_bytes)?;
    }
    if processes > 0 {
        let most = threads_of_user().saturating_add(processes.saturating_mul(SHARED));
        set(Resource::Nproc, most, most)?;
    }
    if let Some(cpu) = limits.cpu {
        let seconds = cpu.as_secs().max(1);
        // A signal that says so first; who ignores it is killed a second later.
        set(Resource::Cpu, seconds, seconds + 1)?;
    }
    Ok(())
}

/// Elsewhere the shell's own defaults hold.
#[cfg(not(target_os = "linux"))]
pub(super) fn apply(_: &Child, _: &PerProcess, _: u64) -> io::Result<()> {
    Ok(())
}

/// The threads of all processes of this process's user.
#[cfg(target_os = "linux")]
fn threads_of_user() -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let own = nix::unistd::getuid().as_raw();
    let is_own = |pid: i32| std::fs::metadata(format!("/proc/{pid}")).is_ok_and(|about| about.uid() == own);
    listed().into_iter().filter(|process| is_own(process.pid)).map(|process| process.threads).sum()
}

/// What the processes of one command use together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Used {
    pub processes: u64,
    pub memory: u64,
    /// It was refused a process, as it had as many as it may.
    pub refused: bool,
}

impl Used {
    /// Why the command has to end, if it uses more than it may.
    pub fn beyond(self, caps: &Caps) -> Option<&'static str> {
        if self.refused || (caps.processes > 0 && self.processes > caps.processes) {
            Some("process_cap")
        } else if caps.memory > 0 && self.memory > caps.memory {
            Some("memory_cap")
        } else {
            None
        }
    }
}

/// A process as the system lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Listed {
    pid: i32,
    parent: i32,
    group: i32,
    threads: u64,
    resident: u64,
}

/// What is looked at for one command.
#[derive(Clone, Debug)]
pub(super) struct Command {
    pub call: CallId,
    /// The process id of its supervisor, which leads its process group and session.
    pub leader: Option<i32>,
    pub group: Group,
}

/// What each of these commands uses.
pub(super) fn used(commands: &[Command]) -> HashMap<CallId, Used> {
    let placed =
        commands.iter().flat_map(|command| command.group.processes().into_iter().map(|pid| (pid, command.call)));
    let leaders = commands.iter().filter_map(|command| Some((command.leader?, command.call)));
    let mut sums = sum(&listed(), &leaders.collect(), &placed.collect());
    for command in commands.iter().filter(|command| command.group.refused()) {
        sums.entry(command.call).or_default().refused = true;
    }
    sums
}

/// By what each process is: placed in a group, of a leader's process group, or descending from either.
fn sum(processes: &[Listed], leaders: &HashMap<i32, CallId>, placed: &HashMap<i32, CallId>) -> HashMap<CallId, Used> {
    let by_pid: HashMap<_, _> = processes.iter().map(|process| (process.pid, process)).collect();
    let call_of = |process: &Listed| {
        let mut at = Some(process);
        // A list that was read while it changed might have a circle in it.
        for _ in 0..64 {
            let process = at?;
            if let Some(call) = placed.get(&process.pid).or_else(|| leaders.get(&process.group)) {
                return Some(*call);
            }
            at = by_pid.get(&process.parent).copied();
        }
        None
    };
    let mut sums: HashMap<CallId, Used> = HashMap::new();
    for process in processes {
        if let Some(call) = call_of(process) {
            let used = sums.entry(call).or_default();
            used.processes += process.threads;
            used.memory += process.resident;
        }
    }
    sums
}

fn listed() -> Vec<Listed> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let page = rustix::param::page_size() as u64;
    entries
        .filter_map(|entry| {
            let pid = entry.ok()?.file_name().to_str()?.parse().ok()?;
            // It may have ended just now.
            parse(pid, &std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?, page)
        })
        .collect()
}

fn parse(pid: i32, stat: &str, page: u64) -> Option<Listed> {
    // The command's name may hold anything; behind its closing bracket the fields begin with the third.
    let fields: Vec<_> = stat.rsplit_once(") ")?.1.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).copied();
    Some(Listed {
        pid,
        parent: field(4)?.parse().ok()?,
        group: field(5)?.parse().ok()?,
        threads: field(20)?.parse().ok()?,
        resident: field(24)?.parse::<u64>().ok()? * page,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32, group: i32) -> Listed {
        Listed { pid, parent, group, threads: 1, resident: 10 }
    }

    #[test]
    fn a_process_that_left_the_group_counts_as_long_as_it_descends_from_it_or_is_in_the_control_group() {
        let list = [process(1, 0, 1), process(10, 1, 10), process(11, 10, 10), process(12, 11, 12), process(20, 1, 20)];
        let (call, other) = (CallId::mint(), CallId::mint());
        let leaders = HashMap::from([(10, call), (30, other)]);
        let used = |processes, memory| Used { processes, memory, refused: false };
        assert_eq!(sum(&list, &leaders, &HashMap::new()), HashMap::from([(call, used(3, 30))]));
        let placed = HashMap::from([(20, other)]);
        assert_eq!(sum(&list, &leaders, &placed), HashMap::from([(call, used(3, 30)), (other, used(1, 10))]));
    }

    #[test]
    fn a_list_read_here_knows_this_process() {
        let here = i32::try_from(std::process::id()).unwrap();
        let found = listed().into_iter().find(|process| process.pid == here).unwrap();
        assert!(found.threads >= 1 && found.resident > 100_000);
        assert_eq!(
            parse(7, "7 (a) b) S 3 4 4 0 -1 0 0 0 0 0 0 0 0 0 20 0 5 0 1 2 33 9", 4096).unwrap(),
            Listed { pid: 7, parent: 3, group: 4, threads: 5, resident: 33 * 4096 }
        );
    }

    #[test]
    fn what_is_beyond_has_a_word() {
        let caps = Caps { output: 0, processes: 5, memory: 100 };
        let used = |processes, memory| Used { processes, memory, refused: false };
        assert_eq!(used(5, 100).beyond(&caps), None);
        assert_eq!(used(6, 0).beyond(&caps), Some("process_cap"));
        assert_eq!(used(1, 101).beyond(&caps), Some("memory_cap"));
        assert_eq!(used(9, 900).beyond(&Caps::default()), None);
        // The system counts every moment, and this does not.
        assert_eq!(Used { refused: true, ..used(1, 0) }.beyond(&caps), Some("process_cap"));
    }
}
