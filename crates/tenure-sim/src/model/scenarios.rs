//! The checks: a few processes and faults in each, so that each can be exhaustive.

use std::time::Duration;

use super::{Bounds, FAULTS, Kind};

/// The ttl is ten seconds, heartbeats come every three.
fn bounds(name: &'static str, window_millis: u64, horizon_seconds: u64) -> Bounds {
    Bounds {
        name,
        processes: 2,
        faults: 1,
        window: Duration::from_millis(window_millis),
        horizon: Duration::from_secs(horizon_seconds),
        skewed: false,
        ttls_differ: false,
        twins: false,
        lists: false,
        caller: false,
        // A copy is an additional process and has its own checks, and so does a caller.
        kinds: others(&[Kind::Copied, Kind::PageLost, Kind::PageSlow], &OF_CALLERS),
        states_max: u64::MAX,
    }
}

fn others(than: &[Kind], nor: &[Kind]) -> Vec<Kind> {
    let all = FAULTS.iter().copied();
    let kept = all.filter(|kind| !than.contains(kind) && !nor.contains(kind));
    kept.collect()
}

const REQUESTS: [Kind; 5] = [
    Kind::Refused,
    Kind::AnswerLost,
    Kind::Late,
    Kind::Slow,
    Kind::Duplicated,
];

/// Leaves out faults after which a process starts again, since too many states follow.
const OTHERS: [Kind; 7] = [
    Kind::Pause,
    Kind::Resign,
    Kind::WorkHangs,
    Kind::LeaseDeleted,
    Kind::LeaseRestored,
    Kind::FenceDeleted,
    Kind::SessionDeleted,
];

/// Faults of listings, and of what a page may show or hide.
const OF_LISTINGS: [Kind; 7] = [
    Kind::PageLost,
    Kind::PageSlow,
    Kind::Slow,
    Kind::CrashForGood,
    Kind::Resign,
    Kind::LeaseDeleted,
    Kind::LeaseRestored,
];

/// Requests to a caller, and its actions.
const OF_CALLERS: [Kind; 3] = [
    Kind::CallerCalls,
    Kind::CallerAsked,
    Kind::CallerAskedToTransfer,
];

const OF_THREE: [Kind; 5] = [
    Kind::AnswerLost,
    Kind::Late,
    Kind::CrashForGood,
    Kind::Resign,
    Kind::LeaseDeleted,
];

/// All checks, for `make model`.
#[must_use]
pub fn all() -> Vec<Bounds> {
    vec![
        bounds("equal clocks", 4000, 16),
        Bounds {
            skewed: true,
            ..bounds("clocks apart", 13_000, 24)
        },
        Bounds {
            ttls_differ: true,
            ..bounds("ttls 10 s and 20 s", 3500, 24)
        },
        Bounds {
            twins: true,
            ..bounds("one node id", 3500, 16)
        },
        Bounds {
            skewed: true,
            kinds: vec![Kind::Copied],
            ..bounds("a copy of a process", 7000, 24)
        },
        Bounds {
            skewed: true,
            lists: true,
            kinds: OF_LISTINGS.to_vec(),
            ..bounds("looks by listings", 7000, 24)
        },
        Bounds {
            faults: 2,
            skewed: true,
            caller: true,
            kinds: OF_CALLERS.to_vec(),
            ..bounds("a caller that is asked to go", 4000, 24)
        },
        Bounds {
            faults: 2,
            lists: true,
            kinds: vec![Kind::PageLost, Kind::PageSlow],
            ..bounds("two faults of listings", 7000, 24)
        },
        Bounds {
            faults: 2,
            skewed: true,
            kinds: REQUESTS.to_vec(),
            ..bounds("two faults of requests", 0, 13)
        },
        Bounds {
            faults: 2,
            skewed: true,
            kinds: OTHERS.to_vec(),
            ..bounds("two faults of others", 0, 11)
        },
        Bounds {
            processes: 3,
            skewed: true,
            kinds: OF_THREE.to_vec(),
            ..bounds("three processes", 0, 11)
        },
    ]
}

/// Small checks, for the tests.
#[must_use]
pub fn small() -> Vec<Bounds> {
    vec![
        bounds("equal clocks", 0, 8),
        Bounds {
            skewed: true,
            ..bounds("clocks apart", 2990, 8)
        },
    ]
}
