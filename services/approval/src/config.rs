//! What the approval service can be told.

use checks::signing::key_of;
use serde::{Deserialize, Serialize};
use service::{Common, ConfigError, Secret};

/// Configuration of the approval service; the keys that all services have are in [`Common`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// The keys that every service has.
    #[serde(flatten)]
    pub common: Common,
    /// Connections to Postgres.
    pub pool_size: u32,
    /// Where new questions are posted; empty: nowhere. They stay open on the API and the console all the same.
    pub notify_url: String,
    /// What the posts are signed with (Standard Webhooks): `whsec_` and base64, or any text.
    pub notify_secret: Secret<String>,
    /// Where others are told of a question that nobody answers; empty: where people are told anyway.
    pub escalate_url: String,
    /// What those posts are signed with; empty: as the others.
    pub escalate_secret: Secret<String>,
    /// Seconds after which people are reminded of an open question, for agents whose file says nothing; 0: never.
    pub remind_seconds: u64,
    /// Seconds after which others are told of an open question, for agents whose file says nothing; 0: never.
    pub escalate_seconds: u64,
    /// Seconds between two looks for questions whose time is over, and for notices that are due.
    pub expiry_seconds: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            common: Common::for_service("approval"),
            pool_size: 6,
            notify_url: String::new(),
            notify_secret: Secret::default(),
            escalate_url: String::new(),
            escalate_secret: Secret::default(),
            remind_seconds: 3600,
            escalate_seconds: 0,
            expiry_seconds: 1,
        }
    }
}

impl AsRef<Common> for Config {
    fn as_ref(&self) -> &Common {
        &self.common
    }
}

impl Config {
    /// What no single key can say by itself.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let invalid = |key: &str, message: &str| ConfigError::Invalid {
            key: key.into(),
            origin: "the configuration of approval".into(),
            message: message.into(),
        };
        for (key, url) in [("notify_url", &self.notify_url), ("escalate_url", &self.escalate_url)] {
            let url = Some(url).filter(|url| !url.is_empty()).map(|url| url.parse::<reqwest::Url>());
            if url.is_some_and(|url| !url.is_ok_and(|url| matches!(url.scheme(), "http" | "https"))) {
                return Err(invalid(key, "not an address such as https://host/path"));
            }
        }
        // `whsec_` with nothing behind it is a text, and no key.
        let signs = |secret: &Secret<String>| !key_of(secret.expose()).is_empty();
        let others = if self.escalate_secret.is_empty() { &self.notify_secret } else { &self.escalate_secret };
        for (url, set_by, secret, key) in [
            (&self.notify_url, "notify_url", &self.notify_secret, "notify_secret"),
            (&self.escalate_url, "escalate_url", others, "escalate_secret"),
        ] {
            if !url.is_empty() && !signs(secret) {
                let message = format!(
                    "empty, and `{set_by}` is set: whoever receives a question could not tell who sent it. Set ESC_{} to a text that \
                     the receiver knows, too, such as `whsec_` and what `openssl rand -base64 32` prints, or leave `{set_by}` out",
                    key.to_ascii_uppercase()
                );
                return Err(invalid(key, &message));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_go_out_signed_or_not_at_all() {
        assert!(Config::default().check().is_ok());
        let open = Config { notify_url: "https://example.com/ask".into(), ..Config::default() };
        assert!(open.check().is_err());
        assert!(Config { notify_secret: "s".into(), ..open.clone() }.check().is_ok());
        assert!(Config { notify_url: "file:///etc".into(), notify_secret: "s".into(), ..open }.check().is_err());
        let others = Config { escalate_url: "https://example.com/others".into(), ..Config::default() };
        assert!(others.check().is_err());
        assert!(Config { escalate_secret: "s".into(), ..others }.check().is_ok());
    }

    #[test]
    fn a_secret_that_is_no_key_is_none_and_the_error_says_what_to_do() {
        let told = Config { notify_url: "https://example.com/ask".into(), ..Config::default() };
        let others = Config { escalate_url: "https://example.com/others".into(), ..Config::default() };
        for empty in ["", "whsec_"] {
            let told = Config { notify_secret: empty.into(), ..told.clone() };
            let others = Config { notify_secret: "s".into(), escalate_secret: empty.into(), ..others.clone() };
            let both = Config { escalate_url: others.escalate_url.clone(), ..told.clone() };
            for (config, key) in [(told, "notify_secret"), (both, "notify_secret"), (others, "escalate_secret")] {
                if empty.is_empty() && key == "escalate_secret" {
                    // Those posts are signed as the others then.
                    assert!(config.check().is_ok());
                    continue;
                }
                let error = config.check().unwrap_err().to_string();
                let remedy = format!("ESC_{}", key.to_ascii_uppercase());
                assert!(error.contains(key) && error.contains(&remedy) && error.contains("openssl"), "{error}");
            }
        }
    }
}
