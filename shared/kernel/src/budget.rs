//! What a run may spend and what it has spent.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{self, Duration};

/// The most that a run may spend. Absent means unlimited.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turns: Option<u32>,
    /// Tokens, in and out together (`200k`).
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "units::count")]
    pub tokens: Option<u64>,
    /// Money, in US dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// Time from creation to end, waits included (`3d`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall: Option<Duration>,
    /// Requested tool calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<u32>,
}

/// What one model turn consumed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Usage {
    /// Model calls made, re-asks included.
    pub model_calls: u32,
    /// Tokens sent.
    pub input_tokens: u64,
    /// Of those, tokens that the provider had cached.
    pub cached_tokens: u64,
    /// Tokens received.
    pub output_tokens: u64,
    /// Cost in millionths of a US dollar.
    pub cost_microusd: u64,
}

/// What a run has spent so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Spent {
    /// Turns committed or rejected.
    pub turns: u32,
    /// Tool calls requested.
    pub tool_calls: u32,
    /// Model use.
    pub usage: Usage,
}

/// A limit by its name, as it ends a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LimitName {
    /// [`Limits::turns`].
    Turns,
    /// [`Limits::tokens`].
    Tokens,
    /// [`Limits::cost_usd`].
    CostUsd,
    /// [`Limits::wall`].
    Wall,
    /// [`Limits::tool_calls`].
    ToolCalls,
}

impl Spent {
    /// Adds what a turn consumed.
    pub fn add(&mut self, usage: &Usage) {
        let sum = &mut self.usage;
        sum.model_calls = sum.model_calls.saturating_add(usage.model_calls);
        sum.input_tokens = sum.input_tokens.saturating_add(usage.input_tokens);
        sum.cached_tokens = sum.cached_tokens.saturating_add(usage.cached_tokens);
        sum.output_tokens = sum.output_tokens.saturating_add(usage.output_tokens);
        sum.cost_microusd = sum.cost_microusd.saturating_add(usage.cost_microusd);
    }

    /// The limit that forbids another turn, if any. Wall time is kept by a timer instead.
    #[must_use]
    pub fn forbids_turn(&self, limits: &Limits) -> Option<LimitName> {
        let tokens = self.usage.input_tokens.saturating_add(self.usage.output_tokens);
        if limits.turns.is_some_and(|most| self.turns >= most) {
            Some(LimitName::Turns)
        } else if limits.tokens.is_some_and(|most| tokens >= most) {
            Some(LimitName::Tokens)
        } else if limits.cost_usd.is_some_and(|most| self.usage.cost_microusd >= microusd(most)) {
            Some(LimitName::CostUsd)
        } else {
            None
        }
    }

    /// Whether `more` calls are within the limit.
    #[must_use]
    pub fn allows_calls(&self, limits: &Limits, more: usize) -> bool {
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        limits.tool_calls.is_none_or(|most| self.tool_calls.saturating_add(more) <= most)
    }
}

/// Dollars as millionths, saturating; nonsense (negative, not a number) counts as nothing allowed.
#[must_use]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, and maps NaN to 0")]
pub fn microusd(usd: f64) -> u64 {
    (usd * 1e6).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_is_named() {
        let mut spent = Spent { turns: 3, ..Spent::default() };
        spent.add(&Usage { input_tokens: 90, output_tokens: 10, cost_microusd: 2_000_000, ..Usage::default() });
        let none = Limits::default();
        assert_eq!(spent.forbids_turn(&none), None);
        assert_eq!(spent.forbids_turn(&Limits { turns: Some(3), ..none.clone() }), Some(LimitName::Turns));
        assert_eq!(spent.forbids_turn(&Limits { tokens: Some(100), ..none.clone() }), Some(LimitName::Tokens));
        assert_eq!(spent.forbids_turn(&Limits { tokens: Some(101), ..none.clone() }), None);
        assert_eq!(spent.forbids_turn(&Limits { cost_usd: Some(2.0), ..none.clone() }), Some(LimitName::CostUsd));
        assert!(!spent.allows_calls(&Limits { tool_calls: Some(1), ..none }, 2));
    }
}
