//! What can be typed about the system itself.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

use super::{PageArgs, pair};

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
