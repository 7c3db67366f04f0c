//! Nudges: on stores without hints, a leader that vacates its lease tells the candidates to look, by one datagram
//! each, and a request to a leader is announced to it in the same way.
//!
//! A nudge carries no truth, only the name of an election. Forged ones cost one look every [`PAUSE`]: those that
//! come sooner wait, and several become one that says that anything may have changed.
//!
//! Whom to tell is looked up while the work stops, or at the latest while the lease is written. One look at the
//! sessions is for all leases that are given up meanwhile: who leaves five hundred elections does not read every
//! session five hundred times.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tenure_core::session::Holder;
use tenure_core::{ElectionName, Namespace};
use tenure_store::Store;
use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::keys::Keys;
use crate::{Runtime, inspect};

/// How often nudges make this process look, at most.
const PAUSE: Duration = Duration::from_millis(20);

/// For how long what a look-up found is used for further leases.
const KNOWN_FOR: Duration = Duration::from_secs(1);

/// How long a process that leaves waits to learn whom to tell.
const LAST_WORDS_WITHIN: Duration = Duration::from_millis(500);

const MAGIC: &str = "tenure-nudge-1";

#[derive(Debug)]
pub(crate) struct Nudger {
    socket: Arc<UdpSocket>,
    namespace: Namespace,
    /// When the last nudge was passed on, and what has come since.
    told: Option<Instant>,
    waiting: Option<Nudge>,
    /// Leases that are being given up, and whether they have been.
    planned: BTreeMap<ElectionName, bool>,
    /// Who else stands in which elections, and since when that is known.
    known: Option<(Instant, Vec<Other>)>,
    /// One at most.
    look_up: JoinSet<Vec<Other>>,
}

/// Another process.
#[derive(Debug)]
struct Other {
    address: SocketAddr,
    stands: BTreeSet<ElectionName>,
}

/// What a nudge says.
#[derive(Debug)]
pub(crate) enum Nudge {
    /// Look at this election.
    Of(ElectionName),
    /// Look at all of them.
    OfMany,
}

impl Nudger {
    pub(crate) async fn bind(address: SocketAddr, namespace: Namespace) -> std::io::Result<Self> {
        let socket = Arc::new(UdpSocket::bind(address).await?);
        Ok(Self {
            socket,
            namespace,
            told: None,
            waiting: None,
            planned: BTreeMap::new(),
            known: None,
            look_up: JoinSet::new(),
        })
    }

    pub(crate) fn address(&self) -> std::io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The next nudge that arrives. Can be cancelled at any time.
    pub(crate) async fn next(&mut self) -> Nudge {
        let mut buffer = [0; 512];
        loop {
            let ready_at = self.told.map_or_else(Instant::now, |told| told + PAUSE);
            tokio::select! {
                Some(found) = self.look_up.join_next(), if !self.look_up.is_empty() => {
                    self.found(found.unwrap_or_default());
                }
                received = self.socket.recv_from(&mut buffer) => {
                    let Ok((length, _)) = received else { continue };
                    if let Some(election) = self.read(&buffer[..length]) {
                        self.wait(election);
                    }
                }
                () = tokio::time::sleep_until(ready_at), if self.waiting.is_some() => {
                    if let Some(nudge) = self.waiting.take() {
                        self.told = Some(Instant::now());
                        return nudge;
                    }
                }
            }
        }
    }

    fn wait(&mut self, election: ElectionName) {
        self.waiting = Some(match self.waiting.take() {
            None => Nudge::Of(election),
            Some(Nudge::Of(other)) if other == election => Nudge::Of(election),
            Some(_) => Nudge::OfMany,
        });
    }

    /// A lease of ours is about to be given up: find out whom to tell, unless that is known or being found out.
    pub(crate) fn prepare(
        &mut self,
        runtime: &Runtime,
        store: &Arc<dyn Store>,
        keys: &Keys,
        election: &ElectionName,
        me: &Holder,
    ) {
        self.planned.entry(election.clone()).or_insert(false);
        let is_known = matches!(&self.known, Some((since, _)) if since.elapsed() < KNOWN_FOR);
        if is_known || !self.look_up.is_empty() {
            return;
        }
        self.known = None;
        let (store, keys, me) = (store.clone(), keys.clone(), me.incarnation);
        self.look_up.spawn(runtime.task(async move {
            let sessions = inspect::live_sessions(&*store, &keys).await;
            let others = sessions.unwrap_or_default().into_iter();
            others
                .filter(|other| other.incarnation != me)
                .filter_map(|other| {
                    let address = other.about.nudge.as_ref()?.parse().ok()?;
                    let stands = other.about.stands.into_keys().collect();
                    Some(Other { address, stands })
                })
                .collect()
        }));
    }

    /// The lease of an election is free; if it was ours, tell the others.
    pub(crate) fn vacated(&mut self, election: &ElectionName) {
        if let Some(vacated) = self.planned.get_mut(election) {
            *vacated = true;
            self.send_if_ready(election);
        }
    }

    /// Waits until those who wait for a lease of ours have been told, but not for long.
    pub(crate) async fn finish(&mut self) {
        if !self.planned.values().any(|&vacated| vacated) {
            return;
        }
        let found = tokio::time::timeout(LAST_WORDS_WITHIN, self.look_up.join_next());
        if let Ok(Some(found)) = found.await {
            self.found(found.unwrap_or_default());
        }
    }

    fn found(&mut self, others: Vec<Other>) {
        self.known = Some((Instant::now(), others));
        let planned = self.planned.iter();
        let vacated = planned.filter(|(_, vacated)| **vacated);
        let elections: Vec<_> = vacated.map(|(election, _)| election.clone()).collect();
        for election in elections {
            self.send_if_ready(&election);
        }
    }

    fn send_if_ready(&mut self, election: &ElectionName) {
        let (Some(true), Some((_, others))) = (self.planned.get(election), &self.known) else {
            return;
        };
        let text = text(&self.namespace, election);
        for other in others {
            if other.stands.contains(election) {
                // Best effort by nature: an error is a lost nudge.
                let _ = self.socket.try_send_to(text.as_bytes(), other.address);
            }
        }
        self.planned.remove(election);
    }

    fn read(&self, datagram: &[u8]) -> Option<ElectionName> {
        let text = std::str::from_utf8(datagram).ok()?;
        let mut words = text.split(' ');
        let fits = words.next() == Some(MAGIC) && words.next() == Some(self.namespace.as_str());
        let election = words.next().filter(|_| fits)?;
        ElectionName::new(election).ok()
    }
}

/// Tells one process to look, from outside of any session. Best effort by nature: an error is a lost nudge.
pub(crate) async fn tell(to: SocketAddr, namespace: &Namespace, election: &ElectionName) {
    let own: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    if let Ok(socket) = UdpSocket::bind((own, 0)).await {
        let _ = socket
            .send_to(text(namespace, election).as_bytes(), to)
            .await;
    }
}

fn text(namespace: &Namespace, election: &ElectionName) -> String {
    format!("{MAGIC} {namespace} {election}")
}
