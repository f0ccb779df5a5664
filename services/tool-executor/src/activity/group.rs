//! Control groups: they bound how many processes a command has, and know all of them, whatever those throw off.
//!
//! Two things of the system are used, each where it is there: the unified hierarchy (cgroup 2), which can hold a group still,
//! and the controller `pids`, in it or in a hierarchy of its own (cgroup 1), which counts. Each call has a group named after
//! it, below a folder in the executor's own group; nothing that a command can write says where that is. What works is tried
//! out at the start.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use kernel::CallId;

use crate::confine::Confine;

/// The folder of all groups of calls, within the executor's own group.
const FOLDER: &str = "escapement";
/// Groups that are empty for so long belong to nobody any more.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// What a supervisor may start once its command is gone: what it needs to record the end.
const LAST_WORDS: &str = "16";
/// The supervisor, and what it starts to record the end, beside the processes of its command.
const OWN: u64 = 2;
/// Groups within a group that are looked into.
const MOST_WITHIN: usize = 256;

/// Where the groups of calls are made. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Groups {
    /// In the unified hierarchy.
    unified: Option<PathBuf>,
    /// Where the controller `pids` is; the same folder if that is in the unified hierarchy.
    pids: Option<PathBuf>,
    required: bool,
}

/// The system has no control groups for commands, though there have to be some.
#[derive(Debug, thiserror::Error)]
#[error(
    "`control_groups` is `require`, but no control group can be made: run the executor in one that is delegated to it \
     (systemd: `Delegate=pids` and `DelegateSubgroup=executor`), or name one with `control_group`"
)]
pub struct NoGroups;

impl Groups {
    /// Looks for what there is. `root` is the group below which those of calls are made; empty for the executor's own.
    ///
    /// # Errors
    /// [`NoGroups`], if groups that count are required and can't be had.
    pub fn new(wanted: Confine, root: &Path) -> Result<Self, NoGroups> {
        if wanted == Confine::Off {
            return Ok(Self::default());
        }
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let places = match root.as_os_str().is_empty() {
            true => Places::own(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup")),
            false => Places { unified: Some(root.to_owned()), pids: None },
        };
        let mut groups = Self::below(places);
        groups.required = wanted == Confine::Require;
        match (&groups.pids, groups.required) {
            (None, true) => Err(NoGroups),
            (Some(_), _) => Ok(groups),
            (None, false) => {
                let kept_together = groups.unified.is_some();
                tracing::warn!(
                    kept_together,
                    "no control group counts the processes of commands here: they are counted now and then, and limited \
                     for the executor's user as a whole, which does not hold for root"
                );
                Ok(groups)
            }
        }
    }

    fn below(places: Places) -> Self {
        let mut groups = Self::default();
        if let Some(own) = places.unified {
            let folder = own.join(FOLDER);
            if make(&folder).is_ok() {
                // Only where the group above has no process of its own, or is the root of all.
                let counts = delegate(&own).is_ok() && delegate(&folder).is_ok();
                groups = Self { pids: counts.then(|| folder.clone()), unified: Some(folder), required: false };
            }
        }
        if groups.pids.is_none()
            && let Some(own) = places.pids
        {
            let folder = own.join(FOLDER);
            groups.pids = make(&folder).is_ok().then_some(folder);
        }
        groups.unified = groups.unified.filter(|folder| tidy(folder) && works(folder, false));
        groups.pids = groups.pids.filter(|folder| tidy(folder) && works(folder, true));
        groups
    }

    /// The group of a call, which may not be there.
    pub(super) fn of(&self, call: CallId) -> Group {
        let named = |folder: &Option<PathBuf>| folder.as_ref().map(|folder| folder.join(call.to_string()));
        Group { unified: named(&self.unified), pids: named(&self.pids), required: self.required }
    }
}

/// The executor's own groups, as folders.
#[derive(Debug, Default, PartialEq, Eq)]
struct Places {
    unified: Option<PathBuf>,
    pids: Option<PathBuf>,
}

impl Places {
    /// From what the system says about mounts and about this process.
    fn own(mounts: &str, groups: &str) -> Self {
        let group_of = |named: &dyn Fn(&str) -> bool| {
            groups.lines().find_map(|line| {
                let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
                named(controllers).then(|| path.to_owned())
            })
        };
        let place = |kind: &str, option: Option<&str>, named: &dyn Fn(&str) -> bool| {
            let own = group_of(named)?;
            mounts.lines().find_map(|line| {
                // `36 35 0:30 /root /mount/point options optional... - kind source options`
                let (before, after) = line.split_once(" - ")?;
                let (mut before, mut after) = (before.split(' ').skip(3), after.split(' '));
                let (root, point) = (before.next()?, before.next()?);
                let fits = after.next()? == kind
                    && option
                        .is_none_or(|option| after.nth(1).is_some_and(|all| all.split(',').any(|one| one == option)));
                let within = Path::new(&own).strip_prefix(root).ok()?;
                fits.then(|| Path::new(point).join(within))
            })
        };
        Self {
            unified: place("cgroup2", None, &str::is_empty),
            pids: place("cgroup", Some("pids"), &|controllers| controllers.split(',').any(|one| one == "pids")),
        }
    }
}

fn delegate(group: &Path) -> io::Result<()> {
    write(&group.join("cgroup.subtree_control"), "+pids")
}

/// Whether a process can be put into a group here, and be counted.
fn works(folder: &Path, counts: bool) -> bool {
    let here = folder.join(format!("try-{}", CallId::mint()));
    let group = Group { unified: Some(here.clone()), pids: counts.then_some(here), required: true };
    let tried = || -> io::Result<bool> {
        let door = group.create(2)?;
        let mut child = Command::new("/bin/sh").args(["-c", "read -r x"]).stdin(Stdio::piped()).spawn()?;
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        let there = door.enter(pid).is_ok() && group.processes().contains(&pid);
        child.kill()?;
        child.wait()?;
        Ok(there)
    };
    let works = tried().unwrap_or(false);
    group.remove();
    works
}

/// Removes groups that nobody removed. A new one may still be waiting for its process.
fn tidy(folder: &Path) -> bool {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let made = entry.metadata().and_then(|about| about.modified()).ok();
        if made.and_then(|made| made.elapsed().ok()).is_some_and(|age| age > FORGOTTEN) {
            // One that is not empty stays, as the system sees to.
            let _ = std::fs::remove_dir(entry.path());
        }
    }
    true
}

/// The group of one call. All that is asked of one that is not there has the answer "nothing".
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    unified: Option<PathBuf>,
    pids: Option<PathBuf>,
    required: bool,
}

/// The way into a group, opened before whoever uses it is confined.
#[derive(Debug, Default)]
pub(super) struct Door(Vec<File>);

impl Door {
    /// Puts a process into the group; what it starts is in it too.
    pub fn enter(&self, pid: i32) -> io::Result<()> {
        self.0.iter().try_for_each(|mut file| file.write_all(pid.to_string().as_bytes()))
    }
}

impl Group {
    /// Makes the group, for so many processes and threads at most; 0 is no limit.
    pub fn create(&self, most: u64) -> io::Result<Door> {
        match self.make(most) {
            Ok(door) => Ok(door),
            Err(error) if self.required => Err(error),
            Err(error) => {
                tracing::warn!(%error, "a command runs without a control group");
                self.remove();
                Ok(Door::default())
            }
        }
    }

    fn make(&self, most: u64) -> io::Result<Door> {
        let mut door = Door::default();
        for folder in self.folders() {
            make(folder)?;
            door.0.push(OpenOptions::new().write(true).open(folder.join("cgroup.procs"))?);
        }
        if let Some(pids) = self.pids.as_ref().filter(|_| most > 0) {
            write(&pids.join("pids.max"), &most.saturating_add(OWN).to_string())?;
        }
        Ok(door)
    }

    /// Whether the system refuses processes above the limit.
    pub fn counts(&self) -> bool {
        self.pids.is_some()
    }

    /// The processes that are in it.
    pub fn processes(&self) -> BTreeSet<i32> {
        let mut found = BTreeSet::new();
        for folder in self.folders() {
            for within in all_within(folder) {
                let list = std::fs::read_to_string(within.join("cgroup.procs")).unwrap_or_default();
                found.extend(list.lines().filter_map(|pid| pid.parse::<i32>().ok()).filter(|pid| *pid > 0));
            }
        }
        found
    }

    /// Whether a process was refused because there were as many as may be.
    pub fn refused(&self) -> bool {
        let events = self.pids.as_ref().and_then(|pids| std::fs::read_to_string(pids.join("pids.events")).ok());
        let times = events.as_deref().and_then(|events| events.lines().find_map(|line| line.strip_prefix("max ")));
        times.and_then(|times| times.trim().parse::<u64>().ok()).is_some_and(|times| times > 0)
    }

    /// Sees to it that none of its processes starts another. Whether that holds.
    pub fn hold(&self) -> bool {
        let counted = self.pids.as_ref().is_some_and(|pids| write(&pids.join("pids.max"), "0").is_ok());
        counted || self.unified.as_ref().is_some_and(|group| write(&group.join("cgroup.freeze"), "1").is_ok())
    }

    /// Lets whoever is left go on: enough for a supervisor to record the end.
    pub fn let_go(&self) {
        // What is not there needs no letting go.
        let _ = self.pids.as_ref().map(|pids| write(&pids.join("pids.max"), LAST_WORDS));
        let _ = self.unified.as_ref().map(|group| write(&group.join("cgroup.freeze"), "0"));
    }

    /// Removes it; whether it is gone. One with a live process stays.
    pub fn remove(&self) -> bool {
        for folder in self.folders() {
            for within in all_within(folder).into_iter().rev() {
                let _ = std::fs::remove_dir(within);
            }
        }
        !self.folders().any(|folder| folder.exists())
    }

    fn folders(&self) -> impl Iterator<Item = &PathBuf> {
        let twice = self.pids == self.unified;
        self.unified.iter().chain(self.pids.iter().filter(move |_| !twice))
    }
}

/// A group and those within it, outer ones first.
fn all_within(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![folder.to_owned()];
    let mut next = 0;
    while next < found.len() && found.len() < MOST_WITHIN {
        let entries = std::fs::read_dir(&found[next]).into_iter().flatten().flatten();
        found.extend(
            entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()),
        );
        next += 1;
    }
    found
}

/// Makes a group where groups are; none outside of their hierarchy.
fn make(group: &Path) -> io::Result<()> {
    match std::fs::create_dir(group) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Writes to a file of the system, which is there or not: none is made.
fn write(path: &Path, value: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(value.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_found_in_either_kind_of_hierarchy() {
        let unified = "29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let own = "0::/system.slice/executor.service\n";
        let place = Path::new("/sys/fs/cgroup/system.slice/executor.service").to_owned();
        assert_eq!(Places::own(unified, own), Places { unified: Some(place), pids: None });
        let both = "30 29 0:27 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
                    31 29 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                    32 29 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let found = Places::own(both, "8:pids:/a\n4:memory:/b\n0::/c\n");
        assert_eq!(found.unified.as_deref(), Some(Path::new("/sys/fs/cgroup/unified/c")));
        assert_eq!(found.pids.as_deref(), Some(Path::new("/sys/fs/cgroup/pids/a")));
        // A container sees its own part only, mounted as if it were all.
        let part = "29 22 0:26 /pod/7 /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n";
        assert_eq!(Places::own(part, "0::/pod/7/x\n").unified.as_deref(), Some(Path::new("/sys/fs/cgroup/x")));
        assert_eq!(Places::own(part, "0::/pod/8\n"), Places::default());
        assert_eq!(Places::own("", "nonsense\n"), Places::default());
    }

    #[test]
    fn what_is_not_there_does_nothing() {
        let group = Groups::default().of(CallId::mint());
        assert!(group.create(5).unwrap().enter(1).is_ok(), "nobody was moved");
        assert!(!group.counts() && !group.hold() && !group.refused());
        assert!(group.processes().is_empty() && group.remove());
        assert!(Groups::new(Confine::Off, Path::new("")).is_ok_and(|groups| !groups.of(CallId::mint()).counts()));
        assert!(Groups::new(Confine::Require, Path::new("/nowhere/at/all")).is_err());
    }
}
