//! Tools that only answer a question: programs whose output is the answer, and questions to a database.

use std::path::Path;

use kernel::Trust;
use serde_json::{Value, json};
use tool_executor::{Config, Confine};

use crate::house::House;
use crate::look::look;

/// A tool that answers by what `sh` prints; the argument `of` is its `$1`. `more` are further fields of `process`.
fn program(name: &str, script: &str, more: &str) -> String {
    let script = serde_json::to_string(script).unwrap();
    format!(
        "name: {name}\ndescription: Answers.\neffect: read\nidempotent: true\ntimeout: 20s\n\
         input: {{ type: object, properties: {{ of: {{ type: string }} }}, additionalProperties: false }}\n\
         run:\n  process:\n    command: [sh, -c, {script}, sh, \"{{of}}\"]\n{more}"
    )
}

/// How many processes sleep for so long. It is an argument by itself: anything may stand within those of others.
fn sleeping(seconds: &str) -> usize {
    let of = |entry: std::fs::DirEntry| std::fs::read(entry.path().join("cmdline")).ok();
    let sleeps = |line: &Vec<u8>| line.split(|byte| *byte == 0).take(2).eq([b"sleep".as_slice(), seconds.as_bytes()]);
    std::fs::read_dir("/proc").unwrap().flatten().filter_map(of).filter(sleeps).count()
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none())
}

#[tokio::test]
async fn what_a_program_prints_is_the_answer_and_nothing_else_is_left_of_it() {
    let tools = [
        ("x.json", program("x.json", "echo \"{\\\"of\\\": \\\"$1\\\"}\"; echo noise >&2; touch here", "")),
        ("x.down", program("x.down", "echo it is $1; echo why >&2; exit 3", "    answers: [0, 3]\n")),
        ("x.bad", program("x.bad", "echo half; echo no route to $1 >&2; exit 1", "")),
        ("x.gone", program("x.gone", "exec /no/such/program", "")),
        (
            "x.where",
            program(
                "x.where",
                "ls -A; pwd; [ \"$HOME\" = \"$PWD\" ] && [ \"$TMPDIR\" = \"$PWD\" ] && echo at home",
                "",
            ),
        ),
    ];
    let house = House::new(&[], &tools, "{}").await;
    let executor = house.executor();
    let calls: Vec<_> = tools.iter().map(|(name, _)| house.call(name, json!({"of": "7"}), Trust::Untrusted)).collect();
    let ids: Vec<_> = calls.iter().map(|call| call.call_id).collect();
    let run = house.run(calls).await;
    let mut ends = Vec::new();
    for id in &ids {
        ends.push(house.end_of(run, *id).await);
    }
    let texts: Vec<_> = ends.iter().map(|(_, _, block)| block.text.trim().to_owned()).collect();
    assert_eq!((ends[0].0, texts[0].as_str()), ("tool.completed", "{\"of\": \"7\"}"));
    assert_eq!(ends[0].2.trust, Trust::Untrusted, "what it prints comes from anywhere");
    assert_eq!((ends[1].0, texts[1].as_str()), ("tool.completed", "it is 7"));
    assert_eq!((ends[2].0, ends[2].1.as_str()), ("tool.failed", "exit"));
    assert!(texts[2].contains("exit code 1") && texts[2].contains("no route to 7"), "{}", texts[2]);
    assert_eq!((ends[3].0, ends[3].1.as_str()), ("tool.failed", "exit"));
    assert!(texts[3].contains("/no/such/program"), "{}", texts[3]);
    let (folder, home) = texts[4].split_once('\n').unwrap_or_default();
    assert!(folder.contains("/.answers/") && home == "at home", "an empty folder of its own: {}", texts[4]);
    assert_eq!(
        house.count(run, "tool.started").await,
        0,
        "it may be asked again, so nobody has to know that it was asked"
    );
    assert!(is_empty(&house.path("workspaces/.answers")), "and it is gone");
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_program_that_answers_is_bounded_and_ends_with_all_that_it_started() {
    let tools = [
        (
            "x.slow",
            program("x.slow", "sleep 7411 & echo begun; exec sleep 7411", "")
                .replace("timeout: 20s", "timeout: 1s\nretry: { attempts: 1 }"),
        ),
        // It is over at once, and what it leaves behind holds its output open.
        ("x.daemon", program("x.daemon", "sleep 7412 & echo over", "")),
        ("x.flood", program("x.flood", "exec yes a line that comes again and again", "    limits: { output: 10k }\n")),
        (
            "x.option",
            program("x.option", "echo $1", "").replace("sh, -c, \"echo $1\", sh, \"{of}\"", "printf, \"{of}\""),
        ),
    ];
    let house = House::new(&[], &tools, "{}").await;
    let executor = house.executor();
    let call = |name: &str, of: &str| house.call(name, json!({"of": of}), Trust::Operator);
    let calls = vec![call("x.slow", "1"), call("x.daemon", "1"), call("x.flood", "1"), call("x.option", "-v")];
    let ids: Vec<_> = calls.iter().map(|call| call.call_id).collect();
    let run = house.run(calls).await;
    let (end, _, block) = house.end_of(run, ids[1]).await;
    assert_eq!((end, block.text.trim()), ("tool.completed", "over"));
    let (end, _, block) = house.end_of(run, ids[2]).await;
    assert_eq!(end, "tool.completed");
    assert!(block.text.len() < 11_000 && block.text.contains("there was more"), "{}", block.text.len());
    let (end, code, block) = house.end_of(run, ids[3]).await;
    assert_eq!((end, code.as_str()), ("tool.failed", "invalid_arguments"), "{}", block.text);
    let (end, code, block) = house.end_of(run, ids[0]).await;
    assert_eq!((end, code.as_str()), ("tool.failed", "timeout"), "{}", block.text);
    assert_eq!((sleeping("7411"), sleeping("7412")), (0, 0));
    assert!(is_empty(&house.path("workspaces/.answers")));
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_program_that_answers_touches_nothing_beside_and_shows_no_secret() {
    let script = "cat $1/secret; echo x >$1/new; echo token $TOKEN; \
                  perl -MSocket -e 'socket(S, PF_INET, SOCK_STREAM, 0) or exit 1' && echo network; echo over";
    let tools = [("x.peek", program("x.peek", script, "    env: { TOKEN: \"secret:TOKEN\" }\n"))];
    let house = House::new(&[], &tools, "{}").await;
    let outside = house.path("outside");
    std::fs::create_dir_all(&outside).unwrap();
    std::fs::create_dir_all(house.path("secrets")).unwrap();
    std::fs::write(outside.join("secret"), "theirs").unwrap();
    std::fs::write(house.path("secrets/TOKEN"), "s3cr3t-value").unwrap();
    let executor = house.executor_with(Config { confine: Confine::Require, ..house.config() });
    let (run, id) = house.run_one("x.peek", json!({"of": outside}), Trust::Untrusted).await;
    let (end, _, block) = house.end_of(run, id).await;
    assert_eq!((end, block.text.trim()), ("tool.completed", "token [secret TOKEN]\nover"));
    assert!(!outside.join("new").exists());
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn the_observer_sees_what_a_program_and_a_database_say() {
    let row = "name: x.row\ndescription: Reads an order.\neffect: read\ntimeout: 10s\n\
               input: { type: object, properties: { of: { type: string } }, additionalProperties: false }\n\
               run:\n  sql:\n    url: secret:SHOP\n    statement: select id, state from shop where id = $1::bigint\n    \
               parameters: [\"{of}\"]\n";
    let tools = [
        ("x.state", program("x.state", "echo $1", "")),
        ("x.long", program("x.long", "head -c 70000 /dev/zero | tr '\\0' x", "")),
        ("x.bad", program("x.bad", "exit 1", "")),
        ("x.row", row.to_owned()),
    ];
    let house = House::new(&[], &tools, "{}").await;
    house.stack.sql("create table shop (id bigint, state text); insert into shop values (7, 'shipped')").await.unwrap();
    std::fs::create_dir_all(house.path("secrets")).unwrap();
    std::fs::write(house.path("secrets/SHOP"), house.stack.database_url()).unwrap();
    let executor = house.executor();
    let question = |tool: &str, of: &str| json!({"tenant": "default", "agent": "tester", "tool": tool, "arguments": {"of": of}, "purpose": "action 7"});

    let seen = look(&house, &question("x.state", "{\"state\": \"shipped\"}")).await.unwrap();
    assert_eq!(seen["value"], json!({"state": "shipped"}));
    let seen = look(&house, &question("x.row", "7")).await.unwrap();
    assert_eq!(seen["value"], json!({"rows": [{"id": 7, "state": "shipped"}], "more": false}));
    let seen = look(&house, &question("x.row", "8")).await.unwrap();
    assert_eq!(seen["value"]["rows"], Value::Array(Vec::new()));
    for (tool, of, words) in [
        ("x.row", "7 or true", "invalid input syntax"),
        ("x.long", "1", "more than"),
        ("x.bad", "1", "exit code 1"),
        ("x.state", "-e", "would be an option"),
    ] {
        let (code, said) = look(&house, &question(tool, of)).await.unwrap_err();
        assert!(code == 502 && said.contains(words), "{tool}: {code} {said}");
    }
    // Nobody listens on the port of "discard". The password of a database is nobody's business.
    std::fs::write(house.path("secrets/SHOP"), "postgres://reader:hunter22@127.0.0.1:9/shop").unwrap();
    let (code, said) = look(&house, &question("x.row", "7")).await.unwrap_err();
    assert!(code == 502 && said.contains("can't be reached") && !said.contains("hunter22"), "{code} {said}");
    house.close(vec![executor]).await;
}
