//! Starting a command under a supervisor: a tiny shell that owns its output file and records its exit, so that neither
//! depends on the executor that started it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use kernel::CallId;
use tokio::process::{Child, Command};

/// Marks every process of a call, however it detaches itself.
pub(super) const MARK: &str = "ESC_CALL_ID";

const SCRIPT: &str = include_str!("supervisor.sh");

/// A command for `sh -c`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShellCommand {
    /// The command line.
    pub command: String,
    /// Where it runs.
    pub cwd: PathBuf,
    /// All of its environment but the mark of its call.
    pub env: BTreeMap<String, String>,
    /// Most open files.
    pub open_files: u64,
    /// Largest file that it may write, in bytes; 0 is no limit.
    pub file_bytes: u64,
}

/// Starts the supervisor in a process group of its own. Its folder must exist.
pub(super) fn spawn(call: CallId, dir: &Path, shell: &ShellCommand) -> io::Result<Child> {
    Command::new("/bin/sh")
        .args(["-c", SCRIPT, "supervisor"])
        .arg(dir)
        .arg(&shell.cwd)
        .arg(&shell.command)
        .arg(shell.open_files.to_string())
        .arg(shell.file_bytes.div_ceil(512).to_string())
        .env_clear()
        .envs(&shell.env)
        .env(MARK, call.to_string())
        .current_dir(dir)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(false)
        .spawn()
}
