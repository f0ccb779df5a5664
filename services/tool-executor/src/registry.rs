//! The tools by name, ready to be checked against and carried out.

use std::collections::HashMap;
use std::sync::Arc;

use kernel::call::Call;
use kernel::tool::{CallKind, Effect, HttpRequest, Probe, ToolRun, ToolSpec};
use kernel::{RunId, RunState};
use policy::Labels;
use serde_json::{Map, Value};

use crate::beside::{Manners, Needs};
use crate::mcp::Remote;
use crate::outcome::{Content, ToolError};
use crate::schema::Schema;
use crate::template::{self, Places, TemplateError};
use crate::tools::Means;

/// All tools. Built once; a tool whose file can't be used is there, with the reason.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    tools: HashMap<String, Arc<Tool>>,
}

/// How what goes on elsewhere is asked about and ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FollowUps {
    pub status: kernel::tool::Status,
    pub cancel: Option<HttpRequest>,
}

/// A tool, ready for use.
#[derive(Debug)]
pub(crate) struct Tool {
    pub spec: Arc<ToolSpec>,
    /// Of its declaration, as the model saw it.
    pub digest: String,
    pub means: Result<Means, String>,
    pub probe: Option<Probe>,
    /// What its author says about arguments and results.
    pub labels: Arc<Labels>,
    /// How it goes on elsewhere, for an activity that is a request.
    pub remote: Option<FollowUps>,
    /// What undoes it; in words why nothing does.
    compensate: Result<HttpRequest, String>,
    input: Result<Schema, String>,
    output: Option<Schema>,
}

/// What is wrong with a call, before anything was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// As in `tool.denied`.
    pub code: &'static str,
    /// In words for the model.
    pub words: String,
}

impl Refusal {
    pub fn new(code: &'static str, words: impl Into<String>) -> Self {
        Self { code, words: words.into() }
    }
}

impl Registry {
    /// From declarations and their digests. `env` fills `{env:NAME}`.
    pub fn new(specs: impl IntoIterator<Item = (Arc<ToolSpec>, String)>, env: impl Fn(&str) -> Option<String>) -> Self {
        let tools =
            specs.into_iter().map(|(spec, digest)| (spec.name.clone(), Arc::new(Tool::new(spec, digest, &env))));
        Self { tools: tools.collect() }
    }

    /// The tool of a name, as it is declared now.
    pub fn now(&self, name: &str) -> Option<Arc<Tool>> {
        self.tools.get(name).cloned()
    }

    /// The tool that a model means by a name, which may be as its provider was told it.
    pub fn meant(&self, name: &str) -> Option<Arc<Tool>> {
        self.now(name).or_else(|| {
            let mut named = self.tools.values().filter(|tool| tool.spec.name.replace('.', "_") == name);
            named.next().filter(|_| named.next().is_none()).cloned()
        })
    }

    /// The tool of a name, if its declaration is the one that the model saw.
    pub fn find(&self, name: &str, seen_digest: &str) -> Result<Arc<Tool>, Refusal> {
        let Some(tool) = self.tools.get(name) else {
            let words = format!("there is no tool `{}`", name.chars().take(100).collect::<String>());
            return Err(Refusal::new("unknown_tool", words));
        };
        if tool.digest != seen_digest {
            let words = format!("`{name}` has changed since you saw it: look at it again and call it as it is now");
            return Err(Refusal::new("schema_changed", words));
        }
        Ok(tool.clone())
    }

    /// How a call behaves beside others. Of what has no file of its own, such as the tools of MCP servers, only what
    /// changes nothing runs beside others.
    pub fn manners(&self, state: &RunState, call: &Call) -> Manners {
        let Some(tool) = self.tools.get(&call.request.tool) else {
            return Manners { parallel: call.request.effect == Effect::Read, ..Manners::default() };
        };
        let arguments = call.request.arguments.as_object();
        let locks = arguments.map(|arguments| tool.locks(state.run_id, arguments)).unwrap_or_default();
        Manners { parallel: tool.spec.is_parallel(), locks }
    }
}

impl Tool {
    pub(crate) fn new(spec: Arc<ToolSpec>, digest: String, env: &impl Fn(&str) -> Option<String>) -> Self {
        let means = match &spec.run {
            ToolRun::Builtin(name) => {
                name.parse().map(Means::Builtin).map_err(|()| format!("the tool-executor has no function `{name}`"))
            }
            ToolRun::Http(http) => with_env(http, env).map(Means::Http).map_err(|error| error.to_string()),
            ToolRun::Mcp(run) => Ok(Means::Mcp(Arc::new(Remote::new(run, &spec, &digest)))),
            ToolRun::Process(process) => Ok(Means::Process(process.clone())),
            ToolRun::Sql(sql) => Ok(Means::Sql(sql.clone())),
        };
        let probe = spec.probe.as_ref().and_then(|probe| {
            let http = with_env(&probe.http, env);
            let http =
                http.inspect_err(|error| tracing::warn!(tool = spec.name, %error, "a probe can't be used")).ok()?;
            Some(Probe { http, done: probe.done.clone() })
        });
        // Those in the schemas of a server's tool are the operator's too: its own were taken out, unless they are stricter.
        let labels = Labels::new(&spec.input, spec.output.as_ref());
        // A label that means nothing protects nobody, so its tool can't be used.
        let wrong = labels.as_ref().err().map(|error| format!("a label in its schema, {error}"));
        let means = wrong.map_or(means, Err);
        let labels = Arc::new(labels.unwrap_or_default());
        let input = Schema::new(&spec.input, "the arguments");
        let output = spec.output.as_ref().map(|output| Schema::new(output, "the result")).transpose();
        for error in [means.as_ref().err(), input.as_ref().err(), output.as_ref().err()].into_iter().flatten() {
            tracing::warn!(tool = spec.name, error, "a tool can't be used");
        }
        // A result can't be judged by what is no schema, so there are no calls then.
        let (input, output) = match output {
            Ok(output) => (input, output),
            Err(error) => (Err(error), None),
        };
        let compensate = match &spec.compensate {
            Some(compensate) => with_env(&compensate.http, env).map_err(|error| error.to_string()),
            None => Err("its file does not say how".to_owned()),
        };
        let remote = remote(&spec, env);
        Self { spec, digest, means, probe, labels, remote, compensate, input, output }
    }

    /// How it is carried out, if its file is right.
    pub fn means(&self) -> Result<&Means, Refusal> {
        self.means.as_ref().map_err(|error| Refusal::new("misconfigured", format!("`{}`: {error}", self.spec.name)))
    }

    /// Whether it goes on elsewhere, and is asked about.
    pub fn is_remote(&self) -> bool {
        self.remote.is_some()
    }

    /// How a call of it is undone: with its arguments and its `result`, which the runtime has put together.
    pub fn undo(&self, arguments: &Value) -> Result<(Means, Map<String, Value>), Refusal> {
        let undo = self
            .compensate
            .as_ref()
            .map_err(|error| Refusal::new("misconfigured", format!("`{}` can't be undone: {error}", self.spec.name)))?;
        Ok((Means::Http(undo.clone()), arguments.as_object().cloned().unwrap_or_default()))
    }

    /// The arguments as the tool takes them, if they fit its schema: defaults are filled in, and nothing else is changed.
    pub fn check(&self, arguments: &Value) -> Result<Map<String, Value>, Refusal> {
        let input = self
            .input
            .as_ref()
            .map_err(|error| Refusal::new("misconfigured", format!("the schema of `{}`: {error}", self.spec.name)))?;
        let mut arguments = match arguments {
            // None is no arguments.
            Value::Null => Value::Object(Map::new()),
            given => given.clone(),
        };
        input.fill(&mut arguments);
        let problems = input.problems(&arguments);
        match arguments {
            Value::Object(arguments) if problems.is_empty() => Ok(arguments),
            _ if problems.is_empty() => Err(Refusal::new("invalid_arguments", "the arguments are not an object")),
            _ => Err(Refusal::new("invalid_arguments", problems.join("; "))),
        }
    }

    /// The result, if it fits what the tool declares. One that does not fit is a failure of a read; an effect has
    /// happened all the same, so its result is given with a word about it.
    pub fn checked(&self, mut content: Content) -> Result<Content, ToolError> {
        let Some(output) = &self.output else { return Ok(content) };
        let problems = match &content.value {
            Some(value) => output.problems(value),
            None => vec!["it is no JSON".to_owned()],
        };
        if problems.is_empty() {
            return Ok(content);
        }
        let words = format!("the result does not fit what `{}` declares: {}", self.spec.name, problems.join("; "));
        if self.spec.effect == Effect::Read {
            // It names values of the result.
            return Err(ToolError { trust: content.trust, ..ToolError::final_("invalid_result", words) });
        }
        content.value = None;
        content.head = Some(content.head.map_or(format!("[{words}]"), |head| format!("{head}\n[{words}]")));
        Ok(content)
    }

    /// What a call with these arguments needs for itself.
    pub fn needs(&self, run: RunId, arguments: &Map<String, Value>, host: Option<String>) -> Needs {
        let concurrency = &self.spec.concurrency;
        let place = concurrency.per_target.map(|places| {
            let named = concurrency.target.as_deref().map(|target| key(target, run, arguments));
            let target = named.or(host).unwrap_or_else(|| self.spec.name.clone());
            (target, places)
        });
        Needs { locks: self.locks(run, arguments), place }
    }

    fn locks(&self, run: RunId, arguments: &Map<String, Value>) -> std::collections::BTreeSet<String> {
        self.spec.concurrency.locks.iter().map(|lock| key(lock, run, arguments)).collect()
    }
}

/// How an activity that a request starts is asked about and ended.
fn remote(spec: &ToolSpec, env: &impl Fn(&str) -> Option<String>) -> Option<FollowUps> {
    let status = spec.status.as_ref().filter(|_| spec.kind == CallKind::Activity)?;
    let told = |error: &TemplateError| tracing::warn!(tool = spec.name, %error, "an activity can't be asked about");
    let http = with_env(&status.http, env).inspect_err(told).ok()?;
    let cancel = spec.cancel.as_ref().and_then(|cancel| with_env(&cancel.http, env).inspect_err(told).ok());
    Some(FollowUps { status: kernel::tool::Status { http, ..status.clone() }, cancel })
}

fn key(template: &str, run: RunId, arguments: &Map<String, Value>) -> String {
    template::key(template, Places { arguments, idempotency_key: "", run })
}

fn with_env(http: &HttpRequest, env: &impl Fn(&str) -> Option<String>) -> Result<HttpRequest, TemplateError> {
    let mut http = http.clone();
    http.url = template::with_env(&http.url, env)?;
    for value in http.headers.values_mut() {
        *value = template::with_env(value, env)?;
    }
    Ok(http)
}

#[cfg(test)]
mod tests {
    use kernel::tool::Concurrency;
    use kernel::units::Duration;
    use serde_json::json;

    use super::*;

    fn spec(run: ToolRun) -> ToolSpec {
        let input = json!({
            "type": "object",
            "properties": {"n": {"type": "integer"}, "mode": {"enum": ["a", "b"], "default": "a"}},
            "required": ["n"],
            "additionalProperties": false,
        });
        let timeout = Duration::from_secs(1);
        ToolSpec { idempotent: true, timeout, ..ToolSpec::new("x.do", input, Effect::Read, run) }
    }

    fn registry(run: ToolRun) -> Registry {
        Registry::new([(Arc::new(spec(run)), "d1".to_owned())], |_| None)
    }

    fn tool(spec: ToolSpec) -> Arc<Tool> {
        Registry::new([(Arc::new(spec), "d1".to_owned())], |_| None).find("x.do", "d1").unwrap()
    }

    fn echo() -> ToolRun {
        ToolRun::Builtin("test.echo".into())
    }

    #[test]
    fn problems_name_the_field() {
        let tool = tool(spec(echo()));
        assert_eq!(json!(tool.check(&json!({"n": 1})).unwrap()), json!({"n": 1, "mode": "a"}));
        let words = |arguments| {
            let refusal = tool.check(&arguments).unwrap_err();
            assert_eq!(refusal.code, "invalid_arguments");
            refusal.words
        };
        assert!(words(json!({"n": "one"})).contains("`/n`"), "{}", words(json!({"n": "one"})));
        assert!(words(json!({"n": 1, "mode": "c"})).contains("`/mode`"));
        assert!(words(json!({})).contains("`/n` is missing"));
        assert!(words(json!({"n": 1, "x": 2})).contains("`/x`"));
        assert!(words(json!([1])).contains("the arguments"));
        assert!(words(Value::Null).contains("`/n`"));
        let both = words(json!({"n": "one", "mode": "c"}));
        assert!(both.contains("`/n`") && both.contains("`/mode`"), "{both}");
    }

    #[test]
    fn unknown_changed_and_broken_tools_are_told_apart() {
        let known = registry(ToolRun::Builtin("gone".into()));
        assert_eq!(known.find("y", "d1").unwrap_err().code, "unknown_tool");
        assert_eq!(known.find("x.do", "d0").unwrap_err().code, "schema_changed");
        let refusal = known.find("x.do", "d1").unwrap().means().unwrap_err();
        assert_eq!(refusal.code, "misconfigured");
        let http = HttpRequest::new("GET", "{env:NOT_SET}/x");
        let refusal = registry(ToolRun::Http(http)).find("x.do", "d1").unwrap().means().unwrap_err();
        assert!(refusal.words.contains("NOT_SET"), "{}", refusal.words);
        let broken = tool(ToolSpec { output: Some(json!({"type": "nonsense"})), ..spec(echo()) });
        assert_eq!(broken.check(&json!({"n": 1})).unwrap_err().code, "misconfigured");
    }

    #[test]
    fn a_result_that_does_not_fit_fails_a_read_and_is_told_of_an_effect() {
        let output = Some(json!({"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}));
        let content =
            |value: Value| Content { value: Some(value), ..Content::outside(b"{}".to_vec(), "application/json") };
        let read = tool(ToolSpec { output: output.clone(), ..spec(echo()) });
        assert!(read.checked(content(json!({"id": 1}))).is_ok());
        let error = read.checked(content(json!({"id": "x"}))).unwrap_err();
        assert_eq!((error.code, error.trust), ("invalid_result", kernel::Trust::Untrusted));
        assert!(error.message.contains("`/id`"), "{error}");
        assert!(
            read.checked(Content::outside(b"text".to_vec(), "text/plain")).unwrap_err().message.contains("no JSON")
        );
        let effect = tool(ToolSpec { output, effect: Effect::External, ..spec(echo()) });
        let told = effect.checked(content(json!({}))).unwrap();
        assert!(told.value.is_none() && told.head.unwrap().contains("`/id` is missing"));
    }

    #[test]
    fn locks_and_targets_are_named_by_the_arguments() {
        let run = RunId::mint();
        let concurrency = Concurrency {
            locks: vec!["pull/{n}".into(), "run/{run_id}".into()],
            per_target: Some(2),
            ..Concurrency::default()
        };
        let arguments = json!({"n": "7/8"}).as_object().unwrap().clone();
        let needs = tool(ToolSpec { concurrency: concurrency.clone(), ..spec(echo()) }).needs(run, &arguments, None);
        assert_eq!(needs.locks.into_iter().collect::<Vec<_>>(), ["pull/7%2F8".to_owned(), format!("run/{run}")]);
        assert_eq!(needs.place, Some(("x.do".to_owned(), 2)));
        let named = Concurrency { target: Some("t-{n}".into()), ..concurrency };
        let needs = tool(ToolSpec { concurrency: named, ..spec(echo()) }).needs(run, &arguments, Some("h".into()));
        assert_eq!(needs.place, Some(("t-7%2F8".to_owned(), 2)));
    }
}
