//! Asking until there is something to commit: an answer that can't be used goes back to the model with the reasons.

use kernel::{Timestamp, budget::Usage};

use super::{Consumed, Open, Tried, TurnError, Turns, recording::refused};
use crate::{
    candidate::{self, Candidate, Reading},
    live::Live,
    models::{
        FailureKind, ModelError, Prompt, TurnKind, Unanswered,
        router::{Answered, CallSite},
    },
    preview, spawn,
};

impl Turns {
    /// Asks, and sees to it that whatever that costs is in the log, also if nothing comes of it.
    pub(super) async fn ask_until_usable(&self, open: &mut Open<'_>) -> Result<&'static str, TurnError> {
        let first = open.agent.model.all().first().map_or("", String::as_str);
        if let Some(wait) = self.gate.wait(first).await {
            let words = "the provider has had its tokens for this minute";
            let error = ModelError::new(FailureKind::RateLimited, words);
            return Err(TurnError::Model(ModelError { retry_after: Some(wait), ..error }));
        }
        let mut consumed = Consumed::of(open.turn_id);
        let over = Box::pin(self.ask_again_and_again(open, &mut consumed)).await;
        if consumed.usage != Usage::default() {
            let why = match &over {
                Ok(how) => format!("the turn was {how}"),
                Err(error) => error.to_string(),
            };
            let key = consumed.key.clone();
            self.charge(&open.asking(), consumed.charge(open.turn_id, &why), &key).await;
        }
        over
    }

    async fn ask_again_and_again(
        &self,
        open: &mut Open<'_>,
        consumed: &mut Consumed,
    ) -> Result<&'static str, TurnError> {
        let (mut said, mut problems) = (String::new(), Vec::new());
        let mut again = 0;
        while again <= self.max_reasks {
            if open.interrupt.is_paused() {
                // A held run opens its turn again when it goes on.
                return Ok("paused");
            }
            let user = if again == 0 {
                open.slice.user.clone()
            } else {
                metrics::counter!("planner_reasks_total").increment(1);
                open.slice.user_with_problems(&said, &problems)
            };
            let is_last = again == self.max_reasks;
            let Some(answered) = open.interrupt.or_ended(self.ask(open, user, consumed.asks)).await else {
                return Ok("aborted");
            };
            consumed.asks += 1;
            let mut answered = match answered {
                Ok(answered) => answered,
                Err(unanswered) => {
                    let error = consumed.waste(unanswered, is_last);
                    if error.is_to_be_told() {
                        again += 1;
                        (said, problems) = (String::new(), vec![error.message]);
                        continue;
                    }
                    if error.is_transient() {
                        return Err(TurnError::Model(error));
                    }
                    // Who will not answer this will not answer it later either, and not for want of trying.
                    let code = if error.kind == FailureKind::Refused { "safety" } else { "provider" };
                    return self.refuse(&open.asking(), code, vec![error.to_string()], consumed).await;
                }
            };
            fail::fail_point!("planner.after_model");
            self.gate.charge(&answered.model, answered.answer.usage.tokens()).await;
            consumed.add(&mut answered);
            match self.try_commit(open, &answered, consumed, is_last).await? {
                Tried::Committed => return Ok("committed"),
                Tried::Moot => return Ok("superseded"),
                // It is shown what it wanted to read, and asked as if for the first time.
                Tried::Read => {}
                Tried::Problems(found) => {
                    again += 1;
                    tracing::info!(run_id = %open.state.run_id, turn = open.number, problems = ?found, "an answer cannot be used");
                    consumed.unusable(&answered, open, &found, is_last);
                    said = answered.answer.text;
                    problems = found;
                }
                Tried::Forbidden(found) => {
                    again += 1;
                    tracing::info!(run_id = %open.state.run_id, turn = open.number, problems = ?found, "the policies will not let an answer pass");
                    consumed.forbidden(&answered, &found);
                    said = answered.answer.text;
                    problems = found;
                }
            }
        }
        self.refuse(&open.asking(), "invalid_output", problems, consumed).await
    }

    async fn ask(&self, open: &Open<'_>, user: String, ask: u32) -> Result<Answered, Unanswered> {
        let prompt = Prompt {
            system: open.slice.system.clone(),
            user,
            tools: open.toolbox.declarations(),
            tool_tokens: open.toolbox.tokens(open.counter),
            max_output_tokens: self.limits.output_tokens,
            run_id: open.state.run_id,
            turn: open.number,
            ask,
        };
        let site = CallSite::of(&open.state, open.turn_id, open.traceparent.as_deref(), TurnKind::of(&open.state));
        let live = Live::open(&self.bus, &open.state, (open.turn_id, open.number), ask);
        self.models.answer(open.agent, &prompt, &site, &self.tracer, &|piece| live.push(piece)).await
    }

    async fn try_commit(
        &self,
        open: &mut Open<'_>,
        answered: &Answered,
        consumed: &mut Consumed,
        is_last: bool,
    ) -> Result<Tried, TurnError> {
        let read = candidate::read(
            &answered.answer,
            &Reading {
                state: &open.state,
                agent: open.agent,
                toolbox: &open.toolbox,
                slice: &open.slice,
                turn_id: open.turn_id,
                now: Timestamp::now(),
                model: &answered.model,
                usage: consumed.usage,
                model_ms: consumed.millis,
                failures: &consumed.failures,
            },
        );
        let candidate = match read {
            Ok(candidate) => candidate,
            Err(problems) => return Ok(Tried::Problems(problems)),
        };
        if let Some(tried) = self.open_skills(open, &candidate).await? {
            return Ok(tried);
        }
        let Candidate { mut outcome, drafts, spawns, .. } = candidate;
        outcome.skills.clone_from(&open.around.opened);
        if !spawns.is_empty() {
            match spawn::resolve(&self.agents, &open.state, open.agent, &spawns).await? {
                Ok(resolved) => outcome.spawns = resolved,
                Err(problems) => return Ok(Tried::Problems(problems)),
            }
        }
        // Whoever insists is told by the tool-executor, who decides: so that it is in the log, and no run ends over advice.
        if !is_last {
            let asking = preview::Asking { state: &open.state, agent: open.agent, toolbox: &open.toolbox };
            let refusals = self.preview.refusals(asking, &outcome.calls).await;
            if !refusals.is_empty() {
                return Ok(Tried::Forbidden(refusals));
            }
        }
        let problems = self.complete_outcome(open, &mut outcome).await?;
        if !problems.is_empty() {
            return Ok(Tried::Problems(problems));
        }
        if !drafts.is_empty() {
            // Nothing is stored for an outcome that the rules refuse.
            if let Some(problems) = refused(&open.state, &outcome) {
                return Ok(Tried::Problems(problems));
            }
            for draft in &drafts {
                match self.artifacts.store(&open.state, draft, open.slice.trust).await {
                    Ok(stored) => outcome.artifacts.push(stored),
                    Err(error) if error.is_transient() => return Err(error.into()),
                    Err(error) => {
                        return Ok(Tried::Problems(vec![format!("`create_artifact` {}: {error}", draft.name)]));
                    }
                }
            }
        }
        self.extract(open, &mut outcome, consumed).await;
        self.commit(open, outcome, &answered.traceparent, consumed).await
    }
}
