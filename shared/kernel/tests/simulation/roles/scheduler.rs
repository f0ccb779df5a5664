//! Keeps time, admits, sweeps and rings.

use kernel::{CallId, Command, EventData, RunId, TimerId, call::CallStatus, child::next_step, command::FireTimer};

use crate::{tasks::Hand, world::World};

/// How old an outbox row is when it is published again, and work when it is rung for, in milliseconds.
const OLD: i64 = 3000;

pub fn tick(hand: &Hand) {
    fire_timers(hand);
    admit(hand);
    if hand.with(|world| world.protocol.sweep) {
        sweep(hand);
    }
    if hand.with(|world| world.protocol.ring) {
        ring(hand);
    }
    if hand.with(|world| world.protocol.tend_children) {
        tend_children(hand);
    }
}

/// Brings children in step with their parents. What is missing is looked for once more when a worker is at it: by then
/// somebody else may have seen to it.
fn tend_children(hand: &Hand) {
    let missing: Vec<(RunId, CallId, RunId)> = hand.with(|world| {
        let children = world.runs.values().flat_map(|row| row.state.children.iter().map(|child| (&row.state, child)));
        let of = children.filter(|(parent, (call, child))| {
            let state = world.runs.get(&child.child_id).map(|row| &*row.state);
            next_step(parent, **call, state, None).is_some()
        });
        of.map(|(parent, (call, child))| (parent.run_id, *call, child.child_id)).collect()
    });
    for (parent, call, child) in missing {
        let worker = hand.clone();
        hand.spawn("child", async move {
            let Some(parent) = worker.load(parent).await else { return };
            let child = worker.load(child).await;
            let hold = worker.with(|world| world.choices.chance(10)).then_some("the tenant is busy");
            if let Some(step) = next_step(&parent, call, child.as_deref(), hold) {
                let _ = worker.submit(step.run_id, &step.command, step.key).await;
            }
        });
    }
}

/// Fires what is due by this clock. The projection of timers follows the log, so that is where they are found.
fn fire_timers(hand: &Hand) {
    let due: Vec<(RunId, TimerId)> = hand.with(|world| {
        let now = hand.clock(world);
        let of = |(run, row): (&RunId, &crate::world::Row)| {
            let due = row.state.timers.iter().filter(|(_, timer)| timer.due <= now);
            due.map(|(timer, _)| (*run, *timer)).collect::<Vec<_>>()
        };
        world.runs.iter().flat_map(of).collect()
    });
    for (run, timer_id) in due {
        let worker = hand.clone();
        hand.spawn("timer", async move {
            let command = Command::FireTimer(FireTimer { timer_id });
            let _ = worker.submit(run, &command, format!("timer/{timer_id}")).await;
        });
    }
}

/// Lets queued runs begin, two of which have room at a time.
fn admit(hand: &Hand) {
    let queued: Vec<RunId> = hand.with(|world| {
        let queued = world.runs.iter().filter(|(_, row)| row.state.queued && !row.state.paused);
        queued.map(|(run, _)| *run).take(2).collect()
    });
    for run in queued {
        let worker = hand.clone();
        hand.spawn("admit", async move {
            let _ = worker.submit(run, &Command::Admit, "admit".to_owned()).await;
        });
    }
}

/// Publishes what was committed and, by a crash, not published.
fn sweep(hand: &Hand) {
    hand.with(|world| {
        let old = world.now - OLD;
        for row in world.outbox.clone().into_iter().filter(|row| row.at <= old) {
            let log = &world.runs[&row.run].log;
            let events: Vec<_> = log.iter().filter(|event| (row.from..=row.to).contains(&event.seq)).cloned().collect();
            world.publish(row.run, &events);
        }
    });
}

/// Rings for work that nobody is at, from what the log says.
fn ring(hand: &Hand) {
    hand.with(|world| {
        for run in world.neglected(OLD) {
            ring_for(world, run);
        }
    });
}

fn ring_for(world: &mut World, run: RunId) {
    let row = &world.runs[&run];
    let state = &row.state;
    let wanted = |call: &kernel::call::Call| {
        matches!(call.status, CallStatus::Requested | CallStatus::Approved) || call.is_started()
    };
    let calls: Vec<CallId> =
        state.calls.values().filter(|call| wanted(call)).map(|call| call.request.call_id).collect();
    let rings = |data: &EventData| match data {
        EventData::ToolRequested(requested) => calls.contains(&requested.call.call_id),
        EventData::RunRunnable(opened) => state.is_open_turn(opened.turn_id),
        EventData::RunCancelRequested(_) => state.to_compensate().is_some(),
        _ => false,
    };
    let events: Vec<_> = row.log.iter().filter(|event| rings(&event.data)).cloned().collect();
    for event in &events {
        world.bus.publish_event(run, event, world.now, &mut world.choices);
    }
}
