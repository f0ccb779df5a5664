//! What stands before an attempt beside the policies: how often a tool, a target or a tenant may be served, and targets that
//! are left alone since they fail. Shared by all executors; while Redis does not answer, everything passes.

use std::time::Duration;

use engine::{Admission, BreakerOptions, Limiter, Rate};
use kernel::TenantId;
use kernel::call::ErrorClass;
use serde_json::{Map, Value};
use service::ConfigError;

use crate::outcome::{Happened, ToolError};
use crate::pipeline::Ready;
use crate::tools::Means;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Tool,
    Target,
    Tenant,
}

/// So many in so much time, for one or for each by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    kind: Kind,
    /// None: each.
    name: Option<String>,
    count: u32,
    per: Duration,
}

/// The limits of this executor and its like.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    limiter: Limiter,
    rules: Vec<Rule>,
    breaker: BreakerOptions,
}

/// Why an attempt has to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    pub wait: Duration,
    /// `circuit_open` or `rate_limited`.
    pub reason: &'static str,
    /// In words.
    pub words: String,
}

/// Whose attempt it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking<'a> {
    pub tool: &'a str,
    /// None: it is counted already.
    pub tenant: Option<&'a TenantId>,
    /// What it goes to, if that is outside.
    pub target: Option<&'a str>,
}

impl Limits {
    /// From the limits as they are written.
    pub fn new(limiter: Limiter, rates: &[String], breaker: BreakerOptions) -> Result<Self, ConfigError> {
        let wrong = |rate: &String| ConfigError::Invalid {
            key: "rate_limits".to_owned(),
            origin: "the configuration of tool-executor".to_owned(),
            message: format!(
                "`{rate}` is not such as `tool:github.merge=10/1m`, `target:api.example.com:443=60/1m`, `tenant:*=1000/1m`"
            ),
        };
        let rules = rates.iter().map(|rate| rule(rate).ok_or_else(|| wrong(rate))).collect::<Result<_, _>>()?;
        Ok(Self { limiter, rules, breaker })
    }

    /// Whether an attempt may begin now.
    pub async fn admit(&self, asking: Asking<'_>) -> Result<(), Wait> {
        let rates: Vec<_> = self.rules.iter().filter_map(|rule| rule.rate(asking)).collect();
        let (target, breaker) = match asking.target {
            Some(target) => (target, self.breaker),
            None if rates.is_empty() => return Ok(()),
            None => (asking.tool, BreakerOptions { threshold: 0, ..self.breaker }),
        };
        match self.limiter.admit(target, breaker, &rates).await {
            Ok(Admission::Admitted { .. }) => Ok(()),
            Ok(Admission::Open { wait }) => {
                let words = format!("`{target}` has failed too often in a row and is left alone for {}", seconds(wait));
                Err(Wait { wait, reason: "circuit_open", words })
            }
            Ok(Admission::Limited { wait, rate }) => {
                let words = format!("the limit `{rate}` is reached for {}", seconds(wait));
                Err(Wait { wait, reason: "rate_limited", words })
            }
            Err(error) => {
                metrics::counter!("tool_executor_limits_unavailable_total").increment(1);
                tracing::warn!(error = &error as &dyn std::error::Error, "no limits can be asked for: passing");
                Ok(())
            }
        }
    }

    /// Tells the others how an attempt went.
    pub async fn tell(&self, target: Option<&str>, error: Option<&ToolError>) {
        let Some(target) = target else { return };
        let told = match error.map(says_target_fails) {
            None | Some(false) => self.limiter.succeeded(target).await,
            Some(true) => self.limiter.failed(target, self.breaker).await.map(|opened| {
                if let Some(rest) = opened {
                    metrics::counter!("tool_executor_circuits_opened_total", "target" => target.to_owned())
                        .increment(1);
                    tracing::warn!(target, rest_ms = rest.as_millis(), "a target fails: it is left alone for a while");
                }
            }),
        };
        if let Err(error) = told {
            tracing::debug!(error = &error as &dyn std::error::Error, "the others don't hear how a target is");
        }
    }
}

/// Whether an error is about the target's health. One that refuses, or that has had enough for now, is well.
fn says_target_fails(error: &ToolError) -> bool {
    error.class() == ErrorClass::Retry && (error.happened != Happened::No || error.code == "unreachable")
}

/// What a call goes to: the host and port of its request, or its MCP server; none if nothing outside.
pub(crate) fn target(ready: &Ready) -> Option<String> {
    target_of(&ready.means, &ready.arguments)
}

/// What a call with these arguments goes to, if that is outside.
pub(crate) fn target_of(means: &Means, arguments: &Map<String, Value>) -> Option<String> {
    match means {
        Means::Mcp(remote) => Some(format!("mcp:{}", remote.run.server)),
        means => means.host(arguments),
    }
}

impl Rule {
    fn rate(&self, asking: Asking<'_>) -> Option<Rate> {
        let (kind, asked) = match self.kind {
            Kind::Tool => ("tool", asking.tool),
            Kind::Target => ("target", asking.target?),
            Kind::Tenant => ("tenant", asking.tenant?.as_str()),
        };
        let host = || asked.rsplit_once(':').map(|(host, _)| host);
        let meant = self.name.as_deref().is_none_or(|name| {
            asked.eq_ignore_ascii_case(name)
                || self.kind == Kind::Target && host().is_some_and(|host| host.eq_ignore_ascii_case(name))
        });
        meant.then(|| Rate { name: format!("{kind}/{asked}"), count: self.count, per: self.per })
    }
}

fn rule(text: &str) -> Option<Rule> {
    let (what, rate) = text.trim().rsplit_once('=')?;
    let (kind, name) = what.split_once(':')?;
    let (count, per) = rate.split_once('/')?;
    let kind = match kind {
        "tool" => Kind::Tool,
        "target" => Kind::Target,
        "tenant" => Kind::Tenant,
        _ => return None,
    };
    let count = count.parse().ok().filter(|count| *count > 0)?;
    let per = per.parse::<kernel::units::Duration>().ok().filter(|per| per.as_millis() > 0)?.std();
    let name = (name != "*").then(|| name.to_owned()).filter(|name| !name.is_empty());
    (name.is_some() || what.ends_with(":*")).then_some(Rule { kind, name, count, per })
}

fn seconds(wait: Duration) -> String {
    format!("{:.1} s", wait.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_written() {
        let read = rule("target:api.example.com:443=60/1m").unwrap();
        assert_eq!((read.kind, read.name.as_deref(), read.count), (Kind::Target, Some("api.example.com:443"), 60));
        assert_eq!(read.per, Duration::from_secs(60));
        assert_eq!(rule("tenant:*=5/1s").unwrap().name, None);
        for text in
            ["", "tool=1/1s", "tool:x=0/1s", "tool:x=1/0s", "tool:x=1", "tool:=1/1s", "host:x=1/1s", "tool:x=a/1s"]
        {
            assert_eq!(rule(text), None, "{text}");
        }
    }

    #[test]
    fn a_limit_counts_what_it_names() {
        let tenant = TenantId::default();
        let asking = Asking { tool: "github.merge", tenant: Some(&tenant), target: Some("api.github.com:443") };
        let name = |text: &str| rule(text).unwrap().rate(asking).map(|rate| rate.name);
        assert_eq!(name("tool:*=1/1s").as_deref(), Some("tool/github.merge"));
        assert_eq!(name("tool:github.merge=1/1s").as_deref(), Some("tool/github.merge"));
        assert_eq!(name("tool:other=1/1s"), None);
        assert_eq!(name("target:api.github.com=1/1s").as_deref(), Some("target/api.github.com:443"));
        assert_eq!(name("target:github.com=1/1s"), None);
        assert_eq!(name("tenant:*=1/1s").as_deref(), Some("tenant/default"));
    }

    #[test]
    fn who_refuses_is_well() {
        let failing = ToolError::transient("http_status", "HTTP 500", Happened::Perhaps);
        let busy = ToolError::transient("http_status", "HTTP 429", Happened::No);
        let gone = ToolError::transient("unreachable", "nobody there", Happened::No);
        assert!(says_target_fails(&failing) && says_target_fails(&gone) && !says_target_fails(&busy));
        assert!(!says_target_fails(&ToolError::final_("http_status", "HTTP 404")));
    }
}
