//! Whether the simulation would notice: each rule of the kernel, and each promise of the engine and the roles, is broken on
//! purpose, and some schedule has to fail.

use kernel::mutants::{Mutant, break_rule};

use crate::{FIRST_SEED, protocol::Protocol, search};

/// Schedules within which a broken rule has to be noticed.
const WITHIN: usize = 100_000;

/// The first schedule that notices, and by which promise.
fn noticed(protocol: Protocol, mutant: Option<Mutant>) -> Option<&'static str> {
    search(protocol, FIRST_SEED, WITHIN, || break_rule(mutant)).err().map(|failure| failure.violation.rule)
}

#[test]
fn every_broken_rule_of_the_kernel_is_noticed() {
    let mut missed = Vec::new();
    // The simulated trees of runs are not deep enough to meet the limit of their depth (issue 3).
    let met = Mutant::ALL.iter().filter(|mutant| !matches!(mutant, Mutant::SpawnsTooDeep));
    for mutant in met {
        match noticed(Protocol::RIGHT, Some(*mutant)) {
            Some(rule) => eprintln!("{mutant:?}: {rule}"),
            None => missed.push(mutant),
        }
    }
    assert!(missed.is_empty(), "nobody noticed {missed:?}");
}

#[test]
fn every_broken_promise_of_engine_and_roles_is_noticed() {
    let mut missed = Vec::new();
    for (name, protocol) in Protocol::broken() {
        match noticed(protocol, None) {
            Some(rule) => eprintln!("{name}: {rule}"),
            None => missed.push(name),
        }
    }
    assert!(missed.is_empty(), "nobody noticed {missed:?}");
}
