//! What can be typed about people: what they are asked, what they allow, who they are, what they did.

use clap::{Args as ClapArgs, Subcommand, ValueEnum};

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

/// `esc approve`.
#[derive(Debug, ClapArgs)]
pub struct ApproveArgs {
    /// The question, or the beginning of its id
    pub id: String,
    /// Other arguments than those shown: JSON or `@FILE`
    #[arg(long)]
    pub arguments: Option<String>,
    /// The arguments as the first of two people has changed them, as `esc approvals` shows them
    #[arg(long, conflicts_with_all = ["arguments", "always"])]
    pub as_changed: bool,
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
