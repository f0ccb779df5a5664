//! What a decision is made from, in plain types; `call.rs` makes them of a call of a run.

use jiff::Timestamp;
pub use kernel::{Trust, tool::Effect};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Every effect, mildest first: each is a Cedar action.
pub const EFFECTS: [Effect; 6] =
    [Effect::Read, Effect::Write, Effect::External, Effect::Destructive, Effect::Payment, Effect::Physical];
/// Every trust, lowest first.
pub const TRUSTS: [Trust; 4] = [Trust::Untrusted, Trust::Trusted, Trust::System, Trust::Operator];
/// Whatever is new does not compile until it is named here, and so in the lists above, which have to hold all of them.
const _: fn(Effect, Trust) = |effect, trust| {
    match effect {
        Effect::Read | Effect::Write | Effect::External => {}
        Effect::Destructive | Effect::Payment | Effect::Physical => {}
    }
    match trust {
        Trust::Untrusted | Trust::Trusted | Trust::System | Trust::Operator => {}
    }
};

/// How a tool is carried out. `resource.kind` in policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolKind {
    /// A verb of the runtime, such as `wait_for`: changes only the run.
    Kernel,
    /// A function of the tool-executor.
    Builtin,
    /// A child process, such as `shell.run`.
    Process,
    /// A request to an HTTP server.
    Http,
    /// A tool of an MCP server.
    Mcp,
}

impl ToolKind {
    /// Every kind.
    pub const ALL: [Self; 5] = [Self::Kernel, Self::Builtin, Self::Process, Self::Http, Self::Mcp];

    /// The name used in policies.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Builtin => "builtin",
            Self::Process => "process",
            Self::Http => "http",
            Self::Mcp => "mcp",
        }
    }
}

/// Where an argument that matters to the tool comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArgumentProvenance {
    /// JSON pointer into the arguments, such as `/to/0`. It speaks for everything below it that has no entry of its own.
    pub pointer: String,
    /// The highest trust among the places where the value was found.
    pub trust: Trust,
    /// That place, for people, such as `operator:ann` or `tool:http.get`.
    pub source: String,
}

/// What is left of a run's budget; `None` is not limited. Values above `i64::MAX` are taken as that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BudgetLeft {
    /// Turns.
    pub turns: Option<u64>,
    /// Model tokens.
    pub tokens: Option<u64>,
    /// Millionths of a US dollar.
    pub cost_micro_usd: Option<u64>,
    /// Tool calls.
    pub tool_calls: Option<u64>,
    /// Seconds of wall time.
    pub wall_seconds: Option<u64>,
}

/// One call to be judged. [`Request::new`] fills in the least favourable facts; set those that are known to be better.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The tenant that the agent belongs to.
    pub tenant: &'a str,
    /// The agent's name, without the tenant.
    pub agent: &'a str,
    /// The tool's name, such as `github.merge`.
    pub tool: &'a str,
    /// How the tool is carried out.
    pub kind: ToolKind,
    /// What the tool does to the world.
    pub effect: Effect,
    /// Whether doing it twice is the same as doing it once.
    pub idempotent: bool,
    /// The lowest trust of all that the model saw in the turn that asked for the call.
    pub trust: Trust,
    /// The arguments, after normalisation.
    pub arguments: &'a Value,
    /// Where the arguments that matter come from. Empty: nothing is known, and the trust of the turn decides.
    pub matters: &'a [ArgumentProvenance],
    /// Runs in a sandbox without network and without files besides the workspace.
    pub confined: bool,
    /// The operator or the agent's file names every host that would be reached. `None`: reaches none.
    pub named_host: Option<bool>,
    /// The agent's file names the command. `None`: runs none.
    pub named_command: Option<bool>,
    /// The operator or the agent's file names every path that would be touched. `None`: touches none.
    pub named_path: Option<bool>,
    /// Every path that would be touched is inside the run's workspace. `None`: touches none.
    pub in_workspace: Option<bool>,
    /// Such as `production`; may be empty.
    pub environment: &'a str,
    /// What is left of the run's budget.
    pub budget_left: BudgetLeft,
    /// The time of the decision, for policies about the time of day.
    pub now: Option<Timestamp>,
}

impl<'a> Request<'a> {
    /// A request about which nothing favourable is known: untrusted turn, not confined, not idempotent.
    #[must_use]
    pub fn new(
        tenant: &'a str,
        agent: &'a str,
        tool: &'a str,
        kind: ToolKind,
        effect: Effect,
        arguments: &'a Value,
    ) -> Self {
        Self {
            tenant,
            agent,
            tool,
            kind,
            effect,
            idempotent: false,
            trust: Trust::Untrusted,
            arguments,
            matters: &[],
            confined: false,
            named_host: None,
            named_command: None,
            named_path: None,
            in_workspace: None,
            environment: "",
            budget_left: BudgetLeft::default(),
            now: None,
        }
    }

    /// The lowest trust of the arguments that matter, or of the turn if their origin is not known.
    #[must_use]
    pub fn deciding_trust(&self) -> Trust {
        self.matters.iter().map(|argument| argument.trust).min().unwrap_or(self.trust)
    }
}
