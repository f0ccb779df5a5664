//! Reading `wait_for`: nested conditions in words become the kernel's wait.

use kernel::{
    CallId, RunId, TimerId, Timestamp, TurnId,
    command::WaitRequest,
    units::{self, Duration},
    wait::{Condition, ExternalPattern, WaitExpr},
};
use serde::Deserialize;

use super::{LINE_BYTES, When};

/// What a model asks to wait for, before names are resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitFor {
    on: On,
    why: String,
    assumes: Option<String>,
    expects: Option<String>,
    deadline: Option<When>,
}

#[derive(Clone, Debug, PartialEq)]
enum On {
    Any(Vec<Self>),
    All(Vec<Self>),
    /// At a time, or up to so much later.
    Timer(When, Duration),
    Task(String),
    External(ExternalPattern),
    Operator,
}

#[derive(Deserialize)]
pub(super) struct Arguments {
    #[serde(flatten)]
    on: Node,
    why: String,
    #[serde(default)]
    assumes: Option<String>,
    #[serde(default)]
    expects: Option<String>,
    #[serde(default)]
    deadline: Option<When>,
}

#[derive(Deserialize)]
struct Node {
    #[serde(default)]
    any: Option<Vec<Self>>,
    #[serde(default)]
    all: Option<Vec<Self>>,
    #[serde(default)]
    timer: Option<When>,
    #[serde(default)]
    jitter: Option<Duration>,
    #[serde(default)]
    task: Option<String>,
    #[serde(default)]
    external: Option<ExternalPattern>,
    #[serde(default)]
    operator: Option<bool>,
}

impl Arguments {
    pub(super) fn read(self) -> Result<WaitFor, String> {
        let line = |text: String| kernel::excerpt(&text, LINE_BYTES);
        Ok(WaitFor {
            on: self.on.read()?,
            why: line(super::text("why", self.why)?),
            assumes: self.assumes.map(line),
            expects: self.expects.map(line),
            deadline: self.deadline,
        })
    }
}

impl Node {
    fn read(self) -> Result<On, String> {
        if self.jitter.is_some() && self.timer.is_none() {
            return Err("`jitter` puts a `timer` off, and none is given".to_owned());
        }
        let jitter = self.jitter.unwrap_or_default();
        let all = |nodes: Vec<Self>| nodes.into_iter().map(Self::read).collect::<Result<Vec<_>, _>>();
        let given = [
            self.any.map(|nodes| all(nodes).map(On::Any)),
            self.all.map(|nodes| all(nodes).map(On::All)),
            self.timer.map(|when| Ok(On::Timer(when, jitter))),
            self.task.map(|name| Ok(On::Task(name))),
            self.external.map(|pattern| checked(pattern).map(On::External)),
            self.operator.filter(|wanted| *wanted).map(|_| Ok(On::Operator)),
        ];
        let mut given = given.into_iter().flatten();
        match (given.next(), given.next()) {
            (Some(on), None) => on,
            (None, _) => {
                Err("a condition is one of any, all, timer, task, external, operator; none is given".to_owned())
            }
            (Some(_), Some(_)) => {
                Err("a condition is one of any, all, timer, task, external, operator; put several into `any` or `all`"
                    .to_owned())
            }
        }
    }
}

fn checked(pattern: ExternalPattern) -> Result<ExternalPattern, String> {
    if pattern.source.trim().is_empty() || pattern.event_type.trim().is_empty() {
        return Err("`external` needs a source and a type".to_owned());
    }
    if let Some(filter) = &pattern.filter {
        engine::Filter::compile(filter).map_err(|error| format!("`external/where` is not CEL: {error}"))?;
    }
    if let Some(verify) = &pattern.verify {
        engine::Filter::compile(&verify.when).map_err(|error| format!("`external/verify/when` is not CEL: {error}"))?;
        if !(verify.arguments.is_object() || verify.arguments.is_null()) {
            return Err("`external/verify/arguments` must be an object".to_owned());
        }
    }
    Ok(pattern)
}

/// What names in an answer stand for.
pub struct Names<'a> {
    /// The calls of the same answer: tool and id, in order.
    pub answer: &'a [(String, CallId)],
    /// The calls that were open before: tool and id.
    pub open: &'a [(String, CallId)],
}

impl Names<'_> {
    fn find(&self, name: &str) -> Result<Vec<CallId>, String> {
        let name = name.trim().trim_matches('`');
        if let Some(number) = name.strip_prefix('#') {
            let index = number.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
            let call = index.and_then(|index| self.answer.get(index));
            return call.map(|(_, id)| vec![*id]).ok_or_else(|| format!("this answer has no call `{name}`"));
        }
        let all = || self.answer.iter().chain(self.open);
        if let Ok(id) = name.parse::<CallId>() {
            let known = all().any(|(_, call)| *call == id);
            return if known { Ok(vec![id]) } else { Err(format!("no call {id} is open")) };
        }
        // The wire name has `_` where the tool has `.`.
        let is_it = |tool: &str| tool == name || tool.replace('.', "_") == name;
        let of = |calls: &[(String, CallId)]| -> Vec<CallId> {
            calls.iter().filter(|(tool, _)| is_it(tool)).map(|(_, id)| *id).collect()
        };
        let found = Some(of(self.answer)).filter(|found| !found.is_empty()).unwrap_or_else(|| of(self.open));
        if found.is_empty() {
            let open: Vec<_> = all().map(|(tool, _)| tool.as_str()).collect();
            let open = if open.is_empty() { "none".to_owned() } else { open.join(", ") };
            return Err(format!("`task`: no open call of `{name}`; open are: {open}"));
        }
        Ok(found)
    }
}

/// The kernel's wait for what the model asked.
///
/// # Errors
/// A name that stands for nothing, in words for the model.
pub fn resolve(
    wait: &WaitFor,
    names: &Names<'_>,
    (run, turn): (RunId, TurnId),
    now: Timestamp,
) -> Result<WaitRequest, String> {
    let mut timers = 0;
    let on = expression(&wait.on, names, now, &mut || {
        timers += 1;
        TimerId::derive(run, &format!("{turn}/timer/{timers}"))
    })?;
    Ok(WaitRequest {
        on,
        why: wait.why.clone(),
        assumes: wait.assumes.clone(),
        expects: wait.expects.clone(),
        deadline: wait.deadline.map(|when| when.after(now)),
    })
}

fn expression(
    on: &On,
    names: &Names<'_>,
    now: Timestamp,
    timer: &mut dyn FnMut() -> TimerId,
) -> Result<WaitExpr, String> {
    let mut all =
        |nodes: &[On]| nodes.iter().map(|on| expression(on, names, now, timer)).collect::<Result<Vec<_>, _>>();
    match on {
        On::Any(nodes) => all(nodes).map(WaitExpr::Any),
        On::All(nodes) => all(nodes).map(WaitExpr::All),
        On::Timer(when, jitter) => {
            let timer_id = timer();
            let due = units::later(when.after(now), part_of(*jitter, timer_id));
            Ok(Condition::Timer { timer_id, due }.into())
        }
        On::External(pattern) => Ok(Condition::External(pattern.clone()).into()),
        On::Operator => Ok(Condition::OperatorInput { approval_id: None }.into()),
        On::Task(name) => {
            let mut calls: Vec<WaitExpr> =
                names.find(name)?.into_iter().map(|call_id| Condition::TaskResult { call_id }.into()).collect();
            Ok(if calls.len() == 1 { calls.remove(0) } else { WaitExpr::All(calls) })
        }
    }
}

/// Some time between nothing and `jitter`, that follows from which timer it is.
fn part_of(jitter: Duration, timer: TimerId) -> Duration {
    let (_, number) = timer.0.as_u64_pair();
    Duration::from_millis(jitter.as_millis().checked_add(1).map_or(number, |parts| number % parts))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::verbs::{Spoken, Verb, read};

    fn wait(arguments: Value) -> Result<WaitFor, String> {
        match read(Verb::WaitFor, arguments)? {
            Spoken::WaitFor(wait) => Ok(wait),
            other => panic!("{other:?}"),
        }
    }

    fn resolved(
        arguments: Value,
        answer: &[(String, CallId)],
        open: &[(String, CallId)],
    ) -> Result<WaitRequest, String> {
        let ids = (RunId::mint(), TurnId::mint());
        resolve(&wait(arguments)?, &Names { answer, open }, ids, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn conditions_nest() {
        let request = resolved(
            json!({
                "any": [
                    {"timer": "3s"},
                    {"all": [{"operator": true}, {"external": {"source": "github", "type": "github.push*", "subject": "a/b", "where": "data.n > 1"}}]},
                    {"timer": "1970-01-02T00:00:00Z"},
                ],
                "why": "the merge settles", "expects": "it is there", "deadline": "1h",
            }),
            &[],
            &[],
        )
        .unwrap();
        let WaitExpr::Any(nodes) = &request.on else { panic!("{:?}", request.on) };
        assert_eq!(nodes.len(), 3);
        assert_eq!(request.on.leaves().len(), 4);
        assert_eq!(request.deadline.unwrap().as_second(), 3600);
        let timers: Vec<_> = request
            .on
            .leaves()
            .iter()
            .filter_map(|leaf| match leaf.condition {
                Condition::Timer { timer_id, due } => Some((timer_id, due.as_second())),
                _ => None,
            })
            .collect();
        assert_eq!((timers[0].1, timers[1].1), (3, 86_400));
        assert_ne!(timers[0].0, timers[1].0, "each timer is its own");
    }

    #[test]
    fn jitter_spreads_timers_and_none_comes_early() {
        let due = |jitter: &str| {
            let request = resolved(json!({"timer": "10s", "jitter": jitter, "why": "w"}), &[], &[]).unwrap();
            match request.on.leaves()[0].condition {
                Condition::Timer { due, .. } => due.as_millisecond() - 10_000,
                ref other => panic!("{other:?}"),
            }
        };
        let late: Vec<i64> = (0..100).map(|_| due("60s")).collect();
        assert!(late.iter().all(|late| (0..=60_000).contains(late)), "{late:?}");
        let early = late.iter().filter(|late| **late < 30_000).count();
        assert!((20..80).contains(&early), "{early}");
        assert_eq!(due("0s"), 0);
    }

    #[test]
    fn tasks_are_found_by_name_number_and_id() {
        let (first, second, old) = (CallId::mint(), CallId::mint(), CallId::mint());
        let answer = [("shell.run".to_owned(), first), ("http.get".to_owned(), second)];
        let open = [("shell.run".to_owned(), old)];
        let call = |name: &str| resolved(json!({"task": name, "why": "w"}), &answer, &open);
        for (name, id) in [("shell.run", first), ("shell_run", first), ("#2", second), (old.to_string().as_str(), old)]
        {
            let request = call(name).unwrap();
            assert!(
                matches!(request.on.leaves()[0].condition, Condition::TaskResult { call_id } if call_id == id),
                "{name}"
            );
        }
        assert!(call("#3").unwrap_err().contains("#3"));
        assert!(call("file.read").unwrap_err().contains("open are: shell.run, http.get, shell.run"));
        assert!(call(&CallId::mint().to_string()).unwrap_err().contains("no call"));
        let both = resolved(json!({"task": "x.y", "why": "w"}), &[], &[("x.y".into(), first), ("x.y".into(), old)]);
        assert!(matches!(both.unwrap().on, WaitExpr::All(calls) if calls.len() == 2));
    }

    #[test]
    fn bad_waits_say_what_is_wrong() {
        for (arguments, word) in [
            (json!({"why": "w"}), "none is given"),
            (json!({"why": "w", "operator": false}), "none is given"),
            (json!({"why": "w", "timer": "3s", "operator": true}), "`any` or `all`"),
            (json!({"why": "w", "any": [{}]}), "none is given"),
            (json!({"why": " ", "timer": "3s"}), "/why"),
            (json!({"why": "w", "timer": "3 parsecs"}), "3 parsecs"),
            (json!({"why": "w", "operator": true, "jitter": "3s"}), "`jitter`"),
            (json!({"why": "w", "external": {"source": "", "type": "x"}}), "source"),
            (json!({"why": "w", "external": {"source": "s", "type": "x", "where": "data.("}}), "CEL"),
        ] {
            let problem = wait(arguments.clone()).unwrap_err();
            assert!(problem.contains(word), "{arguments}: {problem}");
        }
    }
}
