//! Signed posts, by the rules of Standard Webhooks: the receiver can tell who sent them, and a repetition from a new one.

use std::time::Duration;

use checks::signing::{key_of, signature};
use reqwest::{Client, StatusCode, Url, redirect};
use service::Secret;

/// How long a receiver may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Where posts go and how they are signed.
#[derive(Clone)]
pub(crate) struct Webhook {
    http: Client,
    url: Url,
    key: Vec<u8>,
}

/// Why a post was not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PostError {
    /// The receiver did not answer.
    #[error("the receiver of webhooks does not answer: {0}")]
    Silent(#[source] reqwest::Error),
    /// The receiver said no.
    #[error("the receiver of webhooks answers {0}")]
    Refused(StatusCode),
}

impl PostError {
    /// Whether another try may help.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Silent(_) => true,
            Self::Refused(status) => {
                status.is_server_error()
                    || matches!(
                        *status,
                        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS | StatusCode::CONFLICT
                    )
            }
        }
    }
}

impl Webhook {
    pub(crate) fn new(url: Url, secret: &Secret<String>) -> Result<Self, reqwest::Error> {
        // Elsewhere than where it was sent, a question has no business.
        let http = Client::builder().timeout(TIMEOUT).redirect(redirect::Policy::none()).build()?;
        Ok(Self { http, url, key: key_of(secret.expose()) })
    }

    /// Posts `body` under an id that is the same for every repetition.
    pub(crate) async fn post(&self, id: &str, at: i64, body: String) -> Result<(), PostError> {
        let response = self
            .http
            .post(self.url.clone())
            .header("content-type", "application/json")
            .header("webhook-id", id)
            .header("webhook-timestamp", at.to_string())
            .header("webhook-signature", signature(&self.key, id, at, &body))
            .body(body)
            .send()
            .await
            .map_err(|error| PostError::Silent(error.without_url()))?;
        let status = response.status();
        if status.is_success() { Ok(()) } else { Err(PostError::Refused(status)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_refusals_are_final() {
        let transient = |code| PostError::Refused(StatusCode::from_u16(code).unwrap()).is_transient();
        assert!(transient(500) && transient(429) && transient(408));
        assert!(!transient(400) && !transient(404) && !transient(410) && !transient(302));
    }
}
