//! Is everything reachable, migrated and in step? Says what is wrong, and what to do about it.
//!
//! What this shell was told of is looked at from here; the services say how the rest is.

mod door;
mod files;
mod parts;

use serde::Serialize;
use serde_json::json;
use service::{Common, config::Settings};

use crate::{
    api::Api,
    args::DoctorArgs,
    error::CliError,
    out::Out,
    style::{Paint, clean},
};

/// What was looked at.
#[derive(Debug, Serialize)]
pub(super) struct Check {
    name: String,
    state: State,
    detail: String,
    remedy: Option<String>,
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
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

    fn ok(name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(name, State::Ok, detail)
    }

    fn wrong(name: impl Into<String>, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..Self::new(name, State::Wrong, detail) }
    }

    fn failed(name: impl Into<String>, error: &CliError) -> Self {
        let state = if matches!(error, CliError::Unreachable { .. }) { State::Unreachable } else { State::Wrong };
        Self { remedy: error.remedy().map(str::to_owned), ..Self::new(name, state, error.to_string()) }
    }

    fn or_remedy(self, remedy: &str) -> Self {
        Self { remedy: self.remedy.or_else(|| Some(remedy.to_owned())), ..self }
    }
}

/// Looks at everything.
pub async fn run(api: &Api, args: &DoctorArgs, has_token: bool, out: &Out) -> Result<(), CliError> {
    let settings = Settings::<Common>::load("esc", Vec::<String>::new(), std::env::vars_os())?;
    let common = &settings.value;
    let asked = door::asked(api, args)?;
    out.fleeting("looking around …");
    let (parts, collector, services) =
        futures::join!(parts::look(&settings), files::collector(common), door::services(&asked));
    let checks: Vec<Check> = parts
        .into_iter()
        .chain(files::look(common))
        .chain(collector)
        .chain(services)
        .chain(door::look(api, has_token).await)
        .collect();
    out.fleeting("");
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
