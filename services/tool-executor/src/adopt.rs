//! After a start: the activities that an executor before left behind are taken up at once, without waiting for anybody
//! to ring.

use std::time::Duration;

use engine::EngineError;
use kernel::call::CallStatus;
use kernel::tool::CallKind;
use kernel::{CallId, RunId};
use service::{Shutdown, TraceContext};

use crate::activity::{Activities, Activity};
use crate::dispatch::Dispatcher;

/// How often activities that somebody still holds are tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// How many leases' time an executor that died may still hold its activities; after that somebody alive does.
const LEASES: u32 = 3;

/// Takes up what was left behind, until nothing is left or this executor stops.
pub(crate) async fn adopt(dispatcher: &Dispatcher, shutdown: &Shutdown) {
    let activities = dispatcher.activities.clone();
    let found = tokio::task::spawn_blocking(move || activities.left_behind()).await;
    let mut left = found.unwrap_or_default();
    let until = tokio::time::Instant::now() + dispatcher.lease * LEASES;
    let stopping = shutdown.stopping();
    while !left.is_empty() && tokio::time::Instant::now() < until {
        let mut held = Vec::new();
        for (run, call) in left {
            match take_up(dispatcher, &dispatcher.activities, run, call).await {
                Ok(true) => {}
                Ok(false) => held.push((run, call)),
                Err(error) => {
                    tracing::warn!(run_id = %run, %call, %error, "an activity could not be taken up, trying again");
                    held.push((run, call));
                }
            }
        }
        left = held;
        if stopping.run_until_cancelled(tokio::time::sleep(AGAIN)).await.is_none() {
            return;
        }
    }
}

/// Whether nothing is left to do about it here.
async fn take_up(
    dispatcher: &Dispatcher,
    activities: &Activities,
    run: RunId,
    call_id: CallId,
) -> Result<bool, EngineError> {
    let live =
        |call: &kernel::call::Call| call.status == CallStatus::Started && call.request.kind == CallKind::Activity;
    let is_remote = |tool: &str| dispatcher.pipeline.registry.now(tool).is_some_and(|tool| tool.is_remote());
    let Some(state) = dispatcher.engine.load(run).await? else { return Ok(true) };
    if activities.follows(call_id) || !state.calls.get(&call_id).is_some_and(live) {
        return Ok(true);
    }
    let (leases, name) = (dispatcher.engine.leases(), format!("call/{call_id}"));
    let acquired = leases.acquire(&name, &dispatcher.instance, dispatcher.lease).await?;
    let Some(lease) = acquired else { return Ok(false) };
    let Some(state) = dispatcher.engine.load(run).await? else { return Ok(true) };
    let Some(call) = state.calls.get(&call_id).filter(|call| live(call)) else { return Ok(true) };
    if is_remote(&call.request.tool) {
        let task = dispatcher.task_of(state.clone(), call.clone());
        let held = dispatcher.retake(&state, call).await;
        dispatcher.follow_elsewhere(&task, &mut Some(lease), held).await?;
        return Ok(true);
    }
    let root = TraceContext::of_run(run, state.sampled);
    let held = dispatcher.retake(&state, call).await;
    if let Err(error) = activities.attach(Activity::of(&state, call), root.to_string(), lease, held) {
        tracing::error!(run_id = %run, call = %call_id, %error, "the files of an activity can't be used");
    }
    Ok(true)
}
