//! `tenure watch`: prints every transition of an election. It only reads, and is not a candidate.
//!
//! A transition that came and went between two looks is taken from the lease's history. A leader that died leaves its
//! lease unchanged: its end is seen when a successor is elected.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use tenure::Seen;
use tenure::core::Lineage;
use tenure::core::election::{HISTORY_MAX, Lease, LeaseState, RequestKind, Term};

use crate::args::Watch;
use crate::output::{self, Data, printable};
use crate::signals::Signals;
use crate::times;

/// How long to wait after the store failed.
const RETRY: Duration = Duration::from_secs(1);

pub(crate) async fn run(arguments: Watch) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::new()?;
    tokio::select! {
        result = watch(arguments) => result,
        // The only way to end a watch.
        _ = signals.next() => Ok(ExitCode::SUCCESS),
    }
}

async fn watch(arguments: Watch) -> anyhow::Result<ExitCode> {
    if let Some(server) = arguments.broker.named() {
        // A named election is polled: events cover only the brokers' own, and much else.
        if let Some(election) = arguments.election.election {
            return served::watch(server, election, arguments.poll, arguments.json).await;
        }
        return events::watch(&server, arguments.kinds, arguments.json).await;
    }
    let opened = super::open(&arguments.election.place).await?;
    let election = super::which(&opened.view, arguments.election.election.as_deref()).await?;
    let mut follower = opened.view.follow(&election, arguments.poll);
    let mut observer = Observer::default();
    let mut data = Data::new();
    let mut is_troubled = false;
    loop {
        let seen = match follower.next().await {
            Ok(seen) => seen,
            Err(error) if !is_troubled && observer.is_new() => return Err(error.into()),
            Err(error) => {
                if !std::mem::replace(&mut is_troubled, true) {
                    output::warning(&format!("{:#}, trying again", anyhow::Error::from(error)));
                }
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        is_troubled = false;
        for transition in observer.see(&seen) {
            data.write(&if arguments.json {
                transition.json(election.as_str())?
            } else {
                format!("{}  {}\n", times::rfc3339(times::now()), transition.text())
            });
        }
        if data.is_over() {
            // The reader is gone.
            data.finish().context("cannot write the output")?;
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// What happened in an election.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Transition {
    Elected {
        node: String,
        term: u64,
    },
    Ended {
        node: String,
        term: u64,
        reason: String,
    },
    Vacant {
        term: u64,
    },
    Reserved {
        node: String,
        term: u64,
    },
    ResignRequested {
        by: String,
        term: u64,
    },
    TransferRequested {
        by: String,
        to: String,
        term: u64,
    },
    NeverHeld,
    Anomaly {
        what: String,
    },
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    at: String,
    election: &'a str,
    #[serde(flatten)]
    transition: &'a Transition,
}

impl Transition {
    fn text(&self) -> String {
        match self {
            Transition::Elected { node, term } => format!("elected {node} term {term}"),
            Transition::Ended { node, term, reason } => {
                format!("ended {node} term {term}: {}", printable(reason))
            }
            Transition::Vacant { term } => format!("vacant since term {term}"),
            Transition::Reserved { node, term } => {
                format!("reserved for {node} since term {term}")
            }
            Transition::ResignRequested { by, term } => {
                format!("{by} asked the leader of term {term} to resign")
            }
            Transition::TransferRequested { by, to, term } => {
                format!("{by} asked the leader of term {term} to hand over to {to}")
            }
            Transition::NeverHeld => "no leader was ever elected".to_owned(),
            Transition::Anomaly { what } => format!("anomaly: {}", printable(what)),
        }
    }

    /// One line.
    fn json(&self, election: &str) -> serde_json::Result<String> {
        let document = Document {
            at: times::rfc3339(times::now()),
            election,
            transition: self,
        };
        Ok(serde_json::to_string(&document)? + "\n")
    }
}

/// Compares each lease with the one before, and derives what happened in between.
#[derive(Debug, Default)]
struct Observer {
    looked: bool,
    last: Option<Lease>,
    /// The highest term so far, even of a lease that is gone.
    highest: Option<(Lineage, Term)>,
}

impl Observer {
    fn is_new(&self) -> bool {
        !self.looked
    }

    fn see(&mut self, seen: &Seen) -> Vec<Transition> {
        let is_first = !std::mem::replace(&mut self.looked, true);
        let anomaly = |what: String| vec![Transition::Anomaly { what }];
        match seen {
            Seen::Missing if is_first => vec![Transition::NeverHeld],
            Seen::Missing => {
                self.last = None;
                anomaly(
                    "the lease was deleted; candidates wait a full ttl before they continue".into(),
                )
            }
            Seen::Unreadable(error) => anomaly(format!("cannot read the lease: {error}")),
            Seen::Lease(lease) => self.see_lease(lease),
        }
    }

    fn see_lease(&mut self, lease: &Lease) -> Vec<Transition> {
        let mut transitions = Vec::new();
        if let Some((lineage, term)) = self.highest {
            if lineage != lease.lineage {
                let what = format!("the election was started over, after term {term}");
                transitions.push(Transition::Anomaly { what });
            } else if lease.term < term {
                let (now, what) = (lease.term, "the lease went back from term");
                let what = format!("{what} {term} to {now}: restored from an older copy");
                transitions.push(Transition::Anomaly { what });
            } else if self.was_made_again(lease) {
                let what = "the lease was deleted and made again".to_owned();
                transitions.push(Transition::Anomaly { what });
            }
        }
        self.tell_of_past(lease, &mut transitions);
        self.tell_of_present(lease, &mut transitions);
        self.highest = Some((lease.lineage, lease.term));
        self.last = Some(lease.clone());
        transitions
    }

    /// Whether the lease was deleted between two looks. A successor notes the previous term in the history, unless
    /// there was no lease to read it from.
    fn was_made_again(&self, lease: &Lease) -> bool {
        let Some(last) = &self.last else {
            return false;
        };
        let (Some(before), now) = (last.holder(), lease.holder()) else {
            return false;
        };
        // A term belongs to one session. With the same term and another session, the first lease was lost before
        // another process had seen its term.
        if last.term == lease.term {
            return now.is_some_and(|now| now.incarnation != before.incarnation);
        }
        let is_noted = lease.history.iter().any(|past| past.term == last.term);
        // A full history drops its oldest terms.
        let is_whole = lease.history.len() < HISTORY_MAX;
        last.term < lease.term && !is_noted && is_whole
    }

    /// Terms that have ended since the last look, including those that also began since. The first look reports none.
    fn tell_of_past(&self, lease: &Lease, transitions: &mut Vec<Transition>) {
        let Some(last) = &self.last else {
            return;
        };
        let was_held = last.holder().is_some();
        for past in &lease.history {
            let is_the_last = past.term == last.term;
            if past.term < last.term || (is_the_last && !was_held) {
                continue;
            }
            let (node, term) = (past.node.to_string(), past.term.0);
            if !is_the_last {
                transitions.push(Transition::Elected {
                    node: node.clone(),
                    term,
                });
            }
            transitions.push(Transition::Ended {
                node,
                term,
                reason: past.reason.clone(),
            });
        }
    }

    fn tell_of_present(&self, lease: &Lease, transitions: &mut Vec<Transition>) {
        let term = lease.term.0;
        let is_new = self
            .last
            .as_ref()
            .is_none_or(|last| (last.term, &last.state) != (lease.term, &lease.state));
        if is_new {
            transitions.push(match &lease.state {
                LeaseState::Held { holder, .. } => Transition::Elected {
                    node: holder.node.to_string(),
                    term,
                },
                LeaseState::Vacant => Transition::Vacant { term },
                LeaseState::Reserved { candidate } => Transition::Reserved {
                    node: candidate.node.to_string(),
                    term,
                },
            });
        }
        let before = self.last.as_ref().and_then(|last| last.request.as_ref());
        if let Some(request) = lease.request.as_ref().filter(|&now| Some(now) != before) {
            let by = request.by.to_string();
            transitions.push(match &request.kind {
                RequestKind::Resign => Transition::ResignRequested { by, term },
                RequestKind::Transfer { to } => Transition::TransferRequested {
                    by,
                    to: to.node.to_string(),
                    term,
                },
            });
        }
    }
}

mod events;
mod served;

#[cfg(test)]
mod tests;
