//! The one place where events of older versions are lifted to what this code reads.

use serde::de::DeserializeOwned;

use crate::event::DecodeError;

/// Reads the content of an event of `version`, which is at most the newest one known.
///
/// There is only version 1 so far. A later version adds an arm here that rewrites the JSON of the older one, and a golden
/// file of the older one under `tests/golden/`.
///
/// # Errors
/// [`DecodeError::Malformed`] if the content does not fit.
pub(crate) fn decode<T: DeserializeOwned>(event_type: &str, version: u16, data: &str) -> Result<T, DecodeError> {
    serde_json::from_str(data).map_err(|source| DecodeError::Malformed {
        event_type: event_type.to_owned(),
        version,
        source,
    })
}
