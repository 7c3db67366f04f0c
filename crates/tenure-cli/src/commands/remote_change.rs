//! `resign` and `transfer` through a broker, which passes the request on to the leader of the queue.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use tenure::core::{ElectionName, NodeId};
use tenure_client::Client;
use tenure_client::api::Election;
use tokio::time::{Instant, sleep};

use super::at_server::{self, document, write};
use crate::args::AtServer;
use crate::output::{self, Hinted};
use crate::{EXIT_NO, times};

/// The one election that a broker can do this for.
const QUEUE: &str = "tenure.queue";

/// How often to check whether it has happened.
const POLL: Duration = Duration::from_millis(500);

/// The request.
pub(super) struct Asked {
    pub(super) election: Option<String>,
    /// The next leader; any other candidate if none is named.
    pub(super) to: Option<String>,
    pub(super) wait: Duration,
    pub(super) json: bool,
}

impl Asked {
    /// Sends the request, and waits until it has happened.
    pub(super) async fn make(self, server: AtServer) -> anyhow::Result<ExitCode> {
        let client = at_server::client(&server).await?;
        super::interruptible(at_server::no_is_an_answer(self.ask(&client))).await
    }

    async fn ask(self, client: &Client) -> anyhow::Result<ExitCode> {
        let election = ElectionName::new(self.election.as_deref().unwrap_or(QUEUE))?;
        if election.as_str() != QUEUE {
            let problem = format!("a broker can be asked about {QUEUE} only, not about {election}");
            let hint = "name the store with --store instead of --server";
            return Err(Hinted::new(problem, hint).into());
        }
        let to = self.to.as_deref().map(node).transpose()?;
        let before = client.election(&election).await?;
        let Some(leader) = before.leader.as_ref().map(|leader| leader.node.clone()) else {
            output::error(&anyhow::anyhow!("nobody leads {election}"));
            output::hint("`tenure status` shows the candidates");
            return Ok(ExitCode::from(EXIT_NO));
        };
        if to.as_ref() == Some(&leader) {
            return self.tell("done", &before);
        }
        match &to {
            None => client.resign_leader().await?,
            Some(to) => client.transfer_leader(to).await?,
        }
        if self.wait.is_zero() {
            return self.tell("asked", &before);
        }
        let end = Instant::now() + self.wait;
        let mut last = before.clone();
        while Instant::now() < end {
            sleep(POLL).await;
            // While leadership moves, a broker may not answer for a moment.
            let Ok(now) = client.election(&election).await else {
                continue;
            };
            let is_done = now.leader.as_ref().is_some_and(|leader| match &to {
                Some(to) => leader.node == *to,
                None => Some(leader.term) > before.term,
            });
            last = now;
            if is_done {
                return self.tell("done", &last);
            }
        }
        if to.is_none() && last.leader.is_none() {
            return self.tell("done", &last);
        }
        self.tell("not_yet", &last)?;
        let waited = times::duration(self.wait);
        output::warning(&format!("this has not happened within {waited}"));
        output::hint("the request stays in the lease: the leader may still be stopping its work");
        Ok(ExitCode::from(EXIT_NO))
    }

    /// Prints the same as with the store.
    fn tell(&self, outcome: &str, election: &Election) -> anyhow::Result<ExitCode> {
        let leader = election.leader.as_ref().map(|leader| &leader.node);
        let term = election.term.unwrap_or_default();
        write(&if self.json {
            document(
                &json!({"election": QUEUE, "outcome": outcome, "leader": leader, "term": term}),
            )?
        } else {
            match (leader, outcome, &self.to) {
                (Some(leader), "asked", None) => format!("{leader} was asked to resign\n"),
                (Some(leader), "asked", Some(to)) => {
                    format!("{leader} was asked to hand over to {to}\n")
                }
                (Some(leader), ..) => format!("{leader} leads {QUEUE}, term {term}\n"),
                (None, ..) => format!("nobody leads {QUEUE}; term {term} has ended\n"),
            }
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

fn node(text: &str) -> anyhow::Result<NodeId> {
    if text.contains('/') {
        let problem = "a broker finds a candidate by its name only, without an incarnation";
        return Err(Hinted::new(problem, "name the store with --store instead of --server").into());
    }
    Ok(NodeId::new(text)?)
}
