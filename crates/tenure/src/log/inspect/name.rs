//! Names of what is stored, as people type them. Only what a leader would have written is a name.

use std::fmt;
use std::str::FromStr;

use crate::log::{Error, segment, snapshot};

/// The name of something that is stored, below the `queue` folder of the namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Name {
    /// `log/<place>`: one commit.
    Object(u64),
    /// `segments/<takeover>-<number>`: many commits.
    Segment(String),
    /// `snapshot/<place>-<unique>`: a snapshot, all of its objects.
    Snapshot(String),
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Name::Object(place) => write!(formatter, "log/{place:020}"),
            Name::Segment(name) => write!(formatter, "segments/{name}"),
            Name::Snapshot(name) => write!(formatter, "snapshot/{name}"),
        }
    }
}

/// Takes what [`Display`](fmt::Display) writes.
impl FromStr for Name {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let name = match text.split_once('/') {
            Some(("log", place)) => place.parse().ok().map(Name::Object),
            Some(("segments", name)) => {
                let is_name = name.parse::<segment::Name>().is_ok();
                is_name.then(|| Name::Segment(name.to_owned()))
            }
            Some(("snapshot", name)) => {
                let is_name = snapshot::seq_of(name).is_some() && !name.contains('/');
                is_name.then(|| Name::Snapshot(name.to_owned()))
            }
            _ => None,
        };
        name.filter(|name| name.to_string() == text).ok_or_else(|| {
            Error::invalid(
                format!("{text:?} is not the name of anything in a log"),
                "use a log index, or a name such as log/00000000000000000007",
            )
        })
    }
}
