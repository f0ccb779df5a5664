//! Who calls, and what they may do. Every path below `/v1` passes here first; a handler names the role that it needs by
//! taking [`Viewer`], [`User`], [`Operator`], [`Admin`] or [`Publisher`].

pub(crate) mod session;
mod tokens;

use std::sync::Arc;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use kernel::TenantId;
use serde::{Deserialize, Serialize};

use crate::problem::Problem;

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
#[derive(Clone, Debug)]
pub(crate) struct Principal {
    /// The name of the token, kept with what its holder does.
    pub name: String,
    /// All that it can see.
    pub tenant: TenantId,
    /// What it may do.
    pub roles: Vec<Role>,
}

impl Principal {
    /// Whether one of its roles includes this one.
    pub(crate) fn may(&self, needed: Role) -> bool {
        self.roles.iter().any(|role| role.includes(needed))
    }
}

/// How callers are known.
#[derive(Clone)]
pub(crate) enum Auth {
    /// By their tokens.
    Tokens(Arc<Tokens>),
    /// Not at all: everybody is the local operator.
    Off,
}

impl Auth {
    fn identify(&self, request: &Request) -> Result<Principal, Problem> {
        let tokens = match self {
            Self::Tokens(tokens) => tokens,
            Self::Off => {
                return Ok(Principal { name: "local".into(), tenant: TenantId::default(), roles: vec![Role::Admin] });
            }
        };
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
        token.and_then(|token| tokens.find(&token, kernel::Timestamp::now())).ok_or_else(|| {
            let challenge = r#"Bearer realm="escapement", error="invalid_token""#;
            unauthorized("invalid_token", "the token is not known here, or has expired", challenge)
        })
    }
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
    match auth.identify(&request) {
        Ok(principal) => {
            request.extensions_mut().insert(principal);
            next.run(request).await
        }
        Err(problem) => {
            metrics::counter!("ingress_unauthenticated_total").increment(1);
            problem.into_response()
        }
    }
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
