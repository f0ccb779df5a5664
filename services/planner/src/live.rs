//! Text while it is written: pieces are gathered for a moment and published on `live.<tenant>.<run>`, lost without harm.

use std::time::Duration;

use bus::{Bus, Headers, subject};
use kernel::{RunState, TurnId};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::models::Piece;

/// Numbers that one model call has for beginning anew.
const BLOCKS_PER_CALL: u32 = 1000;
/// How long pieces are gathered.
const GATHER: Duration = Duration::from_millis(50);

/// What is published.
#[derive(Debug, Serialize)]
struct Delta<'a> {
    /// Number of the turn.
    turn: u32,
    /// Its id.
    turn_id: TurnId,
    /// Which beginning of an answer of the turn it is: a later one replaces what an earlier one said.
    block: u32,
    /// Where `text` begins in the block, in bytes.
    offset: usize,
    /// The piece.
    text: &'a str,
}

/// Where the pieces of one model call go. Dropping it publishes what is left.
#[derive(Clone, Debug)]
pub struct Live {
    said: mpsc::UnboundedSender<Said>,
}

/// What was heard.
#[derive(Debug)]
enum Said {
    Text(String),
    /// What was said before does not count.
    Anew,
}

impl Live {
    /// For the `block`th model call of the open turn.
    #[must_use]
    pub fn open(bus: &Bus, state: &RunState, turn: (TurnId, u32), block: u32) -> Self {
        let (said, arriving) = mpsc::unbounded_channel();
        let subject = subject::live(&state.tenant, state.run_id);
        tokio::spawn(publish(bus.clone(), subject, turn, block.saturating_mul(BLOCKS_PER_CALL), arriving));
        Self { said }
    }

    /// Takes a piece. What nobody can be told is let go.
    pub fn push(&self, piece: Piece<'_>) {
        let said = match piece {
            Piece::More(text) => Said::Text(text.to_owned()),
            Piece::Anew => Said::Anew,
        };
        let _ = self.said.send(said);
    }
}

async fn publish(
    bus: Bus,
    subject: String,
    (turn_id, turn): (TurnId, u32),
    mut block: u32,
    mut arriving: mpsc::UnboundedReceiver<Said>,
) {
    let (mut offset, mut waiting) = (0, None);
    loop {
        let Some(first) = (match waiting.take() {
            Some(said) => Some(said),
            None => arriving.recv().await,
        }) else {
            return;
        };
        let Said::Text(mut text) = first else {
            // Of an answer of which nothing was shown nothing has to be replaced.
            if offset > 0 {
                (block, offset) = (block + 1, 0);
            }
            continue;
        };
        let until = tokio::time::Instant::now() + GATHER;
        while let Ok(Some(said)) = tokio::time::timeout_at(until, arriving.recv()).await {
            match said {
                Said::Text(piece) => text.push_str(&piece),
                Said::Anew => {
                    waiting = Some(Said::Anew);
                    break;
                }
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
