//! API tokens: a file of their hashes, read again when it changes.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use kernel::{TenantId, Timestamp};
use serde::Deserialize;
use subtle::{ConditionallySelectable, ConstantTimeEq};
use tokio_util::sync::CancellationToken;

use super::watched::Watched;
use super::{Principal, Revocations, Role, is_persons};

/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The tokens of a file.
pub(crate) struct Tokens {
    file: Watched,
    current: RwLock<Arc<Vec<Token>>>,
}

struct Token {
    principal: Principal,
    hash: [u8; 32],
    expires: Option<Timestamp>,
}

/// A row of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    tenant: TenantId,
    roles: Vec<Role>,
    sha256: String,
    #[serde(default)]
    expires: Option<Timestamp>,
}

/// Why the token file can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenFileError {
    /// It can't be read.
    #[error("can't read the token file {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// It is not a list of tokens.
    #[error("the token file {} is not a JSON list of {{name, tenant, roles, sha256, expires?}}: {source}", path.display())]
    Parse { path: PathBuf, source: serde_json::Error },
    /// A hash is none.
    #[error("token `{name}` in {}: `sha256` is not 64 hex digits", path.display())]
    Hash { path: PathBuf, name: String },
    /// A name is one that people have.
    #[error("token `{name}` in {}: `name` looks like that of a person whom an issuer knows: choose one that is no URL", path.display())]
    Name { path: PathBuf, name: String },
}

impl Tokens {
    /// Reads the file.
    pub(crate) fn load(path: &Path) -> Result<Self, TokenFileError> {
        let file = Watched::new(path);
        let current = RwLock::new(Arc::new(read(path)?));
        Ok(Self { file, current })
    }

    /// Whose token has this hash. Takes as long for any, known or not.
    pub(crate) fn find(&self, hash: &[u8; 32], now: Timestamp) -> Option<Principal> {
        let current = Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner));
        // 0 stands for none: all are compared, so that the time tells nothing of where the match is.
        let mut found = 0_u64;
        for (number, token) in (1_u64..).zip(current.iter()) {
            found.conditional_assign(&number, token.hash.ct_eq(hash));
        }
        let index = usize::try_from(found).ok()?.checked_sub(1)?;
        let token = current.get(index)?;
        token.expires.is_none_or(|expires| now < expires).then(|| token.principal.clone())
    }

    /// Follows changes of the file until the token is cancelled. A file that can't be used changes nothing.
    /// `changed` hears of each.
    pub(crate) async fn follow(self: Arc<Self>, changed: Revocations, stop: CancellationToken) {
        let mut every = tokio::time::interval(LOOK_EVERY);
        let mut file = self.file.clone();
        while stop.run_until_cancelled(every.tick()).await.is_some() {
            if !file.has_changed() {
                continue;
            }
            match read(file.path()) {
                Ok(tokens) => {
                    tracing::info!(tokens = tokens.len(), "read the token file again");
                    *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(tokens);
                    changed.tell();
                }
                Err(error) => {
                    tracing::error!(%error, "the token file changed and can't be used: the old tokens stay");
                }
            }
        }
    }
}

fn read(path: &Path) -> Result<Vec<Token>, TokenFileError> {
    let text = std::fs::read(path).map_err(|source| TokenFileError::Read { path: path.to_owned(), source })?;
    let rows: Vec<Row> =
        serde_json::from_slice(&text).map_err(|source| TokenFileError::Parse { path: path.to_owned(), source })?;
    let tokens = rows.into_iter().map(|row| {
        if is_persons(&row.name) {
            return Err(TokenFileError::Name { path: path.to_owned(), name: row.name });
        }
        let mut hash = [0; 32];
        hex::decode_to_slice(&row.sha256, &mut hash)
            .map_err(|_| TokenFileError::Hash { path: path.to_owned(), name: row.name.clone() })?;
        let (name, tenant, roles) = (row.name, row.tenant, row.roles);
        let principal = Principal { name, tenant, roles, token_id: None, display: None, until: row.expires };
        Ok(Token { principal, hash, expires: row.expires })
    });
    tokens.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::secret;

    fn file(rows: &serde_json::Value) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), rows.to_string()).unwrap();
        file
    }

    fn hash(token: &str) -> String {
        hex::encode(secret::hash(token))
    }

    fn find(tokens: &Tokens, token: &str, now: Timestamp) -> Option<Principal> {
        tokens.find(&secret::hash(token), now)
    }

    #[test]
    fn a_token_is_found_by_its_hash_until_it_expires() {
        let file = file(&serde_json::json!([
            {"name": "a", "tenant": "acme", "roles": ["viewer"], "sha256": hash("one")},
            {"name": "b", "tenant": "acme", "roles": ["operator"], "sha256": hash("two"), "expires": "2030-01-01T00:00:00Z"},
        ]));
        let tokens = Tokens::load(file.path()).unwrap();
        let now: Timestamp = "2029-12-31T23:59:59Z".parse().unwrap();
        assert_eq!(find(&tokens, "one", now).unwrap().name, "a");
        assert_eq!(find(&tokens, "two", now).unwrap().roles, [Role::Operator]);
        assert!(find(&tokens, "two", "2030-01-01T00:00:00Z".parse().unwrap()).is_none());
        for wrong in ["", "One", "one ", &hash("one")] {
            assert!(find(&tokens, wrong, now).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_bad_file_is_named() {
        for rows in [
            serde_json::json!({}),
            serde_json::json!([{"name": "a", "tenant": "Acme", "roles": [], "sha256": hash("x")}]),
            serde_json::json!([{"name": "a", "tenant": "acme", "roles": ["root"], "sha256": hash("x")}]),
            serde_json::json!([{"name": "a", "tenant": "acme", "roles": [], "sha256": "abc"}]),
            serde_json::json!([{"name": "https://id.example.com#ann", "tenant": "acme", "roles": [], "sha256": hash("x")}]),
        ] {
            assert!(Tokens::load(file(&rows).path()).is_err(), "{rows}");
        }
        assert!(Tokens::load(Path::new("/nowhere/tokens.json")).is_err());
    }
}
