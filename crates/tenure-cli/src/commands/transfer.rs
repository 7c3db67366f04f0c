//! `tenure transfer`: asks whoever leads to hand over to one candidate.

use std::process::ExitCode;

use tenure::core::NodeId;

use super::request::Request;
use crate::args::Transfer;

pub(crate) async fn run(arguments: Transfer) -> anyhow::Result<ExitCode> {
    let request = Request {
        of: arguments.election,
        by: super::node(arguments.node.node)?,
        to: Some(NodeId::new(&arguments.to)?),
        wait: arguments.wait,
        json: arguments.json,
    };
    super::interruptible(request.make()).await
}
