//! Windows that an agent's own calls open: its file says which of its tools act on which service.

use engine::{Engine, EngineError, RecordedAction};
use kernel::{ActionId, RunState, Seq, Timestamp, action::Action, event::EventData};

use crate::signal::Address;

/// Events before its start among which the request of a call is looked for.
const LOOK_BACK: u64 = 200;

/// Opens windows for calls. Cheap to clone.
#[derive(Clone)]
pub(crate) struct CallWindows {
    engine: Engine,
}

impl CallWindows {
    pub(crate) fn new(engine: Engine) -> Self {
        Self { engine }
    }

    /// Opens the windows of a call that has started, if it should have any. Doing it again changes nothing.
    pub(crate) async fn open(&self, address: &Address, seq: Seq) -> Result<(), EngineError> {
        let is_open = |run: &RunState| run.calls.contains_key(&address.call_id);
        let Some(run) = self.engine.load_at_least(address.run_id, seq, is_open).await? else { return Ok(()) };
        let agents = self.engine.agents();
        let Some(agent) = agents.by_digest(&run.tenant, &run.agent, &run.agent_digest).await? else { return Ok(()) };
        let acting = agent.spec.watch.iter().filter_map(|watch| Some((&watch.service, &watch.actions.as_ref()?.after)));
        let acting: Vec<_> = acting.filter(|(_, after)| !after.is_empty()).collect();
        if acting.is_empty() {
            return Ok(());
        }
        let Some((tool, at)) = self.started(address, &run, seq).await? else { return Ok(()) };
        for (service, _) in acting.into_iter().filter(|(_, after)| after.contains(&tool)) {
            let name = format!("action/{}/{service}", address.call_id);
            let action = Action {
                action_id: ActionId::derive(address.run_id, &name),
                tenant: address.tenant.clone(),
                service: service.clone(),
                actor: run.agent.clone(),
                what: tool.clone(),
                expects: None,
                // What goes out with the call as its idempotency key.
                request_id: Some(address.call_id.to_string()),
                session_id: None,
                trace_id: None,
                components: Vec::new(),
                at,
                run_id: Some(address.run_id),
                call_id: Some(address.call_id),
                recorded_by: "observer".to_owned(),
            };
            if self.engine.actions().record(&action, &name, "").await? == RecordedAction::Full {
                tracing::warn!(call = %address.call_id, service, "too many actions are open, this one is not looked after");
                crate::meter::passed_over("too_many_actions");
            }
        }
        Ok(())
    }

    /// Which tool it is, and when it started.
    async fn started(
        &self,
        address: &Address,
        run: &RunState,
        seq: Seq,
    ) -> Result<Option<(String, Timestamp)>, EngineError> {
        if let Some(call) = run.calls.get(&address.call_id) {
            return Ok(Some((call.request.tool.clone(), call.started_at.unwrap_or(run.updated_at))));
        }
        // It has ended already.
        let most = u32::try_from(LOOK_BACK).unwrap_or(u32::MAX);
        let after = seq.saturating_sub(LOOK_BACK);
        let events = self.engine.reads().events(&address.tenant, address.run_id, after, most).await?;
        let requested = events.iter().filter(|event| event.event_type == "tool.requested");
        let mut requested = requested.filter_map(|event| event.decode().ok());
        Ok(requested.find_map(|event| match event.data {
            EventData::ToolRequested(asked) if asked.call.call_id == address.call_id => {
                Some((asked.call.tool, event.at))
            }
            _ => None,
        }))
    }
}
