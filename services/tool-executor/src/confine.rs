//! What a command may touch: the files of its run's workspace and what the system needs to run programs, and no network.
//!
//! Files are confined by Landlock, the network by a seccomp filter; both need no privilege, also hold for every process
//! that the command starts, and can't be taken off again. What the system can do is tried out at the start of the executor,
//! on a thread of its own, and only what was seen to hold is told to the policies.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
use other as system;

/// Whether commands are confined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confine {
    /// As far as the system can.
    #[default]
    Auto,
    /// They are, or the executor does not start.
    Require,
    /// They are not.
    Off,
}

/// What the system can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Support {
    /// Files outside those that are named can't be opened.
    pub files: bool,
    /// No socket can be had.
    pub network: bool,
}

/// What one command may touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Folders that it may read, write and run programs of.
    pub write: Vec<PathBuf>,
    /// Files and folders that it may read and run programs of.
    pub read: Vec<PathBuf>,
    /// It may use the network.
    pub network: bool,
}

/// Confines commands as far as it was asked to and as the system can. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Confinement {
    support: Support,
    read: Vec<PathBuf>,
}

/// The system can't do what is required.
#[derive(Debug, thiserror::Error)]
#[error(
    "`confine` is `require`, but this system can't confine {0}; Linux 6.2 with Landlock and seccomp can, in containers \
     too unless their seccomp profile forbids it"
)]
pub struct Unconfined(&'static str);

impl Confinement {
    /// Tries out what the system can do. `read` is what every command may read beside the system's own files.
    ///
    /// # Errors
    /// [`Unconfined`], if it is required and can't be had.
    pub fn new(confine: Confine, read: &[PathBuf]) -> Result<Self, Unconfined> {
        let support = if confine == Confine::Off { Support::default() } else { system::try_out() };
        match (confine, support) {
            (Confine::Require, Support { files: false, .. }) => return Err(Unconfined("files")),
            (Confine::Require, Support { network: false, .. }) => return Err(Unconfined("the network")),
            (Confine::Off, _) => tracing::warn!("commands are not confined: `confine` is `off`"),
            (_, Support { files: true, network: true }) => {}
            (_, Support { files, network }) => {
                tracing::warn!(files, network, "this system can't confine commands as a whole; policies are told so");
            }
        }
        Ok(Self { support, read: system_paths().chain(read.iter().cloned()).collect() })
    }

    /// What holds for a command, as policies are told: neither files beside its own nor the network.
    pub fn holds(&self, network: bool) -> bool {
        self.support.files && self.support.network && !network
    }

    /// The bounds of a command whose own folder is `own`, with what it may read beside.
    pub fn bounds(&self, own: &Path, read: &[String], network: bool) -> Bounds {
        let read = self.read.iter().cloned().chain(read.iter().map(PathBuf::from)).collect();
        Bounds { write: vec![own.to_owned()], read, network }
    }

    /// Confines the calling thread, and whatever is started from it, for good.
    ///
    /// # Errors
    /// If the system refuses what it could do before: then nothing may be started.
    pub fn enter(&self, bounds: &Bounds) -> Result<(), ConfineError> {
        if self.support.files {
            system::confine_files(bounds)?;
        }
        if self.support.network && !bounds.network {
            system::confine_network()?;
        }
        Ok(())
    }
}

/// The system refused to confine a command.
#[derive(Debug)]
pub struct ConfineError(String);

impl ConfineError {
    fn new(error: impl fmt::Display) -> Self {
        Self(error.to_string())
    }
}

impl fmt::Display for ConfineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the command can't be confined: {}", self.0)
    }
}

impl std::error::Error for ConfineError {}

/// What programs need of a system to run at all: itself, without what only its administrator may read, and the folders of
/// `PATH`.
fn system_paths() -> impl Iterator<Item = PathBuf> {
    const OPEN: [&str; 13] = [
        "/usr",
        "/bin",
        "/sbin",
        "/lib",
        "/lib32",
        "/lib64",
        "/opt",
        "/nix/store",
        "/proc",
        "/sys/devices/system",
        "/sys/fs/cgroup",
        "/dev/random",
        "/dev/urandom",
    ];
    let settings = std::fs::read_dir("/etc").into_iter().flatten().filter_map(|entry| {
        let path = entry.ok()?.path();
        is_for_all(&path).then_some(path)
    });
    let path = std::env::var_os("PATH").unwrap_or_default();
    let programs: Vec<_> = std::env::split_paths(&path).filter(|folder| folder.is_absolute()).collect();
    OPEN.iter().map(PathBuf::from).chain(settings).chain(programs)
}

/// Whether every user of the system may read it. The executor may be allowed more than a command should be.
fn is_for_all(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(path).is_ok_and(|about| about.permissions().mode() & 0o004 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_everybody_may_read_is_open() {
        let open: Vec<_> = system_paths().collect();
        assert!(open.contains(&PathBuf::from("/usr")) && open.contains(&PathBuf::from("/etc/passwd")));
        assert!(!open.contains(&PathBuf::from("/etc/shadow")), "the administrator's own");
        assert!(
            !open
                .iter()
                .any(|path| ["/", "/root", "/home", "/etc", "/tmp", "/run", "/var"].map(PathBuf::from).contains(path))
        );
    }

    #[test]
    fn what_is_off_is_not_said_to_hold() {
        let off = Confinement::new(Confine::Off, &[]).unwrap();
        assert!(!off.holds(false));
        let auto = Confinement::new(Confine::Auto, &[]).unwrap();
        assert!(!auto.holds(true), "a command with network is not confined");
        assert!(off.enter(&off.bounds(Path::new("/tmp"), &[], false)).is_ok());
    }
}
