//! The logs of services, one partition of them: read in order, held against what agents watch and against open actions.
//!
//! What is in mind of a service is kept with the last message that it includes, and only then are messages acknowledged; those
//! of the last seconds are acknowledged later still, since they are looked at again when an action is heard of. So whoever comes
//! next reads them once more, counts none of them twice, and comes to the same conclusions under the same names.

pub(crate) mod alarm;
pub mod evidence;
mod gather;
pub mod health;
mod ring;
pub mod shape;
pub mod watches;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use bus::{Delivery, Subject};
use engine::{Engine, EngineError, ServiceCheckpoint, SignalGap};
use jiff::{SignedDuration, Timestamp};
use kernel::TenantId;
use serde::{Deserialize, Serialize};
use serde_json::value::to_raw_value;
use signals::Record;

use self::{
    alarm::Herald,
    evidence::Line,
    gather::{Gatherer, Touched},
    health::Health,
    ring::Held,
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

/// What is in mind of a service, as a checkpoint has it.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Mind {
    /// By agent and rule.
    health: BTreeMap<String, Health>,
}

/// A service whose log is read.
#[derive(Debug, Default)]
struct Service {
    mind: Mind,
    watchers: Vec<Arc<CompiledWatch>>,
    /// The last message that it includes.
    seq: u64,
    is_dirty: bool,
    pace: Pace,
}

/// How many records came in the second that is counted, and those that were passed over.
#[derive(Debug, Default)]
struct Pace {
    second: i64,
    records: u64,
    skipped: u64,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
}

/// The logs of one partition.
pub(crate) struct Logs {
    partition: u8,
    means: LogMeans,
    stream_made: i64,
    services: HashMap<Key, Service>,
    gatherer: Gatherer,
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
        Ok(Self { partition, means, stream_made, services, gatherer })
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
            let is_new = delivery.stream_seq > service.seq;
            if is_new && service.pace.is_too_fast(held.at, lines.len() as u64, self.means.per_second) {
                (service.seq, service.is_dirty) = (delivery.stream_seq, true);
                drop(lines);
                self.gatherer.hold(held);
                return Ok(());
            }
        }
        let is_gathered = self.gatherer.listens_to(&key.0);
        let mut touched = Touched::default();
        if is_watched || is_gathered {
            for (index, raw) in lines.iter().enumerate() {
                let record = Record::from_line(raw);
                let place = Place { seq: held.seq, index: u32::try_from(index).unwrap_or(u32::MAX), at: held.at };
                if let Some(service) = self.services.get_mut(&key).filter(|service| place.seq > service.seq) {
                    service.record(&record, place);
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
            let changes = service.check(delivery.published_at);
            self.tell(&key, changes).await;
        }
        Ok(())
    }

    async fn tell(&self, key: &Key, changes: Vec<(Arc<CompiledWatch>, String, health::Change)>) {
        for (watch, rule, change) in changes {
            self.means.herald.health(&key.0, &key.1, &watch, &rule, &change).await;
        }
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
                let changes = service.check(now);
                service.is_dirty |= !changes.is_empty();
                told.extend((!changes.is_empty()).then(|| (key.clone(), changes)));
            }
            gaps.extend(service.pace.close(now).map(|(skipped, from, to)| SignalGap {
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

impl Service {
    /// Holds a record against what agents watch.
    fn record(&mut self, record: &Record, place: Place) {
        for watch in &self.watchers {
            for (rule, pattern) in watch.watch.health.iter().zip(&watch.lines) {
                let health = self.mind.health.entry(name(watch, &rule.name)).or_default();
                let line = || Line::new(record, place.seq, place.index, place.at);
                health.record(rule, pattern.as_ref(), record, place.at, place.seq, line);
            }
        }
    }

    /// What has changed by now, by watch and rule. Rules that are gone from their files are forgotten.
    fn check(&mut self, now: Timestamp) -> Vec<(Arc<CompiledWatch>, String, health::Change)> {
        let mut changes = Vec::new();
        let mut known = BTreeSet::new();
        for watch in &self.watchers {
            for rule in &watch.watch.health {
                let name = name(watch, &rule.name);
                if let Some(health) = self.mind.health.get_mut(&name)
                    && let Some(change) = health.check(rule, now)
                {
                    changes.push((Arc::clone(watch), rule.name.clone(), change));
                }
                known.insert(name);
            }
        }
        if !self.watchers.is_empty() {
            self.mind.health.retain(|name, _| known.contains(name));
        }
        changes
    }
}

fn name(watch: &CompiledWatch, rule: &str) -> String {
    format!("{}/{}/{rule}", watch.agent, watch.index)
}

impl Pace {
    /// Counts records, and says whether they are too many for this second; 0 is no limit.
    fn is_too_fast(&mut self, at: Timestamp, records: u64, per_second: u64) -> bool {
        if self.second != at.as_second() {
            (self.second, self.records) = (at.as_second(), 0);
        }
        // The first message of a second is always looked at.
        let is_full = per_second > 0 && self.records > 0 && self.records + records > per_second;
        if is_full {
            self.skipped += records;
            self.since.get_or_insert(at);
            self.until = Some(at);
        } else {
            self.records += records;
        }
        is_full
    }

    /// What was passed over until a moment ago.
    fn close(&mut self, now: Timestamp) -> Option<(u64, Timestamp, Timestamp)> {
        let (since, until) = (self.since?, self.until?);
        if now.duration_since(until) < SignedDuration::from_secs(1)
            && now.duration_since(since) < SignedDuration::from_secs(10)
        {
            return None;
        }
        (self.since, self.until) = (None, None);
        Some((std::mem::take(&mut self.skipped), since, until))
    }
}

/// Those who watch the health of a service.
async fn watchers(book: &WatchBook, tenant: &TenantId, service: &str) -> Result<Vec<Arc<CompiledWatch>>, EngineError> {
    let watches = book.of(tenant).await?;
    let looks = |watch: &Arc<CompiledWatch>| !watch.watch.health.is_empty() && watch.watch.is_about(service);
    Ok(watches.into_iter().filter(looks).collect())
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
