//! What a run hands over when it is done: what was asked, what was done, how each criterion was verified, what is left, and what
//! it cost.

use kernel::{RunState, acceptance::CriterionVerdict, event::StepStatus};
use serde::Serialize;

use crate::verbs::Draft;

/// The report of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report<'a> {
    /// Which run.
    pub run_id: String,
    /// What was asked.
    pub objective: &'a str,
    /// What the agent says was done.
    pub done: &'a str,
    /// Its criteria.
    pub criteria: Vec<Verified<'a>>,
    /// Steps of the plan that were done.
    pub steps_done: Vec<&'a str>,
    /// What is left: steps of the plan that were not.
    pub left: Vec<&'a str>,
    /// Artifacts, by name and newest version.
    pub artifacts: Vec<String>,
    /// What it cost, its children included.
    pub cost: Cost,
}

/// A criterion, and how it is known to hold.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verified<'a> {
    /// In words.
    pub text: &'a str,
    /// Whether it holds; none if nobody but the agent itself says so.
    pub holds: Option<bool>,
    /// How it was looked into.
    pub how: &'a str,
    /// What shows it. It may be anybody's words.
    pub evidence: &'a str,
}

/// What a run cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
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

impl<'a> Report<'a> {
    /// Of a run as it stands.
    #[must_use]
    pub fn new(state: &'a RunState, done: &'a str, verdicts: &'a [CriterionVerdict]) -> Self {
        let verified = |(number, criterion): (u16, &'a kernel::acceptance::Criterion)| {
            let verdict = verdicts.iter().find(|verdict| verdict.criterion == number);
            Verified {
                text: criterion.text(),
                holds: verdict.map(|verdict| verdict.passed),
                how: verdict.map_or("the agent's own word", |verdict| &verdict.how),
                evidence: verdict.map_or("", |verdict| &verdict.evidence.text),
            }
        };
        let steps = |wanted: fn(StepStatus) -> bool| -> Vec<&'a str> {
            state.plan.iter().filter(|step| wanted(step.status)).map(|step| step.title.as_str()).collect()
        };
        let spent = state.settled();
        Self {
            run_id: state.run_id.to_string(),
            objective: &state.objective.text,
            done,
            criteria: (0..).zip(&state.acceptance).map(verified).collect(),
            steps_done: steps(|status| status == StepStatus::Done),
            left: steps(|status| matches!(status, StepStatus::Pending | StepStatus::InProgress)),
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

    /// As documents: one for people, and the checklist with its evidence for programs.
    #[must_use]
    pub fn drafts(&self) -> Vec<Draft> {
        let mut drafts = vec![Draft {
            name: "delivery-report.md".to_owned(),
            content: self.markdown(),
            media_type: "text/markdown".to_owned(),
        }];
        if let Ok(content) = serde_json::to_string_pretty(self) {
            let (name, media_type) = ("delivery-report.json".to_owned(), "application/json".to_owned());
            drafts.push(Draft { name, content, media_type });
        }
        drafts
    }

    /// For people.
    #[must_use]
    pub fn markdown(&self) -> String {
        let list = |items: &[&str]| -> String {
            if items.is_empty() {
                "None.\n".to_owned()
            } else {
                items.iter().map(|item| format!("- {}\n", line(item))).collect()
            }
        };
        let criterion = |criterion: &Verified<'_>| {
            let word = match criterion.holds {
                Some(true) => "holds",
                Some(false) => "does not hold",
                None => "not checked",
            };
            format!("| {} | {word} | {} | {} |\n", cell(criterion.text), cell(criterion.how), cell(criterion.evidence))
        };
        let criteria: String = self.criteria.iter().map(criterion).collect();
        let artifacts: Vec<&str> = self.artifacts.iter().map(String::as_str).collect();
        let Cost { turns, tool_calls, tokens, microusd, refusals } = self.cost;
        format!(
            "# Delivery report of run {}\n\n## Asked\n{}\n\n## Done\n{}\n\n## Criteria\n| criterion | verdict | how | evidence |\n| --- | \
             --- | --- | --- |\n{criteria}\n## Steps done\n{}\n## Left\n{}\n## Artifacts\n{}\n## Cost\n{turns} turns, {tool_calls} tool \
             calls, {tokens} tokens, ${:.4}. It was said to be done and was not {refusals} times.\n",
            self.run_id,
            self.objective.trim(),
            self.done.trim(),
            list(&self.steps_done),
            list(&self.left),
            list(&artifacts),
            microusd as f64 / 1e6,
        )
    }
}

/// On one line.
fn line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// In a cell of a table.
fn cell(text: &str) -> String {
    kernel::excerpt(&line(text), 240).replace('\n', " ").replace('|', "\\|")
}
