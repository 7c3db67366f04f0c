//! Nudges: on stores without hints, whoever vacates a lease tells the candidates to look, by one datagram
//! each, and whoever asks something of a leader tells it.
//!
//! A nudge carries no truth, only the name of an election. Forged ones cost one look every [`PAUSE`]: those that
//! come sooner wait, and several become one that says that anything may have changed.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tenure_core::session::Holder;
use tenure_core::{ElectionName, Namespace};
use tenure_store::Store;
use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::inspect;
use crate::keys::Keys;

/// How often nudges make this process look, at most.
const PAUSE: Duration = Duration::from_millis(20);

const MAGIC: &str = "tenure-nudge-1";

#[derive(Debug)]
pub(crate) struct Nudger {
    socket: Arc<UdpSocket>,
    namespace: Namespace,
    /// When the last nudge was passed on, and what has come since.
    told: Option<Instant>,
    waiting: Option<Nudge>,
    /// Leases that are being given up: the candidates are looked up while the work stops.
    planned: BTreeMap<ElectionName, Plan>,
    look_ups: JoinSet<(ElectionName, Vec<SocketAddr>)>,
}

/// What a nudge says.
#[derive(Debug)]
pub(crate) enum Nudge {
    /// Look at this election.
    Of(ElectionName),
    /// Look at all of them.
    OfMany,
}

#[derive(Debug, Default)]
struct Plan {
    candidates: Option<Vec<SocketAddr>>,
    vacated: bool,
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
            look_ups: JoinSet::new(),
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
                Some(found) = self.look_ups.join_next(), if !self.look_ups.is_empty() => {
                    if let Ok((election, candidates)) = found {
                        self.planned.entry(election.clone()).or_default().candidates = Some(candidates);
                        self.send_if_ready(&election);
                    }
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

    /// A lease of ours is about to be given up: find out whom to tell.
    pub(crate) fn prepare(
        &mut self,
        store: &Arc<dyn Store>,
        keys: &Keys,
        election: &ElectionName,
        me: &Holder,
    ) {
        self.planned.insert(election.clone(), Plan::default());
        let (store, keys, election) = (store.clone(), keys.clone(), election.clone());
        let me = me.incarnation;
        self.look_ups.spawn(async move {
            let candidates = inspect::candidates(&*store, &keys, &election)
                .await
                .unwrap_or_default();
            let addresses = candidates
                .into_iter()
                .filter(|candidate| candidate.holder.incarnation != me)
                .filter_map(|candidate| candidate.about.nudge?.parse().ok())
                .collect();
            (election, addresses)
        });
    }

    /// The lease of an election is free; if it was ours, tell the others.
    pub(crate) fn vacated(&mut self, election: &ElectionName) {
        if let Some(plan) = self.planned.get_mut(election) {
            plan.vacated = true;
            self.send_if_ready(election);
        }
    }

    fn send_if_ready(&mut self, election: &ElectionName) {
        let Some(Plan {
            candidates: Some(candidates),
            vacated: true,
        }) = self.planned.get(election)
        else {
            return;
        };
        let text = text(&self.namespace, election);
        for candidate in candidates {
            // Best effort by nature: an error is a lost nudge.
            let _ = self.socket.try_send_to(text.as_bytes(), *candidate);
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
