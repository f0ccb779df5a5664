//! Who calls, and what they may do. Every path below `/v1` passes here first; a handler names the role that it needs by
//! taking [`Viewer`], [`User`], [`Operator`], [`Admin`] or [`Publisher`].

mod issuers;
mod revocations;
pub(crate) mod secret;
pub(crate) mod session;
mod tokens;
mod watched;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use engine::{ApiTokens, TokenRow};
use futures::StreamExt as _;
use kernel::{TenantId, Timestamp};
use serde::de::value::StrDeserializer;
use serde::de::{IntoDeserializer as _, value};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::problem::Problem;

pub(crate) use issuers::{IssuerFileError, Issuers};
pub(crate) use revocations::Revocations;
pub(crate) use tokens::{TokenFileError, Tokens};

/// What a token allows. The first four contain each other; a publisher may hand in events and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// May hand in events.
    Publisher,
    /// May look.
    Viewer,
    /// May also start, talk to and cancel runs.
    User,
    /// May also decide approvals, hold runs and change budgets.
    Operator,
    /// May also change agents.
    Admin,
}

impl Role {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Publisher => "publisher",
            Self::Viewer => "viewer",
            Self::User => "user",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }

    fn includes(self, needed: Self) -> bool {
        match needed {
            Self::Publisher => self == Self::Publisher || self >= Self::User,
            _ => self >= needed,
        }
    }
}

/// An authenticated caller.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Principal {
    /// The name of the token, or the issuer of a person, `#`, and what it calls them; kept with what they do. No two callers of a
    /// tenant have the same: no token is named like a person (see [`is_persons`]).
    pub name: String,
    /// All that it can see.
    pub tenant: TenantId,
    /// What it may do.
    pub roles: Vec<Role>,
    /// Which token, if it is one of those that are kept.
    pub token_id: Option<Uuid>,
    /// What to call them, as far as their issuer says. It may change, and others may have the same.
    pub display: Option<String>,
    /// When they are not let in any more with what they have shown.
    pub until: Option<Timestamp>,
}

/// Whether a name is one that people have who come with a token of an issuer.
pub(crate) fn is_persons(name: &str) -> bool {
    name.starts_with("https://") || name.starts_with("http://")
}

impl Principal {
    /// Whether one of its roles includes this one.
    pub(crate) fn may(&self, needed: Role) -> bool {
        self.roles.iter().any(|role| role.includes(needed))
    }

    /// The names of its roles, with those that they include.
    pub(crate) fn role_names(&self) -> Vec<String> {
        let all = [Role::Viewer, Role::User, Role::Operator, Role::Admin, Role::Publisher];
        all.into_iter().filter(|role| self.may(*role)).map(|role| role.as_str().to_owned()).collect()
    }
}

/// How callers are known.
#[derive(Clone)]
pub(crate) enum Auth {
    /// By their tokens: of the file, of the database, and of identity providers.
    Tokens {
        /// Those that an operator of the machine set down.
        file: Option<Arc<Tokens>>,
        /// Those that admins made.
        kept: ApiTokens,
        /// Those whose tokens are believed.
        issuers: Option<Issuers>,
        /// Tells of tokens that were revoked.
        revocations: Revocations,
    },
    /// Not at all: everybody is the local operator.
    Off,
}

/// What a caller showed, and who came with it.
struct Shown {
    proof: Proof,
    principal: Principal,
}

enum Proof {
    Nothing,
    /// The hash of a token of the file.
    OfFile([u8; 32]),
    /// A token that is kept.
    Kept(Uuid),
    /// The token of an issuer.
    Signed(String),
}

impl Auth {
    async fn identify(&self, token: Result<Option<String>, Problem>) -> Result<Shown, Problem> {
        let (file, kept, issuers) = match self {
            Self::Tokens { file, kept, issuers, .. } => (file, kept, issuers),
            Self::Off => {
                let (name, tenant, roles) = ("local".to_owned(), TenantId::default(), vec![Role::Admin]);
                let principal = Principal { name, tenant, roles, token_id: None, display: None, until: None };
                return Ok(Shown { proof: Proof::Nothing, principal });
            }
        };
        let Some(token) = token? else { return Err(unknown_token()) };
        let hash = secret::hash(&token);
        if let Some(principal) = find(file.as_ref(), &hash) {
            return Ok(Shown { proof: Proof::OfFile(hash), principal });
        }
        if let Some(issuers) = issuers.as_ref().filter(|_| issuers::may_be_signed(&token)) {
            let principal = issuers.identify(&token).await?;
            return Ok(Shown { proof: Proof::Signed(token), principal });
        }
        if !secret::is_well_formed(&token) {
            return Err(unknown_token());
        }
        let row = kept.find(&hash).await?.ok_or_else(unknown_token)?;
        Ok(Shown { proof: Proof::Kept(row.token_id), principal: row.into() })
    }

    /// Whether what was shown a while ago would still be let in, as the same. What can't be found out is let be until it is over by
    /// itself.
    async fn is_good(&self, Shown { proof, principal }: &Shown) -> bool {
        if principal.is_over() {
            return false;
        }
        match (self, proof) {
            (Self::Tokens { file, .. }, Proof::OfFile(hash)) => find(file.as_ref(), hash).as_ref() == Some(principal),
            // What such a token allows never changes.
            (Self::Tokens { kept, .. }, Proof::Kept(id)) => kept.is_good(*id).await.unwrap_or(true),
            (Self::Tokens { issuers: Some(issuers), .. }, Proof::Signed(token)) => {
                issuers.still_lets_in(token, principal).await
            }
            _ => true,
        }
    }

    /// Comes back once what was shown lets nobody in any more.
    async fn until_void(self, shown: Shown) {
        let Self::Tokens { revocations, .. } = &self else { return std::future::pending().await };
        let mut revocations = revocations.listen();
        while self.is_good(&shown).await {
            tokio::select! {
                () = revocations.next() => {}
                () = shown.principal.over() => {}
            }
        }
    }
}

fn find(file: Option<&Arc<Tokens>>, hash: &[u8; 32]) -> Option<Principal> {
    file.and_then(|file| file.find(hash, Timestamp::now()))
}

impl Principal {
    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| until <= Timestamp::now())
    }

    /// For how long they are still let in, if there is an end to it.
    pub(crate) fn left(&self) -> Option<Duration> {
        let until = self.until?;
        Some(Duration::try_from(until.duration_since(Timestamp::now())).unwrap_or_default())
    }

    /// Comes back when they are not let in any more, to the moment, if there is an end to it.
    async fn over(&self) {
        match self.left() {
            Some(left) => tokio::time::sleep(left).await,
            None => std::future::pending().await,
        }
    }
}

impl From<TokenRow> for Principal {
    fn from(row: TokenRow) -> Self {
        // A role that this version does not know allows nothing.
        let roles = row.roles.iter().filter_map(|role| {
            let word: StrDeserializer<'_, value::Error> = role.as_str().into_deserializer();
            Role::deserialize(word).ok()
        });
        Self {
            name: row.name,
            tenant: row.tenant,
            roles: roles.collect(),
            token_id: Some(row.token_id),
            display: None,
            until: Some(row.expires_at),
        }
    }
}

/// The token that a request carries.
fn token_of(request: &Request) -> Result<Option<String>, Problem> {
    let token = match request.headers().get(header::AUTHORIZATION) {
        Some(value) => bearer(value).map(str::to_owned),
        None => match session::token(request.headers()) {
            Some(token) if session::is_own(request) => Some(token),
            Some(_) => return Err(foreign_page()),
            None => {
                let challenge = r#"Bearer realm="escapement""#;
                return Err(unauthorized("missing_token", "the call carries no token", challenge));
            }
        },
    };
    Ok(token)
}

fn unknown_token() -> Problem {
    let challenge = r#"Bearer realm="escapement", error="invalid_token""#;
    unauthorized("invalid_token", "the token is not known here, was revoked, or has expired", challenge)
}

/// The token of an `Authorization` header.
pub(crate) fn bearer(value: &HeaderValue) -> Option<&str> {
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn foreign_page() -> Problem {
    Problem::new(StatusCode::FORBIDDEN, "foreign_page", "a page of another origin may not use this session")
        .field("Origin")
        .remedy("send the token in the header `Authorization` instead")
}

fn unauthorized(code: &'static str, detail: &str, challenge: &'static str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, code, detail)
        .field("Authorization")
        .remedy("send `Authorization: Bearer <token>`; `.local/env` has one for the local stack (ESC_TOKEN)")
        .header(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge))
}

/// Lets known callers through.
pub(crate) async fn authenticate(State(auth): State<Auth>, mut request: Request, next: Next) -> Response {
    let token = token_of(&request);
    match auth.identify(token).await {
        Ok(shown) => {
            request.extensions_mut().insert(shown.principal.clone());
            let response = next.run(request).await;
            if is_stream(&response) { end_with(response, auth.until_void(shown)) } else { response }
        }
        Err(problem) => {
            metrics::counter!("ingress_unauthenticated_total").increment(1);
            problem.into_response()
        }
    }
}

fn is_stream(response: &Response) -> bool {
    response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// The same answer, which ends when its reader would not be let in any more.
fn end_with(response: Response, void: impl Future<Output = ()> + Send + 'static) -> Response {
    response.map(|body| Body::from_stream(body.into_data_stream().take_until(Box::pin(void))))
}

fn require(parts: &Parts, needed: Role) -> Result<Principal, Problem> {
    let principal = parts.extensions.get::<Principal>().ok_or_else(|| {
        // A route outside of `authenticate`: refusing is the safe side.
        unauthorized("missing_token", "the call carries no token", r#"Bearer realm="escapement""#)
    })?;
    if principal.may(needed) {
        return Ok(principal.clone());
    }
    let needed = needed.as_str();
    Err(Problem::new(
        StatusCode::FORBIDDEN,
        "insufficient_role",
        format!("`{}` may not do this: it takes the role `{needed}`", principal.name),
    )
    .remedy(format!("use a token with the role `{needed}`"))
    .with("required_role", needed)
    .header(
        header::WWW_AUTHENTICATE,
        HeaderValue::from_static(r#"Bearer realm="escapement", error="insufficient_scope""#),
    ))
}

macro_rules! guards {
    ($($(#[$doc:meta])* $name:ident)*) => {
        $(
            $(#[$doc])*
            pub(crate) struct $name(pub Principal);

            impl<S: Send + Sync> FromRequestParts<S> for $name {
                type Rejection = Problem;

                async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
                    require(parts, Role::$name).map(Self)
                }
            }
        )*
    };
}

guards! {
    /// A caller who may look.
    Viewer
    /// A caller who may start, talk to and cancel runs.
    User
    /// A caller who may decide approvals, hold runs and change budgets.
    Operator
    /// A caller who may change agents.
    Admin
    /// A caller who may hand in events.
    Publisher
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_contain_each_other_and_a_publisher_stands_aside() {
        assert!(Role::Admin.includes(Role::Viewer) && Role::Operator.includes(Role::User));
        assert!(!Role::User.includes(Role::Operator) && !Role::Viewer.includes(Role::User));
        assert!(Role::Publisher.includes(Role::Publisher) && !Role::Publisher.includes(Role::Viewer));
        assert!(Role::User.includes(Role::Publisher) && !Role::Viewer.includes(Role::Publisher));
    }
}
