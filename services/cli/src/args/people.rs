//! What can be typed about people: who they are, what they allow, what they did.

use clap::{Args as ClapArgs, Subcommand, ValueEnum};

/// `esc tokens`.
#[derive(Debug, Subcommand)]
pub enum TokensCommand {
    /// Make a token; it is shown this once
    Create(TokenArgs),
    /// List tokens, besides those of the token file
    List {
        /// Also those that were revoked or are over
        #[arg(long)]
        all: bool,
        /// Another tenant's; for admins of `default`
        #[arg(long)]
        tenant: Option<String>,
    },
    /// Let nobody in with a token any more
    Revoke {
        /// Its name or its id
        // `token` is what one calls with, everywhere.
        #[arg(value_name = "TOKEN")]
        whose: String,
        /// Another tenant's; for admins of `default`
        #[arg(long)]
        tenant: Option<String>,
    },
}

/// `esc tokens create`.
#[derive(Debug, ClapArgs)]
pub struct TokenArgs {
    /// Whose it is: kept with all that is done with it
    pub name: String,
    /// What it allows, each with those before it; may be given several times
    #[arg(long, required = true)]
    pub role: Vec<TokenRole>,
    /// When it ends by itself, such as `30d`; 366 days at most
    #[arg(long, default_value = "90d")]
    pub expires: String,
    /// Another tenant's; for admins of `default`
    #[arg(long)]
    pub tenant: Option<String>,
}

/// What a token allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenRole {
    /// To hand in events, and nothing else
    Publisher,
    /// To look
    Viewer,
    /// To start, talk to and cancel runs
    User,
    /// To decide approvals, hold runs and change budgets
    Operator,
    /// To change agents, and to say who gets in
    Admin,
}

/// `esc standing`.
#[derive(Debug, Subcommand)]
pub enum StandingCommand {
    /// List what is allowed once and for all
    List {
        /// Also what was revoked
        #[arg(long)]
        all: bool,
    },
    /// Ask people again
    Revoke {
        /// Its id, or the beginning of it
        id: String,
    },
}

/// `esc audit`.
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// List what was done and refused, newest first
    List {
        #[command(flatten)]
        args: AuditArgs,
        /// How many at most
        #[arg(long, short = 'n', default_value_t = 50)]
        limit: u32,
    },
    /// Write entries as CloudEvents, one a line, oldest first
    Export {
        #[command(flatten)]
        args: AuditArgs,
        /// Go on after this one: `sequence` of the last event of the export before
        #[arg(long, value_name = "SEQUENCE")]
        after: Option<String>,
    },
}

/// Which entries of the audit trail.
#[derive(Debug, ClapArgs)]
pub struct AuditArgs {
    /// Only those of this person or program
    #[arg(long)]
    pub actor: Option<String>,
    /// Only this act, such as `approvals.decide`
    #[arg(long)]
    pub action: Option<String>,
    /// Not older than this: a time (RFC 3339) or an age such as `2h`
    #[arg(long)]
    pub since: Option<String>,
    /// Older than this
    #[arg(long)]
    pub until: Option<String>,
}
