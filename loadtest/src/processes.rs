//! What processes use: CPU time and resident memory, as Linux tells (`man 5 proc`).

use std::{collections::HashMap, path::Path, time::Duration};

use serde_json::{Value, json};

use crate::stats::hundredth;

/// Clock ticks a second in `/proc/<pid>/stat` (`sysconf(_SC_CLK_TCK)`): 100 on every Linux in use.
const TICKS: f64 = 100.0;

/// Processes and their descendants, at a moment.
pub struct Processes(HashMap<u32, Process>);

struct Process {
    name: String,
    cpu_seconds: f64,
    memory_kib: f64,
}

impl Processes {
    /// As they are now.
    pub fn now(roots: &[u32]) -> Self {
        let mut pids: Vec<u32> = roots.to_vec();
        let mut next = 0;
        while next < pids.len() {
            let children = format!("/proc/{0}/task/{0}/children", pids[next]);
            let children = std::fs::read_to_string(children).unwrap_or_default();
            pids.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
            next += 1;
        }
        Self(pids.into_iter().filter_map(|pid| Some((pid, process(pid)?))).collect())
    }

    /// Resident memory by name, in MiB; processes of one name together.
    pub fn memory(&self) -> Value {
        self.by_name(|process| process.memory_kib / 1024.0)
    }

    /// CPU time that each name has used since `earlier`, in percent of one core.
    pub fn cpu_since(&self, earlier: &Self, time: Duration) -> Value {
        let mut used = HashMap::<&str, f64>::new();
        for (pid, process) in &self.0 {
            let before = earlier.0.get(pid).map_or(0.0, |process| process.cpu_seconds);
            *used.entry(&process.name).or_default() += (process.cpu_seconds - before) / time.as_secs_f64() * 100.0;
        }
        json!(used.into_iter().map(|(name, share)| (name, hundredth(share))).collect::<HashMap<_, _>>())
    }

    fn by_name(&self, figure: impl Fn(&Process) -> f64) -> Value {
        let mut sums = HashMap::<&str, f64>::new();
        for process in self.0.values() {
            *sums.entry(&process.name).or_default() += figure(process);
        }
        json!(sums.into_iter().map(|(name, sum)| (name, hundredth(sum))).collect::<HashMap<_, _>>())
    }
}

/// The sum over all names.
pub fn total(by_name: &Value) -> f64 {
    hundredth(by_name.as_object().into_iter().flatten().filter_map(|(_, figure)| figure.as_f64()).sum())
}

/// CPU time that a process has used so far.
pub fn cpu_seconds(pid: u32) -> Option<f64> {
    process(pid).map(|process| process.cpu_seconds)
}

/// The most memory that a process ever had resident, in MiB.
pub fn memory_peak_mib(pid: u32) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(peak.split_whitespace().next()?.parse::<f64>().ok()? / 1024.0)
}

/// None if it is gone.
fn process(pid: u32) -> Option<Process> {
    let folder = format!("/proc/{pid}");
    let stat = std::fs::read_to_string(Path::new(&folder).join("stat")).ok()?;
    let (head, fields) = stat.rsplit_once(')')?;
    let name = head.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    let status = std::fs::read_to_string(Path::new(&folder).join("status")).ok()?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let memory_kib = resident.split_whitespace().next()?.parse().ok()?;
    Some(Process { name, cpu_seconds: ticks / TICKS, memory_kib })
}
