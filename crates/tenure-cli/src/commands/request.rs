//! What `resign` and `transfer` share: a request in the lease, and waiting for its effect.

use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use tenure::core::election::{Lease, RESERVED_MAX};
use tenure::core::session::{Holder, ONE_SHOT};
use tenure::core::{ElectionName, Incarnation, NodeId};
use tenure::{Candidate, Error, Follower, NamespaceView, Seen};
use tokio::time::timeout;

use crate::args::OfElection;
use crate::output::{self, Data};
use crate::{EXIT_NO, times};

/// How often to read the lease on stores without hints.
const POLL: Duration = Duration::from_millis(500);

pub(super) struct Request {
    pub(super) of: OfElection,
    /// The node that asks.
    pub(super) by: NodeId,
    /// The next leader; any other candidate if none is named.
    pub(super) to: Option<To>,
    /// How long to wait until it has happened.
    pub(super) wait: Duration,
    pub(super) json: bool,
}

/// The next leader: a node or, where several candidates have its name, one of its sessions.
pub(super) struct To {
    node: NodeId,
    /// The first digits of its incarnation.
    begins: Option<String>,
    /// The candidate's incarnation, once it is known which one is meant.
    incarnation: Option<Incarnation>,
}

/// The most digits that an incarnation has.
const DIGITS_MAX: usize = 32;

impl To {
    /// Reads `NODE` or `NODE/INCARNATION`, of which the first digits are enough.
    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        let (node, begins) = match text.split_once('/') {
            None => (text, None),
            Some((node, begins)) => {
                let is_digits = begins.bytes().all(|byte| byte.is_ascii_hexdigit());
                anyhow::ensure!(
                    is_digits && (1..=DIGITS_MAX).contains(&begins.len()),
                    "{text:?} names no session: an incarnation has 1 to {DIGITS_MAX} hexadecimal digits"
                );
                (node, Some(begins.to_ascii_lowercase()))
            }
        };
        Ok(Self {
            node: NodeId::new(node)?,
            begins,
            incarnation: None,
        })
    }

    /// Determines which candidate is meant. Returns a message if that is clearly impossible. If no candidate has the
    /// name, the request itself decides: a leader that was not heard from in time is not listed as a candidate.
    async fn resolve(
        &mut self,
        view: &NamespaceView,
        election: &ElectionName,
    ) -> Result<Option<String>, Error> {
        let candidates = view.standing(election).await?;
        let same_name: Vec<&Candidate> = candidates
            .iter()
            .filter(|candidate| candidate.holder.node == self.node)
            .collect();
        let mut meant = same_name.clone();
        if let Some(begins) = &self.begins {
            let of = |candidate: &Candidate| candidate.holder.incarnation.to_string();
            meant.retain(|candidate| of(candidate).starts_with(begins));
        }
        match (&meant[..], &self.begins) {
            ([one], _) => {
                self.incarnation = Some(one.holder.incarnation);
                Ok(None)
            }
            ([], Some(begins)) => Ok(Some(format!(
                "no candidate of the election {election} is {}/{begins}{}",
                self.node,
                match &same_name[..] {
                    [] => String::new(),
                    others => format!("; there is {}", in_full(others)),
                }
            ))),
            ([], None) => Ok(None),
            (several, begins) => {
                let begins = begins.as_ref().map_or(String::new(), |it| format!("/{it}"));
                Ok(Some(format!(
                    "{}{begins} names several candidates of the election {election}: {}",
                    self.node,
                    in_full(several)
                )))
            }
        }
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

/// Some candidates, written so that they can be used as arguments.
fn in_full(candidates: &[&Candidate]) -> String {
    let named = candidates.iter().take(NAMED_MAX).map(|candidate| {
        let Holder {
            node, incarnation, ..
        } = &candidate.holder;
        let kind = if candidate.about.labels.contains_key(ONE_SHOT) {
            "calls now and then"
        } else {
            "runs"
        };
        format!("{node}/{incarnation}, which {kind}")
    });
    named.collect::<Vec<_>>().join("; ")
}

/// The most candidates that a message names.
const NAMED_MAX: usize = 4;

/// The lease after the request.
#[derive(Debug, Serialize)]
struct Now<'a> {
    election: &'a str,
    /// `done`, `asked` (the caller did not wait) or `not_yet`.
    outcome: &'a str,
    leader: Option<NodeId>,
    term: u64,
}

impl Request {
    /// Sends the request, and waits until it has happened. A refusal has been printed when this returns.
    pub(super) async fn make(self) -> anyhow::Result<ExitCode> {
        let view = super::open(&self.of.place).await?.view;
        let election = super::which(&view, self.of.election.as_deref()).await?;
        let mut asked = Asked {
            request: self,
            election,
        };
        // Resolved first: if two candidates have the name, the one that is meant may not be the one that leads.
        if let Some(to) = &mut asked.request.to
            && let Some(no) = to.resolve(&view, &asked.election).await?
        {
            output::error(&anyhow::anyhow!("{no}"));
            output::hint("name one of them in full: `tenure transfer NODE/INCARNATION`");
            return Ok(ExitCode::from(EXIT_NO));
        }
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
        let stays = self.stays(&before);
        let asked = match &self.request.to {
            None => {
                let (status, _) = view.led(&self.election).await?;
                match status.lease {
                    Some(lease) if has_moved(&lease, status.lease_age) => {
                        if lease.holder().is_some() {
                            return self.tell("done", &lease);
                        }
                        // Another candidate is about to lead.
                        Ok(())
                    }
                    Some(lease) => {
                        let (election, by) = (&self.election, &self.request.by);
                        view.request_resign_of(election, &lease, by).await
                    }
                    None => Err(self.nobody_leads()),
                }
            }
            Some(To {
                node, incarnation, ..
            }) => {
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
            && !stays
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
            // It has resigned, and there is no other candidate.
            Err(_) if self.request.to.is_none() && last.holder().is_none() => {
                self.tell("done", &last)
            }
            Err(_) => self.tell("not_yet", &last),
        }
    }

    /// Whether the requested leader leads already, and was asked to resign.
    fn stays(&self, before: &Lease) -> bool {
        let is_leader = |to: &To| before.holder().is_some_and(|holder| to.is(holder));
        before.asked_to_go().is_some() && self.request.to.as_ref().is_some_and(is_leader)
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
                if self.is_done(last, Some(before)) {
                    return Ok(());
                }
            }
        }
    }

    /// Whether the request is fulfilled: the named candidate leads and is not asked to resign or, if none was named,
    /// there is a new term.
    ///
    /// A process that was asked to resign may already have told its work to stop, which the lease does not show: only
    /// in its next term does it certainly lead. A one-shot caller keeps leading once it is no longer asked.
    fn is_done(&self, lease: &Lease, before: Option<&Lease>) -> bool {
        let is_next = |before: &Lease| lease.term > before.term;
        match (&self.request.to, lease.holder()) {
            (_, None) => false,
            (Some(to), Some(holder)) => {
                let may_stop = |before: &Lease| {
                    self.stays(before) && before.lapsing().is_none() && !is_next(before)
                };
                to.is(holder) && lease.asked_to_go().is_none() && !before.is_some_and(may_stop)
            }
            (None, Some(_)) => before.is_some_and(is_next),
        }
    }

    fn nobody_leads(&self) -> Error {
        Error::NoLeader {
            election: self.election.clone(),
        }
    }

    /// Prints a refusal, which is a clear no, unlike an error that leaves the outcome open.
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
                Some(_) if self.stays(lease) => format!("{leader} was asked to keep leading\n"),
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
        let is_led_by_it = match (&self.request.to, lease.holder()) {
            (Some(to), Some(holder)) => to.is(holder),
            _ => false,
        };
        match reserved {
            None if is_led_by_it => output::hint(
                "it had been asked to step down: it keeps leading if it has not begun to stop its work; otherwise it leads again after that",
            ),
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

/// Whether leadership has moved since this process was started, or is moving: if several processes ask the leader to
/// resign at the same time, they all mean the same leader. Compares two durations, each measured by one clock.
fn has_moved(lease: &Lease, age: Option<Duration>) -> bool {
    let running = running_for().unwrap_or_default();
    let recent = match (lease.holder(), lease.reserved_for()) {
        (Some(_), _) => running,
        (None, None) => running.max(HANDOVER),
        // Reserved for another: the request ends that reservation.
        (None, Some(_)) => return false,
    };
    // A lease with a request was last rewritten by that request, and the very first leader has not replaced anyone.
    let is_of_a_move = lease.request.is_none() && !lease.history.is_empty();
    is_of_a_move && age.is_some_and(|age| age < recent)
}

/// A request made while there is no leader is meant for the leader that resigned less than this ago.
const HANDOVER: Duration = Duration::from_secs(1);

/// How long this process has existed, including the time before its program was loaded. Known only on Linux.
fn running_for() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The program's name may contain anything, even spaces and parentheses, so look for its end from the right.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: u64 = fields.split_ascii_whitespace().nth(19)?.parse().ok()?;
    let per_second = rustix::param::clock_ticks_per_second();
    let started = Duration::from_nanos(1_000_000_000 / per_second) * u32::try_from(ticks).ok()?;
    let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
    let seconds: f64 = uptime.split_ascii_whitespace().next()?.parse().ok()?;
    let now = Duration::try_from_secs_f64(seconds).ok()?;
    Some(now.saturating_sub(started))
}

/// Whether a candidate is a one-shot caller, which cannot be notified that it should lead.
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
