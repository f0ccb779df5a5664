//! What a tool is, as far as the rules of a run depend on it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{trust::Trust, units::Duration};

/// What a tool does to the world, mildest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Looks, changes nothing.
    Read,
    /// Changes the run's own workspace.
    Write,
    /// Changes something outside.
    External,
    /// Destroys something outside.
    Destructive,
    /// Moves money.
    Payment,
    /// Moves things.
    Physical,
}

impl Effect {
    /// The name used on the wire and in policies.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::External => "external",
            Self::Destructive => "destructive",
            Self::Payment => "payment",
            Self::Physical => "physical",
        }
    }
}

/// How a tool runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CallKind {
    /// The result is the answer.
    #[default]
    Call,
    /// Goes on by itself after its start; output and end come as signals.
    Activity,
}

/// A tool as declared in `infra/agents/tools/*.yaml`. The planner offers it, the tool-executor runs it.
///
/// What came later is left out of the stored form as long as it says nothing, so that the digest of a declaration only
/// changes when the declaration does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolSpec {
    /// `family.verb`, such as `shell.run`.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// JSON Schema of the arguments.
    pub input: serde_json::Value,
    /// JSON Schema of the result, if it has one.
    #[serde(default)]
    pub output: Option<serde_json::Value>,
    /// Whether it answers or goes on by itself.
    #[serde(default)]
    pub kind: CallKind,
    /// What it does to the world.
    pub effect: Effect,
    /// Whether doing it twice is the same as doing it once.
    #[serde(default)]
    pub idempotent: bool,
    /// How long one attempt may take.
    #[serde(default = "default_timeout")]
    pub timeout: Duration,
    /// How often and when it is tried again, where that is harmless.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// What may run beside it.
    #[serde(default, skip_serializing_if = "Concurrency::says_nothing")]
    pub concurrency: Concurrency,
    /// Who may use it; nothing said: everybody whose agent has it.
    #[serde(default, skip_serializing_if = "Permissions::says_nothing")]
    pub permissions: Permissions,
    /// How it is carried out.
    pub run: ToolRun,
    /// How to find out whether a call whose outcome is unknown has happened.
    #[serde(default)]
    pub probe: Option<Probe>,
    /// How to find out how far an activity that goes on elsewhere has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    /// How an activity that goes on elsewhere is ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel: Option<FollowUp>,
    /// What undoes a call that has happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compensate: Option<FollowUp>,
    /// How a call is tried out before it happens, where a policy obliges to that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<DryRun>,
}

const fn default_timeout() -> Duration {
    Duration::from_secs(60)
}

impl ToolSpec {
    /// How far its name, description and schema may be believed: whoever is offered it reads them.
    #[must_use]
    pub const fn words(&self) -> Trust {
        match &self.run {
            ToolRun::Mcp(run) => run.words,
            ToolRun::Builtin(_) | ToolRun::Http(_) | ToolRun::Process(_) | ToolRun::Sql(_) => Trust::System,
        }
    }

    /// A call that is carried out like this, with everything else as if its file did not say it.
    #[must_use]
    pub fn new(name: impl Into<String>, input: serde_json::Value, effect: Effect, run: ToolRun) -> Self {
        Self {
            name: name.into(),
            description: String::new(),
            input,
            output: None,
            kind: CallKind::Call,
            effect,
            idempotent: false,
            timeout: default_timeout(),
            retry: None,
            concurrency: Concurrency::default(),
            permissions: Permissions::default(),
            run,
            probe: None,
            status: None,
            cancel: None,
            compensate: None,
            dry_run: None,
        }
    }

    /// Whether it may run beside other calls of its turn: as its file says, and by itself only if it changes nothing.
    #[must_use]
    pub fn is_parallel(&self) -> bool {
        self.concurrency.parallel.unwrap_or(matches!(self.effect, Effect::Read))
    }

    /// Whether `tool.started` must be durable before it begins: everything whose repetition could be seen outside.
    #[must_use]
    pub const fn needs_start(&self) -> bool {
        needs_start(self.kind, self.effect, self.idempotent)
    }
}

/// The rule behind [`ToolSpec::needs_start`]: a read, or an idempotent write in the own workspace, may simply be done again.
#[must_use]
pub const fn needs_start(kind: CallKind, effect: Effect, idempotent: bool) -> bool {
    match (kind, effect) {
        (CallKind::Activity, _) => true,
        (CallKind::Call, Effect::Read) => false,
        (CallKind::Call, Effect::Write) => !idempotent,
        (CallKind::Call, _) => true,
    }
}

/// How often and when a call is tried again. The pauses grow exponentially from `first` to `most`, each drawn at random
/// between nothing and that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Retry {
    /// Attempts in all; 1 is none after the first.
    pub attempts: u32,
    /// The longest pause before the second attempt.
    pub first: Duration,
    /// The longest pause at all, also if the other side asks for a longer one.
    pub most: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self { attempts: 3, first: Duration::from_millis(200), most: Duration::from_secs(20) }
    }
}

/// What may run beside a call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Concurrency {
    /// Whether it may run beside other calls of its turn. Not said: only if its effect is `read`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel: Option<bool>,
    /// Resources of its tenant that no two calls touch at once, with `{name}` places filled from the arguments and
    /// `{run_id}`: such as `repository/{owner}/{repository}`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub locks: Vec<String>,
    /// Calls at once for each target, over all executors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_target: Option<u32>,
    /// What a target is, with places as in `locks`. Not said: the host of a request, else the tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

impl Concurrency {
    fn says_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// Who may use a tool: names, or beginnings of names with a `*` behind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Permissions {
    /// Tenants. Empty: all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<String>,
    /// Agents. Empty: all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<String>,
    /// Roles of whoever started the run, of which one is enough. Empty: it does not matter who did, or whether anybody did.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
}

impl Permissions {
    fn says_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Whether runs of this tenant may use the tool.
    #[must_use]
    pub fn allow_tenant(&self, tenant: &str) -> bool {
        is_among(&self.tenants, tenant)
    }

    /// Whether a run may use the tool that was started by somebody with these roles.
    #[must_use]
    pub fn allow_roles(&self, roles: &[String]) -> bool {
        self.roles.is_empty() || roles.iter().any(|role| self.roles.contains(role))
    }

    /// Whether this agent may use the tool.
    #[must_use]
    pub fn allow_agent(&self, agent: &str) -> bool {
        is_among(&self.agents, agent)
    }
}

fn is_among(patterns: &[String], name: &str) -> bool {
    let fits = |pattern: &String| match pattern.strip_suffix('*') {
        Some(begin) => name.starts_with(begin),
        None => name == pattern,
    };
    patterns.is_empty() || patterns.iter().any(fits)
}

/// How a tool is carried out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ToolRun {
    /// A function of the tool-executor, by its name.
    Builtin(String),
    /// A templated HTTP request.
    Http(HttpRequest),
    /// A program. As an activity it is started in the run's workspace, and goes on by itself; as a call, which may only read, it
    /// runs in an empty folder of its own, and what it prints is the answer.
    Process(ProcessRun),
    /// A question to a Postgres database.
    Sql(SqlRead),
    /// A part of an MCP server. Never written by hand: it is made from what a server lists and from its file.
    Mcp(McpRun),
}

/// What a call asks of an MCP server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct McpRun {
    /// Name of the server, as in its file.
    pub server: String,
    /// What is asked of it.
    pub part: McpPart,
    /// How far the words of the declaration (description, schema) may be believed: those of a server are data.
    pub words: Trust,
    /// Its results come from anywhere, as the server says itself: they are untrusted, however far the server is trusted.
    #[serde(default, skip_serializing_if = "is_false")]
    pub open_world: bool,
}

/// A part of an MCP server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum McpPart {
    /// One of its tools, by the name that the server knows.
    Tool(String),
    /// The list of its resources.
    ListResources,
    /// One of its resources.
    ReadResource,
    /// The list of its prompts.
    ListPrompts,
    /// One of its prompts.
    GetPrompt,
}

/// A program to start. It gets none of the executor's environment, and its network and files are confined where the
/// system can do that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProcessRun {
    /// The program and its arguments, with `{name}` places. Each stays one argument, whatever a place is filled with.
    pub command: Vec<String>,
    /// Folder to run in, within the workspace, with places. Not said: the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Environment of the program; values may have places and name secrets as `secret:NAME`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// It may use the network.
    #[serde(default, skip_serializing_if = "is_false")]
    pub network: bool,
    /// Absolute paths outside the workspace that it may read and execute, beside those of the system.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub read: Vec<String>,
    /// What it may use.
    #[serde(default, skip_serializing_if = "ProcessLimits::says_nothing")]
    pub limits: ProcessLimits,
    /// For a call: the exit codes with which what it prints is an answer. Not said: 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<i32>,
}

/// A question to a Postgres database: one query, in a transaction that can only read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SqlRead {
    /// The connection URL of the database, as `secret:NAME`: there is a password in it. Best of somebody who may only read.
    pub url: String,
    /// The query, with `$1`, `$2` and so on for its parameters. Nothing is filled in.
    pub statement: String,
    /// What the parameters are, with `{name}` places: texts, bound by the server. `$1::bigint` makes one a number; a place as
    /// a whole that nothing fills is null.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parameters: Vec<String>,
    /// Rows that are read at most. Not said: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u32>,
}

/// What a program may use. What is not said is as the executor is configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ProcessLimits {
    /// Processor time of each of its processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Duration>,
    /// Memory of all of its processes together, in bytes; `512M` is 512 million.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "crate::units::count")]
    #[schemars(with = "Option<crate::units::Count>")]
    pub memory: Option<u64>,
    /// Processes and threads at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// Bytes of output.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "crate::units::count")]
    #[schemars(with = "Option<crate::units::Count>")]
    pub output: Option<u64>,
}

impl ProcessLimits {
    fn says_nothing(&self) -> bool {
        *self == Self::default()
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

/// Which redirects a request follows, if it has no body and changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Redirects {
    /// None.
    None,
    /// Those to the same scheme, host and port.
    #[default]
    Same,
    /// Also those to other hosts with a public address. They are sent none of the tool's headers.
    Any,
}

impl Redirects {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A request with `{name}` places filled from the arguments (percent-encoded in the URL).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpRequest {
    /// `GET`, `POST`, …
    pub method: String,
    /// Absolute URL with places; `{env:NAME}` is filled from the executor's environment, at load.
    pub url: String,
    /// Header values with places; `secret:NAME` as a value is resolved when sent.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// JSON body with places in its strings; none means the arguments themselves for methods with a body.
    #[serde(default)]
    pub body: Option<serde_json::Value>,
    /// Loopback and private addresses may be reached; those of a cloud's metadata only if the URL spells them out.
    #[serde(default)]
    pub allow_private: bool,
    /// Which redirects are followed.
    #[serde(default, skip_serializing_if = "Redirects::is_default")]
    pub redirects: Redirects,
    /// Bytes of the answer that are read at most. Not said: as the executor is configured.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::units::count")]
    #[schemars(with = "Option<crate::units::Count>")]
    pub max_bytes: Option<u64>,
}

impl HttpRequest {
    /// A request to this URL, with everything else as if its file did not say it.
    #[must_use]
    pub fn new(method: impl Into<String>, url: impl Into<String>) -> Self {
        Self {
            method: method.into(),
            url: url.into(),
            headers: BTreeMap::new(),
            body: None,
            allow_private: false,
            redirects: Redirects::default(),
            max_bytes: None,
        }
    }
}

/// A question whose answer says whether a call has happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Probe {
    /// The request; `{idempotency_key}` is a place too.
    pub http: HttpRequest,
    /// JSON pointer into the answer; the call has happened if what is there is neither absent, null nor false.
    pub done: String,
}

/// A question whose answer says how far an activity has come that goes on elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Status {
    /// The request; `{idempotency_key}` and `{result.…}`, the answer to its start, are places too.
    pub http: HttpRequest,
    /// JSON pointer to the word in the answer that says how it stands.
    pub state: String,
    /// Words that mean that it ended well.
    pub done: Vec<String>,
    /// Words that mean that it failed; every other word means that it goes on.
    #[serde(default)]
    pub failed: Vec<String>,
    /// The resource, as `<source>:<subject>` of outside events, about which an event calls back when there is news, such as
    /// `ci:jobs/{result.id}`. Then it is asked at once how it stands: what an event says is not believed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<String>,
}

/// A request about a call that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FollowUp {
    /// The request; `{idempotency_key}` and `{result.…}`, the call's structured result, are places too.
    pub http: HttpRequest,
}

/// How a call is tried out: something that answers, and changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum DryRun {
    /// The tool itself, with these arguments set.
    Arguments(serde_json::Map<String, serde_json::Value>),
    /// A tool that only reads, with those of the arguments that it takes.
    Tool(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_allowed_whole_or_by_their_begin() {
        let named = |names: &[&str]| Permissions {
            agents: names.iter().map(|name| (*name).to_owned()).collect(),
            ..Permissions::default()
        };
        assert!(named(&[]).allow_agent("any"));
        assert!(named(&["ci-*", "x"]).allow_agent("ci-keeper"));
        assert!(named(&["ci-*", "x"]).allow_agent("x"));
        assert!(!named(&["ci-*", "x"]).allow_agent("xy"));
        assert!(!named(&["*-keeper"]).allow_agent("ci-keeper"), "a star stands at the end only");
        assert!(named(&["x"]).allow_tenant("any"));
    }

    #[test]
    fn one_of_its_roles_is_enough_and_nobody_has_none() {
        let roles = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let tool = Permissions { roles: roles(&["operator", "admin"]), ..Permissions::default() };
        assert!(tool.allow_roles(&roles(&["viewer", "operator"])));
        assert!(!tool.allow_roles(&roles(&["viewer", "operators"])) && !tool.allow_roles(&[]));
        assert!(Permissions::default().allow_roles(&[]));
    }

    #[test]
    fn what_says_nothing_leaves_the_stored_form_as_it_was() {
        let run = ToolRun::Http(HttpRequest::new("GET", "http://h/"));
        let stored = serde_json::to_value(ToolSpec::new("x", serde_json::json!({}), Effect::Read, run)).unwrap();
        let keys: Vec<_> = stored.as_object().unwrap().keys().map(String::as_str).collect();
        let before =
            ["name", "description", "input", "output", "kind", "effect", "idempotent", "timeout", "run", "probe"];
        assert_eq!(keys.iter().filter(|key| before.contains(key)).count(), keys.len(), "{keys:?}");
        let request = stored["run"]["http"].as_object().unwrap();
        assert!(!request.contains_key("redirects") && !request.contains_key("max_bytes"));
    }

    #[test]
    fn only_what_changes_nothing_is_parallel_by_itself() {
        let tool = |effect| ToolSpec::new("x", serde_json::json!({}), effect, ToolRun::Builtin("x".to_owned()));
        assert!(tool(Effect::Read).is_parallel() && !tool(Effect::Write).is_parallel());
        let declared = Concurrency { parallel: Some(true), ..Concurrency::default() };
        assert!(ToolSpec { concurrency: declared, ..tool(Effect::External) }.is_parallel());
    }
}
