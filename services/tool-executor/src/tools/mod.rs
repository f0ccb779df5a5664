//! How each tool is carried out.

mod artifact;
mod checkout;
mod file;
mod http;
mod process;
mod recall;
mod schedule;
mod send;
mod signals;
mod sql;

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use engine::{Reads, Schedules};
use kernel::agent::Allow;
use kernel::tool::{HttpRequest, ProcessRun, SqlRead};
use kernel::{CallId, RunId, TenantId, Trust};
use serde_json::{Map, Value};

use crate::activity::ProcessCommand;
use crate::artifacts::ArtifactClient;
use crate::egress::Egress;
use crate::mcp::{Mcp, Remote};
use crate::outcome::{Content, ToolError};
use crate::secrets::Secrets;
use crate::template::Places;
use crate::workspace::Workspaces;

pub(crate) use http::{Asked, Finding};
pub(crate) use process::{ProcessOptions, cpu};
pub(crate) use recall::Recall;

/// The functions that tools may be, by the names that tool files use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Builtin {
    ShellRun,
    HttpGet,
    HttpRequest,
    FileRead,
    FileWrite,
    KnowledgeSearch,
    MemorySearch,
    RepoCheckout,
    ArtifactRead,
    ScheduleCreate,
    ScheduleDelete,
    ScheduleList,
    SignalsRead,
    Echo,
    ActivitySend,
}

/// How a tool is carried out, ready to be.
#[derive(Clone, Debug)]
pub(crate) enum Means {
    Builtin(Builtin),
    Http(HttpRequest),
    Mcp(Arc<Remote>),
    Process(ProcessRun),
    Sql(SqlRead),
}

/// One call, as far as its tool needs it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Invocation<'a> {
    pub tenant: &'a TenantId,
    pub run: RunId,
    /// The agent whose run it is.
    pub agent: &'a str,
    /// The lowest trust in what led to the call.
    pub trust: Trust,
    pub call: CallId,
    pub arguments: &'a Map<String, Value>,
    pub idempotency_key: &'a str,
    pub traceparent: &'a str,
    /// What the agent's file allows by name.
    pub allow: &'a Allow,
    /// For one attempt.
    pub timeout: Duration,
}

/// What a call would touch, for the policies. None of a kind: it touches none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reach {
    pub named_host: Option<bool>,
    pub named_command: Option<bool>,
    pub in_workspace: Option<bool>,
}

/// Carries tools out.
pub(crate) struct Tools {
    pub egress: Egress,
    pub secrets: Secrets,
    pub workspaces: Workspaces,
    pub checkout_root: PathBuf,
    pub file_cap: u64,
    pub artifacts: ArtifactClient,
    pub reads: Reads,
    pub schedules: Schedules,
    pub recall: Recall,
    /// Schedules that one agent may have.
    pub max_schedules: u32,
    pub process: ProcessOptions,
    pub mcp: Mcp,
}

/// Sends the requests of tool files. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Requests {
    egress: Egress,
    secrets: Secrets,
}

impl Requests {
    /// Sends one.
    pub async fn send(&self, http: &HttpRequest, invocation: Invocation<'_>) -> Result<Content, ToolError> {
        let sent = http::templated(&self.egress, &self.secrets, http, invocation).await;
        sent.map_err(|error| ToolError { message: self.shown(&error.message), ..error })
    }

    /// A value as it may be shown.
    pub fn visible(&self, mut value: Value) -> Value {
        bus::clean_nul(&mut value);
        self.secrets.redact_value(&mut value);
        value
    }

    /// A text as it may be shown.
    pub fn shown(&self, text: &str) -> String {
        self.secrets.redact(text).into_owned()
    }
}

impl FromStr for Builtin {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        Ok(match name {
            "shell.run" => Self::ShellRun,
            "http.get" => Self::HttpGet,
            "http.request" => Self::HttpRequest,
            "file.read" => Self::FileRead,
            "file.write" => Self::FileWrite,
            "knowledge.search" => Self::KnowledgeSearch,
            "memory.search" => Self::MemorySearch,
            "repo.checkout" => Self::RepoCheckout,
            "artifact.read" => Self::ArtifactRead,
            "schedule.create" => Self::ScheduleCreate,
            "schedule.delete" => Self::ScheduleDelete,
            "schedule.list" => Self::ScheduleList,
            "signals.read" => Self::SignalsRead,
            "test.echo" => Self::Echo,
            "activity.send" => Self::ActivitySend,
            _ => return Err(()),
        })
    }
}

impl Means {
    /// Whether it keeps the time of its calls by itself.
    pub const fn keeps_time(&self) -> bool {
        matches!(self, Self::Mcp(_))
    }

    /// Where a call goes, for the limits of a target: a host with its port.
    pub fn host(&self, arguments: &Map<String, Value>) -> Option<String> {
        match self {
            Self::Http(http) => http::host(&http.url, arguments),
            Self::Builtin(Builtin::HttpGet | Builtin::HttpRequest) => {
                http::place(arguments.get("url").and_then(Value::as_str)?)
            }
            Self::Builtin(_) | Self::Process(_) | Self::Mcp(_) | Self::Sql(_) => None,
        }
    }

    /// Whether it may use the network, for a command.
    pub fn network(&self) -> bool {
        matches!(self, Self::Process(ProcessRun { network: true, .. }))
    }

    /// What a call with these arguments would touch.
    pub fn reach(&self, arguments: &Map<String, Value>, allow: &Allow) -> Reach {
        let none = Reach::default();
        let text = |name: &str| arguments.get(name).and_then(Value::as_str).unwrap_or_default();
        match self {
            Self::Http(http) => Reach { named_host: Some(http::is_named(http, arguments, allow)), ..none },
            Self::Builtin(Builtin::HttpGet | Builtin::HttpRequest) => {
                Reach { named_host: Some(http::is_allowed(text("url"), allow)), ..none }
            }
            Self::Builtin(Builtin::ShellRun) => {
                Reach { named_command: Some(process::is_named(text("command"), allow)), ..none }
            }
            // Its tool's file does: arguments only fill the places that its author left.
            Self::Process(_) => Reach { named_command: Some(true), ..none },
            Self::Builtin(Builtin::ActivitySend) => {
                Reach { named_command: Some(process::is_named(text("text"), allow)), ..none }
            }
            Self::Builtin(Builtin::FileRead | Builtin::FileWrite) => {
                Reach { in_workspace: Some(crate::workspace::is_inside(text("path"))), ..none }
            }
            Self::Builtin(Builtin::RepoCheckout) => Reach { in_workspace: Some(true), ..none },
            // The operator named the database, and an argument stays a parameter of what its tool's file asks.
            Self::Sql(_) => none,
            Self::Mcp(_)
            | Self::Builtin(
                Builtin::ArtifactRead
                | Builtin::KnowledgeSearch
                | Builtin::MemorySearch
                | Builtin::ScheduleCreate
                | Builtin::ScheduleDelete
                | Builtin::ScheduleList
                | Builtin::SignalsRead
                | Builtin::Echo,
            ) => none,
        }
    }
}

/// Whether the agent's file names the host that a link leads to, also without its scheme.
pub(crate) fn is_named(link: &str, allow: &Allow) -> bool {
    let link = if link.contains("://") { link.to_owned() } else { format!("https://{}", link.trim_start_matches('/')) };
    http::is_allowed(&link, allow)
}

impl Tools {
    /// Carries out one attempt of a call.
    pub async fn run(&self, means: &Means, invocation: Invocation<'_>) -> Result<Content, ToolError> {
        self.attempt(means, invocation).await.map_err(|error| self.without_secrets(error))
    }

    async fn attempt(&self, means: &Means, invocation: Invocation<'_>) -> Result<Content, ToolError> {
        match means {
            Means::Http(http) => http::templated(&self.egress, &self.secrets, http, invocation).await,
            Means::Mcp(remote) => self.mcp.call(remote, invocation).await,
            Means::Builtin(Builtin::HttpGet) => http::plain(&self.egress, reqwest::Method::GET, invocation).await,
            Means::Builtin(Builtin::HttpRequest) => {
                let method = text(invocation, "method").unwrap_or("POST").to_ascii_uppercase();
                let method = method
                    .parse()
                    .map_err(|_| ToolError::final_("invalid_arguments", "`method` is not an HTTP method"))?;
                http::plain(&self.egress, method, invocation).await
            }
            Means::Builtin(Builtin::FileRead) => {
                file::read(self.workspaces.of(invocation.run), self.file_cap, invocation).await
            }
            Means::Builtin(Builtin::FileWrite) => {
                file::write(self.workspaces.of(invocation.run), self.file_cap, invocation).await
            }
            Means::Builtin(Builtin::RepoCheckout) => {
                checkout::checkout(&self.checkout_root, self.workspaces.of(invocation.run), invocation).await
            }
            Means::Builtin(Builtin::ArtifactRead) => artifact::read(&self.artifacts, &self.reads, invocation).await,
            Means::Builtin(Builtin::ScheduleCreate) => {
                schedule::create(&self.schedules, self.max_schedules, invocation).await
            }
            Means::Builtin(Builtin::ScheduleDelete) => schedule::delete(&self.schedules, invocation).await,
            Means::Builtin(Builtin::ScheduleList) => schedule::list(&self.schedules, invocation).await,
            Means::Builtin(Builtin::KnowledgeSearch) => self.recall.knowledge(invocation).await,
            Means::Builtin(Builtin::MemorySearch) => self.recall.memories(invocation).await,
            Means::Builtin(Builtin::SignalsRead) => signals::read(&self.artifacts, invocation).await,
            Means::Builtin(Builtin::Echo) => echo(invocation),
            Means::Builtin(Builtin::ActivitySend) => send::send(self.workspaces.of(invocation.run), invocation).await,
            Means::Process(program) => {
                process::answer(&self.process, &self.workspaces, &self.secrets, program, invocation).await
            }
            Means::Sql(sql) => sql::read(&self.secrets, sql, invocation).await,
            Means::Builtin(Builtin::ShellRun) => Err(ToolError::final_(
                "misconfigured",
                "a command goes on by itself; its tool file must say `kind: activity`",
            )),
        }
    }

    /// The command of an activity.
    pub fn command(&self, means: &Means, invocation: Invocation<'_>) -> Result<ProcessCommand, ToolError> {
        let workspace = self.workspaces.of(invocation.run);
        let command = match means {
            Means::Builtin(Builtin::ShellRun) => process::shell(&self.process, &workspace, invocation),
            Means::Process(program) => process::program(&self.process, &workspace, &self.secrets, program, invocation),
            Means::Builtin(_) | Means::Http(_) | Means::Mcp(_) | Means::Sql(_) => Err(ToolError::final_(
                "misconfigured",
                "only a command goes on by itself; its file must say `kind: call`",
            )),
        };
        command.map_err(|error| self.without_secrets(error))
    }

    /// What is said of a failure goes to the log, the model and the traces.
    fn without_secrets(&self, mut error: ToolError) -> ToolError {
        error.message = self.secrets.redact(&error.message).into_owned();
        error
    }

    /// Asks whether a call has happened.
    pub async fn probe(&self, probe: &kernel::tool::Probe, invocation: Invocation<'_>) -> Result<Asked, ToolError> {
        let asked = http::probe(&self.egress, &self.secrets, probe, invocation).await;
        asked.map_err(|error| self.without_secrets(error))
    }

    /// Requests that are sent for a call while it goes on elsewhere.
    pub fn requests(&self) -> Requests {
        Requests { egress: self.egress.clone(), secrets: self.secrets.clone() }
    }

    /// Whose request it is.
    pub fn places<'a>(invocation: Invocation<'a>) -> Places<'a> {
        let Invocation { arguments, idempotency_key, run, .. } = invocation;
        Places { arguments, idempotency_key, run }
    }
}

/// Gives back what it was given: for load tests.
fn echo(invocation: Invocation<'_>) -> Result<Content, ToolError> {
    let value = Value::Object(invocation.arguments.clone());
    let mut content = Content::outside(value.to_string().into_bytes(), "application/json");
    content.value = Some(value);
    Ok(content)
}

/// A text argument.
fn text<'a>(invocation: Invocation<'a>, name: &str) -> Option<&'a str> {
    invocation.arguments.get(name).and_then(Value::as_str)
}

/// A text argument that must be there. The schema says so too; a tool file may be wrong.
fn required<'a>(invocation: Invocation<'a>, name: &str) -> Result<&'a str, ToolError> {
    text(invocation, name)
        .ok_or_else(|| ToolError::final_("invalid_arguments", format!("`{name}` is missing or no text")))
}

/// A whole number, if it is given.
fn number(invocation: Invocation<'_>, name: &str) -> Option<u64> {
    invocation.arguments.get(name).and_then(Value::as_u64)
}
