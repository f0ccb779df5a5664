//! The artifact service, as a process.

fn main() -> std::process::ExitCode {
    service::main("artifact", artifact::run)
}
