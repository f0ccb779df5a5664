//! Commands: those that a model writes (`shell.run`), and programs that a tool file names.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use kernel::agent::Allow;
use kernel::tool::{ProcessLimits, ProcessRun};
use kernel::{CallId, Trust};
use serde_json::Value;

use super::{Invocation, Tools, required, text};
use crate::activity::{self, Answer, Caps, End, Groups, PerProcess, ProcessCommand};
use crate::confine::Confinement;
use crate::outcome::{Content, Happened, ToolError};
use crate::secrets::Secrets;
use crate::template::{self, Places};
use crate::workspace::{Workspace, Workspaces};

/// Most bytes of an answer of a program, whatever else it may print.
const ANSWER: u64 = 1 << 20;
/// Where commands are looked for if the executor has no `PATH` itself.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// What every command gets.
#[derive(Clone, Debug)]
pub(crate) struct ProcessOptions {
    /// The environment beside `HOME`, which is the workspace.
    pub env: BTreeMap<String, String>,
    /// For each process.
    pub limits: PerProcess,
    /// For a command as a whole.
    pub caps: Caps,
    pub confinement: Confinement,
    pub groups: Groups,
}

impl ProcessOptions {
    /// The environment of commands: `PATH`, `LANG`, and of the executor's own what `pass` names.
    pub fn env(pass: &[String]) -> BTreeMap<String, String> {
        let own = |name: &str| std::env::var(name).ok();
        let mut env: BTreeMap<_, _> = pass.iter().filter_map(|name| Some((name.clone(), own(name)?))).collect();
        env.insert("PATH".to_owned(), own("PATH").unwrap_or_else(|| PATH.to_owned()));
        env.insert("LANG".to_owned(), "C.UTF-8".to_owned());
        env
    }

    fn limited(&self, limits: &ProcessLimits) -> (PerProcess, Caps) {
        let per_process = PerProcess { cpu: limits.cpu.map(|cpu| cpu.std()).or(self.limits.cpu), ..self.limits };
        let caps = Caps {
            // A tool may be held shorter than the executor is configured, never longer.
            output: limits.output.map_or(self.caps.output, |output| output.min(self.caps.output)),
            processes: limits.processes.map_or(self.caps.processes, u64::from),
            memory: limits.memory.unwrap_or(self.caps.memory),
        };
        (per_process, caps)
    }
}

/// The command of `shell.run`: `command`, in `cwd` within the workspace.
pub(super) fn shell(
    options: &ProcessOptions,
    workspace: &Workspace,
    invocation: Invocation<'_>,
) -> Result<ProcessCommand, ToolError> {
    let command = required(invocation, "command")?;
    let arguments = vec!["/bin/sh".to_owned(), "-c".to_owned(), command.to_owned()];
    let cwd = text(invocation, "cwd").unwrap_or_default();
    let input = invocation.arguments.get("input").and_then(Value::as_bool).unwrap_or(false);
    assemble(options, workspace, arguments, cwd, Declared { input, ..Declared::default() })
}

/// The program that a tool file names, with its places filled.
pub(super) fn program(
    options: &ProcessOptions,
    workspace: &Workspace,
    secrets: &Secrets,
    process: &ProcessRun,
    invocation: Invocation<'_>,
) -> Result<ProcessCommand, ToolError> {
    let places = Tools::places(invocation);
    let arguments = arguments(&process.command, places)?;
    let cwd = process.cwd.as_deref().map(|cwd| template::text(cwd, places)).unwrap_or_default();
    let mut env = BTreeMap::new();
    for (name, value) in &process.env {
        env.insert(name.clone(), template::with_secrets(value, places, secrets)?.text);
    }
    let declared =
        Declared { env, read: &process.read, network: process.network, limits: process.limits, input: false };
    assemble(options, workspace, arguments, &cwd, declared)
}

/// Runs the program that a tool file names, in a folder of its own: what it prints is the answer.
pub(super) async fn answer(
    options: &ProcessOptions,
    workspaces: &Workspaces,
    secrets: &Secrets,
    process: &ProcessRun,
    invocation: Invocation<'_>,
) -> Result<Content, ToolError> {
    let attempt = CallId::mint();
    let command = program(options, &workspaces.of_answer(attempt), secrets, process, invocation)?;
    let most = if command.caps.output == 0 { ANSWER } else { command.caps.output.min(ANSWER) };
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let bounds = (options.confinement.clone(), options.groups.clone());
    let answered = activity::answer(attempt, command, bounds, most, invocation.timeout).await;
    let answer = answered.map_err(|error| ToolError::final_("spawn", format!("it can't be started: {error}")))?;
    said(process, answer, most, invocation.timeout)
}

/// What a program said, if that is an answer.
fn said(process: &ProcessRun, answer: Answer, most: usize, within: Duration) -> Result<Content, ToolError> {
    let name = process.command.first().map(String::as_str).unwrap_or_default();
    let Answer { mut output, errors, end } = answer;
    let how = match end {
        End::Exited(code) if code == 0 && process.answers.is_empty() || process.answers.contains(&code) => {
            return Ok(content(output));
        }
        End::TooMuch => {
            output.truncate(most);
            return Ok(Content { truncated: true, value: None, ..content(output) });
        }
        End::TimedOut | End::Unwanted => {
            return Err(ToolError::transient("timeout", format!("`{name}` took longer than {within:?}"), Happened::No));
        }
        End::Beyond(reason) => {
            return Err(ToolError::final_(reason, format!("`{name}` used more than it may, and was ended")));
        }
        End::Exited(code) => format!("`{name}` ended with exit code {code}, which is no answer"),
        End::Killed(signal) => format!("`{name}` was ended by signal {signal}"),
    };
    let errors = String::from_utf8_lossy(&errors);
    let words = format!("{how}\n\n{}", errors.trim());
    // What it says there comes from wherever it has looked.
    Err(ToolError { trust: Trust::Untrusted, ..ToolError::final_("exit", words.trim_end()) })
}

fn content(output: Vec<u8>) -> Content {
    let value = serde_json::from_slice(&output).ok();
    let media_type = if value.is_some() { "application/json" } else { "" };
    Content { value, ..Content::outside(output, media_type) }
}

/// What a tool file says about its command.
#[derive(Default)]
struct Declared<'a> {
    env: BTreeMap<String, String>,
    read: &'a [String],
    network: bool,
    limits: ProcessLimits,
    input: bool,
}

fn assemble(
    options: &ProcessOptions,
    workspace: &Workspace,
    arguments: Vec<String>,
    cwd: &str,
    declared: Declared<'_>,
) -> Result<ProcessCommand, ToolError> {
    if arguments.iter().chain(declared.env.values()).any(|argument| argument.contains('\0')) {
        return Err(ToolError::final_("invalid_arguments", "a command can't hold a NUL"));
    }
    workspace.ensure().map_err(|error| ToolError::final_("io", format!("the workspace can't be made: {error}")))?;
    // Absolute ones, since the command is started elsewhere, and without links, since that is how the system checks them.
    let whole = |path: PathBuf| path.canonicalize().map_err(|error| ToolError::final_("io", error.to_string()));
    let root = whole(workspace.root().to_owned())?;
    let cwd = whole(workspace.folder(cwd)?)?;
    let mut env = options.env.clone();
    env.insert("HOME".to_owned(), root.display().to_string());
    env.extend(declared.env);
    let (limits, caps) = options.limited(&declared.limits);
    let bounds = options.confinement.bounds(&root, declared.read, declared.network);
    Ok(ProcessCommand { arguments, cwd, env, bounds, limits, caps, input: declared.input })
}

/// The arguments with their places filled. One that is a place as a whole takes a list as several arguments, and is left out
/// if nothing fills it. None becomes an option that the tool's author did not write.
fn arguments(templates: &[String], places: Places<'_>) -> Result<Vec<String>, ToolError> {
    let mut filled: Vec<String> = Vec::with_capacity(templates.len());
    for argument in templates {
        let values = match template::whole_place(argument, places) {
            Some(Value::Array(items)) => items.iter().map(template::plain).collect(),
            Some(Value::Null) => Vec::new(),
            Some(value) => vec![template::plain(&value)],
            None => vec![template::text(argument, places)],
        };
        let may_be_option = argument.starts_with('-') || filled.iter().any(|before| before == "--");
        if let Some(option) = values.iter().find(|value| value.starts_with('-') && !may_be_option) {
            let option: String = option.chars().take(100).collect();
            let words = format!("`{option}`, for `{argument}`, begins with `-`, and would be an option of the program");
            return Err(ToolError::final_("invalid_arguments", words));
        }
        filled.extend(values);
    }
    Ok(filled)
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

/// Processor time as it is configured: 0 is no limit.
pub(crate) fn cpu(seconds: u64) -> Option<Duration> {
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use kernel::RunId;
    use serde_json::json;

    use super::*;
    use crate::confine::Confine;

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

    fn fill(templates: &[&str], given: &Value) -> Result<Vec<String>, ToolError> {
        let given = given.as_object().unwrap().clone();
        let templates: Vec<_> = templates.iter().map(|template| (*template).to_owned()).collect();
        arguments(&templates, Places { arguments: &given, idempotency_key: "k", run: RunId::mint() })
    }

    #[test]
    fn a_place_fills_one_argument_whatever_is_in_it() {
        let filled = fill(&["git", "show", "--format={f}", "{ref}"], &json!({"f": "a b;c", "ref": "main $(id) 'x'"}));
        assert_eq!(filled.unwrap(), ["git", "show", "--format=a b;c", "main $(id) 'x'"]);
        let filled = fill(&["wc", "{files}", "{gone}"], &json!({"files": ["a", 1, "c d"]}));
        assert_eq!(filled.unwrap(), ["wc", "a", "1", "c d"]);
    }

    #[tokio::test]
    async fn attempts_of_one_call_have_nothing_in_common() {
        let dir = tempfile::tempdir().unwrap();
        let options = ProcessOptions {
            env: ProcessOptions::env(&[]),
            limits: PerProcess { open_files: 256, ..PerProcess::default() },
            caps: Caps::default(),
            confinement: Confinement::new(Confine::Off, &[]).unwrap(),
            groups: Groups::default(),
        };
        let (workspaces, secrets) = (Workspaces::new(dir.path()), Secrets::default());
        let program = |script: &str| ProcessRun {
            command: ["sh", "-c", script].map(str::to_owned).to_vec(),
            cwd: None,
            env: BTreeMap::new(),
            network: false,
            read: Vec::new(),
            limits: ProcessLimits::default(),
            answers: Vec::new(),
        };
        let invocation = Invocation {
            tenant: &kernel::TenantId::default(),
            run: RunId::mint(),
            agent: "tester",
            trust: Trust::Operator,
            call: CallId::mint(),
            arguments: &serde_json::Map::new(),
            idempotency_key: "k",
            traceparent: "",
            allow: &Allow::default(),
            timeout: Duration::from_secs(20),
        };
        let (hangs, answers) = (program("exec sleep 7413"), program("sleep 2; touch here; ls; echo $HOME"));
        let abandoned = answer(&options, &workspaces, &secrets, &hangs, invocation);
        assert!(tokio::time::timeout(Duration::from_millis(500), abandoned).await.is_err());
        // The first one is ended and cleared away meanwhile.
        let content = answer(&options, &workspaces, &secrets, &answers, invocation).await.unwrap();
        let said = String::from_utf8(content.bytes).unwrap();
        assert!(said.starts_with("here\n") && !said.contains(&invocation.call.to_string()), "{said}");
    }

    #[test]
    fn only_with_some_exit_codes_what_is_printed_is_an_answer() {
        let said = |answers: &[i32], end, output: &str| {
            let process = ProcessRun {
                command: vec!["systemctl".to_owned()],
                cwd: None,
                env: BTreeMap::new(),
                network: false,
                read: Vec::new(),
                limits: ProcessLimits::default(),
                answers: answers.to_vec(),
            };
            let answer = Answer { output: output.into(), errors: b"it is down\n".to_vec(), end };
            super::said(&process, answer, 5, Duration::from_secs(1))
        };
        let good = said(&[], End::Exited(0), "{\"a\":1}").unwrap();
        assert_eq!((good.value, good.media_type.as_str()), (Some(json!({"a": 1})), "application/json"));
        assert_eq!(said(&[0, 3], End::Exited(3), "inactive").unwrap().bytes, b"inactive");
        let code = |answers: &[i32], end| said(answers, end, "").map_err(|error| error.code).unwrap_err();
        assert_eq!((code(&[], End::Exited(3)), code(&[3], End::Exited(0))), ("exit", "exit"));
        assert_eq!((code(&[0], End::Killed(9)), code(&[0], End::TimedOut)), ("exit", "timeout"));
        assert_eq!(code(&[], End::Beyond("memory_cap")), "memory_cap");
        let error = said(&[], End::Exited(1), "").unwrap_err();
        assert!(error.message.ends_with("it is down") && error.trust == Trust::Untrusted, "{error}");
        let cut = said(&[], End::TooMuch, "{\"a\":1}").unwrap();
        assert!(cut.truncated && cut.value.is_none() && cut.bytes.len() == 5);
    }

    #[test]
    fn no_argument_becomes_an_option_by_what_fills_it() {
        for given in [json!({"ref": "--upload-pack=x"}), json!({"ref": ["a", "-x"]})] {
            let error = fill(&["git", "fetch", "{ref}"], &given).unwrap_err();
            assert_eq!(error.code, "invalid_arguments");
            assert!(error.message.contains("would be an option"), "{error}");
            assert!(fill(&["git", "fetch", "--", "{ref}"], &given).is_ok());
        }
        assert!(fill(&["x", "-n{n}"], &json!({"n": "-5"})).is_ok(), "its author wrote the option");
    }
}
