//! The lines of an action, out of the log of one service: told from those of others by ids, by component and by time.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use kernel::{ActionId, action::Action};
use serde::{Deserialize, Serialize};
use signals::Record;

use crate::services::{evidence::Line, pace::Learned, watches::CompiledAction};

/// Lines of one service that are remembered by their place.
const PLACES: usize = 512;
/// Lines whose text is kept: the first ones, the last ones, and those that say something.
const FIRST: usize = 6;
const LAST: usize = 6;
const SIGNS: usize = 12;
/// Things that the pace of the service's lines told meanwhile.
const LEARNED: usize = 4;
/// How long before an action, by the clock of a service, its lines may seem to begin.
const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_secs(1);

/// What a line says about its action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sign {
    /// It took effect.
    Success,
    /// It failed.
    Failure,
    /// It came so far: the place of the stage.
    Stage(usize),
}

/// How a line was found to belong to an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// It bears one of the action's ids.
    Id,
    /// It bears no id at all, and came at the right time from the right component.
    Nearness,
}

/// What was found in the log of one service. Bounded, and fits into a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Slice {
    /// The last message that it includes.
    pub seen: u64,
    /// Lines of the action.
    pub lines: u64,
    /// Lines at its time and place that bear no id.
    pub near: u64,
    /// Lines at its time and place that may as well belong to another action.
    pub shared: u64,
    /// Where its lines stand: message and place in it.
    pub places: Vec<(u64, u32)>,
    /// When its last line came.
    pub last_at: Option<Timestamp>,
    first: Vec<Line>,
    last: Vec<Line>,
    /// Of lines that bear no id: where the latest ones stand, and the text of the first and the last ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    near_places: Vec<(u64, u32)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    near_first: Vec<Line>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    near_last: Vec<Line>,
    /// Lines that say something, of each kind the first ones and the last one; and such that bear no id.
    signs: Vec<(Sign, Line)>,
    near_signs: Vec<(Sign, Line)>,
    /// What the pace of the service's lines told while the window was open.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    learned: Vec<(String, Line)>,
}

impl Slice {
    /// Takes a line of the action.
    pub fn take(&mut self, rule: &CompiledAction, record: &Record, line: Line, by: By) {
        match by {
            By::Id => {
                self.lines += 1;
                if self.places.len() < PLACES {
                    self.places.push((line.seq, line.index));
                }
            }
            By::Nearness => {
                self.near += 1;
                if self.near_places.len() == PLACES {
                    self.near_places.remove(0);
                }
                self.near_places.push((line.seq, line.index));
            }
        }
        self.last_at = self.last_at.max(Some(line.at));
        let says = rule.look(&record.body);
        // Without an id a fault may be anybody's; only what the rule names counts.
        let failed = says.failure || (record.is_fault() && by == By::Id && !says.success);
        let stage = says.stage.map(Sign::Stage);
        for sign in
            [says.success.then_some(Sign::Success), failed.then_some(Sign::Failure), stage].into_iter().flatten()
        {
            note(if by == By::Id { &mut self.signs } else { &mut self.near_signs }, sign, &line);
        }
        let (first, last) = match by {
            By::Id => (&mut self.first, &mut self.last),
            By::Nearness => (&mut self.near_first, &mut self.near_last),
        };
        if first.len() < FIRST {
            first.push(line);
        } else {
            if last.len() == LAST {
                last.remove(0);
            }
            last.push(line);
        }
    }

    /// Takes what the pace of the service's lines tells meanwhile, and says whether it is new. It is the service's, not the action's, so
    /// it neither opens nor closes anything.
    pub fn learn(&mut self, learned: &Learned) -> bool {
        let is_new =
            !self.learned.iter().any(|(_, line)| (line.seq, line.index) == (learned.line.seq, learned.line.index));
        let takes = is_new && self.learned.len() < LEARNED;
        if takes {
            self.learned.push((learned.what.clone(), learned.line.clone()));
        }
        takes
    }

    /// What the pace of the service's lines told meanwhile, in words, and the line that shows it.
    #[must_use]
    pub fn learned(&self) -> &[(String, Line)] {
        &self.learned
    }

    /// Forgets what was taken for the action's by time and place alone, from this message on.
    pub fn forget_near(&mut self, from: u64) {
        let before = self.near_places.len();
        self.near_places.retain(|(seq, _)| *seq < from);
        self.near = self.near.saturating_sub((before - self.near_places.len()) as u64);
        self.near_first.retain(|line| line.seq < from);
        self.near_last.retain(|line| line.seq < from);
        self.near_signs.retain(|(_, line)| line.seq < from);
    }

    /// The lines that say something, in the order in which they came.
    #[must_use]
    pub fn signs(&self) -> &[(Sign, Line)] {
        &self.signs
    }

    /// Lines at its time and place that say something and bear no id.
    #[must_use]
    pub fn near_signs(&self) -> &[(Sign, Line)] {
        &self.near_signs
    }

    /// The lines whose text is kept: the first and the last ones.
    pub fn ends(&self) -> impl Iterator<Item = &Line> {
        self.first.iter().chain(&self.last)
    }

    /// As [`Slice::ends`], of lines at its time and place that bear no id.
    pub fn near_ends(&self) -> impl Iterator<Item = &Line> {
        self.near_first.iter().chain(&self.near_last)
    }

    /// Whether anything at all was found.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.lines == 0 && self.near == 0 && self.shared == 0
    }
}

fn note(signs: &mut Vec<(Sign, Line)>, sign: Sign, line: &Line) {
    if signs.len() == SIGNS {
        // The second to last of its kind goes: the first one tells the cause, the last one how it ended.
        let of_kind: Vec<usize> = (0..SIGNS).filter(|at| signs[*at].0 == sign).collect();
        match of_kind.last() {
            Some(at) if of_kind.len() > 1 => drop(signs.remove(*at)),
            _ => return,
        }
    }
    signs.push((sign, line.clone()));
}

/// What a record may have to do with an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// It bears one of its ids.
    Own,
    /// It bears no id of anybody, and stands where and when the action happened.
    Near,
    /// It bears another's trace, and stands where and when the action happened.
    Other,
    /// Nothing.
    None,
}

/// Tells whose a record is. `ids` are the action's, with the trace that was adopted for it.
#[must_use]
pub fn relation(action: &Action, ids: &BTreeSet<String>, service: &str, record: &Record, at: Timestamp) -> Relation {
    if ids.iter().any(|id| record.mentions(id)) {
        return Relation::Own;
    }
    let said_at = record.time.unwrap_or(at);
    let is_after = action.at.checked_sub(CLOCKS_DIFFER).is_ok_and(|first| said_at >= first);
    let is_here = service == action.service
        && (action.components.is_empty()
            || record.component.as_ref().is_some_and(|component| action.components.contains(component)));
    match (is_here && is_after, &record.trace_id) {
        (false, _) => Relation::None,
        (true, None) => Relation::Near,
        (true, Some(_)) => Relation::Other,
    }
}

/// How far from the action, in time, a record of its place was said: of several traces the nearest is the action's own.
/// What was said before it was is further away than it looks.
#[must_use]
pub fn distance(action: &Action, record: &Record, at: Timestamp) -> i64 {
    let apart = record.time.unwrap_or(at).duration_since(action.at).as_micros();
    let apart = i64::try_from(apart).unwrap_or(i64::MAX);
    if apart < 0 { apart.saturating_neg().saturating_mul(4) } else { apart }
}

/// What is gathered about an action in the log of a service, and under what name it is kept.
pub type SliceKey = (ActionId, String);

#[cfg(test)]
mod tests {
    use kernel::{TenantId, watch::ActionRule};

    use super::*;

    fn action(trace: Option<&str>) -> Action {
        Action {
            action_id: ActionId::mint(),
            tenant: TenantId::default(),
            service: "orders".into(),
            actor: "ann".into(),
            what: "POST /orders".into(),
            expects: None,
            request_id: None,
            session_id: None,
            trace_id: trace.map(str::to_owned),
            components: vec!["orders-1".into()],
            at: Timestamp::from_second(1_800_000_000).unwrap(),
            run_id: None,
            call_id: None,
            recorded_by: "test".into(),
        }
    }

    fn record(second: i64, line: &str) -> Record {
        let time = Timestamp::from_second(1_800_000_000 + second).ok();
        Record { time, ..Record::from_line(line.as_bytes()) }
    }

    #[test]
    fn ids_go_before_place_and_time() {
        let action = action(Some("aabb0011"));
        let ids: BTreeSet<String> = action.ids().into_iter().map(str::to_owned).collect();
        let of = |service, record: Record| relation(&action, &ids, service, &record, action.at);
        for (service, second, line, expected) in [
            ("shipping", 500, r#"{"msg":"x","trace_id":"AABB0011"}"#, Relation::Own),
            ("orders", -60, "took request aabb0011", Relation::Own),
            ("orders", 1, r#"{"msg":"x","component":"orders-1"}"#, Relation::Near),
            ("orders", 1, r#"{"msg":"x","component":"orders-2"}"#, Relation::None),
            ("orders", -5, r#"{"msg":"x","component":"orders-1"}"#, Relation::None),
            ("shipping", 1, r#"{"msg":"x","component":"orders-1"}"#, Relation::None),
            ("orders", 1, r#"{"msg":"x","component":"orders-1","trace_id":"ccdd"}"#, Relation::Other),
        ] {
            assert_eq!(of(service, record(second, line)), expected, "{service} {line}");
        }
    }

    #[test]
    fn the_nearest_trace_is_the_likeliest() {
        let action = action(None);
        let apart = |second| distance(&action, &record(second, "x"), action.at);
        assert!(apart(0) < apart(1) && apart(1) < apart(3) && apart(3) < apart(-1));
    }

    #[test]
    fn a_slice_is_bounded_and_keeps_what_matters() {
        let rule = ActionRule { success: vec!["shipped".into()], ..ActionRule::default() };
        let rule = CompiledAction::new(&rule);
        let mut slice = Slice::default();
        for number in 0..5000_u32 {
            let text = match number {
                100..=200 => "ERROR first trouble".to_owned(),
                4000 => "INFO shipped".to_owned(),
                _ => format!("INFO step {number}"),
            };
            let record = Record::from_text(&text);
            let line = Line::new(&record, u64::from(number), 0, Timestamp::UNIX_EPOCH);
            slice.take(&rule, &record, line, By::Id);
        }
        assert_eq!(slice.lines, 5000);
        assert!(serde_json::to_string(&slice).unwrap().len() < 32 * 1024);
        let signs: Vec<Sign> = slice.signs().iter().map(|(sign, _)| *sign).collect();
        assert!(signs.contains(&Sign::Failure) && slice.signs()[0].1.seq == 100);
        assert_eq!(slice.ends().count(), FIRST + LAST);
    }

    #[test]
    fn what_bears_no_id_can_be_forgotten_and_leaves_no_trace() {
        let rule = CompiledAction::new(&ActionRule { failure: vec!["rejected".into()], ..ActionRule::default() });
        let take = |slice: &mut Slice, seq: u64, text: &str, by: By| {
            let record = Record::from_text(text);
            slice.take(&rule, &record, Line::new(&record, seq, 0, Timestamp::UNIX_EPOCH), by);
        };
        let mut slice = Slice::default();
        take(&mut slice, 1, "somebody was here", By::Nearness);
        take(&mut slice, 2, "mine", By::Id);
        let before = slice.clone();
        for seq in 3..40 {
            take(&mut slice, seq, "rejected", By::Nearness);
        }
        assert!(slice.near == 38 && slice.near_ends().count() == FIRST + LAST && slice.ends().count() == 1);
        slice.forget_near(3);
        assert_eq!(slice, before);
    }
}
