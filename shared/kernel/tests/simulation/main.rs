//! All of the runtime in one thread, driven by one seed: many runs, seven roles, and everything that can go wrong between
//! them. After every commit and every effect the promises are checked, and in the end that everything came to its end.
//!
//! | variable | what it does |
//! | --- | --- |
//! | `ESC_SIM_SCHEDULES` | how many schedules (100,000; ten times as many with `ESC_TEST_LONG=1`) |
//! | `ESC_SIM_SEED` | plays the one schedule of this seed, and tells its story if it fails |
//!
//! With the feature `mutants` each rule is broken on purpose, to see that the simulation would notice:
//! `cargo test -p kernel --features mutants --test simulation broken`.
//!
//! A failing seed is printed with the shortest and mildest story that fails in the same way.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
#![allow(clippy::cast_possible_wrap, reason = "small numbers")]

mod bus;
mod checks;
mod choice;
mod door;
mod model;
#[cfg(feature = "mutants")]
mod mutants;
mod outside;
mod protocol;
mod roles;
mod schedule;
mod tasks;
mod world;

use std::{
    env,
    fmt::Write as _,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Instant,
};

use choice::{Choices, SplitMix, shrink};
use kernel::audit::Violation;
use protocol::Protocol;
use schedule::{Report, play};

/// Where seeds begin.
const FIRST_SEED: u64 = 0x0e5c_a9e0;
/// Shorter candidates that are tried on a failed schedule.
const SHRINKS: usize = 4000;

fn setting(name: &str) -> Option<u64> {
    env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("`{name}` is no number: {value}")))
}

/// A schedule that failed.
struct Failure {
    seed: u64,
    violation: Violation,
    made: Vec<u32>,
}

/// Plays the schedule of a seed; what is wrong, if anything is.
fn fails(protocol: Protocol, seed: u64) -> Result<usize, Failure> {
    let report = played(protocol, Choices::from_seed(seed), false);
    match report.violations.into_iter().next() {
        None => Ok(report.events),
        Some(violation) => Err(Failure { seed, violation, made: report.made }),
    }
}

/// A panic is a failure like any other.
fn played(protocol: Protocol, choices: Choices, traced: bool) -> Report {
    catch_unwind(AssertUnwindSafe(|| play(protocol, choices, traced))).unwrap_or_else(|panic| {
        let detail = panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "a panic".to_owned());
        let run_id = kernel::RunId(uuid::Uuid::nil());
        let violation = Violation { run_id, seq: None, rule: "world.no_panic", detail };
        Report { violations: vec![violation], made: Vec::new(), trace: Vec::new(), events: 0 }
    })
}

/// Plays `count` schedules on all processors, each of which is prepared; the first that fails.
fn search(protocol: Protocol, first: u64, count: usize, prepare: impl Fn() + Sync) -> Result<usize, Failure> {
    let (next, events, found) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let threads = thread::available_parallelism().map_or(2, usize::from);
    let worker = || {
        prepare();
        while !found.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                break;
            }
            let seed = SplitMix(first.wrapping_add(number as u64)).next();
            match fails(protocol, seed) {
                Ok(made) => _ = events.fetch_add(made, Ordering::Relaxed),
                Err(failure) => {
                    found.store(true, Ordering::Relaxed);
                    return Some(failure);
                }
            }
        }
        None
    };
    let failure = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().filter_map(|worker| worker.join().unwrap()).next()
    });
    failure.map_or_else(|| Ok(events.into_inner()), Err)
}

/// The shortest and mildest schedule that breaks the same rule, as a story.
fn story(protocol: Protocol, failure: &Failure) -> String {
    let rule = failure.violation.rule;
    let breaks = |list| {
        let report = played(protocol, Choices::from_list(list), false);
        report.violations.iter().any(|violation| violation.rule == rule).then_some(report.made)
    };
    let shortest = shrink(failure.made.clone(), SHRINKS, breaks);
    let report = played(protocol, Choices::from_list(shortest), true);
    let mut story = format!("{:?}\nseed: ESC_SIM_SEED={}\n", failure.violation, failure.seed);
    let _ = writeln!(story, "shrunk to {} choices:\n{}", report.made.len(), report.trace.join("\n"));
    for violation in &report.violations {
        let _ = writeln!(story, "=> {}: {} (event {:?})", violation.rule, violation.detail, violation.seq);
    }
    story
}

#[test]
fn every_schedule_keeps_the_promises() {
    let protocol = Protocol::RIGHT;
    if let Some(seed) = setting("ESC_SIM_SEED") {
        if let Err(failure) = fails(protocol, seed) {
            panic!("{}", story(protocol, &failure));
        }
        return;
    }
    let long = if env::var_os("ESC_TEST_LONG").is_some_and(|value| value == "1") { 10 } else { 1 };
    let count = setting("ESC_SIM_SCHEDULES").map_or(100_000 * long, |count| usize::try_from(count).unwrap());
    let began = Instant::now();
    match search(protocol, FIRST_SEED, count, || ()) {
        Ok(events) => eprintln!("{count} schedules with {events} events in {:?}", began.elapsed()),
        Err(failure) => panic!("{}", story(protocol, &failure)),
    }
}

#[test]
fn a_seed_always_plays_the_same_schedule() {
    for seed in 0..20 {
        let [one, two] = [(), ()].map(|()| played(Protocol::RIGHT, Choices::from_seed(seed), true));
        assert_eq!(one.trace, two.trace);
        let again = played(Protocol::RIGHT, Choices::from_list(one.made.clone()), true);
        assert_eq!(one.trace, again.trace, "what was chosen replays too");
    }
}
