//! A session that has stood is never made again by its process, whatever happened to the object.

use tenure_core::node::Request;
use tenure_core::{Expect, Moment};

use super::Violation;
use crate::process::Process;

/// A process sends a request. What was sent before it knew that it had joined may still arrive later.
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
