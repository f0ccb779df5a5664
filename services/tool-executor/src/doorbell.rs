//! What a message says: which run to look at, and which call rang.

use bus::{Delivery, Subject};
use kernel::{ApprovalId, CallId, RunId, RunState, Seq, WaitId};
use serde_json::Value;

/// A message, as far as it is believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Doorbell {
    pub run: RunId,
    /// The event that rang.
    pub seq: Option<Seq>,
    pub traceparent: Option<String>,
    named: Named,
}

/// What it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    Call(CallId),
    Approval(ApprovalId),
    /// A wait, and whether anything of it can be asked about.
    Wait(WaitId, bool),
    /// The run as a whole.
    Nothing,
}

impl Doorbell {
    /// Reads a message; in words why it is none.
    pub fn read(delivery: &Delivery) -> Result<Self, String> {
        let subject = Subject::parse(&delivery.subject).map_err(|error| error.to_string())?;
        let Subject::Event { run, .. } = subject else { return Err(format!("`{}` is no event", delivery.subject)) };
        let run = run.parse().map_err(|error: kernel::IdError| error.to_string())?;
        // The identity of an event is its run and its number.
        let seq = delivery.headers.get_any_case("ce-id").and_then(|id| id.rsplit_once('-')?.1.parse().ok());
        let traceparent = delivery.traceparent().map(str::to_owned);
        Ok(Self { run, seq, traceparent, named: named(&delivery.payload) })
    }

    /// The wait that it is about, and whether anything of that can be asked about.
    pub fn wait(&self) -> Option<(WaitId, bool)> {
        match self.named {
            Named::Wait(wait, verifiable) => Some((wait, verifiable)),
            _ => None,
        }
    }

    /// Whether the run may have to undo something now. A bell that names no call may tell of the ending itself.
    pub fn is_about_ending(&self, state: &RunState) -> bool {
        self.named == Named::Nothing || state.ending.is_some()
    }

    /// Whether it is about an answer that the run knows and that lets no call pass: one to a question, or about a call that
    /// has ended.
    pub fn is_of_no_call(&self, state: &RunState) -> bool {
        let Named::Approval(approval) = self.named else { return false };
        state.decided.iter().any(|(decided, _)| *decided == approval) && self.calls(state).is_empty()
    }

    /// The calls of the run that it is about.
    pub fn calls(&self, state: &RunState) -> Vec<CallId> {
        match self.named {
            Named::Call(call) => vec![call],
            Named::Approval(approval) => {
                let of = state.calls.values().find(|call| call.approval_id == Some(approval));
                of.map(|call| call.request.call_id).into_iter().collect()
            }
            Named::Wait(..) => Vec::new(),
            Named::Nothing => state.calls.keys().copied().collect(),
        }
    }
}

fn named(payload: &[u8]) -> Named {
    let data: Value = serde_json::from_slice(payload).unwrap_or_default();
    fn id<T: std::str::FromStr>(value: &Value) -> Option<T> {
        value.as_str()?.parse().ok()
    }
    if let Some(call) = id(&data["call"]["call_id"]).or_else(|| id(&data["call_id"])) {
        Named::Call(call)
    } else if let Some(approval) = id(&data["approval_id"]) {
        Named::Approval(approval)
    } else if let Some(wait) = id(&data["wait"]["wait_id"]) {
        Named::Wait(wait, is_verifiable(&data["wait"]["on"]))
    } else {
        Named::Nothing
    }
}

/// Whether a condition among these names a way to verify it.
fn is_verifiable(on: &Value) -> bool {
    let any = |of: &Value| of.as_array().is_some_and(|of| of.iter().any(is_verifiable));
    any(&on["any"]) || any(&on["all"]) || on["on"]["condition"]["verify"].is_object()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_event_names_what_it_is_about() {
        let (call, approval) = (CallId::mint(), ApprovalId::mint());
        let read = |data: Value| named(data.to_string().as_bytes());
        assert_eq!(read(json!({"call": {"call_id": call, "tool": "x"}})), Named::Call(call));
        assert_eq!(read(json!({"approval_id": approval, "by": "ann"})), Named::Approval(approval));
        assert_eq!(read(json!({"by": "ann"})), Named::Nothing);
        assert_eq!(named(b"\xff not json"), Named::Nothing);
        let pattern = |verify: Option<kernel::wait::Verify>| {
            let condition = kernel::wait::Condition::External(kernel::wait::ExternalPattern {
                source: "forge".into(),
                event_type: "forge.merged".into(),
                subject: String::new(),
                filter: None,
                exclusive: false,
                verify: verify.map(Box::new),
            });
            kernel::wait::WaitExpr::Any(vec![kernel::wait::WaitExpr::All(vec![condition.into()])])
        };
        let wait = WaitId::derive(kernel::RunId::mint(), "w");
        let verify =
            kernel::wait::Verify { tool: "forge.look".into(), arguments: Value::Null, when: "data.merged".into() };
        let told = |on: kernel::wait::WaitExpr| read(json!({"wait": {"wait_id": wait, "on": on}}));
        assert_eq!(told(pattern(Some(verify))), Named::Wait(wait, true));
        assert_eq!(told(pattern(None)), Named::Wait(wait, false));
    }
}
