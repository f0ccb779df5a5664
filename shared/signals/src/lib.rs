//! Log records of watched services: one form for all that come in, whoever sent them.
//!
//! Ingress makes them of OTLP and publishes them; other systems publish them by themselves on `log.<tenant>.<service>`; the
//! observer reads them and artifact keeps them. All agree here on what a record is, and on which line of a message is which.
//!
//! | to change | open |
//! | --- | --- |
//! | what is kept of a record | `record.rs` |
//! | how bad it is | `severity.rs` |
//! | what a message may hold | `message.rs` |
//! | OTLP | `otlp/` |

mod message;
mod otlp;
mod record;
mod severity;

pub use message::{Batch, MAX_MESSAGE_BYTES, batches, lines};
pub use otlp::{DecodeError, Decoded, Encoding, Kind, decode};
pub use record::{MAX_ATTRIBUTES, MAX_BODY_BYTES, Record};
pub use severity::Severity;
