//! Landlock for files, seccomp for the network. Both hold for the thread that asks for them and for what it starts.

use std::fs::File;
use std::net::UdpSocket;
use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
    RulesetStatus, Scope, path_beneath_rules,
};
use nix::libc;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

use super::{Bounds, ConfineError, Support};

/// What Landlock can do, best first. The oldest here is the first that guards every way to change a file's content.
const VERSIONS: [ABI; 3] = [ABI::V6, ABI::V5, ABI::V3];
/// What every command may write to beside its own folder.
const DEVICES: [&str; 3] = ["/dev/null", "/dev/zero", "/dev/full"];

/// What a command of an executor that runs as root may still do as root: work on files whatever they say of their owners.
/// With the rest it would get past the bounds: the system shows the memory and the environment of all processes to whoever
/// may measure them, whatever Landlock says.
const KEPT: CapabilitySet =
    CapabilitySet::CHOWN.union(CapabilitySet::DAC_OVERRIDE).union(CapabilitySet::FOWNER).union(CapabilitySet::FSETID);

/// Tries out what holds here, on threads that end right after.
pub(super) fn try_out() -> Support {
    let on_a_thread = |tried: fn() -> bool| std::thread::spawn(tried).join().unwrap_or(false);
    Support { files: on_a_thread(files_are_confined), network: on_a_thread(network_is_confined) }
}

fn files_are_confined() -> bool {
    let bounds = Bounds { read: ["/usr", "/proc"].map(PathBuf::from).to_vec(), ..Bounds::default() };
    let before = std::fs::read_dir("/").is_ok();
    // Of a process outside of the bounds; one that is not there has none either.
    let of_others = || std::fs::read(format!("/proc/{}/environ", std::os::unix::process::parent_id()));
    let is_open = || std::fs::read_dir("/usr").is_ok() && File::open("/proc/self/status").is_ok();
    before && confine_files(&bounds).is_ok() && std::fs::read_dir("/").is_err() && is_open() && of_others().is_err()
}

fn network_is_confined() -> bool {
    confine_network().is_ok() && UdpSocket::bind("127.0.0.1:0").is_err()
}

pub(super) fn confine_files(bounds: &Bounds) -> Result<(), ConfineError> {
    let mut refused = None;
    for version in VERSIONS {
        match restrict(bounds, version) {
            Ok(RulesetStatus::FullyEnforced) => return give_up_privileges().map_err(ConfineError::new),
            Ok(status) => refused = Some(format!("Landlock is {status:?}")),
            Err(error) => refused = Some(error.to_string()),
        }
    }
    Err(ConfineError::new(refused.unwrap_or_default()))
}

/// For good: Landlock has seen to it that no program that is started gains any.
fn give_up_privileges() -> rustix::io::Result<()> {
    let had = capabilities(None)?;
    let (effective, permitted) = (had.effective & KEPT, had.permitted & KEPT);
    set_capabilities(None, CapabilitySets { effective, permitted, inheritable: CapabilitySet::empty() })
}

/// All of a version or nothing: what can't be had must not be left out in silence.
fn restrict(bounds: &Bounds, version: ABI) -> Result<RulesetStatus, RulesetError> {
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(version))?;
    let scopes: BitFlags<Scope> = Scope::from_all(version);
    if !scopes.is_empty() {
        // No signals to processes outside, and none of their abstract sockets.
        rules = rules.scope(scopes)?;
    }
    let all = AccessFs::from_all(version);
    let devices = all & (AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate);
    let status = rules
        .create()?
        .add_rules(path_beneath_rules(&bounds.read, AccessFs::from_read(version)))?
        .add_rules(path_beneath_rules(DEVICES, devices))?
        .add_rules(path_beneath_rules(&bounds.write, all))?
        .restrict_self()?;
    Ok(status.ruleset)
}

/// No socket of any kind, so neither a network nor the services of this machine. Pairs of connected sockets, which
/// programs use between their own processes, are left.
pub(super) fn confine_network() -> Result<(), ConfineError> {
    seccompiler::apply_filter(&no_sockets()?).map_err(ConfineError::new)
}

fn no_sockets() -> Result<BpfProgram, ConfineError> {
    // The second opens sockets without the first.
    let calls = [libc::SYS_socket, libc::SYS_io_uring_setup];
    let rules = calls.into_iter().flat_map(spellings).map(|call| (call, Vec::new())).collect();
    let architecture = TargetArch::try_from(std::env::consts::ARCH).map_err(ConfineError::new)?;
    let denied = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    // Programs for another architecture, whose calls have other numbers, are killed by the filter itself.
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, denied, architecture).map_err(ConfineError::new)?;
    filter.try_into().map_err(ConfineError::new)
}

/// The numbers under which a call can be made: on x86-64 the x32 ones lead to the same calls.
fn spellings(call: libc::c_long) -> impl Iterator<Item = i64> {
    const X32: i64 = 0x4000_0000;
    let x32 = cfg!(target_arch = "x86_64").then_some(call | X32);
    std::iter::once(call).chain(x32)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn what_is_said_to_hold_holds_for_what_is_started() {
        if try_out() != (Support { files: true, network: true }) {
            // Then the executor says so, which is another test's affair.
            return;
        }
        let own = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), "s").unwrap();
        let bounds = Bounds {
            write: vec![own.path().to_owned()],
            // What is open to be read is no way to the secrets of those outside.
            read: ["/usr", "/bin", "/lib", "/lib64", "/etc/passwd", "/proc"].map(PathBuf::from).to_vec(),
            network: false,
        };
        let script = format!(
            "echo mine >{own}/file && cat {own}/file; cat {out}/secret; echo x >{out}/new; echo x >/dev/null && echo null; \
             cat /proc/{me}/environ >/dev/null && echo environ; cat /proc/self/environ >/dev/null && echo own; \
             chmod 0 {own}/file && cat {own}/file >/dev/null && chown 7:7 {own}/file && echo root || id -u",
            own = own.path().display(),
            out = outside.path().display(),
            me = std::process::id(),
        );
        let output = std::thread::spawn(move || {
            confine_files(&bounds).unwrap();
            confine_network().unwrap();
            Command::new("/bin/sh").args(["-c", &script]).output().unwrap()
        });
        let output = output.join().unwrap();
        let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        // As root it works on its files as root does; as nobody else.
        let last = if nix::unistd::getuid().is_root() { "root" } else { &nix::unistd::getuid().to_string() };
        assert_eq!(said, format!("mine\nnull\nown\n{last}\n"), "{errors}");
        assert!(!outside.path().join("new").exists());
        // Only that thread is confined.
        assert!(UdpSocket::bind("127.0.0.1:0").is_ok() && File::open("/proc/self/status").is_ok());
    }
}
