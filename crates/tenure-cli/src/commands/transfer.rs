//! `tenure transfer`: asks whoever leads to hand over to one candidate.

use std::process::ExitCode;

use super::request::{Request, To};
use crate::args::Transfer;

pub(crate) async fn run(arguments: Transfer) -> anyhow::Result<ExitCode> {
    let request = Request {
        of: arguments.election,
        by: super::node(arguments.node.node)?,
        to: Some(To::parse(&arguments.to)?),
        wait: arguments.wait,
        json: arguments.json,
    };
    super::interruptible(request.make()).await
}
