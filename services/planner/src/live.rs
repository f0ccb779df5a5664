//! Text while it is written: pieces are gathered for a moment and published on `live.<tenant>.<run>`, lost without harm.

use std::time::Duration;

use bus::{Bus, Headers, subject};
use kernel::{RunState, TurnId};
use serde::Serialize;
use tokio::sync::mpsc;

/// How long pieces are gathered.
const GATHER: Duration = Duration::from_millis(50);

/// What is published.
#[derive(Debug, Serialize)]
struct Delta<'a> {
    /// Number of the turn.
    turn: u32,
    /// Its id.
    turn_id: TurnId,
    /// Which model call of the turn, from 0: a later one replaces what an earlier one said.
    block: u32,
    /// Where `text` begins in the block, in bytes.
    offset: usize,
    /// The piece.
    text: &'a str,
}

/// Where the pieces of one model call go. Dropping it publishes what is left.
#[derive(Clone, Debug)]
pub struct Live {
    pieces: mpsc::UnboundedSender<String>,
}

impl Live {
    /// For the `block`th model call of the open turn.
    #[must_use]
    pub fn open(bus: &Bus, state: &RunState, turn: (TurnId, u32), block: u32) -> Self {
        let (pieces, arriving) = mpsc::unbounded_channel();
        let subject = subject::live(&state.tenant, state.run_id);
        tokio::spawn(publish(bus.clone(), subject, turn, block, arriving));
        Self { pieces }
    }

    /// Takes a piece. What nobody can be told is let go.
    pub fn push(&self, piece: &str) {
        let _ = self.pieces.send(piece.to_owned());
    }
}

async fn publish(
    bus: Bus,
    subject: String,
    (turn_id, turn): (TurnId, u32),
    block: u32,
    mut arriving: mpsc::UnboundedReceiver<String>,
) {
    let mut offset = 0;
    while let Some(mut text) = arriving.recv().await {
        let until = tokio::time::Instant::now() + GATHER;
        let mut open = true;
        while open && let Ok(piece) = tokio::time::timeout_at(until, arriving.recv()).await {
            match piece {
                Some(piece) => text.push_str(&piece),
                None => open = false,
            }
        }
        let delta = Delta { turn, turn_id, block, offset, text: &text };
        let Ok(body) = serde_json::to_vec(&delta) else { continue };
        if let Err(error) = bus.publish_core(&subject, Headers::new(), body).await {
            tracing::debug!(%error, "a piece of an answer was not shown");
        }
        offset += text.len();
    }
}
