//! Tools that are a question to a Postgres database.

use engine::{ForeignError, ForeignQuestion, ask_foreign};
use kernel::Trust;
use kernel::tool::SqlRead;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::{Invocation, Tools};
use crate::outcome::{Content, Happened, ToolError};
use crate::secrets::Secrets;
use crate::template::{self, Places};

/// Rows that are read, unless the tool's file says otherwise.
const ROWS: u32 = 100;
/// Most bytes of all rows together.
const BYTES: usize = 1 << 20;

/// The answer, as the model and expressions see it.
#[derive(Serialize)]
struct Answer {
    /// Each an object of its columns.
    rows: Vec<Box<RawValue>>,
    /// There are more.
    more: bool,
}

/// Asks the database that the tool's file names.
pub(super) async fn read(secrets: &Secrets, sql: &SqlRead, invocation: Invocation<'_>) -> Result<Content, ToolError> {
    let places = Tools::places(invocation);
    let parameters: Vec<_> = sql.parameters.iter().map(|parameter| filled(parameter, places)).collect();
    let (url, _) = secrets.resolve(&sql.url).map_err(template::TemplateError::from)?;
    let asked = ask_foreign(ForeignQuestion {
        url: &url,
        statement: &sql.statement,
        parameters: &parameters,
        rows: sql.rows.unwrap_or(ROWS),
        bytes: BYTES,
        within: invocation.timeout,
    });
    let answer = asked.await?;
    let answer = Answer { rows: answer.rows, more: answer.more };
    let bytes = serde_json::to_vec(&answer).map_err(|error| ToolError::final_("invalid_result", error.to_string()))?;
    let value = serde_json::from_slice(&bytes).ok();
    Ok(Content { value, ..Content::outside(bytes, "application/json") })
}

/// A parameter: a text, or null if it is a place that nothing fills.
fn filled(template: &str, places: Places<'_>) -> Option<String> {
    match template::whole_place(template, places) {
        Some(Value::Null) => None,
        Some(value) => Some(template::plain(&value)),
        None => Some(template::text(template, places)),
    }
}

impl From<ForeignError> for ToolError {
    fn from(error: ForeignError) -> Self {
        let (words, holds_data) = (error.to_string(), error.holds_data());
        let error = match error {
            ForeignError::Url => Self::final_("misconfigured", words),
            ForeignError::Unreachable(_) => Self::transient("unreachable", words, Happened::No),
            ForeignError::TimedOut(_) => Self::transient("timeout", words, Happened::No),
            ForeignError::Broken(_) => Self::transient("connection_broken", words, Happened::No),
            ForeignError::Refused(_) => Self::final_("sql", words),
            ForeignError::TooLarge(_) => Self::final_("too_large", words),
        };
        let trust = if holds_data { Trust::Untrusted } else { error.trust };
        Self { trust, ..error }
    }
}

#[cfg(test)]
mod tests {
    use kernel::RunId;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_parameter_is_a_text_or_nothing() {
        let given = json!({"id": "7' or true --", "n": 3, "none": null}).as_object().unwrap().clone();
        let places = Places { arguments: &given, idempotency_key: "", run: RunId::mint() };
        let filled = |template| filled(template, places);
        assert_eq!(filled("{id}").as_deref(), Some("7' or true --"));
        assert_eq!(filled("{n}").as_deref(), Some("3"));
        assert_eq!((filled("{none}"), filled("{gone}")), (None, None));
        assert_eq!(filled("order-{n}-{gone}").as_deref(), Some("order-3-"));
    }
}
