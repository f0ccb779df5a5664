//! Signatures by the rules of Standard Webhooks: the receiver can tell who sent a post, and a repetition from a new one.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The bytes behind a secret: those of the base64 after `whsec_`, or those of the text itself.
#[must_use]
pub fn key_of(secret: &str) -> Vec<u8> {
    let encoded = secret.strip_prefix("whsec_").and_then(|encoded| STANDARD.decode(encoded).ok());
    encoded.unwrap_or_else(|| secret.as_bytes().to_vec())
}

/// What stands in the header `webhook-signature` of a post with this id, time (seconds since 1970) and body.
#[must_use]
#[expect(clippy::expect_used, reason = "HMAC takes keys of any length")]
pub fn signature(key: &[u8], id: &str, at: i64, body: &str) -> String {
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
}
