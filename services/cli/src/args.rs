//! What can be typed.

mod agents;
#[cfg(test)]
mod documents;
mod people;
mod runs;
mod schedules;
mod system;

use clap::{Args as ClapArgs, Parser, Subcommand};
use clap_complete::Shell;

pub use agents::*;
pub use people::*;
pub use runs::*;
pub use schedules::*;
pub use system::*;

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
