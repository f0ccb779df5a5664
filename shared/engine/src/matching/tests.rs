use std::time::{Duration, Instant};

use serde_json::json;

use super::*;

fn push() -> serde_json::Value {
    json!({
        "specversion": "1.0", "id": "42", "source": "/repos/acme", "type": "github.push", "subject": "acme/shop",
        "time": "2026-11-29T10:00:00Z",
        "data": {
            "ref": "refs/heads/main", "forced": false, "size": 3, "big": 18_446_744_073_709_551_615_u64, "ratio": 0.5,
            "commits": [{"message": "fix", "modified": ["src/lib.rs", "README.md"]}, {"message": "wip", "modified": []}]
        }
    })
}

fn matches(filter: &str) -> Result<bool, FilterError> {
    Filter::compile(filter)?.matches(&push())
}

#[test]
fn reads_every_variable() {
    for filter in [
        r#"id == "42""#,
        r#"source.startsWith("/repos/")"#,
        r#"type == "github.push""#,
        r#"subject in ["acme/shop", "acme/docs"]"#,
        r#"timestamp(time) > timestamp("2026-01-01T00:00:00Z")"#,
        r#"data.ref == "refs/heads/main" && !data.forced"#,
        "data.size == 3 && data.size > 2 && data.size < 4u && data.ratio < 1.0 && data.big > 3u",
        r#"data.commits.exists(c, c.modified.exists(f, f.startsWith("src/")))"#,
        r#"data.ref.matches("^refs/heads/(main|release-.*)$")"#,
        r#"!has(data.deleted) || data.deleted == false"#,
        "size(data.commits) == 2",
        r#"data.?missing.orValue("none") == "none""#,
        r#"data.commits.map(c, c.message) == ["fix", "wip"]"#,
        r#"data["ref"] != """#,
    ] {
        assert_eq!(matches(filter), Ok(true), "{filter}");
    }
    assert_eq!(matches("data.size == 4"), Ok(false));
}

#[test]
fn an_event_without_the_field_is_not_meant() {
    assert_eq!(matches(r#"data.branch == "main""#), Ok(false));
    assert_eq!(Filter::compile("data.a.b == 1").unwrap().matches(&json!({"id": "1", "data": {}})), Ok(false));
    assert_eq!(Filter::compile("subject == null").unwrap().matches(&json!({"id": "1"})), Ok(true));
}

#[test]
fn what_is_wrong_is_named() {
    assert_eq!(Filter::compile("evnt.type == 1").unwrap_err(), FilterError::UnknownVariable("evnt".into()));
    assert_eq!(
        Filter::compile(r#"data.ref.startWith("x")"#).unwrap_err(),
        FilterError::UnknownFunction("startWith".into())
    );
    assert_eq!(Filter::compile("type.matches(data.ref)").unwrap_err(), FilterError::ComputedPattern);
    let error = Filter::compile("data.ref ==").unwrap_err();
    assert!(matches!(error, FilterError::Syntax { line: 1, .. }), "{error}");
    assert!(matches!(Filter::compile("").unwrap_err(), FilterError::Syntax { .. }));
    assert!(matches!(Filter::compile(&"a".repeat(2000)).unwrap_err(), FilterError::TooLong { bytes: 2000 }));
    assert!(matches!(matches("data.size"), Err(FilterError::NotBool(_))));
    assert!(matches!(matches("data.size && true"), Err(FilterError::Evaluate(_))));
    assert!(matches!(matches(r#"data.ref.matches("(")"#), Err(FilterError::Evaluate(_))));
}

/// On a thread with the stack of a runtime's worker: a filter must not take the process along.
#[test]
fn no_expression_overflows_the_stack() {
    let half = MAX_FILTER_BYTES / 2 - 8;
    let nested = |open: &str, inner: &str, close: &str| {
        let times = (MAX_FILTER_BYTES - inner.len()) / (open.len() + close.len());
        format!("{}{inner}{}", open.repeat(times), close.repeat(times))
    };
    for filter in [
        nested("(", "true", ")"),
        nested("[", "1", "]"),
        nested("[", "", ""),
        nested("!", "true", ""),
        nested("-", "1", ""),
        nested("-(", "1", ")"),
        nested("{1:", "1", "}"),
        nested("size(", "data", ")"),
        nested("true?", "true", ":true"),
        nested("[1].all(a,", "true", ")"),
        format!("1{}", "+1".repeat(half)),
        format!("1{}", "==1".repeat(half / 2)),
        format!("data{}", ".a".repeat(half)),
        format!("data{}", "[0]".repeat(half / 2)),
        format!("true{}", "&&true".repeat(half / 3 - 8)),
        format!("data{}", ".a()".repeat(half / 2)),
        "\u{0}".to_owned(),
        "\"\\".to_owned(),
        "'\u{1F600}' == data.x".to_owned(),
    ] {
        assert!(filter.len() <= MAX_FILTER_BYTES, "{}", filter.len());
        let _ = Filter::compile(&filter).and_then(|filter| filter.matches(&push()));
    }
    let wide = format!("true{}", "&&true".repeat(100));
    assert_eq!(matches(&wide), Ok(true), "long is fine, deep is not");
}

#[test]
fn no_event_makes_a_filter_hang() {
    let numbers: Vec<_> = (0..60_000).collect();
    let files: Vec<_> =
        (0..2000).map(|n| json!({"message": "x".repeat(20), "modified": [format!("src/{n}")]})).collect();
    let event = json!({"id": "1", "data": {"l": numbers, "s": "a".repeat(100_000), "commits": files}});
    let timed = |filter: &str| {
        let begun = Instant::now();
        let result = Filter::compile(filter).unwrap().matches(&event);
        (result, begun.elapsed())
    };
    for filter in [
        "data.l.all(a, data.l.all(b, a >= b || a < b))",
        "data.l.map(a, data.l).all(b, b.all(c, c >= 0))",
        "data.l.all(a, !data.s.contains('b'))",
        "data.l.all(a, string(a).matches('\\\\w{50}{50}'))",
        "data.l.all(a, [1,2,3].all(b, data.l.all(c, true)))",
        "data.l.all(a, (data.l + data.l).size() > 0)",
        "data.l.map(a, data) == []",
    ] {
        let (result, took) = timed(filter);
        assert_eq!(result, Err(FilterError::TooExpensive), "{filter}");
        assert!(took < Duration::from_secs(1), "{filter}: {took:?}");
    }
    for filter in [
        "data.l.all(a, a >= 0)",
        "data.commits.exists(c, c.modified.exists(f, f == 'src/1999'))",
        "['x', 'src/1999'].exists(p, data.commits.exists(c, c.modified.exists(f, f.startsWith(p))))",
        "data.commits.all(c, c.message.contains('x'))",
        "data.commits.filter(c, c.message.size() > 3).size() == 2000",
    ] {
        let (result, took) = timed(filter);
        assert_eq!(result, Ok(true), "{filter}");
        assert!(took < Duration::from_secs(5), "{filter}: {took:?}");
    }
}
