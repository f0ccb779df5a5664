//! Server files: which MCP servers there are, how they are reached, and what their tools may do.

mod check;

use std::{collections::BTreeMap, path::PathBuf};

use kernel::{TenantId, Trust, tool::Effect, units::Duration};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    agents::{AgentFileError, read_yaml},
    catalog::booleans,
};

/// An MCP server as its file declares it. What the file does not say is refused, or at its strictest.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct McpServer {
    /// `[a-z0-9-]`, at most 24 characters. Its tools are called `<name>.<tool>`.
    pub name: String,
    /// Whether it is used at all.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// How it is reached.
    pub transport: McpTransport,
    /// How a connection begins.
    #[serde(default)]
    pub handshake: Handshake,
    /// How far its words and its results may be believed: `untrusted` or `trusted`.
    #[serde(default = "untrusted")]
    pub trust: Trust,
    /// Whose runs may use it; empty: everybody's.
    #[serde(default)]
    pub tenants: Vec<TenantId>,
    /// Which of its tools are offered, by its own names; a `*` at the end stands for any rest.
    #[serde(default = "everything")]
    pub allow: Vec<String>,
    /// Which are not, whatever `allow` says.
    #[serde(default)]
    pub deny: Vec<String>,
    /// What is known of single tools. One that is not here counts as `external` and not idempotent.
    #[serde(default)]
    pub tools: BTreeMap<String, DeclaredTool>,
    /// Whether its resources can be listed and read.
    #[serde(default = "yes")]
    pub resources: bool,
    /// Whether its prompts can be listed and filled.
    #[serde(default = "yes")]
    pub prompts: bool,
    /// What becomes of its questions to a person.
    #[serde(default)]
    pub elicitation: Elicitation,
    /// How long things may take.
    #[serde(default)]
    pub timeouts: McpTimeouts,
    /// How much there may be.
    #[serde(default)]
    pub limits: McpLimits,
}

/// How a server is reached.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum McpTransport {
    /// A process of our own, spoken to over its standard streams.
    Stdio(McpStdio),
    /// Streamable HTTP.
    Http(Box<McpHttp>),
}

/// A server that is a process.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct McpStdio {
    /// The program and its arguments; no shell looks at them.
    pub command: Vec<String>,
    /// Its environment: `secret:NAME` in a value is resolved when it starts. It gets nothing else.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Variables of the executor's own environment that it gets too, such as `PATH`.
    #[serde(default)]
    pub inherit: Vec<String>,
    /// Where it runs; a folder of its own if nothing is said.
    #[serde(default)]
    pub cwd: Option<PathBuf>,
}

/// A server behind HTTP.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct McpHttp {
    /// Its address, absolute, `http` or `https`; `{env:NAME}` is filled from the executor's environment.
    pub url: String,
    /// Headers of each request; `secret:NAME` in a value is resolved when it is sent.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Whether loopback and private addresses may be reached.
    #[serde(default)]
    pub allow_private: bool,
    /// Whether redirects within the same scheme, host and port are followed; others never are.
    #[serde(default)]
    pub redirects: bool,
    /// How it is authorised, if not by a header.
    #[serde(default)]
    pub oauth: Option<McpOauth>,
}

/// How a server is authorised by OAuth.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct McpOauth {
    /// Who stands behind the token.
    pub grant: OauthGrant,
    /// Our name at the authorisation server, if it was agreed on beforehand.
    pub client_id: Option<String>,
    /// Our secret there: `secret:NAME`.
    pub client_secret: Option<String>,
    /// The document that describes us, for servers that take its URL as our name.
    pub client_metadata_url: Option<String>,
    /// What to ask for; what the server names, if nothing is said.
    pub scopes: Vec<String>,
}

/// Who stands behind a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OauthGrant {
    /// A person who agreed in a browser, once.
    #[default]
    AuthorizationCode,
    /// This installation itself.
    ClientCredentials,
}

/// How a connection begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Handshake {
    /// As all servers up to protocol 2025-11-25 want it.
    #[default]
    Initialize,
    /// As servers of protocol 2026-07-28 want it.
    Discover,
    /// The newer one, and the older one if the server does not know it.
    Auto,
}

/// What becomes of a server's questions to a person.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Elicitation {
    /// They are put to the operator.
    #[default]
    Ask,
    /// They are declined.
    Decline,
}

/// What the operator says about a tool. It counts, and not what the server says about itself, unless that is stricter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DeclaredTool {
    /// What it does to the world; `external` if nothing is said.
    pub effect: Option<Effect>,
    /// Whether doing it twice is the same as doing it once.
    pub idempotent: bool,
    /// How long a call may take.
    pub timeout: Option<Duration>,
    /// What the model is told about it, instead of the server's words.
    pub description: Option<String>,
    /// Arguments to set, such as `dryRun: true`, with which it changes nothing and says what it would do.
    pub dry_run: Option<serde_json::Map<String, serde_json::Value>>,
    /// Arguments that are only wording, such as `body` or `items/*/note`: a person is shown them, and is not asked because
    /// of them. Every other one decides where something goes or what is done, also one that the server adds later.
    pub wording: Vec<String>,
    /// Fields of its structured result that the server itself assigns, such as `id` or `items/*/id`: they can be believed as
    /// far as the server's word about itself. Everything else in it is data.
    pub assigned: Vec<String>,
}

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct McpTimeouts {
    /// From its start until it has said what it offers.
    pub start: Duration,
    /// A call, unless the tool says otherwise.
    pub call: Duration,
    /// A person's answer to its question. The call's time stands still meanwhile.
    pub answer: Duration,
    /// A call that the server makes a task of, which goes on by itself.
    pub task: Duration,
    /// How long it is kept when nobody uses it.
    pub idle: Duration,
}

impl Default for McpTimeouts {
    fn default() -> Self {
        Self {
            start: Duration::from_secs(30),
            call: Duration::from_secs(60),
            answer: Duration::from_secs(3600),
            task: Duration::from_secs(6 * 3600),
            idle: Duration::from_secs(300),
        }
    }
}

/// How much there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct McpLimits {
    /// Bytes of one message. A server that sends a larger one is stopped.
    pub message_bytes: usize,
    /// Tools that it may offer.
    pub tools: usize,
    /// Calls at once, for each tenant and executor.
    pub concurrent: usize,
}

impl Default for McpLimits {
    fn default() -> Self {
        Self { message_bytes: 8 << 20, tools: 128, concurrent: 8 }
    }
}

const fn yes() -> bool {
    true
}

const fn untrusted() -> Trust {
    Trust::Untrusted
}

fn everything() -> Vec<String> {
    vec!["*".to_owned()]
}

impl McpServer {
    /// Reads a server file.
    ///
    /// # Errors
    /// With line and column, when it is no YAML, has a field that does not exist, or says what cannot be.
    pub fn parse(yaml: &str) -> Result<Self, AgentFileError> {
        let server: Self = read_yaml(yaml)?;
        booleans::check(yaml)?;
        match check::problem(&server) {
            Some(problem) => Err(problem.place_in(yaml)),
            None => Ok(server),
        }
    }

    /// Whether a tool is offered, by the server's own name for it.
    #[must_use]
    pub fn offers(&self, tool: &str) -> bool {
        let fits = |pattern: &String| match pattern.strip_suffix('*') {
            Some(begin) => tool.starts_with(begin),
            None => tool == pattern,
        };
        self.allow.iter().any(fits) && !self.deny.iter().any(fits)
    }

    /// Whether a tenant's runs may use it.
    #[must_use]
    pub fn serves(&self, tenant: &TenantId) -> bool {
        self.tenants.is_empty() || self.tenants.contains(tenant)
    }

    /// How a tool is called here.
    #[must_use]
    pub fn tool_name(&self, tool: &str) -> String {
        let legal = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '_' };
        let room = 63 - self.name.len() - 1;
        format!("{}.{}", self.name, tool.chars().take(room).map(legal).collect::<String>())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) const FORGE: &str = "name: forge
transport:
  http:
    url: https://mcp.example.com/mcp
    headers: { Authorization: 'Bearer secret:FORGE_TOKEN' }
trust: trusted
allow: ['issue_*', merge]
deny: [issue_delete]
tools:
  issue_list: { effect: read, idempotent: true, timeout: 10s }
timeouts: { call: 20s }
limits: { tools: 10 }
";
    const LOCAL: &str = "name: local
transport:
  stdio: { command: [server, --quiet], env: { TOKEN: 'secret:TOKEN' }, inherit: [PATH] }
";

    #[test]
    fn what_is_not_said_is_at_its_strictest() {
        let server = McpServer::parse(LOCAL).unwrap();
        assert_eq!((server.trust, server.elicitation), (Trust::Untrusted, Elicitation::Ask));
        assert!(server.offers("anything") && server.serves(&TenantId::default()) && server.enabled);
        assert_eq!(server.tool_name("a/b c"), "local.a_b_c");
        assert_eq!(server.tool_name(&"x".repeat(200)).len(), 63);
        let forge = McpServer::parse(FORGE).unwrap();
        assert!(forge.offers("issue_list") && forge.offers("merge"));
        assert!(!forge.offers("issue_delete") && !forge.offers("other"));
        assert_eq!((forge.timeouts.call.as_millis(), forge.timeouts.idle.as_millis()), (20_000, 300_000));
    }

    #[test]
    fn each_mistake_has_its_place_and_a_remedy() {
        for (from, to, expect) in [
            ("name: forge", "name: Forge", "`name` must be"),
            ("name: forge", "name: a-name-that-is-far-too-long", "1 to 24"),
            ("trust: trusted", "trust: operator", "`trust` must be"),
            ("trust: trusted", "trsut: trusted", "trsut"),
            ("https://mcp.example.com/mcp", "mcp.example.com", "`url` must begin"),
            ("effect: read", "effect: magic", "magic"),
            ("call: 20s", "call: 0s", "longer than 0"),
            ("tools: 10", "tools: 0", "more than 0"),
            ("headers:", "oauth: { client_id: a, client_secret: hunter2 }\n    headers:", "secret:NAME"),
            ("headers:", "oauth: { grant: client_credentials }\n    headers:", "client_id"),
            ("timeout: 10s", "wording: [\"items//note\"]", "`items//note` must be names"),
            ("timeout: 10s", "assigned: [\"\"]", "must be names"),
            ("allow: ['issue_*', merge]", "allow: [on]", "`on` is a boolean"),
            ("trust: trusted", "enabled: yes", "`yes` is a boolean"),
        ] {
            let yaml = FORGE.replacen(from, to, 1);
            assert_ne!(yaml, FORGE, "{from}");
            let error = McpServer::parse(&yaml).unwrap_err().to_string();
            assert!(error.starts_with("line ") && error.contains(expect), "{to}: {error}");
        }
        for (from, to, expect) in [
            ("[server, --quiet]", "[]", "`command` needs"),
            ("TOKEN: 'secret", "2KEN: 'secret", "environment variable"),
            ("stdio:", "pipe:", "pipe"),
        ] {
            let error = McpServer::parse(&LOCAL.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(expect), "{to}: {error}");
        }
    }
}
