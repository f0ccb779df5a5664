//! What a schedule says. Reading it and keeping time are elsewhere; this is its meaning.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{budget::Limits, units::Duration};

/// A schedule: when, and what then.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleSpec {
    /// Its name: `[a-z0-9-]`, at most 63 characters. May be left out where the path says it.
    #[serde(default)]
    pub name: String,
    /// What it is for, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Five fields (minute, hour, day of month, month, day of week), six with the second first, seven with the year last, or
    /// a nickname such as `@daily`.
    pub cron: String,
    /// The IANA time zone whose wall clock the pattern is about.
    #[serde(default = "utc")]
    pub time_zone: String,
    /// What becomes of wall clock times that a change of the clock leaves out or repeats.
    #[serde(default)]
    pub dst: DstPolicy,
    /// The run to start. Either this or `publish`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<ScheduledRun>,
    /// The event to publish. Either this or `start`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publish: Option<ScheduledEvent>,
    /// What happens when it is time and a run of this schedule is still under way; `skip` unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<Overlap>,
    /// What becomes of the times that passed while no scheduler was there.
    #[serde(default)]
    pub catch_up: CatchUp,
    /// Each firing is put off by a time between nothing and this, always the same for the same firing.
    #[serde(default)]
    pub jitter: Duration,
    /// It does not fire before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub from: Option<Timestamp>,
    /// It does not fire after this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub until: Option<Timestamp>,
}

fn utc() -> String {
    "UTC".to_owned()
}

/// What becomes of wall clock times that a change of the clock leaves out or repeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DstPolicy {
    /// Once a day all the same: a time left out fires the moment after the change, a repeated one the first time only.
    #[default]
    Once,
    /// A time left out does not fire, a repeated one the first time only.
    Skip,
    /// A time left out fires the moment after the change, a repeated one both times.
    Twice,
}

/// What happens when it is time and a run of the schedule is still under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// This firing is left out.
    #[default]
    Skip,
    /// It waits for the end of that run; one waits at most, further ones are left out.
    Queue,
    /// It starts beside it.
    Allow,
    /// That run is cancelled, and this one starts when it has ended.
    Cancel,
}

/// What becomes of the times that passed while no scheduler was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CatchUp {
    /// How long ago such a time may lie to be made up for; `0s` makes up for none.
    pub within: Duration,
    /// Which of them are made up for.
    pub missed: Missed,
}

impl Default for CatchUp {
    fn default() -> Self {
        Self { within: Duration::from_secs(3600), missed: Missed::Latest }
    }
}

/// Which of the missed times are made up for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Missed {
    /// The last one.
    #[default]
    Latest,
    /// Each of them, one after the other.
    All,
}

/// A run that a schedule starts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduledRun {
    /// Name of the agent; the version is the one that new runs start with at that time.
    pub agent: String,
    /// What it starts with: text, or any JSON.
    pub input: Value,
    /// What is to be reached; the input, if it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<String>,
    /// What it may spend. The agent's own limits hold all the same.
    #[serde(default)]
    pub budget: Limits,
    /// Labels of your own; `schedule` and `scheduled_for` are added.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

/// An event that a schedule publishes, as if it came from outside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduledEvent {
    /// CloudEvent type.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The source that waits and triggers know.
    #[serde(default = "schedule")]
    pub source: String,
    /// What it is about: with the source, the key that waits meet on.
    #[serde(default)]
    pub subject: String,
    /// Its data.
    #[serde(default)]
    pub data: Value,
}

fn schedule() -> String {
    "schedule".to_owned()
}

impl ScheduleSpec {
    /// The overlap policy in force. Events don't last, so nothing overlaps with them.
    #[must_use]
    pub fn overlap(&self) -> Overlap {
        if self.publish.is_some() { Overlap::Allow } else { self.overlap.unwrap_or_default() }
    }

    /// Whether both are about the same times.
    #[must_use]
    pub fn keeps_the_times_of(&self, other: &Self) -> bool {
        self.cron == other.cron
            && self.time_zone == other.time_zone
            && self.dst == other.dst
            && self.from == other.from
            && self.until == other.until
    }
}
