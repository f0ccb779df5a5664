//! What reads well in a tool file and cannot be.

use std::sync::Arc;

use kernel::tool::{
    CallKind, Concurrency, DryRun, Effect, FollowUp, HttpRequest, Permissions, Probe, ProcessRun, Retry, SqlRead,
    Status, ToolRun, ToolSpec,
};
use serde_json::{Map, Value};

use crate::agents::{Problem, is_tool_name};

/// What every request may name beside the arguments.
const OWN_PLACES: [&str; 2] = ["idempotency_key", "run_id"];
/// Most rows that a question to a database may have.
const MOST_ROWS: u32 = 1000;
/// The roles of API tokens.
const ROLES: [&str; 5] = ["viewer", "user", "operator", "admin", "publisher"];

/// The first thing that is wrong.
pub(super) fn problem(spec: &ToolSpec) -> Option<Problem<'_>> {
    if !is_tool_name(&spec.name) {
        return Some(Problem::new(&spec.name, "`name` must be 1 to 63 letters, digits, `.`, `_` or `-`"));
    }
    if spec.description.trim().is_empty() {
        return Some(Problem::new("description", "`description` is empty: the model chooses by it"));
    }
    if spec.input.get("type").and_then(Value::as_str) != Some("object") {
        return Some(Problem::new("input", "`input` must be a JSON Schema with `type: object`: arguments are named"));
    }
    if spec.timeout.as_millis() == 0 {
        return Some(Problem::new("timeout", "`timeout` must be longer than 0"));
    }
    if let Some(problem) = kind_problem(spec) {
        return Some(problem);
    }
    let places = Places::of(&spec.input);
    spec.retry
        .as_ref()
        .and_then(retry_problem)
        .or_else(|| concurrency_problem(&spec.concurrency, &places))
        .or_else(|| permissions_problem(&spec.permissions))
        .or_else(|| run_problem(&spec.run, &places))
        .or_else(|| spec.probe.as_ref().and_then(|probe| probe_problem(probe, &places)))
        .or_else(|| followed_problem(spec, &places.with_result()))
        .or_else(|| dry_run_problem(spec))
}

/// What can't be done in the way that the file says it is.
fn kind_problem(spec: &ToolSpec) -> Option<Problem<'static>> {
    let answers = spec.kind == CallKind::Call;
    match &spec.run {
        // What it has changed when its executor dies nobody could say; an activity outlives that.
        ToolRun::Process(_) if answers && spec.effect != Effect::Read => Some(Problem::new(
            "process",
            "a `process` goes on by itself: say `kind: activity`, or `effect: read` if it only answers a question",
        )),
        ToolRun::Process(process) if answers && process.cwd.is_some() => {
            Some(Problem::new("cwd", "`cwd` is a folder of the workspace: a `process` that only answers has none"))
        }
        ToolRun::Process(process) if !answers && !process.answers.is_empty() => {
            let words =
                "`answers` is for a `process` that only answers: what an exit code means is said under `observe`";
            Some(Problem::new("answers", words))
        }
        ToolRun::Sql(_) if !answers || spec.effect != Effect::Read => Some(Problem::new(
            "sql",
            "`sql` only reads and answers at once: say `effect: read`, and `kind: call` or nothing",
        )),
        _ => None,
    }
}

/// What `{name}` may stand for.
struct Places<'a> {
    /// The arguments by name; none if the schema does not say all of them.
    arguments: Option<&'a Map<String, Value>>,
    /// The call's result is known by then.
    result: bool,
}

impl<'a> Places<'a> {
    fn of(input: &'a Value) -> Self {
        let closed = input.get("additionalProperties") == Some(&Value::Bool(false));
        let arguments = input.get("properties").and_then(Value::as_object).filter(|_| closed);
        Self { arguments, result: false }
    }

    fn with_result(&self) -> Self {
        Self { arguments: self.arguments, result: true }
    }

    /// The first place of a template that nothing fills.
    fn unfilled<'t>(&self, template: &'t str) -> Option<Problem<'t>> {
        let arguments = self.arguments?;
        let name = places(template).find(|name| {
            let first = name.split('.').next().unwrap_or(name);
            let known = OWN_PLACES.contains(name) || name.starts_with("env:") || arguments.contains_key(first);
            !(known || self.result && first == "result")
        })?;
        let names: Vec<_> = arguments.keys().map(String::as_str).collect();
        let message = format!("`{{{name}}}` names no argument: `input` has {}", names.join(", "));
        Some(Problem::new(template, message))
    }
}

/// The names between `{` and `}`, as they are filled.
fn places(template: &str) -> impl Iterator<Item = &str> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':');
    template.split('{').skip(1).filter_map(move |rest| {
        let (name, _) = rest.split_once('}')?;
        (!name.is_empty() && name.chars().all(legal)).then_some(name)
    })
}

fn retry_problem(retry: &Retry) -> Option<Problem<'static>> {
    if !(1..=20).contains(&retry.attempts) {
        return Some(Problem::new("attempts", "`attempts` must be 1 to 20; 1 is none after the first"));
    }
    let longer = retry.first > retry.most;
    longer.then(|| Problem::new("first", "`first` is longer than `most`: the pauses grow from one to the other"))
}

fn concurrency_problem<'a>(concurrency: &'a Concurrency, places: &Places<'_>) -> Option<Problem<'a>> {
    if concurrency.per_target == Some(0) {
        return Some(Problem::new("per_target", "`per_target` must be 1 or more: with 0 nothing could ever run"));
    }
    if concurrency.locks.iter().any(|lock| lock.trim().is_empty()) {
        return Some(Problem::new("locks", "`locks` has an empty entry: leave it out"));
    }
    concurrency.locks.iter().chain(&concurrency.target).find_map(|template| places.unfilled(template))
}

fn permissions_problem(permissions: &Permissions) -> Option<Problem<'_>> {
    let wrong =
        |name: &&String| name.trim().is_empty() || name.trim_end_matches('*').contains('*') || name.ends_with("**");
    if let Some(name) = permissions.tenants.iter().chain(&permissions.agents).find(wrong) {
        return Some(Problem::new(name, "`permissions` holds names; a `*` may stand only at the end, for any rest"));
    }
    let role = permissions.roles.iter().find(|role| !ROLES.contains(&role.as_str()))?;
    Some(Problem::new(role, format!("`{role}` is no role: `roles` holds some of {}", ROLES.join(", "))))
}

fn run_problem<'a>(run: &'a ToolRun, places: &Places<'_>) -> Option<Problem<'a>> {
    match run {
        ToolRun::Http(request) => request_problem(request, places),
        ToolRun::Process(process) => process_problem(process, places),
        ToolRun::Sql(sql) => sql_problem(sql, places),
        ToolRun::Mcp(_) => {
            let words = "`run: mcp` is not written by hand: an MCP server's tools come from its file";
            Some(Problem::new("run", words))
        }
        ToolRun::Builtin(_) => None,
    }
}

fn process_problem<'a>(process: &'a ProcessRun, places: &Places<'_>) -> Option<Problem<'a>> {
    let Some(program) = process.command.first().filter(|program| !program.trim().is_empty()) else {
        return Some(Problem::new(
            "command",
            "`command` is empty: it is the program, then its arguments, each by itself",
        ));
    };
    if self::places(program).next().is_some() {
        return Some(Problem::new(program, "the first of `command` is the program, which no argument may choose"));
    }
    if let Some(name) = process.env.keys().find(|name| !is_variable(name)) {
        return Some(Problem::new(
            name,
            format!("`{name}` in `env` must be letters, digits and `_`, and not begin with a digit"),
        ));
    }
    if let Some(path) = process.read.iter().find(|path| !path.starts_with('/')) {
        return Some(Problem::new(
            path,
            "`read` holds absolute paths outside the workspace; the workspace is open anyway",
        ));
    }
    if process.limits.processes == Some(0) {
        return Some(Problem::new("processes", "`processes` must be 1 or more: with 0 nothing could ever run"));
    }
    let templates = process.command.iter().chain(&process.cwd).chain(process.env.values());
    templates.map(String::as_str).find_map(|template| places.unfilled(template))
}

fn sql_problem<'a>(sql: &'a SqlRead, places: &Places<'_>) -> Option<Problem<'a>> {
    if !sql.url.strip_prefix("secret:").is_some_and(is_variable) {
        let words = "`url` must be `secret:NAME`: the connection URL has a password in it, so it is no part of a file";
        return Some(Problem::new("url", words));
    }
    if sql.statement.trim().is_empty() {
        return Some(Problem::new(
            "statement",
            "`statement` is empty: say what is asked, such as `select state from orders`",
        ));
    }
    let is_argument = |name: &&str| places.arguments.is_some_and(|arguments| arguments.contains_key(*name));
    if let Some(name) = self::places(&sql.statement).find(is_argument) {
        let words = format!("`{{{name}}}` in `statement` is not filled in: write `$1`, and put it into `parameters`");
        return Some(Problem::new("statement", words));
    }
    if sql.rows.is_some_and(|rows| !(1..=MOST_ROWS).contains(&rows)) {
        return Some(Problem::new("rows", format!("`rows` must be 1 to {MOST_ROWS}")));
    }
    sql.parameters.iter().find_map(|parameter| places.unfilled(parameter))
}

fn is_variable(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn probe_problem<'a>(probe: &'a Probe, places: &Places<'_>) -> Option<Problem<'a>> {
    pointer_problem("done", &probe.done).or_else(|| request_problem(&probe.http, places))
}

fn pointer_problem<'a>(field: &str, pointer: &'a str) -> Option<Problem<'a>> {
    let is_pointer = pointer.is_empty() || pointer.starts_with('/');
    (!is_pointer)
        .then(|| Problem::new(pointer, format!("`{field}` must be a JSON pointer: empty, or beginning with `/`")))
}

fn followed_problem<'a>(spec: &'a ToolSpec, places: &Places<'_>) -> Option<Problem<'a>> {
    if spec.kind == CallKind::Call && spec.status.is_some() {
        return Some(Problem::new(
            "status",
            "`status` is for what goes on by itself: say `kind: activity`, or leave it out",
        ));
    }
    if spec.kind == CallKind::Call && spec.cancel.is_some() {
        return Some(Problem::new(
            "cancel",
            "`cancel` is for what goes on by itself: say `kind: activity`, or leave it out",
        ));
    }
    if spec.effect == Effect::Read && spec.compensate.is_some() {
        return Some(Problem::new("compensate", "`compensate` has nothing to undo: a `read` changes nothing"));
    }
    let status = spec.status.as_ref().and_then(|status| status_problem(status, places));
    let mut follow_ups = [&spec.cancel, &spec.compensate].into_iter().flatten();
    status.or_else(|| follow_ups.find_map(|FollowUp { http }| request_problem(http, places)))
}

fn dry_run_problem(spec: &ToolSpec) -> Option<Problem<'_>> {
    let dry_run = spec.dry_run.as_ref()?;
    if spec.effect == Effect::Read {
        return Some(Problem::new("dry_run", "`dry_run` has nothing to try out: a `read` changes nothing"));
    }
    let DryRun::Arguments(set) = dry_run else { return None };
    if spec.kind == CallKind::Activity {
        let words = "a dry run has to answer, and an activity goes on by itself: name a `tool` that only reads";
        return Some(Problem::new("dry_run", words));
    }
    if set.is_empty() {
        return Some(Problem::new("dry_run", "`dry_run` sets no argument, so it would be the call itself"));
    }
    if let Some(name) = unnamed(set, &spec.input) {
        return Some(Problem::new(name, format!("`{name}` in `dry_run` is no argument: `input` does not have it")));
    }
    let name = set.keys().find(|name| !is_sent(&spec.run, name))?;
    let words = format!("`{name}` in `dry_run` is not sent, as there is no place for it: it would be the call itself");
    Some(Problem::new(name, words))
}

/// The first of these arguments that a schema does not name, also if it is open: nobody has looked at what that would do.
pub(crate) fn unnamed<'a>(set: &'a Map<String, Value>, input: &Value) -> Option<&'a str> {
    set.keys().map(String::as_str).find(|name| input["properties"].get(name).is_none())
}

/// Whether an argument makes a difference to what is done.
fn is_sent(run: &ToolRun, argument: &str) -> bool {
    match run {
        ToolRun::Http(request) => {
            // Then the arguments themselves are the body.
            let whole = request.body.is_none() && ["POST", "PUT", "PATCH"].contains(&request.method.as_str());
            let mut plain = std::iter::once(&request.url).chain(request.headers.values());
            whole
                || plain.any(|template| has_place(template, argument))
                || request.body.as_ref().is_some_and(|body| body_has_place(body, argument))
        }
        // These only read, or go on by themselves: neither has a dry run by arguments.
        ToolRun::Process(_) | ToolRun::Sql(_) => false,
        ToolRun::Builtin(_) | ToolRun::Mcp(_) => true,
    }
}

fn has_place(template: &str, argument: &str) -> bool {
    places(template).any(|name| name.split('.').next() == Some(argument))
}

fn body_has_place(body: &Value, argument: &str) -> bool {
    match body {
        Value::String(text) => has_place(text, argument),
        Value::Array(items) => items.iter().any(|item| body_has_place(item, argument)),
        Value::Object(fields) => fields.values().any(|field| body_has_place(field, argument)),
        _ => false,
    }
}

/// What a tool says that it is tried out by, if there is no such tool that answers and only reads.
pub(super) fn missing_dry_run(spec: &ToolSpec, find: impl Fn(&str) -> Option<Arc<ToolSpec>>) -> Option<&str> {
    let Some(DryRun::Tool(name)) = &spec.dry_run else { return None };
    let reads = |tool: &Arc<ToolSpec>| tool.effect == Effect::Read && tool.kind == CallKind::Call;
    (!find(name).is_some_and(|tool| reads(&tool))).then_some(name)
}

fn status_problem<'a>(status: &'a Status, places: &Places<'_>) -> Option<Problem<'a>> {
    if status.done.is_empty() {
        return Some(Problem::new("done", "`done` is empty: name the words that mean that it ended well"));
    }
    let callback = status.callback.as_deref().and_then(|callback| callback_problem(callback, places));
    pointer_problem("state", &status.state).or(callback).or_else(|| request_problem(&status.http, places))
}

/// A resource of everybody's would have strangers' events ask about all calls at once.
fn callback_problem<'a>(callback: &'a str, places: &Places<'_>) -> Option<Problem<'a>> {
    let source = callback.split_once(':').map(|(source, _)| source).filter(|source| !source.is_empty());
    if source.is_none_or(|source| source.contains(['{', '}'])) {
        return Some(Problem::new(callback, "`callback` must be `<source>:<subject>`, the source without places"));
    }
    if self::places(callback).next().is_none() {
        let words = "`callback` must hold a place, such as `{result.id}`, or every call would have the same";
        return Some(Problem::new(callback, words));
    }
    places.unfilled(callback)
}

fn request_problem<'a>(request: &'a HttpRequest, places: &Places<'_>) -> Option<Problem<'a>> {
    const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];
    if !METHODS.contains(&request.method.as_str()) {
        return Some(Problem::new(&request.method, format!("`method` must be one of {}", METHODS.join(", "))));
    }
    let absolute = ["http://", "https://", "{env:"].iter().any(|start| request.url.starts_with(start));
    if !absolute {
        return Some(Problem::new(&request.url, "`url` must begin with http://, https:// or {env:NAME}"));
    }
    if request.url.contains("secret:") {
        return Some(Problem::new(
            &request.url,
            "`url` names a secret, which every log on the way would keep: put it in a header",
        ));
    }
    if request.max_bytes == Some(0) {
        return Some(Problem::new("max_bytes", "`max_bytes` must be 1 or more"));
    }
    let templates = std::iter::once(&request.url).chain(request.headers.values());
    let plain = templates.map(String::as_str).find_map(|template| places.unfilled(template));
    plain.or_else(|| request.body.as_ref().and_then(|body| body_problem(body, places)))
}

fn body_problem<'a>(body: &'a Value, places: &Places<'_>) -> Option<Problem<'a>> {
    match body {
        Value::String(text) if text.contains("secret:") => {
            Some(Problem::new(text, "`body` names a secret, and those are filled in headers only: put it in a header"))
        }
        Value::String(text) => places.unfilled(text),
        Value::Array(items) => items.iter().find_map(|item| body_problem(item, places)),
        Value::Object(fields) => fields.values().find_map(|field| body_problem(field, places)),
        _ => None,
    }
}
