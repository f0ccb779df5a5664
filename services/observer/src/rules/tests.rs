use kernel::observe::{PACKS, WakeWhen};

use super::*;
use crate::timed::TimedHit;

const ALL: Active = Active(u32::MAX);

fn pack(name: &str) -> Rules {
    let rules = Rules::compile(&ObserveRule { packs: vec![name.into()], ..ObserveRule::default() }, Limits::default());
    assert_eq!(rules.problems, [""; 0], "{name}");
    rules
}

fn compile(yaml: &str) -> Rules {
    Rules::compile(&serde_saphyr::from_str(yaml).unwrap(), Limits::default())
}

fn failure(rules: &Rules, line: &str) -> Option<String> {
    rules.look(line.as_bytes(), ALL).failure.map(|found| rules.name(found.rule).to_owned())
}

#[test]
fn all_packs_together_compile_and_need_no_look_at_every_line() {
    let rules = Rules::compile(&ObserveRule::default(), Limits::default());
    assert_eq!(rules.problems, [""; 0]);
    assert!(rules.len() >= 200, "{} patterns", rules.len());
    assert!(rules.slow.rules.is_empty());
    for line in [
        "nothing is to be seen here",
        "a line about nothing",
        "test store::segments::keeps_order ... ok",
        "2026-07-30T10:00:00Z worker 3 took segment 9",
    ] {
        assert!(!rules.can_hit(line.as_bytes()), "{line}");
    }
}

#[test]
fn every_pack_compiles_and_knows_its_own() {
    for (name, line, rule) in [
        ("generic", "Segmentation fault (core dumped)", "generic.crash"),
        ("traces", "2024-05-01T10:00:00.123Z ValueError: bad value", "traces.exception"),
        ("generic", "make: *** [all] Error 2", "generic.make"),
        ("ci", "2026-07-29T23:48:08.2790307Z ##[error]Unable to download artifact(s)", "ci.annotation"),
        ("ci", "##[error]Process completed with exit code 1.", "generic.exit_status"),
        ("lint", "  3:7  error  'x' is assigned a value but never used", "lint.rule"),
        ("cargo", "error[E0308]: mismatched types", "cargo.rustc_error"),
        ("cargo", "error: could not compile `x` (lib)", "cargo.could_not_compile"),
        ("cargo", "thread 'tests::a' (123) panicked at src/lib.rs:3:5:", "cargo.panic"),
        ("cargo", "test tests::a ... FAILED", "cargo.test_failed"),
        ("pytest", "E       assert 1 == 2", "python.assertion"),
        ("pytest", "FAILED tests/test_a.py::test_b - assert 1 == 2", "python.summary"),
        ("npm", "src/a.ts(3,5): error TS2322: Type", "node.typescript"),
        ("jest", "  ● sum › adds", "node.jest_case"),
        ("go", "    --- FAIL: TestA/b (0.00s)", "go.test_failed"),
        ("go", "./main.go:3:2: undefined: x", "go.compiler"),
        ("gcc", "main.c:3:5: error: expected ';'", "gcc.compiler"),
        ("gcc", "main.c(3): error C2065: 'x'", "gcc.msvc"),
        ("cmake", "CMake Error at CMakeLists.txt:3 (find_package):", "cmake.error"),
        ("maven", "[ERROR] /src/A.java:[3,5] cannot find symbol", "maven.compile_error"),
        ("gradle", "* What went wrong:", "gradle.what_went_wrong"),
        ("dotnet", "/src/A.cs(3,5): error CS1002: ; expected [/src/A.csproj]", "dotnet.compiler"),
        ("rspec", "     Failure/Error: expect(x).to eq(1)", "ruby.rspec_error"),
        ("bazel", "//a:b_test    FAILED in 1.2s", "bazel.test_failed"),
        ("docker", "Error response from daemon: manifest for x:y not found: manifest unknown", "docker.manifest"),
        ("kubectl", "Error from server (NotFound): pods \"x\" not found", "kubernetes.server"),
        ("terraform", "│ Error: Reference to undeclared resource", "terraform.error"),
        ("git", "fatal: couldn't find remote ref refs/x", "git.remote_ref"),
        (
            "mozilla",
            "[task 2025-02-13T22:07:05.241Z] 22:07:05     INFO - TEST-UNEXPECTED-FAIL | a | b",
            "mozilla.unexpected",
        ),
    ] {
        assert_eq!(failure(&pack(name), line).as_deref(), Some(rule), "{line}");
    }
}

#[test]
fn look_alikes_are_no_failures() {
    for name in PACKS.into_iter().chain(["pytest"]) {
        let rules = pack(name);
        for line in [
            "test result: ok. 12 passed; 0 failed; 0 ignored",
            "0 errors, 3 warnings",
            "Compiling thiserror v2.0.0",
            "cc -Werror -c main.c",
            "failed: 0",
            "Cache read errors                     0",
            "copying error_pages/404.html",
            "test error_handling::works ... ok",
            "tests/test_fail.py::test_error PASSED [ 50%]",
            "+ echo 'If your build fails, look above'",
            "[INFO] Tests run: 3, Failures: 0, Errors: 0, Skipped: 0",
            "The following tests failed and then succeeded when run in a new process",
            "Attempt 1 failed, retrying in 5 seconds",
            "  if-no-files-found: error",
        ] {
            let found = rules.look(line.as_bytes(), ALL).failure;
            assert!(found.is_none_or(|found| !found.wakes() && found.score <= 50), "{name}: {line}: {found:?}");
        }
    }
}

#[test]
fn a_pack_counts_fully_only_where_its_program_is_known() {
    let rules = Rules::compile(&ObserveRule::default(), Limits::default());
    let line = b"WARNING: DATA RACE";
    let stranger = rules.look(line, rules.active_for("make all")).failure.unwrap();
    let active = rules.active_for("cd x && go test ./...");
    let known = rules.look(line, active).failure.unwrap();
    assert!(!stranger.wakes() && known.wakes() && stranger.score < known.score);
    assert!(rules.names_of(active).any(|name| name == "go") && !rules.names_of(active).any(|name| name == "cargo"));
    assert_eq!(rules.active_for("mango tango").0, rules.active_for("").0);
    let detected = rules.detect(b"=== RUN   TestA");
    assert_eq!(rules.names_of(detected).collect::<Vec<_>>(), ["go"]);
}

#[test]
fn own_patterns_come_first_and_need_not_be_regular_expressions() {
    let rules = compile("failure: ['error[E', FAILED, 'code=\\d+', '^down']");
    assert_eq!(rules.problems.len(), 1);
    for (line, rule) in [
        ("error[E0001]: x", "failure[0]"),
        ("3 FAILED", "failure[1]"),
        ("code=7", "failure[2]"),
        ("2026-07-29T23:48:08Z down it goes", "failure[3]"),
    ] {
        let found = rules.look(line.as_bytes(), Active::default()).failure.unwrap();
        assert_eq!((rules.name(found.rule), found.wakes()), (rule, true), "{line}");
    }
    assert!(rules.look(b"0 FAILED, failed: 0", Active::default()).failure.unwrap().is_own());
}

#[test]
fn patterns_without_a_word_are_held_against_every_line() {
    let rules = compile("{ failure: ['^\\d{3}-\\d{3}$'], ignore: ['error of no interest'] }");
    assert!(rules.can_hit(b"no word at all"));
    assert_eq!(failure(&rules, "123-456").as_deref(), Some("failure[0]"));
    assert_eq!(failure(&rules, "main.c:3:5: error: of no interest, error of no interest"), None);
}

#[test]
fn what_wakes_is_data() {
    let rules = compile(
        "escalate: [{ on: [failure], rule: 'cargo.test*', wake: never }, { on: [failure], rule: 'cargo.*', wake: now }, { on: [silence], wake: never }]",
    );
    let wake = |line: &str| rules.look(line.as_bytes(), ALL).failure.unwrap().wake;
    assert_eq!(wake("test tests::a ... FAILED"), WakeWhen::Never);
    assert_eq!(wake("error[E0308]: mismatched types"), WakeWhen::Now);
    assert_eq!(wake("panic: boom"), WakeWhen::Settled);
    assert_eq!(rules.wake(Anomaly::Silence, ""), WakeWhen::Never);
    assert_eq!(rules.wake(Anomaly::Heartbeat, "x"), WakeWhen::Now);
}

#[test]
fn records_statuses_and_windows_are_read() {
    let rules = compile(
        "{ records: [{ path: level, op: eq, value: error }, { path: level, op: eq, value: debug, means: ignore }], \
           exit: [{ codes: [0, 2], means: success }, { codes: [3], means: failure }], \
           thresholds: [{ id: slow, match: 'took=(?P<value>\\d+)', above: 5, within: 1s }], heartbeats: [{ id: h, match: alive, every: 1s }] }",
    );
    assert_eq!(rules.problems, [""; 0]);
    assert_eq!(failure(&rules, r#"{"level":"error","msg":"x"}"#).as_deref(), Some("records[0]"));
    assert_eq!(failure(&rules, r#"{"level":"debug","msg":"fatal: error"}"#), None);
    assert_eq!([0, 2, 3, 4].map(|code| rules.exit_means(code)), [Some(true), Some(true), Some(false), None]);
    let timed = rules.look(b"alive, took=7", ALL).timed;
    assert_eq!(timed, [TimedHit::Threshold { place: 0, value: Some(7.0) }, TimedHit::Beat { place: 0 }]);
}

#[test]
fn progress_is_read() {
    let progress = |rules: &Rules, line: &str| {
        let hits = rules.look(line.as_bytes(), ALL);
        let progress = hits.progress.unwrap_or_default().or(rules.tail_progress(line.as_bytes()));
        (progress.phase, progress.percent)
    };
    assert_eq!(progress(&pack("generic"), " 45.6% done"), (None, Some(45)));
    assert_eq!(progress(&pack("gcc"), "[12/48] Building"), (None, Some(25)));
    assert_eq!(progress(&pack("cmake"), "[ 45%] Building C object").1, Some(45));
    assert_eq!(progress(&pack("cargo"), "   Compiling serde v1"), (Some("Compiling".into()), None));
    let rules = compile("progress: ['stage (\\w+) at (?P<percent>\\d+)']");
    assert_eq!(progress(&rules, "stage link at 7"), (Some("link".into()), Some(7)));
}

#[test]
fn rules_of_a_tool_are_merged_and_others_left_out() {
    let yaml = "name: a\nmodel: a:b\ninstructions: x\nobserve:\n  - { tool: shell.run, failure: [aaa] }\n  - { tool: other, failure: [ccc] }\n  - { service: x, failure: [ddd] }\n";
    let agent: AgentSpec = serde_saphyr::from_str(yaml).unwrap();
    let rules = Rules::for_tool(Some(&agent), "shell.run", Limits::default());
    assert_eq!(["aaa", "ccc", "ddd"].map(|line| failure(&rules, line).is_some()), [true, false, false]);
}

#[test]
fn what_cannot_be_used_is_named() {
    let rules = compile("{ packs: [nope], failure: ['\\w{1000}{1000}', good] }");
    assert_eq!(rules.problems.len(), 2, "{:?}", rules.problems);
    assert!(failure(&rules, "good").is_some());
}

#[test]
fn of_a_service_only_the_packs_listen_that_are_named() {
    let rule = |yaml: &str| Rules::for_service(&serde_saphyr::from_str(yaml).unwrap());
    let line = b"pod shop-1 is in CrashLoopBackOff, panic: no room";
    for (yaml, wanted) in [
        ("packs: [kubectl]", Some("kubernetes.pod")),
        ("packs: [git]", None),
        ("settle: 1s", None),
        ("failure: ['no room']", Some("failure[0]")),
    ] {
        let rules = rule(yaml);
        let found = rules.look(line, rules.always()).failure;
        assert_eq!(found.map(|failure| rules.name(failure.rule)), wanted, "{yaml}");
        assert!(found.is_none_or(|failure| failure.wakes()), "{yaml}");
    }
    assert!(rule("settle: 1s").is_empty());
}
