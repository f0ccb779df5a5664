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
    /// Seconds between two looks for questions whose time is over.
    pub expiry_seconds: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            common: Common::for_service("approval"),
            pool_size: 6,
            notify_url: String::new(),
            notify_secret: Secret::default(),
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
        if self.notify_url.is_empty() {
            return Ok(());
        }
        let url: reqwest::Url =
            self.notify_url.parse().map_err(|_| invalid("notify_url", "not an address such as https://host/path"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(invalid("notify_url", "not an address such as https://host/path"));
        }
        if self.notify_secret.is_empty() {
            let why = "missing: whoever receives a question could not tell who sent it";
            return Err(invalid("notify_secret", why));
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
    }
}
