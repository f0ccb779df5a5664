//! A build of many lines as an executor would publish it, in a namespace of its own.

use std::process::Command;

use bus::{Bus, BusOptions, Limits, Namespace, Outgoing, Topology, header, subject, testing::TestBus};
use engine::{Engine, EngineOptions};
use kernel::{
    CallId, Cause, Command as RunCommand, Role, RunId, TenantId, Timestamp, Trust,
    call::{Binding, CallRequest, Exit, Observation},
    command::StartCall,
    tool::{CallKind, Effect},
    units,
};

use crate::{commands, door::unique_name, target::Error};

/// The one line that matters.
pub const FAILURE: &str = "src/ledger/balance.rs:212:9: error: the sum of the entries is not zero";
/// Bytes of a line with its end.
const LINE_BYTES: usize = 120;
/// As an executor cuts them.
const FRAME_BYTES: usize = 64 * 1024;
/// Frames published together.
const TOGETHER: usize = 64;

/// Where the parts are, open.
#[derive(clap::Args)]
pub struct Stores {
    /// Postgres, as a user that may create a schema.
    #[arg(long, env = "ESC_TEST_DATABASE_URL")]
    database_url: String,
    /// NATS, as a user that may create streams.
    #[arg(long, env = "ESC_TEST_NATS_URL")]
    nats_url: String,
    /// Redis or Valkey.
    #[arg(long, env = "ESC_TEST_REDIS_URL")]
    redis_url: String,
}

/// Which line fails, from 0.
pub const fn failing_line(lines: u64) -> u64 {
    lines * 2 / 3
}

/// The output, cut into frames.
pub fn frames(lines: u64) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut frame = Vec::with_capacity(FRAME_BYTES);
    for number in 0..lines {
        let line = line(number, lines);
        let room = FRAME_BYTES - frame.len();
        let (now, later) = line.as_bytes().split_at(room.min(line.len()));
        frame.extend_from_slice(now);
        if frame.len() == FRAME_BYTES {
            frames.push(std::mem::replace(&mut frame, Vec::with_capacity(FRAME_BYTES)));
        }
        frame.extend_from_slice(later);
    }
    frames.push(frame);
    frames
}

/// What builds print: steps, tests that pass, a warning now and then, names with `error` in them.
fn line(number: u64, lines: u64) -> String {
    let text = if number == failing_line(lines) {
        FAILURE.to_owned()
    } else {
        match number % 100 {
            0 => format!("[{number}/{lines}] Building CXX object src/store/CMakeFiles/store.dir/segment_{number}.cc.o"),
            1 => format!("src/store/segment_{number}.cc:{}:7: warning: unused variable 'previous'", number % 900),
            2 => format!("test store::errors::refuses_segment_{number} ... ok"),
            3 => format!("copying include/error_codes_{number}.h to build/include"),
            4..=40 => format!("test ledger::entries::keeps_the_order_of_batch_{number} ... ok"),
            41..=70 => format!(
                "2026-11-29T10:{:02}:{:02}.123Z worker {} took segment {number}",
                number / 60 % 60,
                number % 60,
                number % 16
            ),
            _ => {
                format!("   Compiling part-{number} v0.{}.{} (/home/parts/{})", number % 50, number % 9, number % 5000)
            }
        }
    };
    format!("{text:<width$.width$}\n", width = LINE_BYTES - 1)
}

/// The parts of a stack, with a run whose call is that build.
pub struct World {
    stores: [String; 3],
    name: String,
    bus: TestBus,
    engines: [Engine; 3],
    run: RunId,
    call: CallId,
}

impl World {
    /// A run whose call has started.
    pub async fn open(stores: &Stores) -> Result<Self, Error> {
        let name = unique_name();
        engine::migrate(&stores.database_url, &name).await?;
        let options = BusOptions {
            namespace: Namespace::new(name.clone())?,
            ..BusOptions::new(stores.nats_url.clone(), "loadtest")
        };
        let bus = Bus::connect(options).await?;
        bus.reconcile(&Topology::standard(&Limits::default())).await?;
        let mut engines = Vec::new();
        for role in [Role::Ingress, Role::Planner, Role::ToolExecutor] {
            let options = EngineOptions {
                namespace: name.clone(),
                schema: name.clone(),
                ..EngineOptions::new(role, stores.database_url.clone(), stores.redis_url.clone())
            };
            engines.push(Engine::start(options, bus.clone()).await?);
        }
        let engines: [Engine; 3] = engines.try_into().map_err(|_| "three engines were started")?;
        let run = RunId::mint();
        let call = CallId::derive(run, "call/1");
        let stores = [&stores.nats_url, &stores.database_url, &stores.redis_url].map(String::clone);
        let world = Self { stores, name, bus: TestBus::adopt(bus), engines, run, call };
        world.begin().await?;
        Ok(world)
    }

    async fn begin(&self) -> Result<(), Error> {
        let yaml = "name: builder\nmodel: scripted:none\ninstructions: build\n";
        let [ingress, planner, executor] = &self.engines;
        let version = ingress.agents().put(&TenantId::default(), yaml, "loadtest").await?;
        let submit = async |engine: &Engine, command: RunCommand, key: &str| {
            engine.submit(self.run, command, key, Cause::default()).await.map(|committed| committed.state)
        };
        let state = submit(ingress, commands::create("builder", &version.digest), "create").await?;
        let turn = commands::calling(&state, self.request()).ok_or("no turn is open")?;
        submit(planner, turn, "turn").await?;
        let start = StartCall { call_id: self.call, executor: "loadtest".to_owned(), binding: Binding::default() };
        submit(executor, RunCommand::StartCall(start), "start").await?;
        Ok(())
    }

    fn request(&self) -> CallRequest {
        CallRequest {
            call_id: self.call,
            tool: "shell.run".to_owned(),
            arguments: serde_json::json!({ "command": "./ci test" }),
            kind: CallKind::Activity,
            effect: Effect::Write,
            idempotent: false,
            schema_digest: String::new(),
            trust: Trust::Operator,
            compensation: Default::default(),
            timeout: units::Duration::from_secs(3600),
        }
    }

    /// Publishes the output and the end.
    pub async fn publish(&self, frames: &[Vec<u8>]) -> Result<(), Error> {
        let publisher = self.bus.publisher();
        let (mut offset, mut line) = (0_u64, 0_u64);
        for together in frames.chunks(TOGETHER) {
            let mut messages = Vec::new();
            for body in together {
                let message = self.message(body.clone(), offset, line);
                messages.push(message.msg_id(format!("{}:{offset}", self.call)));
                offset += body.len() as u64;
                line += body.iter().filter(|byte| **byte == b'\n').count() as u64;
            }
            for outcome in publisher.publish_all(messages).await {
                outcome?;
            }
        }
        let exit = Exit { code: Some(1), signal: None, reason: "exited".to_owned(), bytes: offset, lines: line };
        let last = self.message(Vec::new(), offset, line).header(header::EXIT, serde_json::to_string(&exit)?);
        publisher.publish(last.msg_id(format!("{}:exit", self.call))).await?;
        Ok(())
    }

    fn message(&self, body: Vec<u8>, offset: u64, line: u64) -> Outgoing {
        Outgoing::new(subject::sig(TenantId::default(), self.run, self.call), body)
            .header(header::OFFSET, offset)
            .header(header::LINE, line)
            .header(header::STREAM, "both")
            .header(header::TIME, Timestamp::now())
            .header(header::TOOL, "shell.run")
    }

    /// What an observer needs to find all that.
    pub fn environment(&self, command: &mut Command) {
        let [nats, database, redis] = &self.stores;
        for (name, value) in [
            ("ESC_NATS_URL", nats),
            ("ESC_DATABASE_URL", database),
            ("ESC_REDIS_URL", redis),
            ("ESC_NAMESPACE", &self.name),
            ("ESC_SCHEMA", &self.name),
        ] {
            command.env(name, value);
        }
    }

    /// The messaging, for reading without an observer.
    pub fn bus(&self) -> &Bus {
        &self.bus
    }

    /// Whether the call has ended.
    pub async fn is_concluded(&self) -> Result<bool, Error> {
        let state = self.engines[0].load(self.run).await?.ok_or("the run is gone")?;
        Ok(!state.calls.contains_key(&self.call))
    }

    /// What was observed.
    pub async fn observations(&self) -> Result<Vec<Observation>, Error> {
        super::recorded(&self.engines[0], self.run).await
    }

    /// Leaves the streams of nobody behind.
    pub async fn close(self) -> Result<(), Error> {
        for engine in &self.engines {
            engine.drain().await;
        }
        Ok(self.bus.end().await?)
    }
}
