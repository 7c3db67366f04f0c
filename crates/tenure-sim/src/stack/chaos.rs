//! What is done to hosts: one thing after the other, until the faults are over.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::session::{Record, State};
use tenure_core::{ElectionName, NodeId};
use tenure_store::wrap::faulty::Outage;
use tenure_store::{Expect, Key, Prefix, Store, list_all};

use super::faults::Fault;
use super::host::{restart, shut_down};
use super::invariants::{check_trust, time_is_believed_in_steps};
use super::world::World;

/// What can be done, and how likely it is beside the others.
const TROUBLES: [(Fault, u64); 17] = [
    (Fault::Crash, 6),
    (Fault::Pause, 6),
    (Fault::Frozen, 8),
    (Fault::CutOff, 4),
    (Fault::Outage, 2),
    (Fault::PowerLoss, 2),
    (Fault::Shutdown, 3),
    (Fault::WallForward, 2),
    (Fault::WallBack, 2),
    (Fault::WallGlitch, 2),
    (Fault::Resigned, 2),
    (Fault::ResignRequested, 2),
    (Fault::Transferred, 3),
    (Fault::LeaseDeleted, 1),
    (Fault::DeadSessionDeleted, 1),
    (Fault::SnapshotDamaged, 2),
    (Fault::Drained, 2),
];

/// How far a wall clock is off at most: mostly by minutes, as a host that has just started, at times by days.
const WALL_OFF_MAX_MS: [u64; 4] = [60_000, 20 * 60_000, 20 * 60_000, 5 * 24 * 3_600_000];

/// Makes trouble for a while.
pub(crate) async fn rage(world: &Arc<World>, until: Duration) {
    while world.elapsed() < until && !world.broken.is_cancelled() {
        world.pause_about(world.plan.trouble_every).await;
        let trouble = draw(world);
        if world.plan.allows(trouble) {
            strike(world, trouble, victim(world, trouble)).await;
        }
        check_trust(world);
    }
}

/// Something is done to the process that writes to the disk, between two of its steps.
pub(crate) fn strike_writer(world: &Arc<World>) {
    let troubles = [Fault::PowerLoss, Fault::Crash, Fault::Pause, Fault::Frozen];
    let trouble = *world.random().pick(&troubles);
    let writer = world.hosts.iter().position(super::host::Host::is_serving);
    if let Some(number) = writer.filter(|_| world.plan.allows(trouble)) {
        let world = world.clone();
        tokio::spawn(async move { strike(&world, trouble, number).await });
    }
}

fn draw(world: &World) -> Fault {
    let total: u64 = TROUBLES.iter().map(|(_, weight)| weight).sum();
    let mut drawn = world.random().below(total);
    for (trouble, weight) in TROUBLES {
        if drawn < weight {
            return trouble;
        }
        drawn -= weight;
    }
    Fault::Crash
}

async fn strike(world: &Arc<World>, trouble: Fault, number: usize) {
    match trouble {
        Fault::Crash => crash(world, number),
        Fault::Pause => pause(world, number, false),
        Fault::Frozen if world.plan.freezes => pause(world, number, true),
        Fault::CutOff => cut_off(world, &[number], Fault::CutOff),
        Fault::Outage => {
            let all: Vec<usize> = (0..world.hosts.len()).collect();
            cut_off(world, &all, Fault::Outage);
        }
        Fault::PowerLoss => lose_power(world).await,
        Fault::Shutdown => stop(world, number),
        Fault::WallForward | Fault::WallBack => set_wall(world, number, trouble),
        Fault::WallGlitch => glitch(world).await,
        Fault::Resigned => {
            if let Some(running) = world.hosts[number].running()
                && let Some(leadership) = running.queue.election().leadership()
            {
                leadership.resign();
                note(world, number, Fault::Resigned);
            }
        }
        Fault::ResignRequested | Fault::Transferred => hand_over(world, number, trouble),
        Fault::LeaseDeleted => {
            let own = [ElectionName::QUEUE, ElectionName::CLUSTER];
            let name = *world.random().pick(&own);
            delete(world, trouble, &format!("elections/{name}")).await;
        }
        Fault::DeadSessionDeleted => delete_dead_session(world).await,
        Fault::SnapshotDamaged => damage_snapshot(world).await,
        Fault::Drained => drain(world, number),
        _ => {}
    }
}

/// A bit of the newest snapshot changes, if the one before it can make up for it: one that is damaged already is not
/// the last but one.
async fn damage_snapshot(world: &Arc<World>) {
    let prefix =
        Prefix::new(format!("{}/queue/snapshot", world.namespace)).expect("a valid prefix");
    let memory = world.store.memory();
    let entries = list_all(memory, &prefix).await;
    let keys: Vec<Key> = entries
        .into_iter()
        .flatten()
        .map(|entry| entry.key)
        .collect();
    let name_of = |key: &Key| key.segments().nth(3).map(ToOwned::to_owned);
    let manifests = keys.iter().filter(|key| key.name() == "manifest");
    let names: Vec<String> = manifests.filter_map(name_of).collect();
    let [.., _, newest] = &names[..] else {
        return;
    };
    if names
        .iter()
        .any(|name| world.ledger().damaged.contains(name))
    {
        return;
    }
    let objects = keys
        .iter()
        .filter(|key| name_of(key).as_ref() == Some(newest));
    let objects: Vec<&Key> = objects.collect();
    let key = *world.random().pick(&objects);
    let Ok(Some(object)) = memory.get(key).await else {
        return;
    };
    let mut value = object.value.to_vec();
    let byte = world.random().index(value.len());
    value[byte] ^= 4;
    let expect = Expect::Version(object.version);
    if memory.put(key, value.into(), &expect).await.is_ok() {
        world.ledger().damaged.insert(newest.clone());
        world.count(Fault::SnapshotDamaged);
        world.say("chaos", &format!("damages {key}"));
    }
}

/// Someone moves all daemons away from a host, and lets it have some again later.
fn drain(world: &Arc<World>, number: usize) {
    let Some(running) = world.hosts[number].running() else {
        return;
    };
    note(world, number, Fault::Drained);
    let world = world.clone();
    running.process.spawn(async move {
        let drained = running.cluster.drain().await;
        world.say("chaos", &format!("drained: {drained:?}"));
        world.pause_about(world.plan.session.ttl * 4).await;
        let undrained = running.cluster.undrain().await;
        world.say("chaos", &format!("undrained: {undrained:?}"));
    });
}

/// Someone asks a process to see to it that another one leads.
fn hand_over(world: &Arc<World>, number: usize, trouble: Fault) {
    let Some(running) = world.hosts[number].running() else {
        return;
    };
    let to = {
        let host = world.random().pick(&world.hosts);
        NodeId::new(&host.name).expect("a valid name")
    };
    let (world, election) = (world.clone(), running.queue.election().clone());
    running.process.spawn(async move {
        let asked = match trouble {
            Fault::Transferred => election.transfer_to(&to).await,
            _ => election.request_resign().await,
        };
        match asked {
            Ok(()) => note(&world, number, trouble),
            Err(error) => world.say("chaos", &format!("{trouble:?} was refused: {error}")),
        }
    });
}

/// Whoever serves is the most interesting. To others it means little to be frozen.
fn victim(world: &World, trouble: Fault) -> usize {
    let serving = world.hosts.iter().position(super::host::Host::is_serving);
    let mut random = world.random();
    let chance = if trouble == Fault::Frozen { 900 } else { 500 };
    match serving {
        Some(number) if random.chance(chance) => number,
        _ => random.index(world.hosts.len()),
    }
}

fn note(world: &World, number: usize, fault: Fault) {
    world.count(fault);
    world.say(&world.hosts[number].name, &format!("suffers {fault:?}"));
}

fn stop(world: &Arc<World>, number: usize) {
    if shut_down(world, number).is_some() {
        note(world, number, Fault::Shutdown);
    }
}

pub(crate) fn crash(world: &Arc<World>, number: usize) {
    let host = &world.hosts[number];
    if host.process().is_none() {
        return;
    }
    let was_serving = host.is_serving();
    note(world, number, Fault::Crash);
    if was_serving {
        world.count(Fault::CrashWhileServing);
    }
    host.crash();
    let within = world.plan.session.ttl * 3;
    restart(world, number, within);
}

/// Every process ends where it stands, and what the disk had not yet written is gone.
async fn lose_power(world: &Arc<World>) {
    world.count(Fault::PowerLoss);
    world.say("chaos", "the power fails");
    for host in &world.hosts {
        host.crash();
    }
    if world.plan.files {
        world.disk.lose_power();
        world.store.lose_power().await;
    }
    for number in 0..world.hosts.len() {
        restart(world, number, world.plan.session.ttl);
    }
}

/// Lets a process do nothing for a while. If its host is frozen, its clock stands still too.
fn pause(world: &Arc<World>, number: usize, is_frozen: bool) {
    let host = &world.hosts[number];
    let Some(process) = host.process().filter(|process| !process.is_paused()) else {
        return;
    };
    if is_frozen {
        note(world, number, Fault::Frozen);
        host.freeze();
    } else {
        note(world, number, Fault::Pause);
        if host.is_serving() {
            world.count(Fault::PauseWhileServing);
        }
    }
    process.pause();
    let (world, ttl) = (world.clone(), world.plan.session.ttl);
    tokio::spawn(async move {
        let until = world.random().chance(500);
        if is_frozen && until && world.plan.allows(Fault::FrozenUntilTakeover) {
            frozen_until_takeover(&world).await;
        } else {
            // Long enough, at times, for its successor to clean up behind two snapshots.
            let ttls = if is_frozen {
                *world.random().pick(&[2, 2, 12])
            } else {
                1
            };
            world.pause_about(ttl * ttls).await;
        }
        world.hosts[number].thaw(ttl);
        process.go_on();
        world.say(&world.hosts[number].name, "goes on");
        check_trust(&world);
    });
}

/// A host goes on at the very time when its successor begins, or has just read the log: what it commits then is not
/// among what was read.
async fn frozen_until_takeover(world: &World) {
    let most = world.plan.session.ttl * 12;
    let moment = if world.plan.files && world.random().chance(700) {
        world.replay.notified()
    } else {
        world.takeover.notified()
    };
    let takeover = tokio::time::timeout(most, moment).await;
    if takeover.is_ok() {
        world.count(Fault::FrozenUntilTakeover);
        world.pause_about(world.plan.latency).await;
    }
}

fn cut_off(world: &Arc<World>, hosts: &[usize], fault: Fault) {
    let kinds = [Outage::Refusing, Outage::Breaking, Outage::Hanging];
    let outage = *world.random().pick(&kinds);
    world.count(fault);
    for &number in hosts {
        let host = &world.hosts[number];
        world.say(
            &host.name,
            &format!("is cut off from the store: {outage:?}"),
        );
        host.store.set_outage(outage);
    }
    let (world, hosts) = (world.clone(), hosts.to_vec());
    tokio::spawn(async move {
        let ttl = world.plan.session.ttl;
        world.pause_about(ttl).await;
        for number in hosts {
            let host = &world.hosts[number];
            world.say(&host.name, "reaches the store");
            host.store.set_outage(Outage::Over);
        }
    });
}

fn set_wall(world: &World, number: usize, trouble: Fault) {
    let off = {
        let mut random = world.random();
        let most = *random.pick(&WALL_OFF_MAX_MS);
        random.below(most)
    };
    let right = world.wall_ms();
    let wall = match trouble {
        Fault::WallForward => right + off,
        _ => right - off,
    };
    note(world, number, trouble);
    world.hosts[number].clock.set_wall_ms(wall);
}

/// For about a second the wall clock of the broker that serves shows something else.
async fn glitch(world: &World) {
    let serving = world
        .hosts
        .iter()
        .enumerate()
        .filter_map(|(number, host)| Some((number, host.running()?)));
    for (number, running) in serving {
        let clock = &world.hosts[number].clock;
        let Some(glitch) = time_is_believed_in_steps::Glitch::begin(&running.queue) else {
            continue;
        };
        note(world, number, Fault::WallGlitch);
        // An operator who sets the time meanwhile says that the clock is right.
        let times_set = || world.ledger().jobs.times_set;
        let before = times_set();
        let (right, shown) = (world.wall_ms(), clock.wall_ms());
        clock.set_wall_ms(shown + time_is_believed_in_steps::GLITCH_MS);
        world.judge(glitch.check(&running.queue));
        world.pause_about(Duration::from_secs(1)).await;
        if times_set() == before {
            world.judge(glitch.check(&running.queue));
        }
        clock.set_wall_ms(world.wall_ms() + shown - right);
        return;
    }
}

async fn delete(world: &World, fault: Fault, key: &str) {
    let key = Key::new(format!("{}/{key}", world.namespace)).expect("a valid key");
    world.count(fault);
    world.say("chaos", &format!("deletes {key}"));
    world
        .store
        .memory()
        .delete(&key)
        .await
        .expect("memory does not fail");
}

/// What has ended may be deleted by anyone.
async fn delete_dead_session(world: &World) {
    let memory = world.store.memory();
    let prefix = Prefix::new(format!("{}/nodes", world.namespace)).expect("a valid prefix");
    let entries = list_all(memory, &prefix)
        .await
        .expect("memory does not fail");
    for entry in entries {
        let object = memory.get(&entry.key).await.expect("memory does not fail");
        let record = object.and_then(|object| Record::decode(&object.value).ok());
        if record.is_some_and(|record| !matches!(record.state, State::Alive)) {
            world.count(Fault::DeadSessionDeleted);
            world.say("chaos", &format!("deletes {}", entry.key));
            memory
                .delete(&entry.key)
                .await
                .expect("memory does not fail");
            return;
        }
    }
}
