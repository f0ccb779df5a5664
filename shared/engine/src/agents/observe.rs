//! What is wrong with the rules of an agent for its signals. The observer compiles what passes here; it reads every line
//! of output with it, so what could be slow or large is refused before it gets there.

use kernel::observe::{
    Anomaly, FieldOp, Machine, Meaning, ObserveRule, PACK_ALIASES, PACKS, RecordRule, Threshold, WakeWhen,
};
use regex::{Regex, RegexBuilder};

use super::file::Problem;
use crate::matching::Filter;

/// Most bytes of a pattern as it is written, and of what it compiles to.
const PATTERN_BYTES: usize = 2048;
const COMPILED_BYTES: usize = 1 << 20;
/// Most patterns and expressions of one rule.
const MAX_PATTERNS: usize = 400;
const MAX_RECORDS: usize = 64;
const MAX_WINDOWS: usize = 32;
/// What a window may remember.
const MAX_COUNT: u32 = 10_000;

/// The first thing that is wrong with a rule.
pub(super) fn problem(rule: &ObserveRule) -> Option<Problem<'_>> {
    if rule.service.is_some() {
        let message = "a rule of `observe` is about the output of a `tool`: what is said about the lines of a service \
                       stands under `observe` of that service in `watch`";
        return Some(Problem::new("service", message));
    }
    if rule.tool.is_none() {
        return Some(Problem::new("observe", "a rule of `observe` needs the `tool` whose output it is for"));
    }
    lines_problem(rule).or_else(|| exit_problem(rule))
}

/// The first thing that is wrong with what is said about the lines of a service.
pub(super) fn of_service(rule: &ObserveRule) -> Option<Problem<'_>> {
    if let Some(named) = rule.tool.as_ref().or(rule.service.as_ref()) {
        let message = "`observe` in `watch` is about the service that is watched: leave `tool` and `service` out";
        return Some(Problem::new(named, message));
    }
    let no_use = [
        (
            rule.silence.is_some(),
            "silence",
            "that a service says nothing is a rule of `health`: `silence: 2m` with a `name`",
        ),
        (!rule.exit.is_empty(), "exit", "a service has no exit status: leave `exit` out of `observe` in `watch`"),
        (!rule.progress.is_empty(), "progress", "a service has no end that it comes nearer to: leave `progress` out"),
    ];
    let no_use = no_use.into_iter().find(|(is_there, ..)| *is_there);
    no_use
        .map(|(_, field, message)| Problem::new(field, message))
        .or_else(|| service_record_problem(rule))
        .or_else(|| service_escalation_problem(rule))
        .or_else(|| lines_problem(rule))
}

fn service_record_problem(rule: &ObserveRule) -> Option<Problem<'_>> {
    let record = rule.records.iter().find(|record| record.means == Meaning::Progress)?;
    let near = record.path.as_deref().or(record.condition.as_deref()).unwrap_or("records");
    Some(Problem::new(near, "a service has no end that it comes nearer to: a record of it can't mean `progress`"))
}

fn service_escalation_problem(rule: &ObserveRule) -> Option<Problem<'_>> {
    let never = |anomaly: &Anomaly| matches!(anomaly, Anomaly::Silence | Anomaly::Contradiction);
    rule.escalate.iter().find_map(|escalation| {
        if escalation.wake == WakeWhen::End {
            return Some(Problem::new("end", "a service has no end: `wake` is `now`, `settled` or `never` in `watch`"));
        }
        let words = "`on` in `watch` is any of failure, threshold, stage, heartbeat and burst: rules of `health` start a run \
                     whenever they fire";
        escalation.on.iter().any(never).then(|| Problem::new("escalate", words))
    })
}

fn lines_problem(rule: &ObserveRule) -> Option<Problem<'_>> {
    amount_problem(rule)
        .or_else(|| rule.packs.iter().find_map(|pack| pack_problem(pack)))
        .or_else(|| lines(rule).find_map(|pattern| pattern_problem(pattern)))
        .or_else(|| rule.records.iter().find_map(record_problem))
        .or_else(|| rule.thresholds.iter().find_map(threshold_problem))
        .or_else(|| rule.machines.iter().find_map(machine_problem))
        .or_else(|| rule.heartbeats.iter().find_map(heartbeat_problem))
}

fn lines(rule: &ObserveRule) -> impl Iterator<Item = &String> {
    rule.failure.iter().chain(&rule.success).chain(&rule.progress).chain(&rule.ignore)
}

fn amount_problem(rule: &ObserveRule) -> Option<Problem<'_>> {
    let windows = rule.thresholds.len() + rule.machines.len() + rule.heartbeats.len();
    [(lines(rule).count(), MAX_PATTERNS, "patterns"), (rule.records.len(), MAX_RECORDS, "rules about records")]
        .into_iter()
        .chain([(windows, MAX_WINDOWS, "thresholds, machines and heartbeats together")])
        .find(|(have, most, _)| have > most)
        .map(|(have, most, what)| {
            Problem::new("observe", format!("a rule of `observe` has {have} {what}, more than the {most} that may be"))
        })
}

fn pack_problem(pack: &str) -> Option<Problem<'_>> {
    let known = PACKS.contains(&pack) || PACK_ALIASES.iter().any(|(alias, _)| *alias == pack);
    (!known).then(|| Problem::new(pack, format!("there is no pack `{pack}`: there are {}", PACKS.join(", "))))
}

/// A text that is no regular expression is taken as it stands, such as `error[E`. One that asks for what cannot be matched
/// in time that grows with the line alone was meant as an expression, and is refused.
fn pattern_problem(pattern: &str) -> Option<Problem<'_>> {
    if pattern.is_empty() {
        let message = "a rule of `observe` has an empty pattern, which fits every line: leave it out";
        return Some(Problem::new("observe", message));
    }
    if pattern.len() > PATTERN_BYTES {
        let message = format!("a pattern may have {PATTERN_BYTES} bytes, this has {}: shorten it", pattern.len());
        return Some(Problem::new(pattern, message));
    }
    match compile(pattern) {
        Ok(regex) if regex.is_match("") => Some(Problem::new(
            pattern,
            format!("`{pattern}` fits every line, also an empty one: say what the line must hold"),
        )),
        Err(regex::Error::CompiledTooBig(_)) => Some(Problem::new(
            pattern,
            format!("`{pattern}` is too large to be matched on every line: use smaller counts in its `{{}}`"),
        )),
        Err(error) if asks_too_much(pattern) => Some(Problem::new(
            pattern,
            format!(
                "`{pattern}` looks around or back, which takes more than linear time ({}): write it without, and name \
                 what is to be left out under `ignore`",
                last_line(&error)
            ),
        )),
        Ok(_) | Err(_) => None,
    }
}

fn compile(pattern: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(pattern).size_limit(COMPILED_BYTES).build()
}

fn asks_too_much(pattern: &str) -> bool {
    let looks = ["(?=", "(?!", "(?<=", "(?<!", "(?>", "(?("].iter().any(|part| pattern.contains(part));
    let back = pattern.as_bytes().windows(2).any(|pair| pair[0] == b'\\' && (b'1'..=b'9').contains(&pair[1]));
    looks || back
}

fn last_line(error: &regex::Error) -> String {
    error.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

/// A pattern where only a regular expression makes sense.
fn expression_problem(pattern: &str) -> Option<Problem<'_>> {
    if pattern.is_empty() {
        return Some(Problem::new("observe", "a rule of `observe` has an empty pattern, which fits every line"));
    }
    pattern_problem(pattern).or_else(|| {
        let error = compile(pattern).err()?;
        Some(Problem::new(pattern, format!("`{pattern}` is no regular expression: {}", last_line(&error))))
    })
}

fn record_problem(rule: &RecordRule) -> Option<Problem<'_>> {
    match (&rule.path, &rule.condition) {
        (None, None) => {
            Some(Problem::new("records", "a rule of `records` needs the `path` of a field, or `where`: say which"))
        }
        (Some(path), Some(_)) => Some(Problem::new(
            path,
            "a rule of `records` has both `path` and `where`: put the field into the expression, as `data.field`",
        )),
        (None, Some(condition)) => {
            let error = Filter::compile(condition).err()?;
            Some(Problem::new(condition, format!("`where` of a rule of `records`: {error}")))
        }
        (Some(path), None) => field_problem(path, rule),
    }
}

fn field_problem<'a>(path: &'a str, rule: &'a RecordRule) -> Option<Problem<'a>> {
    if path.split('.').any(|part| part.trim().is_empty()) || path.len() > 200 {
        return Some(Problem::new(path, format!("`{path}` is no path of a field: write names with dots between them")));
    }
    let value = rule.value.as_ref();
    let wants = match rule.op {
        FieldOp::Exists | FieldOp::Missing if value.is_some() => {
            Some("no `value`: or say how to compare, such as `op: eq`")
        }
        FieldOp::Exists | FieldOp::Missing => None,
        FieldOp::Lt | FieldOp::Le | FieldOp::Gt | FieldOp::Ge if !value.is_some_and(serde_json::Value::is_number) => {
            Some("a number as `value`")
        }
        FieldOp::Contains | FieldOp::Matches if !value.is_some_and(serde_json::Value::is_string) => {
            Some("a text as `value`")
        }
        _ if value.is_none() => Some("a `value` to compare with"),
        _ => None,
    };
    if let Some(wants) = wants {
        return Some(Problem::new(path, format!("the rule about the field `{path}` needs {wants}")));
    }
    let pattern = value.and_then(serde_json::Value::as_str).filter(|_| rule.op == FieldOp::Matches)?;
    expression_problem(pattern)
}

fn threshold_problem(threshold: &Threshold) -> Option<Problem<'_>> {
    let id = threshold.id.as_str();
    if id.is_empty() {
        return Some(Problem::new("thresholds", "a threshold needs an `id`: reports call it by that"));
    }
    if threshold.pattern.is_some() == threshold.path.is_some() {
        return Some(Problem::new(id, format!("threshold `{id}` needs either `match` or `path`: what it counts")));
    }
    if threshold.count == 0 || threshold.count > MAX_COUNT {
        return Some(Problem::new(id, format!("threshold `{id}` needs a `count` from 1 to {MAX_COUNT}")));
    }
    if threshold.within.as_millis() == 0 {
        return Some(Problem::new(id, format!("threshold `{id}` needs a time: such as `within: 60s`")));
    }
    let bounded = threshold.above.is_some() || threshold.below.is_some();
    let finite = threshold.above.into_iter().chain(threshold.below).all(f64::is_finite);
    if !finite || (threshold.path.is_some() && !bounded) {
        return Some(Problem::new(id, format!("threshold `{id}` needs `above` or `below`: a number to compare with")));
    }
    let pattern = threshold.pattern.as_deref()?;
    if bounded && !pattern.contains("<value>") {
        let message = format!("threshold `{id}` compares a number: name its place in `match`, as `(?P<value>\\d+)`");
        return Some(Problem::new(id, message));
    }
    expression_problem(pattern)
}

fn machine_problem(machine: &Machine) -> Option<Problem<'_>> {
    let id = machine.id.as_str();
    if id.is_empty() || machine.stages.len() < 2 || machine.stages.len() > 16 {
        let message = "a machine needs an `id` and from 2 to 16 `stages`, in their order";
        return Some(Problem::new(if id.is_empty() { "machines" } else { id }, message));
    }
    if let Some(stage) = machine.stages.iter().find(|stage| stage.name.trim().is_empty()) {
        let near = if stage.enter.is_empty() { id } else { stage.enter.as_str() };
        return Some(Problem::new(near, format!("a stage of machine `{id}` has no `name`")));
    }
    machine.stages.iter().find_map(|stage| expression_problem(&stage.enter))
}

fn heartbeat_problem(heartbeat: &kernel::observe::Heartbeat) -> Option<Problem<'_>> {
    let id = heartbeat.id.as_str();
    if id.is_empty() || heartbeat.every.as_millis() == 0 {
        let message = "a heartbeat needs an `id` and a time: such as `every: 60s`";
        return Some(Problem::new(if id.is_empty() { "heartbeats" } else { id }, message));
    }
    expression_problem(&heartbeat.pattern)
}

fn exit_problem(rule: &ObserveRule) -> Option<Problem<'_>> {
    let wrong = |exit: &&kernel::observe::ExitRule| {
        exit.codes.is_empty() || !matches!(exit.means, Meaning::Success | Meaning::Failure)
    };
    rule.exit.iter().find(wrong).map(|_| {
        Problem::new("exit", "a rule of `exit` needs `codes` and what they mean: `means: success` or `means: failure`")
    })
}

#[cfg(test)]
mod tests {
    use super::super::file::parse;

    fn error(rules: &str) -> (Option<u64>, String) {
        let yaml = format!("name: a\nmodel: scripted:a\ninstructions: x\nobserve:\n  - tool: shell.run\n{rules}");
        let error = parse(&yaml).unwrap_err();
        (error.line, error.message)
    }

    #[test]
    fn a_rule_of_every_kind_is_taken() {
        let yaml = r#"name: a
model: scripted:a
instructions: x
observe:
  - tool: shell.run
    packs: [cargo, pytest]
    failure: ["error[E"]
    ignore: ["^warning"]
    records:
      - { path: level, op: eq, value: error }
      - { where: "data.status >= 500 && data.path.startsWith('/v1')", means: failure }
    thresholds:
      - { id: retries, match: "retrying", count: 10, within: 60s }
      - { id: slow, path: took_ms, above: 2000, count: 3, within: 5m }
      - { id: queue, match: "depth=(?P<value>\\d+)", above: 100, within: 1m }
    machines:
      - id: deploy
        stages:
          - { name: started, enter: "^Deploying", within: 60s }
          - { name: done, enter: "rolled out" }
    heartbeats: [{ id: alive, match: "still running", every: 60s }]
    exit: [{ codes: [0, 2], means: success }]
    escalate: [{ on: [failure], rule: "cargo.*", wake: now }, { on: [silence], wake: never }]
"#;
        let spec = parse(yaml).unwrap();
        assert_eq!(spec.observe[0].machines[0].stages.len(), 2);
        let stored = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<kernel::agent::AgentSpec>(&stored).unwrap(), spec);
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_line_and_a_remedy() {
        for (rules, line, expect) in [
            ("    packs: [carg]\n", 6, "there is no pack `carg`"),
            ("    failure: [\"a(?=b)\"]\n", 6, "linear time"),
            ("    failure: ['(a)\\1']\n", 6, "linear time"),
            ("    ignore: [\".*\"]\n", 6, "fits every line"),
            ("    failure: ['\\w{1000}{1000}']\n", 6, "too large"),
            ("    records:\n      - { means: failure }\n", 6, "`path`"),
            ("    records:\n      - { path: size, op: gt, value: x }\n", 7, "number"),
            ("    records:\n      - { where: \"level == 1\" }\n", 7, "`level` is not a variable"),
            ("    thresholds:\n      - { id: tries, match: x, count: 3 }\n", 7, "within"),
            ("    thresholds:\n      - { id: tries, match: x, above: 3, within: 1s }\n", 7, "(?P<value>"),
            ("    machines:\n      - { id: deploy, stages: [{ name: one, enter: x }] }\n", 7, "2 to 16"),
            ("    heartbeats: [{ id: beat, match: x }]\n", 6, "every"),
            ("    exit: [{ codes: [1], means: progress }]\n", 6, "success"),
            ("    failures: [x]\n", 6, "failures"),
            ("    service: shop\n", 6, "in `watch`"),
        ] {
            let (at, message) = error(rules);
            assert!(message.contains(expect), "{rules}: {message}");
            assert_eq!(at, Some(line), "{rules}: {message}");
        }
    }
}
