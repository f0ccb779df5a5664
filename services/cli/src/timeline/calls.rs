//! Tool calls in the story, and what observers conclude about them.

use kernel::{
    CallId, EventData,
    call::{Exit, Observation},
    event::{Finding, ToolCompleted, ToolFailed, ToolProgressed, ToolRequested},
    opinion::SecondOpinion,
};

use super::{CallNote, Timeline, line::Line, quoted, words::span};
use crate::{
    style::{Paint, cut},
    views::EventView,
};

/// Characters of a call's arguments.
const ARGUMENTS: usize = 160;
/// Evidence that is shown of one observation.
const EVIDENCE: usize = 3;

impl Timeline {
    /// The line of an event about a call, if it is one.
    pub(super) fn call_line(&mut self, event: &EventView, data: &EventData) -> Option<Line> {
        match data {
            EventData::ToolRequested(requested) => Some(self.requested(event, requested)),
            EventData::ToolStarted(started) => {
                let note = self.calls.get_mut(&started.call_id);
                let again = note.is_some_and(|note| note.started.replace(event.at).is_some());
                let line = Line::new('▶', "starts", Paint::Plain).say(self.tool(started.call_id));
                let attempt = if again { format!("attempt {}", started.attempt) } else { String::new() };
                Some(line.painted(Paint::Warn, attempt).aside(format!("on {}", short(&started.executor))))
            }
            EventData::ToolProgressed(progressed) => self.progressed(event, progressed),
            EventData::ToolDue(due) => Some(
                Line::new('▷', "goes on", Paint::Plain).say(self.tool(due.call_id)).aside("it was put off until now"),
            ),
            EventData::ToolCompleted(done) => Some(self.completed(event, done)),
            EventData::ToolFailed(failed) => Some(self.failed(event, failed)),
            EventData::ToolDenied(denied) => {
                let line = self.ended(event, denied.call_id, '⊘', "denied", Paint::Bad);
                Some(line.say(&denied.reason.text).aside(&denied.code))
            }
            EventData::ToolCancelled(cancelled) => {
                let line = self.ended(event, cancelled.call_id, '⊘', "stopped", Paint::Warn);
                Some(line.say(&cancelled.reason))
            }
            EventData::ToolInDoubt(doubt) => {
                let line = Line::new('?', "in doubt", Paint::Warn).stress(self.tool(doubt.call_id));
                Some(line.say("may or may not have happened:").say(&doubt.reason))
            }
            EventData::ToolReconciled(reconciled) => {
                let (finding, paint) = match reconciled.finding {
                    Finding::Done => ("it has happened", Paint::Good),
                    Finding::NotDone => ("it has not happened, and may start again", Paint::Good),
                    Finding::Unknown => ("nobody can say, and it is not repeated", Paint::Bad),
                };
                let line = Line::new('≟', "verified", paint).stress(self.tool(reconciled.call_id)).say(finding);
                Some(line.below(Paint::Dim, quoted(&reconciled.evidence.text)))
            }
            EventData::ObservationRecorded(recorded) => {
                let line = self.observed(&recorded.observation);
                Some(recorded.asked.iter().fold(line, |line, asked| line.below(Paint::Dim, opinion_in_words(asked))))
            }
            _ => self.child_line(event, data),
        }
    }

    /// The line of an event about a child run, if it is one.
    fn child_line(&mut self, event: &EventView, data: &EventData) -> Option<Line> {
        match data {
            EventData::SubagentStarted(started) => {
                let spawn = &started.spawn;
                let note = CallNote { tool: spawn.agent.clone(), requested: event.at, started: None };
                self.calls.insert(spawn.call_id, note);
                let again = if started.attempt > 1 { format!("attempt {}", started.attempt) } else { String::new() };
                let line = Line::new('⑂', "starts", Paint::Model).stress(&spawn.agent).painted(Paint::Warn, again);
                Some(line.say(cut(&spawn.task.text, ARGUMENTS)).aside(format!("run {}", started.child_id)))
            }
            EventData::SubagentCompleted(done) => {
                let line = self.ended(event, done.call_id, '✓', "done", Paint::Good);
                Some(line.below(Paint::Dim, quoted(&done.result.text)))
            }
            EventData::SubagentFailed(failed) => {
                let line = self.ended(event, failed.call_id, '✗', "failed", Paint::Bad);
                let next = if failed.again { "another takes over" } else { "" };
                Some(line.aside(next).below(Paint::Plain, quoted(&failed.reason.text)))
            }
            EventData::SubagentCancelled(cancelled) => {
                let line = self.ended(event, cancelled.call_id, '⊘', "stopped", Paint::Warn);
                Some(line.say(&cancelled.reason.text))
            }
            _ => None,
        }
    }

    /// An attempt that failed, a call that is put off, or one that asks. Where it goes on outside is no news to people.
    fn progressed(&mut self, event: &EventView, progressed: &ToolProgressed) -> Option<Line> {
        let tool = self.tool(progressed.call_id);
        let later = progressed.put_off.map(|until| {
            let why = progressed.reason.as_deref().unwrap_or("later").replace('_', " ");
            format!("{why}: put off for {}", span(until.duration_since(event.at)))
        });
        if let Some(asks) = &progressed.asks {
            self.waker = Some(format!("a question of {tool}"));
            let line = Line::new('?', "asks", Paint::Warn).stress(tool);
            return Some(line.below(Paint::Plain, quoted(&asks.text)));
        }
        match (&progressed.attempt, later) {
            (Some(attempt), later) => {
                let line = Line::new('↻', "retries", Paint::Warn).stress(tool);
                let what = if attempt.dry_run { "dry run" } else { "attempt" };
                let line = line.say(format!("{what} {} failed ({})", attempt.number, attempt.code));
                let line = line.aside(later.unwrap_or_default());
                Some(if attempt.said.is_empty() { line } else { line.below(Paint::Dim, quoted(&attempt.said)) })
            }
            (None, Some(later)) => Some(Line::new('…', "waits", Paint::Dim).say(tool).aside(later)),
            (None, None) => None,
        }
    }

    fn requested(&mut self, event: &EventView, requested: &ToolRequested) -> Line {
        let call = &requested.call;
        let note = CallNote { tool: call.tool.clone(), requested: event.at, started: None };
        self.calls.insert(call.call_id, note);
        let (label, paint) = match call.is_compensation() {
            true => ("undoes", Paint::Warn),
            false => ("calls", Paint::Model),
        };
        Line::new('→', label, paint).stress(&call.tool).aside(cut(&call.arguments.to_string(), ARGUMENTS))
    }

    /// The line of a call's end, with its name and how long it took.
    fn ended(&mut self, event: &EventView, call: CallId, glyph: char, label: &'static str, paint: Paint) -> Line {
        let tool = self.tool(call);
        self.waker = Some(format!("the end of {tool}"));
        let since = self.calls.get(&call).map(|note| note.started.unwrap_or(note.requested));
        let took = since.map(|since| span(event.at.duration_since(since)));
        Line::new(glyph, label, paint).stress(tool).aside(took.unwrap_or_default())
    }

    fn completed(&mut self, event: &EventView, done: &ToolCompleted) -> Line {
        let line = self.ended(event, done.call_id, '✓', "done", Paint::Good);
        match &done.exit {
            Some(exit) => line.say(exit_in_words(exit)),
            None => line.below(Paint::Dim, quoted(&done.result.block.text)),
        }
    }

    fn failed(&mut self, event: &EventView, failed: &ToolFailed) -> Line {
        let line = self.ended(event, failed.call_id, '✗', "failed", Paint::Bad);
        match &failed.exit {
            Some(exit) => line.say(exit_in_words(exit)),
            None => line.aside(&failed.failure.code).below(Paint::Plain, quoted(&failed.failure.block.text)),
        }
    }

    fn observed(&mut self, observation: &Observation) -> Line {
        let tool = observation.call_id.map(|call| self.tool(call)).unwrap_or_default();
        let needed = observation.decision.is_some();
        let (paint, text) = match (needed, observation.anomaly) {
            (true, true) => (Paint::Bad, Paint::Plain),
            (true, false) => (Paint::Warn, Paint::Plain),
            _ => (Paint::Dim, Paint::Dim),
        };
        let line = Line::new('◉', "observes", paint).painted(text, format!("{tool}: {}", observation.changed));
        let Some(decision) = &observation.decision else { return line };
        self.waker = Some(format!("an observation of {tool}"));
        let line = line.painted(paint, format!("— needs a decision: {decision}"));
        let line = observation.evidence.iter().take(EVIDENCE).fold(line, |line, evidence| {
            let first = evidence.excerpt.lines().next().unwrap_or_default();
            line.below(Paint::Dim, format!("{:>6}  {first}", evidence.line))
        });
        match &observation.missing {
            Some(missing) => line.below(Paint::Warn, format!("missing: {missing}")),
            None => line,
        }
    }
}

fn opinion_in_words(asked: &SecondOpinion) -> String {
    let who = asked.model.as_deref().unwrap_or("a model");
    let said = match (asked.said, &asked.failed) {
        (Some(said), _) => said.why.words().to_owned(),
        (None, Some(why)) => format!("nothing that counts ({why})"),
        (None, None) => "nothing".to_owned(),
    };
    format!("the rules were unsure; {who} says: {said} ({})", super::words::many(asked.usage.tokens(), "token"))
}

fn exit_in_words(exit: &Exit) -> String {
    let how = match (exit.code, exit.signal) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => "gone without a word".to_owned(),
    };
    let why = if exit.reason == "exited" { String::new() } else { format!(" ({})", exit.reason.replace('_', " ")) };
    format!("{how}{why}, {}", super::words::many(exit.lines, "line"))
}

/// An instance's name without the long part that tells it from its like.
fn short(instance: &str) -> String {
    let (name, unique) = instance.rsplit_once('-').unwrap_or((instance, ""));
    let end = unique.char_indices().rev().nth(5).map_or(0, |(index, _)| index);
    if unique.is_empty() { name.to_owned() } else { format!("{name}-{}", &unique[end..]) }
}
