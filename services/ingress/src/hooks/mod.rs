//! Webhooks: who may deliver what, how a delivery proves where it comes from, and the event that it becomes.
//!
//! A hook is a file in `hooks/` of the agents' folder. What it lets in is an event from outside like any other: untrusted,
//! whoever signed it. Files and secrets are read again while the process runs, so that a secret is rotated by adding the new
//! one, telling the sender, and taking the old one away.

mod file;
mod map;
mod secrets;
mod verify;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub(crate) use file::{Hook, HookFileError};
pub(crate) use map::{Delivered, Unreadable, delivered};
pub(crate) use secrets::Secrets;
pub(crate) use verify::{Unsigned, verify};

/// How often files and secrets are read again.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The hooks by name.
type Named = BTreeMap<String, Arc<Hook>>;

/// The hooks of this process. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Hooks {
    dir: PathBuf,
    secrets: Secrets,
    current: Arc<RwLock<Arc<Named>>>,
}

impl Hooks {
    /// Reads the files of a folder; one that is not there has none.
    ///
    /// # Errors
    /// When a file is wrong. A secret that is missing is not: its hook says so to whoever delivers.
    pub(crate) fn load(dir: &Path, secrets: Secrets) -> Result<Self, HookFileError> {
        let hooks = file::read(dir, &secrets)?;
        for hook in hooks.values() {
            if let Some(missing) = &hook.missing {
                let (name, secret) = (&hook.name, &missing.0);
                tracing::warn!(hook = name, secret, "a webhook takes nothing: {missing}");
            }
        }
        Ok(Self { dir: dir.to_owned(), secrets, current: Arc::new(RwLock::new(Arc::new(hooks))) })
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<Hook>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// Follows changes until the token is cancelled. Files that can't be used change nothing.
    pub(crate) async fn follow(self, stop: CancellationToken) {
        let mut every = tokio::time::interval(LOOK_EVERY);
        let mut complained = None;
        while stop.run_until_cancelled(every.tick()).await.is_some() {
            let (dir, secrets) = (self.dir.clone(), self.secrets.clone());
            let Ok(read) = tokio::task::spawn_blocking(move || file::read(&dir, &secrets)).await else { continue };
            match read {
                Ok(hooks) => {
                    complained = None;
                    self.replace(hooks);
                }
                Err(error) => {
                    let words = error.to_string();
                    if complained.as_ref() != Some(&words) {
                        tracing::error!(%error, "the webhooks changed and can't be used: the old ones stay");
                    }
                    complained = Some(words);
                }
            }
        }
    }

    fn replace(&self, hooks: Named) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if **current != hooks {
            tracing::info!(hooks = hooks.len(), "read the webhooks again");
            *current = Arc::new(hooks);
        }
    }
}
