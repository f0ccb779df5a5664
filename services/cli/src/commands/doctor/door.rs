//! What the services say of themselves, and what the API lets this shell do.

use futures::future::join_all;
use jiff::Timestamp;
use reqwest::{Client, Url};
use serde_json::Value;
use service::config::SERVICES;

use super::{Check, State, parts::clock};
use crate::{
    api::{Api, NO_QUERY, client},
    args::DoctorArgs,
    commands::health::{self, ask, reasons},
    error::CliError,
    style::clean,
    views::{rows, text},
};

/// How far the second of a `Date` header may be from the truth, in milliseconds.
const SECOND_MS: i64 = 1000;

/// Whom to ask, and how.
pub struct Asked {
    name: &'static str,
    url: Url,
    client: Client,
}

/// All services. To be called before anything is waited for: making a client would hold that up.
pub fn asked(api: &Api, args: &DoctorArgs) -> Result<Vec<Asked>, CliError> {
    // There are two kinds: for this machine, which no proxy leads to, and for others.
    let mut other: Option<Client> = None;
    let mut asked = Vec::new();
    for (name, url) in addresses(api, args)? {
        let client = match api.client_for(&url).or(other.as_ref()) {
            Some(known) => known.clone(),
            None => other.insert(client(&url)?).clone(),
        };
        asked.push(Asked { name, url, client });
    }
    Ok(asked)
}

/// Asks each service.
pub async fn services(asked: &[Asked]) -> Vec<Check> {
    join_all(asked.iter().map(service)).await
}

/// Where each service tells how it is.
fn addresses(api: &Api, args: &DoctorArgs) -> Result<Vec<(&'static str, Url)>, CliError> {
    let host = api.base().host_str().unwrap_or("127.0.0.1");
    let mut addresses = Vec::new();
    for (place, (name, _)) in SERVICES.iter().enumerate() {
        let given = args.service.iter().find(|(service, _)| service == name).map(|(_, url)| url.clone());
        let port = u32::from(args.port_base) + u32::try_from(place).unwrap_or(0).saturating_sub(1);
        let usual = if *name == "ingress" { api.base().to_string() } else { format!("http://{host}:{port}") };
        addresses.push((*name, health::address(&given.unwrap_or(usual))?));
    }
    if let Some((name, _)) = args.service.iter().find(|(name, _)| !SERVICES.iter().any(|(known, _)| known == name)) {
        return Err(CliError::usage_with(
            format!("`{}` is not a service", clean(name)),
            format!("the services are {}", SERVICES.map(|(name, _)| name).join(", ")),
        ));
    }
    Ok(addresses)
}

async fn service(Asked { name, url, client }: &Asked) -> Check {
    let name = *name;
    let mut about = url.clone();
    about.set_path("/healthz");
    let (ready, about) = futures::join!(ask(client, url), ask(client, &about));
    let answer = match ready {
        Ok(answer) => answer,
        Err(error) => return Check::failed(name, &error),
    };
    let about = about.map(|answer| answer.body).unwrap_or(Value::Null);
    let (who, version) = (text(&about, &["service"]), text(&about, &["version"]));
    if who != name {
        let who = if who.is_empty() { "not a service of ours" } else { who };
        let remedy = if name == "ingress" {
            "is ESC_URL the address of the API? `. .local/env` sets that of the local stack"
        } else {
            "name its address: --service NAME=URL, or --port-base"
        };
        return Check::wrong(name, format!("something else answers at {url}: {who}"), remedy);
    }
    if !answer.ready {
        return Check::wrong(name, reasons(&answer.body), "its log says more");
    }
    if version != env!("CARGO_PKG_VERSION") {
        let detail = format!("runs version {version}, this is {}", env!("CARGO_PKG_VERSION"));
        return Check::wrong(name, detail, "restart it from the same build: infra/up");
    }
    Check::ok(name, format!("ready, version {version}"))
}

/// What the API lets this shell do, and what it finds there.
pub async fn look(api: &Api, has_token: bool) -> Vec<Check> {
    let before = Timestamp::now();
    let (session, date) = match api.dated("/v1/session").await {
        Ok(answer) => answer,
        Err(error) if !has_token && !matches!(error, CliError::Unreachable { .. }) => {
            let remedy =
                "set ESC_TOKEN (`. .local/env` does), or have an admin make one: `esc tokens create NAME --role user`";
            return vec![Check::wrong("token", "ESC_TOKEN is not set, and the API wants a token", remedy)];
        }
        Err(error) => {
            let remedy = "take one that is good: `esc tokens create`, or `. .local/env` for the local stack";
            return vec![Check::failed("token", &error).or_remedy(remedy)];
        }
    };
    let roles = session.get("roles").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let roles = roles.collect::<Vec<_>>().join(", ");
    let detail = format!("`{}` of `{}`: {roles}", text(&session, &["name"]), text(&session, &["tenant"]));
    let mut checks = vec![Check::ok("token", detail)];
    checks.extend(date.map(|date| its_clock(date, before)));
    // A token that may only publish sees neither.
    if let Ok(agents) = api.get::<Value>("/v1/agents", NO_QUERY).await {
        checks.push(match rows(&agents).len() {
            0 => Check::wrong("agents", "there is none, so nothing can run", "`esc agents apply FILE` puts one in"),
            some => Check::ok("agents", format!("{some} put in")),
        });
    }
    if let Ok(frozen) = api.get::<Value>("/v1/freeze", NO_QUERY).await {
        checks.extend(rows(&frozen).iter().map(freeze));
    }
    checks
}

/// The clock of the API, which says whole seconds only.
fn its_clock(date: Timestamp, before: Timestamp) -> Check {
    let (now, date) = (Timestamp::now().as_millisecond(), date.as_millisecond());
    let ahead = match (date - now, date + SECOND_MS - before.as_millisecond()) {
        (ahead, _) if ahead > 0 => ahead,
        (_, behind) if behind < 0 => behind,
        _ => 0,
    };
    clock("the clock of the API", ahead)
}

fn freeze(row: &Value) -> Check {
    let (scope, by, reason) = (text(row, &["scope"]), text(row, &["by"]), text(row, &["reason"]));
    let because = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    let words = format!("`{scope}` is frozen by {by}{because}; nothing with an effect starts there");
    Check::new("freeze", State::Wrong, words).or_remedy(&format!("once it is safe: `esc freeze {scope} --off`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_second_is_no_skew() {
        let now = Timestamp::now();
        let second = Timestamp::from_second(now.as_second()).unwrap();
        assert_eq!(its_clock(second, now).state, State::Ok);
        let hour = jiff::SignedDuration::from_hours(1);
        assert!(its_clock(second + hour, now).detail.contains("ahead"));
        assert!(its_clock(second - hour, now).detail.contains("behind"));
    }
}
