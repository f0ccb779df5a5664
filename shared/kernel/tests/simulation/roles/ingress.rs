//! The public door: runs, people's words, and events from outside, which are recorded once and then brought to the waits that
//! want them.

use std::collections::HashMap;

use kernel::{
    Block, Command, Rejection, RunId, Trust, WaitId,
    command::{AddMessage, ByOperator, CreateRun, Declassify},
    event::RunCreated,
    wait::ExternalPattern,
};

use crate::{
    door::patterns,
    tasks::Hand,
    world::{External, World},
};

/// How old an undispatched event is when somebody else takes it up, in milliseconds.
const OLD: i64 = 4000;

pub fn create(hand: &Hand, run: RunId, created: RunCreated, hold: Option<String>) {
    command(hand, run, &Command::Create(Box::new(CreateRun { created, hold })));
}

pub fn write(hand: &Hand, run: RunId) {
    let block = Block::new("look again", Trust::Operator, "operator:ann");
    command(hand, run, &Command::AddMessage(AddMessage { block }));
}

pub fn ann() -> ByOperator {
    ByOperator { by: "ann".into(), reason: None }
}

/// Vouches for what the run was created with.
pub fn vouch() -> Command {
    Command::Declassify(Declassify { text: "a name".into(), from: 1, by: "ann".into(), reason: "she knows it".into() })
}

/// Anything that a person asks for. If the door dies, they never hear of it, and do not know whether it was done.
pub fn command(hand: &Hand, run: RunId, command: &Command) {
    let request = hand.attempt();
    // Who hears nothing may ask once more, under the same name.
    let times = 1 + hand.with(|world| usize::from(world.choices.chance(20)));
    for _ in 0..times {
        let (worker, command) = (hand.clone(), command.clone());
        hand.spawn("request", async move {
            let _ = worker.submit(run, &command, format!("request/{request}")).await;
        });
    }
}

/// A condition of a wait that is about an event.
struct Match {
    run: RunId,
    wait: WaitId,
    leaf: u16,
    pattern: ExternalPattern,
}

/// Takes in an event from outside: recorded once, dispatched unless that was done before.
pub fn accept(hand: &Hand, name: u64, subject: &'static str, event_type: &'static str) {
    let worker = hand.clone();
    hand.spawn("event", async move {
        worker.step().await;
        // One transaction, under the lock of the resource: recorded, and the waits that are there found.
        let (external, matches) = worker.with(|world| {
            let external = record(world, &worker, name, subject, event_type);
            let matches = matching(world, &external);
            (external, matches)
        });
        if !external.dispatched {
            dispatch(&worker, external, matches).await;
        }
    });
}

fn record(world: &mut World, hand: &Hand, name: u64, subject: &'static str, event_type: &'static str) -> External {
    if let Some(known) = world.externals.iter().find(|external| external.name == name) {
        return known.clone();
    }
    let external = External {
        position: i64::try_from(world.externals.len()).unwrap() + 1,
        name,
        subject,
        event_type,
        received_at: hand.clock(world),
        dispatched: false,
        recorded: world.now,
    };
    world.say(|| format!("event {} ({event_type} on {subject}) is recorded", external.position));
    world.externals.push(external.clone());
    external
}

fn matching(world: &World, external: &External) -> Vec<Match> {
    let waiting =
        world.runs.iter().filter_map(|(run, row)| Some((*run, row.state.wait_since?, row.state.wait.as_ref()?)));
    let mut found: Vec<_> = waiting
        .flat_map(|(run, since, wait)| {
            let meant = patterns(wait).into_iter().filter(|(_, pattern)| external.is_meant(pattern));
            meant.map(move |(leaf, pattern)| (since, Match { run, wait: wait.wait_id, leaf, pattern }))
        })
        .collect();
    found.sort_by_key(|(since, found)| (*since, found.run, found.leaf));
    found.into_iter().map(|(_, found)| found).collect()
}

async fn dispatch(hand: &Hand, external: External, matches: Vec<Match>) {
    hand.step().await;
    // What came before and is still under way is for these waits first: each has the oldest that it means.
    let earlier =
        hand.with(|world| if world.protocol.oldest_first { world.under_way_before(&external) } else { Vec::new() });
    // By which run, if it is one that wants it for itself. It may want it for several conditions.
    let mut taken = HashMap::new();
    for found in matches {
        for event in earlier.iter().filter(|event| event.is_meant(&found.pattern)).chain([&external]) {
            match bring(hand, event, &found, &mut taken).await {
                Brought::Taken => break,
                Brought::NotTaken => {}
                Brought::Unknown => return,
            }
        }
    }
    hand.step().await;
    hand.with(|world| {
        if let Some(recorded) = world.externals.iter_mut().find(|each| each.position == external.position) {
            recorded.dispatched = true;
        }
    });
}

/// How a condition takes an event.
enum Brought {
    Taken,
    NotTaken,
    /// Left to the sweep.
    Unknown,
}

async fn bring(hand: &Hand, event: &External, found: &Match, taken: &mut HashMap<i64, RunId>) -> Brought {
    let exclusive = found.pattern.exclusive;
    let anothers = hand.with(|world| world.protocol.exclusive_claims && world.is_anothers(event, found.run));
    if exclusive && (anothers || taken.get(&event.position).is_some_and(|by| *by != found.run)) {
        return Brought::NotTaken;
    }
    let key = format!("ext/{}/{}/{}", event.position, found.wait, found.leaf);
    match hand.submit(found.run, &event.deliver_to(found.wait, found.leaf), key).await {
        Ok(committed) if committed.duplicate || !committed.events.is_empty() => {
            if exclusive {
                taken.insert(event.position, found.run);
            }
            Brought::Taken
        }
        Ok(_) | Err(Rejection::Ended(_) | Rejection::Ending | Rejection::NoSuchRun) => Brought::NotTaken,
        Err(_) => Brought::Unknown,
    }
}

/// Dispatches what was recorded and, by a crash, not dispatched.
pub fn tick(hand: &Hand) {
    let left: Vec<_> = hand.with(|world| {
        let old = world.now - OLD;
        let left = world.externals.iter().filter(|external| !external.dispatched && external.recorded <= old);
        left.map(|external| (external.clone(), matching(world, external))).collect()
    });
    if !hand.with(|world| world.protocol.dispatch_sweep) {
        return;
    }
    for (external, matches) in left {
        let worker = hand.clone();
        hand.spawn("sweep event", async move { dispatch(&worker, external, matches).await });
    }
}
