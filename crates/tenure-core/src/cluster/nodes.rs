//! The nodes as the leader knows them: live sessions, and those that have ended.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::report::{Going, Part};
use crate::session::observer::End;
use crate::session::{Record, State};
use crate::{DaemonId, Incarnation, Moment, NodeId};

/// Every session that matters.
#[derive(Debug, Clone, Default, Hash)]
pub(crate) struct Nodes {
    live: BTreeMap<Incarnation, Record>,
    ended: BTreeMap<Incarnation, Ended>,
}

/// A session that has ended: what it held is free.
#[derive(Debug, Clone, Hash)]
pub(crate) struct Ended {
    pub(crate) how: End,
    /// Its node is restarting: until then its shards are kept for it.
    pub(crate) kept_until: Option<Moment>,
}

impl Nodes {
    /// Takes a session record. Returns whether it changes anything.
    pub(crate) fn hear(&mut self, now: Moment, record: Record, restart_max: Duration) -> bool {
        let incarnation = record.incarnation;
        if self.ended.contains_key(&incarnation) {
            return false;
        }
        let how = match record.state {
            State::Alive => {
                let known = self.live.get(&incarnation);
                // Reads may overtake each other; only the newest counts.
                if known.is_some_and(|known| known.counter > record.counter) {
                    return false;
                }
                let changed = known.is_none_or(|known| known.about != record.about);
                self.live.insert(incarnation, record);
                return changed;
            }
            State::Gone if record.about.lost => End::Lost,
            State::Gone => End::Gone,
            State::Evicted { .. } => End::Evicted,
        };
        self.live.insert(incarnation, record);
        self.end(now, incarnation, how, restart_max)
    }

    /// Notes that a session has ended. Returns whether that is news.
    pub(crate) fn end(
        &mut self,
        now: Moment,
        incarnation: Incarnation,
        how: End,
        restart_max: Duration,
    ) -> bool {
        let record = self.live.remove(&incarnation);
        if self.ended.contains_key(&incarnation) {
            return false;
        }
        let going = record.and_then(|record| Part::of(&record.about).going);
        let kept_until = match going {
            Some(Going::Restarting { within }) => Some(now + within.min(restart_max)),
            Some(Going::Leaving) | None => None,
        };
        self.ended.insert(incarnation, Ended { how, kept_until });
        true
    }

    /// Takes a whole listing: a session that is not in it is neither live nor known to have ended.
    pub(crate) fn retain_live(&mut self, listed: &BTreeSet<Incarnation>) {
        self.live
            .retain(|incarnation, _| listed.contains(incarnation));
    }

    /// Drops sessions that have ended and hold nothing.
    pub(crate) fn forget_ended(&mut self, keep: impl Fn(Incarnation) -> bool) {
        self.ended.retain(|&incarnation, _| keep(incarnation));
    }

    pub(crate) fn live(&self) -> &BTreeMap<Incarnation, Record> {
        &self.live
    }

    pub(crate) fn ended(&self, incarnation: Incarnation) -> Option<&Ended> {
        self.ended.get(&incarnation)
    }

    /// A live session of the node that offers the daemon and is not about to leave.
    pub(crate) fn back(&self, node: &NodeId, daemon: &DaemonId) -> Option<&Record> {
        self.live
            .values()
            .find(|record| record.node == *node && Part::of(&record.about).takes(daemon))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::About;
    use crate::{DaemonId, Wall};

    fn record(counter: u64, offers: &str, state: State) -> Record {
        let part = Part {
            offers: [(
                DaemonId::new(offers).unwrap(),
                crate::cluster::Definition::shards(1),
            )]
            .into(),
            ..Part::default()
        };
        Record {
            node: NodeId::new("a").unwrap(),
            incarnation: Incarnation(1),
            counter,
            nonce: crate::Nonce::default(),
            ttl: Duration::from_secs(10),
            state,
            joined_at: Wall(0),
            about: Box::new(About {
                cluster: Some(Box::new(part)),
                ..About::default()
            }),
        }
    }

    #[test]
    fn an_older_record_that_arrives_late_is_ignored() {
        let (now, never) = (Moment::default(), Duration::ZERO);
        let mut nodes = Nodes::default();
        assert!(nodes.hear(now, record(2, "new", State::Alive), never));
        assert!(!nodes.hear(now, record(1, "old", State::Alive), never));
        assert!(
            !nodes.hear(now, record(3, "new", State::Alive), never),
            "only a heartbeat"
        );
        assert_eq!(nodes.live()[&Incarnation(1)].counter, 3);
    }

    #[test]
    fn a_session_that_is_listed_no_more_is_neither_live_nor_ended() {
        let (now, never) = (Moment::default(), Duration::ZERO);
        let mut nodes = Nodes::default();
        nodes.hear(now, record(1, "d", State::Alive), never);
        nodes.retain_live(&[Incarnation(1), Incarnation(2)].into());
        assert_eq!(nodes.live().len(), 1);
        nodes.retain_live(&[Incarnation(2)].into());
        assert!(nodes.live().is_empty());
        assert!(nodes.ended(Incarnation(1)).is_none(), "nobody says so");
        assert!(
            nodes.hear(now, record(2, "d", State::Alive), never),
            "it is back"
        );
    }

    #[test]
    fn what_has_ended_has_ended() {
        let (now, never) = (Moment::default(), Duration::ZERO);
        let mut nodes = Nodes::default();
        assert!(nodes.hear(now, record(2, "d", State::Gone), never));
        assert!(!nodes.hear(now, record(3, "d", State::Alive), never));
        assert!(nodes.live().is_empty());
    }
}
