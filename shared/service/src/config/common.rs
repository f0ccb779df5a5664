//! The keys that every service has.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use bus::Namespace;
use serde::{Deserialize, Deserializer, Serialize, de};

use super::Secret;

/// The services by name, with the port each one listens on by default.
pub const SERVICES: [(&str, u16); 7] = [
    ("ingress", 8080),
    ("planner", 8081),
    ("tool-executor", 8082),
    ("observer", 8083),
    ("scheduler", 8084),
    ("approval", 8085),
    ("artifact", 8086),
];

/// The keys that every service has; a service's own `Config` flattens them in.
///
/// `shared/service/defaults.toml` is the documentation of each key and of its default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Common {
    /// NATS servers, comma-separated; user and password in the URL.
    #[serde(deserialize_with = "nats_url")]
    pub nats_url: Secret<String>,
    /// Postgres; user and password in the URL.
    #[serde(deserialize_with = "database_url")]
    pub database_url: Secret<String>,
    /// Redis or Valkey; password in the URL.
    #[serde(deserialize_with = "redis_url")]
    pub redis_url: Secret<String>,
    /// Where this process serves HTTP: health, metrics, and the API of ingress and artifact. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// Certificate, with all that leads up to its authority, in PEM, for TLS where this process listens; empty for clear text.
    pub tls_certificate: PathBuf,
    /// Its key, in PEM.
    pub tls_key: PathBuf,
    /// OTLP collector (gRPC, `http://host:4317`); empty exports nothing.
    #[serde(deserialize_with = "otlp_endpoint")]
    pub otlp_endpoint: String,
    /// Which log lines are written: a `tracing` filter such as `info` or `info,bus=debug`.
    #[serde(deserialize_with = "log_filter")]
    pub log: String,
    /// How log lines look.
    pub log_format: LogFormat,
    /// Prefix of streams, subjects, consumers and Redis keys; empty in production, one per test.
    pub namespace: Namespace,
    /// Postgres schema.
    #[serde(deserialize_with = "schema")]
    pub schema: String,
    /// Seconds from the first signal until what is still running is cut off.
    pub drain_seconds: u64,
    /// Folder of agent files, with `tools/` and `scenarios/` in it.
    pub agents_dir: PathBuf,
    /// Folder of Cedar policies.
    pub policies_dir: PathBuf,
    /// Folder that all tool executors share: one workspace per run.
    pub workspaces: PathBuf,
    /// Object store of the artifact service: a path or `s3://bucket/prefix`.
    pub artifacts_url: String,
    /// Where the artifact service answers.
    pub artifact_url: String,
    /// Bearer token between services.
    pub internal_token: Secret<String>,
    /// Threads of the runtime; 0 takes half as many as there are cores, and one at least: a machine is seldom one service's own,
    /// and each thread more costs more than it brings while one is enough.
    pub worker_threads: usize,
    /// How long a store or the collector may take, where the usual is too short. Not a key: only tests say so, which are
    /// not about how busy the machine is. What is asked of NATS is asked again, and a cut connection shows by its usual time.
    #[serde(skip)]
    pub patience: Option<Duration>,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    #[default]
    Auto,
    /// For people.
    Text,
    /// One JSON object a line, for machines.
    Json,
}

impl Common {
    /// The defaults of the named service: only `listen` differs from one to the other.
    pub fn for_service(name: &str) -> Self {
        Self { listen: default_listen(name), ..Self::default() }
    }

    /// `drain_seconds` as a duration.
    pub fn drain(&self) -> Duration {
        Duration::from_secs(self.drain_seconds)
    }
}

impl Default for Common {
    fn default() -> Self {
        Self {
            nats_url: "nats://127.0.0.1:14222".into(),
            database_url: "postgres://127.0.0.1:15432/escapement".into(),
            redis_url: "redis://127.0.0.1:16379/0".into(),
            listen: default_listen("ingress"),
            tls_certificate: PathBuf::new(),
            tls_key: PathBuf::new(),
            otlp_endpoint: String::new(),
            log: "info".into(),
            log_format: LogFormat::Auto,
            namespace: Namespace::production(),
            schema: "escapement".into(),
            drain_seconds: 20,
            agents_dir: "infra/agents".into(),
            policies_dir: "infra/policies".into(),
            workspaces: ".local/workspaces".into(),
            artifacts_url: ".local/artifacts".into(),
            artifact_url: "http://127.0.0.1:8086".into(),
            internal_token: "".into(),
            worker_threads: 0,
            patience: None,
        }
    }
}

impl AsRef<Common> for Common {
    fn as_ref(&self) -> &Common {
        self
    }
}

/// Where the named service listens by default; a free port for a name that isn't one of the seven.
pub(super) fn default_listen(name: &str) -> SocketAddr {
    let port = SERVICES.iter().find(|(service, _)| *service == name).map_or(0, |(_, port)| *port);
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Reads a URL list whose every member has one of `schemes`. The message never repeats the value: it holds a password.
fn url<'de, D: Deserializer<'de>>(deserializer: D, schemes: &[&str]) -> Result<Secret<String>, D::Error> {
    let value = String::deserialize(deserializer)?;
    let known = |part: &str| {
        part.trim().split_once("://").is_some_and(|(scheme, rest)| schemes.contains(&scheme) && !rest.is_empty())
    };
    if value.split(',').all(known) {
        Ok(value.into())
    } else {
        Err(de::Error::custom(format!(
            "not a URL of the form {}://[user:password@]host[:port]",
            schemes.join(":// or ")
        )))
    }
}

fn nats_url<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Secret<String>, D::Error> {
    url(deserializer, &["nats", "tls", "ws", "wss"])
}

fn database_url<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Secret<String>, D::Error> {
    url(deserializer, &["postgres", "postgresql"])
}

fn redis_url<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Secret<String>, D::Error> {
    url(deserializer, &["redis", "rediss", "redis+unix", "unix"])
}

fn otlp_endpoint<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let value = String::deserialize(deserializer)?;
    let host = value.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
    match host {
        Some(host) if !host.is_empty() && !host.contains('/') => Ok(value),
        None if value.is_empty() => Ok(value),
        _ => Err(de::Error::custom("not of the form http://host:4317 (gRPC in clear text to a collector close by)")),
    }
}

fn log_filter<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let value = String::deserialize(deserializer)?;
    match tracing_subscriber::EnvFilter::try_new(&value) {
        Ok(_) => Ok(value),
        Err(error) => Err(de::Error::custom(format!("not a log filter such as info,bus=debug: {error}"))),
    }
}

fn schema<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let value = String::deserialize(deserializer)?;
    let first = |c: char| c.is_ascii_lowercase() || c == '_';
    let legal = |c: char| first(c) || c.is_ascii_digit();
    if value.len() <= 63 && value.starts_with(first) && value.chars().all(legal) {
        Ok(value)
    } else {
        Err(de::Error::custom("not a Postgres identifier of lower-case letters, digits and `_`, at most 63"))
    }
}
