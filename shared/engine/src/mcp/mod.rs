//! What is known of MCP servers: the files by which the operator declares them, and the tools that executors found there.

mod catalogue;
mod dry_run;
mod file;
mod servers;

pub use catalogue::{McpCatalogue, McpChange, McpTask, McpTool};
pub use dry_run::take_unsound_dry_run;
pub use file::{
    DeclaredTool, Elicitation, Handshake, McpHttp, McpLimits, McpOauth, McpServer, McpStdio, McpTimeouts, McpTransport,
    OauthGrant,
};
pub use servers::McpServers;
