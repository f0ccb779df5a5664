//! What the public door can be told.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use service::{Common, ConfigError};

/// What stands for the id of a trace in [`Config::trace_url`].
pub(crate) const TRACE_ID: &str = "{trace_id}";

/// Configuration of the ingress service; the keys that all services have are in [`Common`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// The keys that every service has.
    #[serde(flatten)]
    pub common: Common,
    /// JSON file of hashed API tokens: `[{name, tenant, roles, sha256, expires?}]`. Read again when it changes.
    pub tokens: PathBuf,
    /// YAML file of the identity providers (OpenID Connect) whose people get in with the tokens that these give them; empty for
    /// none. Read again when it changes.
    pub issuers: PathBuf,
    /// Folder with a file for each secret that webhooks refer to; empty for none. `ESC_SECRET_<NAME>` in the environment is the
    /// other way.
    pub secrets_dir: PathBuf,
    /// Whether callers have to show a token.
    pub auth: AuthMode,
    /// Largest request body, in bytes.
    pub body_limit_bytes: usize,
    /// Largest body of log records or metrics, in bytes; packed ones may unpack to eight times as much.
    pub log_body_limit_bytes: usize,
    /// Log records that one service may send in a second, over HTTP; more are answered with 429. 0 is no limit.
    pub log_records_per_second: u64,
    /// Runs of one tenant that may be under way at once; further ones are queued. 0 is no limit.
    pub max_running: u64,
    /// Share of runs whose spans are exported, from 0 to 1; decided when a run is created.
    pub trace_ratio: f64,
    /// Where people look at the trace of a run, with `{trace_id}` in the place of its id, such as
    /// `http://127.0.0.1:16686/trace/{trace_id}`; empty if nowhere.
    pub trace_url: String,
    /// Requests of one caller in a second, in each instance; 0 is no limit.
    pub requests_per_second: u64,
    /// Posts to webhooks of one address in a second that are not signed as they must be, in each instance; one of more than 64 KiB
    /// counts as several. 0 is no limit. Behind a proxy all senders have its address.
    pub unsigned_posts_per_second: u64,
    /// Seconds between two signs of life on a quiet event stream; the log is looked at, too.
    pub heartbeat_seconds: u64,
    /// Seconds between two looks for events from outside that were recorded but not acted upon.
    pub sweep_seconds: u64,
    /// Connections to Postgres.
    pub pool_size: u32,
}

/// Whether callers have to show a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuthMode {
    /// Every call to `/v1` needs a token that is known here.
    #[default]
    Required,
    /// Everybody is the operator of the tenant `default`. Only on a loopback address.
    Off,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            common: Common::for_service("ingress"),
            tokens: PathBuf::new(),
            issuers: PathBuf::new(),
            secrets_dir: PathBuf::new(),
            auth: AuthMode::Required,
            body_limit_bytes: 1024 * 1024,
            log_body_limit_bytes: 4 * 1024 * 1024,
            log_records_per_second: 20_000,
            max_running: 0,
            trace_ratio: 1.0,
            trace_url: String::new(),
            requests_per_second: 5000,
            unsigned_posts_per_second: 100,
            heartbeat_seconds: 15,
            sweep_seconds: 5,
            pool_size: 8,
        }
    }
}

impl AsRef<Common> for Config {
    fn as_ref(&self) -> &Common {
        &self.common
    }
}

impl Config {
    pub(crate) fn heartbeat(&self) -> Duration {
        Duration::from_secs(self.heartbeat_seconds.max(1))
    }

    pub(crate) fn sweep(&self) -> Duration {
        Duration::from_secs(self.sweep_seconds.max(1))
    }

    /// What no single key can say by itself.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        match self.auth {
            AuthMode::Off if !self.common.listen.ip().is_loopback() => Err(invalid(
                "auth",
                format!(
                    "`off` would let anybody who reaches {} do anything: listen on a loopback address, or give a token file",
                    self.common.listen
                ),
            )),
            AuthMode::Required if self.tokens.as_os_str().is_empty() && self.issuers.as_os_str().is_empty() => {
                Err(invalid(
                    "tokens",
                    "no token file and no file of issuers, so nobody could call the API: name one (ESC_TOKENS, ESC_ISSUERS), or set \
                 `auth` to `off` on a loopback address",
                ))
            }
            _ if !(0.0..=1.0).contains(&self.trace_ratio) => Err(invalid("trace_ratio", "not between 0 and 1")),
            _ if !self.shows_traces_somewhere() => Err(invalid(
                "trace_url",
                "not an address with `{trace_id}` in it, such as http://127.0.0.1:16686/trace/{trace_id}",
            )),
            _ => Ok(()),
        }
    }

    /// Whether nothing is said of where traces are, or something that a browser may be sent to.
    fn shows_traces_somewhere(&self) -> bool {
        let is_web = ["http://", "https://"].iter().any(|scheme| self.trace_url.starts_with(scheme));
        self.trace_url.is_empty() || (is_web && self.trace_url.contains(TRACE_ID))
    }
}

pub(crate) fn invalid(key: &str, message: impl Into<String>) -> ConfigError {
    ConfigError::Invalid { key: key.into(), origin: "the configuration of ingress".into(), message: message.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_gets_in_by_default_and_off_stays_at_home() {
        assert!(Config::default().check().is_err());
        for (tokens, issuers) in [("tokens.json", ""), ("", "issuers.yaml"), ("tokens.json", "issuers.yaml")] {
            assert!(Config { tokens: tokens.into(), issuers: issuers.into(), ..Config::default() }.check().is_ok());
        }
        let off = Config { auth: AuthMode::Off, ..Config::default() };
        assert!(off.check().is_ok());
        let mut open = off;
        open.common.listen = ([0, 0, 0, 0], 8080).into();
        assert!(open.check().is_err());
    }

    #[test]
    fn a_link_to_traces_is_one_or_none() {
        let check = |trace_url: &str| {
            Config { auth: AuthMode::Off, trace_url: trace_url.to_owned(), ..Config::default() }.check().is_ok()
        };
        assert!(check("") && check("https://traces.example/x?id={trace_id}#all"));
        assert!(!check("http://127.0.0.1:16686/trace/") && !check("javascript:alert('{trace_id}')"));
    }
}
