//! What can go wrong, as a sentence and a remedy, with the exit code that belongs to it.

use std::process::ExitCode;

use bus::BusError;
use engine::EngineError;
use serde::Serialize;
use serde_json::Value;
use service::causes::chain;

/// Why a command did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The run, or a check, came to a bad end. Exit code 1.
    #[error("{0}")]
    Failed(String),
    /// The request is wrong: how it was typed, or what the API says about it. Exit code 2.
    #[error("{message}")]
    Usage {
        /// What is wrong.
        message: String,
        /// What to do instead.
        remedy: Option<String>,
        /// The problem details, if the API gave some.
        problem: Option<Value>,
    },
    /// Something does not answer. Exit code 3.
    #[error("{message}")]
    Unreachable {
        /// What, and how that showed.
        message: String,
        /// What to do about it.
        remedy: String,
    },
}

/// An error as `--json` shows it.
#[derive(Serialize)]
struct Shown<'a> {
    error: String,
    remedy: Option<&'a str>,
    problem: Option<&'a Value>,
    exit_code: u8,
}

impl CliError {
    /// A bad end.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::Failed(message.into())
    }

    /// A wrong request.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::Usage { message: message.into(), remedy: None, problem: None }
    }

    /// A wrong request, and what to do instead.
    pub fn usage_with(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Usage { message: message.into(), remedy: Some(remedy.into()), problem: None }
    }

    /// No answer.
    pub fn unreachable(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Unreachable { message: message.into(), remedy: remedy.into() }
    }

    /// What to do about it, if that can be said.
    pub fn remedy(&self) -> Option<&str> {
        match self {
            Self::Failed(_) => None,
            Self::Usage { remedy, .. } => remedy.as_deref(),
            Self::Unreachable { remedy, .. } => Some(remedy),
        }
    }

    fn code(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::Usage { .. } => 2,
            Self::Unreachable { .. } => 3,
        }
    }

    /// The exit code.
    pub fn exit_code(&self) -> ExitCode {
        self.code().into()
    }

    /// As JSON.
    pub fn to_json(&self) -> Value {
        let problem = match self {
            Self::Usage { problem, .. } => problem.as_ref(),
            _ => None,
        };
        let shown = Shown { error: self.to_string(), remedy: self.remedy(), problem, exit_code: self.code() };
        serde_json::to_value(shown).unwrap_or_default()
    }
}

impl From<BusError> for CliError {
    fn from(error: BusError) -> Self {
        let message = format!("NATS: {}", chain(&error));
        match &error {
            BusError::Connect { transient: false, .. } => {
                Self::unreachable(message, "check user and password in ESC_NATS_URL (`. .local/env` sets it)")
            }
            BusError::Connect { .. } => {
                Self::unreachable(message, "start the parts with infra/up, or set ESC_NATS_URL to where NATS listens")
            }
            error if error.is_transient() => Self::unreachable(message, "try again; `esc doctor` says what is missing"),
            _ => Self::usage(message),
        }
    }
}

impl From<EngineError> for CliError {
    fn from(error: EngineError) -> Self {
        let message = chain(&error);
        match &error {
            EngineError::Config(_) => Self::usage(message),
            EngineError::Postgres { .. } => Self::unreachable(
                message,
                "start the parts with infra/up, or check address, user and password in ESC_DATABASE_URL (`. .local/env.operator` sets it)",
            ),
            EngineError::Redis { .. } => Self::unreachable(
                message,
                "start the parts with infra/up, or check ESC_REDIS_URL (`. .local/env.operator` sets it)",
            ),
            error if error.is_transient() => Self::unreachable(message, "try again; `esc doctor` says what is missing"),
            _ => Self::failed(message),
        }
    }
}

impl From<service::ConfigError> for CliError {
    fn from(error: service::ConfigError) -> Self {
        Self::usage(error.to_string())
    }
}
