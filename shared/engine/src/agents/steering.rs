//! What an agent file says about when a run is done, and about keeping it on its way.

use kernel::{
    acceptance::{Check, Criterion, MAX_CRITERIA},
    agent::{AgentSpec, CONTROLS, PointCheck, Switch},
    child::allows,
};

use super::file::{Problem, is_name, is_tool_name};

/// Longest time that a check of the operator's own may take: a turn waits for it.
const MAX_TIMEOUT_SECONDS: u64 = 30;
/// Most such checks.
const MAX_CHECKS: usize = 16;

pub(super) fn problem(spec: &AgentSpec) -> Option<Problem<'_>> {
    controls_problem(spec)
        .or_else(|| evaluator_problem(spec))
        .or_else(|| spec.acceptance.iter().find_map(|criterion| criterion_problem(spec, criterion)))
        .or_else(|| count_problem(spec))
        .or_else(|| checks_problem(spec))
}

fn controls_problem(spec: &AgentSpec) -> Option<Problem<'_>> {
    let known = CONTROLS.join(", ");
    let unknown = spec.controls.0.keys().find(|name| !CONTROLS.contains(&name.as_str()));
    if let Some(name) = unknown {
        return Some(Problem::new(name, format!("there is no control `{name}`; there are: {known}")));
    }
    let words = ["on", "off", "auto", "extract", "yes", "no", "true", "false", "never"];
    let bad = spec.controls.0.iter().find_map(|(name, switch)| match switch {
        Switch::Word(word) if !words.contains(&word.as_str()) => Some((name, word)),
        _ => None,
    });
    bad.map(|(name, word)| {
        Problem::new(word, format!("`{name}` cannot be `{word}`: write on, off, auto, or for `compaction` extract"))
    })
}

fn evaluator_problem(spec: &AgentSpec) -> Option<Problem<'_>> {
    let agent = spec.evaluator.as_ref()?;
    if !is_name(agent) {
        return Some(Problem::new(agent, format!("`{agent}` in `evaluator` is not the name of an agent")));
    }
    let itself = *agent == spec.name;
    itself.then(|| Problem::new("evaluator", "an agent cannot be its own `evaluator`: name another one"))
}

fn criterion_problem<'a>(spec: &'a AgentSpec, criterion: &'a Criterion) -> Option<Problem<'a>> {
    if criterion.text().trim().is_empty() {
        return Some(Problem::new("acceptance", "a criterion in `acceptance` is empty: say what must hold"));
    }
    match criterion.check()? {
        Check::Evaluator(agent) if !is_name(agent) || *agent == spec.name => {
            Some(Problem::new(agent, format!("`{agent}` cannot look into a criterion: name another agent")))
        }
        Check::Evaluator(_) => None,
        Check::Artifact(check) if check.name.trim().is_empty() => {
            Some(Problem::new("artifact", "`artifact` of a criterion needs the `name` of one"))
        }
        Check::Artifact(_) => None,
        check @ (Check::Command(_) | Check::Tool(_)) => {
            let (tool, _) = check.call()?;
            let tools = spec.tools.iter().cloned().collect();
            let missing = !allows(&tools, tool);
            let words = format!("a criterion is checked with `{tool}`, which is not among the agent's `tools`: add it");
            missing.then(|| Problem::new(criterion.text(), words))
        }
    }
}

fn count_problem(spec: &AgentSpec) -> Option<Problem<'_>> {
    let too_many = spec.acceptance.len() > MAX_CRITERIA;
    too_many.then(|| Problem::new("acceptance", format!("`acceptance` has more than {MAX_CRITERIA} criteria")))
}

fn checks_problem(spec: &AgentSpec) -> Option<Problem<'_>> {
    if spec.checks.len() > MAX_CHECKS {
        return Some(Problem::new("checks", format!("`checks` are more than {MAX_CHECKS}")));
    }
    spec.checks.iter().find_map(check_problem)
}

fn check_problem(check: &PointCheck) -> Option<Problem<'_>> {
    if !is_name(&check.name) {
        return Some(Problem::new(&check.name, "`name` of a check must be 1 to 63 of a-z, 0-9 and `-`"));
    }
    let words = match (&check.url, &check.responder) {
        (Some(_), Some(_)) | (None, None) => "a check has either a `url` or a `responder` on NATS".to_owned(),
        (None, Some(responder)) if !is_tool_name(responder) || responder.contains('.') => {
            format!(
                "`{responder}` is no `responder`: use letters, digits, `_` and `-`; it is asked on svc.checks.<responder>"
            )
        }
        (Some(url), None) if !is_safe(url) => {
            format!("`{url}` is no `url` of a check: write https://…, or http:// on 127.0.0.1 or localhost")
        }
        (Some(_), None) if check.secret.is_none() => {
            "a check with a `url` needs a `secret`, as `secret:NAME`: it signs what is sent".to_owned()
        }
        _ if check.secret.as_ref().is_some_and(|secret| !secret.starts_with("secret:")) => {
            "`secret` of a check names one, as `secret:NAME`, and does not hold it".to_owned()
        }
        _ if check.timeout.as_millis() == 0 || check.timeout.as_millis() > MAX_TIMEOUT_SECONDS * 1000 => {
            format!("`timeout` of a check is more than 0 and at most {MAX_TIMEOUT_SECONDS}s: a turn waits for it")
        }
        _ => return None,
    };
    Some(Problem::new(&check.name, words))
}

/// Whether what is sent there can be read by nobody on the way.
fn is_safe(url: &str) -> bool {
    let loopback = ["http://127.0.0.1", "http://localhost", "http://[::1]"];
    let after = |rest: &str| rest.is_empty() || rest.starts_with([':', '/']);
    url.starts_with("https://") || loopback.iter().any(|base| url.strip_prefix(base).is_some_and(after))
}

#[cfg(test)]
mod tests {
    use super::super::file::parse;

    fn problem(more: &str) -> String {
        let yaml = format!("name: a\nmodel: scripted:x\ninstructions: Do it.\ntools: [shell.run]\n{more}\n");
        parse(&yaml).map_or_else(|error| error.to_string(), |_| String::new())
    }

    #[test]
    fn what_cannot_be_is_said_with_a_remedy() {
        for (more, word) in [
            ("controls: { drfit: off }", "drift"),
            ("controls: { compaction: sometimes }", "extract"),
            ("evaluator: a", "another"),
            ("acceptance: [{text: x, check: {tool: {tool: http.get}}}]", "add it"),
            ("acceptance: [{text: x, check: {evaluator: a}}]", "another agent"),
            ("acceptance: [\" \"]", "empty"),
            ("checks: [{name: c, at: before_model}]", "either"),
            ("checks: [{name: c, at: before_model, url: 'http://a.example/'}]", "https"),
            ("checks: [{name: c, at: before_model, url: 'http://localhost.a.example/'}]", "https"),
            ("checks: [{name: c, at: before_model, url: 'https://a.example/'}]", "secret"),
            ("checks: [{name: c, at: before_model, responder: a.b}]", "responder"),
            ("checks: [{name: c, at: before_model, responder: a, timeout: 2m}]", "30s"),
            ("checks: [{name: c, at: in_between, responder: a}]", "before_model"),
        ] {
            assert!(problem(more).contains(word), "{more}: {}", problem(more));
        }
    }

    #[test]
    fn what_people_write_is_read() {
        for more in [
            "controls: { evaluator: on, drift: on, compaction: auto, reset: 200 }",
            "controls: { evaluator: off, drift: false, compaction: extract }",
            "acceptance: [done, {text: tests pass, check: {command: make test}}]",
            "evaluator: judge",
            "checks: [{name: c, at: at_end, responder: desk, timeout: 500ms, default: allow}]",
            "checks: [{name: c, at: before_tool, url: 'https://a.example/x', secret: 'secret:DESK'}]",
        ] {
            assert_eq!(problem(more), "", "{more}");
        }
    }
}
