//! JSON Schemas as tools use them: compiled once, defaults filled in, and problems told so that they can be mended.

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::types::JsonType;
use jsonschema::{ValidationError, Validator};
use serde_json::{Map, Value};

/// Problems that are told at once.
const MAX_PROBLEMS: usize = 8;
/// What is shown of one problem, in bytes.
const MAX_PROBLEM: usize = 300;
/// Alternatives of which the first problem is told.
const MAX_WAYS: usize = 4;

/// A schema, ready to be checked against.
#[derive(Debug)]
pub(crate) struct Schema {
    validator: Validator,
    schema: Value,
    has_defaults: bool,
    /// What the value as a whole is called.
    whole: &'static str,
}

impl Schema {
    /// Compiles a schema of what is called `whole`, such as "the arguments".
    ///
    /// # Errors
    /// In words, if it is none.
    pub fn new(schema: &Value, whole: &'static str) -> Result<Self, String> {
        let validator = jsonschema::validator_for(schema).map_err(|error| {
            let at = error.instance_path().to_string();
            if at.is_empty() { error.to_string() } else { format!("`{at}`: {error}") }
        })?;
        Ok(Self { validator, schema: schema.clone(), has_defaults: policy::has_defaults(schema), whole })
    }

    /// Fills in what the schema gives a default for and is not there. Nothing that is there is changed.
    pub fn fill(&self, value: &mut Value) {
        if self.has_defaults {
            policy::with_defaults(value, &self.schema);
        }
    }

    /// What is wrong with a value, each problem with its field as a JSON pointer and with what would be right.
    pub fn problems(&self, value: &Value) -> Vec<String> {
        if self.validator.is_valid(value) {
            return Vec::new();
        }
        let all = self.validator.iter_errors(value).take(MAX_PROBLEMS + 1);
        let mut problems: Vec<_> = all.map(|error| kernel::excerpt(&self.problem(&error), MAX_PROBLEM)).collect();
        if problems.len() > MAX_PROBLEMS {
            problems.truncate(MAX_PROBLEMS);
            problems.push("and more".to_owned());
        }
        problems
    }

    /// One problem: where, what, and what would be right.
    fn problem(&self, error: &ValidationError<'_>) -> String {
        let path = error.instance_path().to_string();
        let field = if path.is_empty() { self.whole.to_owned() } else { format!("`{path}`") };
        match error.kind() {
            ValidationErrorKind::AdditionalProperties { unexpected } => {
                let fields: Vec<_> = unexpected.iter().map(|name| format!("`{path}/{name}`")).collect();
                let known = self.names_beside(error);
                format!("{} is no field here: leave it out{known}", fields.join(", "))
            }
            ValidationErrorKind::Required { property } => {
                let name = property.as_str().map_or_else(|| property.to_string(), str::to_owned);
                format!("`{path}/{name}` is missing: it has to be given")
            }
            ValidationErrorKind::AnyOf { context } | ValidationErrorKind::OneOfNotValid { context } => {
                let ways = context.iter().filter_map(|way| way.first()).take(MAX_WAYS);
                let ways: Vec<_> = ways.map(|error| self.problem(error)).collect();
                format!("{field} fits none of what it may be: {}", ways.join(", or "))
            }
            ValidationErrorKind::Type { kind } => format!("{field}: {error}{}", quoted(error.instance(), kind)),
            _ => format!("{field}: {error}"),
        }
    }

    /// The fields that there are, where one is that is none.
    fn names_beside(&self, error: &ValidationError<'_>) -> String {
        let path = error.schema_path().to_string();
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        let properties = self.schema.pointer(parent).and_then(|schema| schema.get("properties"));
        let names: Vec<_> = properties.and_then(Value::as_object).into_iter().flat_map(Map::keys).cloned().collect();
        if names.is_empty() { String::new() } else { format!(" (there are: {})", names.join(", ")) }
    }
}

/// The commonest slip: a number or a boolean in quotes.
fn quoted(value: &Value, wanted: &TypeKind) -> &'static str {
    let is_wanted = |kind: JsonType| match wanted {
        TypeKind::Single(only) => *only == kind,
        TypeKind::Multiple(several) => several.contains(kind),
    };
    let Value::String(text) = value else { return "" };
    let plain = match serde_json::from_str(text) {
        Ok(Value::Number(number)) => is_wanted(JsonType::Number) || (number.is_i64() && is_wanted(JsonType::Integer)),
        Ok(Value::Bool(_)) => is_wanted(JsonType::Boolean),
        Ok(Value::Array(_)) => is_wanted(JsonType::Array),
        Ok(Value::Object(_)) => is_wanted(JsonType::Object),
        _ => false,
    };
    if plain { "; write it without quotes" } else { "" }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn problems(schema: &Value, value: &Value) -> Vec<String> {
        Schema::new(schema, "it").unwrap().problems(value)
    }

    #[test]
    fn several_problems_are_told_at_once_each_with_its_field() {
        let schema = json!({
            "type": "object", "additionalProperties": false, "required": ["n", "to"],
            "properties": {
                "n": {"type": "integer"}, "on": {"type": "boolean"},
                "to": {"type": "array", "items": {"type": "object", "properties": {"mail": {"type": "string"}}, "required": ["mail"]}},
            },
        });
        let found = problems(&schema, &json!({"n": "1", "on": "yes", "to": [{"mail": "a"}, {}], "x": 1}));
        for expected in [
            "`/n`: \"1\" is not of type \"integer\"; write it without quotes",
            "`/on`: \"yes\" is not of type \"boolean\"",
            "`/to/1/mail` is missing: it has to be given",
            "`/x` is no field here: leave it out (there are: n, on, to)",
        ] {
            assert!(found.contains(&expected.to_owned()), "{expected}: {found:?}");
        }
        assert_eq!(found.len(), 4);
        assert!(problems(&schema, &json!({"n": 1, "to": []})).is_empty());
    }

    #[test]
    fn what_fits_no_way_says_why_for_each() {
        let schema =
            json!({"properties": {"id": {"anyOf": [{"type": "integer"}, {"type": "string", "minLength": 3}]}}});
        let found = problems(&schema, &json!({"id": "x"}));
        assert!(found[0].starts_with("`/id` fits none of what it may be: ") && found[0].contains(", or "), "{found:?}");
    }

    #[test]
    fn a_flood_of_problems_is_bounded() {
        let schema = json!({"items": {"type": "string"}});
        let found = problems(&schema, &json!((0..1000).collect::<Vec<_>>()));
        assert_eq!((found.len(), found.last().unwrap().as_str()), (MAX_PROBLEMS + 1, "and more"));
        let long = problems(&json!({"maxLength": 3}), &json!("x".repeat(100_000)));
        assert!(long[0].len() < 2 * MAX_PROBLEM);
    }

    #[test]
    fn what_is_no_schema_is_told() {
        assert!(Schema::new(&json!({"type": "strin"}), "it").is_err());
    }
}
