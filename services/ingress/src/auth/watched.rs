//! A file that is read again when it changes.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Where a file is, and how it looked when it was read, or tried, last.
#[derive(Clone, Debug)]
pub(super) struct Watched {
    path: PathBuf,
    tried: Option<Stamp>,
}

/// What tells one content from the next. The time alone does not: a file that was read while it was being written has the same in the
/// end if both are within one tick of its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    modified: SystemTime,
    bytes: u64,
}

impl Watched {
    /// To be made before the file is read: a change in between is then seen at the next look.
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), tried: stamp(path) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is to be read again, once for each change. That it is not there any more is one.
    pub(super) fn has_changed(&mut self) -> bool {
        let now = stamp(&self.path);
        std::mem::replace(&mut self.tried, now) != now
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = std::fs::metadata(path).ok()?;
    Some(Stamp { modified: metadata.modified().ok()?, bytes: metadata.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_seen_once_and_so_is_the_end_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let write = |text: &str, seconds: u64| {
            std::fs::write(&path, text).unwrap();
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            std::fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        };
        write("- half", 1);
        let mut file = Watched::new(&path);
        let mut look = || (file.has_changed(), file.has_changed());
        assert_eq!(look(), (false, false));
        write("- half a list", 1);
        assert_eq!(look(), (true, false), "within the same tick");
        write("- HALF A LIST", 2);
        assert_eq!(look(), (true, false), "of the same length");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(look(), (true, false), "it is gone");
        write("- HALF A LIST", 2);
        assert_eq!(look(), (true, false), "it is there again");
    }
}
