//! Lease and fence as they are stored.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::record::{self, RecordError};
use crate::session::Holder;
use crate::{Incarnation, Lineage, NodeId, Nonce, Wall};

/// How many past terms a lease remembers.
pub const HISTORY_MAX: usize = 20;

/// The longest that a lease stays reserved, counted by each waiting candidate from when it first saw that. Nobody leads
/// meanwhile, and the session that it is reserved for may belong to a script that is not called for a day.
pub const RESERVED_MAX: Duration = Duration::from_secs(30);

/// One tenure of one leader; its number only grows.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Term(#[serde(deserialize_with = "record::growing")] pub u64);

/// The lease, at `<namespace>/elections/<name>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lease {
    /// Copied from the fence, to restore it if it gets lost.
    pub lineage: Lineage,
    /// The current term, or the last one while nobody leads.
    pub term: Term,
    /// Who leads.
    pub state: LeaseState,
    /// What someone asks of the holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Request>,
    /// The last terms that ended, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<PastTerm>,
    /// Makes every write differ from every other, so that each can be recognised.
    pub writer: Writer,
}

/// Who leads.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseState {
    /// This session leads, or is about to.
    Held {
        /// The session.
        holder: Holder,
        /// When the term began, for people.
        since: Wall,
    },
    /// Nobody leads; any candidate may take the lease.
    Vacant,
    /// Nobody leads; only this session may take the lease for a while, see [`RESERVED_MAX`].
    Reserved {
        /// The session.
        candidate: Holder,
    },
}

/// What someone asks of the holder.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Request {
    /// What is asked.
    pub kind: RequestKind,
    /// Who asks, for people.
    pub by: NodeId,
    /// The holder is a caller, which cannot be notified: it makes calls now and then, and none of them extends its term
    /// once this is asked. When the request has stood for its ttl it no longer trusts itself, even if its session is
    /// renewed for other elections, and others take the lease. Absent in what older versions wrote.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lapses: bool,
}

/// What can be asked of the holder.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestKind {
    /// Let someone else lead.
    Resign,
    /// Let this session lead.
    Transfer {
        /// The session.
        to: Holder,
    },
}

/// A term that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PastTerm {
    /// Its number.
    pub term: Term,
    /// Who led.
    pub node: NodeId,
    /// Which process.
    pub incarnation: Incarnation,
    /// When it began, on the leader's clock.
    pub since: Wall,
    /// When its end was written, on the writer's clock.
    pub until: Wall,
    /// Why it ended.
    pub reason: String,
    /// How long it lasted, by the clock of the node that wrote its end, if that node saw it begin. `since` and `until`
    /// may come from two hosts, so they do not show this. Absent in what older versions wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lasted_ms: Option<u64>,
    /// How long nobody led after it, by the clock of the next leader, if that one saw it end. Absent in what older
    /// versions wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vacant_ms: Option<u64>,
}

/// How a lease is replaced by the next one.
pub(crate) struct Change<'a> {
    /// Why the term that was under way ends, if one was.
    pub(crate) reason: &'a str,
    /// When that is, by the wall clock.
    pub(crate) at: Wall,
    /// How long the term lasted or, if there was none, how long nobody led; by a clock that cannot be set.
    pub(crate) stood: Option<Duration>,
}

/// Names one write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Writer {
    /// Whose write.
    pub incarnation: Incarnation,
    /// Which of its writes.
    pub counter: u64,
    /// Tells it from a write by a copy of this process. Absent in what older versions wrote.
    #[serde(default, skip_serializing_if = "Nonce::is_none")]
    pub nonce: Nonce,
}

/// The fence, at `<namespace>/fences/<name>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fence {
    /// The lineage of the term.
    pub lineage: Lineage,
    /// The highest term ever installed.
    pub term: Term,
    /// Who installed it.
    pub holder: Holder,
}

impl Lease {
    /// One line of JSON.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        record::encode(self)
    }

    /// Reads a stored lease.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        record::decode(bytes)
    }

    /// The session that holds the lease.
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        match &self.state {
            LeaseState::Held { holder, .. } => Some(holder),
            LeaseState::Vacant | LeaseState::Reserved { .. } => None,
        }
    }

    /// The session that the lease is reserved for.
    #[must_use]
    pub fn reserved_for(&self) -> Option<&Holder> {
        match &self.state {
            LeaseState::Reserved { candidate } => Some(candidate),
            LeaseState::Vacant | LeaseState::Held { .. } => None,
        }
    }

    /// The holder, if a request ends its term once the request has stood for the holder's ttl; with the successor, if
    /// one is named. `None` if the holder is asked to go on.
    #[must_use]
    pub fn lapsing(&self) -> Option<(&Holder, Option<&Holder>)> {
        let holder = self.holder()?;
        let request = self.asked_to_go().filter(|request| request.lapses)?;
        match &request.kind {
            RequestKind::Resign => Some((holder, None)),
            RequestKind::Transfer { to } => Some((holder, Some(to))),
        }
    }

    /// The request to its holder, if that ends the term. A request to hand over to itself does not: it asks the holder
    /// to go on.
    #[must_use]
    pub fn asked_to_go(&self) -> Option<&Request> {
        let holder = self.holder()?;
        let request = self.request.as_ref()?;
        let is_to_holder = matches!(&request.kind,
            RequestKind::Transfer { to } if to.incarnation == holder.incarnation);
        (!is_to_holder).then_some(request)
    }

    /// Whether this is asked of its holder already.
    #[must_use]
    pub fn is_asked(&self, request: &Request) -> bool {
        let asked = self.request.as_ref();
        let is_held = self.holder().is_some();
        is_held
            && asked
                .is_some_and(|asked| (&asked.kind, asked.lapses) == (&request.kind, request.lapses))
    }

    /// The same lease with a request to its holder. If it is reserved there is no holder to ask: then the reservation
    /// goes to the session that is named, or ends. `None` if the lease is vacant.
    #[must_use]
    pub fn with_request(&self, request: Request, writer: Writer) -> Option<Self> {
        let (state, request) = match (&self.state, request) {
            (LeaseState::Vacant, _) => return None,
            (held @ LeaseState::Held { .. }, request) => (held.clone(), Some(request)),
            (LeaseState::Reserved { .. }, Request { kind, .. }) => match kind {
                RequestKind::Resign => (LeaseState::Vacant, None),
                RequestKind::Transfer { to } => (LeaseState::Reserved { candidate: to }, None),
            },
        };
        Some(Self {
            state,
            request,
            writer,
            ..self.clone()
        })
    }

    /// Makes the next lease: another state, no request, and, if a term was under way, one more in the history.
    #[must_use]
    pub(crate) fn next(
        &self,
        lineage: Lineage,
        term: Term,
        state: LeaseState,
        change: &Change<'_>,
        writer: Writer,
    ) -> Self {
        let mut history = self.history.clone();
        let stood_ms = change.stood.map(whole_milliseconds);
        if let LeaseState::Held { holder, since } = &self.state {
            history.push(PastTerm {
                term: self.term,
                node: holder.node.clone(),
                incarnation: holder.incarnation,
                since: *since,
                until: change.at,
                reason: change.reason.to_owned(),
                lasted_ms: stood_ms,
                vacant_ms: None,
            });
            let surplus = history.len().saturating_sub(HISTORY_MAX);
            history.drain(..surplus);
        } else if let (LeaseState::Held { .. }, Some(last)) = (&state, history.last_mut()) {
            last.vacant_ms = stood_ms;
        }
        Self {
            lineage,
            term,
            state,
            request: None,
            history,
            writer,
        }
    }
}

fn whole_milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Fence {
    /// One line of JSON.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        record::encode(self)
    }

    /// Reads a stored fence.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        record::decode(bytes)
    }
}

impl Term {
    /// The next term.
    #[must_use]
    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Term {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(node: &str) -> Holder {
        Holder {
            node: NodeId::new(node).unwrap(),
            incarnation: Incarnation(0xa),
            ttl: Duration::from_secs(10),
        }
    }

    fn lease() -> Lease {
        Lease {
            lineage: Lineage(1),
            term: Term(3),
            state: LeaseState::Held {
                holder: holder("web-1"),
                since: Wall(5),
            },
            request: None,
            history: Vec::new(),
            writer: Writer {
                incarnation: Incarnation(0xa),
                counter: 9,
                nonce: Nonce(0xfeed),
            },
        }
    }

    #[test]
    fn the_stored_forms_are_stable() {
        let text = r#"{"format":1,"lineage":"00000000000000000000000000000001","term":3,"state":{"held":{"holder":{"node":"web-1","incarnation":"0000000000000000000000000000000a","ttl_ms":10000},"since":5}},"writer":{"incarnation":"0000000000000000000000000000000a","counter":9,"nonce":"0000000000000000000000000000feed"}}"#;
        assert_eq!(String::from_utf8(lease().encode()).unwrap(), text);
        assert_eq!(Lease::decode(text.as_bytes()).unwrap(), lease());

        let older = text.replace(r#","nonce":"0000000000000000000000000000feed""#, "");
        let mut without = lease();
        without.writer.nonce = Nonce::default();
        assert_eq!(Lease::decode(older.as_bytes()).unwrap(), without);
        assert_eq!(String::from_utf8(without.encode()).unwrap(), older);
        let fence = Fence {
            lineage: Lineage(1),
            term: Term(3),
            holder: holder("web-1"),
        };
        assert_eq!(Fence::decode(&fence.encode()).unwrap(), fence);
    }

    #[test]
    fn who_asks_while_nobody_leads_changes_whom_the_lease_is_reserved_for() {
        let asked = |state: LeaseState, kind| {
            let (by, writer) = (NodeId::new("ops").unwrap(), lease().writer);
            let lease = Lease { state, ..lease() };
            let lapses = false;
            let asked = lease.with_request(Request { kind, by, lapses }, writer)?;
            assert_eq!((asked.term, &asked.history), (lease.term, &lease.history));
            Some((asked.state, asked.request.is_some()))
        };
        let reserved = |node| LeaseState::Reserved {
            candidate: holder(node),
        };
        let to = || RequestKind::Transfer {
            to: holder("web-2"),
        };
        let ended = Some((LeaseState::Vacant, false));
        assert_eq!(asked(reserved("cron"), RequestKind::Resign), ended);
        let moved = Some((reserved("web-2"), false));
        assert_eq!(asked(reserved("cron"), to()), moved);
        assert_eq!(asked(lease().state, to()), Some((lease().state, true)));
        assert_eq!(asked(LeaseState::Vacant, to()), None);
    }

    #[test]
    fn only_a_caller_that_is_asked_to_go_loses_its_lease_by_that() {
        let asked = |kind, lapses| {
            let by = NodeId::new("ops").unwrap();
            let request = Request { kind, by, lapses };
            let text = lease()
                .with_request(request, lease().writer)
                .unwrap()
                .encode();
            let asked = Lease::decode(&text).unwrap();
            let lapsing = asked.lapsing();
            lapsing.map(|(holder, to)| (holder.clone(), to.cloned()))
        };
        let to = |node: &str, incarnation| RequestKind::Transfer {
            to: Holder {
                incarnation: Incarnation(incarnation),
                ..holder(node)
            },
        };
        assert_eq!(asked(RequestKind::Resign, false), None);
        assert_eq!(asked(to("web-2", 0xb), false), None);
        assert_eq!(
            asked(RequestKind::Resign, true),
            Some((holder("web-1"), None))
        );
        let (_, follows) = asked(to("web-2", 0xb), true).unwrap();
        assert_eq!(follows.unwrap().node.as_str(), "web-2");
        assert_eq!(asked(to("web-1", 0xa), true), None, "it is to go on");
        assert_eq!(lease().lapsing(), None);
    }

    #[test]
    fn how_long_something_lasted_is_kept_if_one_clock_has_measured_it() {
        let change = |stood| Change {
            reason: "resigned",
            at: Wall(0),
            stood,
        };
        let held = lease().state;
        let (lineage, writer) = (lease().lineage, lease().writer);
        let next = |lease: Lease, term, state, stood| {
            lease.next(lineage, Term(term), state, &change(stood), writer)
        };
        let (two, three) = (Duration::from_secs(2), Duration::from_secs(3));
        let vacant = next(lease(), 3, LeaseState::Vacant, Some(two));
        let last = |lease: &Lease| {
            let last = lease.history.last().unwrap();
            (last.lasted_ms, last.vacant_ms)
        };
        assert_eq!(last(&vacant), (Some(2000), None));
        let taken = next(vacant.clone(), 4, held.clone(), Some(three));
        assert_eq!(last(&taken), (Some(2000), Some(3000)));
        assert_eq!(Lease::decode(&taken.encode()).unwrap(), taken);
        // A process that comes late knows neither.
        let taken = next(next(lease(), 3, LeaseState::Vacant, None), 4, held, None);
        assert_eq!(last(&taken), (None, None));
        let text = String::from_utf8(taken.encode()).unwrap();
        assert!(!text.contains("_ms\":null"), "{text}");
    }

    #[test]
    fn history_keeps_the_last_terms_only() {
        let mut lease = lease();
        for _ in 0..30 {
            let state = lease.state.clone();
            lease = lease.next(
                lease.lineage,
                lease.term.next(),
                state,
                &Change {
                    reason: "evicted",
                    at: Wall(6),
                    stood: None,
                },
                lease.writer,
            );
        }
        assert_eq!(lease.history.len(), HISTORY_MAX);
        assert_eq!(lease.history.last().unwrap().term, Term(32));
    }
}
