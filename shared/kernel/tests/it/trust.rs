//! Who may say how far content is believed.

use kernel::{
    Command, Rejection, Role, Trust,
    command::{ByOperator, CreateRun, Declassify},
    event::EventData,
};

use serde_json::{Value, json};

use crate::build::{self, Run};

fn vouch(text: &str, from: u64, reason: &str) -> Command {
    Command::Declassify(Declassify { text: text.into(), from, by: "ann".into(), reason: reason.into() })
}

fn created() -> Run {
    let created = build::created(kernel::budget::Limits::default());
    let mut run = Run::new();
    run.must(Command::Create(Box::new(CreateRun { created, hold: None })));
    run
}

#[test]
fn an_operator_vouches_for_one_text_and_the_run_has_seen_what_it_has_seen() {
    let mut run = created();
    let lowest = run.state().lowest_trust;
    assert_eq!(run.must(vouch("dora@example.com", 1, "I know her")), ["trust.declassified"]);
    assert_eq!(run.state().lowest_trust, lowest);
    let Some(EventData::TrustDeclassified(vouched)) = run.log.last().map(|event| event.data.clone()) else {
        panic!("nothing is declassified")
    };
    assert_eq!((vouched.trust, vouched.by.as_str(), vouched.from), (Trust::Trusted, "ann", 1));
}

#[test]
fn nobody_vouches_for_nothing_for_everything_or_without_a_reason() {
    let mut run = created();
    let seq = run.state().seq;
    for (wrong, field) in [
        (vouch(" ", 1, "why not"), "`text`"),
        (vouch(&"x".repeat(5000), 1, "why not"), "`text`"),
        (vouch("x", 0, "why not"), "`from`"),
        (vouch("x", seq + 1, "why not"), "`from`"),
        (vouch("x", 1, " "), "`reason`"),
    ] {
        let Err(Rejection::CannotVouch(words)) = run.send(&wrong) else { panic!("{wrong:?} is taken") };
        assert!(words.starts_with(field), "{words}");
    }
    run.must(Command::Cancel(ByOperator { by: "ann".into(), reason: None }));
    assert!(run.send(&vouch("x", 1, "too late")).is_err());
}

#[test]
fn only_the_door_of_people_may() {
    for role in Role::ALL {
        let may = role == Role::Ingress;
        assert_eq!(vouch("x", 1, "r").allowed_to(role), may, "{}", role.as_str());
        assert_eq!(role.may_write("trust.declassified"), may, "{}", role.as_str());
    }
}

/// Postgres is told by the same function; NATS by a file, which must say the same.
#[test]
fn the_permissions_of_nats_know_every_event_that_is_not_everybodys() {
    let table: Value = serde_json::from_str(include_str!("../../../../infra/nats/permissions.json")).unwrap();
    for name in EventData::TYPES {
        let writers: Vec<_> = Role::ALL.into_iter().filter(|role| role.may_write(name)).collect();
        if writers.len() == Role::ALL.len() {
            continue;
        }
        let owners = table["exclusive"][format!("evt.{name}")].as_array();
        let owners = owners.unwrap_or_else(|| panic!("`evt.{name}` is not in infra/nats/permissions.json"));
        // These publish again for everybody what the log holds and nobody has taken up.
        for role in Role::ALL.into_iter().filter(|role| !matches!(role, Role::Scheduler | Role::Ingress)) {
            assert_eq!(
                owners.contains(&json!(role.as_str())),
                writers.contains(&role),
                "{} and `{name}`",
                role.as_str()
            );
        }
    }
}
