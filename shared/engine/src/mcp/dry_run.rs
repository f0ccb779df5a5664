//! Whether what the operator calls a dry run of a server's tool is one.

use kernel::tool::{DryRun, Effect, ToolSpec};

use crate::catalog::unnamed;

/// Takes a dry run by arguments away that would be the call itself, or has nothing to try out: of a tool that only reads, with
/// no argument, or with one that the schema does not name. A server usually drops what it does not know, and does what it would
/// without. Gives that argument, if there is one.
pub fn take_unsound_dry_run(spec: &mut ToolSpec) -> Option<String> {
    let Some(DryRun::Arguments(set)) = &spec.dry_run else { return None };
    let tries_nothing = set.is_empty() || spec.effect == Effect::Read;
    let unknown = unnamed(set, &spec.input).filter(|_| !tries_nothing).map(str::to_owned);
    if tries_nothing || unknown.is_some() {
        spec.dry_run = None;
    }
    unknown
}
