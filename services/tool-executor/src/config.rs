//! What the tool-executor can be told.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use service::Common;

use crate::confine::Confine;
use crate::perform::BEGIN_WITHIN;

/// Configuration of the tool-executor. Its folders `workspaces`, `agents_dir` and `policies_dir` are among the common keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// The keys that every service has.
    #[serde(flatten)]
    pub common: Common,
    /// Folder of the repositories that `repo.checkout` may take; what is in it, agents may have.
    pub checkout_root: PathBuf,
    /// Folder with a file for each secret; empty for none. `ESC_SECRET_<NAME>` in the environment is the other way.
    pub secrets_dir: PathBuf,
    /// Where it runs, for policies: such as `production`.
    pub environment: String,
    /// Calls carried out at once.
    pub concurrency: usize,
    /// Activities that this instance starts at once.
    pub activities: usize,
    /// MCP servers that this instance has open at once.
    pub mcp_servers: usize,
    /// Bytes of an activity's output, beyond which it is ended.
    pub output_cap: u64,
    /// Milliseconds from TERM to KILL.
    pub kill_grace_ms: u64,
    /// Bytes of an HTTP answer that are read at most.
    pub http_cap: usize,
    /// Bytes that `file.read` and `file.write` move at most.
    pub file_cap: u64,
    /// Variables of this process's environment that commands get, beside `PATH`, `LANG` and `HOME`.
    pub env_allow: Vec<String>,
    /// Files that a command may have open.
    pub open_files: u64,
    /// Largest file that a command may write, in bytes; 0 is no limit.
    pub file_bytes: u64,
    /// Processor time that each process of a command may use, in seconds; 0 is no limit.
    pub process_cpu_seconds: u64,
    /// Memory that the processes of a command may use together, in bytes; 0 is no limit.
    pub process_memory: u64,
    /// Processes and threads that a command may have at once; 0 is no limit.
    pub process_count: u64,
    /// Whether commands are confined to their files and kept from the network: `auto`, as far as the system can; `require`;
    /// `off`.
    pub confine: Confine,
    /// Whether each command gets a control group, which bounds its processes and finds them all: `auto`, where one can be made;
    /// `require`; `off`.
    pub control_groups: Confine,
    /// Folder of the control group (cgroup 2) below which those of commands are made; empty for the executor's own.
    pub control_group: PathBuf,
    /// Absolute paths that every confined command may read and run programs of, beside the system's own and the folders of
    /// `PATH`: such as those of a language's tools.
    pub process_read: Vec<PathBuf>,
    /// Milliseconds between two questions about what goes on elsewhere, at least: after its start, a change, or an error, and
    /// near its deadline.
    pub poll_shortest_ms: u64,
    /// Seconds between two such questions at most: in steady state.
    pub poll_longest_seconds: u64,
    /// The pause in percent of the time since then.
    pub poll_share_percent: u32,
    /// Schedules that one agent may make for itself.
    pub max_schedules: u32,
    /// Seconds after which the calls of an executor that died may be taken up by another.
    pub lease_seconds: u64,
    /// How often a tool, a target or a tenant is served over all executors: `tool:NAME=COUNT/TIME`, such as
    /// `target:api.example.com:443=60/1m` or `tenant:*=1000/1m` (`*`: each by itself). What is above waits in line.
    pub rate_limits: Vec<String>,
    /// Failures in a row after which a target is left alone for a while; 0 is never.
    pub breaker_failures: u32,
    /// Milliseconds for which it is left alone the first time; twice as long each time after.
    pub breaker_first_ms: u64,
    /// Milliseconds for which it is left alone at most.
    pub breaker_most_ms: u64,
    /// Seconds for which the outcome of a call in doubt is asked for; after that it counts as unknown.
    pub doubt_seconds: u64,
    /// How long after its start was asked for an effect with a read-back may still begin. No setting: it goes with when the
    /// kernel believes a read-back that finds nothing. Tests give slow machines more.
    #[serde(skip)]
    pub begin_within: Duration,
}

impl Config {
    pub(crate) fn breaker(&self) -> engine::BreakerOptions {
        engine::BreakerOptions {
            threshold: self.breaker_failures,
            first: Duration::from_millis(self.breaker_first_ms.max(1)),
            most: Duration::from_millis(self.breaker_most_ms.max(self.breaker_first_ms)),
            ..engine::BreakerOptions::default()
        }
    }

    pub(crate) fn pace(&self) -> engine::Pace {
        engine::Pace {
            shortest: Duration::from_millis(self.poll_shortest_ms),
            longest: Duration::from_secs(self.poll_longest_seconds),
            share: f64::from(self.poll_share_percent) / 100.0,
        }
    }

    pub(crate) fn lease(&self) -> Duration {
        Duration::from_secs(self.lease_seconds.max(1))
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            common: Common::for_service("tool-executor"),
            checkout_root: ".local/repositories".into(),
            secrets_dir: PathBuf::new(),
            environment: String::new(),
            concurrency: 64,
            activities: 32,
            mcp_servers: 32,
            // Two million lines of a build.
            output_cap: 256 << 20,
            kill_grace_ms: 5000,
            http_cap: 4 << 20,
            file_cap: 4 << 20,
            env_allow: vec!["TZ".to_owned()],
            open_files: 4096,
            file_bytes: 8 << 30,
            process_cpu_seconds: 0,
            process_memory: 4 << 30,
            process_count: 1024,
            confine: Confine::Auto,
            control_groups: Confine::Auto,
            control_group: PathBuf::new(),
            process_read: Vec::new(),
            poll_shortest_ms: 1000,
            poll_longest_seconds: 120,
            poll_share_percent: 20,
            max_schedules: 20,
            lease_seconds: 5,
            rate_limits: Vec::new(),
            breaker_failures: 5,
            breaker_first_ms: 2000,
            breaker_most_ms: 120_000,
            doubt_seconds: 900,
            begin_within: BEGIN_WITHIN,
        }
    }
}

impl AsRef<Common> for Config {
    fn as_ref(&self) -> &Common {
        &self.common
    }
}
