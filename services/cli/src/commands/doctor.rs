//! Is everything reachable, migrated and in step? Says what is wrong, and what to do about it.

use std::time::Duration;

use bus::{Bus, Topology};
use engine::{Engine, EngineOptions};
use futures::future::join_all;
use kernel::Role;
use reqwest::Url;
use serde::Serialize;
use serde_json::{Value, json};
use service::{
    Common,
    config::{SERVICES, Settings},
};

use super::{
    health::{ask, reasons},
    migrate,
};
use crate::{
    api::Api,
    args::DoctorArgs,
    error::CliError,
    out::Out,
    style::{Paint, clean},
    views::text,
};

/// How long the server may take to tell of its streams: to users who may not ask, it says nothing.
const STREAMS_WITHIN: Duration = Duration::from_secs(6);

/// What was looked at.
#[derive(Debug, Serialize)]
struct Check {
    name: String,
    state: State,
    detail: String,
    remedy: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Ok,
    Wrong,
    Unreachable,
    /// This user can't see it from here.
    Unseen,
}

impl Check {
    fn new(name: impl Into<String>, state: State, detail: impl Into<String>) -> Self {
        Self { name: name.into(), state, detail: detail.into(), remedy: None }
    }

    fn failed(name: impl Into<String>, error: &CliError) -> Self {
        let state = if matches!(error, CliError::Unreachable { .. }) { State::Unreachable } else { State::Wrong };
        Self { remedy: error.remedy().map(str::to_owned), ..Self::new(name, state, error.to_string()) }
    }

    fn remedy(self, remedy: &str) -> Self {
        Self { remedy: Some(remedy.to_owned()), ..self }
    }
}

/// Looks at everything.
pub async fn run(api: &Api, args: &DoctorArgs, out: &Out) -> Result<(), CliError> {
    let settings = Settings::<Common>::load("esc", Vec::<String>::new(), std::env::vars_os())?;
    let addresses = addresses(api, args)?;
    let (parts, services, door) =
        futures::join!(parts(&settings), join_all(addresses.iter().map(|(name, url)| service(name, url))), token(api),);
    let checks: Vec<Check> = parts.into_iter().chain(services).chain([door]).collect();
    show(&checks, out);
    let count = |state| checks.iter().filter(|check| check.state == state).count();
    let (wrong, unreachable) = (count(State::Wrong), count(State::Unreachable));
    out.value(&json!({"ok": wrong + unreachable == 0, "checks": checks}));
    match (wrong, unreachable) {
        (0, 0) => Ok(()),
        (wrong, 0) => Err(CliError::failed(format!("{wrong} of {} checks found something wrong", checks.len()))),
        (_, unreachable) => Err(CliError::unreachable(
            format!("{unreachable} of {} do not answer", checks.len()),
            "infra/up starts what does not run; infra/status says what does",
        )),
    }
}

fn show(checks: &[Check], out: &Out) {
    let style = out.style();
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    for check in checks {
        let (paint, sign) = match check.state {
            State::Ok => (Paint::Good, '✓'),
            State::Wrong | State::Unreachable => (Paint::Bad, '✗'),
            State::Unseen => (Paint::Dim, '·'),
        };
        let sign = style.paint(paint, &sign.to_string());
        out.say(format!("{sign} {:width$}  {}", check.name, clean(&check.detail)));
        if let Some(remedy) = check.remedy.as_ref().filter(|_| check.state != State::Ok) {
            out.say(format!("  {:width$}  {}", "", style.paint(Paint::Warn, &format!("→ {}", clean(remedy)))));
        }
    }
}

/// NATS, its streams, Postgres and Redis, as far as this shell was told where they are.
async fn parts(settings: &Settings<Common>) -> Vec<Check> {
    let common = &settings.value;
    let told = |key: &str| settings.origins.contains_key(key);
    let unseen = |name: &str, variable: &str| {
        Check::new(
            name,
            State::Unseen,
            format!("not looked at: {variable} is not set; the services below say how it is"),
        )
    };
    let bus = match migrate::connect(common).await {
        Ok(bus) => bus,
        Err(error) => return vec![Check::failed("nats", &error)],
    };
    let mut checks = vec![Check::new("nats", State::Ok, "connected"), streams(&bus).await];
    if !told("database_url") {
        checks.extend([unseen("postgres", "ESC_DATABASE_URL"), unseen("redis", "ESC_REDIS_URL")]);
        return checks;
    }
    checks.push(postgres(common).await);
    checks.push(if told("redis_url") { redis(common, bus).await } else { unseen("redis", "ESC_REDIS_URL") });
    checks
}

async fn streams(bus: &Bus) -> Check {
    let looked = tokio::time::timeout(STREAMS_WITHIN, bus.differences(&Topology::default())).await;
    match looked {
        Ok(Ok(differences)) if differences.is_empty() => Check::new("streams", State::Ok, "as declared"),
        Ok(Ok(differences)) => Check::new("streams", State::Wrong, differences.join("; "))
            .remedy("run `esc migrate` as the NATS user `operator`"),
        Ok(Err(_)) | Err(_) => {
            Check::new("streams", State::Unseen, "not looked at: this NATS user may not; `operator` may")
        }
    }
}

async fn postgres(common: &Common) -> Check {
    match engine::pending_migrations(common.database_url.expose(), &common.schema).await {
        Ok(pending) if pending.is_empty() => {
            Check::new("postgres", State::Ok, format!("schema `{}` is up to date", common.schema))
        }
        Ok(pending) => Check::new("postgres", State::Wrong, format!("lacks {}", pending.join(", ")))
            .remedy("run `esc migrate` with ESC_DATABASE_URL of the owner"),
        Err(error) => Check::failed("postgres", &error.into()),
    }
}

async fn redis(common: &Common, bus: Bus) -> Check {
    let options = EngineOptions {
        namespace: common.namespace.clone(),
        schema: common.schema.clone(),
        pool_size: 1,
        ..EngineOptions::new(Role::Ingress, common.database_url.expose(), common.redis_url.expose())
    };
    let pinged = async {
        let engine = Engine::start(options, bus).await?;
        engine.ping().await
    };
    match pinged.await {
        Ok(()) => Check::new("redis", State::Ok, "answers"),
        Err(error) => Check::failed("redis", &error.into()),
    }
}

/// Where each service tells how it is.
fn addresses(api: &Api, args: &DoctorArgs) -> Result<Vec<(&'static str, Url)>, CliError> {
    let host = api.base().host_str().unwrap_or("127.0.0.1");
    let mut addresses = Vec::new();
    for (place, (name, _)) in SERVICES.iter().enumerate() {
        let given = args.service.iter().find(|(service, _)| service == name).map(|(_, url)| url.clone());
        let port = u32::from(args.port_base) + u32::try_from(place).unwrap_or(0).saturating_sub(1);
        let usual = if *name == "ingress" { api.base().to_string() } else { format!("http://{host}:{port}") };
        addresses.push((*name, super::health::address(&given.unwrap_or(usual))?));
    }
    if let Some((name, _)) = args.service.iter().find(|(name, _)| !SERVICES.iter().any(|(known, _)| known == name)) {
        return Err(CliError::usage_with(
            format!("`{}` is not a service", clean(name)),
            format!("the services are {}", SERVICES.map(|(name, _)| name).join(", ")),
        ));
    }
    Ok(addresses)
}

async fn service(name: &str, url: &Url) -> Check {
    let mut about = url.clone();
    about.set_path("/healthz");
    let (ready, about) = futures::join!(ask(url), ask(&about));
    let answer = match ready {
        Ok(answer) => answer,
        Err(error) => return Check::failed(name, &error),
    };
    let about = about.map(|answer| answer.body).unwrap_or(Value::Null);
    let (who, version) = (text(&about, &["service"]), text(&about, &["version"]));
    if who != name {
        let detail =
            format!("something else answers at {url}: {}", if who.is_empty() { "not a service of ours" } else { who });
        return Check::new(name, State::Wrong, detail).remedy("name its address: --service NAME=URL, or --port-base");
    }
    if !answer.ready {
        return Check::new(name, State::Wrong, reasons(&answer.body)).remedy("its log says more");
    }
    if version != env!("CARGO_PKG_VERSION") {
        let detail = format!("runs version {version}, this is {}", env!("CARGO_PKG_VERSION"));
        return Check::new(name, State::Wrong, detail).remedy("restart it from the same build: infra/up");
    }
    Check::new(name, State::Ok, format!("ready, version {version}"))
}

async fn token(api: &Api) -> Check {
    match api.get::<Value>("/v1/runs", &[("limit", Some("1".to_owned()))]).await {
        Ok(_) => Check::new("token", State::Ok, "the API takes it"),
        Err(error) => Check::failed("token", &error),
    }
}
