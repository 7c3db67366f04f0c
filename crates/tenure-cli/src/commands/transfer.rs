//! `tenure transfer`: asks the leader to hand over to one candidate.

use std::process::ExitCode;

use super::remote_change::Asked;
use super::request::{Request, To};
use crate::args::Transfer;

pub(crate) async fn run(arguments: Transfer) -> anyhow::Result<ExitCode> {
    if let Some(server) = arguments.broker.named() {
        let asked = Asked {
            election: arguments.election.election,
            to: Some(arguments.to),
            wait: arguments.wait,
            json: arguments.json,
        };
        return Box::pin(asked.make(server)).await;
    }
    let request = Request {
        of: arguments.election,
        by: super::node(arguments.node.node)?,
        to: Some(To::parse(&arguments.to)?),
        wait: arguments.wait,
        json: arguments.json,
    };
    super::interruptible(request.make()).await
}
