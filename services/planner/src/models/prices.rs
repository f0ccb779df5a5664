//! What models cost, from a data file with dates and sources.

use std::collections::BTreeMap;

use kernel::budget::Usage;
use serde::Deserialize;

/// The list as shipped.
const SHIPPED: &str = include_str!("../../prices.yaml");

/// Providers whose models cost nothing per token.
const FREE: [&str; 3] = ["scripted", "replay", "ollama"];

/// Prices by provider and model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// The day on which they were looked up, `YYYY-MM-DD`.
    pub date: String,
    /// By provider.
    pub providers: BTreeMap<String, ProviderPrices>,
}

/// The prices of one provider.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderPrices {
    /// Where they stand.
    pub source: String,
    /// By model: US dollars for a million tokens.
    pub models: BTreeMap<String, Price>,
}

/// The price of a model, in US dollars for a million tokens.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Tokens sent.
    pub input: f64,
    /// Tokens sent that the provider had cached; as `input` if it is not said.
    #[serde(default)]
    pub cached: Option<f64>,
    /// Tokens sent that the provider put into its cache; as `input` if it is not said.
    #[serde(default)]
    pub cache_write: Option<f64>,
    /// Tokens received, those of reasoning included.
    pub output: f64,
}

/// A list of prices that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the list of prices is not valid: {0}")]
pub struct PricesError(String);

impl Prices {
    /// The list as shipped.
    ///
    /// # Errors
    /// None once the tests have passed.
    pub fn shipped() -> Result<Self, PricesError> {
        Self::parse(SHIPPED)
    }

    /// A list from YAML.
    ///
    /// # Errors
    /// When it does not fit, with line and column.
    pub fn parse(yaml: &str) -> Result<Self, PricesError> {
        serde_saphyr::from_str(yaml).map_err(|error| PricesError(error.to_string()))
    }

    /// What `usage` costs, in millionths of a US dollar; none if the price of the model is not known.
    #[must_use]
    pub fn cost(&self, provider: &str, model: &str, usage: &Usage) -> Option<u64> {
        if FREE.contains(&provider) {
            return Some(0);
        }
        let price = self.find(provider, model)?;
        let cached = usage.cached_tokens.min(usage.input_tokens);
        let written = usage.cache_write_tokens.min(usage.input_tokens - cached);
        let fresh = usage.input_tokens - cached - written;
        // Dollars for a million tokens are millionths of a dollar for one.
        let micro = tokens(fresh) * price.input
            + tokens(cached) * price.cached.unwrap_or(price.input)
            + tokens(written) * price.cache_write.unwrap_or(price.input)
            + tokens(usage.output_tokens) * price.output;
        Some(kernel::budget::microusd(micro / 1e6))
    }

    /// By its exact name, or by its name without a date at the end.
    fn find(&self, provider: &str, model: &str) -> Option<&Price> {
        let models = &self.providers.get(provider)?.models;
        let is_date = |rest: &str| {
            // A year at least: `-5` may be the next version.
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            digits >= 4 && rest.bytes().all(|b| b.is_ascii_digit() || b == b'-')
        };
        let dated = |name: &str| {
            let rest = model.strip_prefix(name).and_then(|rest| rest.strip_prefix(['-', '@']));
            rest.is_some_and(|rest| rest == "latest" || is_date(rest))
        };
        models.get(model).or_else(|| models.iter().rev().find(|(name, _)| dated(name)).map(|(_, price)| price))
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of tokens are far below 2^52")]
fn tokens(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_list_is_read_and_dated() {
        let prices = Prices::shipped().unwrap();
        assert_eq!(prices.date.len(), 10);
        for (name, provider) in &prices.providers {
            assert!(provider.source.starts_with("https://"), "{name}");
            assert!(!provider.models.is_empty(), "{name}");
        }
    }

    #[test]
    fn costs_are_counted_with_caches_and_dates() {
        let prices = Prices::parse(
            "date: 2025-11-29\nproviders:\n  x:\n    source: https://x\n    models:\n      m: {input: 2, cached: 0.5, output: 10}\n      m-mini: {input: 1, cache_write: 2, output: 1}\n",
        )
        .unwrap();
        let usage = Usage { input_tokens: 1000, cached_tokens: 400, output_tokens: 100, ..Usage::default() };
        assert_eq!(prices.cost("x", "m", &usage), Some(600 * 2 + 200 + 1000));
        let written = Usage { cache_write_tokens: 100, ..usage };
        assert_eq!(
            prices.cost("x", "m", &written),
            prices.cost("x", "m", &usage),
            "as fresh, where nothing else is said"
        );
        assert_eq!(prices.cost("x", "m-mini", &Usage { cache_write_tokens: 600, ..usage }), Some(400 + 600 * 2 + 100));
        assert_eq!(prices.cost("x", "m-2025-08-06", &usage), prices.cost("x", "m", &usage));
        assert_eq!(prices.cost("x", "m-mini", &usage), Some(1100));
        assert_eq!(prices.cost("x", "m-2", &usage), None, "another version, not a date");
        assert_eq!(prices.cost("x", "m-audio", &usage), None, "another model, not a date");
        assert_eq!(prices.cost("y", "m", &usage), None);
        assert_eq!(prices.cost("ollama", "anything", &usage), Some(0));
        assert!(Prices::parse("date: x\nproviders: {}\nmore: 1\n").unwrap_err().to_string().contains("more"));
    }
}
