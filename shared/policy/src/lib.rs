//! May this call happen? Cedar policies over the tool, its effect, the agent, the trust of the turn, and where each
//! argument that matters comes from.
//!
//! [`Policies`] is one validated set; [`PolicyStore`] holds the current one and swaps it when its files change.
//! [`Policies::decide`] answers a [`Request`] with a [`Decision`]: allow, deny or ask, with the policies that said so and
//! the obligations they lay on whoever carries the call out. It never fails: what can't be judged is denied.
//!
//! Cedar knows permit and forbid only. *Ask* and *obligations* are annotations:
//!
//! ```text
//! @id("ask-dangerous")
//! @ask("it destroys something, moves money, or moves things")
//! @obligation("two_people, verify_after")
//! permit (principal, action in Action::"dangerous", resource);
//! ```
//!
//! The strictest of all policies that fit wins: a forbid, then a permit with `@ask`, then a permit. Cedar's authorizer
//! names every permit that fits, not only the first, so an asking permit is seen beside any number of free ones. A call
//! that no policy fits is denied. A forbidding or asking policy that can't be evaluated counts as fitting.
//!
//! The files, the annotations and worked examples are in `infra/policies/README.md`.

mod arguments;
mod cache;
mod call;
mod decision;
mod digest;
mod error;
mod facts;
mod foresee;
mod pack;
mod policies;
mod provenance;
mod request;
mod seen;
mod store;
pub mod testing;

pub use arguments::{MAX_BYTES, MAX_DEPTH, MAX_VALUES};
pub use call::{Judged, budget_left, has_defaults, kind, not_permitted, unmet, with_defaults};
pub use decision::{ARGUMENTS_BEYOND_LIMITS, Answer, Decision, NO_MATCH, NOT_JUDGED, Obligation, Reason};
pub use digest::digest;
pub use error::{PolicyError, Problem};
pub use foresee::{Foreseen, Unknown};
pub use policies::Policies;
pub use provenance::{Care, LabelError, Labels, MAX_SOURCE_BYTES, Origin, Sources, links, shape, trace, trace_values};
pub use request::{ArgumentProvenance, BudgetLeft, EFFECTS, Effect, Request, TRUSTS, ToolKind, Trust};
pub use seen::{LogPage, RunLog, SEEN_PAGE, Seen, Traced};
pub use store::PolicyStore;
