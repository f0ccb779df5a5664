//! Where the rules are unsure: an activity ended well by its status alone, while its output holds what would have woken somebody
//! had it gone on. This is the one place at which a model may be asked, if the agent names one:
//!
//! - there the rules must choose without knowing, and what they choose is sleep;
//! - it comes at most once in a call's life, so that the cost has a bound;
//! - what they choose has nothing to suppress: an opinion can only add to it.

use kernel::{
    call::Observation,
    opinion::{SecondOpinion, Why},
};

use super::{Report, Standing, Watch, report::shows};
use crate::{evidence::Summary, rules::Rules};

impl Watch {
    /// With somebody who may be asked at the end.
    #[must_use]
    pub const fn advised(mut self, advised: bool) -> Self {
        self.advised = advised;
        self
    }

    /// Whether somebody may be asked at the end.
    #[must_use]
    pub const fn is_advised(&self) -> bool {
        self.advised
    }

    /// Whether its output holds what would have woken somebody, and no last word of the program speaks against that.
    pub(super) fn is_unsure(&self, summary: Summary) -> bool {
        self.standing != Standing::Passed && summary.waking > 0
    }

    /// What would be told if it went wrong after all; nothing, if the rules are sure or nobody may be asked.
    pub(super) fn doubt(
        &mut self,
        rules: &Rules,
        summary: Summary,
        observation: &Observation,
    ) -> Option<Box<Observation>> {
        if !self.advised || !self.is_unsure(summary) {
            return None;
        }
        let changed = format!("{} {}", observation.changed, shows(summary));
        // The longest that may be said of it, so that there is room for it.
        let longest = Why::ALL.into_iter().max_by_key(|why| why.words().len());
        let decision = longest.map(|why| decision(&self.tool, why));
        let mut doubted = Observation { changed, decision, ..observation.clone() };
        self.add_evidence(rules, &mut doubted);
        doubted.decision = None;
        Some(Box::new(doubted))
    }
}

impl Report {
    /// What somebody is to be asked about before this is told.
    #[must_use]
    pub fn doubt(&self) -> Option<&Observation> {
        match self {
            Self::Conclude { doubt, .. } => doubt.as_deref(),
            Self::Observe { .. } => None,
        }
    }

    /// The same once somebody was asked about the output of `tool`. Without an objection, and without an answer, the rules' word
    /// stands; with one, more is told. Nothing that they found is taken back.
    #[must_use]
    pub fn with_opinion(mut self, tool: &str, opinion: SecondOpinion) -> Self {
        if let Self::Conclude { observation, doubt, asked, .. } = &mut self {
            if let (Some(mut doubted), Some(said)) = (doubt.take(), opinion.said.filter(|_| opinion.objects())) {
                doubted.anomaly = observation.anomaly || said.anomaly;
                doubted.decision = observation.decision.take();
                if doubted.decision.is_none() && said.decision_needed {
                    doubted.decision = Some(decision(tool, said.why));
                } else {
                    doubted.changed.push_str(&format!(" A model that was asked says: {}.", said.why.words()));
                }
                *observation = *doubted;
            }
            *asked = Some(opinion);
        }
        self
    }
}

/// Why a decision is needed, in words of the runtime's own.
fn decision(tool: &str, why: Why) -> String {
    format!("`{tool}` says that it succeeded; the rules are unsure, and a model that was asked says: {}", why.words())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use kernel::{CallId, agent::ObserveRule, call::Exit, opinion::Opinion};

    use super::*;
    use crate::{conclude::Frame, rules::Limits, templates::Miner};

    /// How a call with this output is concluded.
    fn concluded(rule: &ObserveRule, advised: bool, body: &str, code: i32) -> Report {
        let at = Timestamp::UNIX_EPOCH;
        let rules = Rules::compile(rule, Limits::default());
        let mut watch = Watch::new(CallId::from_uuid(uuid::Uuid::nil()), "shell.run", at).advised(advised);
        let (bytes, lines) = (body.len() as u64, body.lines().count() as u64);
        let exit = Exit { code: Some(code), signal: None, reason: "exited".into(), bytes, lines };
        let frame = Frame { offset: 0, first_line: None, at, read_at: at, body: body.as_bytes(), exit: Some(exit) };
        let mut reports = watch.frame(&rules, &mut Miner::default(), &frame);
        assert_eq!(reports.len(), 1, "{reports:#?}");
        reports.remove(0)
    }

    fn unsure() -> Report {
        concluded(&ObserveRule::default(), true, "one\npanic: the cache is gone\ntwo\n", 0)
    }

    fn opinion(anomaly: bool, decision_needed: bool, why: Why) -> SecondOpinion {
        let said = Some(Opinion { anomaly, decision_needed, why });
        SecondOpinion { model: Some("scripted:small".into()), said, ..SecondOpinion::default() }
    }

    #[test]
    fn only_what_the_rules_are_unsure_of_is_asked_about() {
        let usual = ObserveRule::default();
        let own = ObserveRule { failure: vec!["^panic".into()], ..ObserveRule::default() };
        let never = kernel::observe::Escalation { wake: kernel::observe::WakeWhen::Never, ..Default::default() };
        let asleep = ObserveRule { escalate: vec![never], ..ObserveRule::default() };
        let hidden = "panic: the cache is gone\n";
        for (rule, advised, body, code, asks, what) in [
            (&usual, true, hidden, 0, true, "a status against the output"),
            (&usual, false, hidden, 0, false, "nobody is named"),
            (&usual, true, hidden, 1, false, "it failed"),
            (&usual, true, "all is well\n", 0, false, "nothing speaks against it"),
            (&usual, true, "panic: the cache is gone\nBUILD SUCCESSFUL\n", 0, false, "the program's own last word"),
            (&own, true, hidden, 0, false, "the agent itself calls it a failure"),
            (&asleep, true, hidden, 0, false, "the agent wants to sleep through it"),
        ] {
            let report = concluded(rule, advised, body, code);
            assert_eq!(report.doubt().is_some(), asks, "{what}: {report:#?}");
        }
    }

    #[test]
    fn an_objection_wakes_with_the_evidence() {
        let report = unsure();
        assert_eq!(report.observation().decision, None, "the rules' word");
        let shown = report.doubt().unwrap();
        assert!(shown.text().contains("panic: the cache is gone") && shown.text().contains("status 0"), "{shown:#?}");
        let told = report.with_opinion("shell.run", opinion(true, true, Why::Failed));
        let told = told.observation();
        assert!(told.anomaly && told.decision.as_ref().unwrap().contains("its status hides that"), "{told:#?}");
        assert_eq!((told.evidence.len(), told.evidence[0].line), (1, 1), "with the line before it");
        assert_eq!(told.phase, "completed");
    }

    #[test]
    fn an_anomaly_alone_is_a_label() {
        let told = unsure().with_opinion("shell.run", opinion(true, false, Why::Incomplete));
        let told = told.observation();
        assert!(told.anomaly && told.decision.is_none() && !told.evidence.is_empty());
        assert!(told.changed.ends_with("A model that was asked says: a part of the work failed or was left out."));
    }

    #[test]
    fn whatever_else_is_said_the_rules_word_stands() {
        for said in [opinion(false, false, Why::Harmless), SecondOpinion::none("late"), SecondOpinion::default()] {
            for report in [unsure(), concluded(&ObserveRule::default(), true, "panic: the cache is gone\n", 1)] {
                let told = report.clone().with_opinion("shell.run", said.clone());
                assert_eq!(told.observation(), report.observation());
                let Report::Conclude { asked, doubt, .. } = told else { panic!("an end stays one") };
                assert_eq!((asked, doubt), (Some(said.clone()), None));
            }
        }
        let found = concluded(&ObserveRule::default(), true, "panic: the cache is gone\n", 1);
        let told = found.clone().with_opinion("shell.run", opinion(true, true, Why::Failed));
        assert_eq!(told.observation(), found.observation(), "nothing was in doubt");
    }

    #[test]
    fn what_is_shown_and_what_is_told_fits_into_the_packet() {
        let line = |number: u32| format!("src/a{number}.rs:{number}:1: panic: {}\n", "x".repeat(number as usize % 700));
        let body: String = (0..600).map(|number| format!("{}fatal error: {number}\n", line(number))).collect();
        let report = concluded(&ObserveRule::default(), true, &body, 0);
        assert!(report.doubt().unwrap().text().len() <= 2048 + 200, "{report:#?}");
        for (anomaly, decision_needed) in [(true, true), (true, false)] {
            let told = report.clone().with_opinion("shell.run", opinion(anomaly, decision_needed, Why::Expected));
            let told = told.observation();
            let evidence: usize = told.evidence.iter().map(|each| each.excerpt.len() + each.rule.len()).sum();
            let said = told.changed.len() + told.decision.as_ref().map_or(0, String::len) + evidence;
            assert!(said <= 2048, "{said}: {told:#?}");
        }
    }
}
