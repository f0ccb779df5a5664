//! One validated set of policies, and how it decides.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::OnceLock;

use cedar_policy::{AuthorizationError, Authorizer, PolicyId};

use crate::arguments;
use crate::cache::Cache;
use crate::decision::{ARGUMENTS_BEYOND_LIMITS, Answer, Decision, NO_MATCH, NOT_JUDGED, Obligation, Reason};
use crate::error::PolicyError;
use crate::facts::FactsError;
use crate::foresee::{Foreseen, Foresight, NotRewritten, Unknown, WAYS};
use crate::pack::{Files, Pack, RuleKind};
use crate::request::Request;

/// A validated set of policies. Parsed once; deciding takes `&self` and never fails.
pub struct Policies {
    pack: Pack,
    cache: Cache,
    authorizer: Authorizer,
    version: String,
    /// The policies as they are for whoever does not know all, by what is unknown; made when they are first wanted. None: they
    /// can't be rewritten.
    foresight: [OnceLock<Option<Box<Foresight>>>; WAYS],
}

impl fmt::Debug for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policies").field("version", &self.version).field("ids", &self.ids()).finish_non_exhaustive()
    }
}

impl Policies {
    /// Reads `schema.cedarschema` and every `*.cedar` in `dir`, and validates them strictly.
    ///
    /// # Errors
    /// If a file can't be read or the set is not valid; every problem names its file, line and remedy.
    pub fn load(dir: &Path) -> Result<Self, PolicyError> {
        Self::from_files(&Files::read(dir)?)
    }

    /// The set that is shipped, as it was when the program was built.
    #[must_use]
    #[expect(clippy::expect_used, reason = "the files are part of the program, and a test loads them")]
    pub fn embedded() -> Self {
        Self::from_files(&Files::embedded()).expect("the shipped policies are valid")
    }

    pub(crate) fn from_files(files: &Files) -> Result<Self, PolicyError> {
        Ok(Self::of(Pack::new(files)?, files.version()))
    }

    pub(crate) fn of(pack: Pack, version: String) -> Self {
        let cache = Cache::new(&pack.set);
        Self { pack, cache, authorizer: Authorizer::new(), version, foresight: Default::default() }
    }

    /// SHA-256 in hexadecimal of the names and contents of all files of the set.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The ids of all policies, sorted.
    #[must_use]
    pub fn ids(&self) -> Vec<&str> {
        let mut ids: Vec<_> = self.pack.rules.keys().map(AsRef::as_ref).collect();
        ids.sort_unstable();
        ids
    }

    /// May this call happen?
    #[must_use]
    pub fn decide(&self, request: &Request<'_>) -> Decision {
        if let Err(beyond) = arguments::check(request.arguments) {
            return self.denied(ARGUMENTS_BEYOND_LIMITS, beyond.to_string());
        }
        self.cache.decide(request, || self.judge(request))
    }

    /// What holds of a call whatever the facts turn out to be that are not known yet; what the request says of those counts
    /// for nothing. Nothing is foreseen of most calls: that is no promise that they are let pass.
    #[must_use]
    pub fn foresee(&self, request: &Request<'_>, unknown: Unknown) -> Foreseen {
        let foresight = self.foresight[unknown.number()].get_or_init(|| {
            let made = Foresight::new(&self.pack, &self.version, unknown);
            let told =
                |error: &NotRewritten| tracing::error!(%error, "nothing is foreseen of what these policies will say");
            made.inspect_err(told).ok().map(Box::new)
        });
        foresight.as_ref().map(|foresight| foresight.of(request)).unwrap_or_default()
    }

    fn judge(&self, request: &Request<'_>) -> Decision {
        let facts = match self.pack.vocabulary.facts(request, None) {
            Ok(facts) => facts,
            Err(error) => {
                let policy = match error {
                    FactsError::Beyond(_) => ARGUMENTS_BEYOND_LIMITS,
                    FactsError::Cedar(_) => NOT_JUDGED,
                };
                return self.denied(policy, error.to_string());
            }
        };
        let response = self.authorizer.is_authorized(&facts.request, &self.pack.set, &facts.entities);
        let mut verdict = Verdict::default();
        for id in response.diagnostics().reason() {
            self.fits(&mut verdict, id);
        }
        for error in response.diagnostics().errors() {
            self.failed(&mut verdict, error);
        }
        self.conclude(verdict)
    }

    fn fits(&self, verdict: &mut Verdict, id: &PolicyId) {
        let Some(rule) = self.pack.rules.get(id) else { return };
        let (answer, obligations) = match &rule.kind {
            RuleKind::Forbid => (Answer::Deny, None),
            RuleKind::Permit { ask: true, obligations } => (Answer::Ask, Some(obligations)),
            RuleKind::Permit { ask: false, obligations } => (Answer::Allow, Some(obligations)),
        };
        verdict.add(answer, id, rule.reason.clone());
        verdict.obligations.extend(obligations.into_iter().flatten());
    }

    /// Cedar leaves out a policy that can't be evaluated, such as one with an overflow. Here it must not loosen anything:
    /// a forbid or an ask counts as if it fitted, a permit with an obligation asks, and only a free permit is left out.
    fn failed(&self, verdict: &mut Verdict, error: &AuthorizationError) {
        let AuthorizationError::PolicyEvaluationError(error) = error;
        tracing::error!(policy = %error.policy_id(), %error, "a policy can't be evaluated; it counts as fitting");
        let Some(rule) = self.pack.rules.get(error.policy_id()) else { return };
        let text = format!("{} (it could not be evaluated: {})", rule.reason, error.inner());
        match &rule.kind {
            RuleKind::Forbid => verdict.add(Answer::Deny, error.policy_id(), text),
            RuleKind::Permit { ask, obligations } if *ask || !obligations.is_empty() => {
                verdict.add(Answer::Ask, error.policy_id(), text);
                verdict.obligations.extend(obligations);
            }
            RuleKind::Permit { .. } => {}
        }
    }

    fn conclude(&self, verdict: Verdict) -> Decision {
        let Some(answer) = verdict.reasons.iter().map(|(answer, _)| *answer).max() else {
            return self.denied(NO_MATCH, "no policy allows it".to_owned());
        };
        let mut reasons: Vec<_> =
            verdict.reasons.into_iter().filter(|(other, _)| *other == answer).map(|(_, reason)| reason).collect();
        reasons.sort_unstable();
        let obligations = if answer == Answer::Deny { BTreeSet::new() } else { verdict.obligations };
        Decision { answer, reasons, obligations, policy_version: self.version.clone() }
    }

    fn denied(&self, policy: &str, text: String) -> Decision {
        Decision {
            answer: Answer::Deny,
            reasons: vec![Reason { policy: policy.to_owned(), text }],
            obligations: BTreeSet::new(),
            policy_version: self.version.clone(),
        }
    }
}

/// All that fits, before the strictest is taken.
#[derive(Default)]
struct Verdict {
    reasons: Vec<(Answer, Reason)>,
    obligations: BTreeSet<Obligation>,
}

impl Verdict {
    fn add(&mut self, answer: Answer, id: &PolicyId, text: String) {
        self.reasons.push((answer, Reason { policy: id.to_string(), text }));
    }
}
