//! Signed posts, by the rules of Standard Webhooks: the receiver can tell who sent them, and a repetition from a new one.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use reqwest::{Client, StatusCode, Url, redirect};
use service::Secret;
use sha2::Sha256;

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

/// The bytes behind a secret: those of the base64 after `whsec_`, or those of the text itself.
fn key_of(secret: &str) -> Vec<u8> {
    let encoded = secret.strip_prefix("whsec_").and_then(|encoded| STANDARD.decode(encoded).ok());
    encoded.unwrap_or_else(|| secret.as_bytes().to_vec())
}

#[expect(clippy::expect_used, reason = "HMAC takes keys of any length")]
fn signature(key: &[u8], id: &str, at: i64, body: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length");
    mac.update(format!("{id}.{at}.{body}").as_bytes());
    format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_as_the_standard_says() {
        // The example of the specification's reference implementations.
        let key = key_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
        let signed = signature(&key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, r#"{"test": 2432232314}"#);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_secret_may_be_any_text() {
        assert_eq!(key_of("plain"), b"plain");
        assert_eq!(key_of("whsec_???"), b"whsec_???");
    }

    #[test]
    fn some_refusals_are_final() {
        let transient = |code| PostError::Refused(StatusCode::from_u16(code).unwrap()).is_transient();
        assert!(transient(500) && transient(429) && transient(408));
        assert!(!transient(400) && !transient(404) && !transient(410) && !transient(302));
    }
}
