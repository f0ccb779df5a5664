//! The event that a delivery becomes. What was delivered stays as it is, as the event's data.
//!
//! An event's subject is the thing that it is about, as its sender names it in addresses: `acme/widget/pull/7` for all that
//! happens to that pull request, its comments too. A wait for that thing meets them all.

use axum::http::{HeaderMap, HeaderName};
use bus::{CloudEvent, CloudEventError, CloudEventLimits};
use engine::{Filter, FilterError};
use kernel::{Timestamp, excerpt};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::file::{Hook, Scheme};

/// Longest subject and id, in bytes.
const KEY_BYTES: usize = 512;

/// What is to be done about a believed delivery.
#[derive(Debug)]
pub(crate) enum Delivered {
    /// It is an event.
    Event(Box<CloudEvent>),
    /// Slack asks whether this is the right place: this is the answer.
    Challenge(String),
}

/// A believed delivery that can't become an event.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    /// The body is not what its type says.
    #[error("the body is no JSON: {0}")]
    NotJson(#[from] serde_json::Error),
    /// A form without what should be in it.
    #[error("the form has no field `payload`")]
    NoPayload,
    /// It lacks what says what happened.
    #[error("the delivery has no header `{0}`, so that nobody knows what happened")]
    NoEvent(&'static str),
    /// What the hook's file says of it can't be had from it.
    #[error("`map.{name}` fails on this delivery: {error}")]
    Mapping {
        /// Which attribute.
        name: &'static str,
        /// Why.
        error: FilterError,
    },
    /// It is no event that can be kept.
    #[error(transparent)]
    Event(#[from] CloudEventError),
}

/// What a delivery is, by its scheme.
struct Parts {
    /// What makes it the same when it comes again.
    id: Option<String>,
    /// Where it comes from.
    source: Option<String>,
    /// What happened.
    event_type: String,
    /// What it happened to.
    subject: Option<String>,
    /// When it happened.
    time: Option<Timestamp>,
}

/// Makes an event of a delivery whose signature fits.
pub(crate) fn delivered(
    hook: &Hook,
    headers: &HeaderMap,
    body: &[u8],
    limits: &CloudEventLimits,
) -> Result<Delivered, Unreadable> {
    let mut data = read(headers, body)?;
    if hook.scheme == Scheme::Slack
        && let Some(challenge) = challenge(&data)
    {
        return Ok(Delivered::Challenge(challenge));
    }
    bus::clean_nul(&mut data);
    let delivery = Delivery { hook, headers, data: &data };
    let parts = match &hook.scheme {
        Scheme::Github => delivery.github()?,
        Scheme::Gitlab => delivery.gitlab()?,
        Scheme::Stripe => delivery.stripe(),
        Scheme::Slack => delivery.slack(),
        Scheme::Standard => delivery.plain(delivery.header("webhook-id"), None),
        Scheme::Hmac(hmac) => {
            let named = |name: &Option<HeaderName>| name.as_ref().and_then(|name| delivery.header(name.as_str()));
            delivery.plain(named(&hmac.id), named(&hmac.event))
        }
    };
    // The same body again is the same event, where nothing better is known.
    let id = parts.id.unwrap_or_else(|| hex::encode(Sha256::digest(body)));
    let source = parts.source.unwrap_or_else(|| format!("/hooks/{}", hook.name));
    let mut event = CloudEvent::new(excerpt(&id, KEY_BYTES), source, excerpt(&parts.event_type, KEY_BYTES));
    event.subject = parts.subject.map(|subject| excerpt(&subject, KEY_BYTES));
    event.time = parts.time;
    event.extensions.insert("hook".to_owned(), json!(hook.name));
    let mut json = event.with_json(data).to_json();
    hook.map.apply(&mut json)?;
    Ok(Delivered::Event(Box::new(CloudEvent::from_json(json, limits)?)))
}

/// The body as JSON. A form holds its JSON in `payload`, or is an object of its fields.
fn read(headers: &HeaderMap, body: &[u8]) -> Result<Value, Unreadable> {
    let media_type = headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
        return Ok(serde_json::from_slice(body)?);
    }
    let mut fields = fields(body);
    if let Some(payload) = fields.remove("payload") {
        return Ok(serde_json::from_str(payload.as_str().unwrap_or_default())?);
    }
    if fields.is_empty() { Err(Unreadable::NoPayload) } else { Ok(Value::Object(fields)) }
}

fn fields(body: &[u8]) -> Map<String, Value> {
    let Ok(mut form) = reqwest::Url::parse("form:/") else { return Map::new() };
    form.set_query(Some(&String::from_utf8_lossy(body)));
    form.query_pairs().map(|(name, value)| (name.into_owned(), Value::String(value.into_owned()))).collect()
}

fn challenge(data: &Value) -> Option<String> {
    let asks = data.get("type").and_then(Value::as_str) == Some("url_verification");
    data.get("challenge").and_then(Value::as_str).filter(|_| asks).map(str::to_owned)
}

struct Delivery<'a> {
    hook: &'a Hook,
    headers: &'a HeaderMap,
    data: &'a Value,
}

impl Delivery<'_> {
    fn github(&self) -> Result<Parts, Unreadable> {
        let event = self.header("x-github-event").ok_or(Unreadable::NoEvent("X-GitHub-Event"))?;
        let action = self.text("/action").map(|action| format!(".{action}")).unwrap_or_default();
        Ok(Parts {
            id: self.header("x-github-delivery"),
            source: self.text("/repository/html_url").or_else(|| self.text("/organization/url")),
            event_type: format!("github.{event}{action}"),
            subject: self.github_subject(&event),
            time: None,
        })
    }

    /// The thing's own path, as in its address in a browser; else the repository, else the organisation or whoever else it is
    /// about.
    fn github_subject(&self, event: &str) -> Option<String> {
        let own = |name: &str| self.path_of(&format!("/{name}/html_url"));
        // Comments and reviews are about what they are on, and a comment on a pull request is an `issue_comment`.
        let thing = [
            "pull_request",
            "issue",
            "discussion",
            "release",
            "workflow_run",
            "workflow_job",
            "check_run",
            "milestone",
        ];
        let named = thing.iter().find(|name| event.starts_with(**name)).and_then(|name| own(name));
        let thing = named.or_else(|| thing.iter().find_map(|name| own(name)));
        thing
            .or_else(|| self.text("/repository/full_name"))
            .or_else(|| self.text("/organization/login"))
            .or_else(|| self.text("/enterprise/slug"))
            .or_else(|| self.text("/installation/account/login"))
            .or_else(|| self.text("/sponsorship/sponsorable/login"))
            .or_else(|| self.text("/security_advisory/ghsa_id"))
            .or_else(|| self.text("/sender/login"))
    }

    fn gitlab(&self) -> Result<Parts, Unreadable> {
        let kind = self.text("/object_kind").or_else(|| self.text("/event_name")).or_else(|| {
            // `Merge Request Hook`
            let named = self.header("x-gitlab-event")?;
            Some(named.trim_end_matches(" Hook").to_lowercase().replace(' ', "_"))
        });
        let kind = kind.ok_or(Unreadable::NoEvent("X-Gitlab-Event"))?;
        let action = self.text("/object_attributes/action").map(|action| format!(".{action}")).unwrap_or_default();
        // A note is about what it is on.
        let thing =
            ["/merge_request/url", "/issue/url", "/object_attributes/url"].iter().find_map(|at| self.path_of(at));
        let thing = thing.map(|path| path.split('#').next().unwrap_or_default().to_owned());
        Ok(Parts {
            id: ["webhook-id", "idempotency-key", "x-gitlab-event-uuid"].iter().find_map(|name| self.header(name)),
            source: self.text("/project/web_url"),
            event_type: format!("gitlab.{kind}{action}"),
            subject: thing
                .or_else(|| self.text("/project/path_with_namespace"))
                .or_else(|| self.text("/group/full_path")),
            time: None,
        })
    }

    fn stripe(&self) -> Parts {
        let event = self.text("/type").unwrap_or_else(|| "event".to_owned());
        let created = self.data.pointer("/created").and_then(Value::as_i64);
        Parts {
            id: self.text("/id"),
            source: self.text("/account").map(|account| format!("https://stripe.com/{account}")),
            event_type: format!("stripe.{event}"),
            subject: self.text("/data/object/id"),
            time: created.and_then(|seconds| Timestamp::from_second(seconds).ok()),
        }
    }

    /// Events, slash commands and interactions. What is said in a thread is about the thread.
    fn slack(&self) -> Parts {
        let first = |all: &[&str]| all.iter().find_map(|at| self.text(at));
        let event = match self.text("/command") {
            Some(_) => "command".to_owned(),
            None => first(&["/event/type", "/type"]).unwrap_or_else(|| "message".to_owned()),
        };
        let place = [
            first(&["/team_id", "/team/id"]),
            first(&["/event/channel", "/event/item/channel", "/event/channel/id", "/channel_id", "/channel/id"]),
            first(&["/event/thread_ts", "/message/thread_ts", "/container/thread_ts"]),
        ];
        let place: Vec<_> = place.into_iter().flatten().collect();
        let seconds = self.data.pointer("/event_time").and_then(Value::as_i64);
        Parts {
            id: first(&["/event_id", "/trigger_id", "/callback_id"]),
            source: first(&["/team_id", "/team/id"]).map(|team| format!("https://slack.com/{team}")),
            event_type: format!("slack.{event}"),
            subject: (!place.is_empty()).then(|| place.join("/")),
            time: seconds.and_then(|seconds| Timestamp::from_second(seconds).ok()),
        }
    }

    /// What a body says of itself, as most do.
    fn plain(&self, id: Option<String>, event: Option<String>) -> Parts {
        let event = event.or_else(|| self.text("/type")).or_else(|| self.text("/event"));
        let event = event.unwrap_or_else(|| "message".to_owned());
        Parts {
            id: id.or_else(|| self.text("/id")),
            source: None,
            event_type: format!("{}.{event}", self.hook.source),
            subject: self.text("/subject").or_else(|| self.text("/data/id")),
            time: self.text("/timestamp").and_then(|time| time.parse().ok()),
        }
    }

    fn header(&self, name: &str) -> Option<String> {
        let value = self.headers.get(name)?.to_str().ok()?.trim();
        (!value.is_empty()).then(|| value.to_owned())
    }

    /// A text, or a number as text.
    fn text(&self, at: &str) -> Option<String> {
        match self.data.pointer(at)? {
            Value::String(text) if !text.trim().is_empty() => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        }
    }

    /// The path of an address, without its first slash.
    fn path_of(&self, at: &str) -> Option<String> {
        let url = reqwest::Url::parse(&self.text(at)?).ok()?;
        let path = url.path().trim_matches('/');
        (!path.is_empty()).then(|| path.to_owned())
    }
}

impl super::file::Mapping {
    /// Puts what the hook's file says in the place of what its scheme says. What it can't say of this delivery stays.
    fn apply(&self, event: &mut Value) -> Result<(), Unreadable> {
        let wanted = [("id", &self.id), ("type", &self.event_type), ("subject", &self.subject)];
        let said = wanted.map(|(name, filter)| {
            let text = filter.as_ref().map_or(Ok(None), |filter: &Filter| filter.text(event));
            text.map(|text| (name, text)).map_err(|error| Unreadable::Mapping { name, error })
        });
        for said in said {
            if let (name, Some(text)) = said?
                && !text.is_empty()
            {
                event[name] = json!(excerpt(&text, KEY_BYTES));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::http::HeaderValue;

    use super::*;
    use crate::hooks::file::Mapping;

    fn hook(scheme: Scheme) -> Hook {
        Hook {
            name: "door".into(),
            source: "forge".into(),
            tenant: Default::default(),
            scheme,
            tolerance: Duration::from_secs(300),
            map: Mapping::default(),
            secrets: Vec::new(),
            missing: None,
        }
    }

    fn event(hook: &Hook, headers: &[(&'static str, &str)], body: &str) -> CloudEvent {
        let headers =
            headers.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()));
        match delivered(hook, &headers.collect(), body.as_bytes(), &CloudEventLimits::default()).unwrap() {
            Delivered::Event(event) => *event,
            Delivered::Challenge(challenge) => panic!("{challenge}"),
        }
    }

    fn named(event: &CloudEvent) -> (&str, &str, Option<&str>) {
        (event.id.as_str(), event.event_type.as_str(), event.subject.as_deref())
    }

    #[test]
    fn a_comment_is_about_what_it_is_on() {
        let headers = [("x-github-event", "issue_comment"), ("x-github-delivery", "d-1")];
        let body = r#"{"action":"created","issue":{"html_url":"https://github.com/acme/widget/pull/7"},
            "comment":{"html_url":"https://github.com/acme/widget/pull/7#issuecomment-1"},
            "repository":{"full_name":"acme/widget","html_url":"https://github.com/acme/widget"}}"#;
        let event = event(&hook(Scheme::Github), &headers, body);
        assert_eq!(named(&event), ("d-1", "github.issue_comment.created", Some("acme/widget/pull/7")));
        assert_eq!(event.source, "https://github.com/acme/widget");
        assert_eq!(event.json(), Some(&serde_json::from_str(body).unwrap()), "what was delivered");
    }

    #[test]
    fn a_form_holds_the_same() {
        let headers = [
            ("x-github-event", "push"),
            ("x-github-delivery", "d-1"),
            ("content-type", "application/x-www-form-urlencoded"),
        ];
        let body = "payload=%7B%22ref%22%3A%22refs%2Fheads%2Fmain%22%2C%22repository%22%3A%7B%22full_name%22%3A%22a%2Fb%22%7D%7D";
        let event = event(&hook(Scheme::Github), &headers, body);
        assert_eq!(named(&event), ("d-1", "github.push", Some("a/b")));
        assert_eq!(event.json().unwrap()["ref"], "refs/heads/main");
    }

    #[test]
    fn gitlab_by_kind_action_and_thing() {
        let headers = [("x-gitlab-event", "Note Hook"), ("x-gitlab-event-uuid", "u-1")];
        let body = r#"{"object_kind":"note","project":{"path_with_namespace":"g/p"},
            "object_attributes":{"url":"https://gitlab.example/g/p/-/merge_requests/7#note_1"},
            "merge_request":{"url":"https://gitlab.example/g/p/-/merge_requests/7"}}"#;
        let note = event(&hook(Scheme::Gitlab), &headers, body);
        assert_eq!(named(&note), ("u-1", "gitlab.note", Some("g/p/-/merge_requests/7")));
        let body = r#"{"object_kind":"push","project":{"path_with_namespace":"g/p"}}"#;
        assert_eq!(named(&event(&hook(Scheme::Gitlab), &headers, body)), ("u-1", "gitlab.push", Some("g/p")));
    }

    #[test]
    fn stripe_and_slack_by_their_own_ids() {
        let body = r#"{"id":"evt_1","type":"charge.succeeded","created":1492774577,"data":{"object":{"id":"ch_1"}}}"#;
        let charge = event(&hook(Scheme::Stripe), &[], body);
        assert_eq!(named(&charge), ("evt_1", "stripe.charge.succeeded", Some("ch_1")));
        assert_eq!(charge.time.map(Timestamp::as_second), Some(1_492_774_577));

        let body = r#"{"type":"event_callback","team_id":"T1","event_id":"Ev1","event_time":1700000000,
            "event":{"type":"app_mention","channel":"C1","thread_ts":"1700000000.1"}}"#;
        let mention = event(&hook(Scheme::Slack), &[], body);
        assert_eq!(named(&mention), ("Ev1", "slack.app_mention", Some("T1/C1/1700000000.1")));

        let form = [("content-type", "application/x-www-form-urlencoded")];
        let command =
            event(&hook(Scheme::Slack), &form, "command=%2Fdeploy&team_id=T1&channel_id=C1&trigger_id=t.1&text=a+b");
        assert_eq!(named(&command), ("t.1", "slack.command", Some("T1/C1")));
        assert_eq!(command.json().unwrap()["text"], "a b");
    }

    #[test]
    fn slack_is_told_that_this_is_the_place() {
        let body = br#"{"type":"url_verification","challenge":"3eZbrw1aB"}"#;
        let answer = delivered(&hook(Scheme::Slack), &HeaderMap::new(), body, &CloudEventLimits::default()).unwrap();
        assert!(matches!(answer, Delivered::Challenge(text) if text == "3eZbrw1aB"));
    }

    #[test]
    fn a_file_may_say_otherwise() {
        let mut hook = hook(Scheme::Standard);
        let compile = |text| Some(Filter::compile(text).unwrap());
        hook.map = Mapping {
            id: compile("string(data.number)"),
            event_type: compile("'forge.' + data.kind"),
            subject: compile("data.nothing.there"),
        };
        let body = r#"{"kind":"built","number":7,"data":{"id":"b7"}}"#;
        let event = event(&hook, &[("webhook-id", "msg_1")], body);
        assert_eq!(named(&event), ("7", "forge.built", Some("b7")), "what a file can't say stays as it was");
    }

    #[test]
    fn without_an_id_the_body_is_its_own() {
        let hook = hook(Scheme::Standard);
        let first = event(&hook, &[], r#"{"a":1}"#);
        assert_eq!(first.id, event(&hook, &[], r#"{"a":1}"#).id);
        assert_ne!(first.id, event(&hook, &[], r#"{"a":2}"#).id);
        assert_eq!(named(&first).1, "forge.message");
    }

    #[test]
    fn what_is_no_json_is_said_to_be_none() {
        let read = |headers: &HeaderMap, body: &[u8]| {
            delivered(&hook(Scheme::Standard), headers, body, &CloudEventLimits::default())
        };
        assert!(matches!(read(&HeaderMap::new(), b"{"), Err(Unreadable::NotJson(_))));
        let deep = format!("{}1{}", "[".repeat(100), "]".repeat(100));
        assert!(matches!(read(&HeaderMap::new(), deep.as_bytes()), Err(Unreadable::Event(_))));
        let form = HeaderMap::from_iter([(
            HeaderName::from_static("content-type"),
            HeaderValue::from_static("application/x-www-form-urlencoded"),
        )]);
        assert!(matches!(read(&form, b""), Err(Unreadable::NoPayload)));
        assert!(matches!(read(&form, b"payload=x"), Err(Unreadable::NotJson(_))));
    }
}
