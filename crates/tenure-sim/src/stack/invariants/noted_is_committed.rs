//! What is noted of the log's end is in the log, and a later note does not go back.

use bytes::Bytes;
use serde::Deserialize;

use crate::invariants::Violation;

/// What was noted so far.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    place: u64,
    /// How often a leader ended in an orderly way.
    pub(crate) closed: u64,
}

/// What of the object matters here.
#[derive(Debug, Deserialize)]
struct Reached {
    place: u64,
    closed: bool,
}

impl Noted {
    /// An object was written, while the log had so many places.
    pub(crate) fn written(&mut self, value: &Bytes, committed: u64) -> Result<(), Violation> {
        let broken = |message| Err(Violation::new("what is noted is in the log", message));
        let reached: Reached = serde_json::from_slice(value).expect("a note is JSON");
        if reached.place > committed {
            let place = reached.place;
            return broken(format!(
                "place {place} is noted, and the log has {committed}"
            ));
        }
        if reached.place < self.place {
            let (place, before) = (reached.place, self.place);
            return broken(format!("place {place} is noted, and {before} was before"));
        }
        self.place = reached.place;
        self.closed += u64::from(reached.closed);
        Ok(())
    }
}
