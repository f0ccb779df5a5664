//! Questions that take two people: nobody alone is enough, and both agree to the same.

use kernel::{
    ApprovalId, Block, CallId, Command, Rejection, StandingId, Trust,
    audit::{Auditor, rules},
    budget::Limits,
    call::{Approval, Binding, Verdict},
    command::{DecideApproval, ExpireApproval, StartCall},
    event::EventData,
    tool::{CallKind, Effect},
};
use serde_json::{Value, json};

use crate::build::*;

/// A run that has asked two people about its one call.
fn asking() -> (Run, CallId, ApprovalId) {
    let mut run = Run::started(Limits::default());
    let ids = run.request(vec![run.call("pay", Effect::Payment, CallKind::Call)]);
    let question = Approval { two_people: true, ..approval(&run, Some(ids[0]), "pay") };
    let id = question.approval_id;
    run.must(Command::AskApproval(Box::new(question)));
    (run, ids[0], id)
}

fn yes(approval_id: ApprovalId, by: &str) -> Command {
    Command::DecideApproval(decision(approval_id, Verdict::Approve, by))
}

fn yes_to(approval_id: ApprovalId, by: &str, arguments: Value, digest: &str) -> Command {
    let edited = Some((arguments, digest.to_owned()));
    Command::DecideApproval(DecideApproval { edited, ..decision(approval_id, Verdict::Approve, by) })
}

/// With a token that `maker` made.
fn yes_with(approval_id: ApprovalId, by: &str, maker: &str) -> Command {
    let aliases = vec![maker.to_owned()];
    Command::DecideApproval(DecideApproval { aliases, ..decision(approval_id, Verdict::Approve, by) })
}

fn start(call_id: CallId, arguments: &str) -> Command {
    let binding = Binding { arguments: arguments.into(), schema: "s".into(), policy: "p".into() };
    Command::StartCall(StartCall { call_id, executor: "executor-1".into(), binding })
}

fn audited(run: &Run) {
    assert_eq!(Auditor::new(None).run(run.id, &run.log), []);
}

#[test]
fn one_yes_is_not_enough_and_a_second_person_s_is() {
    let (mut run, call, id) = asking();
    assert_eq!(run.must(yes(id, "ann")), ["approval.endorsed"]);
    assert!(matches!(run.send(&start(call, "a")), Err(Rejection::CallStatus(..))), "nothing has been granted");
    assert!(run.state().approvals.contains_key(&id));
    assert_eq!(run.state().endorsed[&id].by, "ann");

    assert_eq!(run.must(yes(id, "bob")), ["approval.granted"]);
    let grant = run.state().calls[&call].grant.clone().unwrap();
    assert_eq!((grant.approval_id, grant.endorsed_by.as_deref()), (id, Some("ann")));
    assert!(run.state().endorsed.is_empty(), "it goes with its question");
    run.must(start(call, "a"));
    audited(&run);
}

#[test]
fn one_person_is_never_two_whatever_token_they_come_with() {
    type Yes = fn(ApprovalId) -> Command;
    let pairs: [(Yes, Yes); 3] = [
        (|id| yes(id, "ann"), |id| yes(id, "ann")),
        (|id| yes(id, "root"), |id| yes_with(id, "laptop", "root")),
        (|id| yes_with(id, "laptop", "root"), |id| yes(id, "root")),
    ];
    for (first, again) in pairs {
        let (mut run, call, id) = asking();
        run.must(first(id));
        let seq = run.state().seq;
        let refused = run.send(&again(id)).unwrap_err();
        assert!(matches!(&refused, Rejection::AlreadyEndorsed(of, _) if *of == id), "{refused}");
        assert_eq!((refused.code(), run.state().seq), ("already_endorsed", seq), "and nothing is recorded");
        assert!(run.send(&start(call, "a")).is_err());
        run.must(yes(id, "bob"));
        audited(&run);
    }
}

#[test]
fn whose_tokens_one_admin_made_are_two_people() {
    let (mut run, _, id) = asking();
    run.must(yes_with(id, "ann", "root"));
    assert_eq!(run.must(yes_with(id, "bob", "root")), ["approval.granted"]);
    audited(&run);
}

#[test]
fn the_second_agrees_to_the_arguments_of_the_first_or_to_nothing() {
    let edited = json!({ "amount": 20 });
    let (mut run, call, id) = asking();
    run.must(yes_to(id, "ann", edited.clone(), "b"));
    for other in [yes(id, "bob"), yes_to(id, "bob", json!({ "amount": 21 }), "c")] {
        let refused = run.send(&other).unwrap_err();
        assert_eq!(refused, Rejection::EndorsedOtherwise(id, "ann".into()));
    }
    assert_eq!(run.must(yes_to(id, "bob", edited.clone(), "b")), ["approval.granted"]);
    assert_eq!(run.state().calls[&call].request.arguments, edited);
    assert_eq!(run.send(&start(call, "a")), Err(Rejection::GrantMismatch(call)), "that was asked, and is not agreed");
    run.must(start(call, "b"));
    audited(&run);

    let (mut run, _, id) = asking();
    run.must(yes(id, "ann"));
    let refused = run.send(&yes_to(id, "bob", edited, "b")).unwrap_err();
    assert_eq!(refused.code(), "endorsed_otherwise");
}

#[test]
fn one_no_is_enough_before_and_after_a_yes() {
    for (before, by) in [(None, "bob"), (Some("ann"), "bob"), (Some("ann"), "ann")] {
        let (mut run, _, id) = asking();
        if let Some(before) = before {
            run.must(yes(id, before));
        }
        let no = Command::DecideApproval(decision(id, Verdict::Deny, by));
        assert_eq!(run.must(no), ["approval.denied", "tool.denied", "run.runnable"]);
        assert!(matches!(run.send(&yes(id, "carol")), Err(Rejection::AlreadyDecided(..))));
        assert!(run.state().endorsed.is_empty());
        audited(&run);
    }
}

#[test]
fn a_question_with_one_yes_expires_as_any() {
    let (mut run, call, id) = asking();
    run.must(yes(id, "ann"));
    run.now = 2_000_000;
    assert_eq!(run.send(&yes(id, "bob")), Err(Rejection::ApprovalExpired(id)));
    let expired = run.must(Command::ExpireApproval(ExpireApproval { approval_id: id }));
    assert_eq!(expired, ["approval.expired", "tool.denied", "run.runnable"]);
    assert!(run.state().endorsed.is_empty() && !run.state().calls.contains_key(&call));
    audited(&run);
}

#[test]
fn what_is_asked_anew_is_agreed_to_anew() {
    let (mut run, call, id) = asking();
    run.must(yes(id, "ann"));
    run.must(yes(id, "bob"));
    // The executor finds that something has changed since.
    let changed = Binding { arguments: "a".into(), schema: "s2".into(), policy: "p".into() };
    let again = Approval { two_people: true, binding: changed, ..approval(&run, Some(call), "again") };
    let next = again.approval_id;
    run.must(Command::AskApproval(Box::new(again)));
    assert!(run.state().calls[&call].grant.is_none() && run.state().endorsed.is_empty());
    assert_eq!(run.must(yes(next, "bob")), ["approval.endorsed"]);
    assert_eq!(run.must(yes(next, "ann")), ["approval.granted"]);
    audited(&run);
}

#[test]
fn no_standing_approval_answers_for_two() {
    let (mut run, _, id) = asking();
    let standing = |by| {
        let standing = Some(StandingId::mint());
        Command::DecideApproval(DecideApproval { standing, ..decision(id, Verdict::Approve, by) })
    };
    assert_eq!(run.send(&standing("ann")), Err(Rejection::TakesTwoPeople(id)));
    run.must(yes(id, "ann"));
    assert_eq!(run.send(&standing("bob")), Err(Rejection::TakesTwoPeople(id)));
    audited(&run);
}

#[test]
fn a_question_for_one_person_is_as_it_was() {
    let mut run = Run::started(Limits::default());
    let ids = run.request(vec![run.call("pay", Effect::Payment, CallKind::Call)]);
    let question = approval(&run, Some(ids[0]), "pay");
    let id = question.approval_id;
    run.must(Command::AskApproval(Box::new(question)));
    assert_eq!(run.must(yes_with(id, "ann", "root")), ["approval.granted"]);
    let granted = run.log.last().unwrap().data.encode().unwrap();
    assert!(!granted.contains("endorsed_by") && !granted.contains("aliases"), "{granted}");
    audited(&run);
}

/// The audit reads the log by itself: it takes nothing for agreed that the log does not show.
#[test]
fn a_log_in_which_two_did_not_agree_is_found() {
    let (mut run, _, id) = asking();
    run.must(yes(id, "ann"));
    run.must(yes(id, "bob"));
    audited(&run);
    let honest = run.log.clone();
    let found = |run: &Run| {
        let found: Vec<_> = Auditor::new(None).run(run.id, &run.log).into_iter().map(|found| found.rule).collect();
        found.contains(&rules::TWO_PEOPLE)
    };
    let changes: [fn(&mut EventData); 5] = [
        |data| {
            if let EventData::ApprovalEndorsed(endorsed) = data {
                endorsed.by = "bob".into();
            }
        },
        |data| {
            if let EventData::ApprovalEndorsed(endorsed) = data {
                endorsed.aliases = vec!["bob".into()];
            }
        },
        |data| {
            if let EventData::ApprovalGranted(granted) = data {
                granted.arguments = Some(json!({}));
                granted.binding.arguments = "other".into();
            }
        },
        |data| {
            if let EventData::ApprovalGranted(granted) = data {
                granted.endorsed_by = None;
            }
        },
        |data| {
            if let EventData::ApprovalRequested(asked) = data {
                asked.approval.two_people = false;
            }
        },
    ];
    for (number, change) in changes.into_iter().enumerate() {
        run.log.clone_from(&honest);
        run.log.iter_mut().for_each(|event| change(&mut event.data));
        assert!(found(&run), "change {number}");
    }
    // The first yes is gone, and something harmless stands in its place.
    run.log = honest;
    for event in &mut run.log {
        if matches!(event.data, EventData::ApprovalEndorsed(_)) {
            let words = Block::new("a word", Trust::Operator, "operator:ann");
            event.data = kernel::event::MessageAdded { role: kernel::event::Speaker::Operator, block: words }.into();
        }
    }
    assert!(found(&run));
}
