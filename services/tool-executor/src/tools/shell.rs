//! `shell.run`: which command, where, with which environment.

use std::collections::BTreeMap;

use kernel::agent::Allow;

use super::{Invocation, required, text};
use crate::activity::ShellCommand;
use crate::outcome::ToolError;
use crate::workspace::Workspace;

/// What every command gets.
#[derive(Clone, Debug)]
pub struct ShellOptions {
    /// The environment beside `HOME`, which is the workspace.
    pub env: BTreeMap<String, String>,
    /// Most open files.
    pub open_files: u64,
    /// Largest file, in bytes; 0 is no limit.
    pub file_bytes: u64,
}

/// Where commands are looked for if the executor has no `PATH` itself.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

impl ShellOptions {
    /// The environment of commands: `PATH`, `LANG`, and of the executor's own what `pass` names.
    pub fn new(pass: &[String], open_files: u64, file_bytes: u64) -> Self {
        let own = |name: &str| std::env::var(name).ok();
        let mut env: BTreeMap<_, _> = pass.iter().filter_map(|name| Some((name.clone(), own(name)?))).collect();
        env.insert("PATH".to_owned(), own("PATH").unwrap_or_else(|| PATH.to_owned()));
        env.insert("LANG".to_owned(), "C.UTF-8".to_owned());
        Self { env, open_files, file_bytes }
    }
}

/// The command of a call: `command`, in `cwd` within the workspace.
pub(super) fn command(
    options: &ShellOptions,
    workspace: &Workspace,
    invocation: Invocation<'_>,
) -> Result<ShellCommand, ToolError> {
    let command = required(invocation, "command")?;
    if command.contains('\0') {
        return Err(ToolError::final_("invalid_arguments", "`command` holds a NUL"));
    }
    workspace.ensure().map_err(|error| ToolError::final_("io", format!("the workspace can't be made: {error}")))?;
    let cwd = workspace.folder(text(invocation, "cwd").unwrap_or_default())?;
    // An absolute one, since the command is started elsewhere.
    let absolute = |path| std::path::absolute(path).map_err(|error| ToolError::final_("io", error.to_string()));
    let mut env = options.env.clone();
    env.insert("HOME".to_owned(), absolute(workspace.root().to_owned())?.display().to_string());
    Ok(ShellCommand {
        command: command.to_owned(),
        cwd: absolute(cwd)?,
        env,
        open_files: options.open_files,
        file_bytes: options.file_bytes,
    })
}

/// Whether the agent's file names the command: word for word, or by its begin if the rest is free of shell syntax.
pub(super) fn is_named(command: &str, allow: &Allow) -> bool {
    let command = command.trim();
    allow.commands.iter().map(|named| named.trim()).any(|named| match named.strip_suffix('*') {
        None => command == named,
        Some(begin) => command.strip_prefix(begin).is_some_and(|rest| rest.chars().all(is_plain)),
    })
}

/// What a shell takes as it stands.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, ' ' | '-' | '_' | '.' | '/' | ':' | '=' | ',' | '@' | '+' | '%')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(command: &str, commands: &[&str]) -> bool {
        let commands = commands.iter().map(|command| (*command).to_owned()).collect();
        is_named(command, &Allow { commands, ..Allow::default() })
    }

    #[test]
    fn commands_are_named_word_for_word_or_by_their_begin() {
        assert!(named("cargo test", &["cargo test"]));
        assert!(named(" cargo test --lib foo::bar ", &["cargo test*"]));
        assert!(!named("cargo tests", &["cargo test"]));
        assert!(!named("cargo test", &[]));
        for rest in
            ["; rm -rf /", " && curl x", " $(id)", " `id`", " > x", " | sh", "\nid", " ~/x", " *", " 'x'", " \\x"]
        {
            assert!(!named(&format!("cargo test{rest}"), &["cargo test*"]), "{rest}");
        }
        // What the operator wrote out may use what it likes.
        assert!(named("make && ./run > log", &["make && ./run > log"]));
    }
}
