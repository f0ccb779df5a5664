//! Secrets by reference, as tools have them: `secret:NAME` is `ESC_SECRET_NAME`, or a file of that name.

use std::path::PathBuf;
use std::sync::Arc;

use service::Secret;

/// What the environment variable of a secret begins with.
const PREFIX: &str = "ESC_SECRET_";
/// What a reference begins with.
const REFERENCE: &str = "secret:";

/// A secret that was referred to and is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the secret `{0}` is not set: give it as ESC_SECRET_{0}, or as a file of that name in ESC_SECRETS_DIR")]
pub(crate) struct MissingSecret(pub String);

/// What the environment says of a variable.
type Environment = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Where secrets are. Cheap to clone; never printed.
#[derive(Clone)]
pub(crate) struct Secrets {
    dir: Option<PathBuf>,
    environment: Environment,
}

impl Secrets {
    /// Those of this process, and the files of a folder; an empty path is none.
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self::of(dir, |name| std::env::var(name).ok())
    }

    /// As [`Secrets::new`], with an environment of its own.
    pub(crate) fn of(dir: PathBuf, environment: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Self { dir: Some(dir).filter(|dir| !dir.as_os_str().is_empty()), environment: Arc::new(environment) }
    }

    /// The value behind a name. A file goes first: it may be rotated while the process runs.
    pub(super) fn get(&self, name: &str) -> Result<Secret, MissingSecret> {
        let file = self.dir.as_ref().and_then(|dir| std::fs::read_to_string(dir.join(name)).ok());
        let file = file.map(|text| text.trim_end_matches(['\r', '\n']).to_owned());
        let value = file.or_else(|| (self.environment)(&format!("{PREFIX}{name}")));
        value.filter(|value| !value.is_empty()).map(Secret::new).ok_or_else(|| MissingSecret(name.to_owned()))
    }
}

/// The name in `secret:NAME`.
pub(super) fn referred(reference: &str) -> Option<&str> {
    let name = reference.strip_prefix(REFERENCE)?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (!name.is_empty() && name.bytes().all(plain)).then_some(name)
}
