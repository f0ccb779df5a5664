//! What connections are made with.

use std::path::PathBuf;

use super::oauth::Tokens;
use crate::config::Config;
use crate::secrets::Secrets;

/// What connections are made with. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Means {
    pub(super) secrets: Secrets,
    pub(super) tokens: Tokens,
    /// Servers that are processes run in folders below this one.
    pub(super) folder: PathBuf,
}

impl Means {
    /// With these secrets; servers that are processes run in folders below `folder`, tokens are kept in `tokens`.
    fn new(secrets: Secrets, tokens: PathBuf, folder: PathBuf) -> Self {
        Self { tokens: Tokens::new(tokens, secrets.clone()), secrets, folder }
    }

    /// As an executor that is configured like this makes them.
    ///
    /// # Errors
    /// If there is no current folder that relative paths could start from.
    pub fn of(config: &Config) -> std::io::Result<Self> {
        let dir = Some(config.secrets_dir.clone()).filter(|dir| !dir.as_os_str().is_empty());
        // What is not text is no secret of ours.
        let env =
            std::env::vars_os().filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)));
        Self::with(config, Secrets::new(env, dir))
    }

    /// The same, with secrets that are there already.
    pub(crate) fn with(config: &Config, secrets: Secrets) -> std::io::Result<Self> {
        let folder = std::path::absolute(config.common.workspaces.join(".mcp"))?;
        let own = config.secrets_dir.as_os_str().is_empty();
        let tokens = if own { folder.join("tokens") } else { config.secrets_dir.clone() };
        Ok(Self::new(secrets, tokens, folder))
    }

    /// For whoever is no executor: with the secrets of an environment (`ESC_SECRET_<NAME>`).
    #[must_use]
    pub fn standalone(env: impl IntoIterator<Item = (String, String)>, tokens: PathBuf, folder: PathBuf) -> Self {
        let secrets = Secrets::new(env, Some(tokens.clone()));
        Self::new(secrets, tokens, folder)
    }

    /// Where tokens are kept.
    #[must_use]
    pub const fn tokens(&self) -> &Tokens {
        &self.tokens
    }
}
