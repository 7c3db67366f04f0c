//! Removes what dead sessions leave behind that no leader of a cluster watches.
//!
//! A node lists the sessions of its namespace now and then, and remembers since when each version stands. One that has
//! stood for its whole ttl, and for a minute, belongs to nobody who is alive: it is evicted, by a conditional write,
//! as any observer may. One that has ended, and has stood for long after that, is deleted. A delete is not conditional, and need not
//! be: an incarnation is never used twice, so nobody writes such an object again; a process that was paused for so long
//! finds its session missing, which ends it as much as being evicted does. Times are differences of this process's own
//! clock. Sessions with a part in a cluster are left alone: assignments may name them, and its leader watches them. It does
//! not watch one-shot candidates, so it removes them like this, too.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use tenure_core::session::{Holder, Record, State};
use tenure_core::{Incarnation, Moment};
use tenure_store::{Entry, Error, Expect, Key, Store, Version};

use crate::keys::Keys;

/// How many sessions are evicted or deleted at a time, and how many are read in vain: those that live, or are kept for now.
const REMOVED_MAX: usize = 64;
const IN_VAIN_MAX: usize = 8;

/// How many sessions are remembered. Others are seen to when these are gone.
const SEEN_MAX: usize = 10_000;

/// How long a version stands before it is looked at.
const STANDS_MIN: Duration = Duration::from_secs(60);

/// How long a dead session is kept, in times of its ttl.
const KEPT_TTLS: u32 = 10;

/// Since when each session has stood as it is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sweep {
    seen: BTreeMap<Incarnation, (Version, Moment)>,
}

impl Sweep {
    /// Takes a listing of all sessions; for some of them a read, and a write or a delete.
    pub(crate) async fn look(
        mut self,
        store: &dyn Store,
        entries: Vec<Entry>,
        me: &Holder,
        now: impl Fn() -> Moment,
    ) -> Result<Self, Error> {
        // Whatever was listed stood so by now.
        let listed_at = now();
        let before = std::mem::take(&mut self.seen);
        let mut quiet = Vec::new();
        for entry in entries {
            let Some((_, incarnation)) = Keys::session_of(&entry.key) else {
                continue;
            };
            if incarnation == me.incarnation || self.seen.len() == SEEN_MAX {
                continue;
            }
            let since = match before.get(&incarnation) {
                Some((version, since)) if *version == entry.version => *since,
                _ => listed_at,
            };
            if listed_at.since(since) >= STANDS_MIN {
                quiet.push((entry.key, since));
            }
            self.seen.insert(incarnation, (entry.version, since));
        }
        // Those that live and hold nothing to be seen are not in the way of the others for ever.
        quiet.sort_by_key(|(_, since)| *since);
        let skipped = usize::try_from(listed_at.since(Moment::default()).as_secs()).unwrap_or(0);
        let places = quiet.len();
        let start = skipped % places.max(1);
        let (mut removed, mut in_vain) = (0, 0);
        for (key, since) in quiet.iter().cycle().skip(start).take(places) {
            if remove(store, key, *since, me, &self.seen, &now).await? {
                removed += 1;
            } else {
                in_vain += 1;
            }
            if removed >= REMOVED_MAX || in_vain >= IN_VAIN_MAX {
                break;
            }
        }
        Ok(self)
    }
}

/// Evicts a session, or deletes it, if it is time. Whether it was.
async fn remove(
    store: &dyn Store,
    key: &Key,
    since: Moment,
    me: &Holder,
    seen: &BTreeMap<Incarnation, (Version, Moment)>,
    now: &impl Fn() -> Moment,
) -> Result<bool, Error> {
    let stood = now().since(since);
    let Some(object) = store.get(key).await? else {
        return Ok(false);
    };
    let Ok(mut record) = Record::decode(&object.value) else {
        return Ok(false);
    };
    let is_as_seen = seen
        .get(&record.incarnation)
        .is_some_and(|(version, _)| *version == object.version);
    if !is_as_seen || record.about.cluster.is_some() {
        return Ok(false);
    }
    match record.state {
        State::Alive if stood >= record.ttl => {
            record.state = State::Evicted {
                by: me.node.clone(),
            };
            let value = Bytes::from(record.encode());
            let expect = Expect::Version(object.version);
            match store.put(key, value, &expect).await {
                // It has come back, or somebody else was faster; or it is seen at the next look.
                Ok(_) | Err(Error::Conflict { .. } | Error::Unknown { .. }) => Ok(true),
                Err(error) => Err(error),
            }
        }
        State::Gone | State::Evicted { .. } if stood >= record.ttl.saturating_mul(KEPT_TTLS) => {
            store.delete(key).await.map(|()| true)
        }
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tenure_core::{Namespace, NodeId, Wall};
    use tenure_store::engine::memory::Memory;
    use tenure_store::list_all;

    use super::*;

    #[tokio::test]
    async fn many_dead_are_removed_at_one_look() {
        let (store, keys) = (Memory::new(), Keys::new(Namespace::new("test").unwrap()));
        let record = |incarnation| Record {
            node: NodeId::new("a").unwrap(),
            incarnation: Incarnation(incarnation),
            counter: 1,
            nonce: tenure_core::Nonce::default(),
            ttl: Duration::from_secs(30),
            state: State::Gone,
            joined_at: Wall(0),
            about: Box::default(),
        };
        for incarnation in 0..60 {
            let record = record(incarnation);
            let key = keys.session(&record.holder());
            let value = Bytes::from(record.encode());
            store.put(&key, value, &Expect::Absent).await.unwrap();
        }
        let me = record(100).holder();
        let mut sweep = Sweep::default();
        for seconds in [0, 300] {
            let at = Moment::default() + Duration::from_secs(seconds);
            let entries = list_all(&store, &keys.nodes()).await.unwrap();
            sweep = sweep.look(&store, entries, &me, || at).await.unwrap();
        }
        let left = list_all(&store, &keys.nodes()).await.unwrap();
        assert_eq!(left, []);
    }

    #[tokio::test]
    async fn what_stands_still_is_evicted_and_then_deleted_and_nothing_else() {
        let (store, keys) = (Memory::new(), Keys::new(Namespace::new("test").unwrap()));
        let record = |incarnation, state| Record {
            node: NodeId::new("a").unwrap(),
            incarnation: Incarnation(incarnation),
            counter: 1,
            nonce: tenure_core::Nonce::default(),
            ttl: Duration::from_secs(30),
            state,
            joined_at: Wall(0),
            about: Box::default(),
        };
        let write = async |record: &Record| {
            let key = keys.session(&record.holder());
            let expect = match store.get(&key).await.unwrap() {
                None => Expect::Absent,
                Some(object) => Expect::Version(object.version),
            };
            let value = Bytes::from(record.encode());
            store.put(&key, value, &expect).await.unwrap();
        };
        let state = async |incarnation| {
            let key = keys.session(&record(incarnation, State::Alive).holder());
            let object = store.get(&key).await.unwrap()?;
            Some(Record::decode(&object.value).unwrap().state)
        };
        let me = record(1, State::Alive).holder();
        let (dead, gone, alive, member) = (2, 3, 4, 5);
        for incarnation in [1, dead, alive] {
            write(&record(incarnation, State::Alive)).await;
        }
        write(&record(gone, State::Gone)).await;
        let mut in_cluster = record(member, State::Alive);
        in_cluster.about.cluster = Some(Box::default());
        write(&in_cluster).await;

        let at = Cell::new(Moment::default());
        let mut sweep = Sweep::default();
        let mut look = async |seconds| {
            at.set(Moment::default() + Duration::from_secs(seconds));
            write(&record(alive, State::Alive)).await;
            let entries = list_all(&store, &keys.nodes()).await.unwrap();
            sweep = std::mem::take(&mut sweep)
                .look(&store, entries, &me, || at.get())
                .await
                .unwrap();
        };
        let evicted = Some(State::Evicted {
            by: NodeId::new("a").unwrap(),
        });
        look(0).await;
        look(59).await;
        assert_eq!(state(dead).await, Some(State::Alive), "not long enough");
        look(60).await;
        assert_eq!(state(dead).await, evicted);
        assert_eq!(state(gone).await, Some(State::Gone));
        look(300).await;
        assert_eq!(state(gone).await, None);
        assert_eq!(state(dead).await, evicted);
        look(600).await;
        assert_eq!(state(dead).await, None);
        for incarnation in [1, alive, member] {
            assert_eq!(
                state(incarnation).await,
                Some(State::Alive),
                "{incarnation}"
            );
        }
    }
}
