//! What is wrong with what an agent says about services. The observer compiles what passes here.

use kernel::watch::{ActionRule, ErrorLimit, FieldLimit, HealthRule, LineLimit, VerifyStep, Watch};
use regex::RegexBuilder;

use super::file::{Problem, is_tool_name};
use crate::matching::Filter;

/// Most watched services of one agent, and rules of one service.
const MAX_WATCHES: usize = 32;
const MAX_RULES: usize = 32;
/// Most patterns of one action rule, bytes of one as it is written, and of what it compiles to.
const MAX_PATTERNS: usize = 64;
const PATTERN_BYTES: usize = 2048;
const COMPILED_BYTES: usize = 1 << 20;
/// Most ways of cross-checking one conclusion.
const MAX_STEPS: usize = 4;
/// The longest time that is looked back on.
const MAX_OVER_MS: u64 = 24 * 3_600_000;

/// The first thing that is wrong.
pub(super) fn problem<'a>(watches: &'a [Watch], tools: &[String]) -> Option<Problem<'a>> {
    if watches.len() > MAX_WATCHES {
        return say(format!("`watch` has {} services, more than the {MAX_WATCHES} that may be", watches.len()));
    }
    watches.iter().find_map(|watch| of_watch(watch, tools))
}

fn say(message: impl Into<String>) -> Option<Problem<'static>> {
    Some(Problem::new("watch", message))
}

fn of_watch<'a>(watch: &'a Watch, tools: &[String]) -> Option<Problem<'a>> {
    let name = &watch.service;
    if name.is_empty() {
        return say("an entry of `watch` needs a `service`");
    }
    if watch.health.len() > MAX_RULES {
        return say(format!("`watch` of `{name}` has more than the {MAX_RULES} rules that may be"));
    }
    if watch.start.as_ref().is_some_and(|start| start.input.trim().is_empty()) {
        return say(format!("`start` in `watch` of `{name}` needs an `input`: what the run is to reach"));
    }
    let twice =
        watch.health.iter().enumerate().find(|(at, rule)| watch.health[..*at].iter().any(|it| it.name == rule.name));
    if let Some((_, rule)) = twice {
        return say(format!("`watch` of `{name}` has two rules `{}`: name them apart", rule.name));
    }
    let health =
        watch.health.iter().find_map(|rule| of_rule(rule).map(|words| format!("rule `{}`: {words}", rule.name)));
    let is_open = name.ends_with('*') && watch.actions.as_ref().is_some_and(|rule| !rule.after.is_empty());
    if is_open {
        return say(format!("`after` in `watch` of `{name}`: name one service that the tools act on, without `*`"));
    }
    let actions = || watch.actions.as_ref().and_then(|rule| of_actions(rule, tools));
    health
        .or_else(actions)
        .and_then(|words| say(format!("`watch` of `{name}`: {words}")))
        .or_else(|| watch.observe.as_ref().and_then(super::observe::of_service))
}

fn of_rule(rule: &HealthRule) -> Option<String> {
    if rule.name.trim().is_empty() || rule.name.len() > 63 {
        return Some("a rule needs a `name` of 1 to 63 bytes".to_owned());
    }
    let conditions = [rule.errors.is_some(), rule.field.is_some(), rule.lines.is_some(), rule.new_errors.is_some()];
    let conditions = conditions.iter().filter(|is_there| **is_there).count() + usize::from(rule.silence.is_some());
    if conditions != 1 {
        return Some("it needs one of `errors`, `field`, `lines`, `new_errors` and `silence`, and no more".to_owned());
    }
    let overs = [
        rule.errors.as_ref().and_then(|limit| limit.over),
        rule.field.as_ref().and_then(|limit| limit.over),
        rule.lines.as_ref().and_then(|limit| limit.over),
        rule.silence,
    ];
    if overs.into_iter().flatten().any(|over| !(1000..=MAX_OVER_MS).contains(&over.as_millis())) {
        return Some("the time that it looks at must be between 1s and 24h".to_owned());
    }
    rule.errors
        .as_ref()
        .and_then(of_errors)
        .or_else(|| rule.field.as_ref().and_then(of_field))
        .or_else(|| rule.lines.as_ref().and_then(of_lines))
}

fn of_errors(limit: &ErrorLimit) -> Option<String> {
    if limit.count.is_none() && limit.share.is_none() {
        return Some("`errors` needs a `count` or a `share`".to_owned());
    }
    let share = limit.share.is_some_and(|share| !(0.0..1.0).contains(&share));
    share.then(|| "`share` is from 0 to 1, such as 0.2".to_owned())
}

fn of_field(limit: &FieldLimit) -> Option<String> {
    if limit.name.is_empty() {
        return Some("`field` needs the `name` of the attribute".to_owned());
    }
    let numbers = [limit.above, limit.below, limit.clear];
    if numbers.into_iter().flatten().any(|number| !number.is_finite()) {
        return Some("a bound must be a number".to_owned());
    }
    if limit.quantile.is_some_and(|quantile| !(0.0..=1.0).contains(&quantile)) {
        return Some("`quantile` is from 0 to 1, such as 0.95".to_owned());
    }
    if limit.only.keys().chain(limit.only.values()).any(|word| word.is_empty()) {
        return Some("`only` has an empty entry: leave it out".to_owned());
    }
    if limit.rise && (limit.above.is_none() || limit.quantile.is_some()) {
        return Some("`rise` is compared with `above`, and has no `quantile`".to_owned());
    }
    match (limit.above, limit.below, limit.clear) {
        (Some(_), Some(_), _) | (None, None, _) => Some("`field` needs either `above` or `below`".to_owned()),
        (Some(above), _, Some(clear)) if clear > above => Some("`clear` must not be higher than `above`".to_owned()),
        (_, Some(below), Some(clear)) if clear < below => Some("`clear` must not be lower than `below`".to_owned()),
        _ => None,
    }
}

fn of_lines(limit: &LineLimit) -> Option<String> {
    of_pattern(&limit.pattern)
}

fn of_pattern(pattern: &str) -> Option<String> {
    if pattern.is_empty() || pattern.len() > PATTERN_BYTES {
        return Some(format!("a pattern has 1 to {PATTERN_BYTES} bytes, this has {}", pattern.len()));
    }
    match RegexBuilder::new(pattern).size_limit(COMPILED_BYTES).build() {
        Ok(regex) if regex.is_match("") => Some(format!("`{pattern}` fits every line: say what the line must hold")),
        Ok(_) => None,
        Err(error) => Some(format!("`{pattern}` is no regular expression that can be used: {error}")),
    }
}

fn of_actions(rule: &ActionRule, tools: &[String]) -> Option<String> {
    let patterns = rule.success.iter().chain(&rule.failure).chain(rule.stages.iter().map(|stage| &stage.pattern));
    if patterns.clone().count() > MAX_PATTERNS {
        return Some(format!("`actions` has more than the {MAX_PATTERNS} patterns that may be"));
    }
    if let Some(tool) = rule.after.iter().find(|tool| !tools.contains(tool)) {
        return Some(format!("`after` names `{tool}`: add it to the agent's `tools`"));
    }
    if rule.stages.iter().any(|stage| stage.name.trim().is_empty()) {
        return Some("a stage of `actions` needs a `name`".to_owned());
    }
    if rule.within.is_some_and(|within| !(1000..=MAX_OVER_MS).contains(&within.as_millis())) {
        return Some("`within` must be between 1s and 24h".to_owned());
    }
    if rule.verify.len() > MAX_STEPS {
        return Some(format!("`verify` has more than the {MAX_STEPS} steps that may be"));
    }
    patterns
        .into_iter()
        .find_map(|pattern| of_pattern(pattern))
        .or_else(|| rule.verify.iter().find_map(|step| of_step(step, tools)))
}

fn of_step(step: &VerifyStep, tools: &[String]) -> Option<String> {
    if !is_tool_name(&step.tool) || !tools.contains(&step.tool) {
        return Some(format!("`verify` uses `{}`: add it to the agent's `tools`", step.tool));
    }
    let error = Filter::compile(&step.expect).err()?;
    Some(format!("`expect` of `{}`: {error}", step.tool))
}

#[cfg(test)]
mod tests {
    use crate::agents::parse;

    const WATCHER: &str = r#"name: keeper
model: scripted:none
instructions: Watch.
tools: [http.get]
watch:
  - service: orders
    health:
      - name: errors
        errors: { share: 0.2, over: 1m }
      - name: queue
        field: { name: queue.depth, above: 100, clear: 50 }
        for: 30s
      - name: disk
        field: { name: system.filesystem.utilization, only: { state: used }, above: 0.9 }
      - name: failed
        field: { name: http.errors, rise: true, above: 5, over: 5m }
      - name: restarts
        lines: { match: "Started .* in", count: 3, over: 10m }
      - name: new
        new_errors: {}
      - name: silence
        silence: 2m
    observe:
      packs: [kubernetes, traces]
      failure: ["declined by the bank"]
      success: ["the bank is back"]
      ignore: ["test card"]
      records: [{ path: http.status, op: ge, value: 500 }, { where: "data.took_ms > 3000" }]
      thresholds: [{ id: retries, match: "retrying", count: 10, within: 60s }]
      machines:
        - { id: restart, stages: [{ name: begun, enter: "shutting down", within: 60s }, { name: done, enter: "ready" }] }
      heartbeats: [{ id: tick, match: "scheduler ran", every: 30s }]
      settle: 2s
      escalate: [{ on: [burst], rule: learned, wake: settled }]
    actions:
      success: ["order .* shipped"]
      stages: [{ name: accepted, match: "accepted" }]
      within: 30s
      verify:
        - tool: http.get
          arguments: { url: "http://orders/{request_id}" }
          expect: data.result.state == "shipped"
    start: { input: "Look after the orders." }
"#;

    #[test]
    fn a_watched_service_reads() {
        let spec = parse(WATCHER).unwrap();
        assert_eq!(spec.watch[0].health.len(), 7);
        let lines = spec.watch[0].observe.as_ref().unwrap();
        assert_eq!((lines.records.len(), lines.machines[0].stages.len()), (2, 2));
        assert!(spec.watch[0].says_what_life_is());
        let bare = "name: keeper\nmodel: scripted:none\ninstructions: Watch.\nwatch: [{ service: \"shop-*\" }]\n";
        assert!(!parse(bare).unwrap().watch[0].says_what_life_is(), "the pace of its lines is enough");
        assert!(spec.watch[0].is_about("orders") && !spec.watch[0].is_about("orders2"));
    }

    #[test]
    fn each_mistake_has_a_remedy() {
        for (from, to, expect) in [
            ("service: orders", "service: \"\"", "needs a `service`"),
            ("only: { state: used }", "only: { state: \"\" }", "`only` has an empty entry"),
            ("rise: true, above: 5", "rise: true, below: 5", "compared with `above`"),
            ("rise: true, above: 5", "rise: true, above: 5, quantile: 0.9", "no `quantile`"),
            ("errors: { share: 0.2, over: 1m }", "clear_after: 1m", "needs one of"),
            ("share: 0.2", "share: 20", "from 0 to 1"),
            ("clear: 50", "clear: 500", "not be higher"),
            ("name: queue\n", "name: errors\n", "two rules"),
            ("\"Started .* in\"", "\".*\"", "fits every line"),
            ("over: 10m", "over: 10d", "24h"),
            ("tools: [http.get]", "tools: []", "agent's `tools`"),
            ("data.result.state", "dta.state", "`expect`"),
            ("input: \"Look after the orders.\"", "input: \"\"", "`input`"),
            ("packs: [kubernetes, traces]", "packs: [kubernets]", "there is no pack `kubernets`"),
            ("\"declined by the bank\"", "\"(?=declined)\"", "linear time"),
            ("op: ge, value: 500", "op: ge, value: x", "needs a number"),
            ("\"data.took_ms > 3000\"", "\"took_ms > 3000\"", "`where`"),
            ("\"data.took_ms > 3000\"", "\"data.done\", means: progress", "can't mean `progress`"),
            ("      settle: 2s\n", "      tool: shell.run\n", "leave `tool` and `service` out"),
            ("      settle: 2s\n", "      silence: 2m\n", "rule of `health`"),
            ("      settle: 2s\n", "      exit: [{ codes: [1], means: success }]\n", "no exit status"),
            ("      settle: 2s\n", "      progress: [\"at \\\\d+\"]\n", "leave `progress` out"),
            ("wake: settled", "wake: end", "has no end"),
            ("on: [burst]", "on: [silence]", "failure, threshold"),
        ] {
            let yaml = WATCHER.replacen(from, to, 1);
            assert_ne!(yaml, WATCHER, "{from}");
            let error = parse(&yaml).unwrap_err().to_string();
            assert!(error.contains(expect), "{to}: {error}");
        }
    }
}
