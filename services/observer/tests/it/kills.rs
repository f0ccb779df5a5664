//! Observers that are killed in the middle of a stream, again and again: what they leave behind is concluded once, and whole.

use std::ops::Range;

use kernel::{CallId, call::Observation};

use crate::common::{Activity, World};

const RULES: &str = "  - tool: shell.run
    packs: [cargo]
    settle: 1h
    thresholds: [{ id: retries, match: 'retrying the upload', count: 3, within: 1h }]
";
const NO_THRESHOLD: &str = "  - tool: shell.run
    packs: [cargo]
    settle: 1h
";
const CAUSE: &str = "test ledger::sums ... FAILED";
/// Observers that are killed before one may come to the end.
const KILLS: usize = 5;
const BUILDS: usize = 3;
/// How long, in milliseconds, nobody reads what a dead one has read.
const LEASE: u64 = 500;

/// Numbers that look like chance, and are the same for the same seed.
struct Chance(u64);

impl Chance {
    /// Another story each time; `ESC_TEST_SEED` tells one again.
    fn new() -> Self {
        let seed = std::env::var("ESC_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
        Self(seed.unwrap_or_else(|| CallId::mint().0.as_u64_pair().1))
    }

    /// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % limit as u64).unwrap()
    }

    fn within(&mut self, range: Range<usize>) -> usize {
        range.start + self.below(range.len())
    }
}

/// A build and all that it will print.
struct Build {
    activity: Activity,
    text: String,
    /// The line, from 1, with which the threshold is passed, if there is one; and the one that is the cause.
    third_retry: Option<u64>,
    cause: u64,
    /// How much of the text was published.
    said: usize,
}

impl Build {
    async fn new(world: &World, rules: &str, chance: &mut Chance) -> Self {
        let count = chance.within(4000..6000);
        let quarter = count / 4;
        let retries: Vec<usize> = (0..4).map(|at| at * quarter + chance.below(quarter)).collect();
        let cause = (chance.within(0..count)..).find(|line| !retries.contains(line)).unwrap();
        let line = |number: usize| match number {
            number if number == cause => format!("{CAUSE}\n"),
            number if retries.contains(&number) => format!("retrying the upload of part {number}\n"),
            number if number % 50 == 0 => format!("copied {number}\rcopied all of it \u{2713} {number}\n"),
            _ => format!("test case_{number} ... ok\n"),
        };
        let text = (0..=count.max(cause)).map(line).collect();
        let activity = world.activity(rules).await;
        let third_retry = (rules == RULES).then(|| retries[2] as u64 + 1);
        Self { activity, text, third_retry, cause: cause as u64 + 1, said: 0 }
    }

    /// Publishes on up to there, cut wherever it may be.
    async fn say_until(&mut self, end: usize, chance: &mut Chance) {
        while self.said < end {
            let most = self.said + 1 + chance.below(3000);
            let cut = self.text.ceil_char_boundary(most.min(end));
            let body = self.text[self.said..cut].to_owned();
            self.activity.say(&body).await;
            self.said = cut;
        }
    }

    /// How far an observer has come that may be killed now: what is in a checkpoint.
    async fn kept(&self, world: &World) -> u64 {
        let checkpoints = world.ingress.checkpoints().load(&[self.activity.call]).await.unwrap();
        let state = checkpoints.first().map(|checkpoint| checkpoint.state.get().to_owned());
        let state: serde_json::Value = state.map(|state| serde_json::from_str(&state).unwrap()).unwrap_or_default();
        state["watch"]["splitter"]["next"].as_u64().unwrap_or(0)
    }

    /// The line of this number, from 1, and its offset.
    fn line(&self, number: u64) -> (usize, &str) {
        let mut offset = 0;
        for (at, line) in self.text.split_inclusive('\n').enumerate() {
            if at as u64 + 1 == number {
                return (offset, line.trim_end());
            }
            offset += line.len();
        }
        panic!("there is no line {number}");
    }

    /// Everything was read once, and told once, from where it stands.
    fn check(&self, types: &[String], told: &[Observation], seed: u64) {
        let times = |name: &str| types.iter().filter(|have| *have == name).count();
        let counts = ["observation.recorded", "tool.failed", "tool.completed"].map(times);
        assert_eq!(counts, [told.len(), 1, 0], "seed {seed}: {types:?}");
        let phases: Vec<_> = told.iter().map(|seen| (seen.phase.as_str(), seen.decision.is_some())).collect();
        if let Some(third) = self.third_retry {
            assert_eq!(phases, [("threshold", true), ("failed", true)], "seed {seed}");
            let (retry, (offset, line)) = (&told[0].evidence[0], self.line(third));
            let place = (retry.line, retry.offset, retry.excerpt.as_str());
            assert_eq!(place, (third, offset as u64, line), "seed {seed}");
        } else {
            assert_eq!(phases, [("failed", true)], "seed {seed}");
        }
        let end = &told[told.len() - 1];
        let lines = self.text.matches('\n').count() as u64;
        assert_eq!(
            (end.counts.lines, end.counts.bytes, end.counts.gap_bytes),
            (lines, self.text.len() as u64, 0),
            "seed {seed}"
        );
        assert_eq!(end.missing, None, "seed {seed}");
        let holds = |line: &str| line == CAUSE;
        let shown =
            end.evidence.iter().find_map(|evidence| Some((evidence, evidence.excerpt.lines().position(holds)?)));
        let (evidence, below) = shown.unwrap_or_else(|| panic!("seed {seed}: {end:#?}"));
        assert_eq!(evidence.line + below as u64, self.cause, "seed {seed}: {evidence:#?}");
        assert_eq!(evidence.offset, self.line(evidence.line).0 as u64, "seed {seed}: {evidence:#?}");
    }
}

#[tokio::test]
async fn killed_again_and_again_in_mid_stream_they_tell_everything_once() {
    let world = World::new().await;
    let mut chance = Chance::new();
    let seed = chance.0;
    let mut builds = Vec::new();
    for _ in 0..BUILDS {
        builds.push(Build::new(&world, RULES, &mut chance).await);
    }
    for kill in 1..=KILLS {
        let every = [10, 100, 300][chance.below(3)];
        let observer = world.observer_with(|config| (config.checkpoint_millis, config.lease_millis) = (every, LEASE));
        let victim = chance.below(BUILDS);
        for (at, build) in builds.iter_mut().enumerate().filter(|(at, _)| *at != victim) {
            let end = build.text.len() * kill / (KILLS + 1) + at;
            build.say_until(build.text.floor_char_boundary(end), &mut chance).await;
        }
        // It dies while this one still speaks, somewhere behind what it has kept.
        let build = &mut builds[victim];
        let end = build.text.len() * kill / (KILLS + 1);
        let kept = build.said + chance.below((end - build.said).max(1));
        build.say_until(build.text.floor_char_boundary(kept), &mut chance).await;
        world.until("checkpoint", async || build.kept(&world).await >= build.said as u64).await;
        let read = build.said + chance.below((end - build.said).max(1));
        build.say_until(build.text.floor_char_boundary(read), &mut chance).await;
        drop(observer);
        build.say_until(build.text.floor_char_boundary(end), &mut chance).await;
    }
    let last = world.observer_with(|config| config.lease_millis = LEASE);
    for build in &mut builds {
        build.say_until(build.text.len(), &mut chance).await;
        build.activity.exit(101).await;
    }
    for build in &builds {
        world.concluded(&build.activity).await;
    }
    world.all_is_read().await;
    for build in &builds {
        let types = world.concluded(&build.activity).await;
        build.check(&types, &world.observations(build.activity.run).await, seed);
    }
    last.stop().await.unwrap();
    world.close().await;
}

#[tokio::test]
async fn killed_before_or_after_it_commits_the_end_it_leaves_one_conclusion() {
    // Before: all was given to it, and the log has nothing. After: the end is in the log, and nothing is acknowledged.
    for (stumbles, is_in_log) in
        [("engine.before_commit=sleep(600000)", false), ("engine.after_commit=sleep(10000)", true)]
    {
        let world = World::new().await;
        let mut chance = Chance::new();
        let seed = chance.0;
        let mut build = Build::new(&world, NO_THRESHOLD, &mut chance).await;
        build.say_until(build.text.len(), &mut chance).await;
        build.activity.exit(101).await;
        let run = build.activity.run;
        let first = world.observer_process(stumbles);
        if is_in_log {
            world.until("commit", async || !world.observations(run).await.is_empty()).await;
        } else {
            world.all_is_given().await;
        }
        first.kill().await;
        if cfg!(feature = "failpoints") {
            let told = world.observations(run).await.len();
            assert_eq!(told, usize::from(is_in_log), "it died where it was to die");
        }
        // The next one reads it all again, to the end.
        let second = world.observer();
        world.all_is_read().await;
        let types = world.concluded(&build.activity).await;
        build.check(&types, &world.observations(run).await, seed);
        second.stop().await.unwrap();
        world.close().await;
    }
}
