//! What the machines know of storage: the four outcomes of a write, and reads that can fail.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The store's name for one write of one object: compared, never looked into.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Version(Arc<str>);

/// What a conditional write expects to find.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Expect {
    /// No object.
    Absent,
    /// Exactly this version.
    Version(Version),
}

/// How a write ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Written {
    /// Applied; this is the new version.
    Done(Version),
    /// Not applied: the object was not as expected. The conflict may be with an earlier write of
    /// our own, so every conflict is read back.
    Conflict,
    /// Not applied: the store could not be reached, or refused.
    NotApplied,
    /// The answer was lost: applied, not applied, or still on its way.
    Unknown,
}

/// How a read ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Read<T> {
    /// The object is still at the version that the reader knew.
    Unchanged {
        /// How long ago its write was begun, on a clock that cannot be set, where the store can say.
        age: Option<Duration>,
    },
    /// The object.
    Found {
        /// What it says.
        record: T,
        /// Its version.
        version: Version,
        /// How long ago its write was begun, on a clock that cannot be set, where the store can say.
        age: Option<Duration>,
    },
    /// Something is there that this software cannot read.
    Unreadable {
        /// Its version.
        version: Version,
    },
    /// There is no object.
    Missing,
    /// The store did not answer.
    Failed,
}

impl Version {
    /// Takes the store's name for a write.
    pub fn new(tag: impl Into<Arc<str>>) -> Self {
        Self(tag.into())
    }

    /// The name that [`Version::new`] was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Version({})", self.0)
    }
}
