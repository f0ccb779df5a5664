//! Files and expressions that anybody may send: whatever is in them, they are read or refused, at once.

use engine::{Filter, parse};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Few by default, many with `ESC_TEST_LONG=1`.
fn cases(few: u32) -> ProptestConfig {
    let long = std::env::var_os("ESC_TEST_LONG").is_some_and(|value| value == "1");
    ProptestConfig::with_cases(if long { few * 200 } else { few })
}

const AGENT: &str = r#"name: ci-keeper
model: scripted:ci-keeper
instructions: |
  Keep the build green.
tools: [shell.run, http.get]
triggers:
  - on: github.push
    where: data.ref == "refs/heads/main"
    start: { input: "look at {{data.ref}}" }
observe:
  - tool: shell.run
    silence: 60s
    failure: ["error[E", "FAILED"]
budget: { turns: 40, tokens: 200k, cost_usd: 2.00, wall: 3d, tool_calls: 100 }
"#;

/// What means something to a reader of YAML.
const PIECES: [&str; 24] = [
    "{",
    "}",
    "[",
    "]",
    ":",
    ": ",
    "- ",
    "\n",
    "\n  ",
    "\t",
    "&a ",
    "*a",
    "<<: *a",
    "!!binary ",
    "!x ",
    "|\n",
    ">-\n",
    "\"",
    "'",
    "---\n",
    "#",
    "\u{0}",
    "\u{feff}",
    "9999999999999999999999",
];

/// A file that is right, with some of it cut out, and pieces put in.
fn broken(whole: &'static str) -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => prop::sample::select(PIECES.to_vec()).prop_map(str::to_owned),
        1 => "\\PC{0,8}",
        1 => (prop::sample::select(PIECES.to_vec()), 1..400_usize).prop_map(|(piece, times)| piece.repeat(times)),
    ];
    let letters = whole.chars().count();
    prop::collection::vec((0..letters, 0..12_usize, piece), 1..6).prop_map(move |changes| {
        let mut letters: Vec<char> = whole.chars().collect();
        for (at, cut, piece) in changes {
            let at = at.min(letters.len());
            let end = (at + cut).min(letters.len());
            letters.splice(at..end, piece.chars());
        }
        letters.into_iter().collect()
    })
}

fn event() -> Value {
    json!({
        "id": "1", "source": "github", "type": "github.push", "subject": "a/b", "time": "2026-01-31T12:00:00Z",
        "data": {"ref": "refs/heads/main", "list": [1, 2.5, "x", null], "deep": {"er": {"still": true}}},
    })
}

const FILTER: &str = r#"data.ref == "refs/heads/main" && data.list.exists(x, x == 2.5) || has(data.deep.er) ? size(id) > 0 : id.matches("^1$")"#;

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn agent_files_are_read_or_refused(file in broken(AGENT), noise in "\\PC{0,200}") {
        for yaml in [&file, &noise] {
            if let Err(error) = parse(yaml) {
                prop_assert!(error.message.len() < 4096, "{}", error.message.len());
            }
        }
    }

    #[test]
    fn filters_are_compiled_or_refused_and_always_come_to_an_end(filter in broken(FILTER), noise in "\\PC{0,100}") {
        for source in [&filter, &noise] {
            match Filter::compile(source) {
                Ok(filter) => {
                    let _ = (filter.matches(&event()), filter.text(&event()), filter.matches(&Value::Null));
                }
                Err(error) => prop_assert!(error.to_string().len() < 4096),
            }
        }
    }
}

#[test]
fn files_and_filters_that_are_meant_to_hurt_are_refused() {
    let head = "name: a\nmodel: scripted:a\ninstructions: x\n";
    let aliases: String = (1..40).map(|n| format!("k{n}: &k{n} [*k{0}, *k{0}, *k{0}, *k{0}]\n", n - 1)).collect();
    for tail in [
        format!("tools: {}{}\n", "[".repeat(50_000), "]".repeat(50_000)),
        format!("observe: {}\n", "{a: ".repeat(20_000)),
        format!("k0: &k0 [x, x, x, x]\n{aliases}tools: *k39\n"),
        format!("{}tools: []\n", "- ".repeat(50_000)),
        "a: &a [*a]\ntools: *a\n".to_owned(),
        format!("{}: 1\n", "? ".repeat(20_000)),
        format!("description: {}\n", "\"\\u0000".repeat(1000)),
        format!("budget: {{ {}: 1 }}\n", "9".repeat(100_000)),
    ] {
        let error = parse(&format!("{head}{tail}")).unwrap_err();
        assert!(error.message.len() < 4096, "{}", error.message.len());
    }
    for source in [
        "(".repeat(1000),
        "!".repeat(1000) + "true",
        "-".repeat(1000) + "1",
        format!("{}1{}", "[".repeat(500), "]".repeat(500)),
        "a.".repeat(500) + "a",
        "[1,2,3].all(a, [1,2,3].all(b, [1,2,3].all(c, [1,2,3].all(d, [1,2,3].all(e, true)))))".to_owned(),
        format!("id.matches(\"{}\")", "(a*)*".repeat(100)),
        "\"x\" + ".repeat(200) + "\"x\"",
    ] {
        // Refused, or of no consequence.
        if let Ok(filter) = Filter::compile(&source) {
            let _ = filter.matches(&event());
        }
    }
}
