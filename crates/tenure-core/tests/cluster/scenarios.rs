//! What a person would try with a few nodes, and what must happen then.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_core::cluster::assigner::plan;
use tenure_core::cluster::{Config, Decision, Definition, Going, Reason, Shard};
use tenure_core::{Moment, NodeId};

use crate::world::{Faults, World};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn twelve() -> [(&'static str, Definition); 1] {
    [("indexer", Definition::shards(12))]
}

/// Three nodes that run twelve shards; the first one leads.
fn three() -> World {
    let mut world = World::new(7, 3, &twelve());
    world.run(seconds(1));
    if world.leader != Some(0) {
        assert!(world.elect(0, Duration::ZERO));
    }
    world.run(seconds(19));
    assert_eq!(world.settled(), Ok(vec![4, 4, 4]));
    world
}

/// The world checks at every step that shards which were told different numbers are not trusted at one time.
#[test]
fn another_number_of_shards_ends_all_of_the_former_first() {
    let mut world = three();
    let nine = [("indexer", Definition::shards(9))];
    let before = world.now;
    let fourth = world.add_node(&nine);
    world.run(seconds(20));
    assert_eq!(world.nodes[fourth].told.len(), 3);
    assert!(world.nodes[fourth].told.values().all(|&count| count == 12));

    // The last node that offers twelve goes: from then on nine are in effect.
    for node in 0..3 {
        world.nodes[node].offers = world.nodes[fourth].offers.clone();
        world.kill(node);
        world.boot_in(node, seconds(2));
        world.run(seconds(60));
    }
    assert_eq!(world.settled().map(|loads| loads.iter().sum()), Ok(9));
    let revoked = |(at, decision): &(Duration, Decision)| {
        *at > before
            && matches!(
                decision,
                Decision::Revoke {
                    reason: Reason::CountChanged,
                    ..
                }
            )
    };
    assert!(world.decisions.iter().any(revoked));
    for it in &world.nodes {
        let told = it.running.keys().map(|running| it.told[running]);
        assert!(told.into_iter().all(|count| count == 9));
    }
}

#[test]
fn a_higher_revision_rules_at_once() {
    let mut world = three();
    let nine = Definition {
        revision: 1,
        ..Definition::shards(9)
    };
    world.add_node(&[("indexer", nine)]);
    world.run(seconds(40));
    let running = world
        .nodes
        .iter()
        .flat_map(|it| it.running.keys().map(|key| it.told[key]));
    assert_eq!(running.collect::<Vec<_>>(), [9; 9]);
}

#[test]
fn what_a_node_cannot_end_stays_with_it() {
    let mut world = three();
    world.nodes[1].sticks = true;
    let (kept, before) = (world.shards_on(1), world.now);
    world.drain(1, true);
    world.run(seconds(300));
    assert_eq!(world.shards_on(1), kept);
    assert_eq!(world.started_since(before), []);
    let words = "wait, its node cannot end it: it belongs to another user";
    assert!(world.describe().contains(words), "{}", world.describe());
    // The operator has ended it at last.
    world.nodes[1].sticks = false;
    world.end_all(1);
    world.run(seconds(20));
    assert_eq!(world.settled(), Ok(vec![6, 0, 6]));
}

#[test]
fn what_outlives_its_session_keeps_its_shard_from_starting_elsewhere() {
    let mut world = three();
    world.nodes[1].sticks = true;
    let kept = world.shards_on(1);
    world.faults.outage_until = world.now + seconds(30);
    world.run(seconds(60));
    let before = world.now;
    world.run(seconds(300));
    let started = started(&world, before);
    assert!(
        kept.iter().all(|shard| !started.contains(shard)),
        "{started:?}"
    );
    let words = "wait, its node cannot end it: it belongs to another user";
    assert!(world.describe().contains(words), "{}", world.describe());
    world.nodes[1].sticks = false;
    world.end_all(1);
    world.run(seconds(20));
    assert!(world.settled().is_ok(), "{:?}", world.settled());
}

#[test]
fn a_fourth_node_gets_three_of_twelve_and_nothing_else_moves() {
    let mut world = three();
    let before = world.now;
    world.add_node(&twelve());
    world.run(seconds(20));
    assert_eq!(world.settled(), Ok(vec![3, 3, 3, 3]));
    let started = world.started_since(before);
    assert_eq!(started.len(), 3);
    assert!(started.iter().all(|&(_, node)| node == 3));
}

#[test]
fn a_dead_nodes_shards_and_only_those_run_elsewhere_after_its_ttl() {
    let mut world = three();
    let (lost, before) = (world.shards_on(1), world.now);
    world.kill(1);
    // The ttl from the last heartbeat, which was up to three seconds before.
    world.run(seconds(6));
    assert_eq!(world.started_since(before), [], "silence moves nothing");
    // Then it is noticed, evicted, and after one cycle and a start its shards run.
    world.run(seconds(9));
    assert_eq!(world.settled(), Ok(vec![6, 0, 6]));
    let started: BTreeSet<&Shard> = started(&world, before);
    assert_eq!(started, lost.iter().collect());
}

#[test]
fn a_node_that_leaves_has_drained_and_is_replaced_within_a_second() {
    let mut world = three();
    let (lost, before) = (world.shards_on(2), world.now);
    world.leave(2, Going::Leaving);
    // Two seconds of draining at most, in this world.
    world.run(seconds(3));
    assert_eq!(world.settled(), Ok(vec![6, 6, 0]));
    assert_eq!(started(&world, before), lost.iter().collect());
    let reasons = world.decisions.iter().filter(|(at, _)| *at > before);
    let forced = |decision: &Decision| matches!(decision, Decision::Free { reason, .. } if *reason == Reason::Unanswered);
    assert!(reasons.into_iter().all(|(_, decision)| !forced(decision)));
}

#[test]
fn an_election_that_starts_over_goes_on_with_the_work() {
    let mut world = three();
    for node in [1, 2, 0] {
        assert!(world.elect(node, seconds(1)));
        world.run(seconds(5));
    }
    // The terms so far were 1 to 4; the next leader has term 1 again.
    let before = world.now;
    world.start_over(2);
    world.run(seconds(5));
    assert_eq!(world.started_since(before), [], "what runs goes on");
    world.kill(0);
    world.run(seconds(20));
    assert_eq!(world.settled(), Ok(vec![0, 6, 6]));
}

#[test]
fn an_outage_of_five_seconds_moves_nothing() {
    let mut world = three();
    for _ in 0..20 {
        let before = world.now;
        world.faults.outage_until = world.now + seconds(5);
        world.run(seconds(14));
        assert_eq!(world.started_since(before), []);
        assert_eq!(world.settled(), Ok(vec![4, 4, 4]));
    }
}

#[test]
fn a_rolling_restart_gives_every_node_its_own_shards_back() {
    let mut world = three();
    for node in 0..3 {
        let (own, before) = (world.shards_on(node), world.now);
        let within = seconds(30);
        world.leave(node, Going::Restarting { within });
        world.boot_in(node, seconds(10));
        world.run(seconds(25));
        assert_eq!(world.settled(), Ok(vec![4, 4, 4]));
        let started = world.started_since(before);
        let expected: Vec<(&Shard, usize)> = own.iter().map(|shard| (shard, node)).collect();
        assert_eq!(started.len(), expected.len());
        assert!(expected.iter().all(|start| started.contains(start)));
    }
}

#[test]
fn a_node_that_crashes_and_comes_back_gets_its_own_shards_back() {
    for after in [100, 1000, 5000] {
        let mut world = three();
        let (own, before) = (world.shards_on(1), world.now);
        world.kill(1);
        world.boot_in(1, Duration::from_millis(after));
        world.run(seconds(25));
        assert_eq!(world.settled(), Ok(vec![4, 4, 4]));
        assert_eq!(world.shards_on(1), own);
        assert_eq!(world.started_since(before).len(), 4);
    }
}

#[test]
fn a_node_that_does_not_come_back_loses_its_shards_after_the_grace() {
    let mut world = three();
    let before = world.now;
    let within = seconds(20);
    world.leave(0, Going::Restarting { within });
    world.run(seconds(19));
    assert_eq!(world.started_since(before), []);
    world.run(seconds(20));
    assert_eq!(world.settled(), Ok(vec![0, 6, 6]));
}

#[test]
fn a_drained_node_is_emptied_and_kept_empty() {
    let mut world = three();
    world.drain(0, true);
    world.run(seconds(20));
    assert_eq!(world.settled(), Ok(vec![0, 6, 6]));
    // Also when there is more to do, and under another leader.
    world.elect(1, Duration::ZERO);
    world.kill(2);
    world.run(seconds(30));
    assert_eq!(world.settled(), Ok(vec![0, 12, 0]));
    world.drain(0, false);
    world.run(seconds(30));
    assert_eq!(world.settled(), Ok(vec![6, 6, 0]));
}

#[test]
fn a_drained_node_that_is_elected_leaves_it_to_others_if_there_are_any() {
    let mut world = three();
    world.drain(1, true);
    world.run(seconds(20));
    assert_eq!(world.resigned, [] as [usize; 0], "n0 leads");
    world.elect(1, Duration::ZERO);
    world.run(seconds(5));
    assert_eq!(world.resigned, [1]);
    // Nobody else was elected: it does not go on asking.
    world.elect(0, Duration::ZERO);
    world.elect(1, Duration::ZERO);
    world.run(seconds(30));
    assert_eq!(world.resigned, [1]);
    assert_eq!(world.settled(), Ok(vec![6, 0, 6]));
    // Much later it does, but not if all others are drained as well.
    world.run(seconds(600));
    world.elect(2, Duration::ZERO);
    world.elect(1, Duration::ZERO);
    world.run(seconds(5));
    assert_eq!(world.resigned, [1, 1]);
    world.drain(0, true);
    world.drain(2, true);
    world.run(seconds(600));
    world.elect(2, Duration::ZERO);
    world.run(seconds(5));
    assert_eq!(world.resigned, [1, 1]);
}

#[test]
fn a_drained_node_is_emptied_no_faster_than_the_budget_allows() {
    let world = three();
    let assignments = world.assignments().unwrap();
    let config = Config {
        moves_max: 2,
        ..Config::default()
    };
    let drained = [NodeId::new("n1").unwrap()].into();
    let plan = plan(
        Moment::default(),
        &config,
        &assignments,
        world.sessions(),
        &drained,
    );
    let lines: Vec<String> = plan.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "indexer/1: revoke from n1, which an operator is draining",
            "indexer/4: revoke from n1, which an operator is draining",
            "indexer/1: wait, it is draining, then moves to n0",
            "indexer/4: wait, it is draining, then moves to n2",
        ]
    );
}

#[test]
fn a_shard_that_hangs_blocks_nobody_else() {
    let mut world = three();
    let before = world.now;
    // Whatever starts now never runs, and does not drain either.
    world.faults = Faults {
        hanging_daemons: 100,
        ..Faults::default()
    };
    let lost = world.shards_on(2);
    world.kill(2);
    world.run(seconds(16));
    assert_eq!(started(&world, before), lost.iter().collect());
    world.faults = Faults::default();
    // Not started in time, revoked, drained in vain, aborted, and then elsewhere.
    world.run(seconds(30 + 30 + 10));
    assert_eq!(world.settled(), Ok(vec![6, 6, 0]));
    assert_eq!(started(&world, before), lost.iter().collect());
}

#[test]
fn lost_assignments_are_made_anew_and_nothing_moves() {
    let mut world = three();
    let (before, generation) = (world.now, world.assignments().unwrap().generation);
    world.delete_assignments();
    world.run(seconds(60));
    assert_eq!(world.started_since(before), []);
    assert_eq!(world.settled(), Ok(vec![4, 4, 4]));
    // Also when the leader changes at once.
    world.delete_assignments();
    assert!(world.elect(2, seconds(5)) || world.elect(1, seconds(5)));
    world.run(seconds(60));
    assert_eq!(world.started_since(before), []);
    assert!(world.assignments().unwrap().generation >= generation);
    world.add_node(&twelve());
    world.run(seconds(60));
    assert_eq!(world.settled(), Ok(vec![3, 3, 3, 3]));
}

/// Nothing was lost, so there is no wait for nodes that might still run shards.
#[test]
fn a_leader_that_died_before_its_first_assignments_costs_no_wait() {
    let mut world = World::new(7, 3, &twelve());
    while world.leader.is_none() {
        assert!(world.step(seconds(5)));
        world.keep_a_leader();
    }
    assert!(world.assignments().is_none());
    let first = world.leader.unwrap();
    world.kill(first);
    world.run(seconds(20));
    assert_eq!(world.settled().map(|loads| loads.iter().sum()), Ok(12));
}

/// Another leader takes over, in an orderly way, a moment after assignments were lost and made again.
#[test]
fn who_leads_after_a_loss_waits_as_well() {
    let mut world = three();
    world.kill(0);
    world.delete_assignments();
    world.run(seconds(2));
    let recovering = |world: &World| world.assignments().is_some_and(|it| it.recovering);
    assert!(recovering(&world));
    let other = if world.leader == Some(1) { 2 } else { 1 };
    assert!(world.elect(other, Duration::ZERO));
    let before = world.now;
    world.run(seconds(29));
    assert!(recovering(&world));
    assert_eq!(world.started_since(before), []);
    world.run(seconds(10));
    assert!(!recovering(&world));
    assert_eq!(world.settled().map(|loads| loads.iter().sum()), Ok(12));
}

#[test]
fn a_leader_writes_at_most_once_per_cycle() {
    let mut world = three();
    let (before, writes) = (world.now, world.assignment_writes);
    for _ in 0..5 {
        world.add_node(&twelve());
    }
    world.kill(1);
    world.run(seconds(30));
    let cycles = (world.now - before).as_millis() / world.config.cycle.as_millis();
    let writes = world.assignment_writes - writes;
    assert!(u128::from(writes) <= cycles, "{writes} in {cycles} cycles");
    assert!(writes < 20, "{writes} writes for one change");
}

/// A node joins and another is drained, and at one event on the way the leader changes, while the old one
/// goes on for five seconds.
fn interrupted(at: u64) -> bool {
    let mut world = three();
    world.add_node(&twelve());
    world.drain(1, true);
    let end = world.now + seconds(20);
    let first = world.events;
    let mut changed = false;
    while world.step(end) {
        if world.events - first == at {
            let next = (0..3).find(|&node| world.leader != Some(node));
            changed = world.elect(next.unwrap(), seconds(5));
        }
        world.keep_a_leader();
    }
    world.run(seconds(60));
    let loads = world.settled();
    assert_eq!(
        loads,
        Ok(vec![4, 0, 4, 4]),
        "after {at}\n{}",
        world.describe()
    );
    changed
}

#[test]
fn the_leader_may_change_at_every_step() {
    let changed = (0..300).filter(|&at| interrupted(at)).count();
    assert!(changed > 250, "{changed}");
}

fn started(world: &World, since: Duration) -> BTreeSet<&Shard> {
    world
        .started_since(since)
        .into_iter()
        .map(|(shard, _)| shard)
        .collect()
}
