//! The session as it is stored.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cluster::Part;
use crate::queue::Rules;
use crate::record::{self, RecordError, milliseconds};
use crate::session::{Glance, Sighting};
use crate::{ElectionName, Incarnation, NodeId, Nonce, Wall};

/// The label of a session that one-shot calls keep, without a process.
pub const ONE_SHOT: &str = "tenure.one-shot";

/// A session object, at `<namespace>/nodes/<node>/<incarnation>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Record {
    /// The node that this process runs as.
    pub node: NodeId,
    /// This start of the process.
    pub incarnation: Incarnation,
    /// Grows by one with every attempt to write, so that no two writes are alike and a lost answer can be
    /// settled.
    pub counter: u64,
    /// What a write is recognised by, together with the counter: a copy of this process counts as well. Absent in
    /// what older versions wrote.
    #[serde(default, skip_serializing_if = "Nonce::is_none")]
    pub nonce: Nonce,
    /// How long a version must be unchanged before others may evict the session.
    #[serde(rename = "ttl_ms", with = "milliseconds")]
    pub ttl: Duration,
    /// Whether the process is there.
    pub state: State,
    /// When the process joined, for people.
    pub joined_at: Wall,
    /// What the process says about itself. Boxed: records pass through the machines by value.
    #[serde(flatten)]
    pub about: Box<About>,
}

/// What a process says about itself; changed at will, written with the next heartbeat.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct About {
    /// Where other nodes can reach it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The address for nudges, `IP:PORT`, on stores without hints: a datagram there makes the process look at its
    /// leases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nudge: Option<String>,
    /// Free labels, for placement.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// A digest of the secret that the calls of a one-shot candidate carry, if it came over HTTP: a caller that does not
    /// know the secret is another candidate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_digest: Option<String>,
    /// The elections it is a candidate in, with its priority in each.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub stands: BTreeMap<ElectionName, u8>,
    /// What it last saw of the leader's session, for each election it is a candidate in. Only if it makes calls now and
    /// then, and so cannot watch that session.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub seen: BTreeMap<ElectionName, Sighting>,
    /// Some sessions of others that were there when it joined, if it only makes calls now and then. Boxed: few have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passed: Option<Box<Glance>>,
    /// What keeps it from doing what it is asked, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// It is gone because its session was over, for example because it was cut off from its store, and not because it
    /// left. For people.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lost: bool,
    /// The newest [`Rules`] of the queue's log that it can read. Absent in versions that know only the first.
    #[serde(skip_serializing_if = "Rules::are_first")]
    pub rules: Rules,
    /// Its part in the cluster. Boxed: most sessions that pass through the machines have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Box<Part>>,
}

/// Whether the process is there.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It is there, as far as is known.
    Alive,
    /// It left on its own, after all its work had ended.
    Gone,
    /// An observer saw no heartbeat for a whole ttl.
    Evicted {
        /// The observer.
        by: NodeId,
    },
}

/// Who holds something: enough to watch its session, even if the session object is missing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Holder {
    /// The node.
    pub node: NodeId,
    /// The process.
    pub incarnation: Incarnation,
    /// The ttl of its session.
    #[serde(rename = "ttl_ms", with = "milliseconds")]
    pub ttl: Duration,
}

impl Record {
    /// One line of JSON.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        record::encode(self)
    }

    /// Reads a stored session.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        record::decode(bytes)
    }

    /// Whether this is the session of a one-shot candidate: a caller, not a running process.
    #[must_use]
    pub fn is_one_shot(&self) -> bool {
        self.about.labels.contains_key(ONE_SHOT)
    }

    /// Who this session belongs to.
    #[must_use]
    pub fn holder(&self) -> Holder {
        Holder {
            node: self.node.clone(),
            incarnation: self.incarnation,
            ttl: self.ttl,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stored_form_is_stable() {
        let record = Record {
            node: NodeId::new("web-1").unwrap(),
            incarnation: Incarnation(0xabc),
            counter: 7,
            nonce: Nonce(0xfeed),
            ttl: Duration::from_secs(10),
            state: State::Evicted {
                by: NodeId::new("web-2").unwrap(),
            },
            joined_at: Wall(1_700_000_000_000),
            about: Box::new(About {
                stands: [(ElectionName::new("default").unwrap(), 100)].into(),
                ..About::default()
            }),
        };
        let text = r#"{"format":1,"node":"web-1","incarnation":"00000000000000000000000000000abc","counter":7,"nonce":"0000000000000000000000000000feed","ttl_ms":10000,"state":{"evicted":{"by":"web-2"}},"joined_at":1700000000000,"stands":{"default":100}}"#;
        assert_eq!(String::from_utf8(record.encode()).unwrap(), text);
        assert_eq!(Record::decode(text.as_bytes()).unwrap(), record);

        let older = text.replace(r#""nonce":"0000000000000000000000000000feed","#, "");
        let without = Record {
            nonce: Nonce::default(),
            ..record
        };
        assert_eq!(Record::decode(older.as_bytes()).unwrap(), without);
        assert_eq!(String::from_utf8(without.encode()).unwrap(), older);
    }

    #[test]
    fn other_formats_and_damage_are_told_apart() {
        let newer = Record::decode(br#"{"format":2,"whatever":true}"#).unwrap_err();
        assert_eq!(
            newer.to_string(),
            "the record has format 2, but this version reads format 1"
        );
        assert!(matches!(
            Record::decode(b"{"),
            Err(RecordError::Malformed(_))
        ));
        assert!(matches!(
            Record::decode(br#"{"format":1}"#),
            Err(RecordError::Malformed(_))
        ));
    }
}
