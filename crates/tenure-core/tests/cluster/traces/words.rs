//! Words for times, shards, states and sessions.

use std::time::Duration;

use tenure_core::cluster::{AssignmentState, Generation, RunState, Shard};
use tenure_core::session::Holder;
use tenure_core::{DaemonId, Expect, Incarnation, Moment, NodeId, Version};

/// What the clock shows when a story begins.
pub(crate) const ORIGIN: Moment = Moment::from_origin(Duration::from_secs(100_000));

pub(crate) fn seconds(text: &str) -> Option<Duration> {
    text.parse().ok().map(Duration::from_secs_f64)
}

pub(crate) fn moment(at: Duration) -> Moment {
    ORIGIN + at
}

/// A moment as seconds since the story began.
pub(crate) fn clock(moment: Moment) -> String {
    format!("{:.3}", moment.since(ORIGIN).as_secs_f64())
}

/// The session of a node that is named by one letter: `a` is incarnation 10.
pub(crate) fn holder(node: &str) -> Option<Holder> {
    Some(Holder {
        node: NodeId::new(node).ok()?,
        incarnation: Incarnation(u128::from_str_radix(node, 36).ok()?),
        ttl: Duration::from_secs(10),
    })
}

pub(crate) fn shard(text: &str) -> Option<Shard> {
    let (daemon, index) = text.split_once('/')?;
    Some(Shard {
        daemon: DaemonId::new(daemon).ok()?,
        index: index.parse().ok()?,
    })
}

pub(crate) fn generation(text: &str) -> Option<Generation> {
    text.parse().ok().map(Generation)
}

pub(crate) fn assignment_state(text: &str) -> Option<AssignmentState> {
    Some(match text {
        "assigning" => AssignmentState::Assigning,
        "active" => AssignmentState::Active,
        "revoking" => AssignmentState::Revoking,
        _ => return None,
    })
}

pub(crate) fn state_name(state: AssignmentState) -> &'static str {
    match state {
        AssignmentState::Assigning => "assigning",
        AssignmentState::Active => "active",
        AssignmentState::Revoking => "revoking",
    }
}

pub(crate) fn run_state(text: &str) -> Option<RunState> {
    Some(match text {
        "starting" => RunState::Starting,
        "running" => RunState::Running,
        "draining" => RunState::Draining,
        "stopped" => RunState::Stopped,
        "failed" => RunState::failed("no luck"),
        _ => return None,
    })
}

pub(crate) fn run_state_name(state: &RunState) -> String {
    match state {
        RunState::Starting => "starting".to_owned(),
        RunState::Running => "running".to_owned(),
        RunState::Draining => "draining".to_owned(),
        RunState::Stopped => "stopped".to_owned(),
        RunState::Failed { error } => format!("failed ({error})"),
    }
}

pub(crate) fn over(expect: &Expect) -> String {
    match expect {
        Expect::Absent => "over nothing".to_owned(),
        Expect::Version(version) => format!("over {}", version.as_str()),
    }
}

pub(crate) fn version(text: &str) -> Option<Version> {
    text.starts_with('v').then(|| Version::new(text))
}
