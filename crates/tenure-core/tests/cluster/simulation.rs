//! Random faults from a seed, then none, and then everything must come to rest as it should.

use std::time::Duration;

use tenure_core::DaemonId;
use tenure_core::cluster::{Definition, Going};

use crate::world::{Faults, World};

const NODES: usize = 5;

/// How long after the last fault everything runs: a session's ttl, what its node was given by others before, then a
/// revoke that is not answered, and the longest that a node is passed over, twice.
const REST: Duration = Duration::from_secs(150);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn a() -> DaemonId {
    DaemonId::new("a").unwrap()
}

/// One run; returns a digest of everything that happened.
pub(crate) fn run(seed: u64) -> u64 {
    let mut world = World::new(
        seed,
        NODES,
        &[("a", Definition::shards(9)), ("b", Definition::shards(4))],
    );
    world.run(seconds(10));
    world.faults = Faults {
        lost_answers: world.random.below(15),
        slow_answers: world.random.below(15),
        failing_starts: world.random.below(30),
        hanging_daemons: world.random.below(20),
        ..Faults::default()
    };
    let end = seconds(60 + world.random.below(120));
    while world.now < end {
        let pause = Duration::from_millis(world.random.below(6000));
        let until = world.now + pause;
        while world.step(until) {
            if world.random.percent(1) {
                world.keep_a_leader();
            }
        }
        disturb(&mut world);
    }
    heal(&mut world);
    world.run(REST);
    let loads = world
        .settled()
        .unwrap_or_else(|error| panic!("seed {seed}: {error}\n{}", world.describe()));
    let spread = loads.iter().max().unwrap() - loads.iter().min().unwrap();
    assert!(
        spread <= 1,
        "seed {seed}: loads {loads:?}\n{}",
        world.describe()
    );
    let (rest, writes) = (world.now, world.assignment_writes);
    world.run(seconds(60));
    assert_eq!(
        world.started_since(rest),
        [],
        "seed {seed}: at rest nothing moves"
    );
    assert_eq!(
        world.assignment_writes, writes,
        "seed {seed}: at rest nothing is written"
    );
    world.digest
}

/// Some lead, then the election is started over at term 1, in another lineage, and then a node dies: its shards run
/// elsewhere.
pub(crate) fn start_over(seed: u64) -> Result<(), String> {
    let mut world = World::new(seed, 3, &[("a", Definition::shards(12))]);
    world.run(seconds(20));
    for node in [1, 2, 0] {
        world.elect(node, seconds(1));
        world.run(seconds(5));
    }
    world.start_over(2);
    world.run(seconds(5));
    world.kill(0);
    world.run(seconds(30));
    world.settled().map(drop)
}

/// Assignments are deleted when a process has just read that it is to run a shard, and is stopped before it can report
/// that; the leaders before die or resign a moment later. Panics if two nodes trust themselves with one shard.
pub(crate) fn lose(seed: u64) {
    let mut world = World::new(seed, 4, &[("a", Definition::shards(8))]);
    world.faults = Faults {
        slow_answers: 20,
        lost_answers: 5,
        stopped_starts: 30,
        ..Faults::default()
    };
    for _ in 0..8 {
        world.run_until_stopped(seconds(25));
        let pause = Duration::from_millis(world.random.below(300));
        world.run(pause);
        world.delete_assignments();
        if let Some(leader) = world.leader {
            world.kill(leader);
            world.boot_in(leader, seconds(1));
        }
        let pause = Duration::from_millis(world.random.below(2000));
        world.run(pause);
        let next = world.random.index(4);
        world.elect(next, Duration::ZERO);
        let pause = Duration::from_millis(world.random.below(20_000));
        world.run(pause);
    }
}

fn disturb(world: &mut World) {
    let random = &mut world.random;
    let node = random.index(NODES);
    let kind = random.below(14);
    let long = Duration::from_millis(random.below(25_000));
    match kind {
        0 | 1 => {
            world.kill(node);
            world.boot_in(node, long);
        }
        2 => world.pause(node, long),
        3 => world.faults.outage_until = world.now + long / 3,
        4 => {
            world.leave(node, Going::Leaving);
            world.boot_in(node, long * 2);
        }
        5 => {
            let within = seconds(20);
            world.leave(node, Going::Restarting { within });
            world.boot_in(node, long);
        }
        6 => world.drain(node, true),
        7 => world.drain(node, false),
        8 => {
            // A rolling change of the number of shards, or the way back.
            let count = 7 + u32::try_from(random.below(2)).unwrap() * 2;
            world.nodes[node]
                .offers
                .insert(a(), Definition::shards(count));
            world.kill(node);
            world.boot_in(node, long);
        }
        9 => world.delete_session(node),
        _ => {
            world.elect(node, long);
        }
    }
}

fn heal(world: &mut World) {
    world.faults = Faults::default();
    for node in 0..NODES {
        let nine = Definition::shards(9);
        if world.nodes[node].offers.insert(a(), nine.clone()) != Some(nine) {
            world.kill(node);
        }
        world.pause(node, Duration::ZERO);
        world.drain(node, false);
        // Nodes that are about to leave may do so; nodes that are down come back.
        world.boot_in(node, seconds(1));
        world.boot_in(node, seconds(40));
        world.boot_in(node, seconds(80));
    }
}

fn seeds() -> std::ops::Range<u64> {
    let read = |name: &str| std::env::var_os(name)?.to_str()?.parse::<u64>().ok();
    let first = read("TENURE_TEST_SEED").unwrap_or(0);
    first..first + read("TENURE_TEST_SEEDS").unwrap_or(100)
}

#[test]
fn no_shard_is_shared_or_lost_whatever_happens() {
    for seed in seeds() {
        run(seed);
    }
}

#[test]
fn an_election_that_starts_over_keeps_the_work_going() {
    for seed in 0..20 {
        assert_eq!(start_over(seed), Ok(()), "seed {seed}");
    }
}

#[test]
fn no_shard_is_shared_when_assignments_are_lost() {
    for seed in 0..60 {
        lose(seed);
    }
}

#[test]
fn one_seed_gives_one_story() {
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
