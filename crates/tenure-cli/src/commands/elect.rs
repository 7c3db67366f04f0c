//! `tenure elect`: one call, one answer, for scripts and cron jobs that have no process to keep alive.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use tenure::core::election::Term;
use tenure::core::{Incarnation, NodeId};
use tenure::{OneShot, Outcome, Withdrawal};

use crate::args::{Elect, InElection};
use crate::output::{self, Data};
use crate::{EXIT_NO, times};

pub(crate) async fn run(arguments: Elect) -> anyhow::Result<ExitCode> {
    Box::pin(super::interruptible(elect(arguments))).await
}

async fn elect(arguments: Elect) -> anyhow::Result<ExitCode> {
    let node = super::node(arguments.node.node)?;
    // Checked before the store is opened, so that mistakes in the times are reported first.
    tenure::core::session::Config::for_ttl(arguments.ttl).check()?;
    let InElection { place, election } = &arguments.election;
    let store = if arguments.release {
        super::open(place).await?.store
    } else {
        // The first candidate creates the store.
        tenure_store::open(&super::named(Some(place.store.clone()))?).await?
    };
    let elections = OneShot::new(store, &place.namespace, arguments.ttl)?;
    let elections = elections.with_election(election)?;
    let mut data = Data::new();
    if arguments.release {
        let refused = match elections.withdraw(&node, arguments.term.map(Term)).await? {
            Withdrawal::OtherTerm => Some("does not lead that term of"),
            Withdrawal::NotStanding if stands(&elections, &node).await? => {
                Some("was not entered with `tenure elect`, and is still a candidate of")
            }
            Withdrawal::Done | Withdrawal::NotStanding => None,
        };
        if let Some(refused) = refused {
            output::error(&anyhow::anyhow!(
                "{node} {refused} {election}; nothing was changed"
            ));
            return Ok(ExitCode::from(EXIT_NO));
        }
        data.write(&if arguments.json {
            json(&Released { released: &node })?
        } else {
            format!("{node} is no longer a candidate of {election}\n")
        });
        data.finish().context("cannot write the answer")?;
        return Ok(ExitCode::SUCCESS);
    }
    let outcome = elections.elect(&node).await?;
    data.write(&if arguments.json {
        json(&Document::of(&outcome, &node))?
    } else {
        text(&outcome, &node)
    });
    data.finish().context("cannot write the answer")?;
    if outcome.asked_by.is_some() {
        output::hint(
            "end the work that needs leadership, then run `tenure elect --release`: the next node leads at once",
        );
    }
    Ok(if outcome.is_leader() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_NO)
    })
}

/// Whether there is a candidate of this name, whether a running node or a program over HTTP.
async fn stands(elections: &OneShot, node: &NodeId) -> anyhow::Result<bool> {
    let candidates = elections.list_candidates().await?;
    Ok(candidates
        .iter()
        .any(|candidate| candidate.holder.node == *node))
}

fn text(outcome: &Outcome, node: &NodeId) -> String {
    match (&outcome.token, &outcome.leader) {
        (Some(token), _) => format!(
            "leader     {node}, this node\nterm       {}\ntoken      {token}\nvalid for  {}\n",
            token.term,
            times::duration(outcome.valid_for)
        ),
        (None, Some(leader)) => format!("leader     {}\nterm       {}\n", leader.node, leader.term),
        (None, None) => match (&outcome.asked_by, &outcome.reserved_for) {
            (Some(by), _) => format!("leader     no longer {node}: {by} asked it to step down\n"),
            (None, Some(to)) => format!("leader     nobody, reserved for {}\n", to.node),
            (None, None) => "leader     nobody yet\n".to_owned(),
        },
    }
}

fn json(document: &impl Serialize) -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(document)? + "\n")
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    node: &'a NodeId,
    is_leader: bool,
    leader: Option<&'a NodeId>,
    term: Option<u64>,
    token: Option<String>,
    valid_for_ms: u128,
    /// Who asked this node to end the term that it led.
    asked_by: Option<&'a NodeId>,
    /// The next leader, if there is no leader and a transfer was requested.
    reserved_for: Option<&'a NodeId>,
    reserved_for_incarnation: Option<Incarnation>,
}

#[derive(Debug, Serialize)]
struct Released<'a> {
    released: &'a NodeId,
}

impl<'a> Document<'a> {
    fn of(outcome: &'a Outcome, node: &'a NodeId) -> Self {
        let term = match (&outcome.token, &outcome.leader) {
            (Some(token), _) => Some(token.term),
            (None, leader) => leader.as_ref().map(|leader| leader.term),
        };
        let leader = outcome.leader.as_ref().map(|leader| &leader.node);
        Self {
            node,
            is_leader: outcome.is_leader(),
            leader: if outcome.is_leader() {
                Some(node)
            } else {
                leader
            },
            term: term.map(|term| term.0),
            token: outcome.token.map(|token| token.to_string()),
            valid_for_ms: outcome.valid_for.max(Duration::ZERO).as_millis(),
            asked_by: outcome.asked_by.as_ref(),
            reserved_for: outcome.reserved_for.as_ref().map(|to| &to.node),
            reserved_for_incarnation: outcome.reserved_for.as_ref().map(|to| to.incarnation),
        }
    }
}
