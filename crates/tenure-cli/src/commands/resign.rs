//! `tenure resign`: asks whoever leads to let someone else lead.

use std::process::ExitCode;

use super::request::Request;
use crate::args::Resign;

pub(crate) async fn run(arguments: Resign) -> anyhow::Result<ExitCode> {
    let request = Request {
        of: arguments.election,
        by: super::node(arguments.node.node)?,
        to: None,
        wait: arguments.wait,
        json: arguments.json,
    };
    super::interruptible(request.make()).await
}
