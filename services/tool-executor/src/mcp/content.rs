//! What a server gives back, in the parts that a result is made of.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{
    CallToolResult, ContentBlock, GetPromptResult, Prompt, ReadResourceResult, Resource, ResourceContents,
};
use serde_json::Value;

use super::words;

/// Parts of one result that are looked at.
const MAX_PARTS: usize = 64;
/// Longest name or URI that is shown.
const NAME: usize = 512;

/// A part of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Text, to be shown.
    Text(String),
    /// Anything else, to be kept.
    Binary {
        /// The content.
        bytes: Vec<u8>,
        /// Its type, as the server says.
        media_type: String,
    },
}

impl Part {
    fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    fn base64(data: &str, media_type: &str) -> Self {
        match STANDARD.decode(data.trim()) {
            Ok(bytes) => Self::Binary { bytes, media_type: words::clean(media_type, NAME) },
            Err(_) => Self::text(format!("[content of type {} that is no base64]", words::clean(media_type, NAME))),
        }
    }
}

/// The parts of a tool's result.
pub(super) fn of_tool(result: &CallToolResult) -> Vec<Part> {
    let parts: Vec<_> = bounded(result.content.iter().map(block));
    match &result.structured_content {
        Some(value) if parts.is_empty() => vec![Part::Text(format!("{value:#}"))],
        _ => parts,
    }
}

/// The parts of a resource.
pub(super) fn of_resource(result: &ReadResourceResult) -> Vec<Part> {
    bounded(result.contents.iter().map(contents))
}

/// The parts of a filled prompt, each with who is to say it.
pub(super) fn of_prompt(result: &GetPromptResult) -> Vec<Part> {
    let said = result.messages.iter().flat_map(|message| {
        let role = serde_json::to_value(&message.role).unwrap_or_default();
        [Part::Text(format!("[{}]", role.as_str().unwrap_or("?"))), block(&message.content)]
    });
    bounded(said)
}

/// A list of resources, a line each.
pub(super) fn of_resources(resources: &[Resource], next: Option<&str>) -> Vec<Part> {
    let line = |resource: &Resource| {
        let kind = resource.mime_type.as_deref().unwrap_or("?");
        let told = resource.description.as_deref().unwrap_or_default();
        let (uri, name) = (words::clean(&resource.uri, NAME), words::clean(&resource.name, NAME));
        format!("{uri} ({}): {name} {}", words::clean(kind, NAME), words::clean(told, NAME)).trim_end().to_owned()
    };
    let mut lines: Vec<_> = resources.iter().map(line).collect();
    lines.extend(next.map(|next| format!("[there are more: cursor {}]", words::clean(next, NAME))));
    if lines.is_empty() {
        lines.push("[none]".to_owned());
    }
    vec![Part::Text(lines.join("\n"))]
}

/// A list of prompts, a line each.
pub(super) fn of_prompts(prompts: &[Prompt]) -> Vec<Part> {
    let line = |prompt: &Prompt| {
        let arguments = prompt.arguments.iter().flatten().map(|argument| {
            let must = if argument.required == Some(true) { "" } else { "?" };
            format!("{}{must}", words::clean(&argument.name, NAME))
        });
        let arguments: Vec<_> = arguments.collect();
        let told = words::clean(prompt.description.as_deref().unwrap_or_default(), NAME);
        format!("{}({}): {told}", words::clean(&prompt.name, NAME), arguments.join(", "))
    };
    let lines: Vec<_> = prompts.iter().map(line).collect();
    vec![Part::Text(if lines.is_empty() { "[none]".to_owned() } else { lines.join("\n") })]
}

fn bounded(parts: impl Iterator<Item = Part>) -> Vec<Part> {
    let mut parts: Vec<_> = parts.take(MAX_PARTS + 1).collect();
    if parts.len() > MAX_PARTS {
        parts.truncate(MAX_PARTS);
        parts.push(Part::text(format!("[more than {MAX_PARTS} parts; the rest is left out]")));
    }
    parts
}

fn block(block: &ContentBlock) -> Part {
    match block {
        ContentBlock::Text(text) => Part::text(&text.text),
        ContentBlock::Image(image) => Part::base64(&image.data, &image.mime_type),
        ContentBlock::Audio(audio) => Part::base64(&audio.data, &audio.mime_type),
        ContentBlock::Resource(embedded) => contents(&embedded.resource),
        ContentBlock::ResourceLink(link) => {
            let name = words::clean(&link.name, NAME);
            Part::text(format!("[resource {}: {name}]", words::clean(&link.uri, NAME)))
        }
        other => Part::text(format!("[content of a kind that is not known: {}]", kind(other))),
    }
}

fn kind(block: &ContentBlock) -> String {
    let value = serde_json::to_value(block).unwrap_or_default();
    words::clean(value["type"].as_str().unwrap_or("?"), 64)
}

fn contents(contents: &ResourceContents) -> Part {
    match contents {
        ResourceContents::TextResourceContents { uri, text, .. } => {
            Part::text(format!("[resource {}]\n{text}", words::clean(uri, NAME)))
        }
        ResourceContents::BlobResourceContents { blob, mime_type, .. } => {
            Part::base64(blob, mime_type.as_deref().unwrap_or("application/octet-stream"))
        }
        _ => Part::text("[a resource of a kind that is not known]"),
    }
}

/// What is wrong with an answer, field by field; nothing if it fits the form's schema.
pub(super) fn misfit(schema: &Value, value: &Value) -> Option<String> {
    let validator = jsonschema::validator_for(schema).ok()?;
    let problems: Vec<_> = validator
        .iter_errors(value)
        .take(3)
        .map(|error| format!("`{}`: {}", error.instance_path(), words::clean(&error.to_string(), 200)))
        .collect();
    (!problems.is_empty()).then(|| problems.join("; "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn result(value: Value) -> CallToolResult {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn every_kind_of_content_has_its_part() {
        let parts = of_tool(&result(json!({"content": [
            {"type": "text", "text": "hello"},
            {"type": "image", "data": "iVBORw==", "mimeType": "image/png"},
            {"type": "audio", "data": "not base64!", "mimeType": "audio/wav"},
            {"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}},
            {"type": "resource", "resource": {"uri": "file:///b", "blob": "AAEC", "mimeType": "x/y"}},
            {"type": "resource_link", "uri": "file:///c", "name": "c"},
        ]})));
        assert_eq!(
            parts,
            [
                Part::text("hello"),
                Part::Binary { bytes: vec![0x89, b'P', b'N', b'G'], media_type: "image/png".into() },
                Part::text("[content of type audio/wav that is no base64]"),
                Part::text("[resource file:///a]\ninside"),
                Part::Binary { bytes: vec![0, 1, 2], media_type: "x/y".into() },
                Part::text("[resource file:///c: c]"),
            ]
        );
        let structured = of_tool(&result(json!({"content": [], "structuredContent": {"a": 1}})));
        assert_eq!(structured, [Part::text("{\n  \"a\": 1\n}")]);
        let many = json!({"content": vec![json!({"type": "text", "text": "x"}); 100]});
        assert_eq!(of_tool(&result(many)).len(), MAX_PARTS + 1);
    }

    #[test]
    fn answers_are_held_against_their_form() {
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
        assert_eq!(misfit(&schema, &json!({"n": 1})), None);
        assert!(misfit(&schema, &json!({"n": "x"})).unwrap().contains("`/n`"));
        assert!(misfit(&schema, &json!({})).is_some());
    }
}
