//! What a person is shown beside a call that they are asked about: what the model said, and what it had before it.

use engine::{Engine, EngineError};
use kernel::call::{Call, Shown};
use kernel::event::{EventData, Speaker};
use kernel::{Block, RunState, Trust};

/// Events before the call that are looked at.
const LOOK_BACK: u64 = 200;
/// Pieces of evidence that are shown.
const MOST: usize = 8;
/// Most bytes of one.
const PIECE_BYTES: usize = 400;
/// Most bytes of what the model said.
const SAID_BYTES: usize = 1000;

/// Fills in what the log says of the turn that asked for the call.
///
/// # Errors
/// When the log can't be read.
pub(crate) async fn show(engine: &Engine, state: &RunState, call: &Call, shown: &mut Shown) -> Result<(), EngineError> {
    let after = call.asked.saturating_sub(LOOK_BACK);
    let most = u32::try_from(call.asked - after).unwrap_or(u32::MAX);
    let events = engine.reads().events(&state.tenant, state.run_id, after, most).await?;
    // What this version can't read is not shown; it is in the log all the same.
    let events = events.iter().filter_map(|stored| stored.decode().ok());
    let mut seen: Vec<Block> = Vec::new();
    for event in events {
        match event.data {
            EventData::TurnCompleted(turn) if turn.turn_id == call.turn_id => {
                shown.said = turn.text.map(|text| text.excerpt(SAID_BYTES));
                break;
            }
            // An earlier turn had that before it, and has answered it.
            EventData::TurnCompleted(_) => seen.clear(),
            data => seen.extend(evidence(data)),
        }
    }
    let first = seen.len().saturating_sub(MOST);
    shown.evidence = seen.into_iter().skip(first).map(|block| block.excerpt(PIECE_BYTES)).collect();
    Ok(())
}

/// What an event told the model.
fn evidence(data: EventData) -> Option<Block> {
    Some(match data {
        EventData::RunCreated(created) => created.input,
        EventData::MessageAdded(message) if message.role == Speaker::Operator => message.block,
        EventData::ToolCompleted(done) => done.result.block,
        EventData::ToolFailed(failed) => failed.failure.block,
        EventData::ToolDenied(denied) => denied.reason,
        EventData::ExternalMatched(matched) => matched.block,
        EventData::SubagentCompleted(done) => done.result,
        EventData::SubagentFailed(failed) => failed.reason,
        EventData::ObservationRecorded(observed) => {
            let observation = observed.observation;
            let excerpts = observation.evidence.iter().map(|evidence| evidence.excerpt.as_str());
            let text = std::iter::once(observation.changed.as_str()).chain(excerpts).collect::<Vec<_>>().join("\n");
            Block::new(text, Trust::Untrusted, "observation")
        }
        _ => return None,
    })
}
