//! Recorded logs of many services, with faults injected at known times: how well the lines of one request are told from those of
//! others, and whether the health watch notices the faults. Nothing is started: it is the observer's own code on files.

mod pace;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
};

use clap::Args;
use flate2::read::GzDecoder;
use kernel::{
    ActionId, TenantId, Timestamp,
    action::Action,
    units::Duration,
    watch::{ErrorLimit, HealthRule, NewErrors, Watch},
};
use observer::{
    services::{
        evidence::Line,
        health::Health,
        watches::{CompiledAction, CompiledWatch},
    },
    windows::{
        judge::{Found, Next, conclude, judge},
        slice::{By, Relation, Slice, distance, relation},
    },
};
use serde_json::{Value, json};

use crate::target::Error;
use signals::Record;

/// How long before a file begins a fault may have been injected and still be under way.
const LASTS_MINUTES: i64 = 10;

/// Which logs.
#[derive(Args)]
pub struct Options {
    /// A folder of `*.csv.gz` (Timestamp, PodName, TraceID, Log) and `fault_list.json`.
    #[arg(long)]
    dir: PathBuf,
    /// How often all files, as one recording, are read for what the pace of their lines tells: minutes are too short to learn it.
    #[arg(long, default_value_t = 10)]
    rounds: u32,
}

/// A row of a file.
struct Row {
    at: Timestamp,
    pod: String,
    service: String,
    trace: String,
    record: Record,
}

/// An injected fault.
struct Fault {
    at: Timestamp,
    service: String,
    kind: String,
}

/// Scores the files of a folder, in order of time.
pub async fn measure(options: &Options) -> Result<Value, Error> {
    let faults = faults(&options.dir.join("fault_list.json"))?;
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&options.dir)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|path| path.to_string_lossy().ends_with(".csv.gz"));
    files.sort();
    let mut watch = HealthWatch::new();
    let mut sets = Vec::new();
    let mut recording = pace::Recording::default();
    for path in &files {
        let rows = rows(path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let set = json!({
            "file": name,
            "lines": rows.len(),
            "slices": {
                "by_trace": slices(&rows, |row| Action { trace_id: Some(row.trace.clone()), ..action(row) }),
                "by_component_and_time": slices(&rows, |row| Action { components: vec![row.pod.clone()], ..action(row) }),
                "by_service_and_time": slices(&rows, action),
            },
            "health": watch.score(&rows, &faults),
        });
        println!("{}", serde_json::to_string_pretty(&set)?);
        sets.push(set);
        recording.add(rows);
    }
    Ok(json!({ "sets": sets, "pace": recording.score(options.rounds) }))
}

fn action(row: &Row) -> Action {
    Action {
        action_id: ActionId::mint(),
        tenant: TenantId::default(),
        service: row.service.clone(),
        actor: "user".into(),
        what: "a request".into(),
        expects: None,
        request_id: None,
        session_id: None,
        trace_id: None,
        components: Vec::new(),
        at: row.at,
        run_id: None,
        call_id: None,
        recorded_by: "loadtest".into(),
    }
}

/// For every request of a file: an action where and when its first line was said, and what is found of it.
fn slices(rows: &[Row], make: impl Fn(&Row) -> Action) -> Value {
    let mut first: BTreeMap<&str, &Row> = BTreeMap::new();
    let mut wanted: BTreeMap<&str, u64> = BTreeMap::new();
    for row in rows {
        first.entry(&row.trace).or_insert(row);
        *wanted.entry(&row.trace).or_default() += 1;
    }
    let (mut found, mut foreign, mut all, mut whole, mut evidence) = (0, 0, 0, 0, 0);
    for (trace, row) in &first {
        let (own, others, bytes) = slice(rows, &make(row), trace);
        all += wanted[trace];
        found += own;
        foreign += others;
        whole += u64::from(own == wanted[trace] && others == 0);
        evidence = evidence.max(bytes);
    }
    json!({
        "requests": first.len(),
        "recall": ratio(found, all),
        "foreign_lines": foreign,
        "exact": whole,
        "evidence_bytes_max": evidence,
    })
}

/// Lines of the trace and of others that are found, and the bytes of evidence that are shown.
fn slice(rows: &[Row], action: &Action, trace: &str) -> (u64, u64, usize) {
    let mut ids: BTreeSet<String> = action.ids().into_iter().map(str::to_owned).collect();
    if ids.is_empty() {
        let here =
            rows.iter().filter(|row| relation(action, &ids, &row.service, &row.record, row.at) == Relation::Other);
        let nearest = here.min_by_key(|row| distance(action, &row.record, row.at));
        ids.extend(nearest.and_then(|row| row.record.trace_id.clone()));
    }
    let rule = CompiledAction::default();
    let mut slices: BTreeMap<&str, Slice> = BTreeMap::new();
    let (mut own, mut others) = (0, 0);
    for (number, row) in rows.iter().enumerate() {
        if relation(action, &ids, &row.service, &row.record, row.at) == Relation::Own {
            *(if row.trace == trace { &mut own } else { &mut others }) += 1;
            let line = Line::new(&row.record, number as u64, 0, row.at);
            slices.entry(&row.service).or_default().take(&rule, &row.record, line, By::Id);
        }
    }
    let slices: Vec<(String, Slice)> = slices.into_iter().map(|(service, slice)| (service.to_owned(), slice)).collect();
    let found = Found { slices: &slices, gaps: 0 };
    let Next::Close(reading) = judge(&rule, action.at, &found, Timestamp::MAX) else { return (own, others, 0) };
    let conclusion = conclude(action, &rule, &found, &reading, Vec::new());
    (own, others, conclusion.observation.evidence.iter().map(|evidence| evidence.excerpt.len()).sum())
}

/// The rules that a careful operator would begin with, for every service.
struct HealthWatch {
    watch: CompiledWatch,
    minds: BTreeMap<String, Vec<Health>>,
    seq: u64,
}

impl HealthWatch {
    fn new() -> Self {
        let minute = Some(Duration::from_secs(60));
        let named = |name: &str| HealthRule { name: name.into(), clear_after: minute, ..HealthRule::default() };
        let share = ErrorLimit { share: Some(0.1), at_least: Some(20), over: minute, ..ErrorLimit::default() };
        let new = NewErrors { learn: Some(Duration::from_secs(50)), count: Some(2) };
        let health = vec![
            HealthRule { errors: Some(share), ..named("error_share") },
            HealthRule { new_errors: Some(new), ..named("new_errors") },
        ];
        let watch = Watch { service: "*".into(), health, ..Watch::default() };
        Self { watch: CompiledWatch::new("doctor", 0, &watch), minds: BTreeMap::new(), seq: 0 }
    }

    /// Runs on through a file: alarms, and whether the faults that were under way are among them.
    fn score(&mut self, rows: &[Row], faults: &[Fault]) -> Value {
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return Value::Null };
        let under_way: Vec<&Fault> = faults.iter().filter(|fault| fault.is_under_way(first.at, last.at)).collect();
        let calls = callers(rows);
        let (mut alarms, mut noticed, mut false_alarms) = (Vec::new(), BTreeSet::new(), 0);
        for row in rows {
            for (service, rule, at, what) in self.record(row) {
                let about: Vec<&&Fault> = under_way
                    .iter()
                    .filter(|fault| {
                        at >= fault.at
                            && (fault.service == service || calls.contains(&(service.clone(), fault.service.clone())))
                    })
                    .collect();
                false_alarms += u64::from(about.is_empty());
                noticed.extend(about.iter().map(|fault| fault.service.clone()));
                alarms.push(json!({ "service": service, "rule": rule, "at": at, "what": what, "about_a_fault": !about.is_empty() }));
            }
        }
        let services: BTreeSet<&str> = under_way.iter().map(|fault| fault.service.as_str()).collect();
        let kinds: BTreeSet<String> =
            under_way.iter().map(|fault| format!("{} {} at {}", fault.kind, fault.service, fault.at)).collect();
        json!({
            "seconds": last.at.duration_since(first.at).as_secs(),
            "faults": kinds,
            "faulty_services": services.len(),
            "noticed": noticed.len(),
            "alarms": alarms,
            "false_alarms": false_alarms,
        })
    }

    fn record(&mut self, row: &Row) -> Vec<(String, String, Timestamp, String)> {
        self.seq += 1;
        let rules = &self.watch.watch.health;
        let minds = self.minds.entry(row.service.clone()).or_insert_with(|| vec![Health::default(); rules.len()]);
        let mut changes = Vec::new();
        for (rule, mind) in rules.iter().zip(minds) {
            let line = || Line::new(&row.record, self.seq, 0, row.at);
            mind.record(rule, None, &row.record, row.at, self.seq, line);
            changes.extend(
                mind.check(rule, row.at)
                    .filter(|change| change.firing)
                    .map(|change| (row.service.clone(), rule.name.clone(), change.at, change.what)),
            );
        }
        changes
    }
}

/// Which services call which, as far as their lines share traces: what is wrong in one shows in those that call it.
fn callers(rows: &[Row]) -> BTreeSet<(String, String)> {
    let mut order: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for row in rows {
        let seen = order.entry(&row.trace).or_default();
        if !seen.contains(&row.service.as_str()) {
            seen.push(&row.service);
        }
    }
    let pairs = order.values().flat_map(|services| {
        services
            .iter()
            .enumerate()
            .flat_map(move |(at, caller)| services[at..].iter().map(move |callee| (*caller, *callee)))
    });
    pairs.map(|(caller, callee)| (caller.to_owned(), callee.to_owned())).collect()
}

impl Fault {
    fn is_under_way(&self, from: Timestamp, to: Timestamp) -> bool {
        let lasts = jiff::SignedDuration::from_mins(LASTS_MINUTES);
        self.at <= to && self.at.checked_add(lasts).is_ok_and(|end| end >= from)
    }
}

fn faults(path: &Path) -> Result<Vec<Fault>, Error> {
    let list: BTreeMap<String, Vec<Value>> = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    let mut faults = Vec::new();
    for fault in list.values().flatten() {
        let text = |name: &str| fault[name].as_str().unwrap_or_default();
        let at: Timestamp = format!("{}Z", text("inject_time").replace(' ', "T")).parse()?;
        faults.push(Fault { at, service: service_of(text("inject_pod")), kind: text("inject_type").to_owned() });
    }
    Ok(faults)
}

/// `ts-order-service-5b67c48447-mv5hb` is a pod of `ts-order-service`.
fn service_of(pod: &str) -> String {
    pod.rsplitn(3, '-').last().unwrap_or(pod).to_owned()
}

fn rows(path: &Path) -> Result<Vec<Row>, Error> {
    let mut text = String::new();
    GzDecoder::new(File::open(path)?).read_to_string(&mut text)?;
    let mut table = csv(&text).into_iter();
    let head = table.next().unwrap_or_default();
    let column = |name: &str| head.iter().position(|have| have == name).ok_or(format!("there is no column `{name}`"));
    let (at, pod, trace, log) = (column("Timestamp")?, column("PodName")?, column("TraceID")?, column("Log")?);
    let mut rows = Vec::new();
    for cells in table.filter(|cells| cells.len() == head.len()) {
        // Some lines of the recordings leave out the zone that all the others have.
        let when: Timestamp = cells[at].parse().or_else(|_| format!("{}Z", cells[at]).parse())?;
        let mut record = Record::from_line(cells[log].as_bytes());
        (record.time, record.component) = (Some(when), Some(cells[pod].clone()));
        rows.push(Row {
            at: when,
            service: service_of(&cells[pod]),
            pod: cells[pod].clone(),
            trace: cells[trace].clone(),
            record,
        });
    }
    rows.sort_by_key(|row| row.at);
    Ok(rows)
}

/// RFC 4180.
fn csv(text: &str) -> Vec<Vec<String>> {
    let (mut rows, mut row, mut cell, mut quoted) = (Vec::new(), Vec::new(), String::new(), false);
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => {
                letters.next();
                cell.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => row.push(std::mem::take(&mut cell)),
            '\n' if !quoted => {
                row.push(std::mem::take(&mut cell));
                rows.push(std::mem::take(&mut row));
            }
            '\r' if !quoted => {}
            letter => cell.push(letter),
        }
    }
    rows
}

fn ratio(part: u64, all: u64) -> f64 {
    if all == 0 { 1.0 } else { (part as f64 / all as f64 * 10_000.0).round() / 10_000.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_cells_may_hold_anything() {
        let rows = csv("a,b\n1,\"x, \"\"y\"\"\nz\"\r\n,\n");
        assert_eq!(rows, [vec!["a", "b"], vec!["1", "x, \"y\"\nz"], vec!["", ""]]);
    }

    #[test]
    fn a_pod_is_of_a_service() {
        assert_eq!(service_of("ts-order-service-5b67c48447-mv5hb"), "ts-order-service");
        assert_eq!(service_of("alone"), "alone");
    }
}
