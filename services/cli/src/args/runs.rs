//! What can be typed about runs.

use clap::{Args as ClapArgs, ValueEnum};

use super::pair;

/// A run.
#[derive(Debug, ClapArgs)]
pub struct RunId {
    /// The run: its id, the beginning of it, or `last` for the one that was created last
    pub run: String,
}

/// `esc run`.
#[derive(Debug, ClapArgs)]
pub struct RunArgs {
    /// Name of the agent
    pub agent: String,
    /// What it is to do
    pub input: String,
    /// Follow it until it ends; exit code 1 if it fails
    #[arg(long, short)]
    pub follow: bool,
    /// What is to be reached, if that is not the input itself
    #[arg(long)]
    pub objective: Option<String>,
    /// Conversation that it belongs to
    #[arg(long)]
    pub conversation: Option<String>,
    /// Limits, such as `turns=20,tokens=100k,cost_usd=1.5,wall=2h,tool_calls=50`
    #[arg(long, value_parser = pair, value_delimiter = ',', value_name = "NAME=AMOUNT")]
    pub budget: Vec<(String, String)>,
    /// A label, `KEY=VALUE`; may be given several times
    #[arg(long, value_parser = pair, value_name = "KEY=VALUE")]
    pub label: Vec<(String, String)>,
    /// Starting the same twice with the same key starts one run
    #[arg(long)]
    pub idempotency_key: Option<String>,
}

/// `esc publish`.
#[derive(Debug, ClapArgs)]
pub struct PublishArgs {
    /// The system that it comes from, such as `github`
    pub source: String,
    /// Its type, such as `github.push`
    #[arg(value_name = "TYPE")]
    pub event_type: String,
    /// Its data: JSON, `@FILE`, or `@-` for standard input
    #[arg(long, short, default_value = "{}")]
    pub data: String,
    /// What it is about: with the source, the key that waits meet on
    #[arg(long)]
    pub subject: Option<String>,
    /// Its id: an event of the same source and id counts once
    #[arg(long)]
    pub id: Option<String>,
    /// Whose it is
    #[arg(long, default_value = "default")]
    pub tenant: String,
    /// Follow the run that it starts until that ends; exit code 1 if it fails, or none starts
    #[arg(long, short)]
    pub follow: bool,
}

/// `esc tail`.
#[derive(Debug, ClapArgs)]
pub struct TailArgs {
    /// The run: its id, the beginning of it, or `last` for the one that was created last
    pub run: String,
    /// Begin after this event
    #[arg(long, default_value_t = 0)]
    pub after: u64,
    /// Say first which trace it is, and where that can be looked at
    #[arg(long)]
    pub trace: bool,
}

/// Where a run can stand.
const STATUSES: [&str; 9] =
    ["queued", "runnable", "running", "waiting", "paused", "cancelling", "completed", "failed", "cancelled"];

/// `esc runs`.
#[derive(Debug, ClapArgs)]
pub struct RunsArgs {
    /// Only those that stand here; `running` are those at which a planner is just now
    #[arg(long, value_parser = STATUSES)]
    pub status: Option<String>,
    /// Only those of this agent
    #[arg(long)]
    pub agent: Option<String>,
    /// Only those that wait for this kind of wake
    #[arg(long)]
    pub wake: Option<Wake>,
    /// Only those with this text in their objective, or whose id begins with it
    #[arg(long, short)]
    pub query: Option<String>,
    /// Only those created since: a time (RFC 3339) or an age such as `2h`
    #[arg(long)]
    pub since: Option<String>,
    /// How many at most
    #[arg(long, short = 'n', default_value_t = 20)]
    pub limit: u32,
    /// `next` of the page before
    #[arg(long)]
    pub cursor: Option<String>,
}

/// Kinds of wake.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Wake {
    /// A point in time
    Timer,
    /// The end of a call, or an observation
    TaskResult,
    /// An event from outside
    External,
    /// A person
    OperatorInput,
}

impl Wake {
    /// The name used on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Timer => "timer",
            Self::TaskResult => "task_result",
            Self::External => "external",
            Self::OperatorInput => "operator_input",
        }
    }
}

/// `esc pause`, `resume`, `cancel`.
#[derive(Debug, ClapArgs)]
pub struct ControlArgs {
    /// The run, or the beginning of its id
    pub run: String,
    /// Why
    #[arg(long, short)]
    pub reason: Option<String>,
}

/// `esc fork`.
#[derive(Debug, ClapArgs)]
pub struct ForkArgs {
    /// The run, or the beginning of its id
    pub run: String,
    /// The number of the turn that is taken anew; the last one unless given
    #[arg(long)]
    pub turn: Option<u32>,
    /// Let its calls change things outside; without it, results come from the record and nothing else happens
    #[arg(long)]
    pub effects: bool,
    /// What to say to its first turn
    #[arg(long, short)]
    pub message: Option<String>,
    /// Follow it until it ends; exit code 1 if it fails
    #[arg(long, short)]
    pub follow: bool,
}

/// `esc rollback`.
#[derive(Debug, ClapArgs)]
pub struct RollbackArgs {
    /// The run, or the beginning of its id
    pub run: String,
    /// The number of the turn that is taken anew
    #[arg(long)]
    pub turn: u32,
    /// What to say to its first turn
    #[arg(long, short)]
    pub message: Option<String>,
    /// Why; kept with the run that is ended
    #[arg(long, short)]
    pub reason: Option<String>,
}

/// `esc freeze`.
#[derive(Debug, ClapArgs)]
pub struct FreezeArgs {
    /// What to freeze: `all`, `tenant`, `agent:<name>` or `tool:<name>`; without it, what is frozen is listed
    pub scope: Option<String>,
    /// Lift it again
    #[arg(long, requires = "scope")]
    pub off: bool,
    /// End the activities that run there as well; without it, they are listed and go on
    #[arg(long, requires = "scope", conflicts_with = "off")]
    pub stop: bool,
    /// Why
    #[arg(long, short, requires = "scope")]
    pub reason: Option<String>,
}
