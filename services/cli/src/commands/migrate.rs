//! Database and streams, brought in step with this program.

use bus::{Bus, BusOptions, Topology};
use serde_json::json;

use super::settings;
use crate::{error::CliError, out::Out};

/// Migrates the database and reconciles the streams. Repeating it changes nothing.
pub async fn run(out: &Out) -> Result<(), CliError> {
    let settings = settings()?;
    database(&settings).await?;
    let topology = streams(&settings).await?;
    let (streams, consumers) = (topology.streams.len(), topology.consumers.len());
    out.say(format!(
        "Schema `{}` is up to date; {streams} streams and {consumers} consumers are as declared.",
        settings.schema
    ));
    out.value(&json!({"schema": settings.schema, "streams": streams, "consumers": consumers}));
    Ok(())
}

/// The database of these settings, whose user owns the schema.
pub async fn database(settings: &service::Common) -> Result<(), CliError> {
    Ok(engine::migrate(settings.database_url.expose(), &settings.schema).await?)
}

/// The streams, by a user that may create them.
pub async fn streams(settings: &service::Common) -> Result<Topology, CliError> {
    let bus = connect(settings).await?;
    let topology = Topology::default();
    bus.reconcile(&topology).await?;
    bus.drain().await?;
    Ok(topology)
}

/// A connection to NATS by the settings, which gives up soon: a person is waiting.
pub async fn connect(settings: &service::Common) -> Result<Bus, CliError> {
    let connect_within = std::time::Duration::from_secs(5);
    Ok(Bus::connect(BusOptions { connect_within, ..settings.bus_options("esc") }).await?)
}
