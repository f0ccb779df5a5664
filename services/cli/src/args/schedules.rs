//! What can be typed about schedules.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

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
