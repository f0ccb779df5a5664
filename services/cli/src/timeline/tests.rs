//! A whole story, as people see it.

use jiff::{SignedDuration, Timestamp};
use kernel::{
    ApprovalId, ArtifactId, Block, CallId, Cause, EventData, RunId, TimerId, Trust, TurnId, WaitId,
    budget::Usage,
    call::{
        Approval, ArtifactRef, Attempt, Binding, CallFailure, CallRequest, CallResult, ErrorClass, Evidence, Exit,
        Observation, SignalCounts,
    },
    event::*,
    slice::Manifest,
    tool::{CallKind, Effect},
    units::Duration,
    wait::{Condition, ExternalPattern, Wait, WaitExpr, WakeKind},
};

use super::Timeline;
use crate::{style::Style, views::EventView};

/// What people see of [`main_job`]. `UPDATE=1` writes it anew.
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/timeline/main_job.txt");

struct Story {
    run: RunId,
    start: Timestamp,
    events: Vec<EventView>,
}

impl Story {
    fn new() -> Self {
        let start = "2026-01-31T12:00:00Z".parse().unwrap();
        Self { run: RunId::from_uuid(uuid::Uuid::from_u128(7)), start, events: Vec::new() }
    }

    fn at(&self, millis: i64) -> Timestamp {
        self.start.checked_add(SignedDuration::from_millis(millis)).unwrap()
    }

    fn then(&mut self, millis: i64, data: impl Into<EventData>) {
        let data = data.into();
        self.events.push(EventView {
            seq: self.events.len() as u64 + 1,
            event_type: data.type_name().to_owned(),
            version: data.version(),
            at: self.at(millis),
            cause: Cause::default(),
            data: serde_json::from_str(&data.encode().unwrap()).unwrap(),
        });
    }

    fn turn(&mut self, millis: i64, number: u32, tokens: u64, text: Option<&str>) {
        let turn_id = TurnId::derive(self.run, &number.to_string());
        self.then(
            millis,
            TurnCompleted {
                turn_id,
                number,
                based_on: 1,
                model: "scripted:ci-keeper".into(),
                text: text.map(|text| block(text, Trust::System)),
                usage: Usage { model_calls: 1, input_tokens: tokens, output_tokens: 60, ..Usage::default() },
                trust: Trust::Untrusted,
                manifest: Manifest::default(),
                finish_reason: None,
                model_ms: 412,
                failures: Vec::new(),
                dropped_calls: Vec::new(),
            },
        );
    }

    fn wakes(&mut self, millis: i64, number: u32, wake: Option<WakeKind>) {
        let turn_id = TurnId::derive(self.run, &number.to_string());
        self.then(millis, RunRunnable { turn_id, number, wake, not_before: None });
    }

    fn call(&self, name: &str, tool: &str, arguments: serde_json::Value) -> ToolRequested {
        ToolRequested {
            call: CallRequest {
                call_id: CallId::derive(self.run, name),
                tool: tool.into(),
                arguments,
                kind: CallKind::Activity,
                effect: Effect::External,
                idempotent: false,
                schema_digest: String::new(),
                trust: Trust::Untrusted,
                compensation: Default::default(),
                timeout: Duration::from_secs(60),
            },
            turn_id: TurnId::derive(self.run, "1"),
        }
    }

    fn starts(&self, name: &str, attempt: u32) -> ToolStarted {
        ToolStarted {
            call_id: CallId::derive(self.run, name),
            attempt,
            executor: "tool-executor-0198aabbccdd".into(),
            idempotency_key: String::new(),
            binding: Binding::default(),
        }
    }

    fn observes(&self, name: &str, changed: &str, decision: Option<&str>, lines: u64) -> ObservationRecorded {
        let evidence = Evidence {
            excerpt: "FAIL: adds two numbers\nmore".into(),
            offset: 0,
            line: lines,
            rule: "FAIL".into(),
            ..Evidence::default()
        };
        ObservationRecorded {
            observation: Observation {
                call_id: Some(CallId::derive(self.run, name)),
                phase: "failure".into(),
                changed: changed.into(),
                anomaly: decision.is_some(),
                decision: decision.map(str::to_owned),
                evidence: decision.map(|_| evidence).into_iter().collect(),
                missing: None,
                counts: SignalCounts { frames: lines / 40, lines, bytes: lines * 80, suppressed: 9, gap_bytes: 0 },
            },
            asked: None,
        }
    }
}

fn block(text: &str, trust: Trust) -> Block {
    Block::new(text, trust, "operator:ann")
}

fn external() -> ExternalRef {
    ExternalRef {
        position: 1,
        source: "github".into(),
        id: "e1".into(),
        event_type: "github.push".into(),
        resource_key: "github:acme/widget".into(),
        traceparent: None,
    }
}

fn created(trigger: Option<ExternalRef>) -> RunCreated {
    let objective = block("Get its pipeline green, then merge its pull request.", Trust::Operator);
    let input = block("{\"specversion\": \"1.0\",\n \"data\": {\"ref\": \"refs/heads/fix\"}}", Trust::Untrusted);
    RunCreated { trigger, ..RunCreated::new(Default::default(), "ci-keeper", "d", objective, input) }
}

/// The main job, shortened.
fn main_job() -> Story {
    let mut story = Story::new();
    story.then(0, created(Some(external())));
    story.wakes(0, 1, None);
    story.turn(430, 1, 1_204, Some("I'll run the pipeline first."));
    let step = |title: &str, status| PlanStep { title: title.into(), status };
    let steps = vec![step("run the pipeline", StepStatus::InProgress), step("mend", StepStatus::Pending)];
    story.then(430, PlanUpdated { steps, revision: 1, reason: None });
    story.then(430, story.call("build", "shell.run", serde_json::json!({"command": "./ci test"})));
    story.then(440, story.starts("build", 1));
    story.then(4_000, story.observes("build", "compile: 40 of 90", None, 1_200));
    story.then(8_100, story.observes("build", "a test fails", Some("a test fails: 1 of 90"), 2_917));
    let exit = Exit { code: Some(1), signal: None, reason: "exited".into(), bytes: 240_000, lines: 3_002 };
    let failure =
        CallFailure { block: block("exit status 1", Trust::System), code: "exit_status".into(), duration_ms: 7_660 };
    story.then(8_100, ToolFailed { call_id: CallId::derive(story.run, "build"), failure, exit: Some(exit) });
    story.wakes(8_100, 2, Some(WakeKind::TaskResult));
    story.turn(8_600, 2, 1_408, None);
    let steps = vec![step("run the pipeline", StepStatus::InProgress), step("mend", StepStatus::Done)];
    story.then(8_600, PlanUpdated { steps, revision: 2, reason: None });
    story.then(8_600, story.call("merge", "github.merge", serde_json::json!({"pull": 7})));
    let approval_id = ApprovalId::from_uuid(uuid::Uuid::from_u128(9));
    story.then(
        8_700,
        ApprovalRequested {
            approval: Approval {
                approval_id,
                call_id: Some(CallId::derive(story.run, "merge")),
                question: block("May `github.merge` be called?", Trust::System),
                tool: Some("github.merge".into()),
                arguments: None,
                binding: Binding::default(),
                trust: Trust::Untrusted,
                reasons: vec!["it changes something outside".into()],
                two_people: false,
                shown: Default::default(),
                expires_at: story.at(8_700 + 86_400_000),
            },
        },
    );
    let granted = ApprovalGranted {
        approval_id,
        by: "ann".into(),
        arguments: None,
        binding: Binding::default(),
        reason: Some("looks good".into()),
        standing: None,
        endorsed_by: None,
        aliases: Vec::new(),
    };
    story.then(11_900, granted);
    story.then(11_950, story.starts("merge", 1));
    story.then(
        22_000,
        ToolInDoubt { call_id: CallId::derive(story.run, "merge"), reason: "its executor is gone".into() },
    );
    story.then(
        22_100,
        ToolReconciled {
            call_id: CallId::derive(story.run, "merge"),
            finding: Finding::Done,
            as_of: None,
            evidence: block("merged: true", Trust::Untrusted),
        },
    );
    let result = CallResult { block: block("merged", Trust::Untrusted), value: None, artifact: None, duration_ms: 0 };
    story.then(22_100, ToolCompleted { call_id: CallId::derive(story.run, "merge"), result, exit: None });
    story.wakes(22_100, 3, Some(WakeKind::TaskResult));
    story.turn(22_400, 3, 1_150, None);
    let timer_id = TimerId::derive(story.run, "t");
    let due = story.at(25_400);
    let pattern = ExternalPattern {
        source: "github".into(),
        event_type: "github.merged".into(),
        subject: "acme/widget".into(),
        filter: None,
        exclusive: false,
        verify: None,
    };
    let on = WaitExpr::Any(vec![Condition::Timer { timer_id, due }.into(), Condition::External(pattern).into()]);
    let wait = Wait {
        wait_id: WaitId::derive(story.run, "w"),
        on,
        why: "let the forge settle".into(),
        assumes: None,
        expects: None,
        deadline: None,
    };
    story.then(22_400, WaitRegistered { wait });
    story.then(22_400, TimerSet { timer_id, due, purpose: TimerPurpose::Wait });
    story.then(25_412, TimerFired { timer_id, due });
    story.wakes(25_412, 4, Some(WakeKind::Timer));
    story.turn(25_800, 4, 1_190, None);
    let artifact = ArtifactRef {
        artifact_id: ArtifactId::derive(story.run, "a"),
        name: "report.md".into(),
        version: 1,
        digest: "d".into(),
        bytes: 2_150,
        media_type: "text/markdown".into(),
        trust: Trust::Untrusted,
    };
    story.then(25_800, ArtifactCreated { artifact });
    let text = block("The pipeline is green and the pull request is merged.", Trust::System);
    story.then(
        25_800,
        RunCompleted { ending: Ending { outcome: Outcome::Completed, rule: Rule::GoalMet, text }, parent: None },
    );
    story
}

fn told(story: &Story) -> (String, Timeline) {
    let mut timeline = Timeline::new(Style::plain());
    let mut lines: Vec<String> = story.events.iter().flat_map(|event| timeline.feed(event)).collect();
    lines.extend(timeline.summary());
    (lines.join("\n") + "\n", timeline)
}

#[test]
fn the_main_job_reads_as_pinned() {
    let (text, _) = told(&main_job());
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(GOLDEN, &text).unwrap();
    }
    let golden = std::fs::read_to_string(GOLDEN).unwrap();
    assert_eq!(text, golden, "\n{text}");
}

#[test]
fn the_sums_are_right() {
    let (_, timeline) = told(&main_job());
    let economics = timeline.economics();
    assert_eq!(economics.signals.lines, 2_917, "the counts of a call are since its start: the last ones hold");
    assert_eq!((economics.observations, economics.decisions_needed, economics.signals.suppressed), (2, 1, 9));
    assert_eq!((economics.wakes(), economics.tool_calls, economics.approved), (3, 2, 1));
    assert_eq!(economics.tokens_per_turn, [1_264, 1_468, 1_210, 1_250]);
    assert_eq!(economics.took_ms, 25_800);
    assert_eq!(economics.asleep_ms, (8_100 - 430) + (22_100 - 8_600) + (25_412 - 22_400));
}

#[test]
fn why_a_plan_changed_and_what_was_paid_for_in_vain_is_told() {
    let mut story = Story::new();
    let steps = vec![PlanStep { title: "look elsewhere".into(), status: StepStatus::Pending }];
    story.then(0, PlanUpdated { steps, revision: 1, reason: Some("the first way is closed".into()) });
    let charged = TurnCharged {
        turn_id: TurnId::derive(story.run, "turn/1"),
        paid_for: PaidFor::Answer,
        reason: "no model answered".into(),
        usage: Usage { model_calls: 1, input_tokens: 1_200, ..Usage::default() },
        failures: Vec::new(),
    };
    story.then(10, charged);
    let (told, timeline) = told(&story);
    for words in ["look elsewhere", "the first way is closed", "no model answered", "1,200 tokens"] {
        assert!(told.contains(words), "{words} is missing:\n{told}");
    }
    assert!(timeline.economics().tokens_per_turn.is_empty(), "it is no turn");
}

#[test]
fn the_first_of_two_people_is_told_and_the_second_with_both() {
    let mut story = Story::new();
    let approval_id = ApprovalId::from_uuid(uuid::Uuid::from_u128(9));
    let approval = Approval {
        approval_id,
        call_id: None,
        question: block("May `bank.transfer` be called?", Trust::System),
        tool: Some("bank.transfer".into()),
        arguments: None,
        binding: Binding::default(),
        trust: Trust::Operator,
        reasons: Vec::new(),
        two_people: true,
        shown: Default::default(),
        expires_at: story.at(86_400_000),
    };
    story.then(0, ApprovalRequested { approval });
    let (binding, reason) = (Binding::default(), Some("but less".to_owned()));
    let arguments = Some(serde_json::json!({"amount": 800}));
    let by = "ann".to_owned();
    story.then(2_000, ApprovalEndorsed { approval_id, by, aliases: Vec::new(), arguments, binding, reason });
    let granted = ApprovalGranted {
        approval_id,
        by: "bob".into(),
        arguments: None,
        binding: Binding::default(),
        reason: None,
        standing: None,
        endorsed_by: Some("ann".into()),
        aliases: Vec::new(),
    };
    story.then(5_000, granted);
    let (told, _) = told(&story);
    let wanted =
        ["two people have to agree", "by ann, and one more person is needed", "with other arguments", "by ann and bob"];
    for words in wanted {
        assert!(told.contains(words), "{words} is missing:\n{told}");
    }
}

#[test]
fn text_from_outside_cannot_drive_the_terminal() {
    let mut story = Story::new();
    let mut created = created(Some(external()));
    created.input.text = "\x1b[2J\x1b]0;pwned\x07\r\nsecond".into();
    created.agent = "a\x1b[31m".into();
    story.then(0, created);
    let (text, _) = told(&story);
    assert!(!text.contains(['\x1b', '\x07', '\r']), "{text:?}");
}

#[test]
fn an_event_of_a_later_version_is_passed_over_by_name() {
    let mut story = main_job();
    story.events[3].event_type = "plan.reconsidered".into();
    story.events[5].version = 99;
    let (text, _) = told(&story);
    assert!(text.contains("plan.reconsidered") && text.contains("tool.started"));
    assert!(text.contains("The pipeline is green"));
}

#[test]
fn attempts_delays_and_questions_of_a_call_are_told() {
    let mut story = Story::new();
    story.then(0, story.call("merge", "github.merge", serde_json::json!({"pull": 7})));
    let call_id = CallId::derive(story.run, "merge");
    let said = |attempt, put_off, reason: Option<&str>, asks| ToolProgressed {
        call_id,
        attempt,
        put_off,
        reason: reason.map(str::to_owned),
        handle: None,
        asks,
    };
    let attempt = Attempt {
        number: 1,
        began: story.at(10),
        took_ms: 30,
        class: ErrorClass::Retry,
        code: "http_status".into(),
        said: "HTTP 429".into(),
        target: Some("api.github.com:443".into()),
        dry_run: false,
    };
    story.then(20, said(Some(Attempt { dry_run: true, ..attempt.clone() }), None, None, None));
    story.then(40, said(Some(attempt), Some(story.at(300_040)), Some("retry"), None));
    story.then(300_040, ToolDue { call_id });
    story.then(300_050, said(None, Some(story.at(310_050)), Some("rate_limited"), None));
    story.then(320_000, said(None, None, None, Some(block("It waits for input.", Trust::Untrusted))));
    let (told, _) = told(&story);
    for words in [
        "dry run 1 failed (http_status)",
        "attempt 1 failed (http_status)",
        "retry: put off for 5m 00s",
        "HTTP 429",
        "it was put off until now",
        "rate limited: put off for 10.0s",
        "It waits for input.",
    ] {
        assert!(told.contains(words), "{words} is missing:\n{told}");
    }
}
