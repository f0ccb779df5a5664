//! Very many open event streams on one ingress: what they cost while nothing happens, how long an event is on its way to its
//! readers, and what a reader costs that does not read.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures::{StreamExt, TryStreamExt, stream};
use kernel::Timestamp;
use serde_json::{Value, json};
use tokio::{sync::oneshot, task::JoinSet};

use crate::{
    door::Stores,
    processes::Processes,
    stats::{Latencies, hundredth},
    target::{Error, Target},
    waiting::through_engine,
    wake::since,
};

/// Streams that are being opened at once.
const OPENING: usize = 64;
/// Until memory that was freed is given back, and what was begun has ended.
const SETTLE: Duration = Duration::from_secs(10);
/// How long a message may be on its way.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is looked whether all has come.
const LOOK: Duration = Duration::from_millis(2);
/// Messages of the run that nobody reads, and characters in each: more than sockets hold.
const LONG: (usize, usize) = (1000, 16 * 1024);

/// How many streams, and how much happens.
#[derive(clap::Args)]
pub struct Options {
    /// Open streams.
    #[arg(long, default_value_t = 5000)]
    streams: usize,
    /// Seconds to look at them while nothing happens, and again while messages come.
    #[arg(long, default_value_t = 30.0)]
    seconds: f64,
    /// Messages in a second, each to one of the runs, which it wakes.
    #[arg(long, default_value_t = 20.0)]
    rate: f64,
    /// Messages to the one run that all follow.
    #[arg(long, default_value_t = 30)]
    shared: usize,
    /// Readers that do not read.
    #[arg(long, default_value_t = 200)]
    slow: usize,
    /// Process ids to look at; `loadtest/run` gives those of the stack.
    #[arg(long, value_delimiter = ',')]
    pids: Vec<u32>,
    #[command(flatten)]
    stores: Stores,
}

/// Opens streams of as many runs, then as many of one run, then some that nobody reads.
pub async fn measure(options: &Options) -> Result<Value, Error> {
    let open_files = service::raise_open_files()?;
    let target = Target::from_env(&[]).await?;
    target.put_agent("listener", include_str!("../agents/listener.yaml")).await?;
    let runs = through_engine(&options.stores, options.streams.max(1)).await?;
    tokio::time::sleep(SETTLE).await;
    let field = Field { options, target, http: reqwest::Client::builder().build()? };
    let (apart, lost_apart) = field.apart(&runs).await?;
    let (together, lost_together) = field.together(&runs[0]).await?;
    Ok(json!({
        "scenario": "streams",
        "streams": options.streams,
        "open_files_limit_of_the_load_generator": open_files,
        "each_of_its_own_run": apart,
        "all_of_one_run": together,
        "not_read": field.slow().await?,
        "lost": lost_apart + lost_together,
    }))
}

struct Field<'a> {
    options: &'a Options,
    target: Target,
    /// Without a time-out, which streams would run into.
    http: reqwest::Client,
}

/// Streams that are read until this is dropped.
struct Streams {
    heard: Arc<Heard>,
    opening: Latencies,
    opened_in: Duration,
    _readers: JoinSet<()>,
}

/// How long events were on their way: from their `at` on, which is when they were decided, so with their commit.
#[derive(Default)]
struct Heard {
    messages: Mutex<Latencies>,
    others: Mutex<Latencies>,
}

impl Field<'_> {
    async fn apart(&self, runs: &[String]) -> Result<(Value, usize), Error> {
        let before = self.memory();
        let mut streams = self.open(runs).await?;
        let mut figures = self.at_rest(before, &mut streams, runs.len()).await;
        let sent = self.messages(runs).await?;
        let arrived = streams.heard.wait_for(sent).await;
        // What follows from the last ones.
        tokio::time::sleep(Duration::from_secs(1)).await;
        figures["messages"] = sent.into();
        figures["message_ms"] = streams.heard.take_messages().percentiles();
        figures["following_event_ms"] = lock(&streams.heard.others).percentiles();
        Ok((figures, sent.abs_diff(arrived)))
    }

    async fn together(&self, run: &str) -> Result<(Value, usize), Error> {
        tokio::time::sleep(SETTLE).await;
        let (count, before) = (self.options.streams, self.memory());
        let mut streams = self.open(&vec![run.to_owned(); count]).await?;
        let mut figures = self.at_rest(before, &mut streams, count).await;
        let (mut all, mut last, mut lost) = (Latencies::default(), Latencies::default(), 0);
        for _ in 0..self.options.shared {
            self.message(run, "to all of you").await?;
            lost += count.abs_diff(streams.heard.wait_for(count).await);
            let heard = streams.heard.take_messages();
            heard.worst().into_iter().for_each(|worst| last.push(worst));
            all.extend(heard);
            // The turn that it wakes is over by then.
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        figures["messages"] = self.options.shared.into();
        figures["message_ms"] = all.percentiles();
        figures["last_reader_ms"] = last.percentiles();
        figures["following_event_ms"] = lock(&streams.heard.others).percentiles();
        Ok((figures, lost))
    }

    async fn slow(&self) -> Result<Value, Error> {
        let (run, _) = self.target.start("listener", "listen").await?;
        let (messages, characters) = LONG;
        let text = "x".repeat(characters);
        let sending = stream::iter(0..messages).map(|_| self.message(&run, &text)).buffer_unordered(16);
        sending.try_collect::<Vec<_>>().await?;
        tokio::time::sleep(SETTLE).await;
        let before = self.memory();
        let opening = stream::iter(0..self.options.slow).map(|_| self.request(&run, Some(0))).buffer_unordered(OPENING);
        let unread: Vec<_> = opening.try_collect().await?;
        tokio::time::sleep(SETTLE).await;
        Ok(json!({
            "readers": unread.len(),
            "log_mib": hundredth((messages * characters) as f64 / 1024.0 / 1024.0),
            "memory_mib_before": before,
            "memory_mib": self.memory(),
            "kib_each": each(before, self.memory(), unread.len()),
        }))
    }

    /// Opens a stream of each of these runs, and reads them all.
    async fn open(&self, runs: &[String]) -> Result<Streams, Error> {
        let heard = Arc::new(Heard::default());
        let (mut readers, mut opening, started) = (JoinSet::new(), Latencies::default(), Instant::now());
        let mut opened = stream::iter(runs)
            .map(|run| async move {
                let asked = Instant::now();
                Ok::<_, Error>((self.request(run, None).await?, asked))
            })
            .buffer_unordered(OPENING);
        let mut begun = Vec::with_capacity(runs.len());
        while let Some((response, asked)) = opened.try_next().await? {
            let (snapshot, came) = oneshot::channel();
            readers.spawn(read(response, Arc::clone(&heard), asked, snapshot));
            begun.push(came);
        }
        for came in begun {
            opening.push(came.await.map_err(|_| "a stream ended before its snapshot")?);
        }
        Ok(Streams { heard, opening, opened_in: started.elapsed(), _readers: readers })
    }

    async fn request(&self, run: &str, last: Option<u64>) -> Result<reqwest::Response, Error> {
        self.target.stream(&self.http, run, last).await
    }

    /// What open streams cost while nothing happens.
    async fn at_rest(&self, before: Option<f64>, streams: &mut Streams, count: usize) -> Value {
        tokio::time::sleep(SETTLE).await;
        let (memory, look, looked) = (self.memory(), Processes::now(&self.options.pids), Instant::now());
        tokio::time::sleep(Duration::from_secs_f64(self.options.seconds)).await;
        json!({
            "opened_per_s": hundredth(count as f64 / streams.opened_in.as_secs_f64()),
            "open_ms": streams.opening.percentiles(),
            "memory_mib_before": before,
            "memory_mib": memory,
            "kib_each": each(before, memory, count),
            "cpu_percent_at_rest": Processes::now(&self.options.pids).cpu_since(&look, looked.elapsed()),
        })
    }

    /// Messages at an even rate, spread over the runs; how many were sent.
    async fn messages(&self, runs: &[String]) -> Result<usize, Error> {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of a person's making")]
        let count = (self.options.rate * self.options.seconds) as usize;
        let mut ticks = tokio::time::interval(Duration::from_secs_f64(1.0 / self.options.rate.max(0.001)));
        let mut sending = JoinSet::new();
        for number in 0..count {
            ticks.tick().await;
            let (target, run) = (self.target.clone(), runs[number * runs.len() / count].clone());
            sending.spawn(async move { send(&target, &run, "wake up").await });
        }
        while let Some(sent) = sending.join_next().await {
            sent??;
        }
        Ok(count)
    }

    async fn message(&self, run: &str, text: &str) -> Result<(), Error> {
        send(&self.target, run, text).await
    }

    /// What ingress has resident, in MiB.
    fn memory(&self) -> Option<f64> {
        Processes::now(&self.options.pids).memory()["ingress"].as_f64()
    }
}

impl Heard {
    /// Waits until so many messages have come, and says how many did.
    async fn wait_for(&self, count: usize) -> usize {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let come = lock(&self.messages).len();
            if come >= count || Instant::now() > deadline {
                return come;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn take_messages(&self) -> Latencies {
        std::mem::take(&mut *lock(&self.messages))
    }

    fn take(&self, frame: &str, now: Timestamp) {
        let is_message = frame.lines().any(|line| line.starts_with("event:") && line.ends_with("message.added"));
        // Without reading all of it, which thousands of times would be felt.
        let at = frame.split_once(r#""at":""#).and_then(|(_, rest)| rest.split_once('"')?.0.parse().ok());
        if let Some(at) = at {
            lock(if is_message { &self.messages } else { &self.others }).push(since(at, now));
        }
    }
}

async fn send(target: &Target, run: &str, text: &str) -> Result<(), Error> {
    target.post(&format!("/v1/runs/{run}/messages"), &json!({ "text": text })).await.map(drop)
}

/// Reads a stream for as long as it lasts; tells how long its first event took.
async fn read(response: reqwest::Response, heard: Arc<Heard>, asked: Instant, snapshot: oneshot::Sender<Duration>) {
    let (mut body, mut buffer, mut snapshot) = (response.bytes_stream(), Vec::new(), Some(snapshot));
    while let Some(Ok(piece)) = body.next().await {
        let now = Timestamp::now();
        buffer.extend_from_slice(&piece);
        while let Some(end) = buffer.windows(2).position(|pair| pair == b"\n\n") {
            let frame: Vec<u8> = buffer.drain(..end + 2).collect();
            match snapshot.take() {
                Some(snapshot) => drop(snapshot.send(asked.elapsed())),
                None => heard.take(&String::from_utf8_lossy(&frame), now),
            }
        }
    }
}

fn each(before: Option<f64>, after: Option<f64>, count: usize) -> Option<f64> {
    Some(hundredth((after? - before?) * 1024.0 / count.max(1) as f64))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_timed_from_when_they_were_decided_and_signs_of_life_are_none() {
        let heard = Heard::default();
        let (at, now) = ("2026-11-29T10:00:00Z", "2026-11-29T10:00:00.005Z".parse().unwrap());
        heard.take(&format!("id: 7\nevent: message.added\ndata: {{\"seq\":7,\"at\":\"{at}\",\"data\":{{}}}}\n\n"), now);
        heard.take(&format!("id: 8\nevent: run.runnable\ndata: {{\"seq\":8,\"at\":\"{at}\"}}\n\n"), now);
        heard.take(": heartbeat\n\n", now);
        assert_eq!(lock(&heard.messages).percentiles()["p50"], 5.0);
        assert_eq!((lock(&heard.messages).len(), lock(&heard.others).len()), (1, 1));
    }
}
