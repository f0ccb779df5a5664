//! The tool-executor as a process of its own.

fn main() -> std::process::ExitCode {
    service::main("tool-executor", tool_executor::run)
}
