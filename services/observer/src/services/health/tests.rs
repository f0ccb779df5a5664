use kernel::watch::{ErrorLimit, FieldLimit, LineLimit, NewErrors};
use serde_json::{Value, json};

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn rule() -> HealthRule {
    HealthRule { name: "r".into(), clear_after: Some(units::Duration::from_secs(30)), ..HealthRule::default() }
}

/// What a service says, second by second.
struct Story {
    rule: HealthRule,
    pattern: Option<Regex>,
    health: Health,
    seq: u64,
    told: Vec<(i64, bool)>,
}

impl Story {
    fn new(rule: HealthRule) -> Self {
        let pattern = rule.lines.as_ref().map(|lines| Regex::new(&lines.pattern).unwrap());
        Self { rule, pattern, health: Health::default(), seq: 0, told: Vec::new() }
    }

    fn say(&mut self, second: i64, line: &str) {
        self.hear(second, line);
        self.look(second);
    }

    fn hear(&mut self, second: i64, line: &str) {
        self.seq += 1;
        let record = Record::from_line(line.as_bytes());
        let line = || Line::new(&record, self.seq, 0, at(second));
        self.health.record(&self.rule, self.pattern.as_ref(), &record, at(second), self.seq, line);
    }

    fn look(&mut self, second: i64) {
        // What it has in mind survives being stored.
        let stored = serde_json::to_string(&self.health).unwrap();
        self.health = serde_json::from_str(&stored).unwrap();
        if let Some(change) = self.health.check(&self.rule, at(second)) {
            self.told.push((second, change.firing));
        }
    }
}

#[test]
fn a_share_of_faults_fires_once_and_recovers_once() {
    let errors = ErrorLimit { share: Some(0.2), at_least: Some(10), ..ErrorLimit::default() };
    let mut story = Story::new(HealthRule { errors: Some(errors), ..rule() });
    story.say(0, "ERROR alone");
    for second in 1..200 {
        let line = if (60..90).contains(&second) && second % 2 == 0 { "ERROR no route" } else { "INFO fine" };
        story.say(second, line);
    }
    assert_eq!(story.told.len(), 2, "{:?}", story.told);
    assert_eq!((story.told[0].1, story.told[1].1), (true, false));
    assert!((70..90).contains(&story.told[0].0) && story.told[1].0 > 120, "{:?}", story.told);
}

#[test]
fn a_number_has_room_between_alarm_and_recovery() {
    let field = FieldLimit { name: "depth".into(), above: Some(100.0), clear: Some(50.0), ..FieldLimit::default() };
    let hold = Some(units::Duration::from_secs(10));
    let mut story = Story::new(HealthRule { field: Some(field), hold, ..rule() });
    let mut say = |second, depth: u32| story.say(second, &json!({ "msg": "x", "depth": depth }).to_string());
    say(0, 150);
    say(5, 40);
    say(10, 150);
    say(19, 150);
    say(20, 151);
    for second in 21..60 {
        say(second, if second % 2 == 0 { 101 } else { 99 });
    }
    say(60, 40);
    say(89, 60);
    say(91, 40);
    assert_eq!(story.told, [(20, true), (91, false)]);
}

/// A data point of a metric, as it comes from the bus.
fn point(metric: &str, labels: &Value, number: f64) -> String {
    let mut attributes = labels.as_object().unwrap().clone();
    attributes.extend([("escapement.point".to_owned(), json!(metric)), (metric.to_owned(), json!(number))]);
    json!({ "attributes": attributes }).to_string()
}

#[test]
fn a_full_disk_is_not_well_because_another_is_empty() {
    const DISK: &str = "system.filesystem.utilization";
    let only = [("state".to_owned(), "used".to_owned())].into();
    let field = FieldLimit { name: DISK.into(), above: Some(0.9), only, ..FieldLimit::default() };
    let hold = Some(units::Duration::from_secs(20));
    let mut story = Story::new(HealthRule { field: Some(field), hold, ..rule() });
    let disk = |at: &str, state: &str, number| point(DISK, &json!({ "mountpoint": at, "state": state }), number);
    for second in (0..400).step_by(10) {
        // The one that is full is made room on after five minutes, when the other has been taken away.
        story.say(second, &disk("/data", "used", if second < 300 { 0.95 } else { 0.5 }));
        story.say(second, &disk("/data", "free", if second < 300 { 0.05 } else { 0.5 }));
        if second < 50 {
            story.say(second, &disk("/", "used", 0.2));
        }
        story.say(second, &disk("/", "free", 0.97));
    }
    assert_eq!(story.told, [(20, true), (330, false)]);
    assert!(story.health.lines.is_empty(), "what showed it is over with it");
}

#[test]
fn what_is_gone_holds_no_alarm() {
    let field = FieldLimit { name: "memory".into(), above: Some(100.0), ..FieldLimit::default() };
    let mut story = Story::new(HealthRule { field: Some(field), ..rule() });
    let mut say = |second, pod: &str, memory| story.say(second, &json!({ "pod": pod, "memory": memory }).to_string());
    say(0, "one", 90);
    say(1, "two", 150);
    for second in (10..500).step_by(10) {
        say(second, "one", 90);
    }
    // Nobody has heard of the second for five minutes.
    assert_eq!(story.told, [(1, true), (340, false)]);
}

#[test]
fn a_counter_is_judged_by_how_much_it_rises() {
    const RESTARTS: &str = "k8s.container.restarts";
    let over = Some(units::Duration::from_secs(60));
    let field = FieldLimit { name: RESTARTS.into(), rise: true, above: Some(2.0), over, ..FieldLimit::default() };
    let mut story = Story::new(HealthRule { field: Some(field), ..rule() });
    let pod = |pod: &str, number| point(RESTARTS, &json!({ "pod": pod }), number);
    // Whatever it was before, and that there is a new one, is no rise.
    story.say(0, &pod("one", 17.0));
    story.say(1, &pod("two", 40.0));
    for (second, number) in [(10, 18.0), (20, 19.0), (30, 19.0)] {
        story.say(second, &pod("one", number));
    }
    assert_eq!(story.told, []);
    // One that begins anew has counted from nothing.
    story.say(40, &pod("two", 1.0));
    assert_eq!(story.told, [(40, true)]);
    assert_eq!(story.health.lines.len(), 3, "each rise is evidence");
    for second in (50..200).step_by(10) {
        story.say(second, &pod("one", 19.0));
    }
    // The first of three has left the minute that counts, and half a minute has passed since.
    assert_eq!(story.told, [(40, true), (100, false)]);
}

#[test]
fn a_counter_that_only_says_what_came_is_added_up() {
    let over = Some(units::Duration::from_secs(60));
    let field = FieldLimit { name: "errors".into(), above: Some(5.0), over, ..FieldLimit::default() };
    let said = |pod: &str, came: f64| point("errors", &json!({ "pod": pod, "escapement.delta": true }), came);
    // What came of both pods within a minute.
    let rises = FieldLimit { rise: true, ..field.clone() };
    let mut story = Story::new(HealthRule { field: Some(rises), ..rule() });
    for (second, pod, came) in [(0, "one", 2.0), (10, "two", 3.0), (20, "one", 0.0), (30, "one", 1.0)] {
        story.say(second, &said(pod, came));
    }
    assert_eq!(story.told, [(30, true)], "the first of each counts as well");
    assert_eq!(story.health.lines.len(), 3, "that nothing came is no evidence");
    for second in (40..200).step_by(10) {
        story.say(second, &said("two", if second == 50 { 2.0 } else { 0.0 }));
    }
    // At 60 there are six again, as two have left and two have come; at 70 three of them have left.
    assert_eq!(story.told, [(30, true), (100, false)]);

    // All that came of one since it is known: it does not begin anew because less came than before.
    let mut story = Story::new(HealthRule { field: Some(field), ..rule() });
    for (second, came) in [(0, 4.0), (10, 1.0), (20, 1.0), (30, -3.0), (70, 0.0)] {
        story.say(second, &said("one", came));
        story.say(second, &said("two", 1.0));
    }
    assert_eq!(story.told, [(20, true), (70, false)]);
}

#[test]
fn quantiles_need_enough_numbers() {
    let field = FieldLimit { name: "ms".into(), above: Some(500.0), quantile: Some(0.9), ..FieldLimit::default() };
    let mut story = Story::new(HealthRule { field: Some(field), ..rule() });
    for second in 0..19 {
        story.say(second, &json!({ "ms": 900 }).to_string());
    }
    assert_eq!(story.told, []);
    story.say(19, &json!({ "ms": "900" }).to_string());
    assert_eq!(story.told, [(19, true)]);
}

#[test]
fn a_line_may_come_so_often() {
    let lines = LineLimit { pattern: "Started .* in".into(), count: 2, over: Some(units::Duration::from_secs(600)) };
    let mut story = Story::new(HealthRule { lines: Some(lines), ..rule() });
    for minute in 0..3 {
        story.say(minute * 60, "INFO Started Orders in 3 s");
    }
    assert_eq!(story.told, [(120, true)]);
}

#[test]
fn faults_are_learnt_and_new_ones_are_told() {
    let new = NewErrors { learn: Some(units::Duration::from_secs(60)), count: None };
    let mut story = Story::new(HealthRule { new_errors: Some(new), ..rule() });
    story.say(0, "INFO started");
    story.say(10, "ERROR no stock for 17");
    story.say(70, "ERROR no stock for 18");
    assert_eq!(story.told, []);
    story.say(80, "ERROR connection 3 refused");
    story.say(81, "ERROR connection 4 refused");
    story.look(100);
    story.look(112);
    story.look(150);
    assert_eq!(story.told, [(80, true), (150, false)]);
    story.say(160, "ERROR connection 5 refused");
    assert_eq!(story.told.len(), 2, "it is known now");
}

#[test]
fn silence_is_noticed_and_ends() {
    let mut story = Story::new(HealthRule { silence: Some(units::Duration::from_secs(120)), ..rule() });
    story.look(0);
    story.say(10, "INFO here");
    story.look(129);
    assert_eq!(story.told, []);
    story.look(131);
    story.say(140, "INFO here again");
    story.say(175, "INFO and again");
    assert_eq!(story.told, [(131, true), (175, false)]);
}

#[test]
fn what_is_kept_is_bounded() {
    let new = NewErrors { learn: Some(units::Duration::from_secs(0)), count: None };
    let mut story = Story::new(HealthRule { new_errors: Some(new), ..rule() });
    for number in 0..3000_u32 {
        let word: String = number.to_string().bytes().map(|digit| char::from(b'g' + digit - b'0')).collect();
        story.seq += 1;
        let record = Record::from_text(&format!("ERROR {word}"));
        let line = || Line::new(&record, 1, 0, at(0));
        story.health.record(&story.rule, None, &record, at(i64::from(number)), story.seq, line);
    }
    assert!(serde_json::to_string(&story.health).unwrap().len() < 64 * 1024);
    let over = Some(units::Duration::from_secs(86_400));
    let field = FieldLimit { name: "n".into(), rise: true, above: Some(1e9), over, ..FieldLimit::default() };
    let mut story = Story::new(HealthRule { field: Some(field), ..rule() });
    for number in 0..20_000_u32 {
        story.hear(i64::from(number), &json!({ "pod": format!("p{}", number % 600), "n": number }).to_string());
    }
    assert!(serde_json::to_string(&story.health).unwrap().len() < 96 * 1024);
}

#[test]
fn the_largest_numbers_leave_what_is_in_mind_readable() {
    let over = Some(units::Duration::from_secs(600));
    let field = FieldLimit { name: "n".into(), rise: true, above: Some(2.0), over, ..FieldLimit::default() };
    let mut story = Story::new(HealthRule { field: Some(field), ..rule() });
    for second in 0..200 {
        let number = [-1.7e308, 1.7e308, 0.0, 1.7e308][second % 4];
        // This reads again what it has stored.
        story.say(second as i64, &json!({ "n": number }).to_string());
        story.say(second as i64, &point("n", &json!({ "escapement.delta": true }), 1.7e308));
    }
    assert!(story.told.iter().any(|(_, firing)| *firing), "{:?}", story.told);
}

#[test]
fn many_series_that_are_heard_in_turn_are_all_known() {
    let over = Some(units::Duration::from_secs(600));
    let field = FieldLimit { name: "n".into(), rise: true, above: Some(2.0), over, ..FieldLimit::default() };
    for pods in [100, 600] {
        let mut story = Story::new(HealthRule { field: Some(field.clone()), ..rule() });
        for round in 0..4 {
            for pod in 0..pods {
                story.hear(round * 30, &json!({ "pod": format!("p{pod}"), "n": round }).to_string());
            }
            story.look(round * 30);
        }
        assert_eq!(story.told, [(30, true)], "{pods}");
        assert!(serde_json::to_string(&story.health).unwrap().len() < 96 * 1024);
    }
}
