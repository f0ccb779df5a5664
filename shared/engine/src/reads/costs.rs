//! What runs have cost, summed up.

use kernel::{TenantId, Timestamp};
use serde::Serialize;

use super::{
    Reads,
    row::{Cells, instant},
};
use crate::error::{EngineError, pg};

/// What the runs of an agent have cost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AgentCost {
    /// The agent.
    pub agent: String,
    /// Its runs, those that others started as their children included.
    pub runs: u64,
    /// Their turns.
    pub turns: u64,
    /// Their calls to models.
    pub model_calls: u64,
    /// Tokens sent.
    pub input_tokens: u64,
    /// Of those, tokens that providers had cached.
    pub cached_tokens: u64,
    /// Tokens received.
    pub output_tokens: u64,
    /// What that cost, in millionths of a US dollar.
    pub cost_microusd: u64,
}

impl Reads {
    /// What this tenant's runs have cost that were created since then, by agent, the dearest first. What a run spent is counted
    /// with its own agent, not with that of the run that started it.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn costs(&self, tenant: &TenantId, since: Option<Timestamp>) -> Result<Vec<AgentCost>, EngineError> {
        let read = || pg("summing up costs");
        let rows = sqlx::query(concat!(
            "select agent, count(*) as runs, coalesce(sum(turns), 0)::bigint as turns,
                    coalesce(sum(model_calls), 0)::bigint as model_calls,
                    coalesce(sum(input_tokens), 0)::bigint as input_tokens,
                    coalesce(sum(cached_tokens), 0)::bigint as cached_tokens,
                    coalesce(sum(output_tokens), 0)::bigint as output_tokens,
                    coalesce(sum(cost_microusd), 0)::bigint as cost_microusd
             from runs where tenant = $1 and ($2::bigint is null or created_at >= ",
            instant!("$2"),
            ") group by agent order by cost_microusd desc, input_tokens desc, agent limit 1000"
        ))
        .bind(tenant.as_str())
        .bind(since.map(Timestamp::as_microsecond))
        .fetch_all(&self.pool)
        .await
        .map_err(read())?;
        let cost = |row| {
            let row = Cells(row);
            Ok(AgentCost {
                agent: row.get("agent")?,
                runs: row.count("runs")?,
                turns: row.count("turns")?,
                model_calls: row.count("model_calls")?,
                input_tokens: row.count("input_tokens")?,
                cached_tokens: row.count("cached_tokens")?,
                output_tokens: row.count("output_tokens")?,
                cost_microusd: row.count("cost_microusd")?,
            })
        };
        rows.iter().map(cost).collect::<Result<_, _>>().map_err(read())
    }
}
