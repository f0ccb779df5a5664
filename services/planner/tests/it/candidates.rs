//! From answers to candidates, and what is wrong with those that are none.

use kernel::{
    CallId, Command, Trust,
    command::EndRequest,
    event::StepStatus,
    tool::{CallKind, Effect},
    wait::Condition,
};
use planner::models::{Answer, Arguments, Finish, ModelCall};
use serde_json::json;

use crate::sim::{Sim, agent, calls, names, operator, outside};

const AGENT: &str =
    "name: a\nmodel: scripted:x\ninstructions: Do.\ntools: [test.echo, shell.run, file.write, github.merge]\n";

fn sim() -> Sim {
    Sim::start(agent(AGENT), operator("Do it."), outside("An event."), "nowhere".into())
}

fn problems(answer: &Answer) -> String {
    sim().read(answer).unwrap_err().join("\n")
}

#[test]
fn everything_an_answer_may_hold() {
    let mut sim = sim();
    let answer = calls(&[
        ("update_plan", json!({"steps": [{"title": "run", "status": "in_progress"}], "reason": "to see what fails"})),
        ("shell_run", json!({"command": "make"})),
        ("say", json!({"text": "running"})),
        ("github_merge", json!({"owner": "o", "repository": "r", "number": 7, "sha": "abc"})),
        ("wait_for", json!({"any": [{"task": "shell.run"}, {"timer": "1h"}], "why": "it runs", "deadline": "2h"})),
        ("create_artifact", json!({"name": "notes.md", "content": "# Notes"})),
    ]);
    let answer = Answer { text: "I run it.".to_owned(), finish: Finish::Calls, ..answer };
    let candidate = sim.read(&answer).unwrap();
    let outcome = &candidate.outcome;
    let plan = outcome.plan.as_ref().unwrap();
    assert_eq!((plan.steps[0].status, plan.reason.as_deref()), (StepStatus::InProgress, Some("to see what fails")));
    assert_eq!(outcome.text.as_ref().unwrap().trust, Trust::Untrusted, "it saw an event from outside");
    assert_eq!(outcome.say[0].text, "running");
    assert_eq!(candidate.drafts[0].media_type, "text/markdown");
    assert_eq!(outcome.finish_reason.as_deref(), Some("tool_calls"));

    let [run, merge] = &outcome.calls[..] else { panic!("{:?}", outcome.calls) };
    assert_eq!(run.call_id, CallId::derive(sim.state.run_id, &format!("{}/1", sim.turn_id())));
    assert_eq!((run.tool.as_str(), run.kind, run.trust), ("shell.run", CallKind::Activity, Trust::Untrusted));
    assert_eq!((merge.effect, merge.idempotent), (Effect::External, false));
    assert_eq!(merge.schema_digest, crate::sim::tool("github.merge").unwrap().digest);

    let wait = outcome.wait.as_ref().unwrap();
    let named = wait
        .on
        .leaves()
        .iter()
        .any(|leaf| matches!(leaf.condition, Condition::TaskResult { call_id } if call_id == run.call_id));
    assert!(named && wait.deadline.is_some());

    let events = sim.submit(&Command::CommitTurn(Box::new(outcome.clone())));
    assert_eq!(
        names(&events),
        [
            "turn.completed",
            "plan.updated",
            "message.added",
            "tool.requested",
            "tool.requested",
            "wait.registered",
            "timer.set",
            "timer.set",
            "run.waiting"
        ]
    );
}

#[test]
fn the_same_answer_makes_the_same_ids() {
    let sim = sim();
    let answer = calls(&[("test_echo", json!({})), ("ask_operator", json!({"question": "go?"}))]);
    let (first, second) = (sim.read(&answer).unwrap().outcome, sim.read(&answer).unwrap().outcome);
    assert_eq!(first.calls[0].call_id, second.calls[0].call_id);
    assert_eq!(first.question.unwrap().approval_id, second.question.unwrap().approval_id);
}

#[test]
fn text_alone_is_the_end() {
    let mut sim = sim();
    let outcome = sim.read(&Answer { text: " Forty-two. ".to_owned(), ..Answer::default() }).unwrap().outcome;
    assert_eq!(outcome.text.as_ref().unwrap().text, "Forty-two.");
    let events = sim.submit(&Command::CommitTurn(Box::new(outcome)));
    assert_eq!(names(&events), ["turn.completed", "run.completed"]);
}

#[test]
fn complete_is_the_end() {
    let outcome = sim().read(&calls(&[("complete", json!({"summary": "done"}))])).unwrap().outcome;
    assert!(matches!(outcome.end, Some(EndRequest::Complete(text)) if text.text == "done"));
}

#[test]
fn what_is_wrong_is_said_in_words() {
    for (answer, words) in [
        (calls(&[("rm_rf", json!({}))]), vec!["no tool `rm_rf`", "shell_run", "wait_for"]),
        (calls(&[("shell_run", json!({"command": 7}))]), vec!["`shell_run`", "`/command`"]),
        (calls(&[("shell_run", json!({}))]), vec!["command", "required"]),
        (calls(&[("shell_run", json!({"command": "x", "dir": "/"}))]), vec!["dir"]),
        (calls(&[("shell_run", json!("x"))]), vec!["not a JSON object"]),
        (calls(&[("wait_for", json!({"timer": "3s"}))]), vec!["why"]),
        (calls(&[("wait_for", json!({"task": "file.read", "why": "w"}))]), vec!["no open call of `file.read`"]),
        (
            calls(&[("wait_for", json!({"timer": "3s", "why": "w", "deadline": "1960-01-01T00:00:00Z"}))]),
            vec!["deadline"],
        ),
        (calls(&[("complete", json!({"summary": "a"})), ("fail", json!({"reason": "b"}))]), vec!["twice"]),
        (calls(&[("say", json!({"text": "a"})), ("update_plan", json!({"steps": []}))]), vec!["steps"]),
        (
            calls(&[
                ("create_artifact", json!({"name": "a", "content": ""})),
                ("create_artifact", json!({"name": "a", "content": "x"})),
            ]),
            vec!["same name"],
        ),
        (Answer { finish: Finish::Length, text: "half an ans".to_owned(), ..Answer::default() }, vec!["cut off"]),
    ] {
        let problems = problems(&answer);
        for word in words {
            assert!(problems.contains(word), "{word}: {problems}");
        }
    }
}

#[test]
fn broken_json_and_repeated_calls_are_told_apart() {
    let call = |id: &str, arguments| ModelCall { id: Some(id.to_owned()), name: "test_echo".to_owned(), arguments };
    let broken = Answer { calls: vec![call("1", Arguments::Malformed("{\"text\": ".to_owned()))], ..Answer::default() };
    let words = problems(&broken);
    assert!(words.contains("not valid JSON") && words.contains("EOF"), "{words}");
    // A call that is said twice is meant once; another one under the same id, or none, is another one all the same.
    let said = |id: &str, text: &str| call(id, Arguments::Json(json!({"text": text})));
    let nameless = |text: &str| ModelCall { id: None, ..said("", text) };
    let calls_of =
        |calls: Vec<ModelCall>| sim().read(&Answer { calls, ..Answer::default() }).unwrap().outcome.calls.len();
    assert_eq!(calls_of(vec![said("1", "a"), said("1", "a")]), 1);
    assert_eq!(calls_of(vec![said("1", "a"), said("1", "b")]), 2);
    assert_eq!(calls_of(vec![said("1", "a"), said("2", "a")]), 2);
    assert_eq!(calls_of(vec![nameless("a"), nameless("a")]), 2);
    let many = vec![("test_echo", json!({})); 17];
    assert!(problems(&calls(&many)).contains("more than 16"));
}

#[test]
fn the_rules_refuse_what_must_not_stand_together() {
    let mut sim = sim();
    let answer = calls(&[("complete", json!({"summary": "done"})), ("test_echo", json!({}))]);
    let outcome = sim.read(&answer).unwrap().outcome;
    let refused = sim.try_submit(&Command::CommitTurn(Box::new(outcome))).unwrap_err();
    assert!(refused.to_string().contains("cannot stand beside"), "{refused}");
    let asked = sim.slice().user_with_problems("I am done", &[refused.to_string()]);
    assert!(
        asked.contains("could not be used") && asked.contains("cannot stand beside") && asked.contains("I am done")
    );
}
