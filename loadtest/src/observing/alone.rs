//! The parts of an observer's work by themselves, on the same lines: what the whole can come to at most.

use std::time::{Duration, Instant};

use bus::{OrderedOptions, PARTITIONS};
use kernel::{CallId, Timestamp, agent::ObserveRule};
use observer::{
    conclude::{Frame, Watch},
    lines::Splitter,
    rules::{Active, Limits, Rules},
    templates::Miner,
};
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::timeout};

use super::{build::World, rate};
use crate::target::Error;

/// After so long without a message all was read.
const QUIET: Duration = Duration::from_secs(10);

/// Lines per second of each part.
pub async fn measure(world: &World, frames: &[Vec<u8>], lines: u64) -> Result<Value, Error> {
    let nats = nats(world, frames.len()).await?;
    let rules = Rules::compile(&ObserveRule::default(), Limits::default());
    let mut found = 0_u64;
    let words = each(frames, |line| found += u64::from(rules.can_hit(line)));
    let mut failures = 0_u64;
    let patterns =
        each(frames, |line| failures += u64::from(rules.look_at_all(line, Active::default()).failure.is_some()));
    let mut miner = Miner::default();
    let templates = each(frames, |line| {
        miner.line(line);
    });
    let whole = whole(frames, &rules);
    Ok(json!({
        "patterns": rules.len(),
        "lines_with_a_word": found,
        "lines_that_show_a_failure": failures,
        "templates": miner.len(),
        "nats_read_lines_per_s": rate(lines, nats),
        "words_lines_per_s": rate(lines, words),
        "patterns_on_every_line_lines_per_s": rate(lines, patterns),
        "templates_lines_per_s": rate(lines, templates),
        "all_without_nats_lines_per_s": rate(lines, whole),
    }))
}

/// How long it takes to read all frames, and to do nothing with them.
async fn nats(world: &World, frames: usize) -> Result<Duration, Error> {
    let (send, mut receive) = mpsc::unbounded_channel();
    let began = Instant::now();
    let mut readers = Vec::new();
    for partition in 0..PARTITIONS {
        let mut pull = world.bus().ordered_pull(&format!("observer-{partition}"), OrderedOptions::default()).await?;
        let send = send.clone();
        readers.push(tokio::spawn(async move {
            while let Ok(batch) = pull.next().await {
                if send.send((batch.len(), Instant::now())).is_err() {
                    break;
                }
            }
        }));
    }
    let (mut read, mut first, mut last) = (0, None, began);
    // All frames and the end.
    while read < frames + 1 {
        let Ok(Some((count, at))) = timeout(QUIET, receive.recv()).await else {
            return Err(format!("{read} of {frames} frames could be read").into());
        };
        (read, first, last) = (read + count, first.or(Some(at)), at);
    }
    readers.iter().for_each(tokio::task::JoinHandle::abort);
    Ok(last.duration_since(first.unwrap_or(began)))
}

fn each(frames: &[Vec<u8>], mut look: impl FnMut(&[u8])) -> Duration {
    let began = Instant::now();
    let mut splitter = Splitter::default();
    let mut offset = 0;
    for frame in frames {
        splitter.feed(offset, None, frame, |line| look(line.bytes));
        offset += frame.len() as u64;
    }
    began.elapsed()
}

/// All that is done with a line, but for reading it from NATS.
fn whole(frames: &[Vec<u8>], rules: &Rules) -> Duration {
    let began = Instant::now();
    let at = Timestamp::UNIX_EPOCH;
    let mut watch = Watch::new(CallId::from_uuid(uuid::Uuid::nil()), "shell.run", at).running(rules, "./ci test");
    let (mut miner, mut offset) = (Miner::default(), 0);
    for body in frames {
        let frame = Frame { offset, first_line: None, at, read_at: at, body, exit: None };
        watch.frame(rules, &mut miner, &frame);
        offset += body.len() as u64;
    }
    began.elapsed()
}
