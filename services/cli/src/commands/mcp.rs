//! MCP servers: which are declared, and agreeing in a browser to what one of them wants.

use std::time::Duration;

use engine::{McpServers, McpTransport, ToolCatalog};
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};
use tool_executor::mcp::{Means, OpenError, login as log_in};

use crate::{error::CliError, out::Out, style::Paint, table::Table};

/// How long a person may take.
const PATIENCE: Duration = Duration::from_secs(600);
/// The longest line that is read of what the browser asks for.
const LINE: u64 = 16 * 1024;
/// Where the browser is sent back to.
const BACK: &str = "/callback";

/// The servers that are declared and enabled.
pub fn list(out: &Out) -> Result<(), CliError> {
    let mut items = Vec::new();
    let mut table = Table::new(
        ["server", "transport", "trust", "place"],
        "no MCP server is enabled: one is declared in servers/ of the agents' folder, with `enabled: true`",
    );
    for server in declared()?.all() {
        let (kind, place) = match &server.transport {
            McpTransport::Stdio(stdio) => ("stdio", stdio.command.join(" ")),
            McpTransport::Http(http) => ("http", http.url.clone()),
        };
        items.push(json!({"name": server.name, "transport": kind, "place": place, "trust": server.trust}));
        table.row([
            (Paint::Bold, server.name.clone()),
            (Paint::Plain, kind.to_owned()),
            (Paint::Plain, server.trust.as_str().to_owned()),
            (Paint::Plain, place),
        ]);
    }
    out.table(&json!({"items": items}), &table);
    Ok(())
}

/// Lets a person agree, and keeps the server's token where the tool-executor finds it.
pub async fn login(name: &str, out: &Out) -> Result<(), CliError> {
    let declared = declared()?;
    let Some(server) = declared.get(name) else {
        let known: Vec<_> = declared.all().map(|server| server.name.as_str()).collect();
        let known = if known.is_empty() { "none is".to_owned() } else { format!("enabled are {}", known.join(", ")) };
        let remedy = format!(
            "declare it in servers/*.yaml of the agents' folder (ESC_AGENTS_DIR), with `enabled: true`; {known}"
        );
        return Err(CliError::usage_with(format!("no MCP server `{name}` is enabled"), remedy));
    };
    let config: tool_executor::Config = service::load("tool-executor", Vec::<String>::new())?;
    let means = Means::of(&config).map_err(|error| CliError::usage(format!("the folder of tokens: {error}")))?;
    let listening = TcpListener::bind(("127.0.0.1", 0)).await.and_then(|listener| {
        let port = listener.local_addr()?.port();
        Ok((listener, port))
    });
    let (listener, port) = listening.map_err(|error| CliError::failed(format!("no port to come back to: {error}")))?;
    let listener = &listener;
    let browse = |url: String| async move {
        out.say(format!("Open this address in a browser on this machine, and agree:\n\n  {url}\n"));
        let coming_back = tokio::time::timeout(PATIENCE, come_back(listener));
        match coming_back.await {
            Ok(Ok(path)) => Ok(format!("http://127.0.0.1:{port}{path}")),
            Ok(Err(error)) => Err(gave_up(format!("the browser could not be heard: {error}"))),
            Err(_) => Err(gave_up(format!("nobody agreed within {PATIENCE:?}"))),
        }
    };
    let redirect = format!("http://127.0.0.1:{port}{BACK}");
    log_in(server, means.tokens(), None, &redirect, browse)
        .await
        .map_err(|error| CliError::failed(error.to_string()))?;
    out.value(&json!({"server": name, "logged_in": true}));
    out.say(format!("Agreed. Executors that see the same folder of secrets now speak to `{name}` with it."));
    Ok(())
}

fn declared() -> Result<McpServers, CliError> {
    let catalog = ToolCatalog::load(&super::settings()?.agents_dir);
    Ok(catalog.map_err(|error| CliError::usage(error.to_string()))?.servers().clone())
}

fn gave_up(words: String) -> OpenError {
    OpenError { code: "unauthorized", words, again: None, challenge: None }
}

/// Waits for the browser, and gives the path that it was sent to.
async fn come_back(listener: &TcpListener) -> std::io::Result<String> {
    loop {
        let (mut stream, _) = listener.accept().await?;
        // Browsers also ask for other things, and some connect just in case.
        if let Ok(Ok(Some(path))) = tokio::time::timeout(Duration::from_secs(5), asked_for(&mut stream)).await {
            return Ok(path);
        }
    }
}

async fn asked_for(stream: &mut TcpStream) -> std::io::Result<Option<String>> {
    let (reading, mut writing) = stream.split();
    let mut line = String::new();
    let mut reader = BufReader::new(tokio::io::AsyncReadExt::take(reading, LINE));
    reader.read_line(&mut line).await?;
    let path = line.strip_prefix("GET ").and_then(|rest| rest.split(' ').next()).filter(|path| path.starts_with(BACK));
    let (status, words) = match path {
        Some(_) => ("200 OK", "You can close this page and go back to the shell."),
        None => ("404 Not Found", "Not here."),
    };
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{words}",
        words.len()
    );
    writing.write_all(answer.as_bytes()).await?;
    Ok(path.map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn the_browser_is_heard_once_it_comes_back() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let ask = async |path: &str| {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let visits = async {
            assert!(ask("/favicon.ico").await.starts_with("HTTP/1.1 404"));
            assert!(ask("/callback?code=a&state=b").await.starts_with("HTTP/1.1 200"));
        };
        let (path, ()) = futures::join!(come_back(&listener), visits);
        assert_eq!(path.unwrap(), "/callback?code=a&state=b");
    }
}
