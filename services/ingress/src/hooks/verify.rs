//! Whether a delivery was signed by somebody who knows the secret. All comparisons take the same time wherever they differ, and
//! all secrets are tried whichever fits, so that the time tells nothing of them.

use std::time::Duration;

use axum::http::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use kernel::Timestamp;
use service::Secret;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq as _};

use super::file::{self, Hook, Scheme};

/// What stands before a secret of Standard Webhooks.
const STANDARD_SECRET: &str = "whsec_";
/// Most signatures of one delivery that are looked at.
const SIGNATURES: usize = 16;

/// Why a delivery is not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unsigned {
    /// It carries no signature.
    #[error("the delivery has no header `{0}`")]
    Missing(String),
    /// A header is not as it must be.
    #[error("the header `{0}` can't be read")]
    Malformed(String),
    /// Nobody who knows the secret signed this.
    #[error("the signature in `{0}` does not fit this body and any secret in force")]
    Wrong(String),
    /// It was signed at another time: it may be a replay.
    #[error("the delivery was signed {} s from now, which is more than the {} s that are taken", away.as_secs(), most.as_secs())]
    Stale {
        /// How far away.
        away: Duration,
        /// How far it may be.
        most: Duration,
    },
}

/// Checks a delivery as its hook says.
pub(crate) fn verify(hook: &Hook, headers: &HeaderMap, body: &[u8], now: Timestamp) -> Result<(), Unsigned> {
    let delivery = Delivery { hook, headers, body, now };
    match &hook.scheme {
        Scheme::Github => delivery.github(),
        Scheme::Gitlab => delivery.gitlab(),
        Scheme::Stripe => delivery.stripe(),
        Scheme::Slack => delivery.slack(),
        Scheme::Standard => delivery.standard(),
        Scheme::Hmac(hmac) => delivery.hmac(hmac),
    }
}

struct Delivery<'a> {
    hook: &'a Hook,
    headers: &'a HeaderMap,
    body: &'a [u8],
    now: Timestamp,
}

impl Delivery<'_> {
    /// `X-Hub-Signature-256: sha256=<hex>`.
    fn github(&self) -> Result<(), Unsigned> {
        let name = "x-hub-signature-256";
        let signature = self.header(name)?.strip_prefix("sha256=").and_then(unhex);
        let signature = signature.ok_or_else(|| Unsigned::Malformed(name.into()))?;
        self.signed(name, &[self.body], &[signature], plain_keys)
    }

    /// `X-Gitlab-Token` is the secret itself; with a signing token, GitLab signs as Standard Webhooks do.
    fn gitlab(&self) -> Result<(), Unsigned> {
        if self.headers.contains_key("webhook-signature") {
            return self.standard();
        }
        let name = "x-gitlab-token";
        let shown = Sha256::digest(self.header(name)?);
        let fits = self
            .hook
            .secrets
            .iter()
            .fold(Choice::from(0), |fits, secret| fits | Sha256::digest(secret.expose()).ct_eq(&shown));
        bool::from(fits).then_some(()).ok_or_else(|| Unsigned::Wrong(name.into()))
    }

    /// `Stripe-Signature: t=<seconds>,v1=<hex>[,v1=<hex>...]` over `<t>.<body>`.
    fn stripe(&self) -> Result<(), Unsigned> {
        let name = "stripe-signature";
        let (mut time, mut signatures) = (None, Vec::new());
        for part in self.header(name)?.split(',').take(SIGNATURES) {
            match part.trim().split_once('=') {
                Some(("t", value)) => time = Some(value),
                Some(("v1", value)) => signatures.extend(unhex(value)),
                _ => {}
            }
        }
        let time = time.filter(|_| !signatures.is_empty()).ok_or_else(|| Unsigned::Malformed(name.into()))?;
        self.signed(name, &[time.as_bytes(), b".", self.body], &signatures, plain_keys)?;
        self.fresh(name, time)
    }

    /// `X-Slack-Signature: v0=<hex>` over `v0:<time>:<body>`.
    fn slack(&self) -> Result<(), Unsigned> {
        let name = "x-slack-signature";
        let signature = self.header(name)?.strip_prefix("v0=").and_then(unhex);
        let signature = signature.ok_or_else(|| Unsigned::Malformed(name.into()))?;
        let time = self.header("x-slack-request-timestamp")?;
        self.signed(name, &[b"v0:", time.as_bytes(), b":", self.body], &[signature], plain_keys)?;
        self.fresh("x-slack-request-timestamp", time)
    }

    /// `webhook-signature: v1,<base64>[ v1,<base64>...]` over `<webhook-id>.<webhook-timestamp>.<body>`.
    fn standard(&self) -> Result<(), Unsigned> {
        let name = "webhook-signature";
        let (id, time) = (self.header("webhook-id")?, self.header("webhook-timestamp")?);
        let listed = self.header(name)?.split(' ').take(SIGNATURES);
        let signatures: Vec<_> = listed.filter_map(|one| STANDARD.decode(one.strip_prefix("v1,")?).ok()).collect();
        if signatures.is_empty() {
            return Err(Unsigned::Malformed(name.into()));
        }
        let content = [id.as_bytes(), b".", time.as_bytes(), b".", self.body];
        self.signed(name, &content, &signatures, standard_keys)?;
        self.fresh("webhook-timestamp", time)
    }

    fn hmac(&self, hmac: &file::Hmac) -> Result<(), Unsigned> {
        let name = hmac.header.as_str();
        let encoded = self.header(name)?.strip_prefix(&hmac.prefix);
        let decode = |text: &str| if hmac.base64 { STANDARD.decode(text).ok() } else { unhex(text) };
        let signature = encoded.and_then(decode).ok_or_else(|| Unsigned::Malformed(name.into()))?;
        let Some(timestamp) = &hmac.timestamp else {
            return self.signed(name, &[self.body], &[signature], plain_keys);
        };
        let time = self.header(timestamp.as_str())?;
        self.signed(name, &[time.as_bytes(), b".", self.body], &[signature], plain_keys)?;
        self.fresh(timestamp.as_str(), time)
    }

    /// The only value of a header: of two, one could be checked and the other believed.
    fn header(&self, name: &str) -> Result<&str, Unsigned> {
        let mut values = self.headers.get_all(name).iter();
        let value = values.next().ok_or_else(|| Unsigned::Missing(name.into()))?;
        let value = value.to_str().ok().filter(|_| values.next().is_none());
        value.ok_or_else(|| Unsigned::Malformed(name.into()))
    }

    fn signed(
        &self,
        name: &str,
        content: &[&[u8]],
        signatures: &[Vec<u8>],
        keys: fn(&Secret) -> Vec<Vec<u8>>,
    ) -> Result<(), Unsigned> {
        let mut fits = Choice::from(0);
        // Anybody can sign with nothing.
        for key in self.hook.secrets.iter().flat_map(keys).filter(|key| !key.is_empty()) {
            let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&key) else { continue };
            content.iter().for_each(|part| mac.update(part));
            let wanted = mac.finalize().into_bytes();
            for signature in signatures {
                fits |= wanted.as_slice().ct_eq(signature);
            }
        }
        bool::from(fits).then_some(()).ok_or_else(|| Unsigned::Wrong(name.into()))
    }

    /// Whether the signed time is near. Looked at after the signature, which covers it.
    fn fresh(&self, name: &str, time: &str) -> Result<(), Unsigned> {
        let seconds: i64 = time.parse().map_err(|_| Unsigned::Malformed(name.into()))?;
        let away = Duration::from_secs(self.now.as_second().abs_diff(seconds));
        let most = self.hook.tolerance;
        if away > most { Err(Unsigned::Stale { away, most }) } else { Ok(()) }
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    hex::decode(text).ok()
}

fn plain_keys(secret: &Secret) -> Vec<Vec<u8>> {
    vec![secret.expose().as_bytes().to_vec()]
}

/// A secret is base64, with or without what stands before it; some senders use the text as it is.
fn standard_keys(secret: &Secret) -> Vec<Vec<u8>> {
    let text = secret.expose();
    let encoded = text.strip_prefix(STANDARD_SECRET);
    match (encoded, STANDARD.decode(encoded.unwrap_or(text))) {
        (_, Ok(key)) => vec![key],
        (_, Err(_)) => vec![text.as_bytes().to_vec()],
    }
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn hook(scheme: Scheme, secrets: &[&str]) -> Hook {
        Hook {
            name: "h".into(),
            source: "h".into(),
            tenant: Default::default(),
            scheme,
            tolerance: Duration::from_secs(300),
            map: Default::default(),
            secrets: secrets.iter().map(|secret| Secret::new((*secret).to_owned())).collect(),
            missing: None,
        }
    }

    fn check(hook: &Hook, headers: &[(&'static str, &str)], body: &str, now: i64) -> Result<(), Unsigned> {
        let headers =
            headers.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()));
        verify(hook, &headers.collect(), body.as_bytes(), Timestamp::from_second(now).unwrap())
    }

    /// From GitHub's documentation.
    #[test]
    fn github_as_published() {
        let hook = hook(Scheme::Github, &["It's a Secret to Everybody"]);
        let good = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        assert_eq!(check(&hook, &[("x-hub-signature-256", good)], "Hello, World!", 0), Ok(()));
        let wrong = || Err(Unsigned::Wrong("x-hub-signature-256".into()));
        assert_eq!(check(&hook, &[("x-hub-signature-256", good)], "Hello, World?", 0), wrong());
        assert_eq!(check(&hook, &[("x-hub-signature-256", "sha256=00")], "Hello, World!", 0), wrong());
        for malformed in ["", "757107", "sha1=757107ea", "sha256=xyz"] {
            let answer = check(&hook, &[("x-hub-signature-256", malformed)], "Hello, World!", 0);
            assert_eq!(answer, Err(Unsigned::Malformed("x-hub-signature-256".into())), "{malformed}");
        }
        assert_eq!(check(&hook, &[], "Hello, World!", 0), Err(Unsigned::Missing("x-hub-signature-256".into())));
    }

    #[test]
    fn two_signatures_are_none() {
        let hook = hook(Scheme::Github, &["It's a Secret to Everybody"]);
        let mut headers = HeaderMap::new();
        let good = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        headers.append("x-hub-signature-256", HeaderValue::from_static("sha256=00"));
        headers.append("x-hub-signature-256", HeaderValue::from_static(good));
        let answer = verify(&hook, &headers, b"Hello, World!", Timestamp::UNIX_EPOCH);
        assert_eq!(answer, Err(Unsigned::Malformed("x-hub-signature-256".into())));
    }

    /// From the specification of Standard Webhooks' libraries.
    #[test]
    fn standard_webhooks_as_published() {
        let hook = hook(Scheme::Standard, &["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]);
        let good = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        let headers = |signature| {
            [
                ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
                ("webhook-timestamp", "1614265330"),
                ("webhook-signature", signature),
            ]
        };
        let body = r#"{"test": 2432232314}"#;
        assert_eq!(check(&hook, &headers(good), body, 1_614_265_330), Ok(()));
        assert_eq!(check(&hook, &headers(good), body, 1_614_265_330 + 300), Ok(()));
        for now in [1_614_265_330 + 301, 1_614_265_330 - 301] {
            assert!(matches!(check(&hook, &headers(good), body, now), Err(Unsigned::Stale { .. })), "{now}");
        }
        let several = format!("v1,AAAA v1a,{good} {good}");
        assert_eq!(check(&hook, &headers(&several), body, 1_614_265_330), Ok(()));
        let other = check(&hook, &headers("v1,Ceo5qEr07ixe2NLpvHk3FH9bwy/WavXrAFQ/9tdO6mc="), body, 1_614_265_330);
        assert_eq!(other, Err(Unsigned::Wrong("webhook-signature".into())));
    }

    /// From Slack's documentation.
    #[test]
    fn slack_as_published() {
        let hook = hook(Scheme::Slack, &["8f742231b10e8888abcd99yyyzzz85a5"]);
        let body = "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&\
                    channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&\
                    response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F\
                    96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c";
        let headers = [
            ("x-slack-signature", "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"),
            ("x-slack-request-timestamp", "1531420618"),
        ];
        assert_eq!(check(&hook, &headers, body, 1_531_420_618), Ok(()));
        assert!(matches!(check(&hook, &headers, body, 1_531_430_618), Err(Unsigned::Stale { .. })));
        let earlier = [headers[0], ("x-slack-request-timestamp", "1531420617")];
        assert_eq!(check(&hook, &earlier, body, 1_531_420_618), Err(Unsigned::Wrong("x-slack-signature".into())));
    }

    /// Stripe publishes the construction, and no vector: this one was made with Python's `hmac`.
    #[test]
    fn stripe_takes_any_of_several_signatures_and_secrets() {
        let body = r#"{"id":"evt_1","object":"event","type":"charge.succeeded"}"#;
        let good = "91110bb4292e56d95b06660f55b3f65c0157840684729f1271e6da44c1ed57eb";
        let header = format!("t=1492774577,v1={},v0=6ffb,v1={good}", "0".repeat(64));
        for secrets in [&["whsec_test_secret"][..], &["whsec_new", "whsec_test_secret"]] {
            let hook = hook(Scheme::Stripe, secrets);
            assert_eq!(check(&hook, &[("stripe-signature", &header)], body, 1_492_774_600), Ok(()));
        }
        let hook = hook(Scheme::Stripe, &["whsec_test_secret"]);
        let only_old = format!("t=1492774577,v0={good}");
        let answer = check(&hook, &[("stripe-signature", &only_old)], body, 1_492_774_600);
        assert_eq!(answer, Err(Unsigned::Malformed("stripe-signature".into())));
        let moved = format!("t=1492774578,v1={good}");
        let answer = check(&hook, &[("stripe-signature", &moved)], body, 1_492_774_600);
        assert_eq!(answer, Err(Unsigned::Wrong("stripe-signature".into())));
    }

    #[test]
    fn gitlab_shows_the_secret() {
        let hook = hook(Scheme::Gitlab, &["old", "new"]);
        for token in ["old", "new"] {
            assert_eq!(check(&hook, &[("x-gitlab-token", token)], "{}", 0), Ok(()));
        }
        for token in ["", "ol", "older", "New"] {
            assert!(check(&hook, &[("x-gitlab-token", token)], "{}", 0).is_err(), "{token}");
        }
    }

    #[test]
    fn without_a_secret_nothing_is_believed() {
        let hook = hook(Scheme::Gitlab, &[]);
        assert!(check(&hook, &[("x-gitlab-token", "")], "{}", 0).is_err());
    }

    #[test]
    fn nobody_signs_with_nothing() {
        let wrong = |scheme, headers: &[(&'static str, &str)]| {
            let answer = check(&hook(scheme, &["whsec_"]), headers, "Hello, World!", 0);
            assert!(matches!(answer, Err(Unsigned::Wrong(_))), "{answer:?}");
        };
        let mut mac = Hmac::<Sha256>::new_from_slice(b"").unwrap();
        mac.update(b"1.0.Hello, World!");
        let signature = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
        let headers = [("webhook-id", "1"), ("webhook-timestamp", "0"), ("webhook-signature", signature.as_str())];
        wrong(Scheme::Standard, &headers);
    }

    proptest::proptest! {
        #![proptest_config(cases())]

        /// Whoever does not know the secret is not believed, whatever they send.
        #[test]
        fn whatever_is_sent_without_the_secret_is_refused(
            values in proptest::collection::vec(proptest::prop_oneof![
                "\\PC{0,40}", "(sha256=|v0=|v1,)?[0-9a-f]{0,70}", "t=-?[0-9]{0,22}(,v1=[0-9a-fA-F]{0,66}){0,20}",
                "(v1,[A-Za-z0-9+/=]{0,50} ){0,20}", "-?[0-9]{0,22}",
            ], 6),
            twice in proptest::prelude::any::<bool>(),
            body in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200),
            now in 0_i64..4_000_000_000,
        ) {
            let names = [
                "x-hub-signature-256", "x-gitlab-token", "stripe-signature", "x-slack-signature", "webhook-signature",
                "x-slack-request-timestamp", "webhook-timestamp", "webhook-id",
            ];
            let mut headers = HeaderMap::new();
            for (at, name) in names.into_iter().enumerate() {
                let value = HeaderValue::from_str(&values[at % values.len()]);
                if let Ok(value) = value {
                    headers.append(HeaderName::from_static(name), value.clone());
                    if twice {
                        headers.append(HeaderName::from_static(name), value);
                    }
                }
            }
            let now = Timestamp::from_second(now).unwrap();
            for scheme in [Scheme::Github, Scheme::Gitlab, Scheme::Stripe, Scheme::Slack, Scheme::Standard] {
                for without in [None, Some("webhook-signature")] {
                    let mut headers = headers.clone();
                    without.map(|name| headers.remove(name));
                    let hook = hook(scheme.clone(), &["a secret that nobody guesses", "whsec_YW5vdGhlciBvbmU="]);
                    proptest::prop_assert!(verify(&hook, &headers, &body, now).is_err());
                }
            }
        }
    }

    /// Few by default, many with `ESC_TEST_LONG=1`.
    fn cases() -> proptest::test_runner::Config {
        let long = std::env::var_os("ESC_TEST_LONG").is_some_and(|value| value == "1");
        proptest::test_runner::Config::with_cases(if long { 100_000 } else { 256 })
    }
}
