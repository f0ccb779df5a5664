//! Who may think now: no tenant has all places, and no provider is sent more tokens a minute than the operator wants.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use engine::Limiter;

/// Places and rates. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Gate {
    limiter: Limiter,
    /// Turns of one tenant that are under way in this process at the most.
    share: usize,
    per_minute: Arc<BTreeMap<String, u64>>,
    under_way: Arc<Mutex<HashMap<String, usize>>>,
}

/// A tenant's place, until it is dropped.
pub(crate) struct Seat {
    tenant: String,
    under_way: Arc<Mutex<HashMap<String, usize>>>,
}

impl Gate {
    /// With the tokens a minute of each provider.
    pub(crate) fn new(limiter: Limiter, share: usize, per_minute: BTreeMap<String, u64>) -> Self {
        Self { limiter, share: share.max(1), per_minute: Arc::new(per_minute), under_way: Arc::default() }
    }

    /// A place for a turn of this tenant; none if it has its share.
    pub(crate) fn enter(&self, tenant: &str) -> Option<Seat> {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        let count = under_way.entry(tenant.to_owned()).or_default();
        if *count >= self.share {
            return None;
        }
        *count += 1;
        Some(Seat { tenant: tenant.to_owned(), under_way: Arc::clone(&self.under_way) })
    }

    /// How long the provider of a model (`provider:model`) is to be spared. It spares somebody else, and keeps nothing safe: if
    /// Redis does not answer, not at all.
    pub(crate) async fn wait(&self, model: &str) -> Option<Duration> {
        let (provider, limit) = self.limit(model)?;
        match self.limiter.debt(&name(provider), limit).await {
            Ok(wait) => (!wait.is_zero()).then_some(wait),
            Err(error) => {
                tracing::warn!(%error, provider, "the tokens a minute of a provider are not known at the moment");
                None
            }
        }
    }

    /// Counts what a call took.
    pub(crate) async fn charge(&self, model: &str, tokens: u64) {
        let Some((provider, limit)) = self.limit(model) else { return };
        if let Err(error) = self.limiter.charge(&name(provider), limit, tokens).await {
            tracing::warn!(%error, provider, "tokens of a provider are not counted");
        }
    }

    fn limit<'a>(&self, model: &'a str) -> Option<(&'a str, u64)> {
        let provider = model.split_once(':').map_or(model, |(provider, _)| provider);
        self.per_minute.get(provider).map(|limit| (provider, *limit))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = under_way.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                under_way.remove(&self.tenant);
            }
        }
    }
}

fn name(provider: &str) -> String {
    format!("tokens/{provider}")
}

/// `openai=200000, anthropic=100000`.
///
/// # Errors
/// The part that is none.
pub(crate) fn read_rates(text: &str) -> Result<BTreeMap<String, u64>, String> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let read = |part: &str| {
        let (provider, count) = part.split_once('=')?;
        let count = count.trim().parse().ok().filter(|count| *count > 0)?;
        Some((provider.trim().to_ascii_lowercase(), count))
    };
    parts
        .map(|part| read(part).ok_or_else(|| format!("`{part}` is not provider=tokens, such as openai=200000")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_they_are_written() {
        let rates = read_rates("openai=200000, Anthropic = 5,").unwrap();
        assert_eq!((rates["openai"], rates["anthropic"], rates.len()), (200_000, 5, 2));
        assert!(read_rates("").unwrap().is_empty());
        for bad in ["openai", "openai=0", "openai=many"] {
            assert!(read_rates(bad).unwrap_err().contains(bad));
        }
    }
}
