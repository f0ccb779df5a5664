//! What a tool gives back, before it is made fit for the log.

use std::time::Duration;

use engine::McpTask;
use kernel::Trust;
use kernel::call::ErrorClass;
use serde_json::Value;

use crate::egress::EgressError;
use crate::template::TemplateError;
use crate::workspace::WorkspaceError;

/// What a tool brought.
#[derive(Clone, Debug)]
pub(crate) struct Content {
    /// A line in front, in the runtime's own words.
    pub head: Option<String>,
    /// The content as it came.
    pub bytes: Vec<u8>,
    /// Its media type; empty if not known.
    pub media_type: String,
    /// How far it may be believed.
    pub trust: Trust,
    /// The content as JSON, if it is.
    pub value: Option<Value>,
    /// Whether more came than is read.
    pub truncated: bool,
    /// It is no result: the call goes on as this task of an MCP server.
    pub task: Option<McpTask>,
}

impl Content {
    /// Text in the runtime's own words: nothing from outside is in it.
    pub fn own(text: impl Into<String>, value: Value) -> Self {
        Self {
            head: None,
            bytes: text.into().into_bytes(),
            media_type: "text/plain".to_owned(),
            trust: Trust::System,
            value: Some(value),
            truncated: false,
            task: None,
        }
    }

    /// Bytes from outside.
    pub fn outside(bytes: Vec<u8>, media_type: impl Into<String>) -> Self {
        let media_type = media_type.into();
        Self { head: None, bytes, media_type, trust: Trust::Untrusted, value: None, truncated: false, task: None }
    }

    /// Nothing yet: it goes on by itself.
    pub fn task(task: McpTask) -> Self {
        Self { task: Some(task), ..Self::outside(Vec::new(), "") }
    }
}

/// Whether a failed attempt may have had its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Happened {
    /// It has not: nothing was sent, or it was refused.
    No,
    /// The other side failed while it was at it, and says so.
    Perhaps,
    /// Nobody said anything.
    Unknown,
}

/// Why an attempt failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ToolError {
    /// A stable word.
    pub code: &'static str,
    /// In words for the model. May hold text from outside if `trust` says so.
    pub message: String,
    /// How far the message may be believed.
    pub trust: Trust,
    /// Whether it may have had its effect.
    pub happened: Happened,
    /// Whether another try may work, and after how long at the least.
    pub again: Option<Duration>,
}

impl ToolError {
    /// One that another try would not mend, and that had no effect.
    pub fn final_(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), trust: Trust::System, happened: Happened::No, again: None }
    }

    /// One that may pass.
    pub fn transient(code: &'static str, message: impl Into<String>, happened: Happened) -> Self {
        Self { code, message: message.into(), trust: Trust::System, happened, again: Some(Duration::ZERO) }
    }
}

impl ToolError {
    /// What is done about it.
    ///
    /// | class | codes |
    /// | --- | --- |
    /// | retry | whatever says that it may pass: `unreachable`, `timeout`, `connection_broken`, `http_status` 408, 425, 429, 5xx |
    /// | stop | `misconfigured`: a tool file, the environment or a secret is not as it has to be |
    /// | give back | all others: `invalid_arguments`, `http_status` 4xx, `not_found`, … |
    pub fn class(&self) -> ErrorClass {
        match (self.again, self.code) {
            (Some(_), _) => ErrorClass::Retry,
            (None, "misconfigured") => ErrorClass::Stop,
            (None, _) => ErrorClass::GiveBack,
        }
    }
}

impl From<EgressError> for ToolError {
    fn from(error: EgressError) -> Self {
        let words = error.to_string();
        match error {
            EgressError::Url(_) => Self::final_("invalid_arguments", words),
            EgressError::Private(_) | EgressError::Link(_) => Self::final_("private_address", words),
            EgressError::Redirect(_) => Self { trust: Trust::Untrusted, ..Self::final_("redirect_refused", words) },
            EgressError::RedirectLoop => Self::final_("redirect_refused", words),
            EgressError::Setup(_) => Self::final_("misconfigured", words),
            EgressError::Connect(_) => Self::transient("unreachable", words, Happened::No),
            EgressError::TimedOut(_) => Self::transient("timeout", words, Happened::Unknown),
            EgressError::Broken(_) => Self::transient("connection_broken", words, Happened::Unknown),
        }
    }
}

impl From<TemplateError> for ToolError {
    fn from(error: TemplateError) -> Self {
        let code = match error {
            TemplateError::MissingEnv(_) | TemplateError::MissingSecret(_) => "misconfigured",
            TemplateError::PathEscape(_) | TemplateError::Header(_) => "invalid_arguments",
        };
        Self::final_(code, error.to_string())
    }
}

impl From<WorkspaceError> for ToolError {
    fn from(error: WorkspaceError) -> Self {
        let code = error.code();
        match error {
            WorkspaceError::Io { .. } => Self::transient(code, error.to_string(), Happened::No),
            _ => Self::final_(code, error.to_string()),
        }
    }
}
