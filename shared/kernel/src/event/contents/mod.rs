//! What each type of event says.

/// Defines the content of an event type.
macro_rules! content {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident : $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
            pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }
        )*
    };
}

mod call;
mod kept;
mod run;
mod turn;
mod wait;

pub use call::*;
pub use kept::*;
pub use run::*;
pub use turn::*;
pub use wait::*;
