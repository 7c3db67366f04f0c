//! The log: records as lines, commits of them as frames, and both read again.
//!
//! Frames are private to `tenure`, and that crate needs a runtime and a URL parser, which take longer to build than all
//! of this program. So its source file is included here, with the two types that it takes from there.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "of the frames, only some is used"
)]

use serde::{Deserialize, Serialize};
use tenure_core::Incarnation;
use tenure_core::election::Term;
use tenure_core::queue::{Command, Rules};

use crate::queue::World;
use crate::{count, report};

// Formatted where it belongs.
#[rustfmt::skip]
#[path = "../../tenure/src/log/frame.rs"]
mod frame;

const COMMITS: usize = 50;
/// What 64 callers have in flight.
const RECORDS: usize = 64;

/// What frames know of `tenure::log::Error`.
#[derive(Debug)]
struct Error(String);

impl Error {
    fn invalid(what: impl Into<String>, _hint: impl Into<String>) -> Self {
        Self(what.into())
    }

    fn corrupt(_location: &impl std::fmt::Display, what: impl Into<String>) -> Self {
        Self(what.into())
    }

    fn newer(_location: &impl std::fmt::Display, what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

/// As `tenure::log::Position`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Position(u64);

pub(crate) fn run() {
    let mut world = World::new();
    let at = world.at();
    let mut lines = Vec::new();
    for action in world.submissions(COMMITS * RECORDS) {
        let command = Command { at, action };
        lines.push(count(|| serde_json::to_vec(&command).unwrap()));
    }
    report("log/record of a submit, written", lines.len());

    for line in &lines {
        count(|| Command::from_record(line).unwrap());
    }
    report("log/record of a submit, read", lines.len());

    let mut written = Vec::new();
    for (seq, records) in lines.chunks(RECORDS).enumerate() {
        let place = place(seq as u64 + 1);
        written.push(count(|| {
            frame::encode(frame::Kind::Commit, place, None, records)
        }));
    }
    report(
        &format!("log/commit of {RECORDS} records, written"),
        COMMITS,
    );

    for bytes in &written {
        count(|| frame::decode(bytes).unwrap());
    }
    report(&format!("log/commit of {RECORDS} records, read"), COMMITS);
}

fn place(seq: u64) -> frame::Cursor {
    frame::Cursor {
        seq,
        position: Position(seq * RECORDS as u64),
        takeover: 1,
        term: Term(1),
        incarnation: Incarnation(0x5eed),
        number: seq,
        rules: Rules::LATEST,
    }
}
