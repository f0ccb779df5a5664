//! Which models a turn asks, in which order.

use kernel::{RunState, agent::AgentSpec, budget::microusd, state::FactKind};

/// What kind of thinking a call is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TurnKind {
    /// A turn like the others.
    #[default]
    Routine,
    /// The first turn, in which the plan is made, and turns after something failed.
    Hard,
    /// Judging work.
    Evaluation,
    /// A second opinion on output that the observer's rules are unsure of.
    Opinion,
}

impl TurnKind {
    /// The kind of the turn that is open.
    #[must_use]
    pub fn of(state: &RunState) -> Self {
        let is_first = state.turn.as_ref().is_none_or(|turn| turn.number <= 1);
        let failed = state.facts.iter().any(|fact| fact.kind == FactKind::Failure);
        if is_first || failed || state.rejected_in_row > 0 { Self::Hard } else { Self::Routine }
    }

    /// A word for spans and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Routine => "routine",
            Self::Hard => "hard",
            Self::Evaluation => "evaluation",
            Self::Opinion => "opinion",
        }
    }
}

/// The share of its budget that a run has left, from 0 to 1: of tokens or of money, whichever is less. 1 without limits.
#[must_use]
pub fn share_left(state: &RunState) -> f64 {
    let spent = state.committed();
    let share = |most: u64, used: u64| {
        if most == 0 { 0.0 } else { ratio(most.saturating_sub(used), most) }
    };
    let tokens = state.limits.tokens.map_or(1.0, |most| share(most, spent.usage.tokens()));
    let money = state.limits.cost_usd.map_or(1.0, |most| share(microusd(most), spent.usage.cost_microusd));
    tokens.min(money)
}

#[expect(clippy::cast_precision_loss, reason = "a share need not be exact")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

/// The models to ask, in this order, each once. `ask` is how often this turn has asked before: who twice gave nothing usable
/// is asked last.
#[must_use]
pub fn order(agent: &AgentSpec, kind: TurnKind, left: f64, ask: u32) -> Vec<&str> {
    if kind == TurnKind::Opinion {
        // Whoever was named for this and nobody else: the agent's own models are of another price.
        return agent.observer.iter().flat_map(|adviser| adviser.model.all()).map(String::as_str).collect();
    }
    let routes = &agent.routes;
    let thrift = routes.thrift.as_ref().filter(|thrift| left < thrift.below).map(|thrift| &thrift.models);
    let of_kind = match kind {
        TurnKind::Routine | TurnKind::Opinion => None,
        TurnKind::Hard => routes.hard.as_ref(),
        TurnKind::Evaluation => routes.evaluation.as_ref(),
    };
    // Who has little left spends it on finishing: thrift goes before strength.
    let first = thrift.or(of_kind);
    let mut names: Vec<&str> = Vec::new();
    for name in first.into_iter().chain([&agent.model]).flat_map(kernel::agent::Models::all) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    if ask > 1 && !names.is_empty() {
        names.rotate_left(1);
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(yaml: &str) -> AgentSpec {
        serde_saphyr::from_str(&format!("name: a\ninstructions: x\n{yaml}")).unwrap()
    }

    #[test]
    fn the_kind_and_the_budget_choose() {
        let agent = agent(
            "model: [x:cheap, y:other]\nroutes:\n  hard: x:strong\n  evaluation: [y:judge, x:cheap]\n  thrift: {below: 0.2, use: z:tiny}\n",
        );
        assert_eq!(order(&agent, TurnKind::Routine, 1.0, 0), ["x:cheap", "y:other"]);
        assert_eq!(order(&agent, TurnKind::Hard, 1.0, 0), ["x:strong", "x:cheap", "y:other"]);
        assert_eq!(order(&agent, TurnKind::Evaluation, 1.0, 0), ["y:judge", "x:cheap", "y:other"]);
        assert_eq!(order(&agent, TurnKind::Hard, 0.1, 0), ["z:tiny", "x:cheap", "y:other"]);
        assert_eq!(order(&agent, TurnKind::Routine, 1.0, 1), ["x:cheap", "y:other"], "told what was wrong first");
        assert_eq!(order(&agent, TurnKind::Routine, 1.0, 2), ["y:other", "x:cheap"]);
    }

    #[test]
    fn an_opinion_is_asked_of_those_who_are_named_for_it() {
        let opted_in = agent(
            "model: x:dear\nroutes: {thrift: {below: 0.5, use: z:tiny}}\nobserver: {model: [x:small, y:small]}\n",
        );
        assert_eq!(order(&opted_in, TurnKind::Opinion, 0.1, 0), ["x:small", "y:small"]);
        assert_eq!(order(&opted_in, TurnKind::Routine, 1.0, 0), ["x:dear"]);
        assert!(order(&agent("model: x:dear\n"), TurnKind::Opinion, 1.0, 0).is_empty());
    }

    #[test]
    fn without_routes_there_is_one_list() {
        let agent = agent("model: x:only\n");
        for kind in [TurnKind::Routine, TurnKind::Hard, TurnKind::Evaluation] {
            assert_eq!(order(&agent, kind, 0.0, 2), ["x:only"]);
        }
    }
}
