//! What can be typed.

#[cfg(test)]
mod documents;
mod people;

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

pub use people::*;

/// Heading of what every command takes, so that its own options stand by themselves.
const EVERYWHERE: &str = "With every command";

/// Where to begin, and what the exit codes mean.
const FIRST_STEPS: &str = "\
First steps, over the local stack (infra/up):
  . .local/env                                set ESC_URL, ESC_TOKEN, ESC_NATS_URL and PATH
  esc agents apply FILE                       put an agent in
  esc triggers test @EVENT.json               would this event start it?
  esc publish SOURCE TYPE --data '{...}'      let something happen
  esc runs, esc tail last, esc why last       what came of it, and why
  esc waits, esc approvals, esc approve ID    what runs sleep for, and what they ask
  esc doctor                                  when something does not work

Exit codes: 0 done, 1 the run or a check failed, 2 a wrong request, 3 something does not answer.";

/// The other way in.
const PUBLISH_BY_HTTP: &str = "\
The same over HTTP, as a CloudEvent:
  curl \"$ESC_URL/v1/events\" -H \"Authorization: Bearer $ESC_TOKEN\" -H 'Content-Type: application/cloudevents+json' \\
    -d '{\"specversion\": \"1.0\", \"id\": \"1\", \"source\": \"shop\", \"type\": \"shop.question\", \"data\": {}}'";

/// Escapement from a shell: start runs, watch them, answer them, and look after the system.
#[derive(Debug, Parser)]
#[command(
    name = "esc",
    version,
    about,
    arg_required_else_help = true,
    after_help = FIRST_STEPS
)]
pub struct Args {
    /// Answer in JSON: one value a line
    #[arg(long, global = true, help_heading = EVERYWHERE)]
    pub json: bool,
    /// No colours, also on a terminal
    #[arg(long, global = true, help_heading = EVERYWHERE)]
    pub no_color: bool,
    #[command(flatten)]
    pub door: Door,
    #[command(subcommand)]
    pub command: Command,
}

/// Where the API is, and as whom.
#[derive(Clone, Debug, ClapArgs)]
pub struct Door {
    /// Where the API is
    #[arg(
        long,
        global = true,
        env = "ESC_URL",
        default_value = "http://127.0.0.1:8080",
        value_name = "URL",
        help_heading = EVERYWHERE
    )]
    pub url: String,
    /// API token; `esc tokens create` makes one, and the local stack has one in .local/env
    #[arg(
        long,
        global = true,
        env = "ESC_TOKEN",
        default_value = "",
        hide_env_values = true,
        hide_default_value = true,
        help_heading = EVERYWHERE
    )]
    pub token: String,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a run
    Run(RunArgs),
    /// Publish an event from outside, over NATS (ESC_NATS_URL)
    #[command(after_help = PUBLISH_BY_HTTP)]
    Publish(PublishArgs),
    /// Follow a run until it ends
    Tail(TailArgs),
    /// Tell the story of a run so far: who woke whom, how long it slept, what it cost
    Timeline(RunId),
    /// List runs, newest first
    Runs(RunsArgs),
    /// List what runs wait for
    Waits {
        /// Only this kind of wake
        #[arg(long)]
        kind: Option<Wake>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// List questions to people
    Approvals {
        /// Only those in this state
        #[arg(long, default_value = "open")]
        state: ApprovalState,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Say yes to a question
    Approve(ApproveArgs),
    /// Say no to a question
    Deny(DenyArgs),
    /// What people allowed once and for all
    #[command(subcommand)]
    Standing(StandingCommand),
    /// Write to a running agent
    Say {
        /// The run, or the beginning of its id
        run: String,
        /// What to say
        text: String,
    },
    /// Vouch for a text from outside, such as an address that a web page named: for it alone, in this run alone
    Vouch {
        /// The run
        run: String,
        /// The event (its number) that it came in with
        from: u64,
        /// The text, word for word
        text: String,
        /// Why it may be believed
        #[arg(long, short)]
        reason: String,
    },
    /// Hold a run
    Pause(ControlArgs),
    /// Let a held run go on
    Resume(ControlArgs),
    /// End a run
    Cancel(ControlArgs),
    /// Let a new run take a turn of this one anew
    Fork(ForkArgs),
    /// End a run, undo what it did since a turn, and take that turn anew
    Rollback(RollbackArgs),
    /// The kill switch: nothing new starts in a frozen scope
    Freeze(FreezeArgs),
    /// Follow an event back to what caused it
    Why {
        /// The run: its id, the beginning of it, or `last` for the one that was created last
        run: String,
        /// The event: its number or its id; the run's last one unless given
        event: Option<String>,
    },
    /// Agent definitions
    #[command(subcommand)]
    Agents(AgentsCommand),
    /// What is done at times that come again
    #[command(subcommand)]
    Schedules(SchedulesCommand),
    /// What runs remember for later runs
    #[command(subcommand)]
    Memory(MemoryCommand),
    /// Documents that agents know
    #[command(subcommand)]
    Knowledge(KnowledgeCommand),
    /// Which skills runs opened, and how those runs ended
    Skills,
    /// What runs have cost, by agent
    Costs {
        /// Only runs created at this time or later (RFC 3339)
        #[arg(long)]
        since: Option<String>,
    },
    /// What could not be handled: dead letters
    #[command(subcommand)]
    Dlq(DlqCommand),
    /// API tokens: who gets in
    #[command(subcommand)]
    Tokens(TokensCommand),
    /// Who did what, when, from where
    #[command(subcommand)]
    Audit(AuditCommand),
    /// MCP servers
    #[command(subcommand)]
    Mcp(McpCommand),
    /// What the observer would conclude from a log file
    Observe(ObserveArgs),
    /// Policies
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Triggers of agents
    #[command(subcommand)]
    Triggers(TriggersCommand),
    /// Run all seven services in this process, over parts that run already
    Dev(DevArgs),
    /// Is everything reachable, migrated and in step?
    Doctor(DoctorArgs),
    /// Whether a service may get work: exit code 0 if it says so
    Health {
        /// Its address; the path is /readyz unless given
        #[arg(value_name = "URL")]
        target: String,
    },
    /// Bring database and streams in step with this program, as their owners
    Migrate,
    /// The generated schemas of events and API
    Schemas(SchemasArgs),
    /// Completions for a shell
    #[command(alias = "completion")]
    Completions {
        /// Which shell
        shell: Shell,
    },
}

/// Which page of a list.
#[derive(Debug, ClapArgs)]
pub struct PageArgs {
    /// How many at most
    #[arg(long, short = 'n', default_value_t = 50)]
    pub limit: u32,
    /// `next` of the page before
    #[arg(long)]
    pub cursor: Option<String>,
}

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

/// States of a question.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ApprovalState {
    /// Not answered yet
    Open,
    /// Answered by yes
    Granted,
    /// Answered by no
    Denied,
    /// Not answered in time
    Expired,
    /// Whatever the state
    All,
}

/// `esc approve`.
#[derive(Debug, ClapArgs)]
pub struct ApproveArgs {
    /// The question, or the beginning of its id
    pub id: String,
    /// Other arguments than those shown: JSON or `@FILE`
    #[arg(long)]
    pub arguments: Option<String>,
    /// Why, or the answer to a plain question
    #[arg(long, short)]
    pub reason: Option<String>,
    /// Allow all calls of this shape from now on: same agent, same tool, same places, whatever the wording
    #[arg(long, conflicts_with = "arguments")]
    pub always: bool,
}

/// `esc deny`.
#[derive(Debug, ClapArgs)]
pub struct DenyArgs {
    /// The question, or the beginning of its id
    pub id: String,
    /// Why; the model is told
    #[arg(long, short)]
    pub reason: Option<String>,
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

/// `esc agents`.
#[derive(Debug, Subcommand)]
pub enum AgentsCommand {
    /// Put definitions in; new runs start with them
    #[command(
        after_help = "schemas/files/agent.json describes every field, infra/agents/agents/ci-keeper.yaml is an example."
    )]
    Apply {
        /// Agent files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// List agents
    List,
    /// List the versions of an agent, the latest first
    Versions {
        /// The agent
        name: String,
    },
}

/// `esc memory`.
#[derive(Debug, Subcommand)]
pub enum MemoryCommand {
    /// List what is remembered, or search it
    List {
        /// Only what has these words
        words: Option<String>,
        /// Only of this scope
        #[arg(long, value_parser = ["tenant", "agent", "user"])]
        scope: Option<String>,
        /// Only of this agent or user
        #[arg(long)]
        owner: Option<String>,
        /// How many at most
        #[arg(long, short = 'n', default_value_t = 50)]
        limit: u32,
    },
    /// Keep something; the same key again replaces it
    Keep {
        /// What it is about
        key: String,
        /// What is to be remembered
        text: String,
        /// Who sees it
        #[arg(long, default_value = "tenant", value_parser = ["tenant", "agent", "user"])]
        scope: String,
        /// The agent or the user
        #[arg(long, default_value = "")]
        owner: String,
        /// trusted, if you vouch for every word
        #[arg(long, default_value = "untrusted", value_parser = ["trusted", "untrusted"])]
        trust: String,
    },
    /// Forget something
    Delete {
        /// Its id, as listed
        id: String,
    },
}

/// `esc knowledge`.
#[derive(Debug, Subcommand)]
pub enum KnowledgeCommand {
    /// Add documents; the same name again replaces one
    Add {
        /// The collection, as agents' files name it under `knowledge`
        collection: String,
        /// Text or Markdown
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// trusted, if you vouch for every word
        #[arg(long, default_value = "untrusted", value_parser = ["trusted", "untrusted"])]
        trust: String,
    },
    /// List documents
    List {
        /// Only of this collection
        collection: Option<String>,
    },
    /// Remove a document
    Delete {
        /// The collection
        collection: String,
        /// The document
        name: String,
    },
}

/// `esc schedules`.
#[derive(Debug, Subcommand)]
pub enum SchedulesCommand {
    /// Put schedules in; the name in the file says which
    #[command(after_help = "services/scheduler/README.md shows such a file.")]
    Apply {
        /// Schedule files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// List schedules
    List,
    /// Show one
    Show {
        /// The schedule
        name: String,
    },
    /// When one fires next, or when a pattern would
    Next(NextArgs),
    /// What became of its times, the latest first
    Firings {
        /// The schedule
        name: String,
        /// How many at most
        #[arg(long, short = 'n', default_value_t = 20)]
        limit: u32,
    },
    /// Hold one
    Pause {
        /// The schedule
        name: String,
    },
    /// Let a held one go on
    Resume {
        /// The schedule
        name: String,
    },
    /// Delete one; runs that it started go on
    Delete {
        /// The schedule
        name: String,
    },
    /// Fire the times of the past that were not fired
    Backfill(BackfillArgs),
}

/// `esc schedules next`.
#[derive(Debug, ClapArgs)]
pub struct NextArgs {
    /// The schedule
    #[arg(required_unless_present = "cron", conflicts_with_all = ["cron", "zone", "dst", "from"])]
    pub name: Option<String>,
    /// A pattern, to see when it would fire
    #[arg(long, value_name = "PATTERN")]
    pub cron: Option<String>,
    /// The time zone of the pattern
    #[arg(long, default_value = "UTC")]
    pub zone: String,
    /// What it does at changes of the clock
    #[arg(long, default_value = "once", value_parser = ["once", "skip", "twice"])]
    pub dst: String,
    /// Times after this one (RFC 3339); now unless given
    #[arg(long)]
    pub from: Option<String>,
    /// How many
    #[arg(long, short = 'n', default_value_t = 5)]
    pub count: u32,
}

/// `esc schedules backfill`.
#[derive(Debug, ClapArgs)]
pub struct BackfillArgs {
    /// The schedule
    pub name: String,
    /// From this time on (RFC 3339)
    #[arg(long)]
    pub from: String,
    /// To this time (RFC 3339)
    #[arg(long)]
    pub to: String,
    /// Start the runs side by side, not one after the other
    #[arg(long)]
    pub at_once: bool,
}

/// `esc dlq`.
#[derive(Debug, Subcommand)]
pub enum DlqCommand {
    /// List dead letters, oldest first
    List(PageArgs),
    /// Publish dead letters again
    Redrive(RedriveArgs),
}

/// `esc dlq redrive`.
#[derive(Debug, ClapArgs)]
pub struct RedriveArgs {
    /// These numbers
    #[arg(value_name = "NUMBER", required_unless_present_any = ["consumer", "subject", "all"])]
    pub seqs: Vec<u64>,
    /// What this consumer gave up on
    #[arg(long)]
    pub consumer: Option<String>,
    /// What came on such a subject, as in `evt.tool.*.default.>`
    #[arg(long)]
    pub subject: Option<String>,
    /// All of them
    #[arg(long, conflicts_with_all = ["seqs", "consumer", "subject"])]
    pub all: bool,
    /// Only say which would be
    #[arg(long)]
    pub dry_run: bool,
}

/// `esc observe`.
#[derive(Debug, ClapArgs)]
pub struct ObserveArgs {
    /// The log file; `-` for standard input
    pub file: PathBuf,
    /// By the rules of this agent: its name in ESC_AGENTS_DIR, or a file
    #[arg(long, conflicts_with = "pack")]
    pub agent: Option<String>,
    /// By this shipped set of rules
    #[arg(long)]
    pub pack: Option<String>,
    /// The tool whose output it is
    #[arg(long, default_value = "shell.run")]
    pub tool: String,
    /// The command whose output it is: tells which programs to expect
    #[arg(long, default_value = "")]
    pub command: String,
    /// A log of the same that ended well: what is in it is usual; may be given several times
    #[arg(long, value_name = "FILE")]
    pub passing: Vec<PathBuf>,
    /// A folder of packs of your own (NAME.yaml), in place of shipped ones or beside them
    #[arg(long, value_name = "FOLDER")]
    pub packs: Option<PathBuf>,
    /// List what compilers and linters found: file, line, message
    #[arg(long)]
    pub findings: bool,
    /// The status with which the program ended; guessed from the output unless given
    #[arg(long)]
    pub exit: Option<i32>,
}

/// `esc policy`.
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Run cases against the policies
    Test {
        /// The cases, in JSON or YAML, as in infra/policies/tests.json
        file: PathBuf,
        /// Folder of policies
        #[arg(long, env = "ESC_POLICIES_DIR", default_value = "infra/policies")]
        policies: PathBuf,
    },
}

/// `esc mcp`.
#[derive(Debug, Subcommand)]
pub enum McpCommand {
    /// List the servers that are declared and enabled
    List,
    /// Agree in a browser to what a server wants, and keep its token where the tool-executor finds it
    Login {
        /// Name of the server
        server: String,
    },
}

/// `esc triggers`.
#[derive(Debug, Subcommand)]
pub enum TriggersCommand {
    /// What an event would do, and why: asked of the system, or of the files of agents
    Test {
        /// The event: a CloudEvent as JSON, `@FILE`, or `@-` for standard input
        event: String,
        /// The system that it comes from, such as `github`; the event's own `source` unless given
        #[arg(long)]
        source: Option<String>,
        /// Agent files, in place of the system; those of ESC_AGENTS_DIR are tried if it does not answer
        #[arg(long, value_name = "FILE", num_args = 1..)]
        agents: Vec<PathBuf>,
    },
}

/// `esc dev`.
#[derive(Debug, ClapArgs)]
pub struct DevArgs {
    /// Leave database and streams as they are
    #[arg(long)]
    pub no_migrate: bool,
    /// Don't put the agents of ESC_AGENTS_DIR in
    #[arg(long)]
    pub no_agents: bool,
}

/// `esc doctor`.
#[derive(Debug, ClapArgs)]
pub struct DoctorArgs {
    /// The first of the ports of planner, tool-executor, observer, scheduler, approval and artifact
    #[arg(long, env = "ESC_PORT_BASE", default_value_t = 8081)]
    pub port_base: u16,
    /// Where a service is, if not there: `NAME=URL`
    #[arg(long, value_parser = pair, value_name = "NAME=URL")]
    pub service: Vec<(String, String)>,
}

/// `esc schemas`.
#[derive(Debug, ClapArgs)]
pub struct SchemasArgs {
    /// Exit code 1 if the files differ from what this program would write
    #[arg(long, required_unless_present = "write", conflicts_with = "write")]
    pub check: bool,
    /// Write the files
    #[arg(long)]
    pub write: bool,
    /// The folder
    #[arg(long, default_value = "schemas")]
    pub dir: PathBuf,
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

impl ApprovalState {
    /// The name used on the wire; none for all.
    pub const fn as_str(self) -> Option<&'static str> {
        match self {
            Self::Open => Some("open"),
            Self::Granted => Some("granted"),
            Self::Denied => Some("denied"),
            Self::Expired => Some("expired"),
            Self::All => None,
        }
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn limits_come_as_pairs() {
        let args = Args::parse_from(["esc", "run", "a", "b", "--budget", "turns=3,wall=2h", "--json"]);
        assert!(args.json);
        let Command::Run(run) = args.command else { panic!("not run") };
        assert_eq!(run.budget, [("turns".into(), "3".into()), ("wall".into(), "2h".into())]);
        assert!(Args::try_parse_from(["esc", "dlq", "redrive"]).is_err(), "redriving everything must be said");
        assert!(Args::try_parse_from(["esc", "schemas"]).is_err());
        assert!(Args::try_parse_from(["esc", "schedules", "next"]).is_err());
        assert!(Args::try_parse_from(["esc", "schedules", "next", "--cron", "@daily", "-n", "3"]).is_ok());
    }
}
