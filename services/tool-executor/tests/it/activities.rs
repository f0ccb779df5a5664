//! Commands that go on by themselves.

use std::time::Duration;

use kernel::{CallId, Role, RunId, Trust};
use serde_json::json;
use tool_executor::{Config, Confine};

use crate::house::House;

/// A house whose agent may run exactly this command without asking, and an activity with this time-out.
async fn house(command: &str, timeout: &str) -> House {
    let tool = format!(
        "name: x.run\ndescription: Runs.\nkind: activity\neffect: write\ntimeout: {timeout}\n\
         input: {{ type: object, properties: {{ command: {{ type: string }} }}, required: [command] }}\n\
         run: {{ builtin: shell.run }}\n"
    );
    let allow = json!({ "commands": [command] }).to_string();
    House::new(&[], &[("x.run", tool)], &allow).await
}

async fn begin(house: &House, command: &str) -> (RunId, CallId) {
    let call = house.call("x.run", json!({ "command": command }), Trust::Untrusted);
    let call_id = call.call_id;
    (house.run(vec![call]).await, call_id)
}

/// Processes that carry the mark of the call.
fn processes(call: CallId) -> usize {
    let mark = format!("ESC_CALL_ID={call}");
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| std::fs::read(entry.ok()?.path().join("environ")).ok())
        .filter(|environ| environ.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes()))
        .count()
}

async fn until(mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "it did not come to hold");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn every_byte_arrives_in_order() {
    let command =
        r"i=0; while [ $i -lt 10000 ]; do echo line $i of it; i=$((i+1)); done; printf '\377\376\000 err' >&2; exit 3";
    let house = house(command, "1m").await;
    let executor = house.executor();
    let (run, call) = begin(&house, command).await;
    let (output, exit) = house.output(call).await;
    let mut expected: Vec<u8> = (0..10_000).flat_map(|i| format!("line {i} of it\n").into_bytes()).collect();
    expected.extend(b"\xff\xfe\x00 err");
    assert_eq!(output.len(), expected.len());
    assert!(output == expected, "the output differs");
    assert_eq!((exit.code, exit.signal, exit.reason.as_str(), exit.lines), (Some(3), None, "exited", 10_001));
    assert!(house.frames(call).len() < 100, "lines share frames");
    // The executor says nothing of the end itself: the observer does.
    assert_eq!((house.count(run, "tool.started").await, house.count(run, "tool.failed").await), (1, 0));
    until(|| processes(call) == 0).await;
    house.conclude(run, call, exit).await;
    assert_eq!(house.count(run, "tool.failed").await, 1);
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_command_gets_a_clean_environment_in_its_own_folder() {
    let command = "env | sort; pwd; ls -a";
    let house = house(command, "1m").await;
    let executor = house.executor();
    let (run, call) = begin(&house, command).await;
    let (output, exit) = house.output(call).await;
    assert!(exit.is_success());
    let output = String::from_utf8(output).unwrap();
    let workspace = house.path("workspaces").join(run.to_string());
    let names: Vec<_> = output.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    for name in &names {
        assert!(
            ["ESC_CALL_ID", "HOME", "LANG", "PATH", "PWD", "TMPDIR", "TZ", "OLDPWD", "_"].contains(name),
            "{name} got in"
        );
    }
    assert!(output.contains(&format!("HOME={}\n", workspace.display())), "{output}");
    assert!(output.contains(&format!("\n{}\n", workspace.display())), "{output}");
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_command_that_takes_too_long_is_ended() {
    let command = "trap '' TERM; echo begun; : >begun; while :; do sleep 1; done";
    let house = house(command, "3s").await;
    let executor = house.executor_with(Config { kill_grace_ms: 300, ..house.config() });
    for _ in 0..5 {
        let (run, call) = begin(&house, command).await;
        let (output, exit) = house.output(call).await;
        assert_eq!(exit.reason, "timeout");
        until(|| processes(call) == 0).await;
        // Its time counts from its start in the log: where that is held up, it may be over before the command begins.
        if house.path("workspaces").join(format!("{run}/begun")).exists() {
            assert_eq!((output.as_slice(), exit.signal), (b"begun\n".as_slice(), Some(9)));
            return house.close(vec![executor]).await;
        }
    }
    panic!("the command never begins");
}

#[tokio::test]
async fn an_ending_run_takes_all_its_processes_along() {
    // One child in the group, one in a session of its own, and the command itself.
    let command = "sleep 1000 & setsid sleep 1001 & echo begun; sleep 1002";
    let house = house(command, "10m").await;
    let executor = house.executor();
    let (run, call) = begin(&house, command).await;
    until(|| processes(call) >= 4).await;
    house.cancel(run).await;
    let (_, exit) = house.output(call).await;
    assert_eq!((exit.reason.as_str(), exit.signal), ("cancelled", Some(15)));
    until(|| processes(call) == 0).await;
    house.conclude(run, call, exit).await;
    assert_eq!(house.count(run, "run.cancelled").await, 1);
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_flood_of_output_is_cut_off() {
    let command = "yes 0123456789";
    let house = house(command, "1m").await;
    let executor = house.executor_with(Config { output_cap: 200_000, ..house.config() });
    let (_, call) = begin(&house, command).await;
    let (output, exit) = house.output(call).await;
    assert_eq!((output.len(), exit.bytes, exit.reason.as_str()), (200_000, 200_000, "output_cap"));
    until(|| processes(call) == 0).await;
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn another_executor_goes_on_where_one_died() {
    // It goes on until it is told, and says how much it has said.
    let command =
        "i=0; until [ -e go ] || [ $i -gt 60000 ]; do echo line $i; i=$((i+1)); sleep 0.01; done; echo $i lines";
    let house = house(command, "10m").await;
    let first = house.executor();
    let (run, call) = begin(&house, command).await;
    until(|| house.frames(call).len() >= 3).await;
    // As a crash would, in the middle of the output.
    drop(first);
    assert!(processes(call) > 0, "the command goes on");
    let second = house.executor();
    let seen = house.frames(call).len();
    until(|| house.frames(call).len() >= seen + 3).await;
    std::fs::write(house.path("workspaces").join(format!("{run}/go")), "").unwrap();
    let (output, exit) = house.output(call).await;
    let lines = exit.lines - 1;
    let mut expected: Vec<u8> = (0..lines).flat_map(|i| format!("line {i}\n").into_bytes()).collect();
    expected.extend(format!("{lines} lines\n").into_bytes());
    assert!(output == expected, "{}", String::from_utf8_lossy(&output));
    assert!(exit.is_success());
    assert_eq!(house.count(run, "tool.started").await, 1);
    house.close(vec![second]).await;
}

#[tokio::test]
async fn an_end_that_nobody_saw_is_found_afterwards() {
    let command = "echo one; sleep 0.5; echo two; exit 7";
    let house = house(command, "1m").await;
    let first = house.executor();
    let (_, call) = begin(&house, command).await;
    until(|| !house.frames(call).is_empty()).await;
    drop(first);
    until(|| processes(call) == 0).await;
    let second = house.executor();
    let (output, exit) = house.output(call).await;
    assert_eq!((output.as_slice(), exit.code), (b"one\ntwo\n".as_slice(), Some(7)));
    house.close(vec![second]).await;
}

#[tokio::test]
async fn processes_that_vanished_are_reported_lost() {
    let command = "echo one; sleep 1000";
    let house = house(command, "10m").await;
    let first = house.executor();
    let (run, call) = begin(&house, command).await;
    until(|| !house.frames(call).is_empty()).await;
    drop(first);
    // As a machine that goes down: the supervisor too.
    let pid = house.path("workspaces").join(format!("{run}/.esc/{call}/pid"));
    let pid: i32 = std::fs::read_to_string(pid).unwrap().trim().parse().unwrap();
    nix::sys::signal::killpg(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    let second = house.executor();
    let (output, exit) = house.output(call).await;
    assert_eq!((output.as_slice(), exit.reason.as_str(), exit.code), (b"one\n".as_slice(), "lost", None));
    house.close(vec![second]).await;
}

#[tokio::test]
async fn a_command_that_nobody_named_is_asked_about() {
    let house = house("echo fine", "1m").await;
    let executor = house.executor_with(Config { confine: Confine::Off, ..house.config() });
    let (run, _) = begin(&house, "echo fine; rm -rf /").await;
    let asked = house.question(run, 1).await;
    assert!(asked.reasons[0].starts_with("ask-unconfined-process: "), "{:?}", asked.reasons);
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_command_that_nobody_named_runs_where_it_can_touch_nothing() {
    let house = house("nothing", "1m").await;
    let outside = house.path("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("secret"), "s3cr3t").unwrap();
    let executor = house.executor_with(Config { confine: Confine::Require, ..house.config() });
    let other = house.path("workspaces").join(RunId::mint().to_string());
    std::fs::create_dir_all(&other).unwrap();
    std::fs::write(other.join("theirs"), "another run's").unwrap();
    let command = format!(
        "echo mine >own && cat own; mktemp >/dev/null && echo temporary; cat {out}/secret {other}/theirs; echo x >{out}/new; \
         perl -MSocket -e 'socket(S, PF_INET, SOCK_STREAM, 0) or exit 1' && echo network; \
         cat /etc/shadow >/dev/null && echo peeked; cat /proc/{me}/environ >/dev/null && echo peeked; echo over",
        out = outside.display(),
        other = other.display(),
        me = std::process::id(),
    );
    let (run, call) = begin(&house, &command).await;
    let (output, exit) = house.output(call).await;
    let output = String::from_utf8(output).unwrap();
    let said: Vec<_> =
        output.lines().filter(|line| ["mine", "temporary", "network", "peeked", "over"].contains(line)).collect();
    assert_eq!(said, ["mine", "temporary", "over"], "{output}");
    assert!(
        !output.contains("s3cr3t") && !output.contains("another run's") && !outside.join("new").exists(),
        "{output}"
    );
    assert!(exit.is_success());
    assert_eq!(house.count(run, "approval.requested").await, 0);
    house.close(vec![executor]).await;
}

/// Where control groups count and hold processes, if they do here, and where none do.
fn with_and_without_groups(house: &House) -> [Config; 2] {
    [Confine::Auto, Confine::Off].map(|control_groups| Config { control_groups, process_count: 40, ..house.config() })
}

#[tokio::test]
async fn a_command_that_multiplies_is_ended_with_all_that_came_of_it() {
    // Each of them starts two that live on, six times over: 127 at most, whoever ends them or does not. Refused more than it may
    // have, all of it can be over before anybody looks, and has to end badly then.
    let command = "swarm() { [ $1 -gt 0 ] || exec sleep 1031; swarm $(($1 - 1)) & swarm $(($1 - 1)) & wait; }; \
                   echo begun; swarm 6; exit 3";
    let house = house(command, "1m").await;
    for config in with_and_without_groups(&house) {
        let executor = house.executor_with(config);
        let (_, call) = begin(&house, command).await;
        let (output, exit) = house.output(call).await;
        assert!(output.starts_with(b"begun\n"));
        assert_eq!(exit.reason, "process_cap");
        until(|| processes(call) == 0).await;
        executor.stop().await.unwrap();
    }
    house.close(Vec::new()).await;
}

#[tokio::test]
async fn a_process_that_is_gone_as_soon_as_there_is_another_is_ended_too() {
    // Never more than two at once, and by itself at an end after 20,000, which takes far longer than ending it.
    let command = "hop() { [ $1 -gt 0 ] || { echo got away >away; exit; }; hop $(($1 - 1)) & }; echo begun; hop 20000";
    let house = house(command, "1m").await;
    for config in with_and_without_groups(&house) {
        let executor = house.executor_with(config);
        let (run, call) = begin(&house, command).await;
        // Its command is over at once, and leaves that behind.
        let (output, exit) = house.output(call).await;
        assert!(output.starts_with(b"begun\n") && exit.code == Some(0), "{exit:?}");
        until(|| processes(call) == 0).await;
        assert!(!house.path("workspaces").join(run.to_string()).join("away").exists());
        executor.stop().await.unwrap();
    }
    house.close(Vec::new()).await;
}

#[tokio::test]
async fn nobody_passes_for_the_supervisor_to_live_on() {
    // It says that it is the supervisor, and that it has ended well.
    let command = "sleep 1041 & here=$(ls -d .esc/*); echo $! >$here/pid; echo 0 >$here/exit; echo begun; sleep 1042";
    let house = house(command, "1m").await;
    let executor = house.executor();
    let (_, call) = begin(&house, command).await;
    let (output, exit) = house.output(call).await;
    assert_eq!((output.as_slice(), exit.code), (b"begun\n".as_slice(), Some(0)), "it could have ended so as well");
    until(|| processes(call) == 0).await;
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_command_that_takes_too_much_memory_is_ended() {
    let eat = "x=$(head -c 100000000 /dev/zero | tr '\\0' a); sleep 50";
    let house = house(eat, "1m").await;
    let executor = house.executor_with(Config { process_memory: 64 << 20, process_cpu_seconds: 20, ..house.config() });
    let (_, call) = begin(&house, eat).await;
    let (_, exit) = house.output(call).await;
    assert_eq!(exit.reason, "memory_cap");
    until(|| processes(call) == 0).await;
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn whatever_a_command_does_its_end_is_told_as_it_was() {
    // By signal; without a word; with output that is closed early; with one line that never ends; with a child left behind.
    let commands = [
        ("kill -SEGV $$", (None, Some(11)), ""),
        ("exit 42", (Some(42), None), ""),
        ("exec >&- 2>&-; exit 5", (Some(5), None), ""),
        ("head -c 300000 /dev/zero | tr '\\0' a", (Some(0), None), "a"),
        ("sleep 1000 & echo left", (Some(0), None), "left\n"),
        ("ulimit -t 1; while :; do :; done", (None, Some(9)), ""),
    ];
    let allow = json!({ "commands": commands.map(|(command, ..)| command) }).to_string();
    let tool = "name: x.run\ndescription: Runs.\nkind: activity\neffect: write\ntimeout: 2m\nconcurrency: { parallel: true }\n\
                input: { type: object, properties: { command: { type: string } }, required: [command] }\nrun: { builtin: shell.run }\n";
    let house = House::new(&[], &[("x.run", tool.to_owned())], &allow).await;
    let executor = house.executor();
    let calls: Vec<_> = commands
        .iter()
        .map(|(command, ..)| house.call("x.run", json!({ "command": command }), Trust::Untrusted))
        .collect();
    let ids: Vec<_> = calls.iter().map(|call| call.call_id).collect();
    house.run(calls).await;
    for ((command, end, begins), call) in commands.iter().zip(ids) {
        let (output, exit) = house.output(call).await;
        assert_eq!((exit.code, exit.signal, exit.reason.as_str()), (end.0, end.1, "exited"), "{command}");
        assert!(output.starts_with(begins.as_bytes()), "{command}");
        until(|| processes(call) == 0).await;
    }
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_program_gets_its_arguments_whole() {
    let tool = "name: x.say\ndescription: Says.\nkind: activity\neffect: write\ntimeout: 2m\n\
                input: { type: object, additionalProperties: false, properties: { what: { type: string }, words: { type: array } } }\n\
                run: { process: { command: [printf, --, \"[%s]\", \"{what}\", \"{words}\", \"{run_id}\"] } }\n";
    let house = House::new(&[], &[("x.say", tool.to_owned())], "{}").await;
    let executor = house.executor();
    let arguments = json!({"what": "$(id); 'x' {words}", "words": ["a b", "-c"]});
    let (run, id) = house.run_one("x.say", arguments, Trust::Untrusted).await;
    let (output, exit) = house.output(id).await;
    assert_eq!(String::from_utf8(output).unwrap(), format!("[$(id); 'x' {{words}}][a b][-c][{run}]"));
    assert!(exit.is_success());
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn what_threw_off_its_mark_and_its_group_is_ended_too() {
    // Without its environment, in a session of its own, still writing to the same output; and its child with an output of its own.
    let command = "setsid env -i sh -c 'sleep 1011 >/dev/null 2>&1 & echo begun; sleep 1012' & sleep 1013";
    let house = house(command, "10m").await;
    let executor = house.executor();
    let (run, call) = begin(&house, command).await;
    let sleeping = |seconds: &str| {
        let argument = format!("sleep\0{seconds}\0");
        let all = std::fs::read_dir("/proc").unwrap();
        all.filter_map(|entry| std::fs::read(entry.ok()?.path().join("cmdline")).ok())
            .filter(|line| line == argument.as_bytes())
            .count()
    };
    until(|| sleeping("1011") == 1 && sleeping("1012") == 1 && sleeping("1013") == 1).await;
    house.cancel(run).await;
    let (_, exit) = house.output(call).await;
    assert_eq!(exit.reason, "cancelled");
    until(|| sleeping("1011") + sleeping("1012") + sleeping("1013") == 0).await;
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_supervisor_that_is_killed_takes_nothing_with_it_silently() {
    let command = "echo one; sleep 1021";
    let house = house(command, "10m").await;
    let executor = house.executor();
    let (run, call) = begin(&house, command).await;
    until(|| !house.frames(call).is_empty()).await;
    let pid = house.path("workspaces").join(format!("{run}/.esc/{call}/pid"));
    let pid: i32 = std::fs::read_to_string(pid).unwrap().trim().parse().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    let (output, exit) = house.output(call).await;
    assert_eq!((output.as_slice(), exit.reason.as_str(), exit.code), (b"one\n".as_slice(), "lost", None));
    until(|| processes(call) == 0).await;
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_command_asks_and_is_answered() {
    let command = "printf 'proceed? '; read answer; echo got $answer; cat; echo end";
    let tool = "name: x.run\ndescription: Runs.\nkind: activity\neffect: write\ntimeout: 1m\n\
         input: { type: object, properties: { command: { type: string }, input: { type: boolean } }, required: [command] }\n\
         run: { builtin: shell.run }\n";
    let allow = json!({ "commands": [command, "yes", "more"] }).to_string();
    let house = House::new(&["activity.send"], &[("x.run", tool.to_owned())], &allow).await;
    let executor = house.executor();
    let (run, call) = house.run_one("x.run", json!({ "command": command, "input": true }), Trust::Operator).await;
    let asks = house
        .event(run, |events| {
            events.iter().find_map(|event| match event {
                kernel::event::EventData::ToolProgressed(progressed) => progressed.asks.clone(),
                _ => None,
            })
        })
        .await;
    assert!(asks.text.contains("proceed?") && asks.trust == Trust::Untrusted, "{asks:?}");
    let sends = vec![
        house.call("activity.send", json!({ "call_id": call, "text": "yes" }), Trust::Operator),
        house.call("activity.send", json!({ "call_id": call, "text": "more", "end": true }), Trust::Operator),
    ];
    // It woke the run: the next turn answers, one after the other.
    for send in sends {
        let id = send.call_id;
        house.turn(run, vec![send]).await;
        let (end, code, block) = house.end_of(run, id).await;
        assert_eq!((end, code.as_str()), ("tool.completed", ""), "{}", block.text);
    }
    let (output, exit) = house.output(call).await;
    assert_eq!(String::from_utf8_lossy(&output), "proceed? got yes\nmore\nend\n");
    assert!(exit.is_success());
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_freeze_ends_the_activities_that_it_names_and_no_others() {
    let command = "sleep 600 & echo up; wait";
    let house = house(command, "1h").await;
    let executor = house.executor();
    let ((_, ended), (_, left)) = (begin(&house, command).await, begin(&house, command).await);
    house.frame(ended, "up").await;
    house.frame(left, "up").await;
    let change = serde_json::json!({"version": 1, "stop": [ended]}).to_string();
    let bus = house.engine(Role::Ingress).await.bus().clone();
    bus.publish_core(&bus::subject::svc("tool-executor", "freeze"), bus::Headers::new(), change).await.unwrap();
    let (_, exit) = house.output(ended).await;
    assert_eq!(exit.reason, "cancelled");
    until(|| processes(ended) == 0).await;
    assert!(processes(left) > 0, "what was not named goes on");
    house.close(vec![executor]).await;
}
