//! Requests with places: `{name}` is filled from a call's arguments, so that no argument can become anything else than
//! a value at its place.

use std::borrow::Cow;

use kernel::RunId;
use kernel::tool::HttpRequest;
use serde_json::{Map, Value};

use crate::secrets::{MissingSecret, Secrets};

/// What places are filled from.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    /// The call's arguments, after normalisation.
    pub arguments: &'a Map<String, Value>,
    /// Fills `{idempotency_key}`.
    pub idempotency_key: &'a str,
    /// Fills `{run_id}`.
    pub run: RunId,
}

/// A template that can't be filled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A place between `{env:` and `}` that the environment does not fill.
    #[error("the environment variable `{0}` is not set; set it for the tool-executor")]
    MissingEnv(String),
    /// A header wants a secret that is not there.
    #[error(transparent)]
    MissingSecret(#[from] MissingSecret),
    /// An argument would change the path that the tool's author wrote.
    #[error("`{0}` may not be `.` or `..`, alone or as part of a path")]
    PathEscape(String),
    /// An argument that can't stand in a header line.
    #[error("the header `{0}` can't hold a control character")]
    Header(String),
}

/// A value, such as a header's, and whether it holds a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct HeaderText {
    /// The value.
    pub text: String,
    /// Never to be shown.
    pub sensitive: bool,
}

/// A piece of a template.
#[derive(Debug, PartialEq, Eq)]
enum Piece<'t> {
    Literal(&'t str),
    Place(&'t str),
}

impl Places<'_> {
    fn value(&self, name: &str) -> Option<Cow<'_, Value>> {
        if name == "idempotency_key" {
            return Some(Cow::Owned(Value::from(self.idempotency_key)));
        }
        if name == "run_id" {
            return Some(Cow::Owned(Value::from(self.run.to_string())));
        }
        let mut parts = name.split('.');
        let first = self.arguments.get(parts.next()?)?;
        parts.try_fold(first, |value, part| value.get(part)).map(Cow::Borrowed)
    }

    /// The value as text; what is absent is empty.
    fn text(&self, name: &str) -> String {
        self.value(name).as_deref().map(plain).unwrap_or_default()
    }
}

/// A value as text, without quotes.
#[must_use]
pub fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A text with its places filled as they are.
#[must_use]
pub fn text(template: &str, places: Places<'_>) -> String {
    match filled_string(template, places) {
        Value::String(text) => text,
        other => plain(&other),
    }
}

/// A text with its places filled as they are; none if something fills one of them with nothing.
#[must_use]
pub fn complete(template: &str, places: Places<'_>) -> Option<String> {
    let text = pieces(template).map(|piece| match piece {
        Piece::Literal(text) => Some(text.to_owned()),
        Piece::Place(name) => Some(places.text(name)).filter(|text| !text.is_empty()),
    });
    text.collect()
}

/// A name with its places filled, percent-encoded: different arguments never make the same name.
#[must_use]
pub fn key(template: &str, places: Places<'_>) -> String {
    let mut filled = String::with_capacity(template.len() + 32);
    for piece in pieces(template) {
        match piece {
            Piece::Literal(text) => filled.push_str(text),
            Piece::Place(name) => percent_encode(&mut filled, &places.text(name)),
        }
    }
    filled
}

/// The names of all places of a request.
pub fn places_of(http: &HttpRequest) -> impl Iterator<Item = &str> {
    let mut templates: Vec<&str> =
        std::iter::once(&http.url).chain(http.headers.values()).map(String::as_str).collect();
    let mut open: Vec<&Value> = http.body.iter().collect();
    while let Some(value) = open.pop() {
        match value {
            Value::String(text) => templates.push(text),
            Value::Array(items) => open.extend(items),
            Value::Object(fields) => open.extend(fields.values()),
            _ => {}
        }
    }
    templates.into_iter().flat_map(pieces).filter_map(|piece| match piece {
        Piece::Place(name) => Some(name),
        Piece::Literal(_) => None,
    })
}

/// What fills a template that is one place and nothing else: null if nothing does. None if it is anything else.
#[must_use]
pub fn whole_place(template: &str, places: Places<'_>) -> Option<Value> {
    let mut pieces = pieces(template);
    match (pieces.next(), pieces.next()) {
        (Some(Piece::Place(name)), None) => Some(places.value(name).map_or(Value::Null, Cow::into_owned)),
        _ => None,
    }
}

/// Fills `{env:NAME}` from the executor's environment: once, when a tool is read.
///
/// # Errors
/// [`TemplateError::MissingEnv`] names the variable.
pub fn with_env(template: &str, env: impl Fn(&str) -> Option<String>) -> Result<String, TemplateError> {
    let mut filled = String::with_capacity(template.len());
    for piece in pieces(template) {
        match piece {
            Piece::Literal(text) => filled.push_str(text),
            Piece::Place(name) => match name.strip_prefix("env:") {
                Some(name) => filled += &env(name).ok_or_else(|| TemplateError::MissingEnv(name.to_owned()))?,
                None => filled += &format!("{{{name}}}"),
            },
        }
    }
    Ok(filled)
}

/// The URL with its places filled, percent-encoded.
///
/// # Errors
/// [`TemplateError::PathEscape`] if an argument would climb in the path.
pub fn url(template: &str, places: Places<'_>) -> Result<String, TemplateError> {
    let filled = key(template, places);
    let rest = filled.split_once("://").map_or(filled.as_str(), |(_, rest)| rest);
    let path = rest.split(['?', '#']).next().unwrap_or_default();
    // URL parsers resolve these, also when they are percent-encoded.
    match path.split(['/', '\\']).find(|segment| matches!(decode_dots(segment).as_str(), "." | "..")) {
        Some(segment) => Err(TemplateError::PathEscape(segment.to_owned())),
        None => Ok(filled),
    }
}

/// Whether the host of a URL template is written out, so that whoever wrote the tool chose it.
#[must_use]
pub fn names_host(template: &str) -> bool {
    let rest = template.split_once("://").map_or("", |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    !authority.is_empty() && pieces(authority).all(|piece| matches!(piece, Piece::Literal(_)))
}

/// A header's value with its places filled and `secret:NAME` resolved. Only the template can name a secret, never an
/// argument.
///
/// # Errors
/// If a secret is missing or an argument can't stand in a header.
pub fn header(name: &str, template: &str, places: Places<'_>, secrets: &Secrets) -> Result<HeaderText, TemplateError> {
    let header = with_secrets(template, places, secrets)?;
    if header.text.chars().any(char::is_control) { Err(TemplateError::Header(name.to_owned())) } else { Ok(header) }
}

/// A text with its places filled and `secret:NAME` resolved, as it is in a header.
///
/// # Errors
/// If a secret is missing.
pub fn with_secrets(template: &str, places: Places<'_>, secrets: &Secrets) -> Result<HeaderText, TemplateError> {
    let mut filled = HeaderText { text: String::with_capacity(template.len()), sensitive: false };
    for piece in pieces(template) {
        match piece {
            Piece::Literal(text) => {
                let (resolved, any) = secrets.resolve(text)?;
                filled.text += &resolved;
                filled.sensitive |= any;
            }
            Piece::Place(place) => filled.text += &places.text(place),
        }
    }
    Ok(filled)
}

/// A JSON body with the places in its strings filled. A string that is one place takes the value as it is, of any type.
#[must_use]
pub fn body(template: &Value, places: Places<'_>) -> Value {
    match template {
        Value::String(text) => filled_string(text, places),
        Value::Array(items) => items.iter().map(|item| body(item, places)).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(key, field)| (key.clone(), body(field, places))).collect::<Map<_, _>>().into()
        }
        other => other.clone(),
    }
}

fn filled_string(template: &str, places: Places<'_>) -> Value {
    let pieces: Vec<_> = pieces(template).collect();
    if let [Piece::Place(name)] = pieces[..] {
        return places.value(name).map_or(Value::Null, Cow::into_owned);
    }
    let text = pieces.into_iter().map(|piece| match piece {
        Piece::Literal(text) => Cow::Borrowed(text),
        Piece::Place(name) => Cow::Owned(places.text(name)),
    });
    Value::from(text.collect::<String>())
}

/// The template in pieces. A brace that opens no place is literal.
fn pieces(template: &str) -> impl Iterator<Item = Piece<'_>> {
    let mut rest = template;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (piece, after) = match place_at_start(rest) {
            Some(name) => (Piece::Place(name), name.len() + 2),
            None => {
                let next =
                    rest.char_indices().skip(1).find(|(at, c)| *c == '{' && place_at_start(&rest[*at..]).is_some());
                let end = next.map_or(rest.len(), |(at, _)| at);
                (Piece::Literal(&rest[..end]), end)
            }
        };
        rest = &rest[after..];
        Some(piece)
    })
}

fn place_at_start(text: &str) -> Option<&str> {
    let (name, _) = text.strip_prefix('{')?.split_once('}')?;
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':');
    (!name.is_empty() && name.chars().all(legal)).then_some(name)
}

fn percent_encode(to: &mut String, text: &str) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            to.push(char::from(byte));
        } else {
            to.push('%');
            to.extend([byte >> 4, byte & 15].map(|digit| char::from(b"0123456789ABCDEF"[usize::from(digit)])));
        }
    }
}

fn decode_dots(segment: &str) -> String {
    segment.replace("%2e", ".").replace("%2E", ".")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn arguments(value: Value) -> Map<String, Value> {
        match value {
            Value::Object(map) => map,
            _ => Map::new(),
        }
    }

    fn fill_url(template: &str, value: Value) -> Result<String, TemplateError> {
        url(template, Places { arguments: &arguments(value), idempotency_key: "key-1", run: RunId::mint() })
    }

    #[test]
    fn places_in_urls_are_percent_encoded() {
        let filled = fill_url("http://h/repos/{repo}?q={q}&n={n}", json!({"repo": "a/b c", "q": "x&y=1#ü", "n": 3}));
        assert_eq!(filled.unwrap(), "http://h/repos/a%2Fb%20c?q=x%26y%3D1%23%C3%BC&n=3");
        assert_eq!(fill_url("http://h/{idempotency_key}?x={gone}", json!({})).unwrap(), "http://h/key-1?x=");
        assert_eq!(fill_url("http://h/{a.b}", json!({"a": {"b": true}})).unwrap(), "http://h/true");
        assert_eq!(fill_url("http://h/{not a place}", json!({})).unwrap(), "http://h/{not a place}");
    }

    #[test]
    fn no_argument_climbs_in_the_path() {
        for value in [json!({"id": ".."}), json!({"id": "."})] {
            assert!(matches!(fill_url("http://h/repos/{id}/merge", value), Err(TemplateError::PathEscape(_))));
        }
        assert!(fill_url("http://h/{a}{b}/x", json!({"a": ".", "b": "."})).is_err());
        assert!(fill_url("http://h/%2e{b}/x", json!({"b": "."})).is_err());
        assert!(fill_url("http://h/x?path={id}", json!({"id": ".."})).is_ok());
    }

    #[test]
    fn the_environment_fills_only_its_own_places() {
        let env = |name: &str| (name == "FORGE").then(|| "http://127.0.0.1:9".to_owned());
        assert_eq!(with_env("{env:FORGE}/merge/{id}", env).unwrap(), "http://127.0.0.1:9/merge/{id}");
        assert_eq!(with_env("{env:GONE}/x", env), Err(TemplateError::MissingEnv("GONE".into())));
    }

    #[test]
    fn an_argument_can_name_no_environment_and_no_secret() {
        let secrets = Secrets::new([("ESC_SECRET_TOKEN".to_owned(), "s3cr3t".to_owned())], None);
        let map = arguments(json!({"v": "secret:TOKEN", "n": "{env:PATH}"}));
        let places = Places { arguments: &map, idempotency_key: "", run: RunId::mint() };
        let header = |template| header("x", template, places, &secrets);
        assert_eq!(header("secret:{v}").err(), Some(MissingSecret(String::new()).into()));
        assert_eq!(header("{v}").unwrap().text, "secret:TOKEN");
        assert_eq!(header("{n}").unwrap().text, "{env:PATH}");
        let token = header("Bearer secret:TOKEN").unwrap();
        assert!(token.sensitive && token.text == "Bearer s3cr3t");
    }

    #[test]
    fn what_is_not_filled_whole_is_no_name() {
        let given = arguments(json!({"a": 7, "b": {"c": "x"}, "n": null}));
        let places = Places { arguments: &given, idempotency_key: "k", run: RunId::mint() };
        assert_eq!(complete("ci:jobs/{a}/{b.c}", places).as_deref(), Some("ci:jobs/7/x"));
        assert_eq!(complete("ci:jobs/{n}", places), None);
        assert_eq!(complete("ci:jobs/{a}/{b.d}", places), None);
    }

    #[test]
    fn all_places_of_a_request_are_named() {
        let mut http = HttpRequest::new("POST", "http://h/{a}/x{b.c}");
        http.headers.insert("X".to_owned(), "{d}".to_owned());
        http.body = Some(json!({"e": ["{f}", {"g": "no place, {h i}"}], "n": 1}));
        let mut names: Vec<_> = places_of(&http).collect();
        names.sort_unstable();
        assert_eq!(names, ["a", "b.c", "d", "f"]);
    }

    #[test]
    fn headers_hold_no_line_breaks() {
        let map = arguments(json!({"v": "a\r\nX-Evil: 1"}));
        let filled = header(
            "x",
            "{v}",
            Places { arguments: &map, idempotency_key: "", run: RunId::mint() },
            &Secrets::default(),
        );
        assert_eq!(filled.err(), Some(TemplateError::Header("x".into())));
    }

    #[test]
    fn bodies_keep_types() {
        let map = arguments(json!({"n": 3, "list": [1, "x"], "s": "q\"uote"}));
        let places = Places { arguments: &map, idempotency_key: "k", run: RunId::mint() };
        let filled = body(&json!({"n": "{n}", "l": ["{list}"], "t": "a {s} {n}", "key": "{idempotency_key}"}), places);
        assert_eq!(filled, json!({"n": 3, "l": [[1, "x"]], "t": "a q\"uote 3", "key": "k"}));
    }

    #[test]
    fn a_host_with_a_place_is_not_named() {
        assert!(names_host("https://api.example.com/{id}"));
        assert!(!names_host("https://{host}/x"));
        assert!(!names_host("{url}"));
    }

    proptest! {
        #[test]
        fn an_argument_never_leaves_its_segment(text in "\\PC*") {
            if let Ok(filled) = fill_url("http://h/a/{v}/b?q={v}", json!({"v": text})) {
                let url: reqwest::Url = filled.parse().unwrap();
                prop_assert_eq!(url.host_str(), Some("h"));
                prop_assert_eq!(url.path_segments().unwrap().count(), 3);
                prop_assert!(url.fragment().is_none());
                prop_assert_eq!(url.query_pairs().count(), 1);
            }
        }

        #[test]
        fn pieces_join_to_the_template(template in "[a-z{}:.\\PC]{0,40}") {
            let joined: String = pieces(&template).map(|piece| match piece {
                Piece::Literal(text) => text.to_owned(),
                Piece::Place(name) => format!("{{{name}}}"),
            }).collect();
            prop_assert_eq!(joined, template);
        }
    }
}
