use kernel::watch::Watch;

use super::*;

/// What a service says, second by second, and what is told of it: when, the alarm, whether it fires, and whether it wakes.
struct Story {
    watch: CompiledWatch,
    lines: Lines,
    pace: Pace,
    seq: u64,
    told: Vec<(i64, String, bool, bool)>,
    last: Option<Change>,
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

impl Story {
    fn new(watch: &str) -> Self {
        let watch: Watch = serde_saphyr::from_str(&format!("service: shop\n{watch}")).unwrap();
        let watch = CompiledWatch::new("keeper", 0, &watch);
        assert_eq!(watch.rules.as_ref().map_or(0, |rules| rules.problems.len()), 0, "{:?}", watch.rules);
        let mut pace = Pace::default();
        pace.hears_from(at(0));
        Self { watch, lines: Lines::default(), pace, seq: 0, told: Vec::new(), last: None }
    }

    fn say(&mut self, second: i64, line: &str) {
        self.look(second);
        self.seq += 1;
        let record = Record::from_line(line.as_bytes());
        let place = Place { seq: self.seq, index: 0, at: at(second) };
        let line = || Line::new(&record, place.seq, place.index, place.at);
        let learned = self.pace.note(&record, place.at, line);
        self.lines.record(&self.watch, &record, place);
        learned.iter().for_each(|learned| self.lines.learned(&self.watch, learned));
        self.look(second);
    }

    fn look(&mut self, second: i64) {
        // What it has in mind survives being stored.
        self.lines = serde_json::from_str(&serde_json::to_string(&self.lines).unwrap()).unwrap();
        let learned = self.pace.check(at(second));
        learned.iter().for_each(|learned| self.lines.learned(&self.watch, learned));
        self.lines.overdue(&self.watch, &self.pace, at(second));
        for (name, change) in self.lines.check(&self.watch, &self.pace, at(second)) {
            self.told.push((second, name, change.firing, change.wakes));
            self.last = Some(change);
        }
    }

    fn wait(&mut self, from: i64, to: i64) {
        (from..to).for_each(|second| self.look(second));
    }

    fn told(&self) -> Vec<(i64, &str, bool, bool)> {
        self.told.iter().map(|(second, name, firing, wakes)| (*second, name.as_str(), *firing, *wakes)).collect()
    }
}

const FAILURE: &str = "observe.failure";

#[test]
fn failures_settle_are_told_once_and_recover_once() {
    let mut story = Story::new("observe: { failure: ['declined', 'no route'], ignore: ['test card'] }");
    story.say(0, "INFO payment 1 accepted");
    story.say(10, "WARN payment 2 declined by the bank");
    story.say(12, "WARN no route to the bank");
    story.say(13, "WARN payment 3 declined: test card");
    assert_eq!(story.told(), []);
    story.wait(14, 20);
    assert_eq!(story.told(), [(15, FAILURE, true, true)], "with what came within five seconds");
    let change = story.last.clone().unwrap();
    assert_eq!(
        change.what, "3 lines that mean failure, by failure[0], failure[1].",
        "what an agent names is never ignored"
    );
    assert_eq!((change.since, change.episode), (at(10), 2), "its name follows from what was read");
    assert!(change.evidence[0].text.contains("payment 2"), "{change:#?}");
    for second in 20..300 {
        story.say(second, "WARN payment 7 declined by the bank");
    }
    assert_eq!(story.told().len(), 1, "it is known");
    story.wait(300, 400);
    assert_eq!(story.told()[1..], [(359, FAILURE, false, true)]);
    assert_eq!(story.last.as_ref().unwrap().what, "No further line means failure.");
}

#[test]
fn a_word_of_success_ends_what_failed() {
    let mut story = Story::new("observe: { failure: ['lost the bank'], success: ['found the bank'], settle: 5s }");
    story.say(0, "WARN lost the bank");
    story.say(3, "INFO found the bank");
    story.wait(4, 30);
    assert_eq!(story.told(), [], "it had passed before it was told");
    story.say(30, "WARN lost the bank");
    story.wait(31, 40);
    story.say(40, "INFO found the bank");
    assert_eq!(story.told(), [(35, FAILURE, true, true), (40, FAILURE, false, true)]);
}

#[test]
fn fields_expressions_and_packs_mean_what_they_mean_for_tools() {
    let mut story = Story::new(
        "observe: { records: [{ path: http.status, op: ge, value: 500 }, { where: 'data.took_ms > 3000 && data.severity == \"info\"' }], \
         packs: [kubernetes], settle: 1s }",
    );
    for (second, line, hits) in [
        (0, r#"{"severity":"INFO","body":"GET /","attributes":{"http.status":200,"took_ms":12}}"#, false),
        (100, "INFO panic: this is of a pack that is not named", false),
        (200, r#"{"severity":"INFO","body":"GET /","attributes":{"http.status":503,"took_ms":12}}"#, true),
        (300, r#"{"level":"info","msg":"GET /","took_ms":5000}"#, true),
        (400, "Warning BackOff pod/shop-1 Back-off restarting failed container", true),
    ] {
        let before = story.told.len();
        story.say(second, line);
        story.wait(second + 1, second + 3);
        assert_eq!(story.told.len() > before, hits, "{line}");
        story.wait(second + 3, second + 70);
    }
    let named: Vec<_> = story.told.iter().map(|(_, name, firing, _)| (name.as_str(), *firing)).collect();
    assert_eq!(named, [(FAILURE, true), (FAILURE, false)].repeat(3));
}

#[test]
fn thresholds_stages_and_heartbeats_fire_and_recover() {
    let mut story = Story::new(
        "observe:\n  thresholds: [{ id: retries, match: retrying, count: 3, within: 10s }]\n  \
         machines: [{ id: restart, stages: [{ name: begun, enter: 'shutting down', within: 20s }, { name: done, enter: ready }] }]\n  \
         heartbeats: [{ id: tick, match: 'tick \\d+', every: 30s }]",
    );
    for second in [0, 4, 8] {
        story.say(second, "WARN retrying");
    }
    assert_eq!(story.told(), [(8, "observe.threshold.retries", true, true)]);
    assert!(story.last.as_ref().unwrap().what.contains("3 times within 10s, at line 1 of message 3"));
    story.wait(9, 100);
    assert_eq!(story.told()[1..], [(88, "observe.threshold.retries", false, true)]);
    story.told.clear();
    story.say(400, "INFO shutting down");
    story.wait(401, 450);
    assert_eq!(story.told(), [(421, "observe.stage.restart.begun", true, true)]);
    story.say(450, "INFO ready");
    story.wait(451, 520);
    assert_eq!(story.told()[1..], [(510, "observe.stage.restart.begun", false, true)]);
    story.told.clear();
    story.say(1200, "INFO tick 1");
    story.wait(1201, 1300);
    assert_eq!(story.told(), [(1231, "observe.heartbeat.tick", true, true)]);
    for second in (1300..1400).step_by(20) {
        story.say(second, "INFO tick 2");
    }
    assert_eq!(story.told()[1..], [(1360, "observe.heartbeat.tick", false, true)]);
}

#[test]
fn a_heartbeat_is_not_missed_by_those_who_did_not_listen() {
    let mut story = Story::new("observe: { heartbeats: [{ id: tick, match: tick, every: 30s }] }");
    story.say(0, "INFO tick");
    story.pace = Pace::default();
    story.wait(1, 300);
    assert_eq!(story.told(), []);
    story.pace.hears_from(at(300));
    story.wait(300, 331);
    assert_eq!(story.told(), []);
    story.wait(331, 340);
    assert_eq!(story.told(), [(331, "observe.heartbeat.tick", true, true)]);
}

#[test]
fn what_comes_soon_after_a_run_was_started_starts_no_other() {
    let mut story = Story::new(
        "health: [{ name: silence, silence: 24h }]\nobserve: { failure: [broken], thresholds: [{ id: slow, match: slow, count: 1, \
         within: 1s }], escalate: [{ on: [failure], rule: 'failure[0]', wake: now }] }",
    );
    let mut runs = Vec::new();
    for second in (0..20_000).step_by(100) {
        story.say(second, "WARN slow");
        story.wait(second + 1, second + 90);
        runs.extend(story.told.iter().filter(|(.., firing, wakes)| *firing && *wakes).map(|(second, ..)| *second));
        story.told.clear();
    }
    assert_eq!(runs, [0, 300, 900, 2100, 4500, 9300, 14_100, 18_900]);
    story.say(60_000, "WARN broken");
    assert_eq!(story.told(), [(60_000, FAILURE, true, true)], "after a calm time, at once");
    story.told.clear();
    story.say(60_100, "WARN slow");
    let slow = (60_100, "observe.threshold.slow", true, false);
    assert!(story.told().contains(&slow), "it is told all the same: {:?}", story.told());
}

#[test]
fn what_nobody_wants_to_be_woken_for_is_told() {
    let mut story = Story::new(
        "observe: { failure: [broken, odd], escalate: [{ on: [failure], rule: 'failure[1]', wake: never }], settle: 1s }",
    );
    story.say(0, "WARN odd");
    story.wait(1, 3);
    assert_eq!(story.told(), [(1, "observe.failure.quiet", true, false)]);
    story.say(3, "WARN broken");
    story.wait(4, 6);
    assert_eq!(story.told()[1..], [(4, FAILURE, true, true)]);
}

fn ticking(story: &mut Story, seconds: std::ops::Range<i64>) {
    for second in seconds.step_by(10) {
        story.say(second, "INFO scheduler: 3 jobs are due");
        story.say(second + 3, "INFO GET /");
    }
}

#[test]
fn what_the_pace_tells_is_told_without_a_rule_and_its_end_too() {
    let mut story = Story::new("");
    ticking(&mut story, 0..600);
    story.wait(600, 700);
    let learned = "observe.heartbeat.learned";
    assert_eq!(story.told(), [(651, learned, true, true)]);
    assert_eq!(story.last.as_ref().unwrap().evidence[0].text, "INFO scheduler: 3 jobs are due");
    ticking(&mut story, 700..800);
    story.wait(800, 800);
    assert_eq!(story.told()[1..], [(763, learned, false, true)], "it came again, and the others with it");
    for line in 0..2000 {
        story.say(900 + line / 200, "WARN queue is slow");
    }
    assert_eq!(story.told().len(), 2, "that it was slow before is not known");
}

#[test]
fn a_burst_wakes_only_who_asks_for_it() {
    for (escalate, wakes) in [("", false), ("observe: { escalate: [{ on: [burst], wake: now }] }", true)] {
        let mut story = Story::new(escalate);
        for second in 0..300 {
            story.say(second, "WARN queue is slow");
        }
        for line in 0..2000 {
            story.say(300 + line / 200, "WARN queue is slow");
        }
        story.wait(311, 600);
        let burst = "observe.burst.learned";
        // That the line came once a second makes it a heartbeat too.
        story.told.retain(|(_, name, ..)| name == burst);
        assert_eq!(story.told(), [(302, burst, true, wakes), (482, burst, false, wakes)], "{escalate}");
    }
}

#[test]
fn who_says_what_life_is_is_not_second_guessed() {
    for watch in [
        "health: [{ name: silence, silence: 1h }]",
        "observe: { heartbeats: [{ id: tick, match: never, every: 1h }] }",
        "observe: { escalate: [{ on: [heartbeat], rule: learned, wake: never }] }",
    ] {
        let mut story = Story::new(watch);
        ticking(&mut story, 0..600);
        story.wait(600, 700);
        let woken = story.told.iter().filter(|(.., wakes)| *wakes).count();
        assert_eq!((woken, story.told.len()), (0, usize::from(watch.contains("escalate"))), "{watch}");
    }
}

#[test]
fn a_file_that_says_something_else_begins_its_windows_anew() {
    let mut story = Story::new("observe: { thresholds: [{ id: a, match: x, count: 2, within: 1m }] }");
    story.say(0, "x");
    let other = Story::new("observe: { thresholds: [{ id: b, match: x, count: 2, within: 1m }] }");
    story.watch = other.watch;
    story.say(1, "x");
    assert_eq!(story.told(), []);
    story.say(2, "x");
    assert_eq!(story.told(), [(2, "observe.threshold.b", true, true)]);
}

#[test]
fn it_is_bounded() {
    let mut story = Story::new("observe: { failure: [broken] }");
    for second in 0..2000 {
        story.say(second, &format!("WARN broken {}", "x".repeat(1000)));
    }
    let stored = serde_json::to_string(&story.lines).unwrap();
    assert!(stored.len() < 4096, "{} bytes", stored.len());
}

#[test]
fn what_goes_on_after_the_quiet_time_starts_a_run_after_all() {
    let mut story =
        Story::new("observe: { failure: [broken], heartbeats: [{ id: tick, match: tick, every: 30s }], settle: 1s }");
    story.say(0, "INFO tick");
    story.say(10, "WARN broken");
    story.wait(11, 320);
    let tick = "observe.heartbeat.tick";
    let told =
        [(11, FAILURE, true, true), (31, tick, true, false), (70, FAILURE, false, true), (311, tick, true, true)];
    assert_eq!(story.told(), told, "five minutes after the first run");
    let change = story.last.clone().unwrap();
    assert_eq!((change.since, change.episode, change.again), (at(0), 1, true), "the other name was taken");
    // A failure that comes again and again, also ten minutes after the second run; and one that does so no more.
    for (until, woke) in [(1000, &[(322, false), (921, true)][..]), (900, &[(322, false)][..])] {
        let (lines, pace) = (story.lines.clone(), story.pace.clone());
        story.told.clear();
        for second in (320..1100).step_by(20) {
            story.say(second, "INFO tick");
            story.say(second + 1, if second < until { "WARN broken" } else { "INFO fine" });
            story.wait(second + 2, second + 20);
        }
        let fired = story.told.iter().filter(|told| told.1 == FAILURE && told.2).map(|told| (told.0, told.3));
        assert_eq!(fired.collect::<Vec<_>>(), woke);
        (story.lines, story.pace) = (lines, pace);
    }
}

#[test]
fn a_small_failure_that_lasts_hides_no_other() {
    let mut story = Story::new(
        "observe: { failure: ['cache miss', 'lost the database', 'odd'], success: ['all is well'], settle: 5s, \
         escalate: [{ on: [failure], rule: 'failure[1]', wake: now }] }",
    );
    let small = |story: &mut Story, seconds: std::ops::Range<i64>| {
        for second in seconds.step_by(50) {
            story.say(second, "WARN cache miss");
            story.wait(second + 1, second + 50);
        }
    };
    small(&mut story, 0..1000);
    assert_eq!(story.told(), [(5, FAILURE, true, true)]);
    story.say(1000, "FATAL lost the database");
    assert_eq!(story.told()[1..], [(1000, FAILURE, true, true)], "at once");
    let change = story.last.clone().unwrap();
    assert_eq!((change.since, change.episode, change.again), (at(1000), 21, false));
    assert_eq!(change.what, "A line that means failure, by failure[1].");
    assert!(change.evidence[0].text.contains("database"), "{change:#?}");
    small(&mut story, 1001..3000);
    story.say(3001, "FATAL lost the database");
    assert_eq!(story.told.len(), 2, "it is known: {:?}", story.told);
    // What passes before it is told leaves what was told before to be over.
    story.say(3002, "WARN odd");
    story.say(3003, "INFO all is well");
    assert_eq!(story.told()[2..], [(3003, FAILURE, false, true)]);
}

#[test]
fn a_learned_heartbeat_that_is_given_up_did_not_come_again() {
    let mut story = Story::new("");
    ticking(&mut story, 0..600);
    story.wait(600, 4400);
    let learned = "observe.heartbeat.learned";
    let told: Vec<_> = story.told.iter().map(|told| (told.1.as_str(), told.2)).collect();
    assert_eq!(told, [(learned, true), (learned, false)]);
    assert_eq!(story.last.as_ref().unwrap().what, "It has not come again, and is not waited for any more.");
}

#[test]
fn a_learned_heartbeat_that_stops_beside_another_is_an_alarm_of_its_own() {
    let mut story = Story::new("");
    let both = |story: &mut Story, seconds: std::ops::Range<i64>, is_whole: bool| {
        for second in seconds.step_by(10) {
            if is_whole {
                story.say(second, "INFO scheduler: 3 jobs are due");
            }
            story.say(second + 3, "INFO cache: swept");
            story.wait(second + 4, second + 10);
        }
    };
    both(&mut story, 0..600, true);
    both(&mut story, 600..1200, false);
    story.wait(1200, 1300);
    let learned = "observe.heartbeat.learned";
    assert_eq!(story.told(), [(653, learned, true, true), (1254, learned, true, true)]);
    let change = story.last.clone().unwrap();
    assert_eq!(change.since, at(1193));
    assert_eq!((change.evidence.len(), change.evidence[0].text.as_str()), (1, "INFO cache: swept"));
}
