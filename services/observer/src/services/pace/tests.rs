use super::*;

const TICK: &str = "INFO scheduler: 3 jobs are due";

/// What a service says, and what that tells. Times are in milliseconds.
struct Story {
    pace: Pace,
    seq: u64,
    told: Vec<(i64, Anomaly, String)>,
}

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(1_800_000_000_000 + millis).unwrap()
}

impl Story {
    fn new() -> Self {
        let mut story = Self { pace: Pace::default(), seq: 0, told: Vec::new() };
        story.pace.hears_from(at(0));
        story
    }

    fn say(&mut self, millis: i64, text: &str) {
        self.look(millis);
        self.seq += 1;
        let record = Record::from_text(text);
        let line = || Line::new(&record, self.seq, 0, at(millis));
        let told = self.pace.note(&record, at(millis), line);
        self.tell(millis, told);
        self.look(millis);
    }

    fn look(&mut self, millis: i64) {
        let told = self.pace.check(at(millis));
        self.tell(millis, told);
    }

    fn tell(&mut self, millis: i64, told: Option<Learned>) {
        self.told.extend(told.map(|told| (millis, told.anomaly, told.what)));
    }

    /// Ticks every ten seconds, with requests at random between them.
    fn ticks(&mut self, seconds: std::ops::Range<i64>) {
        for second in seconds {
            if second % 10 == 0 {
                self.say(second * 1000, TICK);
            }
            for request in 0..(second * second * 7919) % 5 {
                self.say(second * 1000 + 100 + request * 150, &format!("INFO GET /items/{second} took {request} ms"));
            }
        }
    }

    /// The same without the ticks.
    fn requests(&mut self, seconds: std::ops::Range<i64>) {
        for second in seconds {
            for request in 0..(second * second * 7919) % 5 {
                self.say(second * 1000 + 100 + request * 150, &format!("INFO GET /items/{second} took {request} ms"));
            }
            self.look(second * 1000 + 999);
        }
    }
}

#[test]
fn a_line_that_came_evenly_for_minutes_and_stays_away_is_told_once_whatever_else_is_said() {
    let mut story = Story::new();
    story.ticks(0..600);
    assert_eq!(story.told, []);
    story.requests(600..900);
    assert_eq!(story.told.len(), 1, "{:?}", story.told);
    let (when, anomaly, what) = &story.told[0];
    assert_eq!((*when, *anomaly), (650_999, Anomaly::Heartbeat), "the last was at 590 s");
    assert_eq!(what, "Lines of a kind came every 10 s, 52 times in a row, and none for 60 s.");
    assert!(story.pace.misses_any());
    // A checkpoint changes nothing; that it comes again is seen at once, and it has to be learned anew.
    story.pace = serde_json::from_str(&serde_json::to_string(&story.pace).unwrap()).unwrap();
    story.pace.hears_from(at(900_000));
    story.say(900_000, TICK);
    assert!(!story.pace.misses_any());
    story.requests(901..1200);
    assert_eq!(story.told.len(), 1, "one beat is no heartbeat: {:?}", story.told);
    story.ticks(1200..2000);
    story.requests(2000..2100);
    assert_eq!(story.told.len(), 2, "{:?}", story.told);
}

#[test]
fn too_few_too_short_and_uneven_are_no_heartbeats() {
    let mut story = Story::new();
    story.ticks(0..250);
    story.requests(250..800);
    assert_eq!(story.told, [], "four minutes");
    let mut story = Story::new();
    for second in 0..20 {
        story.say(second * 30_000, TICK);
    }
    story.requests(600..1200);
    assert_eq!(story.told, [], "twenty times, of which the first show only that they are even");
    let mut story = Story::new();
    story.requests(0..3000);
    story.look(100_000_000);
    assert_eq!(story.told, [], "traffic");
}

#[test]
fn who_was_not_listened_to_is_not_taken_for_silent() {
    let mut story = Story::new();
    story.ticks(0..600);
    // An observer later, the next one begins; until it has read all there is, it knows nothing.
    story.pace = serde_json::from_str(&serde_json::to_string(&story.pace).unwrap()).unwrap();
    story.requests(600..1200);
    assert_eq!(story.told, []);
    story.pace.hears_from(at(1_200_000));
    story.requests(1200..1260);
    assert_eq!(story.told, [], "it may have ticked meanwhile");
    story.requests(1260..1262);
    assert_eq!(story.told.len(), 1);
    // Something was lost on the way.
    let mut story = Story::new();
    story.ticks(0..600);
    story.pace.hears_from(at(640_000));
    story.pace.hears_from(at(620_000));
    story.requests(600..700);
    assert_eq!(story.told, []);
    story.requests(700..702);
    assert_eq!(story.told.len(), 1);
}

#[test]
fn all_that_falls_silent_at_once_is_one_thing() {
    let mut story = Story::new();
    for second in 0..900 {
        for (every, text) in [(5, "INFO cache: swept"), (10, TICK), (30, "INFO metrics: sent")] {
            if second % every == 0 {
                story.say(second * 1000, text);
            }
        }
    }
    for second in 900..1500 {
        story.look(second * 1000);
    }
    assert_eq!(story.told.len(), 1, "{:?}", story.told);
    assert!(story.told[0].2.starts_with("Lines of a kind came every 10 s,"), "{:?}", story.told);
    story.say(1_500_000, TICK);
    assert!(story.pace.misses_any(), "the others still stay away");
    // What never comes again is given up.
    story.look(1_500_000 + GIVEN_UP_MS);
    assert!(!story.pace.misses_any());
}

#[test]
fn a_burst_is_told_with_what_is_usual() {
    let mut story = Story::new();
    for second in 0..600 {
        story.say(second * 1000, &format!("WARN retrying request {second}"));
    }
    assert_eq!(story.told, []);
    for step in 0..1000 {
        story.say(600_000 + step * 30, &format!("WARN retrying request {step}"));
    }
    let what = "Lines of a kind came 600 times within a minute; 60 is usual for them.";
    assert_eq!(story.told, [(617_970, Anomaly::Burst, what.to_owned())]);
}

#[test]
fn it_is_bounded_and_kinds_that_are_gone_make_room() {
    let mut story = Story::new();
    let word = |number: i64| -> String {
        (0..6).map(|digit| char::from(b'a' + ((number >> (digit * 2)) % 4) as u8 + digit as u8)).collect()
    };
    for number in 0..3000 {
        story.say(number * 500, &format!("INFO {} came", word(number)));
    }
    assert!(story.pace.seen.len() <= KINDS);
    let stored = serde_json::to_string(&story.pace).unwrap();
    assert!(stored.len() < 24 * 1024, "{} bytes", stored.len());
    // After a while without them there is room for what comes regularly.
    story.ticks(2000..2700);
    story.requests(2700..2800);
    assert_eq!(story.told.len(), 1, "{:?}", story.told);
}

#[test]
fn numbers_without_words_have_no_pace() {
    let mut pace = Pace::default();
    let record = Record::from_line(br#"{"queue":{"depth":7}}"#);
    for second in 0..2000 {
        let line = || panic!("it is no line");
        assert_eq!(pace.note(&record, at(second * 1000), line), None);
    }
}

#[test]
fn one_that_stops_while_another_stays_away_is_told_too_and_both_are_given_up() {
    let mut story = Story::new();
    for second in 0..1800 {
        if second % 10 == 0 && second < 900 {
            story.say(second * 1000, TICK);
        }
        if second % 5 == 0 {
            story.say(second * 1000, "INFO cache: swept");
        }
    }
    assert_eq!(story.told.len(), 1, "{:?}", story.told);
    story.look(1_860_000);
    assert_eq!(story.told.len(), 2, "{:?}", story.told);
    assert!(story.told[1].2.starts_with("Lines of a kind came every 5 s,"), "{:?}", story.told);
    story.look(890_000 + GIVEN_UP_MS);
    assert!(story.pace.misses_any() && story.pace.gave_up());
    story.look(1_795_000 + GIVEN_UP_MS);
    assert!(!story.pace.misses_any() && story.pace.gave_up());
    assert_eq!(story.told.len(), 2);
}
