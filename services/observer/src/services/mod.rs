//! The logs of services, one partition of them: read in order, held against what agents watch and against open actions.
//!
//! What is in mind of a service is kept with the last message that it includes, and only then are messages acknowledged; those
//! of the last seconds are acknowledged later still, since they are looked at again when an action is heard of. So whoever comes
//! next reads them once more, counts none of them twice, and comes to the same conclusions under the same names.

pub(crate) mod alarm;
pub mod evidence;
mod gather;
pub mod health;
mod lines;
pub mod pace;
mod ring;
mod service;
pub mod shape;
pub mod watches;

use std::{collections::HashMap, sync::Arc};

use bus::{Delivery, Subject};
use engine::{Engine, EngineError, ServiceCheckpoint, SignalGap};
use jiff::Timestamp;
use kernel::TenantId;
use serde_json::value::to_raw_value;
use signals::Record;

use self::{
    alarm::Herald,
    gather::{Gatherer, Touched},
    health::Change,
    pace::Learned,
    ring::Held,
    service::{Mind, Service},
    watches::{CompiledWatch, WatchBook},
};
use crate::{meter, windows::OpenWindows};

/// Most bytes of the name of a service.
const SERVICE_BYTES: usize = 128;
/// Services of one partition that are watched at once.
const SERVICES: usize = 4096;

/// What a reader of logs works with. Cheap to clone.
#[derive(Clone)]
pub(crate) struct LogMeans {
    pub(crate) engine: Engine,
    pub(crate) book: WatchBook,
    pub(crate) windows: OpenWindows,
    pub(crate) herald: Herald,
    /// Records of one service that are looked at in a second; further ones are counted and kept, and not looked at.
    pub(crate) per_second: u64,
}

type Key = (TenantId, String);

/// The logs of one partition.
pub(crate) struct Logs {
    partition: u8,
    means: LogMeans,
    stream_made: i64,
    services: HashMap<Key, Service>,
    gatherer: Gatherer,
    /// Since when all is heard that services say.
    heard_from: Option<Timestamp>,
}

impl Logs {
    /// Goes on where the last reader of this partition stopped.
    pub(crate) async fn open(
        partition: u8,
        means: LogMeans,
        stream_made: Option<Timestamp>,
    ) -> Result<Self, EngineError> {
        let stream_made = stream_made.map_or(0, Timestamp::as_microsecond);
        let mut services = HashMap::new();
        for checkpoint in means.engine.services().checkpoints(partition).await? {
            let mind = serde_json::from_str(checkpoint.state.get()).unwrap_or_else(|error| {
                tracing::warn!(service = checkpoint.service, %error, "a checkpoint can't be read, the service is watched anew");
                meter::passed_over("checkpoint");
                Mind::default()
            });
            // A stream that was lost numbers anew; what was in mind stays.
            let seq = if checkpoint.stream_made == stream_made { checkpoint.stream_seq } else { 0 };
            services.insert((checkpoint.tenant, checkpoint.service), Service { mind, seq, ..Service::default() });
        }
        for ((tenant, name), service) in &mut services {
            service.watchers = watchers(&means.book, tenant, name).await?;
        }
        let gatherer = Gatherer::open(means.windows.clone(), means.engine.actions()).await?;
        Ok(Self { partition, means, stream_made, services, gatherer, heard_from: None })
    }

    /// Reads a message.
    pub(crate) async fn read(&mut self, delivery: &Delivery) -> Result<(), EngineError> {
        let Some((tenant, service)) = address(delivery) else {
            meter::passed_over("malformed");
            tracing::warn!(subject = %delivery.subject, "a message among the logs is of no service");
            return Ok(());
        };
        self.gatherer.look_again();
        let watchers = watchers(&self.means.book, &tenant, &service).await?;
        let key = (tenant, service);
        let held = Held {
            tenant: key.0.clone(),
            service: key.1.clone(),
            seq: delivery.stream_seq,
            at: delivery.published_at,
            payload: delivery.payload.clone(),
        };
        let lines = signals::lines(&held.payload);
        meter::records(lines.len() as u64, delivery.payload.len() as u64);
        let is_full = self.services.len() >= SERVICES && !self.services.contains_key(&key);
        if is_full {
            meter::passed_over("too_many_services");
        }
        let is_watched = !watchers.is_empty() && !is_full;
        if is_watched || self.services.contains_key(&key) {
            let service = self.services.entry(key.clone()).or_default();
            service.watchers = watchers;
            if let Some(heard_from) = self.heard_from {
                service.mind.pace.hears_from(heard_from);
            }
            let is_new = delivery.stream_seq > service.seq;
            if is_new && service.throttle.is_too_fast(held.at, lines.len() as u64, self.means.per_second) {
                // Its heartbeats may have been among what is passed over.
                service.mind.pace.hears_from(held.at);
                (service.seq, service.is_dirty) = (delivery.stream_seq, true);
                drop(lines);
                self.gatherer.hold(held);
                return Ok(());
            }
        }
        let is_gathered = self.gatherer.listens_to(&key.0);
        let mut touched = Touched::default();
        let mut learned: Vec<Learned> = Vec::new();
        if is_watched || is_gathered {
            for (index, raw) in lines.iter().enumerate() {
                let record = Record::from_line(raw);
                let place = Place { seq: held.seq, index: u32::try_from(index).unwrap_or(u32::MAX), at: held.at };
                if let Some(service) = self.services.get_mut(&key).filter(|service| place.seq > service.seq) {
                    learned.extend(service.record(&record, place));
                }
                if is_gathered {
                    self.gatherer.line((&key.0, &key.1), raw, &record, place, &mut touched);
                }
            }
        }
        drop(lines);
        self.gatherer.close_message(held.seq, touched);
        self.gatherer.hold(held);
        if let Some(service) = self.services.get_mut(&key).filter(|service| delivery.stream_seq > service.seq) {
            (service.seq, service.is_dirty) = (delivery.stream_seq, true);
            // What may be missing then can still stand in what is read next.
            let checked = service.check(delivery.published_at, false);
            learned.iter().for_each(|learned| self.gatherer.learned(&key.0, &key.1, learned));
            self.tell(&key, checked.changes).await;
        }
        Ok(())
    }

    async fn tell(&self, key: &Key, changes: Vec<(Arc<CompiledWatch>, String, Change)>) {
        for (watch, rule, change) in changes {
            self.means.herald.health(&key.0, &key.1, &watch, &rule, &change).await;
        }
    }

    /// From now on all is heard that services say. What they said before may have got lost, or be on its way.
    pub(crate) fn hears_from(&mut self, now: Timestamp) {
        self.services.values_mut().for_each(|service| service.mind.pace.hears_from(now));
        self.heard_from = Some(now);
    }

    /// What time alone brings: silence, recovery, traces to adopt, and what was passed over. `is_caught_up`: nothing more has been
    /// said than was read.
    pub(crate) async fn tick(&mut self, is_caught_up: bool) -> Result<(), EngineError> {
        let now = Timestamp::now();
        self.gatherer.tick(now).await?;
        let mut told = Vec::new();
        let mut gaps = Vec::new();
        for (key, service) in &mut self.services {
            service.watchers = watchers(&self.means.book, &key.0, &key.1).await?;
            if is_caught_up {
                let checked = service.check(now, true);
                service.is_dirty |= !checked.changes.is_empty() || checked.learned.is_some();
                if let Some(learned) = checked.learned {
                    self.gatherer.learned(&key.0, &key.1, &learned);
                }
                told.extend((!checked.changes.is_empty()).then(|| (key.clone(), checked.changes)));
            }
            gaps.extend(service.throttle.close(now).map(|(skipped, from, to)| SignalGap {
                tenant: Some(key.0.clone()),
                service: Some(key.1.clone()),
                from,
                to,
                messages: skipped,
                why: "throttled".to_owned(),
            }));
        }
        for (key, changes) in told {
            self.tell(&key, changes).await;
        }
        for gap in gaps {
            self.means.herald.gap(&gap).await;
        }
        self.gatherer.flush().await
    }

    /// Stores what changed, and says through which message may be acknowledged, of those that were read.
    pub(crate) async fn checkpoint(&mut self, read: u64) -> Result<u64, EngineError> {
        self.gatherer.flush().await?;
        let mut checkpoints = Vec::new();
        for ((tenant, name), service) in self.services.iter().filter(|(_, service)| service.is_dirty) {
            match to_raw_value(&service.mind) {
                Ok(state) => checkpoints.push(ServiceCheckpoint {
                    tenant: tenant.clone(),
                    service: name.clone(),
                    partition: self.partition,
                    stream_made: self.stream_made,
                    stream_seq: service.seq,
                    state,
                }),
                Err(error) => tracing::error!(service = name, %error, "what is in mind of a service can't be written"),
            }
        }
        self.means.engine.services().save(checkpoints).await?;
        self.services.values_mut().for_each(|service| service.is_dirty = false);
        meter::services(self.partition, self.services.len());
        Ok(self.gatherer.first_held().map_or(read, |first| read.min(first.saturating_sub(1))))
    }
}

/// Where a line stands.
#[derive(Clone, Copy, Debug)]
struct Place {
    seq: u64,
    index: u32,
    at: Timestamp,
}

/// Those who watch a service.
async fn watchers(book: &WatchBook, tenant: &TenantId, service: &str) -> Result<Vec<Arc<CompiledWatch>>, EngineError> {
    let watches = book.of(tenant).await?;
    Ok(watches.into_iter().filter(|watch| watch.watch.is_about(service)).collect())
}

/// Whose log a message is of.
fn address(delivery: &Delivery) -> Option<(TenantId, String)> {
    match Subject::parse(&delivery.subject) {
        Ok(Subject::Log { tenant, service }) if (1..=SERVICE_BYTES).contains(&service.len()) => {
            Some((tenant.parse().ok()?, service))
        }
        _ => None,
    }
}
