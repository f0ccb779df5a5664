//! Follows an activity: its output becomes signals, its end the last of them. Whoever follows may die, the process goes on.

use kernel::{CallId, RunId};

use crate::{
    bus::{Body, Consumer, Exited, Signal},
    tasks::Hand,
    world::call_lease,
};

/// Begins to follow, under the lease of the call. All of the output is told again: the observer knows what it has read.
pub fn follow(hand: &Hand, run: RunId, call: CallId) {
    let worker = hand.clone();
    hand.spawn("follow", async move {
        let mut next = 0;
        loop {
            worker.step().await;
            let lease = call_lease(call);
            if !worker.with(|world| world.holds(&lease, worker.process)) {
                return;
            }
            let wanted =
                worker.load(run).await.is_some_and(|state| state.ending.is_none() && state.calls.contains_key(&call));
            let told = worker.with(|world| {
                let now = world.now;
                let activity = world.outside.attach(call);
                if activity.exit.is_none() && (!wanted || now >= activity.deadline) {
                    activity.exit = Some(Exited::Cancelled);
                }
                let line = activity.lines.get(next).copied();
                let signal = match (line, activity.exit) {
                    (Some(failure), _) => Some(if failure { Signal::Failure } else { Signal::Progress }),
                    (None, exit) => exit.map(Signal::Exit),
                };
                if let Some(signal) = signal {
                    let body = Body::Signal { call, offset: u32::try_from(next).unwrap(), signal };
                    world.bus.publish(Consumer::Observer, run, None, &body, now, &mut world.choices);
                }
                signal
            });
            match told {
                Some(Signal::Exit(_)) => return worker.release(&lease),
                Some(_) => next += 1,
                None => {}
            }
        }
    });
}
