//! Asks people, and takes their decisions.

fn main() -> std::process::ExitCode {
    service::main("approval", approval::run)
}
