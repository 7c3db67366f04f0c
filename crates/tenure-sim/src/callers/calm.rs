//! After the faults: a leader that is asked to resign is followed, in time, by exactly one other.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure_core::NodeId;
use tenure_core::election::RESERVED_MAX;
use tokio::time::sleep;

use super::world::{ELECTIONS, World, name};
use crate::clock::{SLOW, real_length};
use crate::invariants::Violation;

const EFFECT: &str = "a request to a caller takes effect in time";
const ONE_TERM: &str = "a request makes one new term";
const LEADS: &str = "a caller leads when nobody else does";

/// The request to the caller that leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Resign,
    /// Hand over to the other caller, which keeps calling.
    Transfer,
    /// Hand over to a caller that does not call any more.
    TransferInVain,
}

pub(super) async fn check(world: &Arc<World>) -> Result<(), Violation> {
    // Work begun during chaos ends, and answers from then expire.
    tick(world, world.plan.ttl * 14).await?;
    for asked in [Asked::Resign, Asked::Transfer, Asked::TransferInVain] {
        if asked == Asked::TransferInVain && world.callers.len() < 3 {
            continue;
        }
        for still_calls in [false, true] {
            goes_when_asked(world, asked, still_calls).await?;
        }
    }
    Ok(())
}

/// Caller 0 leads the first election, and calls for the second; caller 1 calls for the first.
async fn goes_when_asked(
    world: &Arc<World>,
    asked: Asked,
    still_calls: bool,
) -> Result<(), Violation> {
    let [election, other] = ELECTIONS;
    let ttl = world.plan.ttl;
    world.say("calm", &format!("{asked:?}, still calls: {still_calls}"));
    let begun = world.elapsed();
    // A new session, whose ttl is that of its first calls.
    for each in ELECTIONS {
        world.withdraw(0, each).await;
    }
    // After chaos the lease may be reserved for another candidate, or held with twice the ttl; and a node that holds
    // it has to be asked to resign.
    while !world.is_told(0, election) {
        if world.elapsed() > begun + ttl * 10 + RESERVED_MAX * 2 {
            let lease = world.lease(election).await;
            return Err(Violation::new(LEADS, format!("{election}: {lease:?}")));
        }
        call(world, 0, election).await?;
        if !world.is_told(0, election) {
            ask(world, election, Some(0)).await;
        }
        tick(world, ttl / 10).await?;
    }
    call(world, 1, election).await?;
    if asked == Asked::TransferInVain {
        call(world, 2, election).await?;
    }
    // An answer never lasts longer than the lease says, even if the call asks for more.
    let longer = if still_calls { ttl } else { ttl * 2 };
    world.call(0, election, longer).await;
    world.verdict()?;
    // The session is renewed just before, so that it certainly outlasts the request by a whole ttl.
    call(world, 0, other).await?;
    let lease = world.lease(election).await;
    let Some((term, holder)) = lease.and_then(|it| Some((it.term, it.holder()?.clone()))) else {
        return Err(Violation::new(LEADS, format!("{election} has no holder")));
    };
    let to = match asked {
        Asked::Resign => None,
        Asked::Transfer => Some(1),
        Asked::TransferInVain => Some(2),
    };
    ask(world, election, to).await;
    let asked_at = world.elapsed();
    let round = ttl / 10 + world.plan.latency * 40;
    let mut bound = real_length(holder.ttl, SLOW) + round * 3;
    if asked == Asked::TransferInVain {
        bound += real_length(ttl.min(RESERVED_MAX) * 2, SLOW);
    }
    let is_followed = || {
        let others = (1..world.callers.len()).any(|number| world.is_told(number, election));
        let nodes = world
            .nodes
            .iter()
            .any(|host| host.leads(election).is_some());
        others || nodes
    };
    // It may lead again, in another term, if it calls.
    let mut followed_at = None;
    while world.elapsed() < asked_at + bound + ttl * 3 {
        if still_calls {
            call(world, 0, election).await?;
        }
        call(world, 0, other).await?;
        call(world, 1, election).await?;
        tick(world, ttl / 10).await?;
        let now = world.lease(election).await;
        let led = now.as_ref().map(|lease| lease.term);
        let is_new = led.is_some_and(|led| led > term);
        if followed_at.is_none() && is_new && (is_followed() || world.is_told(0, election)) {
            followed_at = Some(world.elapsed());
            world.followed.fetch_add(1, Ordering::Relaxed);
        }
        if led.is_some_and(|led| led.0 > term.0 + 1) {
            let message = format!("{election}: asked in term {term}, now {now:?}");
            return Err(Violation::new(ONE_TERM, message));
        }
        if followed_at.is_none() && world.elapsed() > asked_at + bound {
            let message = format!("{election}: {asked:?} in term {term}, after {bound:?} {now:?}");
            return Err(Violation::new(EFFECT, message));
        }
    }
    world.say("calm", &format!("followed at {followed_at:?}"));
    Ok(())
}

async fn call(world: &Arc<World>, number: usize, election: &'static str) -> Result<(), Violation> {
    world.call(number, election, world.plan.ttl).await;
    world.verdict()
}

/// An operator asks the leader to resign, or to hand over to a caller.
async fn ask(world: &Arc<World>, election: &str, to: Option<usize>) {
    let by = NodeId::new("people").expect("this name is valid");
    let election = name(election);
    let asked = match to {
        None => world.view.request_resign(&election, &by).await,
        Some(to) => {
            let to = &world.callers[to].id;
            world.view.request_transfer(&election, to, &by).await
        }
    };
    world.say(
        "people",
        &format!("ask for {to:?} in {election}: {asked:?}"),
    );
}

/// Lets time pass, and checks all the time.
async fn tick(world: &Arc<World>, length: Duration) -> Result<(), Violation> {
    let until = world.elapsed() + length;
    while world.elapsed() < until {
        sleep(world.plan.ttl / 200).await;
        world.check();
        world.verdict()?;
    }
    Ok(())
}
