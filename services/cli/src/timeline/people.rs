//! People in the story: what they were asked and what they decided.

use kernel::{
    ApprovalId, EventData, Trust,
    event::{ApprovalEndorsed, ApprovalGranted, ApprovalRequested},
};

use super::{Question, Timeline, line::Line, words::span};
use crate::{style::Paint, views::EventView};

impl Timeline {
    /// The line of an event about a question, if it is one.
    pub(super) fn question_line(&mut self, event: &EventView, data: &EventData) -> Option<Line> {
        match data {
            EventData::ApprovalRequested(requested) => Some(self.asked(event, requested)),
            EventData::ApprovalEndorsed(endorsed) => Some(self.endorsed(event, endorsed)),
            EventData::ApprovalGranted(granted) => Some(self.granted(event, granted)),
            EventData::ApprovalDenied(denied) => {
                let line = self.answered(event, denied.approval_id, '✗', "denied", Paint::Bad, &denied.by);
                Some(line.say(denied.reason.as_deref().unwrap_or_default()))
            }
            EventData::ApprovalExpired(expired) => {
                self.questions.remove(&expired.approval_id);
                self.waker = Some("a question that nobody answered".to_owned());
                let why = match expired.reason.as_str() {
                    "no_answer" => "nobody answered in time",
                    other => other,
                };
                Some(Line::new('⏱', "expired", Paint::Warn).say(why))
            }
            _ => None,
        }
    }

    fn asked(&mut self, event: &EventView, requested: &ApprovalRequested) -> Line {
        let approval = &requested.approval;
        let question = Question { asked: event.at, tool: approval.tool.clone() };
        self.questions.insert(approval.approval_id, question);
        let left = span(approval.expires_at.duration_since(event.at));
        let line = Line::new('?', "asks", Paint::Person).say(&approval.question.text).aside(format!("open for {left}"));
        let line = match approval.trust {
            Trust::Untrusted => line.painted(Paint::Warn, "untrusted data had a part in it"),
            _ => line,
        };
        let line =
            approval.reasons.iter().fold(line, |line, reason| line.below(Paint::Dim, format!("because {reason}")));
        let line = if approval.two_people { line.below(Paint::Person, "two people have to agree") } else { line };
        line.below(Paint::Person, format!("esc approve {}", approval.approval_id))
    }

    /// The question stays open, so nobody is woken.
    fn endorsed(&self, event: &EventView, endorsed: &ApprovalEndorsed) -> Line {
        let question = self.questions.get(&endorsed.approval_id);
        let tool = question.and_then(|question| question.tool.clone()).unwrap_or_default();
        let thought = question.map(|question| format!("after {}", span(event.at.duration_since(question.asked))));
        let edited = if endorsed.arguments.is_some() { "with other arguments" } else { "" };
        Line::new('✓', "agreed", Paint::Person)
            .stress(tool)
            .say(format!("by {}, and one more person is needed", endorsed.by))
            .aside(thought.unwrap_or_default())
            .painted(Paint::Warn, edited)
            .say(endorsed.reason.as_deref().unwrap_or_default())
    }

    fn granted(&mut self, event: &EventView, granted: &ApprovalGranted) -> Line {
        let by = match &granted.endorsed_by {
            Some(first) => format!("{first} and {}", granted.by),
            None => granted.by.clone(),
        };
        let line = self.answered(event, granted.approval_id, '✓', "approved", Paint::Good, &by);
        let edited = if granted.arguments.is_some() { "with other arguments" } else { "" };
        line.painted(Paint::Warn, edited).say(granted.reason.as_deref().unwrap_or_default())
    }

    fn answered(
        &mut self,
        event: &EventView,
        id: ApprovalId,
        glyph: char,
        label: &'static str,
        paint: Paint,
        by: &str,
    ) -> Line {
        self.waker = Some(format!("the answer of {by}"));
        let question = self.questions.remove(&id);
        let tool = question.as_ref().and_then(|question| question.tool.clone()).unwrap_or_default();
        let thought = question.map(|question| format!("after {}", span(event.at.duration_since(question.asked))));
        Line::new(glyph, label, paint).stress(tool).say(format!("by {by}")).aside(thought.unwrap_or_default())
    }
}
