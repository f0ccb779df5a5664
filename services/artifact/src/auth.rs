//! Who may ask: the other services, by the token that they share.

use std::net::SocketAddr;

use axum::{
    extract::{Request, State},
    http::{StatusCode, header},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use service::{ConfigError, Secret};
use subtle::ConstantTimeEq as _;

use crate::problem::Problem;

/// The token that every request must show; none if nobody but this machine can ask.
#[derive(Clone)]
pub(crate) struct Gate {
    token: Option<Secret<String>>,
}

impl Gate {
    /// Without a token, only a loopback address may be listened on.
    pub(crate) fn new(token: &Secret<String>, listen: SocketAddr) -> Result<Self, ConfigError> {
        if !token.is_empty() {
            return Ok(Self { token: Some(token.clone()) });
        }
        if listen.ip().is_loopback() {
            return Ok(Self { token: None });
        }
        Err(ConfigError::Invalid {
            key: "internal_token".to_owned(),
            origin: "the configuration".to_owned(),
            message: format!("must be set to listen on {listen}, where others than the services can ask"),
        })
    }

    fn opens(&self, request: &Request) -> bool {
        let Some(token) = &self.token else { return true };
        let shown = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let shown = shown.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
        token.expose().as_bytes().ct_eq(shown.as_bytes()).into()
    }
}

/// Lets services in, and nobody else.
pub(crate) async fn check(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    if gate.opens(&request) {
        return next.run(request).await;
    }
    metrics::counter!("artifact_refused_total").increment(1);
    let problem = Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", "show the services' bearer token");
    ([(header::WWW_AUTHENTICATE, "Bearer")], problem).into_response()
}
