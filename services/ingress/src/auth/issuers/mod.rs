//! People who come with a token of their identity provider: an access token that is a JWT (RFC 9068), or an ID token of OpenID
//! Connect, signed with a key that the provider publishes.
//!
//! | to change | open |
//! | --- | --- |
//! | what may be said of an issuer | `file.rs` |
//! | what is known of a token before anybody vouches for it | `jwt.rs` |
//! | which keys are good, and for what | `keys.rs` |
//! | how keys are got, and how long they count | `provider.rs` |
//! | what a token has to say, and who comes with it | `claims.rs` |
//! | what is answered to one that is refused | `refusal.rs` |
//!
//! [`jsonwebtoken`] reads tokens, and checks signatures and registered claims. Beside it stand here: which key may sign with what, so
//! that a token never chooses; a bound of sizes; `typ`, `crit`, `iat` and how long a token may last; ID tokens and access tokens.

mod claims;
mod file;
mod jwt;
mod keys;
mod provider;
mod refusal;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use kernel::Timestamp;
use tokio_util::sync::CancellationToken;

use super::{Principal, Revocations};
use file::Issuer;
use jsonwebtoken::Validation;
use jwt::Jwt;
use provider::Provider;

pub(crate) use file::IssuerFileError;
pub(crate) use refusal::Refusal;

/// How often the file is looked at, and whether keys are due.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The issuers of a file. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Issuers {
    path: PathBuf,
    http: reqwest::Client,
    current: Arc<RwLock<Arc<Loaded>>>,
}

struct Loaded {
    by_name: BTreeMap<String, Arc<Known>>,
    modified: Option<SystemTime>,
}

struct Known {
    issuer: Issuer,
    rules: Validation,
    provider: Arc<Provider>,
}

/// Whether it may be a token of an issuer: the beginning of a JSON object in base64, with something behind it.
pub(super) fn may_be_signed(token: &str) -> bool {
    token.starts_with("ey") && token.contains('.')
}

impl Issuers {
    /// Reads the file. Nobody is asked for keys yet: that is for [`Issuers::follow`], or the first who comes.
    pub(crate) fn load(path: &Path) -> Result<Self, IssuerFileError> {
        let http = provider::client()?;
        let loaded = load(path, &http, &BTreeMap::new())?;
        Ok(Self { path: path.to_owned(), http, current: Arc::new(RwLock::new(Arc::new(loaded))) })
    }

    /// Who comes with a token.
    pub(super) async fn identify(&self, token: &str) -> Result<Principal, Refusal> {
        let known = self.look_into(token).await;
        if let Err(refusal) = &known {
            metrics::counter!("ingress_jwt_refused_total", "reason" => refusal.reason()).increment(1);
        }
        known
    }

    async fn look_into(&self, token: &str) -> Result<Principal, Refusal> {
        let jwt = Jwt::read(token)?;
        let known = self.current().by_name.get(&jwt.issuer).cloned().ok_or(Refusal::UnknownIssuer)?;
        let claims = known.provider.verify(&jwt, &known.rules).await?;
        claims::principal(jwt.header.typ.as_deref(), &claims, &known.issuer, Timestamp::now())
    }

    /// Keeps keys fresh, and follows changes of the file, until the token is cancelled. A file that can't be used changes nothing.
    /// `changed` hears of each change.
    pub(crate) async fn follow(self, changed: Revocations, stop: CancellationToken) {
        let mut every = tokio::time::interval(LOOK_EVERY);
        let mut complained = None;
        while stop.run_until_cancelled(every.tick()).await.is_some() {
            let current = self.current();
            current.by_name.values().for_each(|known| known.provider.refresh());
            let modified = file::modified(&self.path);
            if modified == current.modified || modified == complained {
                continue;
            }
            match load(&self.path, &self.http, &current.by_name) {
                Ok(loaded) => {
                    tracing::info!(issuers = loaded.by_name.len(), "read the file of issuers again");
                    *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(loaded);
                    changed.tell();
                }
                Err(error) => {
                    tracing::error!(%error, "the file of issuers changed and can't be used: what it said before holds");
                    complained = modified;
                }
            }
        }
    }

    fn current(&self) -> Arc<Loaded> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The issuers of a file. Whose keys are where they were keeps those that were read.
fn load(path: &Path, http: &reqwest::Client, before: &BTreeMap<String, Arc<Known>>) -> Result<Loaded, IssuerFileError> {
    // Before the content: a change in between is then seen at the next look.
    let modified = file::modified(path);
    let known = file::read(path)?.into_iter().map(|issuer| {
        let same = before.get(&issuer.issuer).map(|known| &known.provider).filter(|provider| provider.is_of(&issuer));
        let provider = same.cloned().unwrap_or_else(|| Arc::new(Provider::new(&issuer, http.clone())));
        (issuer.issuer.clone(), Arc::new(Known { rules: issuer.validation(), issuer, provider }))
    });
    Ok(Loaded { by_name: known.collect(), modified })
}
