//! A process never creates its session a second time, whatever happened to the object.

use tenure_core::node::Request;
use tenure_core::{Expect, Moment};

use super::Violation;
use crate::process::Process;

/// Checks a request. Requests sent before the process knew that it had joined may still arrive later.
pub fn check(process: &Process, request: &Request) -> Result<(), Violation> {
    let Request::WriteSession { record, expect } = request else {
        return Ok(());
    };
    let has_joined = process.node.trusted_until() > Moment::default();
    if !has_joined || *expect != Expect::Absent {
        return Ok(());
    }
    Err(Violation::new(
        "a session is made once",
        format!(
            "{} makes its own again with #{}",
            process.label, record.counter
        ),
    ))
}
