//! A term has one process that writes, and one that was replaced writes nothing any more.

use std::collections::BTreeMap;

use tenure_core::Incarnation;
use tenure_core::election::Term;

use super::super::ledger::Header;
use crate::invariants::Violation;

/// Who has written so far.
#[derive(Debug, Default)]
pub(crate) struct Writers {
    takeover: u64,
    terms: BTreeMap<u64, Incarnation>,
    /// The last term that has begun to serve.
    serving: u64,
}

impl Writers {
    /// A broker serves, so the leader before it is replaced, though nothing was committed since.
    pub(crate) fn serves(&mut self, term: Term) {
        self.serving = self.serving.max(term.0);
    }

    pub(crate) fn check(&mut self, header: &Header) -> Result<(), Violation> {
        let broken = |message| Err(Violation::new("a term has one writer", message));
        if header.takeover < self.takeover {
            return broken(format!(
                "take-over {} writes place {} after take-over {}",
                header.takeover, header.seq, self.takeover
            ));
        }
        if header.term < self.serving {
            return broken(format!(
                "term {} writes place {}, and term {} serves",
                header.term, header.seq, self.serving
            ));
        }
        self.takeover = header.takeover;
        let writer = self.terms.entry(header.term).or_insert(header.incarnation);
        if *writer == header.incarnation {
            Ok(())
        } else {
            broken(format!(
                "{} and {writer} write in term {}",
                header.incarnation, header.term
            ))
        }
    }
}
