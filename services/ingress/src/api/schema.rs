//! The kernel's types in the API description: their schemas come from the kernel itself, not from a second telling.

use std::borrow::Cow;

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema};
use utoipa::{PartialSchema, ToSchema};

macro_rules! kernel_types {
    ($($name:ident = $path:path;)*) => {
        $(
            /// Stands for the kernel's type of this name.
            pub(crate) struct $name;

            impl PartialSchema for $name {
                /// A place-holder: [`definitions`] has the real one.
                fn schema() -> RefOr<Schema> {
                    ObjectBuilder::new().into()
                }
            }

            impl ToSchema for $name {
                fn name() -> Cow<'static, str> {
                    stringify!($name).into()
                }
            }
        )*

        /// The JSON Schemas of the kernel's types, by name, and of all that they refer to.
        pub(crate) fn definitions() -> Map<String, Value> {
            let mut settings = SchemaSettings::draft2020_12();
            settings.definitions_path = "/components/schemas".into();
            let mut generator = settings.into_generator();
            $(generator.subschema_for::<$path>();)*
            generator.take_definitions(true)
        }
    };
}

kernel_types! {
    Action = kernel::action::Action;
    ActionConclusion = kernel::action::ActionConclusion;
    AgentSpec = kernel::agent::AgentSpec;
    ArtifactRef = kernel::call::ArtifactRef;
    ArgumentOrigin = kernel::call::ArgumentOrigin;
    Block = kernel::Block;
    CallStatus = kernel::call::CallStatus;
    Cause = kernel::Cause;
    Criterion = kernel::agent::Criterion;
    Condition = kernel::wait::Condition;
    Economics = kernel::economics::Economics;
    Ending = kernel::event::Ending;
    ExternalRef = kernel::event::ExternalRef;
    Limits = kernel::budget::Limits;
    Manifest = kernel::slice::Manifest;
    PlanStep = kernel::event::PlanStep;
    Report = kernel::report::Report;
    ScheduleSpec = kernel::schedule::ScheduleSpec;
    Trust = kernel::Trust;
    Usage = kernel::budget::Usage;
    WakeKind = kernel::wait::WakeKind;
}
