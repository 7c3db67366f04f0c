//! Callers call, operators send requests, nodes come and go, and the store fails.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure_core::NodeId;
use tokio::time::{sleep, timeout};

use super::world::{ELECTIONS, World, calm, name};
use crate::invariants::Violation;

/// Injects faults for a while, then ends all of them.
pub(super) async fn rage(world: &Arc<World>, length: Duration) -> Result<(), Violation> {
    world.say("plan", &format!("{:?}", world.plan));
    for number in 0..world.callers.len() {
        let process = world.callers[number].process.clone();
        process.spawn(call_now_and_then(world.clone(), number, length));
    }
    let tick = world.plan.ttl / 200;
    let mut next = Duration::ZERO;
    while world.elapsed() < length {
        if world.elapsed() >= next {
            trouble(world).await;
            let pause = world.random().up_to(world.plan.ttl * 3);
            next = world.elapsed() + pause;
        }
        sleep(tick).await;
        world.check();
        world.verdict()?;
    }
    world.say("chaos", "is over");
    let calm = calm(world.plan.latency);
    let callers = world.callers.iter().map(|caller| &caller.store);
    for store in callers.chain(world.nodes.iter().map(|host| &host.store)) {
        store
            .set_faults(calm.clone())
            .expect("these faults are possible");
        store.release();
    }
    world
        .callers
        .iter()
        .for_each(|caller| caller.process.go_on());
    for host in &world.nodes {
        if let Some(running) = host.running() {
            running.process.go_on();
        }
    }
    Ok(())
}

async fn call_now_and_then(world: Arc<World>, number: usize, until: Duration) {
    while world.elapsed() < until {
        let (pause, election, ttl, what, drop_after) = {
            let mut random = world.random();
            (
                random.up_to(world.plan.every * 2),
                *random.pick(&ELECTIONS),
                // A caller that once asked for a longer ttl keeps it in its session.
                world.plan.ttl * *random.pick(&[1, 1, 1, 2]),
                random.below(100),
                random.up_to(world.plan.ttl / 4),
            )
        };
        sleep(pause).await;
        let patience = match what {
            0..5 => {
                world.withdraw(number, election).await;
                continue;
            }
            // The program ends during the call, or stops waiting.
            5..15 => drop_after,
            _ => world.plan.ttl * 6,
        };
        let call = timeout(patience, world.call(number, election, ttl)).await;
        if call.is_err() {
            world.failed.fetch_add(1, Ordering::Relaxed);
            let who = world.callers[number].id.as_str();
            world.say(who, &format!("waits for {election} no longer"));
            if what < 10 {
                world.stop_work(number, election);
            }
        }
    }
}

async fn trouble(world: &Arc<World>) {
    let (what, election, caller) = {
        let mut random = world.random();
        let caller = random.index(world.callers.len());
        (random.below(100), *random.pick(&ELECTIONS), caller)
    };
    let election_name = name(election);
    let by = NodeId::new("people").expect("this name is valid");
    match what {
        0..25 => {
            let asked = world.view.request_resign(&election_name, &by).await;
            world.say("people", &format!("resign {election}: {asked:?}"));
        }
        25..50 => {
            let standing = world.view.candidates(&election_name).await;
            let standing = standing.unwrap_or_default();
            let to = world.random().pick_if_any(&standing).cloned();
            if let Some(to) = to {
                let asked =
                    world
                        .view
                        .request_transfer_to(&election_name, &to.node, to.incarnation, &by);
                let asked = asked.await;
                let words = format!("transfer {election} to {}: {asked:?}", to.node);
                world.say("people", &words);
            }
        }
        50..65 => pause(world, caller),
        65..85 => {
            if let Some(number) = a_node(world) {
                world.crash(number);
            }
        }
        _ => {
            if let Some(number) = a_node(world) {
                world.start(number).await;
            }
        }
    }
}

fn a_node(world: &World) -> Option<usize> {
    let count = world.nodes.len();
    (count > 0).then(|| world.random().index(count))
}

/// Pauses a caller or a node for a while; its clock goes on.
fn pause(world: &Arc<World>, caller: usize) {
    let node = a_node(world).and_then(|number| world.nodes[number].running());
    let process = match node {
        Some(running) if world.random().chance(500) => running.process,
        _ => world.callers[caller].process.clone(),
    };
    process.pause();
    let length = world.random().up_to(world.plan.ttl * 2);
    world.say("chaos", &format!("pauses someone near {caller}"));
    tokio::spawn(async move {
        sleep(length).await;
        process.go_on();
    });
}
