//! The one door without services: small commands on many runs, real Postgres, NATS and Redis.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bus::{Bus, BusOptions, Limits as StreamLimits, Namespace, Topology};
use engine::{Engine, EngineOptions};
use kernel::{Cause, Role, RunId};
use serde_json::{Value, json};

use crate::{
    commands::{create, message},
    door::unique_name,
    stats::{Latencies, hundredth},
    target::Error,
};

/// How much load, and for how long.
#[derive(clap::Args)]
pub struct Options {
    /// Commands at a time, each on a run of its own.
    #[arg(long, default_value_t = 256)]
    concurrency: usize,
    /// Seconds to measure.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
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

/// Submits commands in a namespace of its own, and counts the events.
pub async fn measure(options: &Options) -> Result<Value, Error> {
    let name = unique_name();
    engine::migrate(&options.database_url, &name).await?;
    let bus_options = BusOptions {
        namespace: Namespace::new(name.clone())?,
        ..BusOptions::new(options.nats_url.clone(), "loadtest")
    };
    let bus = Bus::connect(bus_options).await?;
    bus.reconcile(&Topology::standard(&StreamLimits::for_tests())).await?;
    let engine = Engine::start(
        EngineOptions {
            namespace: name.clone(),
            schema: name,
            ..EngineOptions::new(Role::Ingress, options.database_url.clone(), options.redis_url.clone())
        },
        bus,
    )
    .await?;
    let end = Instant::now() + Duration::from_secs_f64(options.seconds);
    let engine = Arc::new(engine);
    let drivers: Vec<_> = (0..options.concurrency).map(|_| tokio::spawn(drive(Arc::clone(&engine), end))).collect();
    let (mut latencies, mut events) = (Latencies::default(), 0);
    for driver in drivers {
        let (part, count) = driver.await??;
        latencies.extend(part);
        events += count;
    }
    engine.drain().await;
    Ok(json!({
        "scenario": "engine",
        "concurrency": options.concurrency,
        "seconds": options.seconds,
        "commands_per_s": hundredth(latencies.len() as f64 / options.seconds),
        "events_per_s": hundredth(events as f64 / options.seconds),
        "command_ms": latencies.percentiles(),
    }))
}

/// New runs of three events, with a message of one event each: small commands, as a door sees them.
async fn drive(engine: Arc<Engine>, end: Instant) -> Result<(Latencies, usize), Error> {
    let (mut latencies, mut events) = (Latencies::default(), 0);
    while Instant::now() < end {
        let run = RunId::mint();
        for command in [create("loadtest", "none"), message(), message()] {
            let started = Instant::now();
            let key = format!("load/{events}");
            let committed = engine.submit(run, command, key, Cause::default()).await?;
            latencies.push(started.elapsed());
            events += committed.events.len();
        }
    }
    Ok((latencies, events))
}
