//! The cluster machines as a whole: text traces, scenarios, a seeded simulation, and a large cluster.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a test says what it found, and fails where it cannot go on"
)]

#[path = "cluster/scale.rs"]
mod scale;
#[path = "cluster/scenarios.rs"]
mod scenarios;
#[path = "cluster/simulation.rs"]
mod simulation;
#[path = "cluster/traces.rs"]
mod traces;
#[path = "cluster/world.rs"]
mod world;
