//! What must happen after the faults.
//!
//! There must be a leader within a ttl and a poll, and it must stay. A resignation, a transfer and a leave must take
//! effect soon, and a dead leader must be replaced in time.

use std::time::Duration;

use tenure_core::ElectionName;
use tenure_core::election::RequestKind;
use tenure_core::node::Input;

use crate::invariants::Violation;
use crate::world::World;

/// Checks a world whose faults are over.
pub fn check(world: &mut World) -> Result<(), Violation> {
    converges(world)?;
    stays(world)?;
    for election in world.elections.clone() {
        resigns(world, &election)?;
        transfers(world, &election, false)?;
        transfers(world, &election, true)?;
        survives_blindness(world, &election)?;
        survives_a_crash(world, &election)?;
    }
    everyone_leaves(world)
}

/// The longest time between two looks of any process, plus the requests that follow.
fn poll(world: &World) -> Duration {
    let heartbeats = world.slots.iter().map(|slot| slot.config.heartbeat);
    let heartbeat = heartbeats.max().unwrap_or_default();
    // A candidate of the lowest priority hesitates for a third of a heartbeat.
    heartbeat + heartbeat / 3 + round_trips(world, 6)
}

fn round_trips(world: &World, count: u32) -> Duration {
    world.plan.latency * 2 * count
}

fn leaders(world: &World, election: &ElectionName) -> Vec<u64> {
    let all = world.processes.iter();
    all.filter(|(_, process)| process.leads(election, world.now).is_some())
        .map(|(&id, _)| id)
        .collect()
}

fn candidates(world: &World, election: &ElectionName) -> Vec<u64> {
    let all = world.processes.iter();
    all.filter(|(_, process)| process.is_candidate(election))
        .map(|(&id, _)| id)
        .collect()
}

/// Waits until a condition holds, and returns how long it took.
fn within(
    world: &mut World,
    bound: Duration,
    what: &str,
    holds: impl Fn(&World) -> bool,
) -> Result<Duration, Violation> {
    let from = world.now;
    while !holds(world) {
        if !world.happen(from + bound)? {
            let message = format!("{what}: not within {bound:?}");
            return Err(Violation::new("what should happen does", message));
        }
    }
    Ok(world.now - from)
}

/// After the end of the faults, the last change of leaders comes in time.
fn converges(world: &mut World) -> Result<(), Violation> {
    let ttl = world.ttl_max();
    // A dead leader is evicted; its successor by transfer may be dead too, or is not a candidate for a while.
    let mut bound = ttl * 2 + poll(world);
    let recently = |at: Duration| world.now.saturating_sub(at) < ttl * 3;
    if world.damaged_at.is_some_and(recently) {
        // A candidate that finds a lease deleted or restored waits a whole ttl, and may die meanwhile.
        bound += ttl;
    }
    let from = world.now;
    let mut led = all_leaders(world);
    let mut changed_at = from;
    while world.happen(from + bound)? {
        let now = all_leaders(world);
        if now != led {
            (led, changed_at) = (now, world.now);
        }
    }
    let percent = (changed_at - from).as_millis() * 100 / bound.as_millis().max(1);
    world.convergence_percent = u64::try_from(percent).unwrap_or(u64::MAX);
    if led.iter().all(|leaders| leaders.len() == 1) {
        return Ok(());
    }
    let message = format!("{led:?} lead {bound:?} after the last fault");
    Err(Violation::new("one leader when all is well", message))
}

/// No further change comes after it.
fn stays(world: &mut World) -> Result<(), Violation> {
    let led = all_leaders(world);
    let elected = world.oracle.elected_count;
    let until = world.now + world.ttl_max() * 10;
    while world.happen(until)? {
        let now = all_leaders(world);
        if now != led || world.oracle.elected_count != elected {
            let message = format!("{led:?} led, now {now:?}, though nothing was wrong");
            return Err(Violation::new("a leader stays", message));
        }
    }
    Ok(())
}

fn all_leaders(world: &World) -> Vec<Vec<u64>> {
    let elections = world.elections.iter();
    elections.map(|election| leaders(world, election)).collect()
}

fn the_leader(world: &World, election: &ElectionName) -> Result<u64, Violation> {
    match leaders(world, election)[..] {
        [leader] => Ok(leader),
        ref leaders => Err(Violation::new(
            "a leader stays",
            format!("{election} has the leaders {leaders:?}"),
        )),
    }
}

fn resigns(world: &mut World, election: &ElectionName) -> Result<(), Violation> {
    let leader = the_leader(world, election)?;
    let stand_back = world.processes[&leader].config.stand_back;
    let stop = world.plan.work_stops_in;
    let mut bound = stop + poll(world);
    // It is not a candidate for a while that depends on its own ttl; nodes with a much longer ttl may look too late.
    let others = candidates(world, election).len() > 1 && stand_back > poll(world);
    world.deliver(leader, Input::Resign(election.clone()))?;
    within(
        world,
        bound,
        "the leader that resigned stops to lead",
        |world| !leaders(world, election).contains(&leader),
    )?;
    if !others {
        // There is no other candidate: it waits, and leads again.
        bound += stand_back;
    }
    within(
        world,
        bound,
        "someone follows the leader that resigned",
        |world| {
            leaders(world, election)
                .iter()
                .any(|&id| id != leader || !others)
        },
    )?;
    Ok(())
}

fn transfers(
    world: &mut World,
    election: &ElectionName,
    by_request: bool,
) -> Result<(), Violation> {
    let leader = the_leader(world, election)?;
    let candidates = candidates(world, election);
    let others: Vec<u64> = candidates.into_iter().filter(|&id| id != leader).collect();
    let Some(&target) = world.random.pick_if_any(&others) else {
        return Ok(());
    };
    let to = world.holder(target);
    let mut bound = world.plan.work_stops_in + poll(world);
    if by_request {
        // The holder has to see it first.
        bound += poll(world);
        world.request(election, RequestKind::Transfer { to });
    } else {
        world.deliver(leader, Input::Transfer(election.clone(), to))?;
    }
    within(world, bound, "a transfer reaches its target", |world| {
        leaders(world, election) == [target]
    })?;
    Ok(())
}

/// A leader that can write but not read does not keep others from leading.
fn survives_blindness(world: &mut World, election: &ElectionName) -> Result<(), Violation> {
    let leader = the_leader(world, election)?;
    if candidates(world, election).len() < 2 {
        return Ok(());
    }
    let config = &world.processes[&leader].config;
    // It notices at its next look, and hopes for a ttl that it can read again; its clock may be slow.
    let bound = config.heartbeat + config.ttl + config.ttl / 50 + poll(world) * 2;
    world.blind(leader, bound);
    within(
        world,
        bound,
        "a leader that cannot read is replaced",
        |world| {
            let leaders = leaders(world, election);
            leaders.iter().any(|&id| id != leader)
        },
    )?;
    Ok(())
}

fn survives_a_crash(world: &mut World, election: &ElectionName) -> Result<(), Violation> {
    let leader = the_leader(world, election)?;
    if candidates(world, election).len() < 2 {
        return Ok(());
    }
    let ttl = world.processes[&leader].config.ttl;
    // Its observers count from their last look, with clocks that may be slow.
    let bound = ttl + ttl / 50 + poll(world);
    world.crash(leader);
    // It may have led the other elections too.
    let elections = world.elections.clone();
    within(world, bound, "a dead leader is replaced", |world| {
        elections
            .iter()
            .all(|election| leaders(world, election).len() == 1)
    })?;
    Ok(())
}

fn everyone_leaves(world: &mut World) -> Result<(), Violation> {
    let ids: Vec<u64> = world.processes.keys().copied().collect();
    let incarnations: Vec<_> = world
        .processes
        .values()
        .map(|process| process.incarnation)
        .collect();
    for id in ids {
        world.leave(id)?;
    }
    let bound = world.plan.work_stops_in + poll(world);
    within(world, bound, "everyone leaves", |world| {
        world.processes.is_empty()
    })?;
    if let Some(left) = incarnations
        .iter()
        .find(|&&incarnation| world.is_alive(incarnation))
    {
        let message = format!("session {left:?} still says that it is alive");
        return Err(Violation::new("whoever leaves says so", message));
    }
    for election in world.elections.clone() {
        let holder = world
            .store
            .lease(&election)
            .and_then(|lease| lease.holder().cloned());
        if let Some(holder) = holder.filter(|holder| incarnations.contains(&holder.incarnation)) {
            let message = format!("{election} is still held by {holder:?}");
            return Err(Violation::new(
                "whoever leaves gives its lease back",
                message,
            ));
        }
    }
    Ok(())
}
