//! Versions: compared, never ordered and never looked into.

use std::fmt;
use std::sync::Arc;

/// Names one write of one object. Two versions are equal exactly if they name the same write.
#[derive(Clone)]
pub struct Version {
    tag: Arc<str>,
    /// What the engine needs for a conditional write besides the tag. Google Cloud Storage compares generations on a
    /// write but reports only an `ETag` in a listing, so a version from there has none.
    guard: Option<Arc<str>>,
}

impl Version {
    /// Makes a version. For engines, including those outside this crate.
    pub fn new(tag: impl Into<Arc<str>>) -> Self {
        Self {
            tag: tag.into(),
            guard: None,
        }
    }

    /// Makes a version that also carries what the engine needs for a conditional write.
    pub fn with_guard(tag: impl Into<Arc<str>>, guard: impl Into<Arc<str>>) -> Self {
        Self {
            tag: tag.into(),
            guard: Some(guard.into()),
        }
    }

    /// The engine's name for the write.
    #[must_use]
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// The guard that [`Version::with_guard`] was given.
    #[must_use]
    pub fn guard(&self) -> Option<&str> {
        self.guard.as_deref()
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        self.tag == other.tag
    }
}

impl Eq for Version {}

impl fmt::Debug for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Version({})", self.tag)
    }
}
