//! What reads well in a server file and cannot be.

use kernel::Trust;

use super::{McpHttp, McpLimits, McpServer, McpStdio, McpTimeouts, McpTransport, OauthGrant};
use crate::agents::{Problem, is_name};

/// Longest name of a server: its tools are called `<server>.<tool>`, and names of tools are short.
const NAME_CHARS: usize = 24;

/// The first thing that is wrong.
pub(super) fn problem(server: &McpServer) -> Option<Problem<'_>> {
    if !is_name(&server.name) || server.name.len() > NAME_CHARS {
        let words = format!("`name` must be 1 to {NAME_CHARS} of a-z, 0-9 and `-`, and not begin with `-`");
        return Some(Problem::new(&server.name, words));
    }
    if server.trust > Trust::Trusted {
        return Some(Problem::new(
            server.trust.as_str(),
            "`trust` must be `untrusted` or `trusted`: a server is no person",
        ));
    }
    let transport = match &server.transport {
        McpTransport::Stdio(stdio) => stdio_problem(stdio),
        McpTransport::Http(http) => http_problem(http),
    };
    transport
        .or_else(|| amounts_problem(server))
        .or_else(|| {
            let empty =
                server.allow.iter().chain(&server.deny).chain(server.tools.keys()).any(|name| name.trim().is_empty());
            empty.then(|| Problem::new("allow", "a name of a tool is empty: leave it out"))
        })
        .or_else(|| {
            let paths = server.tools.values().flat_map(|tool| tool.wording.iter().chain(&tool.assigned));
            paths.into_iter().find(|path| !is_path(path)).map(|path| {
                let words = format!(
                    "`{path}` must be names with `/` between them, such as `items/*/id`; `*` is each item of a list"
                );
                // An empty one stands nowhere that could be found.
                Problem::new(if path.is_empty() { "tools" } else { path }, words)
            })
        })
}

fn is_path(path: &str) -> bool {
    path.split('/').all(|name| !name.is_empty() && name == name.trim())
}

fn stdio_problem(stdio: &McpStdio) -> Option<Problem<'_>> {
    if stdio.command.first().is_none_or(|program| program.trim().is_empty()) {
        return Some(Problem::new("command", "`command` needs a program: write [program, argument, ...]"));
    }
    let is_variable = |name: &String| {
        !name.starts_with(|c: char| c.is_ascii_digit())
            && !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let bad = stdio.env.keys().chain(&stdio.inherit).find(|name| !is_variable(name))?;
    Some(Problem::new(bad, format!("`{bad}` is not the name of an environment variable")))
}

fn http_problem(http: &McpHttp) -> Option<Problem<'_>> {
    let absolute = ["http://", "https://", "{env:"].iter().any(|start| http.url.starts_with(start));
    if !absolute {
        return Some(Problem::new(&http.url, "`url` must begin with http://, https:// or {env:NAME}"));
    }
    let oauth = http.oauth.as_ref()?;
    let needs_client = oauth.client_secret.is_some() || oauth.grant == OauthGrant::ClientCredentials;
    if needs_client && oauth.client_id.is_none() {
        return Some(Problem::new(
            "oauth",
            "`oauth` needs a `client_id` beside a `client_secret` or `grant: client_credentials`",
        ));
    }
    let secret = oauth.client_secret.as_deref().filter(|secret| !secret.starts_with("secret:"))?;
    Some(Problem::new(secret, "`client_secret` must be a reference, `secret:NAME`: secrets do not stand in files"))
}

fn amounts_problem(server: &McpServer) -> Option<Problem<'_>> {
    let McpTimeouts { start, call, answer, task, idle } = server.timeouts;
    let of_tools = server.tools.values().filter_map(|tool| tool.timeout);
    if [start, call, answer, task, idle].into_iter().chain(of_tools).any(|time| time.as_millis() == 0) {
        return Some(Problem::new("timeout", "a time-out must be longer than 0"));
    }
    let McpLimits { message_bytes, tools, concurrent } = server.limits;
    let zero = message_bytes == 0 || tools == 0 || concurrent == 0;
    zero.then(|| Problem::new("limits", "a limit must be more than 0"))
}
