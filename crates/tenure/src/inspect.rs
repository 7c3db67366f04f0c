//! What the store says about a namespace, and what anyone may ask of a leader, without taking part.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tenure_core::election::{
    Fence, Lease, LeaseState, RESERVED_MAX, Request, RequestKind, Term, Writer,
};
use tenure_core::session::{About, Holder, ONE_SHOT, Record, State};
use tenure_core::{ElectionName, Incarnation, Lineage, Namespace, NodeId, RecordError};
use tenure_store::{Entry, Expect, Key, Object, Store, Version, list_all};
use tokio::sync::OnceCell;

use crate::keys::Keys;
use crate::{Error, Follower, Runtime, Token, nudge};

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub(crate) mod transaction;

/// How often a request is written again because the lease has changed meanwhile.
const ATTEMPTS_MAX: usize = 10;

/// How many sessions are read at a time: a leader that vacates its lease looks for candidates to tell.
const READS_AT_ONCE: usize = 8;

/// A namespace of a store, to look at.
#[derive(Debug, Clone)]
pub struct NamespaceView {
    store: Arc<dyn Store>,
    keys: Keys,
    /// The sessions, if all questions are to be answered from one look at them.
    looked: Option<Arc<OnceCell<Sessions>>>,
    /// Whether a leader is told by a datagram that it is asked something.
    sends_nudges: bool,
    /// Where the names of requests come from, and their times.
    runtime: Runtime,
}

/// Shared by all who ask: there may be thousands.
pub(crate) type Sessions = Arc<Vec<(Record, Object)>>;

/// One election in short.
#[derive(Debug, Clone)]
pub struct Brief {
    /// The lease, unless the election has never been held or the lease was deleted.
    pub lease: Option<Lease>,
    /// How long ago the lease was written, by the store's own clock or that of the host; none where nobody can tell. To show
    /// to people: some of these clocks can be set.
    pub lease_age: Option<Duration>,
    /// The live candidates, by priority.
    pub candidates: Vec<Holder>,
}

/// One election, as the store has it.
#[derive(Debug, Clone)]
pub struct Status {
    /// The lease, unless the election has never been held or the lease was deleted.
    pub lease: Option<Lease>,
    /// The fence, unless no term was ever installed.
    pub fence: Option<Fence>,
    /// The live candidates, by priority.
    pub candidates: Vec<Candidate>,
    /// How long ago the lease was written, by the store's own clock or that of the host; none where nobody can tell. To show
    /// to people: some of these clocks can be set.
    pub lease_age: Option<Duration>,
    /// How long ago the fence was written, likewise: that is when its term began to be led.
    pub fence_age: Option<Duration>,
    /// How long ago the leader's session was written, likewise.
    pub leader_seen_ago: Option<Duration>,
}

/// A live candidate.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Its session.
    pub holder: Holder,
    /// Its priority.
    pub priority: u8,
    /// What it says of itself.
    pub about: About,
    /// How long ago its session was written, if the store can tell. To show to people.
    pub seen_ago: Option<Duration>,
}

impl NamespaceView {
    /// Looks at a namespace of a store.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, namespace: Namespace) -> Self {
        Self {
            store,
            keys: Keys::new(namespace),
            looked: None,
            sends_nudges: true,
            runtime: Runtime::default(),
        }
    }

    pub(crate) fn with_runtime(self, runtime: Runtime) -> Self {
        Self { runtime, ..self }
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub(crate) fn with_nudges(self, sends_nudges: bool) -> Self {
        Self {
            sends_nudges,
            ..self
        }
    }

    /// The same, but the sessions are read once, when they are needed first. To ask several things at one time.
    #[must_use]
    pub fn at_one_look(&self) -> Self {
        Self {
            looked: Some(Arc::default()),
            ..self.clone()
        }
    }

    /// The same, and the sessions are read now: whatever is asked later is answered from this look. It can be shared.
    pub async fn look(&self) -> Result<Self, Error> {
        let view = self.at_one_look();
        view.session_objects().await?;
        Ok(view)
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    pub(crate) fn namespace(&self) -> &Namespace {
        self.keys.namespace()
    }

    /// The names of all elections that were ever held.
    pub async fn elections(&self) -> Result<Vec<ElectionName>, Error> {
        let entries = list_all(&*self.store, &self.keys.elections()).await?;
        Ok(names_of(&entries))
    }

    /// The names of some elections that were ever held: those of the product, and the first of the others. Two pages of a
    /// listing, unless there are more of the product's than a page holds.
    pub async fn some_elections(&self, most: usize) -> Result<Vec<ElectionName>, Error> {
        let prefix = self.keys.elections();
        let mut names: Vec<ElectionName> = Vec::new();
        // No name is that short, and those of the product are the next ones.
        let mut after = Some(prefix.key(ElectionName::RESERVED)?);
        while names.len() < most {
            let page = self.store.list(&prefix, after.as_ref()).await?;
            let found = names_of(&page.entries);
            let count = found.len();
            names.extend(found.into_iter().filter(ElectionName::is_reserved));
            let last = page.entries.into_iter().next_back().map(|entry| entry.key);
            let is_reserved = |key: &Key| key.name().starts_with(ElectionName::RESERVED);
            // Also for a store that promises more and never gives it.
            if !page.more || count == 0 || !last.as_ref().is_some_and(is_reserved) || last <= after
            {
                break;
            }
            after = last;
        }
        if names.len() < most {
            let page = self.store.list(&prefix, None).await?;
            let others = names_of(&page.entries).into_iter();
            names.extend(others.filter(|name| !name.is_reserved()));
        }
        names.truncate(most);
        Ok(names)
    }

    /// The lease of an election, and the session of its holder if that lives: a lease may name one that is long gone.
    /// Two reads, however many nodes there are.
    pub async fn live_leader(
        &self,
        election: &ElectionName,
    ) -> Result<Option<(Lease, Record)>, Error> {
        let (lease, leader) = self.lease_and_leader(election).await?;
        Ok(lease.zip(leader))
    }

    /// The lease of an election, and the session of its holder if that lives and is a candidate. Two reads.
    pub async fn lease_and_leader(
        &self,
        election: &ElectionName,
    ) -> Result<(Option<Lease>, Option<Record>), Error> {
        let Some((lease, _)) = self.lease(election).await? else {
            return Ok((None, None));
        };
        let session = match lease.holder() {
            Some(holder) => self.live_session(&self.keys.session(holder)).await?,
            None => None,
        };
        let leader = session.filter(|record| record.about.stands.contains_key(election));
        Ok((Some(lease), leader))
    }

    /// The session of a process, also one that has ended and was not cleaned up yet. One read.
    pub async fn session(
        &self,
        node: &NodeId,
        incarnation: Incarnation,
    ) -> Result<Option<Record>, Error> {
        let holder = Holder {
            node: node.clone(),
            incarnation,
            ttl: Duration::ZERO,
        };
        let object = self.store.get(&self.keys.session(&holder)).await?;
        // One that cannot be read is as good as none.
        Ok(object.and_then(|object| Record::decode(&object.value).ok()))
    }

    async fn live_session(&self, key: &Key) -> Result<Option<Record>, Error> {
        let Some(object) = self.store.get(key).await? else {
            return Ok(None);
        };
        // One that cannot be read is nobody's candidate.
        let Ok(record) = Record::decode(&object.value) else {
            return Ok(None);
        };
        let session = (record, object);
        Ok(is_live(&session).then_some(session.0))
    }

    /// Everything about one election. Two reads, and one per node.
    pub async fn status(&self, election: &ElectionName) -> Result<Status, Error> {
        let sessions = self.session_objects().await?;
        self.status_among(election, &sessions).await
    }

    /// Everything about some elections. Two reads for each, and one per node.
    pub async fn statuses(&self, elections: &[ElectionName]) -> Result<Vec<Status>, Error> {
        let sessions = self.session_objects().await?;
        let reads: Vec<_> = elections
            .iter()
            .map(|election| self.status_among(election, &sessions))
            .collect();
        let mut reads = stream::iter(reads).buffered(READS_AT_ONCE);
        let mut statuses = Vec::new();
        while let Some(status) = reads.next().await {
            statuses.push(status?);
        }
        Ok(statuses)
    }

    /// Some elections in short. One read for each, and one per node.
    pub async fn briefs(&self, elections: &[ElectionName]) -> Result<Vec<Brief>, Error> {
        let sessions = self.session_objects().await?;
        let reads = elections.iter().map(|each| self.lease_object(each));
        let reads: Vec<_> = reads.collect();
        let mut reads = stream::iter(reads).buffered(READS_AT_ONCE);
        let mut briefs = Vec::new();
        while let Some(lease) = reads.next().await {
            let standing = standing_among(&sessions, &elections[briefs.len()]);
            let (lease, lease_age) = aged(lease?);
            briefs.push(Brief {
                lease,
                lease_age,
                candidates: standing.map(|(record, _)| record.holder()).collect(),
            });
        }
        Ok(briefs)
    }

    /// An election without its candidates, and the session of its leader if that lives and is a candidate. Three reads,
    /// however many nodes there are.
    pub async fn led(&self, election: &ElectionName) -> Result<(Status, Option<Record>), Error> {
        let lease = self.lease_object(election).await?;
        let session = match lease.as_ref().and_then(|(lease, _)| lease.holder()) {
            Some(holder) => self.store.get(&self.keys.session(holder)).await?,
            None => None,
        };
        // One that cannot be read is nobody's candidate.
        let session =
            session.and_then(|object| Some((Record::decode(&object.value).ok()?, object)));
        let key = self.keys.fence(election);
        let (fence, fence_age) = aged(read_object(&*self.store, &key, Fence::decode).await?);
        let (lease, lease_age) = aged(lease);
        let status = Status {
            lease,
            fence,
            candidates: Vec::new(),
            lease_age,
            fence_age,
            leader_seen_ago: session.as_ref().and_then(|(_, object)| age_of(object)),
        };
        let leads = |session: &(Record, Object)| {
            is_live(session) && session.0.about.stands.contains_key(election)
        };
        let leader = session.filter(leads).map(|(record, _)| record);
        Ok((status, leader))
    }

    /// The live candidates of an election with what they say of themselves, by priority. One read per node.
    pub async fn standing(&self, election: &ElectionName) -> Result<Vec<Candidate>, Error> {
        let sessions = self.session_objects().await?;
        Ok(candidates_among(&sessions, election))
    }

    /// The live sessions that say what keeps them from doing what they are asked, and are candidates nowhere: a node whose
    /// lease is lost while its program runs on, say. One read per node.
    pub async fn troubled(&self) -> Result<Vec<Record>, Error> {
        let sessions = self.session_objects().await?;
        let is_troubled =
            |record: &Record| record.about.trouble.is_some() && record.about.stands.is_empty();
        let found = sessions.iter().filter(|session| is_live(session));
        let found = found.map(|(record, _)| record);
        Ok(found
            .filter(|record| is_troubled(record))
            .cloned()
            .collect())
    }

    /// The live candidates of an election, by priority. One read per node.
    pub async fn candidates(&self, election: &ElectionName) -> Result<Vec<Holder>, Error> {
        let sessions = self.session_objects().await?;
        let standing = standing_among(&sessions, election);
        Ok(standing.map(|(record, _)| record.holder()).collect())
    }

    async fn status_among(
        &self,
        election: &ElectionName,
        sessions: &[(Record, Object)],
    ) -> Result<Status, Error> {
        let lease = self.lease_object(election).await?;
        let (lease, lease_age) = aged(lease);
        let key = self.keys.fence(election);
        let (fence, fence_age) = aged(read_object(&*self.store, &key, Fence::decode).await?);
        let holder = lease.as_ref().and_then(Lease::holder);
        let leader_seen_ago = holder.and_then(|holder| {
            let is_leader =
                |(record, _): &&(Record, Object)| record.incarnation == holder.incarnation;
            sessions
                .iter()
                .find(is_leader)
                .and_then(|(_, object)| age_of(object))
        });
        Ok(Status {
            lease,
            fence,
            candidates: candidates_among(sessions, election),
            lease_age,
            fence_age,
            leader_seen_ago,
        })
    }

    /// What is wrong with the lease and the fence of an election of which it is known that this term was led: the object,
    /// what is wrong, and what follows from it. Nothing if all is well. Two reads.
    ///
    /// To be asked after the term was read: terms only grow.
    pub async fn election_troubles(
        &self,
        election: &ElectionName,
        led: Token,
    ) -> Result<Vec<(String, String)>, Error> {
        let (lease_key, fence_key) = (self.keys.lease(election), self.keys.fence(election));
        let lease = read(&*self.store, &lease_key, Lease::decode).await;
        let fence = read(&*self.store, &fence_key, Fence::decode).await;
        let lease = readable(lease.map(|read| read.map(|(lease, _)| (lease.lineage, lease.term))))?;
        let fence = readable(fence.map(|read| read.map(|(fence, _)| (fence.lineage, fence.term))))?;
        let term = led.term;
        let mut troubles = Vec::new();
        let mut trouble = |key: &Key, what: String| troubles.push((key.to_string(), what));
        if let (Ok(None), Ok(None)) = (&lease, &fence) {
            let what = format!(
                "it is missing, and so is {fence_key}, although term {term} was led: nothing tells which terms were led. \
                 The next leader starts over at term 1, with a new lineage: receivers of fencing tokens must compare that too"
            );
            trouble(&lease_key, what);
            return Ok(troubles);
        }
        match lease {
            Err(what) => trouble(
                &lease_key,
                format!(
                    "{what}: nobody can lead; stop every candidate and delete it. The fence keeps the last term"
                ),
            ),
            Ok(None) => trouble(
                &lease_key,
                format!(
                    "it is missing, although term {term} was led: the next leader waits for a ttl, and continues with \
                     the term after that of the fence"
                ),
            ),
            Ok(Some((lineage, lower))) if lineage == led.lineage && lower < term => trouble(
                &lease_key,
                format!(
                    "it has term {lower}, but term {term} was led: an older copy was restored. The next leader continues \
                     with the term after that of the fence"
                ),
            ),
            Ok(Some(_)) => {}
        }
        match fence {
            Err(what) => trouble(
                &fence_key,
                format!(
                    "{what}: nobody can lead; stop every candidate and delete it. The lease keeps the last term"
                ),
            ),
            Ok(None) => trouble(
                &fence_key,
                format!(
                    "it is missing, although term {term} was led: the next leader makes it again from the lease. Until then \
                     do not restore an older lease: terms would repeat"
                ),
            ),
            Ok(Some((lineage, lower))) if lineage == led.lineage && lower < term => trouble(
                &fence_key,
                format!(
                    "it has term {lower}, but term {term} was led: an older copy was restored, and terms may repeat. \
                     The log refuses leaders of terms before {term}"
                ),
            ),
            Ok(Some(_)) => {}
        }
        Ok(troubles)
    }

    /// Follows an election as a reader: writes nothing, and is no candidate. Where the store has no hints
    /// it looks every `poll`.
    #[must_use]
    pub fn follow(&self, election: &ElectionName, poll: Duration) -> Follower {
        let hints = self.store.watch(&self.keys.elections());
        Follower::new(self.store.clone(), self.keys.lease(election), hints, poll)
    }

    /// All sessions, also those that have ended and were not cleaned up yet.
    pub async fn sessions(&self) -> Result<Vec<Record>, Error> {
        let sessions = self.session_objects().await?;
        Ok(sessions.iter().map(|(record, _)| record.clone()).collect())
    }

    /// The same without one-shot candidates, which are callers, not nodes.
    pub async fn node_sessions(&self) -> Result<Vec<Record>, Error> {
        let sessions = self.session_objects().await?;
        let records = sessions.iter().map(|(record, _)| record);
        let nodes = records.filter(|record| !record.is_one_shot());
        Ok(nodes.cloned().collect())
    }

    /// How long ago each session was written, for those of which the engine can say it: to show to people,
    /// since some engines take it from a clock that can be set.
    pub async fn ages(&self) -> Result<BTreeMap<Incarnation, Duration>, Error> {
        let sessions = self.session_objects().await?;
        let aged =
            |(record, object): &(Record, Object)| Some((record.incarnation, age_of(object)?));
        Ok(sessions.iter().filter_map(aged).collect())
    }

    /// Asks the leader to resign; it does so when it looks at its lease next.
    pub async fn request_resign(&self, election: &ElectionName, by: &NodeId) -> Result<(), Error> {
        self.request(election, RequestKind::Resign, by, None).await
    }

    /// The same of the leader that this lease names. If the term is over by now, nobody is asked.
    pub async fn request_resign_of(
        &self,
        election: &ElectionName,
        lease: &Lease,
        by: &NodeId,
    ) -> Result<(), Error> {
        let of = lease.holder().map(|_| (lease.lineage, lease.term));
        self.request(election, RequestKind::Resign, by, of).await
    }

    /// Asks the leader to hand over to a node, which must be a live candidate. A name that several candidates have is refused:
    /// then one of them is to be [named in full](Self::request_transfer_to).
    ///
    /// What is asked last counts, until the leader has given the lease up. If the node that is named leads, and is asked to go,
    /// that is taken back: it leads on, or, if its work has been told to stop, again when that has ended.
    pub async fn request_transfer(
        &self,
        election: &ElectionName,
        to: &NodeId,
        by: &NodeId,
    ) -> Result<(), Error> {
        let to = self.find_candidate(election, to).await?;
        self.request(election, RequestKind::Transfer { to }, by, None)
            .await
    }

    /// The same, to this very session of a node, where several stand under one id.
    pub async fn request_transfer_to(
        &self,
        election: &ElectionName,
        node: &NodeId,
        incarnation: Incarnation,
        by: &NodeId,
    ) -> Result<(), Error> {
        let candidates = candidates(&*self.store, &self.keys, election).await?;
        let is_named = |holder: &Holder| holder.node == *node && holder.incarnation == incarnation;
        let mut holders = candidates.iter().map(|candidate| &candidate.holder);
        match holders.find(|holder| is_named(holder)) {
            Some(to) => {
                let to = to.clone();
                self.request(election, RequestKind::Transfer { to }, by, None)
                    .await
            }
            None => Err(not_a_candidate(node, election, &candidates)),
        }
    }

    /// The live session of a candidate.
    pub(crate) async fn find_candidate(
        &self,
        election: &ElectionName,
        node: &NodeId,
    ) -> Result<Holder, Error> {
        let candidates = candidates(&*self.store, &self.keys, election).await?;
        let named = candidates
            .iter()
            .filter(|candidate| candidate.holder.node == *node);
        let named: Vec<&Candidate> = named.collect();
        let Some(first) = named.first() else {
            return Err(not_a_candidate(node, election, &candidates));
        };
        // Nobody can tell which of several is meant, not even if one of them leads: it may be the one that is to be relieved.
        if named.len() > 1 {
            let is_caller = |candidate: &Candidate| candidate.about.labels.contains_key(ONE_SHOT);
            let sessions = named
                .iter()
                .map(|each| (each.holder.incarnation, is_caller(each)));
            return Err(Error::AmbiguousCandidate {
                node: node.clone(),
                election: election.clone(),
                sessions: sessions.collect(),
            });
        }
        Ok(first.holder.clone())
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }

    /// All sessions, with how long they have stood.
    pub(crate) async fn session_objects(&self) -> Result<Sessions, Error> {
        let read = || sessions(&*self.store, &self.keys);
        match &self.looked {
            None => read().await,
            Some(looked) => looked.get_or_try_init(read).await.cloned(),
        }
    }

    pub(crate) async fn lease(
        &self,
        election: &ElectionName,
    ) -> Result<Option<(Lease, Version)>, Error> {
        read(&*self.store, &self.keys.lease(election), Lease::decode).await
    }

    /// The lease, and how long it has stood.
    pub(crate) async fn lease_object(
        &self,
        election: &ElectionName,
    ) -> Result<Option<(Lease, Object)>, Error> {
        read_object(&*self.store, &self.keys.lease(election), Lease::decode).await
    }

    async fn request(
        &self,
        election: &ElectionName,
        kind: RequestKind,
        by: &NodeId,
        of: Option<(Lineage, Term)>,
    ) -> Result<(), Error> {
        // Names this very request, so that a lost answer can be recognised.
        let writer = Writer {
            incarnation: Incarnation(self.runtime.unique().as_u128()),
            counter: 1,
            nonce: tenure_core::Nonce::default(),
        };
        let mut request = Request {
            kind,
            by: by.clone(),
            lapses: false,
        };
        // Whom this is about. If somebody else has asked the same and was obeyed, leadership has moved: once is enough.
        let mut first_led = of.map(Some);
        // The term of a request whose answer was lost. Its leader may have obeyed by now, and then its successor is not
        // to be asked as well.
        let mut perhaps_asked = None;
        for _ in 0..ATTEMPTS_MAX {
            let Some((lease, version)) = self.lease(election).await? else {
                return Err(Error::NoLeader {
                    election: election.clone(),
                });
            };
            if lease.writer == writer {
                return Ok(());
            }
            let term = (lease.lineage, lease.term);
            if perhaps_asked.is_some() && lease.holder().is_none() {
                return Ok(());
            }
            if request.kind == RequestKind::Resign {
                let led = lease.holder().map(|_| term);
                let first_led = *first_led.get_or_insert(led);
                if first_led.is_some() && led != first_led {
                    return Ok(());
                }
            }
            // Whoever leads and is asked nothing leads on.
            if let (RequestKind::Transfer { to }, Some(holder)) = (&request.kind, lease.holder())
                && to.incarnation == holder.incarnation
                && lease.request.is_none()
            {
                return Ok(());
            }
            request.lapses = self.is_held_by_a_caller(&lease).await?;
            if lease.is_asked(&request) {
                self.nudge_holder(election, &lease).await;
                return Ok(());
            }
            let Some(asked) = lease.with_request(request.clone(), writer) else {
                return Err(Error::NoLeader {
                    election: election.clone(),
                });
            };
            if perhaps_asked.is_some_and(|of| of != term) {
                return Ok(());
            }
            let key = self.keys.lease(election);
            let value = Bytes::from(asked.encode());
            match self.store.put(&key, value, &Expect::Version(version)).await {
                Ok(_) => {
                    self.nudge_holder(election, &asked).await;
                    return Ok(());
                }
                Err(tenure_store::Error::Conflict { .. }) => {}
                Err(tenure_store::Error::Unknown { .. }) => perhaps_asked = Some(term),
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Contended {
            election: election.clone(),
        })
    }
}

impl NamespaceView {
    /// Whether the holder of the lease is a one-shot caller. A session never changes its kind.
    async fn is_held_by_a_caller(&self, lease: &Lease) -> Result<bool, Error> {
        let Some(holder) = lease.holder() else {
            return Ok(false);
        };
        let session = self.session(&holder.node, holder.incarnation).await?;
        Ok(session.is_some_and(|session| session.is_one_shot()))
    }

    /// Where no hint tells the leader that it is asked something, a datagram does. If that cannot be done it
    /// sees the request at its next look.
    async fn nudge_holder(&self, election: &ElectionName, lease: &Lease) {
        let Some(holder) = lease.holder() else { return };
        if !self.sends_nudges || self.store.describe().capabilities.hints {
            return;
        }
        let session = read(&*self.store, &self.keys.session(holder), Record::decode).await;
        if let Ok(Some((record, _))) = session
            && let Some(address) = record.about.nudge.and_then(|text| text.parse().ok())
        {
            nudge::tell(address, self.keys.namespace(), election).await;
        }
    }
}

/// The sessions that live, as far as one look can tell.
pub(crate) async fn live_sessions(store: &dyn Store, keys: &Keys) -> Result<Vec<Record>, Error> {
    let sessions = sessions(store, keys).await?;
    let live = sessions.iter().filter(|session| is_live(session));
    Ok(live.map(|(record, _)| record.clone()).collect())
}

/// A session that has stood for its whole ttl is as good as evicted. Nothing is taken from it for this, so a clock
/// that can be set is good enough.
fn is_live((record, object): &(Record, Object)) -> bool {
    record.state == State::Alive && age_of(object).is_none_or(|age| age < record.ttl)
}

/// The live candidates of an election, the highest priority first.
pub(crate) async fn candidates(
    store: &dyn Store,
    keys: &Keys,
    election: &ElectionName,
) -> Result<Vec<Candidate>, Error> {
    let sessions = sessions(store, keys).await?;
    Ok(candidates_among(&sessions, election))
}

fn candidates_among(sessions: &[(Record, Object)], election: &ElectionName) -> Vec<Candidate> {
    let candidate = |(record, object, priority): (&Record, &Object, u8)| Candidate {
        holder: record.holder(),
        priority,
        about: (*record.about).clone(),
        seen_ago: age_of(object),
    };
    aged_standing(sessions, election).map(candidate).collect()
}

fn not_a_candidate(node: &NodeId, election: &ElectionName, candidates: &[Candidate]) -> Error {
    let candidates = candidates.iter();
    Error::NotACandidate {
        node: node.clone(),
        election: election.clone(),
        candidates: candidates.map(|each| each.holder.node.clone()).collect(),
    }
}

/// How long ago an object was written, to show to people.
fn age_of(object: &Object) -> Option<Duration> {
    object.age.or(object.shown_age)
}

fn aged<T>(read: Option<(T, Object)>) -> (Option<T>, Option<Duration>) {
    match read {
        Some((record, object)) => (Some(record), age_of(&object)),
        None => (None, None),
    }
}

/// The sessions that stand in an election, and their priority, the highest first.
fn standing_among<'a>(
    sessions: &'a [(Record, Object)],
    election: &ElectionName,
) -> impl Iterator<Item = (&'a Record, u8)> + use<'a> {
    aged_standing(sessions, election).map(|(record, _, priority)| (record, priority))
}

fn aged_standing<'a>(
    sessions: &'a [(Record, Object)],
    election: &ElectionName,
) -> impl Iterator<Item = (&'a Record, &'a Object, u8)> + use<'a> {
    let live = sessions.iter().filter(|session| is_live(session));
    let standing = live
        .filter_map(|(record, object)| Some((record, object, *record.about.stands.get(election)?)));
    let mut standing: Vec<_> = standing.collect();
    standing.sort_by_key(|(_, _, priority)| std::cmp::Reverse(*priority));
    standing.into_iter()
}

fn names_of(entries: &[Entry]) -> Vec<ElectionName> {
    let names = entries.iter().map(|entry| entry.key.name());
    names
        .filter_map(|name| ElectionName::new(name).ok())
        .collect()
}

async fn sessions(store: &dyn Store, keys: &Keys) -> Result<Sessions, Error> {
    let entries = list_all(store, &keys.nodes()).await?;
    let reads: Vec<_> = entries.iter().map(|entry| store.get(&entry.key)).collect();
    let mut reads = stream::iter(reads).buffered(READS_AT_ONCE);
    let mut sessions = Vec::new();
    while let Some(object) = reads.next().await {
        // One that cannot be read, or is gone since, is nobody's candidate.
        if let Some(mut object) = object?
            && let Ok(record) = Record::decode(&object.value)
        {
            // The record is enough: its text would be kept in memory for as long as the view is.
            object.value = Bytes::new();
            sessions.push((record, object));
        }
    }
    Ok(Arc::new(sessions))
}

pub(crate) async fn read<T>(
    store: &dyn Store,
    key: &Key,
    decode: fn(&[u8]) -> Result<T, RecordError>,
) -> Result<Option<(T, Version)>, Error> {
    let found = read_object(store, key, decode).await?;
    Ok(found.map(|(record, object)| (record, object.version)))
}

async fn read_object<T>(
    store: &dyn Store,
    key: &Key,
    decode: fn(&[u8]) -> Result<T, RecordError>,
) -> Result<Option<(T, Object)>, Error> {
    let Some(object) = store.get(key).await? else {
        return Ok(None);
    };
    match decode(&object.value) {
        Ok(record) => Ok(Some((record, object))),
        Err(source) => Err(Error::Unreadable {
            key: key.to_string(),
            source,
        }),
    }
}

/// What of a record could be read, or why it could not be.
fn readable<T>(read: Result<T, Error>) -> Result<Result<T, String>, Error> {
    match read {
        Ok(read) => Ok(Ok(read)),
        Err(Error::Unreadable { source, .. }) => Ok(Err(format!("it cannot be read ({source})"))),
        Err(error) => Err(error),
    }
}

impl Brief {
    /// For how long the current term is held, by one clock: that of the store, or of the host if only one host uses it. None
    /// if nobody leads, if nobody can tell, or if the leader was asked something since: the lease was written for that too.
    #[must_use]
    pub fn held_for(&self) -> Option<Duration> {
        let lease = self.lease.as_ref()?;
        let is_its = lease.holder().is_some() && lease.request.is_none();
        self.lease_age.filter(|_| is_its)
    }
}

impl Status {
    /// Who leads, as the lease says.
    #[must_use]
    pub fn leader(&self) -> Option<&Holder> {
        match &self.lease.as_ref()?.state {
            LeaseState::Held { holder, .. } => Some(holder),
            LeaseState::Vacant | LeaseState::Reserved { .. } => None,
        }
    }

    /// For how long the current term is led, by one clock: that of the store, or of the host if only one host uses it. None
    /// if nobody leads or nobody can tell. The leader's own clock is not asked.
    #[must_use]
    pub fn led_for(&self) -> Option<Duration> {
        let lease = self
            .lease
            .as_ref()
            .filter(|lease| lease.holder().is_some())?;
        let fence = self.fence.as_ref()?;
        let is_its = (fence.lineage, fence.term) == (lease.lineage, lease.term);
        self.fence_age.filter(|_| is_its)
    }

    /// How long the lease of a caller that was asked to go stands from now on at most: then others take it, whether or not the
    /// caller still calls. None if nothing of the kind was asked; nothing inside if the store cannot tell how long ago it was.
    /// To show to people.
    #[must_use]
    pub fn lapses_in(&self) -> Option<Option<Duration>> {
        let (holder, _) = self.lease.as_ref()?.lapsing()?;
        // Nobody writes the lease after the request, until it is taken or given back.
        Some(self.lease_age.map(|age| holder.ttl.saturating_sub(age)))
    }

    /// Whom the lease is reserved for, and for how long at most from now on, if the store can tell.
    #[must_use]
    pub fn reserved(&self) -> Option<(&Holder, Option<Duration>)> {
        let candidate = self.lease.as_ref()?.reserved_for()?;
        let most = candidate.ttl.min(RESERVED_MAX);
        let left = self.lease_age.map(|age| most.saturating_sub(age));
        Some((candidate, left))
    }
}
