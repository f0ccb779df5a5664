//! What a service is connected to: the bus, and the stores behind the engine.

use bus::{Bus, BusError, BusOptions, BusState};
use engine::{Engine, EngineError, EngineOptions};
use kernel::Role;

use crate::causes::chain;
use crate::config::Common;
use crate::health::Health;
use crate::process::Ctx;

/// The check of [`Health`] that says whether NATS is there.
const NATS: &str = "nats";
/// The check of [`Health`] that says whether Postgres and Redis are there.
const STORES: &str = "stores";

/// Why a service could not be connected.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// NATS can't be reached, or lets nobody in.
    #[error("NATS is not usable")]
    Bus(#[from] BusError),
    /// A store can't be reached, or is not as it should be.
    #[error("the stores are not usable")]
    Engine(#[from] EngineError),
}

impl Common {
    /// How to reach NATS, under a name that the server shows.
    #[must_use]
    pub fn bus_options(&self, client_name: &str) -> BusOptions {
        BusOptions { namespace: self.namespace.clone(), ..BusOptions::new(self.nats_url.expose(), client_name) }
    }

    /// How to reach the stores, as the door of one service.
    #[must_use]
    pub fn engine_options(&self, role: Role) -> EngineOptions {
        let options = EngineOptions {
            namespace: self.namespace.to_string(),
            schema: self.schema.clone(),
            ..EngineOptions::new(role, self.database_url.expose(), self.redis_url.expose())
        };
        match self.patience {
            Some(patience) => options.patient(patience),
            None => options,
        }
    }
}

impl<C: AsRef<Common>> Ctx<C> {
    /// Connects to NATS and then, over it, to the stores. The service is not ready before both are there, nor whenever one of
    /// them is not.
    ///
    /// # Errors
    /// When one of them can't be had.
    pub async fn connect(&self, options: EngineOptions) -> Result<Engine, ConnectError> {
        self.health.expect(NATS);
        self.health.expect(STORES);
        let common: &Common = (*self.config).as_ref();
        let bus = Bus::connect(common.bus_options(self.name)).await?;
        watch_bus(&self.health, bus.clone());
        let engine = Engine::start(options, bus).await?;
        watch_stores(&self.health, engine.clone());
        Ok(engine)
    }
}

fn watch_bus(health: &Health, bus: Bus) {
    health.check(NATS, move || {
        let state = bus.state();
        async move { if state == BusState::Connected { Ok(()) } else { Err(format!("{state:?}")) } }
    });
}

fn watch_stores(health: &Health, engine: Engine) {
    health.check(STORES, move || {
        let engine = engine.clone();
        async move { engine.ping().await.map_err(|error| chain(&error)) }
    });
}
