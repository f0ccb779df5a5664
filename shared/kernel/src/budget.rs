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
    #[schemars(with = "Option<units::Count>")]
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
    /// What happens when one of them is reached. Absent is what is safest where nobody is there to be asked: the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_limit: Option<AtLimit>,
}

/// What happens when a limit is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AtLimit {
    /// The run stops between two turns, and an operator is asked whether it may have as much again.
    Ask,
    /// The run ends.
    End,
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
    /// Of the tokens sent, those that the provider put into its cache, which some charge more for.
    #[serde(skip_serializing_if = "is_zero")]
    pub cache_write_tokens: u64,
    /// Tokens received, those of reasoning included.
    pub output_tokens: u64,
    /// Of those, tokens of reasoning.
    #[serde(skip_serializing_if = "is_zero")]
    pub reasoning_tokens: u64,
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

impl Limits {
    /// Of each limit the lower one.
    #[must_use]
    pub fn stricter(&self, other: &Self) -> Self {
        fn lower<T: PartialOrd + Copy>(a: Option<T>, b: Option<T>) -> Option<T> {
            match (a, b) {
                (Some(a), Some(b)) => Some(if b < a { b } else { a }),
                (a, b) => a.or(b),
            }
        }
        Self {
            turns: lower(self.turns, other.turns),
            tokens: lower(self.tokens, other.tokens),
            cost_usd: lower(self.cost_usd, other.cost_usd),
            wall: lower(self.wall, other.wall),
            tool_calls: lower(self.tool_calls, other.tool_calls),
            at_limit: self.at_limit.or(other.at_limit),
        }
    }

    /// These limits, and those of `other` where there are none.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        Self {
            turns: self.turns.or(other.turns),
            tokens: self.tokens.or(other.tokens),
            cost_usd: self.cost_usd.or(other.cost_usd),
            wall: self.wall.or(other.wall),
            tool_calls: self.tool_calls.or(other.tool_calls),
            at_limit: self.at_limit.or(other.at_limit),
        }
    }

    /// These limits with as much again of this one: `given` says how much that was at first. Wall time counts from `age` on.
    #[must_use]
    pub fn with_more(&self, limit: LimitName, given: &Self, age: Duration) -> Self {
        let mut more = self.clone();
        let again =
            |now: Option<u32>, first: Option<u32>| now.map(|now| now.saturating_add(first.unwrap_or(now).max(1)));
        match limit {
            LimitName::Turns => more.turns = again(self.turns, given.turns),
            LimitName::ToolCalls => more.tool_calls = again(self.tool_calls, given.tool_calls),
            LimitName::Tokens => {
                more.tokens = self.tokens.map(|now| now.saturating_add(given.tokens.unwrap_or(now).max(1)));
            }
            LimitName::CostUsd => {
                let first = |now: f64| given.cost_usd.unwrap_or(now).max(0.01);
                more.cost_usd = self.cost_usd.map(|now| usd(microusd(now).saturating_add(microusd(first(now)))));
            }
            LimitName::Wall => {
                let first = |now: Duration| given.wall.unwrap_or(now).as_millis().max(1000);
                let most = |now: Duration| now.as_millis().max(age.as_millis()).saturating_add(first(now));
                more.wall = self.wall.map(|now| Duration::from_millis(most(now)));
            }
        }
        more
    }

    /// What is left of them after `spent`. Time passes by itself.
    #[must_use]
    pub fn without(&self, spent: &Spent) -> Self {
        Self {
            turns: self.turns.map(|most| most.saturating_sub(spent.turns)),
            tokens: self.tokens.map(|most| most.saturating_sub(spent.usage.tokens())),
            cost_usd: self.cost_usd.map(|most| usd(microusd(most).saturating_sub(spent.usage.cost_microusd))),
            wall: self.wall,
            tool_calls: self.tool_calls.map(|most| most.saturating_sub(spent.tool_calls)),
            at_limit: None,
        }
    }

    /// One of `shares` equal parts of what can be shared.
    #[must_use]
    pub fn divided(&self, shares: u32) -> Self {
        let shares = shares.max(1);
        Self {
            turns: self.turns.map(|most| most / shares),
            tokens: self.tokens.map(|most| most / u64::from(shares)),
            cost_usd: self.cost_usd.map(|most| usd(microusd(most) / u64::from(shares))),
            wall: self.wall,
            tool_calls: self.tool_calls.map(|most| most / shares),
            at_limit: None,
        }
    }

    /// All that they allow, as if it were spent.
    #[must_use]
    pub fn as_spent(&self) -> Spent {
        Spent {
            turns: self.turns.unwrap_or(0),
            tool_calls: self.tool_calls.unwrap_or(0),
            usage: Usage {
                input_tokens: self.tokens.unwrap_or(0),
                cost_microusd: self.cost_usd.map_or(0, microusd),
                ..Usage::default()
            },
        }
    }

    /// The limit under which not even one turn is possible, if there is one.
    #[must_use]
    pub fn nothing_left(&self) -> Option<LimitName> {
        let nothing = Spent::default().forbids_turn(self);
        nothing.or_else(|| self.wall.filter(|wall| wall.as_millis() == 0).map(|_| LimitName::Wall))
    }
}

impl Usage {
    /// Tokens in and out together.
    #[must_use]
    pub const fn tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }
}

impl std::fmt::Display for LimitName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Turns => "turns",
            Self::Tokens => "tokens",
            Self::CostUsd => "cost_usd",
            Self::Wall => "wall",
            Self::ToolCalls => "tool_calls",
        })
    }
}

impl Spent {
    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let mut sum = *self;
        sum.turns = sum.turns.saturating_add(other.turns);
        sum.tool_calls = sum.tool_calls.saturating_add(other.tool_calls);
        sum.add(&other.usage);
        sum
    }

    /// Adds what a turn consumed.
    pub fn add(&mut self, usage: &Usage) {
        let sum = &mut self.usage;
        sum.model_calls = sum.model_calls.saturating_add(usage.model_calls);
        sum.input_tokens = sum.input_tokens.saturating_add(usage.input_tokens);
        sum.cached_tokens = sum.cached_tokens.saturating_add(usage.cached_tokens);
        sum.cache_write_tokens = sum.cache_write_tokens.saturating_add(usage.cache_write_tokens);
        sum.output_tokens = sum.output_tokens.saturating_add(usage.output_tokens);
        sum.reasoning_tokens = sum.reasoning_tokens.saturating_add(usage.reasoning_tokens);
        sum.cost_microusd = sum.cost_microusd.saturating_add(usage.cost_microusd);
    }

    /// The limit that forbids another turn, if any. Wall time is kept by a timer instead.
    #[must_use]
    pub fn forbids_turn(&self, limits: &Limits) -> Option<LimitName> {
        let tokens = self.usage.tokens();
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

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Dollars as millionths, saturating; nonsense (negative, not a number) counts as nothing allowed.
#[must_use]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, and maps NaN to 0")]
pub fn microusd(usd: f64) -> u64 {
    (usd * 1e6).round() as u64
}

/// Millionths as dollars.
fn usd(microusd: u64) -> f64 {
    microusd as f64 / 1e6
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

    #[test]
    fn what_is_left_is_shared_and_never_more_than_there_was() {
        let limits = Limits { turns: Some(10), tokens: Some(100), cost_usd: Some(0.3), ..Limits::default() };
        let spent = Spent { turns: 4, tool_calls: 7, usage: Usage { input_tokens: 500, ..Usage::default() } };
        let left = limits.without(&spent);
        assert_eq!((left.turns, left.tokens, left.cost_usd, left.tool_calls), (Some(6), Some(0), Some(0.3), None));
        assert_eq!(left.nothing_left(), Some(LimitName::Tokens));
        let share = limits.divided(3);
        assert_eq!((share.turns, share.tokens, share.cost_usd), (Some(3), Some(33), Some(0.1)));
        let asked = Limits { turns: Some(99), ..Limits::default() };
        assert_eq!(asked.or(&share).stricter(&left).turns, Some(6));
        assert_eq!(limits.stricter(&asked).turns, Some(10));
        assert_eq!(share.as_spent().usage.cost_microusd, 100_000);
    }
}
