//! What the tests of several engines need.

/// The server that a test wants, from the environment; without it the test is skipped, out loud.
#[allow(clippy::print_stderr, reason = "a skipped test says so")]
#[allow(dead_code, reason = "not every selection of engines has a server")]
pub(crate) fn url(variable: &str) -> Option<String> {
    if let Ok(url) = std::env::var(variable) {
        return Some(url);
    }
    let all = std::env::var("TENURE_TEST_REQUIRE").is_ok_and(|value| value == "all");
    assert!(
        !all,
        "{variable} is not set, and TENURE_TEST_REQUIRE is all"
    );
    let test = std::thread::current().name().unwrap_or("test").to_owned();
    eprintln!("skipped: {test}: set {variable}, or run scripts/with-servers");
    None
}
