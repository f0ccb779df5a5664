//! JSON Schemas of the files that operators write, for editors and for other checkers. They say what a field may hold; what
//! only makes sense together with something else is said when a file is read.

use kernel::{agent::AgentSpec, tool::ToolSpec};
use schemars::{Schema, generate::SchemaSettings};
use serde_json::Value;

use crate::McpServer;

/// The schema of each kind of file under the agents' folder, by the kind: `agent`, `server`, `tool`.
#[must_use]
pub fn file_schemas() -> [(&'static str, Schema); 3] {
    // As files are read, not as they are written.
    let generator = || SchemaSettings::draft2020_12().for_deserialize().into_generator();
    let mut tool = generator().into_root_schema_for::<ToolSpec>();
    without_mcp(&mut tool);
    [
        ("agent", generator().into_root_schema_for::<AgentSpec>()),
        ("server", generator().into_root_schema_for::<McpServer>()),
        ("tool", tool),
    ]
}

/// `run: mcp` is never written by hand: such tools are made from what a server lists.
fn without_mcp(tool: &mut Schema) {
    let Some(definitions) = tool.get_mut("$defs").and_then(Value::as_object_mut) else { return };
    if let Some(ways) =
        definitions.get_mut("ToolRun").and_then(|run| run.get_mut("oneOf")).and_then(Value::as_array_mut)
    {
        ways.retain(|way| way.pointer("/properties/mcp").is_none());
    }
    definitions.retain(|name, _| !name.starts_with("Mcp"));
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::catalog::yaml_files;

    fn validator(kind: &str) -> jsonschema::Validator {
        let schema = file_schemas().into_iter().find(|(of, _)| *of == kind).unwrap().1;
        jsonschema::validator_for(schema.as_value()).unwrap()
    }

    #[test]
    fn the_files_of_the_repository_fit() {
        let agents = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../infra/agents");
        for (kind, folder) in [("agent", "agents"), ("server", "servers"), ("tool", "tools")] {
            let (validator, files) = (validator(kind), yaml_files(&agents.join(folder)).unwrap());
            assert!(!files.is_empty(), "{folder}");
            for path in files {
                let yaml: Value = serde_saphyr::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
                let problems: Vec<_> = validator.iter_errors(&yaml).map(|error| error.to_string()).collect();
                assert!(problems.is_empty(), "{}: {problems:?}", path.display());
            }
        }
    }

    #[test]
    fn what_is_refused_by_the_reader_does_not_fit() {
        let tool = validator("tool");
        let with = |more: Value| {
            let mut file = json!({
                "name": "x.build", "description": "Builds.", "kind": "activity", "effect": "write", "timeout": "20s",
                "input": {"type": "object"},
                "run": {"process": {"command": ["make"], "limits": {"memory": "512M", "output": 1000, "cpu": "5m"}}},
            });
            file.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            tool.is_valid(&file)
        };
        assert!(with(json!({})));
        for wrong in [
            json!({"efect": "read"}),
            json!({"effect": "magic"}),
            json!({"timeout": "20"}),
            json!({"idempotent": "yes"}),
            json!({"run": {"mcp": {"server": "x", "part": "list_prompts", "words": "system"}}}),
            json!({"run": {"process": {"command": ["make"], "limits": {"memory": "512G"}}}}),
        ] {
            assert!(!with(wrong.clone()), "{wrong}");
        }
        let server =
            json!({"name": "forge", "transport": {"stdio": {"command": ["x"]}}, "tools": {"a": {"wording": ["b"]}}});
        assert!(validator("server").is_valid(&server));
        assert!(!validator("server").is_valid(&json!({"name": "forge"})));
    }

    #[test]
    fn a_tool_that_only_a_server_can_have_is_in_no_file() {
        let [.., (kind, tool)] = file_schemas();
        assert_eq!(kind, "tool");
        let text = serde_json::to_string(&tool).unwrap();
        assert!(
            text.contains("\"process\"") && text.contains("\"builtin\"") && !text.to_lowercase().contains("mcp"),
            "{text}"
        );
    }
}
