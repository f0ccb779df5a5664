//! What can be typed about what runs work with: agents and their tools, what they know and what they go by.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

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
