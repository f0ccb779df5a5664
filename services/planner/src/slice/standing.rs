//! Where the run stands: objective, plan, why it paused, open calls, artifacts, budget, time. Each has a cap of its own.

use kernel::{
    RunState, Timestamp, Trust,
    acceptance::Criterion,
    budget::microusd,
    call::{Call, CallStatus},
    event::StepStatus,
    excerpt,
    wait::{Condition, Wait, WaitExpr},
};

use super::{Part, View, fence};
use crate::tokens::Counter;

/// Most bytes of the objective; of the criteria, the plan and the open calls; of each of the rest.
const CAPS: [usize; 3] = [8 * 1024, 4 * 1024, 2 * 1024];
/// Most open calls listed.
const MAX_CALLS: usize = 24;
/// Most bytes of a call's arguments.
const ARGUMENT_BYTES: usize = 240;

/// Tokens for the heading of a section and its fence, which are not cut.
const FRAME_TOKENS: u64 = 80;
/// How often a section is cut again whose text is dearer than usual.
const CUTS: usize = 4;

/// How much a section may take.
struct Share<'a> {
    view: &'a View<'a>,
    room: u64,
}

impl Share<'_> {
    /// The section that `make` makes of at most so many bytes: its cap, or its share in percent of a small room. Text that takes
    /// more tokens than its length says is cut again.
    fn of(&self, cap: usize, share: u64, make: impl Fn(&View<'_>, usize) -> Option<Part>) -> Option<Part> {
        let (counter, most) = (self.view.input.counter, self.room * share / 100);
        let mut bytes = cap.min(counter.bytes(most));
        let mut part = make(self.view, bytes)?.weighed(self.view);
        for _ in 0..CUTS {
            let over = part.tokens(self.view).saturating_sub(FRAME_TOKENS);
            if over <= most || matches!(counter, Counter::ByLength(_)) {
                break;
            }
            bytes = usize::try_from(bytes as u64 * most / over).unwrap_or(bytes);
            part = make(self.view, bytes)?.weighed(self.view);
        }
        Some(part)
    }
}

/// What stands before history and news.
pub(super) fn before(view: &View<'_>, room: u64) -> Vec<Part> {
    let share = Share { view, room };
    let parts = [
        share.of(CAPS[0], 20, |view, most| Some(objective(view, most))),
        share.of(CAPS[1], 8, acceptance),
        share.of(CAPS[1], 10, plan),
        share.of(CAPS[0], 15, summary),
        share.of(CAPS[2], 6, pause),
    ];
    parts.into_iter().flatten().collect()
}

/// What stands after history and news.
pub(super) fn after(view: &View<'_>, room: u64) -> Vec<Part> {
    let share = Share { view, room };
    let parts = [
        share.of(CAPS[1], 8, calls),
        share.of(CAPS[2], 4, children),
        share.of(CAPS[2], 4, approvals),
        share.of(CAPS[2], 4, artifacts),
        notices(view),
        Some(budget(view)),
        Some(time(view)),
    ];
    parts.into_iter().flatten().collect()
}

/// Notes a cut, if `text` is longer than `max`.
fn limited(part: &mut Part, text: &str, max: usize) -> String {
    if text.len() > max {
        part.cut = Some(format!("{} of {} bytes shown", max, text.len()));
    }
    excerpt(text, max)
}

fn objective(view: &View<'_>, max: usize) -> Part {
    let block = &view.input.state.objective;
    let mut part = Part::new("objective", "Objective", String::new(), block.trust);
    part.seqs = vec![1];
    let text = limited(&mut part, &block.text, max);
    part.body = if fence::is_data(block.trust) {
        view.boundary.fence(&text, block.trust, &block.source)
    } else {
        fence::clean(&text)
    };
    part
}

fn acceptance(view: &View<'_>, max: usize) -> Option<Part> {
    let criteria = &view.input.state.acceptance;
    let listed: String = criteria.iter().map(described).collect();
    let mut part = Part::new("acceptance", "It is reached when", String::new(), Trust::Operator);
    part.body = fence::clean(&limited(&mut part, &listed, max));
    (!criteria.is_empty()).then_some(part)
}

/// A criterion, and who will look into it.
fn described(criterion: &Criterion) -> String {
    let by = criterion.check().map(|check| format!(" (checked by: {})", check.how())).unwrap_or_default();
    format!("- {}{by}\n", one_line(criterion.text()))
}

fn plan(view: &View<'_>, max: usize) -> Option<Part> {
    let state = view.input.state;
    let listed: String = state
        .plan
        .iter()
        .enumerate()
        .map(|(index, step)| format!("{}. [{}] {}\n", index + 1, status_word(step.status), one_line(&step.title)))
        .collect();
    let mut part = Part::new("plan", "Your plan", String::new(), view.seen);
    let text = limited(&mut part, &listed, max);
    part.body = format!("Revision {}.\n{}", state.plan_revision, view.model_text(&text));
    (!state.plan.is_empty()).then_some(part)
}

/// What went before the entries of history, in fewer words.
fn summary(view: &View<'_>, max: usize) -> Option<Part> {
    let summary = view.input.state.summary.as_ref()?;
    let trust = summary.body.trust.join(view.seen);
    let mut part = Part::new("summary", "What went before, summarised", String::new(), trust);
    part.seqs = vec![summary.upto];
    let text = limited(&mut part, &summary.body.text, max);
    let entries = format!("{} entries of history, up to event {}.\n", summary.entries, summary.upto);
    part.body = format!("{entries}{}", view.model_text(&text));
    Some(part)
}

const fn status_word(status: StepStatus) -> &'static str {
    match status {
        StepStatus::Pending => "pending",
        StepStatus::InProgress => "in_progress",
        StepStatus::Done => "done",
        StepStatus::Dropped => "dropped",
    }
}

fn pause(view: &View<'_>, max: usize) -> Option<Part> {
    let state = view.input.state;
    let wait = state.last_wait.as_ref()?;
    let mut text = format!("why: {}\n", one_line(&wait.why));
    for (name, value) in [("assumed", &wait.assumes), ("expected", &wait.expects)] {
        if let Some(value) = value {
            text.push_str(&format!("{name}: {}\n", one_line(value)));
        }
    }
    let mut part = Part::new("pause", "Why you paused", String::new(), view.seen);
    let text = limited(&mut part, &text, max);
    part.body = format!("{}{}", view.model_text(&text), whether_over(state, wait));
    Some(part)
}

/// In the runtime's own words: what the wait was for, and whether it holds.
fn whether_over(state: &RunState, wait: &Wait) -> String {
    let open = state.wait.as_ref().is_some_and(|open| open.wait_id == wait.wait_id);
    let until = wait.deadline.map(|deadline| format!(", until {deadline}")).unwrap_or_default();
    let standing = if open { "It still stands" } else { "It is over" };
    let leaves = wait.on.leaves();
    let conditions: Vec<_> = leaves.iter().map(|leaf| describe(state, &leaf.condition)).collect();
    let all = matches!(wait.on, WaitExpr::All(_));
    let joined = conditions.join(if all { " and " } else { " or " });
    format!("\n{standing}: {joined}{until}.\n")
}

fn describe(state: &RunState, condition: &Condition) -> String {
    match condition {
        Condition::Timer { due, .. } => format!("the time {due}"),
        Condition::TaskResult { call_id } => match state.calls.get(call_id) {
            Some(call) => format!("the end of `{}`", fence::label(&call.request.tool)),
            None => match state.children.get(call_id) {
                Some(child) => format!("the end of the agent `{}`", fence::label(&child.spawn.agent)),
                None => "the end of a call".to_owned(),
            },
        },
        Condition::External(pattern) => {
            let [kind, source] = [&pattern.event_type, &pattern.source].map(|text| fence::label(text));
            format!("an event `{kind}` from `{source}`")
        }
        Condition::OperatorInput { approval_id: Some(_) } => "the operator's answer".to_owned(),
        Condition::OperatorInput { approval_id: None } => "a message of the operator".to_owned(),
    }
}

fn calls(view: &View<'_>, max: usize) -> Option<Part> {
    let state = view.input.state;
    let mut body = String::new();
    for call in state.calls.values().take(MAX_CALLS) {
        let call_id = call.request.call_id;
        let line = format!("- `{}` {call_id}: {}\n", fence::label(&call.request.tool), status_of(call, view.input.now));
        let arguments = excerpt(&call.request.arguments.to_string(), ARGUMENT_BYTES);
        let arguments = view.model_text(&arguments);
        if body.len() + line.len() + arguments.len() > max {
            break;
        }
        body.push_str(&line);
        body.push_str(arguments.trim_end());
        body.push('\n');
    }
    let mut part = Part::new("calls", "Calls that are still open", body, view.seen);
    let shown = part.body.lines().filter(|line| line.starts_with("- `")).count();
    let hidden = state.calls.len().saturating_sub(shown);
    if hidden > 0 {
        part.cut = Some(format!("{hidden} of {} open calls not shown", state.calls.len()));
        part.body.push_str(&format!("… and {hidden} more.\n"));
    }
    (!state.calls.is_empty()).then_some(part)
}

/// The agents that this run has started and that are still at work, in the runtime's own words.
fn children(view: &View<'_>, max: usize) -> Option<Part> {
    let state = view.input.state;
    let mut body = String::new();
    let mut shown = 0;
    for (call, child) in &state.children {
        let line = format!("- `{}` {call}: at work as run {}\n", fence::label(&child.spawn.agent), child.child_id);
        if body.len() + line.len() > max {
            break;
        }
        body.push_str(&line);
        shown += 1;
    }
    let hidden = state.children.len() - shown;
    let mut part = Part::new("agents", "Agents that you started and that are still at work", body, Trust::System);
    if hidden > 0 {
        part.cut = Some(format!("{hidden} of {} not shown", state.children.len()));
        part.body.push_str(&format!("… and {hidden} more.\n"));
    }
    (!state.children.is_empty()).then_some(part)
}

fn status_of(call: &Call, now: Timestamp) -> String {
    match call.status {
        CallStatus::Requested => "not begun yet".to_owned(),
        CallStatus::AwaitingApproval => "held until a person approves it".to_owned(),
        CallStatus::Approved => "approved, not begun yet".to_owned(),
        CallStatus::Started => {
            let since = call.started_at.map(|at| ago(at, now)).unwrap_or_default();
            format!("running, started {since} (attempt {})", call.attempts)
        }
        CallStatus::InDoubt => "in doubt: it may or may not have happened; the runtime is looking into it".to_owned(),
    }
}

fn approvals(view: &View<'_>, max: usize) -> Option<Part> {
    let state = view.input.state;
    let open: String = state
        .approvals
        .values()
        .filter(|approval| approval.is_question())
        .map(|approval| format!("- {} (until {})\n", one_line(&approval.question.text), approval.expires_at))
        .collect();
    let mut part = Part::new("questions", "Questions that the operator has not answered", String::new(), view.seen);
    let text = limited(&mut part, &open, max);
    part.body = view.model_text(&text);
    (!open.is_empty()).then_some(part)
}

fn artifacts(view: &View<'_>, max: usize) -> Option<Part> {
    let state = view.input.state;
    let mut listed = String::new();
    let mut shown = 0;
    // The newest matter most: they are taken first and so stand first.
    for artifact in state.artifacts.iter().rev() {
        let (name, media) = (one_line(&artifact.name), one_line(&artifact.media_type));
        let line = format!(
            "- {name} version {} ({media}, {} bytes) {}\n",
            artifact.version, artifact.bytes, artifact.artifact_id
        );
        if listed.len() + line.len() > max {
            break;
        }
        listed.push_str(&line);
        shown += 1;
    }
    let mut part = Part::new("artifacts", "Artifacts of this run, newest first", view.model_text(&listed), view.seen);
    let hidden = state.artifacts.len() - shown;
    part.cut = (hidden > 0).then(|| format!("{hidden} older artifacts not shown"));
    (shown > 0).then_some(part)
}

fn notices(view: &View<'_>) -> Option<Part> {
    let missing = view.input.missing_tools;
    let names: Vec<_> = missing.iter().map(|name| fence::label(name)).collect();
    let body = format!("These tools of your agent's file do not exist here: {}.", names.join(", "));
    (!missing.is_empty()).then(|| Part::new("notices", "Not available", body, Trust::System))
}

fn budget(view: &View<'_>) -> Part {
    let state = view.input.state;
    // What is set aside for agents at work is as good as spent.
    let (limits, spent) = (&state.limits, &state.committed());
    let left = |name: &str, most: Option<u64>, used: u64| {
        most.map_or_else(
            || format!("{name}: {used} used"),
            |most| format!("{name}: {} of {most} left", most.saturating_sub(used)),
        )
    };
    let tokens = spent.usage.input_tokens + spent.usage.output_tokens;
    let cost = match limits.cost_usd {
        Some(most) => {
            format!("cost: ${:.4} of ${most:.2} left", usd(microusd(most).saturating_sub(spent.usage.cost_microusd)))
        }
        None => format!("cost: ${:.4} used", usd(spent.usage.cost_microusd)),
    };
    let wall = limits.wall.map(|wall| {
        let end = kernel::units::later(state.created_at, wall);
        format!("; ends at the latest at {end}")
    });
    let body = format!(
        "{}; {}; {}; {cost}{}.",
        left("turns, this one included", limits.turns.map(u64::from), u64::from(spent.turns)),
        left("tool calls", limits.tool_calls.map(u64::from), u64::from(spent.tool_calls)),
        left("tokens", limits.tokens, tokens),
        wall.unwrap_or_default(),
    );
    Part::new("budget", "Budget", body, Trust::System)
}

#[expect(clippy::cast_precision_loss, reason = "shown with four digits")]
fn usd(micro: u64) -> f64 {
    micro as f64 / 1e6
}

fn time(view: &View<'_>) -> Part {
    let (state, now) = (view.input.state, view.input.now);
    let turn = state.turn.as_ref();
    let woken = turn
        .and_then(|turn| turn.wake)
        .map(|wake| format!(" You were woken by: {}.", wake.as_str()))
        .unwrap_or_default();
    let number = turn.map_or(state.turns_opened, |turn| turn.number);
    let body = format!("Turn {number}.{woken} It is {now}; the run began {}.", ago(state.created_at, now));
    Part::new("time", "Now", body, Trust::System)
}

/// How long ago, in the largest unit that says enough.
pub(super) fn ago(at: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second().saturating_sub(at.as_second()).max(0);
    match seconds {
        0..120 => format!("{seconds} s ago"),
        120..7_200 => format!("{} min ago", seconds / 60),
        7_200..172_800 => format!("{} h ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

/// Text on one line, so that it cannot pass for a line of its surroundings.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
