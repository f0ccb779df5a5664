//! The seven roles, as far as runs can tell them apart. Content is kept for whoever names it (the artifact service) by the
//! planner's own hand.

pub mod approval;
pub mod executor;
pub mod follower;
pub mod ingress;
pub mod observer;
pub mod planner;
pub mod scheduler;
pub mod stray;

use crate::{
    bus::{Answer, Body, Consumer, Message},
    tasks::Hand,
};

/// The instances that read for a consumer.
pub const fn readers(consumer: Consumer) -> [usize; 2] {
    match consumer {
        Consumer::Planner => [2, 3],
        Consumer::Executor => [4, 5],
        Consumer::Observer => [6, 6],
    }
}

pub const INGRESS: [usize; 2] = [0, 1];
pub const SCHEDULER: usize = 7;
pub const APPROVAL: usize = 8;

/// Begins to handle a message.
pub fn handle(hand: &Hand, message: Message) {
    let (worker, id) = (hand.clone(), message.id);
    hand.spawn("message", async move {
        let answer = answer(&worker, message).await;
        worker.with(|world| world.bus.answer(id, answer, world.now));
    });
}

async fn answer(hand: &Hand, message: Message) -> Answer {
    let Message { run, seq, deliveries, .. } = message;
    match message.body {
        Body::Turn { turn, not_before } => {
            // The first time, a snapshot that knows of the turn is new enough: what it lacks, the commit finds out.
            let seq = seq.filter(|_| deliveries == 1);
            let doorbell = planner::Doorbell { run, turn, seq, not_before };
            planner::take(hand, &doorbell).await
        }
        Body::Call(call) => executor::take_all(hand, run, seq, move |of| of.request.call_id == call).await,
        Body::Approval(approval) => {
            executor::take_all(hand, run, seq, move |of| of.approval_id == Some(approval)).await
        }
        Body::Run => executor::take_all(hand, run, seq, |_| true).await,
        Body::Signal { call, offset, signal } => observer::read(hand, run, call, offset, signal).await,
    }
}
