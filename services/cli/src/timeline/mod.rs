//! The story of a run, for people: what happened, who woke whom, how long it slept, what it cost.
//!
//! [`Timeline::feed`] takes committed events in order and gives the lines that they add; [`Timeline::summary`] closes with the
//! economics. What a run repeats to itself (a satisfied wait, a cancelled timer) is left out: it shows in what follows.

mod calls;
mod economics;
mod line;
mod people;
mod runs;
mod steering;
#[cfg(test)]
mod tests;
pub mod words;

use std::collections::HashMap;

use jiff::Timestamp;
use kernel::{
    ApprovalId, CallId, EventData, TimerId,
    event::{ExternalRef, PlanStep, RunCreated, RunRunnable, Speaker, TurnCompleted},
    wait::{Condition, Wait, WaitExpr},
};

pub use economics::Economics;
use economics::wake_in_words;
use line::Line;
use words::{bytes, count, span};

use crate::{
    style::{Paint, Style, clean, cut},
    views::EventView,
};

/// Lines of a quoted text.
const QUOTED: usize = 4;

/// A run, as far as it was told.
#[derive(Debug)]
pub struct Timeline {
    style: Style,
    start: Option<Timestamp>,
    economics: Economics,
    calls: HashMap<CallId, CallNote>,
    questions: HashMap<ApprovalId, Question>,
    timers: HashMap<TimerId, Timestamp>,
    /// What happened last that may wake the run, in words.
    waker: Option<String>,
    plan: Vec<PlanStep>,
}

/// What is remembered of a call.
#[derive(Debug)]
struct CallNote {
    tool: String,
    requested: Timestamp,
    started: Option<Timestamp>,
}

/// What is remembered of a question.
#[derive(Debug)]
struct Question {
    asked: Timestamp,
    tool: Option<String>,
}

impl Timeline {
    /// Nothing told yet.
    pub fn new(style: Style) -> Self {
        Self {
            style,
            start: None,
            economics: Economics::default(),
            calls: HashMap::new(),
            questions: HashMap::new(),
            timers: HashMap::new(),
            waker: None,
            plan: Vec::new(),
        }
    }

    /// What the events so far sum up to.
    pub fn economics(&self) -> &Economics {
        &self.economics
    }

    /// Takes the next event and gives what it adds to the story.
    pub fn feed(&mut self, event: &EventView) -> Vec<String> {
        let start = *self.start.get_or_insert(event.at);
        let Ok(data) = event.decode() else {
            // A later version's event: that it happened can be said.
            return Line::new('·', "event", Paint::Dim).aside(&event.event_type).render(event.at, start, self.style);
        };
        let mut lines = match &data {
            EventData::RunCreated(created) => self.header(event, created),
            _ => Vec::new(),
        };
        let line = self.line(event, &data);
        self.economics.add(event, &data);
        lines.extend(line.into_iter().flat_map(|line| line.render(event.at, start, self.style)));
        lines
    }

    /// The end of the story: what it took.
    pub fn summary(&self) -> Vec<String> {
        let rule = "─".repeat(self.style.width().min(72));
        let mut lines = vec![self.style.paint(Paint::Dim, &rule)];
        lines.extend(self.economics.lines(self.style));
        lines
    }

    fn header(&self, event: &EventView, created: &RunCreated) -> Vec<String> {
        let day = event.at.to_string();
        let style = self.style;
        let objective = cut(&clean(&created.objective.text.replace('\n', " ")), style.width());
        vec![
            format!("{}  {}", style.paint(Paint::Bold, &clean(&created.agent)), style.paint(Paint::Dim, &day)),
            objective,
            String::new(),
        ]
    }

    fn line(&mut self, event: &EventView, data: &EventData) -> Option<Line> {
        match data {
            EventData::RunCreated(created) => Some(started(event, created)),
            EventData::RunRunnable(runnable) => self.woken(event, runnable),
            EventData::TurnCompleted(turn) => Some(turn_line(turn)),
            EventData::TurnRejected(turn) => {
                let label = format!("{}: {}", turn.code, turn.problems.join("; "));
                Some(Line::new('✗', "refused", Paint::Bad).say(label))
            }
            EventData::TurnCharged(charged) => {
                let line = Line::new('✗', "in vain", Paint::Dim).say(&charged.reason);
                Some(line.aside(format!("{} tokens were paid for", count(charged.usage.tokens()))))
            }
            EventData::MessageAdded(message) => Some(match message.role {
                Speaker::Operator => {
                    self.waker = Some(format!("a message of {}", person(&message.block.source)));
                    Line::new('✎', "message", Paint::Person)
                        .say(person(&message.block.source) + ":")
                        .say(&message.block.text)
                }
                Speaker::Agent => Line::new('❝', "says", Paint::Model).say(&message.block.text),
            }),
            EventData::WaitRegistered(registered) => Some(self.waits(event, &registered.wait)),
            EventData::WaitExpired(_) => {
                self.waker = Some("its own deadline".to_owned());
                Some(Line::new('⏱', "deadline", Paint::Warn).say("what it waited for did not happen in time"))
            }
            EventData::TimerSet(set) => {
                self.timers.insert(set.timer_id, event.at);
                None
            }
            EventData::TimerFired(fired) => {
                self.waker = Some("its timer".to_owned());
                let slept = self.timers.remove(&fired.timer_id).map(|set| span(event.at.duration_since(set)));
                let late = event.at.duration_since(fired.due);
                let line =
                    Line::new('⏱', "timer", Paint::World).say(format!("fires after {}", slept.unwrap_or_default()));
                Some(line.aside(format!("{} late", span(late))))
            }
            EventData::ExternalMatched(matched) => {
                self.waker = Some(format!("the event {}", matched.external.event_type));
                let line = Line::new('⚡', "event", Paint::World).say(name_of(&matched.external));
                Some(line.aside("untrusted").below(Paint::Dim, quoted(&matched.block.text)))
            }
            EventData::ArtifactCreated(kept) => Some(artifact_line(&kept.artifact)),
            EventData::ArtifactUpdated(kept) => Some(artifact_line(&kept.artifact)),
            _ => self
                .call_line(event, data)
                .or_else(|| self.question_line(event, data))
                .or_else(|| self.steering_line(data))
                .or_else(|| runs::line(data)),
        }
    }

    fn woken(&mut self, event: &EventView, runnable: &RunRunnable) -> Option<Line> {
        let waker = self.waker.take();
        let kind = runnable.wake?;
        let by = waker.unwrap_or_else(|| wake_in_words(kind).to_owned());
        let slept = self.economics.asleep_for(event.at).map(|slept| format!("after {} of sleep", span(slept)));
        let gathers = runnable.not_before.map(|at| format!("gathers for {}", span(at.duration_since(event.at))));
        let line = Line::new('☀', "woken", Paint::Warn).stress(format!("by {by}"));
        Some(line.aside(slept.unwrap_or_default()).aside(gathers.unwrap_or_default()))
    }

    fn waits(&self, event: &EventView, wait: &Wait) -> Line {
        let line = Line::new('☾', "waits", Paint::Plain).say(format!("for {}", self.expression(event.at, &wait.on)));
        let until = wait.deadline.map(|at| format!("for {} at most", span(at.duration_since(event.at))));
        line.aside(until.unwrap_or_default()).aside(format!("— {}", wait.why))
    }

    fn expression(&self, now: Timestamp, on: &WaitExpr) -> String {
        let join =
            |of: &[WaitExpr], word: &str| of.iter().map(|on| self.expression(now, on)).collect::<Vec<_>>().join(word);
        match on {
            WaitExpr::Any(of) => join(of, " or "),
            WaitExpr::All(of) if of.len() > 1 => format!("all of ({})", join(of, ", ")),
            WaitExpr::All(of) => join(of, ", "),
            WaitExpr::On(leaf) => self.condition(now, &leaf.condition),
        }
    }

    fn condition(&self, now: Timestamp, condition: &Condition) -> String {
        match condition {
            Condition::Timer { due, .. } => format!("{} to pass", span(due.duration_since(now))),
            Condition::TaskResult { call_id } => format!("the end of {}", self.tool(*call_id)),
            Condition::External(pattern) => format!("the event {} of {}", pattern.event_type, pattern.resource_key()),
            Condition::OperatorInput { approval_id: Some(_) } => "a person's answer".to_owned(),
            Condition::OperatorInput { approval_id: None } => "a person to write".to_owned(),
        }
    }

    fn tool(&self, call: CallId) -> String {
        self.calls.get(&call).map_or_else(|| "a call".to_owned(), |note| note.tool.clone())
    }
}

fn started(event: &EventView, created: &RunCreated) -> Line {
    match &created.trigger {
        Some(trigger) => {
            let line = Line::new('⚡', "event", Paint::World)
                .stress(name_of(trigger))
                .say("starts the run")
                .aside("untrusted");
            line.below(Paint::Dim, quoted(&created.input.text))
        }
        None => {
            let by = event.cause.operator.clone().unwrap_or_else(|| person(&created.input.source));
            Line::new('✎', "started", Paint::Person).say(format!("by {by}"))
        }
    }
}

fn turn_line(turn: &TurnCompleted) -> Line {
    let usage = &turn.usage;
    let took = span(jiff::SignedDuration::from_millis(i64::try_from(turn.model_ms).unwrap_or(i64::MAX)));
    let tokens = format!("{} → {} tokens, {took}", count(usage.input_tokens), count(usage.output_tokens));
    let line =
        Line::new('◆', "thinks", Paint::Model).stress(format!("turn {}", turn.number)).aside(&turn.model).aside(tokens);
    let line = match &turn.text {
        Some(text) => line.below(Paint::Plain, quoted(&text.text)),
        None => line,
    };
    match turn.dropped_calls.as_slice() {
        [] => line,
        dropped => line.painted(Paint::Warn, format!("dropped {}: a person wrote meanwhile", dropped.join(", "))),
    }
}

fn artifact_line(artifact: &kernel::call::ArtifactRef) -> Line {
    let line = Line::new('▣', "artifact", Paint::Good).stress(&artifact.name);
    line.aside(format!("version {}, {}", artifact.version, bytes(artifact.bytes)))
}

fn name_of(external: &ExternalRef) -> String {
    format!("{} of {}", external.event_type, external.resource_key)
}

/// Who is behind a source such as `operator:ann`.
fn person(source: &str) -> String {
    source.strip_prefix("operator:").unwrap_or(source).to_owned()
}

/// The first lines of a text; empty ones are left out, and JSON is one line: of an event from outside, its data.
fn quoted(text: &str) -> String {
    if let Ok(json @ (serde_json::Value::Object(_) | serde_json::Value::Array(_))) = serde_json::from_str(text) {
        let data = json.get("data").filter(|_| json.get("specversion").is_some());
        return data.unwrap_or(&json).to_string();
    }
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let shown = lines.iter().take(QUOTED).copied().collect::<Vec<_>>().join("\n");
    if lines.len() > QUOTED { format!("{shown}\n… {} lines more", lines.len() - QUOTED) } else { shown }
}
