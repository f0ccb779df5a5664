//! What came of an action: a pure function of what was found about it and of the time.
//!
//! Signs may be late, so each waits a while for others; a later sign outweighs an earlier one. What the logs say is then held
//! against the world itself, if the rule names a way to look at it.

use jiff::{SignedDuration, Timestamp};
use kernel::{
    action::{Action, ActionConclusion, ActionOutcome, Verified},
    call::{Evidence, Observation, SignalCounts},
};

use super::slice::{Sign, Slice};
use crate::{
    beats::LEARNED,
    services::{evidence::Line, watches::CompiledAction},
};

/// Most bytes of evidence in a conclusion.
const EVIDENCE_BYTES: usize = 2048;
/// Most bytes of one line of it.
const LINE_BYTES: usize = 320;
/// An excerpt smaller than this says nothing.
const WORTH_BYTES: usize = 40;

/// What is to be done about an action now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing, before that time.
    Wait(Timestamp),
    /// It can be concluded. What the logs say is to be held against the world first, if there is a way.
    Close(Reading),
}

/// What the logs say of an action, for themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// What came of it.
    pub outcome: ActionOutcome,
    /// Why the window closes, in words.
    pub why: String,
    /// The last stage that was reached.
    pub stage: Option<String>,
    /// Lines that contradict each other.
    pub mixed: bool,
}

/// All that was found about an action.
pub struct Found<'a> {
    /// By service.
    pub slices: &'a [(String, Slice)],
    /// Whether signals are missing from the time of the action.
    pub gaps: u64,
}

impl Found<'_> {
    fn signs(&self) -> Vec<(Sign, &str, &Line)> {
        // As soon as there are lines that are surely its own, others count no more.
        let is_known = self.lines() > 0;
        let all = self.slices.iter().flat_map(|(service, slice)| {
            let signs = if is_known { slice.signs() } else { slice.near_signs() };
            signs.iter().map(move |(sign, line)| (*sign, service.as_str(), line))
        });
        let mut signs: Vec<_> = all.collect();
        signs.sort_by_key(|(_, _, line)| (line.said_at(), line.seq, line.index));
        signs
    }

    /// The first and the last lines of each service. Beside lines that are surely its own, others are no evidence.
    fn ends(&self) -> Vec<(&'static str, &str, &Line)> {
        let is_known = self.lines() > 0;
        let mut ends = Vec::new();
        for (service, slice) in self.slices {
            let named = |line| ("line", service.as_str(), line);
            if is_known {
                ends.extend(slice.ends().map(named));
            } else {
                ends.extend(slice.near_ends().map(named));
            }
        }
        ends
    }

    /// What the pace of a service's lines told meanwhile: the service, what it was, and a line that shows it.
    fn learned(&self) -> impl Iterator<Item = (&str, &str, &Line)> {
        self.slices.iter().flat_map(|(service, slice)| {
            slice.learned().iter().map(move |(what, line)| (service.as_str(), what.as_str(), line))
        })
    }

    fn sum(&self, count: impl Fn(&Slice) -> u64) -> u64 {
        self.slices.iter().map(|(_, slice)| count(slice)).sum()
    }

    fn last_at(&self) -> Option<Timestamp> {
        self.slices.iter().filter_map(|(_, slice)| slice.last_at).max()
    }

    /// Lines of the action by message and place, of all services.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.sum(|slice| slice.lines)
    }
}

/// Judges an action that was recorded at `opened_at`.
#[must_use]
pub fn judge(rule: &CompiledAction, opened_at: Timestamp, found: &Found<'_>, now: Timestamp) -> Next {
    let signs = found.signs();
    let stage = signs.iter().filter_map(|(sign, ..)| if let Sign::Stage(at) = sign { Some(*at) } else { None }).max();
    let stage = stage.and_then(|at| rule.stages.get(at).cloned());
    let close =
        |outcome, why: &str, mixed| Next::Close(Reading { outcome, why: why.to_owned(), stage: stage.clone(), mixed });
    let deadline = after(opened_at, rule.within);
    let decisive: Vec<_> = signs.iter().filter(|(sign, ..)| matches!(sign, Sign::Success | Sign::Failure)).collect();
    if let Some((last, _, line)) = decisive.last() {
        let arrived = decisive.iter().map(|(_, _, line)| line.at).max().unwrap_or(line.at);
        let settled = after(arrived, rule.settle).min(deadline.max(opened_at));
        if now < settled {
            return Next::Wait(settled);
        }
        let mixed = decisive.iter().any(|(sign, ..)| sign != last);
        return if *last == Sign::Success {
            close(ActionOutcome::TookEffect, "its lines say so", mixed)
        } else {
            close(ActionOutcome::Failed, "its lines say so", mixed)
        };
    }
    let quiet = found.last_at().map(|last| after(last, rule.quiet));
    if now >= deadline {
        // It still speaks: it is given the same time once more.
        let end = after(deadline, rule.within);
        return match quiet {
            Some(quiet) if now < quiet && now < end => Next::Wait(quiet.min(end)),
            Some(quiet) if now < quiet => close(ActionOutcome::InProgress, "it still goes on", false),
            _ => close(ActionOutcome::Unsure, "nothing more is to be expected in its time", false),
        };
    }
    match quiet {
        Some(quiet) if now >= quiet => close(ActionOutcome::Unsure, "it has fallen quiet", false),
        Some(quiet) => Next::Wait(quiet.min(deadline)),
        None => Next::Wait(deadline),
    }
}

/// The conclusion, from what the logs say and what was looked at.
#[must_use]
pub fn conclude(
    action: &Action,
    rule: &CompiledAction,
    found: &Found<'_>,
    reading: &Reading,
    verified: Vec<Verified>,
) -> ActionConclusion {
    let (outcome, contradicted) = weigh(reading.outcome, &verified);
    let phase = outcome.as_str().to_owned();
    let (lines, near, shared) = (found.lines(), found.sum(|slice| slice.near), found.sum(|slice| slice.shared));
    let mut changed =
        format!("`{}` on `{}` by {}: {}.", action.what, action.service, action.actor, in_words(outcome, reading));
    let services = found.slices.iter().filter(|(_, slice)| slice.lines > 0).count();
    changed.push_str(&match (lines, near) {
        (0, 0) => " No line of it was found.".to_owned(),
        (0, near) => format!(" No line bears an id of it; {near} stand at its time and place."),
        (lines, _) => format!(" {lines} lines of it, in the logs of {services} services."),
    });
    if let Some(stage) = &reading.stage {
        changed.push_str(&format!(" It reached `{stage}`."));
    }
    if contradicted {
        changed.push_str(" What the logs say and what was looked at contradict each other.");
    } else if reading.mixed {
        changed.push_str(" Its lines contradict each other; the last one counts.");
    }
    for look in &verified {
        let showed = match look.holds {
            Some(true) => "shows it",
            Some(false) => "shows that it has not happened",
            None => "could not be asked",
        };
        changed.push_str(&format!(" `{}` {showed}.", look.tool));
    }
    for (_, what, _) in found.learned() {
        changed.push_str(&format!(" Meanwhile at `{}`: {what}", action.service));
    }
    let is_strange = found.learned().next().is_some();
    let missing = missing(rule, found, outcome, &verified, shared);
    let observation = Observation {
        call_id: None,
        phase,
        changed,
        anomaly: contradicted || reading.mixed || is_strange || outcome == ActionOutcome::Failed,
        // What others wrote has no place here: this is read as the runtime's own word.
        decision: Some(format!("the action {} {}", action.action_id, plainly(outcome))),
        evidence: evidence(found, &verified),
        missing,
        counts: SignalCounts { lines, suppressed: near + shared, ..SignalCounts::default() },
    };
    ActionConclusion { outcome, stage: reading.stage.clone(), observation, verified }
}

/// The world outweighs the logs; what could not be looked at leaves a good word of the logs in doubt.
fn weigh(said: ActionOutcome, verified: &[Verified]) -> (ActionOutcome, bool) {
    use ActionOutcome::{Failed, TookEffect, Unsure};
    if verified.is_empty() {
        return (said, false);
    }
    if verified.iter().any(|look| look.holds == Some(false)) {
        return (Failed, said == TookEffect);
    }
    let all = verified.iter().all(|look| look.holds == Some(true));
    match said {
        said if all => (TookEffect, said == Failed),
        TookEffect => (Unsure, false),
        said => (said, false),
    }
}

fn in_words(outcome: ActionOutcome, reading: &Reading) -> String {
    let outcome = match outcome {
        ActionOutcome::TookEffect => "took effect",
        ActionOutcome::Failed => "failed",
        ActionOutcome::InProgress => "still under way",
        ActionOutcome::Unsure => "nobody can say",
    };
    format!("{outcome}; {}", reading.why)
}

fn plainly(outcome: ActionOutcome) -> &'static str {
    match outcome {
        ActionOutcome::TookEffect => "took effect",
        ActionOutcome::Failed => "failed",
        ActionOutcome::InProgress => "is still under way",
        ActionOutcome::Unsure => "came to nothing that could be seen",
    }
}

fn missing(
    rule: &CompiledAction,
    found: &Found<'_>,
    outcome: ActionOutcome,
    verified: &[Verified],
    shared: u64,
) -> Option<String> {
    let mut missing = Vec::new();
    let signs = found.signs();
    let reached = |place: usize| signs.iter().any(|(sign, ..)| *sign == Sign::Stage(place));
    let unseen: Vec<&str> =
        rule.stages.iter().enumerate().filter(|(place, _)| !reached(*place)).map(|(_, name)| name.as_str()).collect();
    if outcome != ActionOutcome::TookEffect {
        if !unseen.is_empty() {
            missing.push(format!("no line of the stages {}", unseen.join(", ")));
        }
        if rule.knows_success && !signs.iter().any(|(sign, ..)| *sign == Sign::Success) {
            missing.push("no line that says that it took effect".to_owned());
        }
    }
    if found.lines() == 0 {
        missing.push("no line with any of its ids".to_owned());
    }
    if shared > 0 {
        missing.push(format!("{shared} lines without an id may be another action's, and were not counted"));
    }
    if found.gaps > 0 {
        missing.push(format!("up to {} signals of that time are missing", found.gaps));
    }
    missing.extend(
        verified.iter().filter(|look| look.holds.is_none()).map(|look| format!("`{}`: {}", look.tool, look.words)),
    );
    (!missing.is_empty()).then(|| missing.join("; "))
}

/// Failures first, then what else says something, then where it stopped; each line once.
fn evidence(found: &Found<'_>, verified: &[Verified]) -> Vec<Evidence> {
    let mut left = EVIDENCE_BYTES;
    let mut evidence: Vec<Evidence> = Vec::new();
    for look in verified.iter().filter(|look| look.holds == Some(false)) {
        let excerpt = crate::text::window(&look.words, 0, LINE_BYTES).into_owned();
        left = left.saturating_sub(excerpt.len());
        evidence.push(Evidence { excerpt, rule: format!("verify {}", look.tool), ..Evidence::default() });
    }
    let rank = |sign: Sign| match sign {
        Sign::Failure => 0,
        Sign::Success => 1,
        Sign::Stage(_) => 2,
    };
    let mut signs = found.signs();
    signs.sort_by_key(|(sign, ..)| rank(*sign));
    let named = signs.iter().map(|(sign, service, line)| {
        let rule = match sign {
            Sign::Failure => "failure",
            Sign::Success => "success",
            Sign::Stage(_) => "stage",
        };
        (rule, *service, *line)
    });
    let learned = found.learned().map(|(service, _, line)| (LEARNED, service, line));
    let mut ends = found.ends();
    ends.sort_by_key(|(_, _, line)| std::cmp::Reverse(line.said_at()));
    for (rule, service, line) in named.chain(learned).chain(ends) {
        let is_told = |told: &Evidence| {
            (told.service.as_deref(), told.offset, told.line) == (Some(service), line.seq, u64::from(line.index) + 1)
        };
        if left < WORTH_BYTES {
            break;
        }
        if !evidence.iter().any(is_told) {
            let taken = line.evidence(service, rule, left.min(LINE_BYTES));
            left = left.saturating_sub(taken.excerpt.len());
            evidence.push(taken);
        }
    }
    evidence
}

fn after(at: Timestamp, span: std::time::Duration) -> Timestamp {
    SignedDuration::try_from(span).ok().and_then(|span| at.checked_add(span).ok()).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests;
