//! What is to be done about a schedule now: pure decisions on what is known of it.
//!
//! First [`consider`] says which of its times have come since the last look; they are noted, each once. Then [`settle`] goes
//! through what is noted and not settled, and says what begins, waits, is left out, or has to end first.

use std::time::Duration;

use jiff::Timestamp;
use kernel::{
    RunId,
    schedule::{Missed, Overlap, ScheduleSpec},
};
use uuid::Uuid;

use super::{FiringKind, cadence::Cadence, ids};

/// A time that lies no longer ago is on time: it is not missed, only late.
const ON_TIME: Duration = Duration::from_secs(10);
/// Times that are noted at once; what is more waits for the next look.
const MAX_NOTED: usize = 1000;
/// How soon a firing that waits for a run to end is looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// A schedule that was considered further into the future than this was so by a clock that was wrong. As in `decide.rs`.
const CLOCKS_DIFFER: Duration = Duration::from_secs(60);

/// A schedule whose times are considered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject<'a> {
    pub(super) schedule_id: Uuid,
    pub(super) spec: &'a ScheduleSpec,
    pub(super) cadence: &'a Cadence,
    pub(super) paused: bool,
    pub(super) considered_until: Timestamp,
}

/// Times that have come.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Considered {
    /// Those to be noted, unless they are known already.
    pub(super) new: Vec<OpenFiring>,
    /// The last of those that are not made up for, and what is to be said of it.
    pub(super) missed: Option<(Timestamp, String)>,
    pub(super) until: Timestamp,
}

/// A firing that is not settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OpenFiring {
    pub(super) fire_at: Timestamp,
    pub(super) due: Timestamp,
    pub(super) kind: FiringKind,
    /// Begins whatever else is under way.
    pub(super) at_once: bool,
    pub(super) state: OpenState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenState {
    /// Noted, not begun.
    Waiting,
    /// Somebody is at it until then.
    Starting(Timestamp),
    /// Its run is under way.
    Running(RunId),
}

/// What is to be done about what is open.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Settled {
    /// Firings to begin now.
    pub(super) begin: Vec<Timestamp>,
    /// Firings that don't take place, and why.
    pub(super) skip: Vec<(Timestamp, String)>,
    /// Runs that are to end first.
    pub(super) cancel: Vec<RunId>,
    /// When to look again because of what stays open.
    pub(super) look_at: Option<Timestamp>,
}

/// Which times have come since the last look.
pub(super) fn consider(subject: Subject<'_>, now: Timestamp) -> Considered {
    let since = subject.considered_until;
    let mut considered = Considered { new: Vec::new(), missed: None, until: now };
    // What passes in a pause is not missed. What a clock that was ahead has considered is considered again, and known.
    if subject.paused || since > later(now, CLOCKS_DIFFER) {
        return considered;
    }
    if since >= now {
        considered.until = since;
        return considered;
    }
    let cadence = subject.cadence;
    let on_time = earlier(now, ON_TIME).max(since);
    let window = earlier(now, subject.spec.catch_up.within.std()).clamp(since, on_time);
    let made_up_from = match subject.spec.catch_up.missed {
        Missed::All => window,
        Missed::Latest => {
            let latest = cadence.last_between(window, on_time);
            // One that is on time makes up for all those before it.
            let has_later = cadence.next_after(on_time).is_some_and(|next| next <= now);
            latest.filter(|_| !has_later).map_or(on_time, |latest| earlier(latest, Duration::from_nanos(1)))
        }
    };
    considered.missed = missed(cadence, since, made_up_from);
    let mut times: Vec<_> = cadence.after(made_up_from).take_while(|time| *time <= now).take(MAX_NOTED + 1).collect();
    if times.len() > MAX_NOTED {
        times.truncate(MAX_NOTED);
        considered.until = times.last().copied().unwrap_or(now);
    }
    considered.new = times.into_iter().map(|time| subject.firing(time, on_time)).collect();
    considered
}

impl Subject<'_> {
    fn firing(&self, fire_at: Timestamp, on_time: Timestamp) -> OpenFiring {
        let due = later(fire_at, ids::jitter(self.schedule_id, fire_at, self.spec.jitter.std()));
        let kind = if fire_at <= on_time { FiringKind::MadeUp } else { FiringKind::Regular };
        OpenFiring { fire_at, due, kind, at_once: false, state: OpenState::Waiting }
    }
}

/// What is to be said of the times in (`after`, `until`], if there are any.
fn missed(cadence: &Cadence, after: Timestamp, until: Timestamp) -> Option<(Timestamp, String)> {
    let last = cadence.last_between(after, until)?;
    let first = cadence.next_after(after).filter(|first| *first < last);
    let words = match first {
        None => "no scheduler was there, and it is not made up for".to_owned(),
        Some(first) => format!("no scheduler was there; neither this nor those since {first} are made up for"),
    };
    Some((last, words))
}

/// What is to be done about firings that are open, in order of time.
pub(super) fn settle(open: &[OpenFiring], paused: bool, overlap: Overlap, now: Timestamp) -> Settled {
    let mut settled = Settled::default();
    let mut looks = Vec::new();
    let mut under_way: Vec<Option<RunId>> = Vec::new();
    for firing in open {
        match firing.state {
            OpenState::Running(run) => under_way.push(Some(run)),
            OpenState::Starting(until) => {
                under_way.push(None);
                if until <= now {
                    settled.begin.push(firing.fire_at);
                } else {
                    looks.push(until);
                }
            }
            OpenState::Waiting => {}
        }
    }
    let waits = |firing: &&OpenFiring| firing.state == OpenState::Waiting && !paused;
    let waiting: Vec<_> = open.iter().filter(waits).collect();
    let last_due = waiting.iter().rfind(|firing| firing.due <= now && is_regular(firing)).map(|firing| firing.fire_at);
    let mut queued = false;
    for firing in waiting {
        let beside = firing.at_once || overlap == Overlap::Allow && firing.kind != FiringKind::Backfill;
        if firing.due > now {
            looks.push(firing.due);
        } else if under_way.is_empty() || beside {
            settled.begin.push(firing.fire_at);
            under_way.push(None);
        } else if overlap == Overlap::Skip && is_regular(firing) {
            settled.skip.push((firing.fire_at, still_under_way(&under_way)));
        } else if overlap == Overlap::Queue && is_regular(firing) && queued {
            settled.skip.push((firing.fire_at, "one waits already for the run under way to end".to_owned()));
        } else if overlap == Overlap::Cancel && is_regular(firing) && last_due != Some(firing.fire_at) {
            settled.skip.push((firing.fire_at, "a later one took its place".to_owned()));
        } else {
            if overlap == Overlap::Cancel && is_regular(firing) {
                settled.cancel.extend(under_way.iter().flatten());
            }
            queued |= is_regular(firing);
            looks.push(later(now, LOOK_AGAIN));
        }
    }
    settled.look_at = looks.into_iter().min();
    settled
}

/// The overlap policy is for these; the others wait for each other.
fn is_regular(firing: &OpenFiring) -> bool {
    firing.kind == FiringKind::Regular
}

fn still_under_way(under_way: &[Option<RunId>]) -> String {
    match under_way.iter().flatten().next() {
        Some(run) => format!("the run {run} is still under way"),
        None => "the one before it has only just begun".to_owned(),
    }
}

fn later(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

fn earlier(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_sub(by).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedules::spec::{SoundSchedule, parse_schedule};

    fn at(text: &str) -> Timestamp {
        format!("2026-11-30T{text}Z").parse().unwrap()
    }

    fn schedule(cron: &str, more: &str) -> SoundSchedule {
        let text = format!("name: s\ncron: \"{cron}\"\nstart: {{ agent: a, input: do it }}\n{more}\n");
        parse_schedule(&text, at("00:00:00")).unwrap()
    }

    fn considered(sound: &SoundSchedule, since: &str, now: &str) -> Considered {
        let (spec, cadence) = (&sound.spec, &sound.cadence);
        let schedule_id = Uuid::nil();
        consider(Subject { schedule_id, spec, cadence, paused: false, considered_until: at(since) }, at(now))
    }

    fn times(considered: &Considered) -> Vec<(String, FiringKind)> {
        considered.new.iter().map(|new| (new.fire_at.strftime("%H:%M:%S").to_string(), new.kind)).collect()
    }

    fn open(fire_at: &str, kind: FiringKind, state: OpenState) -> OpenFiring {
        OpenFiring { fire_at: at(fire_at), due: at(fire_at), kind, at_once: false, state }
    }

    #[test]
    fn what_is_on_time_is_noted_once() {
        let minutes = schedule("* * * * *", "");
        let first = considered(&minutes, "12:00:00", "12:01:00.2");
        assert_eq!(times(&first), [("12:01:00".to_owned(), FiringKind::Regular)]);
        assert_eq!((first.until, first.missed.clone()), (at("12:01:00.2"), None));
        assert!(considered(&minutes, "12:01:00.2", "12:01:00.3").new.is_empty());
        // A clock that went back a little waits; one that was far ahead begins anew.
        assert_eq!(considered(&minutes, "12:01:30", "12:01:10").until, at("12:01:30"));
        assert_eq!(considered(&minutes, "18:00:00", "12:01:10").until, at("12:01:10"));
    }

    #[test]
    fn the_latest_or_all_that_were_missed_are_made_up_for() {
        use FiringKind::{MadeUp, Regular};
        let quarter = |missed: &str| schedule("*/15 * * * *", &format!("catch_up: {{ within: 1h, missed: {missed} }}"));
        let latest = considered(&quarter("latest"), "08:00:00", "12:20:00");
        assert_eq!(times(&latest), [("12:15:00".to_owned(), MadeUp)]);
        let (last, words) = latest.missed.unwrap();
        assert_eq!(last, at("12:00:00"));
        assert!(words.contains("08:15"), "{words}");
        let all = considered(&quarter("all"), "08:00:00", "12:20:00");
        let expected = ["11:30:00", "11:45:00", "12:00:00", "12:15:00"].map(|time| (time.to_owned(), MadeUp));
        assert_eq!(times(&all), expected);
        assert_eq!(all.missed.unwrap().0, at("11:15:00"));
        let on_time = considered(&quarter("latest"), "08:00:00", "12:15:01");
        assert_eq!(times(&on_time), [("12:15:00".to_owned(), Regular)], "it makes up for those before it");
        let none = considered(&schedule("*/15 * * * *", "catch_up: { within: 0s }"), "08:00:00", "12:20:00");
        assert_eq!((times(&none), none.missed.unwrap().0), (vec![], at("12:15:00")));
    }

    #[test]
    fn very_many_are_noted_in_several_looks() {
        let seconds = schedule("* * * * * *", "catch_up: { within: 1h, missed: all }");
        let first = considered(&seconds, "11:00:00", "12:00:00");
        assert_eq!((first.new.len(), first.until), (MAX_NOTED, at("11:16:40")));
        let paused = Subject {
            schedule_id: Uuid::nil(),
            spec: &seconds.spec,
            cadence: &seconds.cadence,
            paused: true,
            considered_until: at("11:00:00"),
        };
        let paused = consider(paused, at("12:00:00"));
        assert_eq!((paused.new, paused.missed, paused.until), (vec![], None, at("12:00:00")));
    }

    #[test]
    fn the_overlap_policy_decides_about_regular_ones() {
        use FiringKind::Regular;
        let run = RunId::mint();
        let under_way = open("12:00:00", Regular, OpenState::Running(run));
        let waiting = |time: &str| open(time, Regular, OpenState::Waiting);
        let open = [under_way, waiting("12:01:00"), waiting("12:02:00"), waiting("12:09:00")];
        let decide = |overlap| settle(&open, false, overlap, at("12:02:01"));

        let skip = decide(Overlap::Skip);
        assert_eq!(skip.skip.iter().map(|(time, _)| *time).collect::<Vec<_>>(), [at("12:01:00"), at("12:02:00")]);
        assert_eq!((skip.begin, skip.look_at), (vec![], Some(at("12:09:00"))));
        let queue = decide(Overlap::Queue);
        assert_eq!(queue.skip.iter().map(|(time, _)| *time).collect::<Vec<_>>(), [at("12:02:00")], "one waits");
        assert_eq!(queue.look_at, Some(at("12:02:02")));
        assert_eq!(decide(Overlap::Allow).begin, [at("12:01:00"), at("12:02:00")]);
        let cancel = decide(Overlap::Cancel);
        assert_eq!((cancel.cancel, cancel.begin), (vec![run], vec![]));
        assert_eq!(
            cancel.skip.iter().map(|(time, _)| *time).collect::<Vec<_>>(),
            [at("12:01:00")],
            "the last one waits"
        );
        let paused = settle(&open, true, Overlap::Allow, at("12:02:01"));
        assert_eq!(paused, Settled::default());
    }

    #[test]
    fn what_is_made_up_for_goes_one_by_one_and_what_was_left_begun_is_begun_again() {
        use FiringKind::{Backfill, MadeUp, Regular};
        let two = [open("09:00:00", MadeUp, OpenState::Waiting), open("10:00:00", Backfill, OpenState::Waiting)];
        let first = settle(&two, false, Overlap::Skip, at("12:00:00"));
        assert_eq!((first.begin, first.skip), (vec![at("09:00:00")], vec![]), "they wait for each other");
        let beside = settle(&two, false, Overlap::Allow, at("12:00:00"));
        assert_eq!(beside.begin, [at("09:00:00")], "a backfill goes one by one unless it is to be at once");
        let mut at_once = two.clone();
        at_once[1].at_once = true;
        assert_eq!(settle(&at_once, false, Overlap::Skip, at("12:00:00")).begin.len(), 2);
        let left = [open("11:00:00", Regular, OpenState::Starting(at("11:00:10")))];
        assert_eq!(settle(&left, false, Overlap::Skip, at("11:00:05")).look_at, Some(at("11:00:10")));
        assert_eq!(settle(&left, true, Overlap::Skip, at("11:00:10")).begin, [at("11:00:00")]);
    }
}
