//! The bus: at least once, in any order, now and then not at all.

use kernel::{ApprovalId, CallId, Event, EventData, RunId, Seq, Timestamp, TurnId};

use crate::choice::Choices;

/// How long a consumer may keep a message without an answer, in milliseconds.
const ACK_WAIT: i64 = 10_000;

/// Who reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consumer {
    Planner,
    Executor,
    Observer,
}

/// What a message says: where to look.
#[derive(Clone, Debug)]
pub enum Body {
    Turn { turn: TurnId, not_before: Option<Timestamp> },
    Call(CallId),
    Approval(ApprovalId),
    Run,
    Signal { call: CallId, offset: u32, signal: Signal },
}

/// What comes out of an activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Progress,
    Failure,
    Exit(Exited),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exited {
    Well,
    Badly,
    Cancelled,
    Lost,
}

#[derive(Clone, Debug)]
pub struct Message {
    pub id: u64,
    pub to: Consumer,
    pub run: RunId,
    /// The event that it tells of.
    pub seq: Option<Seq>,
    pub body: Body,
    pub deliveries: u32,
    /// Not to be delivered (again) before.
    visible_at: i64,
}

/// How a handler answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Ack,
    /// Again, after so many milliseconds.
    Again(i64),
}

#[derive(Debug, Default)]
pub struct Bus {
    messages: Vec<Message>,
    next_id: u64,
}

impl Bus {
    /// Publishes an event to whom it may concern.
    pub fn publish_event(&mut self, run: RunId, event: &Event, now: i64, choices: &mut Choices) {
        if let Some((to, body)) = doorbell(event) {
            self.publish(to, run, Some(event.seq), &body, now, choices);
        }
    }

    /// Publishes a message: once if all goes well.
    pub fn publish(
        &mut self,
        to: Consumer,
        run: RunId,
        seq: Option<Seq>,
        body: &Body,
        now: i64,
        choices: &mut Choices,
    ) {
        let copies = [1, 2, 0][choices.weighted(&[88, 6, 6])];
        for _ in 0..copies {
            let delay = if choices.chance(10) { 1000 * choices.below(20) as i64 } else { 0 };
            self.next_id += 1;
            let (id, body, visible_at) = (self.next_id, body.clone(), now + delay);
            let message = Message { id, to, run, seq, body, deliveries: 0, visible_at };
            self.messages.push(message);
        }
    }

    pub fn deliverable(&self, now: i64) -> usize {
        self.messages.iter().filter(|message| message.visible_at <= now).count()
    }

    /// The `number`th of the messages that can be delivered now.
    pub fn deliver(&mut self, number: usize, now: i64) -> Option<Message> {
        let message = self.messages.iter_mut().filter(|message| message.visible_at <= now).nth(number)?;
        message.visible_at = now + ACK_WAIT;
        message.deliveries += 1;
        Some(message.clone())
    }

    pub fn answer(&mut self, id: u64, answer: Answer, now: i64) {
        match answer {
            Answer::Ack => self.messages.retain(|message| message.id != id),
            Answer::Again(after) => {
                if let Some(message) = self.messages.iter_mut().find(|message| message.id == id) {
                    message.visible_at = now + after;
                }
            }
        }
    }

    /// The streams are gone.
    pub fn lose_all(&mut self) {
        self.messages.clear();
    }
}

fn doorbell(event: &Event) -> Option<(Consumer, Body)> {
    match &event.data {
        EventData::RunRunnable(opened) => {
            let body = Body::Turn { turn: opened.turn_id, not_before: opened.not_before };
            Some((Consumer::Planner, body))
        }
        EventData::ToolRequested(requested) => Some((Consumer::Executor, Body::Call(requested.call.call_id))),
        EventData::ApprovalGranted(granted) => Some((Consumer::Executor, Body::Approval(granted.approval_id))),
        EventData::ToolDue(due) => Some((Consumer::Executor, Body::Call(due.call_id))),
        EventData::RunResumed(_) | EventData::RunCancelRequested(_) => Some((Consumer::Executor, Body::Run)),
        _ => None,
    }
}
