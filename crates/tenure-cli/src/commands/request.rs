//! What `resign` and `transfer` have in common: a request in the lease, and the wait for its effect.

use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use tenure::core::election::{Lease, RESERVED_MAX, Term};
use tenure::core::session::{Holder, ONE_SHOT};
use tenure::core::{ElectionName, Incarnation, NodeId};
use tenure::{Error, Follower, NamespaceView, Seen};
use tokio::time::timeout;

use crate::args::OfElection;
use crate::output::{self, Data};
use crate::{EXIT_NO, times};

/// How often to look at the lease on stores without hints.
const POLL: Duration = Duration::from_millis(500);

pub(super) struct Request {
    pub(super) of: OfElection,
    /// Who asks.
    pub(super) by: NodeId,
    /// Who is to lead; anybody else, if nobody is named.
    pub(super) to: Option<To>,
    /// How long to wait for it.
    pub(super) wait: Duration,
    pub(super) json: bool,
}

/// Who is to lead: a node or, where several candidates have its name, one of its sessions.
pub(super) struct To {
    node: NodeId,
    incarnation: Option<Incarnation>,
}

impl To {
    /// Reads `NODE` or `NODE/INCARNATION`.
    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        let (node, incarnation) = match text.split_once('/') {
            None => (text, None),
            Some((node, incarnation)) => {
                let incarnation = incarnation.parse::<Incarnation>();
                let no_session = || format!("{text:?} names no session");
                (node, Some(incarnation.with_context(no_session)?))
            }
        };
        let node = NodeId::new(node)?;
        Ok(Self { node, incarnation })
    }

    fn is(&self, holder: &Holder) -> bool {
        let is_it = |incarnation| incarnation == holder.incarnation;
        holder.node == self.node && self.incarnation.is_none_or(is_it)
    }
}

impl fmt::Display for To {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.node.fmt(formatter)
    }
}

/// The lease after the request.
#[derive(Debug, Serialize)]
struct Now<'a> {
    election: &'a str,
    /// `done`, `asked` (nobody waited for it) or `not_yet`.
    outcome: &'a str,
    leader: Option<NodeId>,
    term: u64,
}

impl Request {
    /// Asks, and waits until it has happened. An answer of no has been told when this returns.
    pub(super) async fn make(self) -> anyhow::Result<ExitCode> {
        let view = super::open(&self.of.place).await?.view;
        let election = super::which(&view, self.of.election.as_deref()).await?;
        let asked = Asked {
            request: self,
            election,
        };
        asked.make(&view).await
    }
}

/// A request, and the election that it is about.
struct Asked {
    request: Request,
    election: ElectionName,
}

impl Asked {
    async fn make(self, view: &NamespaceView) -> anyhow::Result<ExitCode> {
        let mut follower = view.follow(&self.election, POLL);
        let before = match follower.next().await? {
            Seen::Lease(lease) => lease,
            Seen::Missing => return self.refuse(&self.nobody_leads()),
            Seen::Unreadable(error) => return Err(error).context("cannot read the lease"),
        };
        if self.is_done(&before, None) {
            return self.tell("done", &before);
        }
        let asked = match &self.request.to {
            None => view.request_resign(&self.election, &self.request.by).await,
            Some(To { node, incarnation }) => {
                let (election, by) = (&self.election, &self.request.by);
                match incarnation {
                    None => view.request_transfer(election, node, by).await,
                    Some(incarnation) => {
                        let incarnation = *incarnation;
                        view.request_transfer_to(election, node, incarnation, by)
                            .await
                    }
                }
            }
        };
        match asked {
            Ok(()) => {}
            Err(
                error @ (Error::NoLeader { .. }
                | Error::NotACandidate { .. }
                | Error::AmbiguousCandidate { .. }),
            ) => {
                return self.refuse(&error);
            }
            Err(error) => return Err(error.into()),
        }
        if let Some(to) = &self.request.to
            && is_one_shot(view, &self.election, to).await?
        {
            let most = times::duration(RESERVED_MAX);
            output::warning(&format!(
                "{to} only calls now and then: it leads when it calls `elect`; until then nobody leads, for up to {most}"
            ));
        }
        if self.request.wait.is_zero() {
            return self.tell("asked", &before);
        }
        let mut last = before.clone();
        let waited = self.until_done(&mut follower, &before, &mut last);
        match timeout(self.request.wait, waited).await {
            Ok(done) => {
                done?;
                self.tell("done", &last)
            }
            // It has resigned; nobody has come forward.
            Err(_) if self.request.to.is_none() && last.holder().is_none() => {
                self.tell("done", &last)
            }
            Err(_) => self.tell("not_yet", &last),
        }
    }

    async fn until_done(
        &self,
        follower: &mut Follower,
        before: &Lease,
        last: &mut Lease,
    ) -> anyhow::Result<()> {
        loop {
            if let Seen::Lease(lease) = follower.next().await? {
                *last = *lease;
                if self.is_done(last, Some(before.term)) {
                    return Ok(());
                }
            }
        }
    }

    /// Whether the lease is as it was asked for: led by the one who was named, or in another term.
    fn is_done(&self, lease: &Lease, asked_in: Option<Term>) -> bool {
        match (&self.request.to, lease.holder()) {
            (_, None) => false,
            (Some(to), Some(holder)) => to.is(holder),
            (None, Some(_)) => asked_in.is_some_and(|term| lease.term > term),
        }
    }

    fn nobody_leads(&self) -> Error {
        Error::NoLeader {
            election: self.election.clone(),
        }
    }

    /// A clear no, unlike an error that leaves it open.
    fn refuse(&self, error: &Error) -> anyhow::Result<ExitCode> {
        output::error(&anyhow::anyhow!("{error}"));
        if let Error::NoLeader { .. } = error {
            output::hint("`tenure status` shows the candidates");
        }
        if let Error::AmbiguousCandidate { .. } = error {
            output::hint("name one of them in full: `tenure transfer NODE/INCARNATION`");
        }
        Ok(ExitCode::from(EXIT_NO))
    }

    fn tell(&self, outcome: &str, lease: &Lease) -> anyhow::Result<ExitCode> {
        let (election, term) = (&self.election, lease.term);
        let leader = lease.holder().map(|holder| &holder.node);
        let reserved = lease.reserved_for().map(|candidate| &candidate.node);
        let text = match (leader, outcome) {
            (Some(leader), "asked") => match &self.request.to {
                None => format!("{leader} was asked to resign\n"),
                Some(to) => format!("{leader} was asked to hand over to {to}\n"),
            },
            (Some(leader), _) => format!("{leader} leads {election}, term {term}\n"),
            (None, "asked") => {
                let before = reserved.map_or("nobody", NodeId::as_str);
                match &self.request.to {
                    None => {
                        format!("nobody leads {election}; it is no longer reserved for {before}\n")
                    }
                    Some(to) => format!(
                        "nobody leads {election}; it is reserved for {to}, no longer for {before}\n"
                    ),
                }
            }
            (None, _) => match reserved {
                None => format!("nobody leads {election}; term {term} has ended\n"),
                Some(to) => {
                    format!("nobody leads {election}, reserved for {to}; term {term} has ended\n")
                }
            },
        };
        let mut data = Data::new();
        data.write(&if self.request.json {
            let now = Now {
                election: election.as_str(),
                outcome,
                leader: leader.cloned(),
                term: term.0,
            };
            serde_json::to_string_pretty(&now)? + "\n"
        } else {
            text
        });
        data.finish().context("cannot write the answer")?;
        if outcome != "not_yet" {
            return Ok(ExitCode::SUCCESS);
        }
        let waited = times::duration(self.request.wait);
        output::warning(&format!("this has not happened within {waited}"));
        match reserved {
            None => output::hint(
                "the request stays in the lease: the leader may still be stopping its work",
            ),
            Some(to) => output::hint(&format!(
                "{to} leads if it calls in time, otherwise another candidate; `tenure resign` ends the reservation"
            )),
        }
        Ok(ExitCode::from(EXIT_NO))
    }
}

/// Whether a candidate is a caller, which nobody can tell that it is to lead.
async fn is_one_shot(
    view: &NamespaceView,
    election: &ElectionName,
    to: &To,
) -> Result<bool, Error> {
    let candidates = view.status(election).await?.candidates;
    let mut named = candidates
        .iter()
        .filter(|candidate| to.is(&candidate.holder));
    Ok(named.any(|candidate| candidate.about.labels.contains_key(ONE_SHOT)))
}
