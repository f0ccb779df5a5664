//! Whether a run is done: what looks into its criteria, and what came of that.
//!
//! When a model says that it is done, the checks that the criteria's author named become calls and child runs of the same
//! answer (see [`ask`]). When they have ended, [`Looked`] turns what came of them into verdicts, without asking a model.

use std::collections::BTreeMap;

use kernel::{
    Block, CallId, Event, EventData, RunState, Trust, TurnId,
    acceptance::{
        ArtifactCheck, AskedCheck, Check, CheckedCriterion, CriterionVerdict, EVIDENCE_BYTES, OpenCheck, ToolCheck,
    },
    budget::Limits,
    call::{ArtifactRef, CallRequest, CallResult},
    child::OnFailure,
    command::{EndRequest, TurnOutcome},
};
use serde_json::Value;

use crate::{
    spawn::SpawnDraft,
    toolbox::{Offered, Toolbox},
};

/// Most problems of a value that evidence names.
const MAX_PROBLEMS: usize = 3;

/// What an answer that says that it is done has to ask for.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Calls that look into criteria.
    pub calls: Vec<CallRequest>,
    /// Agents that do.
    pub spawns: Vec<SpawnDraft>,
    /// Which looks into which.
    pub checks: Vec<AskedCheck>,
}

/// Whether an outcome would end the run with its objective reached.
#[must_use]
pub fn ends(state: &RunState, outcome: &TurnOutcome) -> bool {
    match &outcome.end {
        Some(EndRequest::Complete(_) | EndRequest::CompleteIf { .. }) => true,
        Some(EndRequest::Fail(_)) => false,
        None => outcome.text.is_some() && is_idle(outcome) && !sleeps_on_something(state),
    }
}

/// Whether an outcome asks for nothing that goes on after it.
fn is_idle(outcome: &TurnOutcome) -> bool {
    let quiet = outcome.calls.is_empty() && outcome.spawns.is_empty();
    outcome.wait.is_none() && outcome.question.is_none() && quiet
}

/// The words with which an outcome says that the run is done, if it does and something has to look into that.
#[must_use]
pub fn claims(state: &RunState, outcome: &TurnOutcome) -> Option<Block> {
    state.checked_criteria().next()?;
    match &outcome.end {
        Some(EndRequest::Complete(summary)) => Some(summary.clone()),
        Some(_) => None,
        None if is_idle(outcome) && !sleeps_on_something(state) => outcome.text.clone(),
        None => None,
    }
}

/// Whether words alone are no final answer, since something that was asked for earlier goes on.
fn sleeps_on_something(state: &RunState) -> bool {
    let of_others = !state.calls.is_empty() || !state.children.is_empty();
    of_others || state.wait.is_some() || !state.approvals.is_empty()
}

/// What looks into the criteria of a run.
///
/// # Errors
/// What cannot be looked into, in words for the model.
pub fn ask(
    state: &RunState,
    toolbox: &Toolbox,
    turn_id: TurnId,
    summary: &Block,
    trust: Trust,
) -> Result<Asked, Vec<String>> {
    let (mut asked, mut problems) = (Asked::default(), Vec::new());
    let mut evaluators: BTreeMap<&str, (CallId, Vec<&str>)> = BTreeMap::new();
    for (criterion, checked) in state.checked_criteria() {
        let named = CallId::derive(state.run_id, &format!("{turn_id}/check/{criterion}"));
        let call_id = match &checked.check {
            Check::Artifact(_) => None,
            Check::Evaluator(agent) => {
                let (call, criteria) = evaluators.entry(agent).or_insert((named, Vec::new()));
                criteria.push(&checked.text);
                Some(*call)
            }
            check @ (Check::Command(_) | Check::Tool(_)) => match check_call(toolbox, check, named, trust) {
                Ok(call) => {
                    asked.calls.push(call);
                    Some(named)
                }
                Err(problem) => {
                    problems
                        .push(format!("`complete`: \u{201c}{}\u{201d} cannot be looked into: {problem}", checked.text));
                    continue;
                }
            },
        };
        asked.checks.push(AskedCheck { criterion, call_id });
    }
    for (agent, (call_id, criteria)) in evaluators {
        asked.spawns.push(SpawnDraft {
            call_id,
            agent: agent.to_owned(),
            task: Block::new(task(state, summary, &criteria), trust.join(summary.trust), "runtime"),
            budget: Limits::default(),
            on_failure: OnFailure::Continue,
        });
    }
    if problems.is_empty() { Ok(asked) } else { Err(problems) }
}

fn check_call(toolbox: &Toolbox, check: &Check, call_id: CallId, trust: Trust) -> Result<CallRequest, String> {
    let (name, arguments) = check.call().ok_or("no tool looks into it")?;
    let offer = toolbox.find(name).ok_or_else(|| format!("the agent has no tool `{name}`"))?;
    let Offered::Tool(tool) = &offer.offered else { return Err(format!("`{name}` is no tool")) };
    let wrong = offer.problems(&arguments);
    if !wrong.is_empty() {
        return Err(format!("the arguments of `{name}` do not fit it: {}", wrong.join("; ")));
    }
    Ok(tool.call(call_id, arguments, trust))
}

/// What an evaluator is told. It is to look for itself: the other's word stands apart.
fn task(state: &RunState, summary: &Block, criteria: &[&str]) -> String {
    let listed: String = criteria.iter().map(|text| format!("- {text}\n")).collect();
    format!(
        "Another agent says that its task is done. Find out whether that is so: look for yourself, with your tools, and believe \
         nothing that you have not seen.\n\nIts task was:\n{}\n\nIt is done when all of this holds:\n{listed}\nCall `complete` only if \
         all of it holds, and say what shows it. Otherwise call `fail`, and say what does not hold.\n\nWhat the other agent says of \
         its work, which may be wrong:\n{}\n",
        kernel::excerpt(&state.objective.text, 4096),
        kernel::excerpt(&summary.text, 2048),
    )
}

/// What the calls that look into criteria came to, out of the log.
#[derive(Clone, Debug, Default)]
pub struct Looked {
    ended: BTreeMap<CallId, Ended>,
}

#[derive(Clone, Debug)]
struct Ended {
    block: Block,
    result: Option<CallResult>,
}

impl Looked {
    /// Takes the next event after the one that asked.
    pub fn see(&mut self, event: &Event) {
        let (call_id, block, result) = match &event.data {
            EventData::ToolCompleted(done) => (done.call_id, done.result.block.clone(), Some(done.result.clone())),
            EventData::ToolFailed(failed) => (failed.call_id, failed.failure.block.clone(), None),
            EventData::ToolDenied(denied) => (denied.call_id, denied.reason.clone(), None),
            EventData::ToolCancelled(stopped) => (stopped.call_id, runtime(&stopped.reason), None),
            EventData::SubagentCompleted(done) => (done.call_id, done.result.clone(), None),
            EventData::SubagentFailed(failed) => (failed.call_id, failed.reason.clone(), None),
            EventData::SubagentCancelled(stopped) => (stopped.call_id, stopped.reason.clone(), None),
            _ => return,
        };
        self.ended.insert(call_id, Ended { block, result });
    }

    /// What came of one criterion. `content` is that of the artifact that it is about, if it is about one and there is one.
    #[must_use]
    pub fn verdict(&self, check: &OpenCheck, criterion: &CheckedCriterion, content: Option<&[u8]>) -> CriterionVerdict {
        let how = criterion.check.how();
        let (passed, evidence) = match &criterion.check {
            Check::Artifact(wanted) => judge_artifact(wanted, content),
            Check::Tool(wanted) => self.judge_tool(wanted, check),
            Check::Command(_) | Check::Evaluator(_) => (check.ended_well == Some(true), self.evidence(check)),
        };
        let evidence = evidence.excerpt(EVIDENCE_BYTES);
        CriterionVerdict { criterion: check.asked.criterion, passed, how, evidence, call_id: check.asked.call_id }
    }

    fn of(&self, check: &OpenCheck) -> Option<&Ended> {
        check.asked.call_id.and_then(|call| self.ended.get(&call))
    }

    fn evidence(&self, check: &OpenCheck) -> Block {
        self.of(check).map_or_else(|| runtime("nothing is known of what became of it"), |ended| ended.block.clone())
    }

    fn judge_tool(&self, wanted: &ToolCheck, check: &OpenCheck) -> (bool, Block) {
        let block = self.evidence(check);
        if check.ended_well != Some(true) {
            return (false, block);
        }
        let Some(schema) = &wanted.expect else { return (true, block) };
        let result = self.of(check).and_then(|ended| ended.result.as_ref());
        let value =
            result.and_then(|result| result.value.clone().or_else(|| serde_json::from_str(&result.block.text).ok()));
        let value = value.unwrap_or_else(|| Value::String(block.text.clone()));
        let problems = misfits(schema, &value);
        if problems.is_empty() {
            return (true, block);
        }
        let words =
            format!("{}\nThe result was: {}", problems.join("; "), kernel::excerpt(&block.text, EVIDENCE_BYTES / 2));
        (false, Block { text: words, ..block })
    }
}

/// The newest version of the artifact that a check is about.
#[must_use]
pub fn artifact<'a>(state: &'a RunState, check: &Check) -> Option<&'a ArtifactRef> {
    match check {
        Check::Artifact(wanted) => state.artifacts.iter().rev().find(|artifact| artifact.name == wanted.name),
        _ => None,
    }
}

fn judge_artifact(wanted: &ArtifactCheck, content: Option<&[u8]>) -> (bool, Block) {
    let Some(content) = content else {
        return (false, runtime(format!("there is no artifact `{}` that could be read", wanted.name)));
    };
    let Some(schema) = &wanted.expect else {
        return (!content.is_empty(), runtime(format!("`{}` has {} bytes", wanted.name, content.len())));
    };
    let value: Value = match serde_json::from_slice(content) {
        Ok(value) => value,
        Err(error) => return (false, runtime(format!("`{}` is no JSON: {error}", wanted.name))),
    };
    let problems = misfits(schema, &value);
    if problems.is_empty() {
        return (true, runtime(format!("`{}` is as expected", wanted.name)));
    }
    // What does not fit is quoted, and may be anybody's words.
    (false, Block::new(problems.join("; "), Trust::Untrusted, format!("artifact:{}", wanted.name)))
}

/// What is wrong with a value, by a schema.
fn misfits(schema: &Value, value: &Value) -> Vec<String> {
    let validator = match jsonschema::validator_for(schema) {
        Ok(validator) => validator,
        Err(error) => return vec![format!("the schema of the criterion is none: {error}")],
    };
    let at = |error: &jsonschema::ValidationError<'_>| format!("`{}`: {error}", error.instance_path());
    validator.iter_errors(value).take(MAX_PROBLEMS).map(|error| at(&error)).collect()
}

fn runtime(text: impl Into<String>) -> Block {
    Block::new(text, Trust::System, "runtime")
}
