//! What the approval service can be told.

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
        let unsigned = "missing: whoever receives a question could not tell who sent it";
        if !self.notify_url.is_empty() && self.notify_secret.is_empty() {
            return Err(invalid("notify_secret", unsigned));
        }
        if !self.escalate_url.is_empty() && self.escalate_secret.is_empty() && self.notify_secret.is_empty() {
            return Err(invalid("escalate_secret", unsigned));
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
}
