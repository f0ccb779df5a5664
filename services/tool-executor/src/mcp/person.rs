//! The run behind a call: it hears of progress, and its operator is asked what a server wants to know.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bus::{Headers, subject};
use engine::{Engine, EngineError, SubmitError};
use futures::future::BoxFuture;
use futures::stream::{SelectAll, StreamExt as _};
use kernel::call::{Approval, Binding};
use kernel::command::Command;
use kernel::event::EventData;
use kernel::units::later;
use kernel::{ApprovalId, Block, CallId, Cause, RunId, Seq, TenantId, Timestamp, Trust};
use serde_json::{Value, json};

use super::caller::{Answer, Caller, Form, Progress};
use super::{content, words};

/// Ticks of one call are at least this far apart.
const TICK: Duration = Duration::from_millis(100);
/// How often it is looked whether somebody has answered, in case nobody says so.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// Times that a person is asked for an answer that fits.
const MAX_ASKS: u32 = 3;
/// Questions that one call may put in all: a person's patience is not the server's to use up.
const MAX_QUESTIONS: u32 = 10;
/// Longest question that is shown.
const QUESTION: usize = 1000;
/// Largest form that is shown.
const FORM_BYTES: usize = 8 * 1024;

/// The run that a call is made for.
pub(super) struct RunCaller {
    pub engine: Engine,
    pub tenant: TenantId,
    pub run: RunId,
    pub call: CallId,
    pub tool: String,
    pub server: String,
    pub traceparent: String,
    /// How long a person may take to answer.
    pub answer: kernel::units::Duration,
    /// Questions so far.
    pub asked: AtomicU32,
    /// When it was last heard of.
    pub ticked: Mutex<Option<Instant>>,
}

impl Caller for RunCaller {
    fn progress(&self, progress: Progress) {
        {
            let mut ticked = self.ticked.lock().unwrap_or_else(PoisonError::into_inner);
            if ticked.is_some_and(|last| last.elapsed() < TICK) {
                return;
            }
            *ticked = Some(Instant::now());
        }
        let Progress { progress, total, message } = progress;
        let tick = json!({
            "tick": { "call_id": self.call, "tool": self.tool, "progress": progress, "total": total, "message": message },
        });
        let (bus, subject) = (self.engine.bus().clone(), subject::live(&self.tenant, self.run));
        tokio::spawn(async move {
            if let Err(error) = bus.publish_core(&subject, Headers::new(), tick.to_string().into_bytes()).await {
                tracing::debug!(%error, "a tick was not shown");
            }
        });
    }

    fn answer(&self, form: Form) -> BoxFuture<'_, Answer> {
        Box::pin(self.ask(form))
    }
}

impl RunCaller {
    /// Puts a server's question to the operator, again if the answer does not fit.
    async fn ask(&self, form: Form) -> Answer {
        if form.schema.to_string().len() > FORM_BYTES {
            tracing::info!(server = self.server, "a question of an MCP server is declined: its form is too large");
            return Answer::Declined;
        }
        let mut problem = None;
        for _ in 0..MAX_ASKS {
            if self.asked.load(Ordering::Relaxed) >= MAX_QUESTIONS {
                tracing::info!(server = self.server, call = %self.call, "a question of an MCP server is declined: it asks too much");
                return Answer::Declined;
            }
            let asked = match self.put(&form, problem.as_deref()).await {
                Ok(asked) => asked,
                Err(error) => {
                    tracing::info!(run_id = %self.run, call = %self.call, %error, "a question of an MCP server can't be put");
                    return Answer::Nobody;
                }
            };
            match self.hear(asked, &form).await {
                Ok(Answer::Given(given)) => match content::misfit(&form.schema, &given) {
                    None => return Answer::Given(given),
                    Some(misfit) => problem = Some(misfit),
                },
                Ok(answer) => return answer,
                Err(error) => {
                    tracing::warn!(run_id = %self.run, call = %self.call, %error, "an answer can't be read");
                    return Answer::Nobody;
                }
            }
        }
        Answer::Declined
    }

    /// Asks, and gives what was asked and from where in the log on an answer may stand.
    async fn put(&self, form: &Form, problem: Option<&str>) -> Result<(ApprovalId, Seq), SubmitError> {
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        // Of this process's own, so that what is asked anew after a crash is another question.
        let name = format!("mcp/{}/{number}/{}", self.call, self.engine.options().instance);
        let approval_id = ApprovalId::derive(self.run, &name);
        let proposed = form.defaults();
        let approval = Approval {
            approval_id,
            call_id: None,
            question: Block::new(
                question(&self.server, form, problem),
                Trust::Untrusted,
                format!("mcp:{}", self.server),
            ),
            tool: Some(self.tool.clone()),
            binding: Binding { arguments: policy::digest(&proposed), ..Binding::default() },
            arguments: Some(proposed),
            trust: Trust::Untrusted,
            reasons: vec![format!("the MCP server `{}` asks this while it works on a call", self.server)],
            two_people: false,
            shown: Default::default(),
            expires_at: later(Timestamp::now(), self.answer),
        };
        let cause = Cause {
            service: "tool-executor".to_owned(),
            seq: None,
            traceparent: Some(self.traceparent.clone()),
            operator: None,
        };
        let command = Command::AskApproval(Box::new(approval));
        let committed = self.engine.submit(self.run, command, format!("ask/{approval_id}"), cause).await?;
        Ok((approval_id, committed.state.seq))
    }

    /// Waits for the decision in the log.
    async fn hear(&self, (approval, after): (ApprovalId, Seq), form: &Form) -> Result<Answer, EngineError> {
        let mut bells = SelectAll::new();
        for event in ["approval.granted", "approval.denied", "approval.expired", "run.cancel_requested"] {
            let subject = subject::evt(event, &self.tenant, self.run);
            // Without a bell it is found by looking now and then.
            bells.extend(self.engine.bus().subscribe(&subject).await.ok());
        }
        let deadline = tokio::time::Instant::now() + self.answer.std() + LOOK_AGAIN;
        loop {
            let events = self.engine.reads().events(&self.tenant, self.run, after, 1000).await?;
            let decided = events.iter().filter_map(|event| event.decode().ok()).find_map(|event| match event.data {
                EventData::ApprovalGranted(granted) if granted.approval_id == approval => {
                    Some(Answer::Given(granted.arguments.unwrap_or_else(|| form.defaults())))
                }
                EventData::ApprovalDenied(denied) if denied.approval_id == approval => Some(Answer::Declined),
                EventData::ApprovalExpired(expired) if expired.approval_id == approval => Some(Answer::Nobody),
                EventData::RunCancelRequested(_) | EventData::RunCancelled(_) | EventData::RunFailed(_) => {
                    Some(Answer::Nobody)
                }
                _ => None,
            });
            if let Some(answer) = decided {
                return Ok(answer);
            }
            if tokio::time::Instant::now() >= deadline {
                return Ok(Answer::Nobody);
            }
            // Nothing rings if no bell could be had: then it is only looked at.
            let _ = tokio::time::timeout(LOOK_AGAIN, async {
                if bells.next().await.is_none() {
                    std::future::pending::<()>().await;
                }
            })
            .await;
        }
    }
}

/// What a person reads: who asks, in whose words, and how to answer.
fn question(server: &str, form: &Form, problem: Option<&str>) -> String {
    let fields = form.schema["properties"].as_object().into_iter().flatten().map(|(name, field)| {
        let told = field["description"].as_str().or(field["title"].as_str()).unwrap_or_default();
        let kind = match field["enum"].as_array() {
            Some(values) => values.iter().map(Value::to_string).collect::<Vec<_>>().join(" | "),
            None => field["type"].as_str().unwrap_or("string").to_owned(),
        };
        format!("\n- {} ({}): {}", words::clean(name, 100), words::clean(&kind, 300), words::clean(told, 300))
    });
    let fields: String = fields.collect();
    let problem = problem.map(|problem| format!("\nThe last answer did not fit: {problem}")).unwrap_or_default();
    format!(
        "The MCP server `{server}` asks, in its own words: \"{}\"{fields}{problem}\nApprove with these fields as `arguments` \
         to answer, or deny. What you answer goes to that server: give it no password.",
        words::clean(&form.message, QUESTION),
    )
}
