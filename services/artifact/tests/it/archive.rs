//! Raw output, kept and read back.

use bus::{Outgoing, header, subject};
use kernel::{CallId, RunId, TenantId};

use crate::common::{Service, World, until};

/// The output of one call, frame by frame.
struct Output {
    run: RunId,
    call: CallId,
    text: Vec<u8>,
}

impl Output {
    fn new(lines: usize) -> Self {
        let line =
            |number| format!("line {number} \u{fc} with \x1b[31mcolour\x1b[0m and \u{0} and more\n").into_bytes();
        let mut text: Vec<u8> = (1..=lines).flat_map(line).collect();
        text.extend_from_slice(b"\xff not UTF-8, and no end");
        Self { run: RunId::mint(), call: CallId::mint(), text }
    }

    fn frames(&self, from: usize, to: usize) -> Vec<Outgoing> {
        let frame = |at: usize| {
            let end = (at + 1000).min(to);
            let line = self.text[..at].iter().filter(|byte| **byte == b'\n').count();
            Outgoing::new(subject::sig(TenantId::default(), self.run, self.call), self.text[at..end].to_vec())
                .header(header::OFFSET, at)
                .header(header::LINE, line)
                .header(header::TOOL, "shell.run")
        };
        (from..to).step_by(1000).map(frame).collect()
    }

    fn exit(&self) -> Outgoing {
        let subject = subject::sig(TenantId::default(), self.run, self.call);
        Outgoing::new(subject, "").header(header::OFFSET, self.text.len()).header(header::EXIT, "{}")
    }

    async fn publish(world: &World, frames: Vec<Outgoing>) {
        for outcome in world.stack.bus().publisher().publish_all(frames).await {
            outcome.unwrap();
        }
    }

    async fn read(&self, service: &Service, query: &str) -> Option<(Vec<u8>, reqwest::header::HeaderMap)> {
        let answer = service.get(&format!("/internal/signals/{}?{query}", self.call)).send().await.unwrap();
        let headers = answer.headers().clone();
        match answer.status().as_u16() {
            200 => Some((answer.bytes().await.unwrap().to_vec(), headers)),
            404 => None,
            status => panic!("{status}: {}", answer.text().await.unwrap()),
        }
    }

    async fn until_whole(&self, service: &Service) {
        until("whole output", async || self.read(service, "").await.is_some_and(|(bytes, _)| bytes == self.text)).await;
    }
}

#[tokio::test]
async fn output_comes_back_byte_by_byte_and_line_by_line() {
    let world = World::new().await;
    let service = world.service_with(|config| config.segment_bytes = 20_000).await;
    let output = Output::new(3000);
    let frames = output.frames(0, output.text.len());
    // Some come twice.
    let twice = frames.iter().skip(5).step_by(7).cloned().collect();
    Output::publish(&world, frames).await;
    Output::publish(&world, twice).await;
    Output::publish(&world, vec![output.exit()]).await;
    output.until_whole(&service).await;

    let (part, headers) = output.read(&service, "from=19990&to=40010").await.unwrap();
    assert!(part == output.text[19_990..40_010]);
    assert_eq!((headers["esc-offset"].to_str().unwrap(), headers["esc-gaps"].to_str().unwrap()), ("19990", ""));

    let (end, headers) = output.read(&service, "tail=30000").await.unwrap();
    let from = output.text.len() - 30_000;
    assert!(end == output.text[from..], "the end, over the border of two segments");
    assert_eq!(headers["esc-offset"].to_str().unwrap(), from.to_string());
    assert!(output.read(&service, "tail=10000000").await.unwrap().0 == output.text, "all of it, if there is no more");

    for line in [1_u64, 2, 700, 1500, 3000, 3001] {
        let (lines, headers) = output.read(&service, &format!("line={line}&context=1")).await.unwrap();
        let all: Vec<&[u8]> = output.text.split_inclusive(|byte| *byte == b'\n').collect();
        let at = line as usize - 1;
        let wanted = all[at.saturating_sub(1)..(at + 2).min(all.len())].concat();
        assert!(lines == wanted, "{line}: {}", String::from_utf8_lossy(&lines));
        assert_eq!(headers["esc-first-line"].to_str().unwrap(), (line - 1).max(1).to_string());
        let offset: usize = headers["esc-offset"].to_str().unwrap().parse().unwrap();
        assert!(output.text[offset..].starts_with(&lines));
    }
    for query in ["from=10000000", "line=5000&context=3", "tenant=other"] {
        assert!(output.read(&service, query).await.is_none(), "{query}");
    }
    for bad in ["line=0", "from=5&to=2", "from=x"] {
        let answer = service.get(&format!("/internal/signals/{}?{bad}", output.call)).send().await.unwrap();
        assert_eq!(answer.status(), 400, "{bad}");
    }
    service.stop().await;
    world.close().await;
}

#[tokio::test]
async fn a_killed_archive_loses_nothing_and_two_share_the_work() {
    let world = World::new().await;
    let output = Output::new(20_000);
    let third = output.text.len() / 3000 * 1000;
    let service = world.service_with(|config| config.segment_bytes = 30_000).await;
    Output::publish(&world, output.frames(0, third)).await;
    until("first segment", async || output.read(&service, "").await.is_some()).await;
    drop(service);
    Output::publish(&world, output.frames(third, 2 * third)).await;
    let (one, two) = (world.service().await, world.service().await);
    Output::publish(&world, output.frames(2 * third, output.text.len())).await;
    Output::publish(&world, vec![output.exit()]).await;
    output.until_whole(&one).await;
    let (_, headers) = output.read(&two, "").await.unwrap();
    assert_eq!(headers["esc-gaps"].to_str().unwrap(), "");
    one.stop().await;
    two.stop().await;
    // Everything is acknowledged: another one finds nothing to do, and reads the same.
    let last = world.service().await;
    let (bytes, _) = output.read(&last, "").await.unwrap();
    assert!(bytes == output.text);
    last.stop().await;
    world.close().await;
}

#[tokio::test]
async fn what_was_never_said_is_a_named_gap_and_nonsense_is_put_aside() {
    let world = World::new().await;
    let service = world.service().await;
    let output = Output::new(100);
    Output::publish(&world, output.frames(0, 2000)).await;
    Output::publish(&world, output.frames(3000, 4000)).await;
    let nonsense = Outgoing::new(subject::sig("default", "no-run", "no-call"), "x");
    let record = Outgoing::new(subject::log("default", "checkout"), "a record");
    Output::publish(&world, vec![nonsense, record, output.exit()]).await;
    until("gap", async || {
        let read = output.read(&service, "").await;
        read.is_some_and(|(bytes, headers)| bytes.len() == 3000 && headers["esc-gaps"] == "2000-3000")
    })
    .await;
    service.stop().await;
    world.close().await;
}
