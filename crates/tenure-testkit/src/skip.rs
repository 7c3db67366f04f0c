//! Skips tests that lack something, never silently.
//!
//! A test that passes without having tested anything looks like one that has, and the output of passing tests is
//! thrown away. So skipped tests are also written to the file that `TENURE_TEST_SKIPPED` names, and `scripts/test`
//! shows it at the end. `TENURE_TEST_REQUIRE` says what may be skipped at all:
//!
//! - `all`: nothing; the test fails.
//! - `installed`: tests of servers that could not be installed, which `TENURE_TEST_MISSING` lists by their variables,
//!   and tests that need permissions that this user does not have.
//! - otherwise: anything.

use std::fs::OpenOptions;
use std::io::Write;

/// The server that a test needs, from the environment; without it the test is skipped, or fails.
#[must_use]
#[track_caller]
pub fn server(variable: &str) -> Option<String> {
    let url = std::env::var(variable).ok().filter(|url| !url.is_empty());
    if url.is_none() {
        let missing = std::env::var("TENURE_TEST_MISSING").unwrap_or_default();
        let may_miss = missing.split(',').any(|name| name == variable);
        let why = format!("set {variable}, or run scripts/with-servers");
        assert!(
            !is_required("all") && (may_miss || !is_required("installed")),
            "{variable} is not set, and nothing may be skipped: {why}"
        );
        note(&why);
    }
    url
}

/// Reports that a test, or a part of it, is skipped, since `what` is not available here. Fails where that is not
/// allowed.
#[track_caller]
pub fn for_want_of(what: &str) {
    assert!(
        !is_required("all"),
        "nothing may be skipped, and this test needs {what}"
    );
    note(&format!("needs {what}"));
}

/// The same for things that few machines have: never required, but always reported.
#[expect(clippy::print_stderr, reason = "a skipped test says so")]
pub fn note(why: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let line = format!("skipped: {test}: {why}\n");
    eprint!("{line}");
    let Some(path) = std::env::var_os("TENURE_TEST_SKIPPED") else {
        return;
    };
    let file = OpenOptions::new().append(true).create(true).open(path);
    // One write, so that lines of several tests do not mix.
    if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
        eprintln!("cannot write down what is skipped: {error}");
    }
}

fn is_required(what: &str) -> bool {
    std::env::var("TENURE_TEST_REQUIRE").is_ok_and(|value| value == what)
}
