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
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use kernel::Timestamp;
use tokio_util::sync::CancellationToken;

use super::watched::Watched;
use super::{Principal, Revocations};
use file::Issuer;
use jsonwebtoken::Validation;
use jwt::Jwt;
use provider::{Clients, Provider};
use refusal::Refusal;

pub(crate) use file::IssuerFileError;

/// How often the file is looked at, and whether keys are due.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The issuers of a file. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Issuers {
    file: Watched,
    clients: Clients,
    current: Arc<RwLock<Arc<ByName>>>,
}

type ByName = BTreeMap<String, Arc<Known>>;

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
        let (file, clients) = (Watched::new(path), Clients::new()?);
        let loaded = load(path, &clients, &BTreeMap::new())?;
        Ok(Self { file, clients, current: Arc::new(RwLock::new(Arc::new(loaded))) })
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
        let known = self.of(&jwt)?;
        let claims = known.provider.verify(&jwt, &known.rules).await?;
        claims::principal(jwt.header.typ.as_deref(), &claims, &known.issuer, Timestamp::now())
    }

    /// Whether a token that let somebody in a while ago would do so now, as the same. While the keys can't be had, what it says is
    /// held against the file all the same, so that whoever is cut off there is out: its signature was good, and does not change.
    pub(super) async fn still_lets_in(&self, token: &str, principal: &Principal) -> bool {
        let now = match self.identify(token).await {
            Err(Refusal::Unavailable) => self.by_its_word(token),
            known => known,
        };
        now.as_ref() == Ok(principal)
    }

    /// Who comes with a token whose signature was found good before. That it is not over is for the caller to see.
    fn by_its_word(&self, token: &str) -> Result<Principal, Refusal> {
        let jwt = Jwt::read(token)?;
        let known = self.of(&jwt)?;
        let claims = jwt.claims()?;
        claims::check_audience(&claims, &known.issuer)?;
        claims::principal(jwt.header.typ.as_deref(), &claims, &known.issuer, Timestamp::now())
    }

    fn of(&self, jwt: &Jwt<'_>) -> Result<Arc<Known>, Refusal> {
        self.current().get(&jwt.issuer).cloned().ok_or(Refusal::UnknownIssuer)
    }

    /// Keeps keys fresh, and follows changes of the file, until the token is cancelled. A file that can't be used changes nothing.
    /// `changed` hears of each change.
    pub(crate) async fn follow(self, changed: Revocations, stop: CancellationToken) {
        let mut every = tokio::time::interval(LOOK_EVERY);
        let mut file = self.file.clone();
        while stop.run_until_cancelled(every.tick()).await.is_some() {
            let current = self.current();
            current.values().for_each(|known| known.provider.refresh());
            if !file.has_changed() {
                continue;
            }
            match load(file.path(), &self.clients, &current) {
                Ok(loaded) => {
                    tracing::info!(issuers = loaded.len(), "read the file of issuers again");
                    *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(loaded);
                    changed.tell();
                }
                Err(error) => {
                    tracing::error!(%error, "the file of issuers changed and can't be used: what it said before holds");
                }
            }
        }
    }

    fn current(&self) -> Arc<ByName> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The issuers of a file. Whose keys are where they were keeps those that were read.
fn load(path: &Path, clients: &Clients, before: &ByName) -> Result<ByName, IssuerFileError> {
    let known = file::read(path)?.into_iter().map(|issuer| {
        let same = before.get(&issuer.issuer).map(|known| &*known.provider);
        let provider = Arc::new(Provider::new(&issuer, clients.clone(), same));
        (issuer.issuer.clone(), Arc::new(Known { rules: issuer.validation(), issuer, provider }))
    });
    Ok(known.collect())
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use serde_json::json;

    use super::*;

    /// An issuer that nobody can ask for keys.
    const RULES: &str = "
- issuer: http://127.0.0.1:1
  audiences: [escapement]
  tenant: acme
  roles: { claim: groups, map: { see: viewer } }
";

    fn issuers(rules: &str) -> Issuers {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), rules).unwrap();
        Issuers::load(file.path()).unwrap()
    }

    #[tokio::test]
    async fn whoever_is_cut_off_while_keys_can_not_be_had_is_out() {
        let part = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let now = Timestamp::now().as_second();
        let claims = json!({
            "iss": "http://127.0.0.1:1", "aud": ["other", "escapement"], "sub": "ann", "jti": "t-1", "iat": now - 1,
            "exp": now + 3600, "groups": ["see"],
        });
        let token = format!("{}.{}.AA", part(json!({"alg": "ES256", "kid": "k"})), part(claims));
        let ann = issuers(RULES).by_its_word(&token).unwrap();
        assert_eq!((ann.name.as_str(), &ann.roles[..]), ("http://127.0.0.1:1#ann", &[crate::auth::Role::Viewer][..]));
        assert_eq!(issuers(RULES).identify(&token).await, Err(Refusal::Unavailable), "nobody comes in that way");
        let refuse = |what: &str| format!("{RULES}  refuse: {{ {what} }}\n");
        for (rules, stays) in [
            (RULES.to_owned(), true),
            (refuse("people: [bob], tokens: [t-2]"), true),
            (refuse("people: [ann]"), false),
            (refuse("tokens: [t-1]"), false),
            (refuse("issued_before: 2100-01-01T00:00:00Z"), false),
            (format!("{RULES}  longest: 1m\n"), false),
            (RULES.replace("[escapement]", "[escapement-2]"), false),
            (RULES.replace("tenant: acme", "tenant: other"), false),
            (RULES.replace("see: viewer", "see: operator"), false),
            (RULES.replace("127.0.0.1:1", "127.0.0.1:2"), false),
            ("[]".to_owned(), false),
        ] {
            assert_eq!(issuers(&rules).still_lets_in(&token, &ann).await, stays, "{rules}");
        }
    }
}
