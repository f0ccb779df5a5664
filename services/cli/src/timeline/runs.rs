//! The run itself in the story: how it is held, what it may reach and spend, and how it ends.

use kernel::{EventData, event::Ending};

use super::{line::Line, quoted};
use crate::style::Paint;

/// The line of an event about the run as a whole, if it is one.
pub(super) fn line(data: &EventData) -> Option<Line> {
    match data {
        EventData::RunQueued(queued) => Some(Line::new('…', "queued", Paint::Warn).say(&queued.reason)),
        EventData::BudgetExceeded(exceeded) => {
            let line = Line::new('!', "budget", Paint::Bad).say(format!("{} used up", wire(&exceeded.limit)));
            Some(if exceeded.ask.is_some() {
                line.aside("stops, and asks whether it may have as much again")
            } else {
                line
            })
        }
        EventData::BudgetChanged(changed) => {
            Some(Line::new('!', "budget", Paint::Person).say(format!("changed by {}", changed.by)))
        }
        EventData::TrustDeclassified(vouched) => {
            let line = Line::new('✓', "trust", Paint::Person).say(format!("{} vouches for", vouched.by));
            Some(line.aside(vouched.reason.clone()).below(Paint::Dim, quoted(&vouched.text)))
        }
        EventData::RunForked(forked) => {
            let effects = if forked.effects { "with effects" } else { "effects are simulated" };
            let origin = forked.origin;
            let words = format!("goes on from turn {} of {}", origin.turn, origin.run_id);
            Some(Line::new('⑂', "fork", Paint::Person).say(words).aside(effects))
        }
        EventData::RunRevised(revised) => {
            let what = revised.objective.as_ref().map(|objective| objective.text.clone()).unwrap_or_default();
            Some(Line::new('±', "revised", Paint::Person).say(format!("by {}", revised.by)).say(what))
        }
        EventData::RunPaused(paused) => Some(Line::new('‖', "paused", Paint::Warn).say(format!("by {}", paused.by))),
        EventData::RunResumed(resumed) => {
            Some(Line::new('▷', "resumed", Paint::Good).say(format!("by {}", resumed.by)))
        }
        EventData::RunCancelRequested(requested) => {
            let (calls, children) = (requested.open_calls.len(), requested.open_children.len());
            let open = match children {
                0 => format!("{calls} calls have to stop"),
                _ => format!("{calls} calls and {children} child runs have to stop"),
            };
            Some(ending_line('◌', "ending", Paint::Warn, &requested.ending).aside(open))
        }
        EventData::RunCompleted(end) => Some(ending_line('●', "completed", Paint::Good, &end.ending)),
        EventData::RunFailed(end) => Some(ending_line('●', "failed", Paint::Bad, &end.ending)),
        EventData::RunCancelled(end) => Some(ending_line('●', "cancelled", Paint::Bad, &end.ending)),
        _ => None,
    }
}

fn ending_line(glyph: char, label: &'static str, paint: Paint, ending: &Ending) -> Line {
    let text: Vec<_> = ending.text.text.lines().collect();
    let first = text.first().copied().unwrap_or_default();
    let rest = text.get(1..).unwrap_or_default().join("\n");
    Line::new(glyph, label, paint).stress(first).aside(wire(&ending.rule)).below(Paint::Plain, quoted(&rest))
}

/// The name on the wire, as words.
fn wire(value: &impl serde::Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or_default().replace('_', " ")
}
