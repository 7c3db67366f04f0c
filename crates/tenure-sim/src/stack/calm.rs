//! The faults are over: everything must come to rest, serve, and hold what it has promised.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure::queue::{ClockState, Queue};
use tenure_core::queue::Submission;
use tenure_core::{JobId, JobType};
use tenure_store::wrap::faulty::Outage;

use super::faults::Fault;
use super::host::{SHARDS, shut_down, start};
use super::invariants::{
    acknowledged_is_kept, check_trust, forgotten_in_time, outbox_is_relayed, recovered_is_committed,
};
use super::ledger::State;
use super::network::Route;
use super::world::World;
use super::{submitter, waiters};
use crate::invariants::Violation;

/// How long it may take until one broker serves, in ttls: an eviction, a whole ttl of waiting after damage, and
/// what a process stands back after it could not serve. Then it reads the log, one object after the other if it
/// is told to.
const LEADER_TTLS: u32 = 8;
const STAND_BACK_MAX: Duration = Duration::from_secs(60);
const RECOVERY_MAX: Duration = Duration::from_secs(120);

/// How long it may take until every job has finished: back-off and leases, at half speed while wall clocks
/// catch up.
const WORK_MAX: Duration = Duration::from_secs(15 * 60);

/// How late a schedule may be when nothing is in its way.
const LATE_MS: u64 = 60_000;

/// Ends all faults, and waits for what must come.
pub(crate) async fn check(world: &Arc<World>) -> Result<(), Violation> {
    calm_down(world);
    let leader_max = world.plan.session.ttl * LEADER_TTLS + STAND_BACK_MAX + RECOVERY_MAX;
    eventually(world, leader_max, "a broker serves", |world| {
        world.hosts.iter().any(|host| host.is_serving())
    })
    .await?;
    eventually(
        world,
        leader_max,
        "the queue's time is right, or ahead",
        follows,
    )
    .await?;
    submit_one(world, leader_max).await?;
    // The relay is a daemon, and needs a node.
    undrain(world).await?;
    eventually(world, WORK_MAX, "the outbox is empty", |world| {
        world.outbox.is_empty()
    })
    .await?;
    outbox_is_relayed::complete(world)?;
    eventually(world, WORK_MAX, "every job finishes", |world| {
        let ledger = world.ledger();
        let scheduled = |id: &JobId| id.as_str().starts_with("schedule:");
        let mut jobs = ledger.jobs.jobs.iter();
        jobs.all(|(id, job)| job.is_finished() || scheduled(id))
    })
    .await?;
    eventually(world, WORK_MAX, "every schedule fires", |world| {
        let due = world.wall_ms() - LATE_MS;
        world.ledger().schedules.behind(due).next().is_none()
    })
    .await?;
    waiters::check(world).await?;
    note_much(world);
    eventually(world, WORK_MAX, "every shard is active", |world| {
        world.shards().active() == SHARDS as usize
    })
    .await?;
    check_trust(world);
    acknowledged_is_kept::check(&world.ledger(), &world.history())?;
    eventually(world, WORK_MAX, "what nothing keeps is gone", |world| {
        let ledger = world.ledger();
        forgotten_in_time::overdue(&ledger.jobs, ledger.queue.now()).is_none()
    })
    .await?;
    let made_again = world.ledger().jobs.made_again.keys().cloned().collect();
    let unknown = world.calls().check(&made_again)?;
    world.unjudged.store(unknown, Ordering::Relaxed);
    eventually(
        world,
        leader_max,
        "a broker shows what is committed",
        shows_all,
    )
    .await?;
    // Whoever serves ends in good order, as everyone should.
    let closed = world.ledger().noted.closed;
    if let Some(number) = world.hosts.iter().position(|host| host.is_serving()) {
        shut_down(world, number);
    }
    eventually(
        world,
        leader_max,
        "a broker that stops notes where the log ends",
        |world| world.ledger().noted.closed > closed,
    )
    .await
}

/// Lets every host have daemons again, also one that is just being started.
async fn undrain(world: &Arc<World>) -> Result<(), Violation> {
    let until = world.elapsed() + WORK_MAX;
    for host in &world.hosts {
        loop {
            if let Some(running) = host.running()
                && running.cluster.undrain().await.is_ok()
            {
                break;
            }
            if world.elapsed() > until {
                let message = format!("{WORK_MAX:?} after the faults, {} is drained", host.name);
                return Err(Violation::new("what should happen does", message));
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
    Ok(())
}

/// Counts what a run had much of.
fn note_much(world: &World) {
    let (many, cut, again, told_again, otherwise) = {
        let ledger = world.ledger();
        let of_many = |id: &&JobId| id.as_str().starts_with("schedule:many-");
        (
            ledger.jobs.jobs.keys().filter(of_many).count(),
            ledger.claims_cut,
            ledger.jobs.asked_again,
            ledger.jobs.ends.again,
            ledger.jobs.ends.otherwise,
        )
    };
    world.count_many(Fault::ScheduleOfMany, many as u64);
    world.count_many(Fault::ClaimCut, cut);
    world.count_many(Fault::ClaimAskedAgain, again);
    world.count_many(Fault::EndToldAgain, told_again);
    world.count_many(Fault::EndToldOtherwise, otherwise);
}

fn calm_down(world: &Arc<World>) {
    world.say("calm", "the faults are over");
    world.set_calm();
    let right = world.wall_ms();
    for (number, host) in world.hosts.iter().enumerate() {
        host.heal();
        host.store.set_outage(Outage::Over);
        host.thaw(world.plan.session.ttl);
        host.clock.set_wall_ms(right);
        if let Some(process) = host.process() {
            process.go_on();
        }
        start(world, number);
    }
}

/// Whether the leader does not refuse its clock, which is right now. One that does was wrong by days before, so that
/// an operator would say that it is right, or have another term begin.
fn follows(world: &World) -> bool {
    let serving = world.hosts.iter().filter_map(super::host::Host::running);
    let mut serving = serving.filter(|running| running.queue.is_serving());
    serving.any(|running| match running.queue.clock() {
        Ok(ClockState::Ahead { .. }) => {
            if let Some(leadership) = running.queue.election().leadership() {
                leadership.resign();
            }
            false
        }
        Ok(_) => true,
        Err(_) => false,
    })
}

/// Whoever serves may be about to give that up, so it is sent until it is taken.
async fn submit_one(world: &Arc<World>, within: Duration) -> Result<(), Violation> {
    let mut job = Submission::new(JobType::new("a").expect("a valid type"));
    job.id = JobId::new("last").ok();
    let (mut route, until) = (Route::default(), world.elapsed() + within);
    let jobs = [job];
    while !submitter::submit(world, &mut route, 9, &jobs).await {
        if world.elapsed() > until {
            let message = format!("{within:?} after the faults, a job is not accepted");
            return Err(Violation::new("what should happen does", message));
        }
    }
    Ok(())
}

/// Whether the leader shows exactly what the log says.
fn shows_all(world: &World) -> bool {
    let ledger = world.ledger();
    let serving = world.hosts.iter().filter_map(super::host::Host::running);
    let shows = |queue: &Queue| {
        let shown = recovered_is_committed::state_of(queue);
        shown.is_ok_and(|shown| shown == State::of(&ledger.queue))
    };
    serving
        .filter(|running| running.queue.is_serving())
        .any(|running| shows(&running.queue))
}

async fn eventually(
    world: &Arc<World>,
    within: Duration,
    what: &str,
    is_so: impl Fn(&World) -> bool,
) -> Result<(), Violation> {
    let until = world.elapsed() + within;
    while !is_so(world) {
        if world.broken.is_cancelled() {
            return world.verdict();
        }
        if world.elapsed() > until {
            let message = format!(
                "{within:?} after the faults, not yet: {what}{}",
                missing(world)
            );
            return Err(Violation::new("what should happen does", message));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    world.say("calm", what);
    world.verdict()
}

/// A few of the jobs that have not finished.
fn missing(world: &World) -> String {
    let ledger = world.ledger();
    let open = ledger
        .jobs
        .jobs
        .iter()
        .filter(|(_, job)| !job.is_finished());
    let open = open.map(|(id, _)| format!("; {:?}", ledger.queue.job(id)));
    open.take(3).collect()
}
