//! The artifact service.

use std::process::ExitCode;

fn main() -> ExitCode {
    service::main("artifact", artifact::run)
}
