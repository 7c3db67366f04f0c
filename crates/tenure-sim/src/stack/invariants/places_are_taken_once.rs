//! The log has no gap, and no place of it is ever taken by anything else, also after it was cleaned up.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::invariants::Violation;

/// What was first written at each place.
#[derive(Debug, Default)]
pub(crate) struct Places(BTreeMap<u64, Bytes>);

impl Places {
    /// The last place, 0 if there is none.
    pub(crate) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// Whether this is the first that was ever written there.
    pub(crate) fn take(&mut self, place: u64, value: &Bytes) -> Result<bool, Violation> {
        let broken = |message| Err(Violation::new("a place of the log is taken once", message));
        let next = self.0.len() as u64 + 1;
        match self.0.get(&place) {
            // A request that was late, or came twice, after its place was cleaned up.
            Some(first) if first == value => Ok(false),
            Some(_) => broken(format!("place {place} was written a second time")),
            None if place == next => {
                self.0.insert(place, value.clone());
                Ok(true)
            }
            None => broken(format!("place {place} was written, where {next} is next")),
        }
    }
}
