//! Other processes that run under this node's id.
//!
//! Ownership goes by incarnation, so two processes with one id harm nobody: they are two candidates. It is
//! nearly always a mistake in somebody's configuration all the same, and is reported.
//!
//! A session that is merely there proves nothing: a process that was killed leaves one behind. One that is
//! written between two looks, and says that it is alive, belongs to a process that runs beside this one.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::session::{Config, Holder, Record, State};
use tenure_core::{Incarnation, Moment};
use tenure_store::{Entry, Error, Store, Version};

use crate::is_one_shot;
use crate::keys::Keys;

/// The second look comes after this share of a heartbeat: a live process has written by then.
const SECOND_LOOK_HEARTBEATS: (u32, u32) = (3, 2);

/// Later looks are for those who come later, and may be rare.
const LATER_LOOK_HEARTBEATS: u32 = 10;

/// One look of so many removes dead sessions.
const SWEEP_LOOKS: u32 = 10;

/// What was seen, and when to look again.
#[derive(Debug, Default)]
pub(crate) struct Duplicates {
    pub(crate) next_look: Option<Moment>,
    looks: u32,
    seen: Versions,
    reported: BTreeMap<Incarnation, Record>,
}

/// The sessions under this node's id, without the own one.
pub(crate) type Versions = BTreeMap<Incarnation, Version>;

/// One look.
#[derive(Debug)]
pub(crate) struct Look {
    seen: Versions,
    alive: Vec<Record>,
}

impl Duplicates {
    /// What is known, for the next look to compare with.
    pub(crate) fn begin(&mut self) -> Versions {
        self.next_look = None;
        self.seen.clone()
    }

    /// Whether this look, which is rare already, is one of the few at which dead sessions are removed as well.
    pub(crate) fn is_time_to_sweep(&self) -> bool {
        self.looks % SWEEP_LOOKS == 1
    }

    /// Takes a look, or that it failed, and returns those who were not reported before.
    pub(crate) fn end(&mut self, now: Moment, config: &Config, look: Option<Look>) -> Vec<Record> {
        let (times, parts) = SECOND_LOOK_HEARTBEATS;
        let Some(look) = look else {
            self.next_look = Some(now + config.heartbeat);
            return Vec::new();
        };
        self.looks += 1;
        let pause: Duration = match self.looks {
            1 => config.heartbeat * times / parts,
            _ => config.heartbeat * LATER_LOOK_HEARTBEATS,
        };
        self.next_look = Some(now + pause);
        self.seen = look.seen;
        let before = std::mem::take(&mut self.reported);
        let alive = look.alive.into_iter();
        self.reported = alive.map(|record| (record.incarnation, record)).collect();
        let is_new = |record: &&Record| !before.contains_key(&record.incarnation);
        self.reported.values().filter(is_new).cloned().collect()
    }

    pub(crate) fn reported(&self) -> Vec<Record> {
        self.reported.values().cloned().collect()
    }
}

/// Looks who is there, in a listing that has all sessions under this node's id: a read for each that has moved.
pub(crate) async fn look(
    store: &dyn Store,
    me: &Holder,
    before: &Versions,
    listed: &[Entry],
) -> Result<Look, Error> {
    let mut look = Look {
        seen: Versions::new(),
        alive: Vec::new(),
    };
    for entry in listed {
        let Some((node, incarnation)) = Keys::session_of(&entry.key) else {
            continue;
        };
        if node != me.node || incarnation == me.incarnation {
            continue;
        }
        let has_moved = before
            .get(&incarnation)
            .is_some_and(|version| *version != entry.version);
        if has_moved
            && let Some(object) = store.get(&entry.key).await?
            && let Ok(record) = Record::decode(&object.value)
            && record.state == State::Alive
            // A caller of one-shot elections on the same host is not another node.
            && !is_one_shot(&record)
            && !only_complains(&record)
        {
            look.alive.push(record);
        }
        look.seen.insert(incarnation, entry.version.clone());
    }
    Ok(look)
}

/// A session that is no candidate anywhere, and is there to say what is wrong: of this very process, as a rule, whose own
/// session is over.
fn only_complains(record: &Record) -> bool {
    let about = &record.about;
    about.trouble.is_some() && about.stands.is_empty() && about.cluster.is_none()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tenure_core::{Namespace, NodeId, Wall};
    use tenure_store::engine::memory::Memory;
    use tenure_store::{Expect, list_all};

    use super::*;

    fn record(incarnation: u128, counter: u64, state: State) -> Record {
        Record {
            node: NodeId::new("a").unwrap(),
            incarnation: Incarnation(incarnation),
            counter,
            nonce: tenure_core::Nonce::default(),
            ttl: Duration::from_secs(10),
            state,
            joined_at: Wall(0),
            about: Box::default(),
        }
    }

    #[tokio::test]
    async fn only_what_moves_and_lives_is_a_duplicate() {
        let (store, config) = (Memory::new(), Config::default());
        let keys = Keys::new(Namespace::new("test").unwrap());
        let write = async |record: Record| {
            let key = keys.session(&record.holder());
            let expect = match store.get(&key).await.unwrap() {
                None => Expect::Absent,
                Some(object) => Expect::Version(object.version),
            };
            let value = Bytes::from(record.encode());
            store.put(&key, value, &expect).await.unwrap();
        };
        let me = record(1, 1, State::Alive).holder();
        let by = NodeId::new("b").unwrap();
        let (killed, evicted, twin) = (2, 3, 4);
        for incarnation in [1, killed, evicted, twin] {
            write(record(incarnation, 1, State::Alive)).await;
        }
        let mut duplicates = Duplicates::default();
        let mut see = async || {
            let before = duplicates.begin();
            let listed = list_all(&store, &keys.sessions_of(&me.node)).await.unwrap();
            let look = look(&store, &me, &before, &listed).await.unwrap();
            let new = duplicates.end(Moment::default(), &config, Some(look));
            let ids = |records: Vec<Record>| -> Vec<u128> {
                records.iter().map(|record| record.incarnation.0).collect()
            };
            (ids(new), ids(duplicates.reported()))
        };
        assert_eq!(see().await, (vec![], vec![]));
        for incarnation in [1, twin] {
            write(record(incarnation, 2, State::Alive)).await;
        }
        write(record(evicted, 1, State::Evicted { by })).await;
        assert_eq!(see().await, (vec![twin], vec![twin]));
        write(record(twin, 3, State::Alive)).await;
        assert_eq!(see().await, (vec![], vec![twin]), "told once");
        write(record(twin, 4, State::Gone)).await;
        assert_eq!(see().await, (vec![], vec![]));
    }
}
