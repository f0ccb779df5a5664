//! The observer, as a process.

fn main() -> std::process::ExitCode {
    service::main("observer", observer::run)
}
