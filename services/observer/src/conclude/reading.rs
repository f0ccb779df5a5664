//! Reading: what the lines of a frame change in what is known of a call.

use jiff::Timestamp;

use super::{Frame, Standing, Watch};
use crate::{
    evidence::{Noted, Spot},
    lines::Line,
    rules::{Edge, Hits, Progress, Rules},
    templates::Miner,
    text,
    timed::{Place, Timely},
};

/// A section that does not end within so many lines has ended all the same.
const SECTION_LINES: u32 = 5000;
/// A failure this likely is one, though its rule wakes nobody by itself.
const LIKELY: u8 = 75;
/// Things that must have ended well before it is said what is new.
const LEARNED: u32 = 2;
/// Lines at the beginning that are all asked which program prints them; later only those that show something.
const DETECT_LINES: u64 = 400;
/// Lines at the end of a frame in which the latest progress is looked for.
const TAIL_LINES: usize = 3;

impl Watch {
    /// Takes a frame in, and says what its lines told of windows of time.
    pub(super) fn read(&mut self, rules: &Rules, miner: &mut Miner, frame: &Frame<'_>) -> Vec<Timely> {
        self.active.0 |= rules.always().0;
        let mut splitter = std::mem::take(&mut self.splitter);
        let mut timely = Vec::new();
        let at = frame.at;
        let mut line = |line: Line<'_>| self.line(rules, miner, line, at, &mut timely);
        let fed = splitter.feed(frame.offset, frame.first_line, frame.body, &mut line);
        if frame.exit.is_some() {
            splitter.finish(line);
        }
        self.counts.lines = splitter.lines();
        self.splitter = splitter;
        self.counts.gap_bytes = (self.counts.gap_bytes + fed.gap).saturating_sub(fed.late);
        if fed.new + fed.late > 0 {
            self.counts.frames += 1;
            self.counts.bytes += fed.new + fed.late;
            self.last_at = self.last_at.max(frame.at);
            self.silence_told = false;
            if let Some(last) = self.collector.latest().next() {
                self.active.0 |= rules.detect(last.as_bytes()).0;
            }
            let latest = self.collector.latest().take(TAIL_LINES).map(|line| rules.tail_progress(line.as_bytes()));
            let progress = latest.fold(Progress::default(), Progress::or);
            self.note_progress(progress, self.next_offset());
        }
        timely
    }

    fn line(&mut self, rules: &Rules, miner: &mut Miner, line: Line<'_>, at: Timestamp, timely: &mut Vec<Timely>) {
        let plain = text::plain(line.bytes);
        let mined = miner.line(&plain[crate::prefix::len(&plain)..]);
        let place = Place { offset: line.offset, line: line.number, text: &plain, at, is_logged: false };
        let is_first = mined.is_some_and(|mined| {
            let sighting = self.seen.note(mined.id, at);
            if let Some(told) = self.beats.note(mined.id, sighting, place) {
                timely.push(told);
            }
            sighting.is_first
        });
        let mut spot =
            Spot { offset: line.offset, number: line.number, text: &plain, quoted: false, is_background: false };
        if self.collector.listens_for_passes() {
            self.collector.passed(&plain);
        }
        let can_hit = rules.can_hit(&plain);
        if can_hit || line.number < DETECT_LINES {
            self.active.0 |= rules.detect(&plain).0;
        }
        let hits = if can_hit { rules.look(&plain, self.active) } else { Hits::default() };
        let is_mute = self.in_section(rules, &hits, &mut spot);
        for hit in &hits.timed {
            timely.extend(self.timed.hit(&rules.timed, *hit, place));
        }
        match hits.failure.filter(|failure| !is_mute || failure.is_own()) {
            Some(failure) => {
                spot.is_background = mined.is_some_and(|mined| miner.is_background(mined.id));
                if self.failing(rules, &spot, failure, hits.verdict, at) == Noted::Again {
                    timely.extend(self.timed.repeated(rules.name(failure.rule), place));
                }
            }
            None if is_first
                && miner.learned() >= LEARNED
                && mined.is_some_and(|mined| !miner.is_background(mined.id)) =>
            {
                self.novel += 1;
                self.collector.novel(&spot);
            }
            None => self.collector.plain(&spot),
        }
        if hits.success && !is_mute {
            let visible = text::visible(&plain);
            self.success = Some(text::window(visible.trim(), 0, 160).into_owned());
            if hits.verdict == Some(true) {
                self.standing = Standing::Passed;
            }
        }
        if let Some(progress) = hits.progress {
            self.note_progress(progress, line.offset);
        }
    }

    fn failing(
        &mut self,
        rules: &Rules,
        spot: &Spot<'_>,
        failure: crate::rules::Failure,
        verdict: Option<bool>,
        at: Timestamp,
    ) -> Noted {
        let wakes = failure.wakes() && !spot.quoted;
        let noted = self.collector.hit(spot, failure, rules);
        match noted {
            Noted::New if wakes => self.hold(rules, failure, spot.offset, at),
            Noted::New | Noted::Plain => {}
            Noted::Again => self.counts.suppressed += 1,
        }
        if verdict == Some(false) {
            self.standing = Standing::Verdict;
        } else if !spot.quoted
            && (failure.is_consequence || failure.score >= LIKELY)
            && self.standing != Standing::Verdict
        {
            self.standing = Standing::Failed;
        }
        noted
    }

    /// Whether what the line shows counts for nothing, since it stands in output of another kind.
    fn in_section(&mut self, rules: &Rules, hits: &Hits, spot: &mut Spot<'_>) -> bool {
        let Some((name, left)) = &mut self.section else {
            if let Some(Edge::From(place)) = hits.section {
                self.section = rules.section(place).map(|section| (section.name.clone(), SECTION_LINES));
            }
            return false;
        };
        let place = rules.section_named(name);
        *left = left.saturating_sub(1);
        let is_over = *left == 0 || place.is_none() || hits.section == place.map(Edge::To);
        let is_mute = place.and_then(|place| rules.section(place)).is_some_and(|section| section.mute);
        if let Some(Edge::From(other)) = hits.section.filter(|edge| *edge != Edge::From(place.unwrap_or(usize::MAX))) {
            self.section = rules.section(other).map(|section| (section.name.clone(), SECTION_LINES));
        } else if is_over {
            self.section = None;
        }
        spot.quoted = !is_over;
        is_mute && !is_over
    }

    fn note_progress(&mut self, progress: Progress, offset: u64) {
        if let Some(phase) = progress.phase.filter(|phase| self.phase.as_ref() != Some(phase)) {
            self.phase = Some(phase);
            self.percent = None;
            self.counts.suppressed += u64::from(self.phase_since.is_some());
            self.phase_since = Some(offset);
        }
        if progress.percent.is_some() && progress.percent != self.percent {
            self.percent = progress.percent;
            self.counts.suppressed += 1;
        }
    }
}
