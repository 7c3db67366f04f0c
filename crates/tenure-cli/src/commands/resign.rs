//! `tenure resign`: asks the leader to let someone else lead.

use std::process::ExitCode;

use super::remote_change::Asked;
use super::request::Request;
use crate::args::Resign;

pub(crate) async fn run(arguments: Resign) -> anyhow::Result<ExitCode> {
    if let Some(server) = arguments.broker.named() {
        let asked = Asked {
            election: arguments.election.election,
            to: None,
            wait: arguments.wait,
            json: arguments.json,
        };
        return Box::pin(asked.make(server)).await;
    }
    let request = Request {
        of: arguments.election,
        by: super::node(arguments.node.node)?,
        to: None,
        wait: arguments.wait,
        json: arguments.json,
    };
    super::interruptible(request.make()).await
}
