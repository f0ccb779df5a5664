//! The tools by name, ready to be checked against and carried out.

use std::collections::HashMap;
use std::sync::Arc;

use jsonschema::Validator;
use kernel::tool::{HttpRequest, Probe, ToolRun, ToolSpec};
use serde_json::{Map, Value};

use crate::template::{self, TemplateError};
use crate::tools::Means;

/// Problems that are told at once.
const MAX_PROBLEMS: usize = 5;
/// What is shown of a value that is wrong, in bytes.
const MAX_PROBLEM: usize = 300;

/// All tools. Built once; a tool whose file can't be used is there, with the reason.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    tools: HashMap<String, Arc<Tool>>,
}

/// A tool, ready for use.
#[derive(Debug)]
pub(crate) struct Tool {
    pub spec: Arc<ToolSpec>,
    /// Of its declaration, as the model saw it.
    pub digest: String,
    pub means: Result<Means, String>,
    pub probe: Option<Probe>,
    validator: Result<Validator, String>,
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
}

impl Tool {
    fn new(spec: Arc<ToolSpec>, digest: String, env: &impl Fn(&str) -> Option<String>) -> Self {
        let means = match &spec.run {
            ToolRun::Builtin(name) => {
                name.parse().map(Means::Builtin).map_err(|()| format!("the tool-executor has no function `{name}`"))
            }
            ToolRun::Http(http) => with_env(http, env).map(Means::Http).map_err(|error| error.to_string()),
        };
        let probe = spec.probe.as_ref().and_then(|probe| {
            let http = with_env(&probe.http, env);
            let http =
                http.inspect_err(|error| tracing::warn!(tool = spec.name, %error, "a probe can't be used")).ok()?;
            Some(Probe { http, done: probe.done.clone() })
        });
        let validator = jsonschema::validator_for(&spec.input).map_err(|error| error.to_string());
        for error in [means.as_ref().err(), validator.as_ref().err()].into_iter().flatten() {
            tracing::warn!(tool = spec.name, error, "a tool can't be used");
        }
        Self { spec, digest, means, probe, validator }
    }

    /// How it is carried out, if its file is right.
    pub fn means(&self) -> Result<&Means, Refusal> {
        self.means.as_ref().map_err(|error| Refusal::new("misconfigured", format!("`{}`: {error}", self.spec.name)))
    }

    /// The arguments as the tool takes them, if they fit its schema.
    pub fn check(&self, arguments: &Value) -> Result<Map<String, Value>, Refusal> {
        let validator = self
            .validator
            .as_ref()
            .map_err(|error| Refusal::new("misconfigured", format!("the schema of `{}`: {error}", self.spec.name)))?;
        let arguments = normalised(arguments, &self.spec.input);
        let problems: Vec<_> =
            validator.iter_errors(&arguments).take(MAX_PROBLEMS).map(|error| problem(&error)).collect();
        match arguments {
            Value::Object(arguments) if problems.is_empty() => Ok(arguments),
            _ if problems.is_empty() => Err(Refusal::new("invalid_arguments", "the arguments are not an object")),
            _ => Err(Refusal::new("invalid_arguments", problems.join("; "))),
        }
    }
}

/// None is no arguments, and what the schema gives a default for is filled in.
fn normalised(arguments: &Value, schema: &Value) -> Value {
    let mut arguments = match arguments {
        Value::Null => Value::Object(Map::new()),
        given => given.clone(),
    };
    if let (Some(given), Some(properties)) = (arguments.as_object_mut(), schema["properties"].as_object()) {
        for (name, property) in properties {
            if let Some(default) = property.get("default") {
                given.entry(name.clone()).or_insert_with(|| default.clone());
            }
        }
    }
    arguments
}

/// One problem, with the field that it is about.
fn problem(error: &jsonschema::ValidationError<'_>) -> String {
    let path = error.instance_path().to_string();
    let field = if path.is_empty() { "the arguments".to_owned() } else { format!("`{path}`") };
    format!("{field}: {}", kernel::excerpt(&error.to_string(), MAX_PROBLEM))
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
    use kernel::tool::Effect;
    use kernel::units::Duration;
    use serde_json::json;

    use super::*;

    fn registry(run: ToolRun) -> Registry {
        let input = json!({
            "type": "object",
            "properties": {"n": {"type": "integer"}, "mode": {"enum": ["a", "b"], "default": "a"}},
            "required": ["n"],
            "additionalProperties": false,
        });
        let timeout = Duration::from_secs(1);
        let spec = ToolSpec { idempotent: true, timeout, ..ToolSpec::new("x.do", input, Effect::Read, run) };
        Registry::new([(Arc::new(spec), "d1".to_owned())], |_| None)
    }

    #[test]
    fn problems_name_the_field() {
        let tool = registry(ToolRun::Builtin("test.echo".into())).find("x.do", "d1").unwrap();
        assert_eq!(json!(tool.check(&json!({"n": 1})).unwrap()), json!({"n": 1, "mode": "a"}));
        let words = |arguments| {
            let refusal = tool.check(&arguments).unwrap_err();
            assert_eq!(refusal.code, "invalid_arguments");
            refusal.words
        };
        assert!(words(json!({"n": "one"})).contains("`/n`"), "{}", words(json!({"n": "one"})));
        assert!(words(json!({"n": 1, "mode": "c"})).contains("`/mode`"));
        assert!(words(json!({})).contains("\"n\""));
        assert!(words(json!({"n": 1, "x": 2})).contains("'x'"));
        assert!(words(json!([1])).contains("the arguments"));
        assert!(words(Value::Null).contains("\"n\""));
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
    }
}
