//! The current policies, swapped as a whole when their files change.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::error::PolicyError;
use crate::pack::Files;
use crate::policies::Policies;

/// A cheap handle on the current policies; clones share them. Decisions go on with the old set while a new one is read.
#[derive(Clone, Debug)]
pub struct PolicyStore(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// None for the shipped set, which never changes.
    dir: Option<PathBuf>,
    current: RwLock<Arc<Policies>>,
    /// Held over a reload, so that two don't overtake each other.
    looked: Mutex<Looked>,
}

/// What the last look at the files brought.
#[derive(Debug)]
struct Looked {
    version: String,
    failure: Option<String>,
}

impl PolicyStore {
    /// The policies of a directory.
    ///
    /// # Errors
    /// If they can't be read or are not valid.
    pub fn open(dir: &Path) -> Result<Self, PolicyError> {
        Ok(Self::new(Some(dir.to_owned()), Policies::load(dir)?))
    }

    /// The policies of a directory, or the shipped ones if there is no such directory.
    ///
    /// # Errors
    /// If the directory is there, but can't be read or is not valid.
    pub fn open_or_embedded(dir: &Path) -> Result<Self, PolicyError> {
        match Policies::load(dir) {
            Err(PolicyError::Read { path, source }) if path == dir && source.kind() == std::io::ErrorKind::NotFound => {
                tracing::warn!(dir = %dir.display(), "no directory of policies; the shipped ones are used");
                Ok(Self::embedded())
            }
            loaded => Ok(Self::new(Some(dir.to_owned()), loaded?)),
        }
    }

    /// The shipped policies, which are never reloaded.
    #[must_use]
    pub fn embedded() -> Self {
        Self::new(None, Policies::embedded())
    }

    fn new(dir: Option<PathBuf>, policies: Policies) -> Self {
        let looked = Looked { version: policies.version().to_owned(), failure: None };
        let current = RwLock::new(Arc::new(policies));
        Self(Arc::new(Inner { dir, current, looked: Mutex::new(looked) }))
    }

    /// The policies in force. Keep them for one decision, not longer.
    #[must_use]
    pub fn current(&self) -> Arc<Policies> {
        Arc::clone(&self.0.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the files again, and returns the new version if it differs. The old set stays in force if the new is invalid.
    ///
    /// # Errors
    /// If the files can't be read or are not valid.
    pub fn reload(&self) -> Result<Option<String>, PolicyError> {
        self.look(false)
    }

    /// As [`reload`](Self::reload), but judges each content of the files once: cheap enough to call every second, and an
    /// invalid set is reported once.
    ///
    /// # Errors
    /// If the files have changed since the last look and can't be read or are not valid.
    pub fn reload_if_changed(&self) -> Result<Option<String>, PolicyError> {
        self.look(true)
    }

    /// Why the last look at the files failed, as long as it is not mended.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.looked().failure.clone()
    }

    fn look(&self, once: bool) -> Result<Option<String>, PolicyError> {
        let Some(dir) = &self.0.dir else { return Ok(None) };
        let mut looked = self.looked();
        let files = Files::read(dir);
        // An unreadable directory has no content, so its complaint stands for it.
        let version = files.as_ref().map_or_else(ToString::to_string, Files::version);
        if once && version == looked.version {
            return Ok(None);
        }
        version.clone_into(&mut looked.version);
        if version == self.current().version() {
            looked.failure = None;
            return Ok(None);
        }
        match files.and_then(|files| Policies::from_files(&files)) {
            Ok(policies) => {
                *self.0.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(policies);
                looked.failure = None;
                Ok(Some(version))
            }
            Err(error) => {
                looked.failure = Some(error.to_string());
                Err(error)
            }
        }
    }

    fn looked(&self) -> MutexGuard<'_, Looked> {
        self.0.looked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
