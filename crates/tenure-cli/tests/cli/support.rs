//! Running the binary.

use std::ffi::OsString;
use std::process::{Command, Output};

/// The binary's path. Other users than the one who built it may need a copy.
pub(crate) fn binary() -> OsString {
    std::env::var_os("TENURE_TEST_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_tenure").into())
}

/// The binary, without variables that would change its output.
pub(crate) fn tenure(arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(arguments);
    for variable in [
        "TENURE_STORE",
        "TENURE_NAMESPACE",
        "TENURE_ELECTION",
        "TENURE_NODE",
        "TENURE_ADMIN_TOKEN",
        "TENURE_WORKER_TOKEN",
        "TENURE_READ_TOKEN",
        "TENURE_CONFIG",
        "TENURE_SERVER",
        "TENURE_API_TOKEN",
        "TENURE_LOG",
        "TRACEPARENT",
        "TRACESTATE",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        "NO_COLOR",
        "CLICOLOR_FORCE",
        "COLUMNS",
        "LINES",
    ] {
        command.env_remove(variable);
    }
    // A broker whose stderr is not a terminal would log JSON.
    command.env("TENURE_LOG_FORMAT", "text");
    command
}

/// The result of a run: exit code, stdout, stderr.
pub(crate) type Ended = (i32, String, String);

pub(crate) fn run(command: &mut Command) -> Ended {
    ended(command.output().expect("the binary can be started"))
}

pub(crate) fn ended(output: Output) -> Ended {
    let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
    (
        output.status.code().expect("it ended on its own"),
        text(output.stdout),
        text(output.stderr),
    )
}

/// Runs the binary and compares everything it printed.
pub(crate) fn check(arguments: &[&str], code: i32, stdout: &str, stderr: &str) {
    let ended = run(&mut tenure(arguments));
    assert_eq!(
        ended,
        (code, stdout.to_owned(), stderr.to_owned()),
        "tenure {arguments:?}"
    );
}

/// The URL of a server that this test needs. Without one the test prints that it is skipped, or fails where skipping
/// is not allowed.
#[cfg(any(feature = "object", feature = "postgres"))]
pub(crate) fn server(variable: &str) -> Option<String> {
    tenure_testkit::skip::server(variable)
}
