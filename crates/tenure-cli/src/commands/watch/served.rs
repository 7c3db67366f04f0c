//! Polls an election through a broker.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use tenure::core::ElectionName;
use tenure_client::api::{Election, LeaderRequestKind};

use super::{RETRY, Transition};
use crate::args::AtServer;
use crate::commands::at_server;
use crate::output::{self, Data};
use crate::times;

pub(super) async fn watch(
    server: AtServer,
    election: String,
    poll: Duration,
    is_json: bool,
) -> anyhow::Result<ExitCode> {
    let election = ElectionName::new(&election)?;
    let client = at_server::client(&server).await?;
    let mut last: Option<Election> = None;
    let mut data = Data::new();
    let mut is_troubled = false;
    loop {
        let now = match client.election(&election).await {
            Ok(now) => now,
            Err(error) if last.is_none() => return Err(error.into()),
            Err(error) => {
                if !std::mem::replace(&mut is_troubled, true) {
                    output::warning(&format!("{:#}, trying again", anyhow::Error::from(error)));
                }
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        is_troubled = false;
        for transition in transitions(last.as_ref(), &now) {
            data.write(&if is_json {
                transition.json(election.as_str())?
            } else {
                format!("{}  {}\n", times::rfc3339(times::now()), transition.text())
            });
        }
        if data.is_over() {
            data.finish().context("cannot write the output")?;
            return Ok(ExitCode::SUCCESS);
        }
        last = Some(now);
        tokio::time::sleep(poll).await;
    }
}

/// What happened between two looks; the first look gives the present state.
fn transitions(last: Option<&Election>, now: &Election) -> Vec<Transition> {
    let mut found = Vec::new();
    let leads = |election: &Election| election.leader.as_ref().map(|leader| leader.term);
    let is_new = last.is_none_or(|last| leads(last) != leads(now));
    let term = now.term.unwrap_or_default();
    match (&now.leader, &now.reserved_for) {
        (Some(leader), _) if is_new => found.push(Transition::Elected {
            node: leader.node.to_string(),
            term: leader.term,
        }),
        (None, Some(node)) if last.is_none_or(|last| last.reserved_for != now.reserved_for) => {
            found.push(Transition::Reserved {
                node: node.to_string(),
                term,
            });
        }
        (None, None) if is_new && now.term.is_none() => found.push(Transition::NeverHeld),
        (None, None) if is_new => found.push(Transition::Vacant { term }),
        _ => {}
    }
    let request = now.request.as_ref();
    if let Some(request) = request.filter(|_| last.is_none_or(|last| last.request != now.request)) {
        let by = request.by.to_string();
        found.push(match (&request.kind, &request.to) {
            (LeaderRequestKind::Transfer, Some(to)) => Transition::TransferRequested {
                by,
                to: to.to_string(),
                term,
            },
            _ => Transition::ResignRequested { by, term },
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn election(document: serde_json::Value) -> Election {
        serde_json::from_value(document).unwrap()
    }

    #[test]
    fn a_change_is_told_once() {
        let never = election(json!({"leader": null, "term": null}));
        let led = |node: &str, term: u64| {
            election(json!({"leader": {"node": node, "term": term}, "term": term}))
        };
        let vacant = election(json!({"leader": null, "term": 1}));
        let mut asked = led("a", 1);
        asked.request = election(json!({"leader": null, "term": 1,
            "request": {"kind": "transfer", "by": "me", "to": "b"}}))
        .request;
        let looks = [
            never.clone(),
            never,
            led("a", 1),
            asked.clone(),
            asked,
            vacant.clone(),
            vacant,
            led("b", 2),
            led("b", 3),
        ];
        let mut last = None;
        let mut told = Vec::new();
        for now in &looks {
            told.extend(transitions(last, now).iter().map(Transition::text));
            last = Some(now);
        }
        assert_eq!(
            told,
            [
                "no leader was ever elected",
                "elected a term 1",
                "me asked the leader of term 1 to hand over to b",
                "vacant since term 1",
                "elected b term 2",
                "elected b term 3",
            ]
        );
    }
}
