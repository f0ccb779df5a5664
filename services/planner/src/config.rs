//! What the planner can be told.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};
use service::{Common, ConfigError};

use crate::{
    gate::read_rates,
    models::{ModelsOptions, remote::RemoteOptions},
    slice::SliceLimits,
};

/// Configuration of the planner; the keys that all services have are in [`Common`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// The keys that every service has.
    #[serde(flatten)]
    pub common: Common,
    /// Turns that run at once.
    pub concurrency: usize,
    /// Tokens of a whole model call: tools, instructions, context and answer.
    pub context_tokens: u64,
    /// Of those, tokens kept for the answer.
    pub output_tokens: u64,
    /// How often a model is asked again when its answer cannot be used.
    pub max_reasks: u32,
    /// Seconds that one model is tried again after failures that may pass, before the next one is.
    pub model_retry_seconds: u64,
    /// Seconds until a model's answer begins.
    pub model_first_seconds: u64,
    /// Seconds between two pieces of an answer.
    pub model_silence_seconds: u64,
    /// Seconds for a whole answer.
    pub model_timeout_seconds: u64,
    /// Hosts, or `host:port`, that may be shown the keys of providers beside the providers' own and this machine, with commas
    /// between: an agent's file alone must not send a key anywhere.
    pub model_hosts: String,
    /// Where skills lie: folders with a `SKILL.md`.
    pub skills_dir: PathBuf,
    /// Where recordings of models lie, for `record:` and `replay:`.
    pub recordings: PathBuf,
    /// The tool-executor's `environment`, so that calls are looked at beforehand by policies that mention it too; empty for not
    /// known here.
    pub environment: String,
    /// Turns of one tenant that this planner has under way at once: the others are never left without a place.
    pub max_turns_per_tenant: usize,
    /// Tokens a minute that all planners together send to a provider, such as `openai=200000, anthropic=100000`. One that is not
    /// named has no limit.
    pub provider_tokens_per_minute: String,
    /// Connections to Postgres.
    pub pool_size: u32,
}

impl Default for Config {
    fn default() -> Self {
        let (limits, remote) = (SliceLimits::default(), RemoteOptions::default());
        Self {
            common: Common::for_service("planner"),
            concurrency: 256,
            context_tokens: limits.context_tokens,
            output_tokens: limits.output_tokens,
            max_reasks: 2,
            model_retry_seconds: 20,
            model_first_seconds: remote.first.as_secs(),
            model_silence_seconds: remote.between.as_secs(),
            model_timeout_seconds: remote.whole.as_secs(),
            model_hosts: String::new(),
            skills_dir: PathBuf::from("infra/skills"),
            recordings: PathBuf::from(".local/recordings"),
            environment: String::new(),
            max_turns_per_tenant: 192,
            provider_tokens_per_minute: String::new(),
            pool_size: 8,
        }
    }
}

impl AsRef<Common> for Config {
    fn as_ref(&self) -> &Common {
        &self.common
    }
}

impl Config {
    /// How large a slice may be.
    #[must_use]
    pub const fn slice_limits(&self) -> SliceLimits {
        SliceLimits { context_tokens: self.context_tokens, output_tokens: self.output_tokens }
    }

    pub(crate) fn models(&self) -> ModelsOptions {
        ModelsOptions {
            scenarios: self.common.agents_dir.join("scenarios"),
            recordings: self.recordings.clone(),
            retry_within: Duration::from_secs(self.model_retry_seconds),
            remote: RemoteOptions {
                first: Duration::from_secs(self.model_first_seconds),
                between: Duration::from_secs(self.model_silence_seconds),
                whole: Duration::from_secs(self.model_timeout_seconds),
                key_hosts: self
                    .model_hosts
                    .split(',')
                    .map(str::trim)
                    .filter(|host| !host.is_empty())
                    .map(str::to_owned)
                    .collect(),
                ..RemoteOptions::default()
            },
        }
    }

    /// What no single key can say by itself.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        read_rates(&self.provider_tokens_per_minute).map_err(|message| ConfigError::Invalid {
            key: "provider_tokens_per_minute".to_owned(),
            origin: "the configuration of planner".to_owned(),
            message,
        })?;
        if self.output_tokens + 4_000 > self.context_tokens {
            return Err(ConfigError::Invalid {
                key: "context_tokens".to_owned(),
                origin: "the configuration of planner".to_owned(),
                message: format!(
                    "{} leaves no room beside the {} `output_tokens`: give at least 4000 more",
                    self.context_tokens, self.output_tokens
                ),
            });
        }
        Ok(())
    }
}
