//! What a run hands over: what was asked, what was done, how each criterion was verified, what is left, and what it cost. Of a
//! run that failed or was cancelled as well.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    acceptance::{Criterion, CriterionVerdict},
    event::{Outcome, Rule, StepStatus},
    ids::RunId,
    state::RunState,
};

/// The report of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// Which run.
    pub run_id: RunId,
    /// What was asked.
    pub objective: String,
    /// What was done: the agent's own words, or why it ended; none while it goes on.
    pub done: Option<String>,
    /// How it ended, and by which rule.
    pub ended: Option<Ended>,
    /// Its criteria.
    pub criteria: Vec<Verified>,
    /// Steps of the plan that were done.
    pub steps_done: Vec<String>,
    /// What is left: steps of the plan that were not, and effects of which nobody knows whether they happened.
    pub left: Vec<String>,
    /// Artifacts, by name and newest version.
    pub artifacts: Vec<String>,
    /// What it cost, its children included.
    pub cost: Cost,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ended {
    /// Completed, failed or cancelled.
    pub outcome: Outcome,
    /// By which rule.
    pub rule: Rule,
}

/// A criterion, and how it is known to hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Verified {
    /// In words.
    pub text: String,
    /// Whether it holds; none if nobody but the agent itself says so.
    pub holds: Option<bool>,
    /// How it was looked into.
    pub how: String,
    /// What shows it. It may be anybody's words.
    pub evidence: String,
}

/// What a run cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Cost {
    /// Turns.
    pub turns: u32,
    /// Tool calls.
    pub tool_calls: u32,
    /// Tokens.
    pub tokens: u64,
    /// Millionths of a dollar.
    pub microusd: u64,
    /// Times that it was said to be done and was not.
    pub refusals: u32,
}

impl Report {
    /// Of a run as it stands.
    #[must_use]
    pub fn of(state: &RunState) -> Self {
        let ending = state.ending.as_ref();
        let done = ending.map(|ending| ending.text.text.clone());
        let ended = ending.filter(|_| state.ended).map(|ending| Ended { outcome: ending.outcome, rule: ending.rule });
        Self { ended, ..Self::with(state, done, &state.verdicts) }
    }

    /// Of a run that is about to end with these words, since these verdicts were given.
    #[must_use]
    pub fn about_to_end(state: &RunState, done: &str, verdicts: &[CriterionVerdict]) -> Self {
        let ended = Some(Ended { outcome: Outcome::Completed, rule: Rule::GoalVerified });
        Self { ended, ..Self::with(state, Some(done.to_owned()), verdicts) }
    }

    fn with(state: &RunState, done: Option<String>, verdicts: &[CriterionVerdict]) -> Self {
        let steps = |wanted: fn(StepStatus) -> bool| {
            let wanted = state.plan.iter().filter(move |step| wanted(step.status));
            wanted.map(|step| step.title.clone()).collect::<Vec<_>>()
        };
        let doubtful =
            state.started_calls().map(|call| format!("the call of `{}` has no known end", call.request.tool));
        let mut left = steps(|status| matches!(status, StepStatus::Pending | StepStatus::InProgress));
        left.extend(doubtful);
        let spent = state.settled();
        Self {
            run_id: state.run_id,
            objective: state.objective.text.clone(),
            done,
            ended: None,
            criteria: (0..)
                .zip(&state.acceptance)
                .map(|(number, criterion)| verified(number, criterion, verdicts))
                .collect(),
            steps_done: steps(|status| status == StepStatus::Done),
            left,
            artifacts: state.artifacts.iter().map(|kept| format!("{} version {}", kept.name, kept.version)).collect(),
            cost: Cost {
                turns: spent.turns,
                tool_calls: spent.tool_calls,
                tokens: spent.usage.tokens(),
                microusd: spent.usage.cost_microusd,
                refusals: state.refusals,
            },
        }
    }

    /// For people.
    #[must_use]
    pub fn markdown(&self) -> String {
        let list = |items: &[String]| -> String {
            if items.is_empty() {
                return "None.\n".to_owned();
            }
            items.iter().map(|item| format!("- {}\n", line(item))).collect()
        };
        let criterion = |criterion: &Verified| {
            let word = match criterion.holds {
                Some(true) => "holds",
                Some(false) => "does not hold",
                None => "not checked",
            };
            format!(
                "| {} | {word} | {} | {} |\n",
                cell(&criterion.text),
                cell(&criterion.how),
                cell(&criterion.evidence)
            )
        };
        let Cost { turns, tool_calls, tokens, microusd, refusals } = self.cost;
        let done = self.done.as_deref().unwrap_or("It goes on.");
        let cost = format!(
            "{turns} turns, {tool_calls} tool calls, {tokens} tokens, ${:.4}. It was said to be done and was not {refusals} times.",
            microusd as f64 / 1e6
        );
        let criteria: String = self.criteria.iter().map(criterion).collect();
        let table = "| criterion | verdict | how | evidence |\n| --- | --- | --- | --- |\n";
        let parts = [
            ("Asked", format!("{}\n", self.objective.trim())),
            ("Done", format!("{}\n", done.trim())),
            ("Criteria", if criteria.is_empty() { "None.\n".to_owned() } else { format!("{table}{criteria}") }),
            ("Steps done", list(&self.steps_done)),
            ("Left", list(&self.left)),
            ("Artifacts", list(&self.artifacts)),
            ("Cost", format!("{cost}\n")),
        ];
        let body: String = parts.iter().map(|(title, text)| format!("\n## {title}\n{text}")).collect();
        format!("# Delivery report of run {}\n{body}", self.run_id)
    }
}

fn verified(number: u16, criterion: &Criterion, verdicts: &[CriterionVerdict]) -> Verified {
    let verdict = verdicts.iter().find(|verdict| verdict.criterion == number);
    Verified {
        text: criterion.text().to_owned(),
        holds: verdict.map(|verdict| verdict.passed),
        how: verdict.map_or_else(|| "the agent's own word".to_owned(), |verdict| verdict.how.clone()),
        evidence: verdict.map(|verdict| verdict.evidence.text.clone()).unwrap_or_default(),
    }
}

/// On one line.
fn line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// In a cell of a table.
fn cell(text: &str) -> String {
    crate::excerpt(&line(text), 240).replace('\n', " ").replace('|', "\\|")
}
