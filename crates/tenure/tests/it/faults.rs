//! Lost, late and doubled answers, and stores that are down: no second term, no lost leadership, and a step
//! down when trust ends.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure::core::election::{EndReason, Term};
use tenure::store::engine::memory::Memory;
use tenure::store::wrap::faulty::{Fault, Faults, Faulty, Kind, Outage};
use tenure::store::wrap::metered::Operation;
use tenure::store::{Key, Prefix};
use tenure::{HeartbeatOutcome, Node, Transition};

use crate::support::{PATIENCE, brisk, elected, namespace, node_on, until};

const LATE: Duration = Duration::from_millis(300);

/// Everything that can happen to a write.
fn write_faults() -> Vec<Fault> {
    vec![
        Fault::LoseAnswer,
        Fault::LoseRequest,
        Fault::Late(LATE),
        Fault::Duplicate,
        Fault::Retry,
        Fault::Refuse,
        Fault::Delay(LATE),
    ]
}

fn faulty(memory: &Arc<Memory>) -> Arc<Faulty> {
    Arc::new(Faulty::new(memory.clone(), Faults::default(), 1).unwrap())
}

fn confirmed(node: &Node) -> u64 {
    let heartbeats = node.metrics().heartbeats;
    let done = heartbeats
        .iter()
        .find(|each| each.outcome == HeartbeatOutcome::Done);
    done.map_or(0, |done| done.count)
}

async fn heartbeats(node: &Node, count: u64) {
    let before = confirmed(node);
    until("heartbeats are confirmed", async || {
        confirmed(node) >= before + count
    })
    .await;
}

#[tokio::test]
async fn a_heartbeat_that_goes_wrong_costs_nothing() {
    let memory = Arc::new(Memory::new());
    let (store, namespace) = (faulty(&memory), namespace());
    let session = brisk(Duration::from_secs(5));
    let a = node_on(&store, &namespace, "a", session.clone()).await;
    let b = node_on(&memory, &namespace, "b", session).await;
    let election = a.join("e").await.unwrap();
    let leadership = elected(&election).await;
    let other = b.join("e").await.unwrap();
    let mut transitions = election.subscribe();

    let me = a.joined().await.unwrap();
    let key = Key::new(format!("{namespace}/nodes/a/{}", me.incarnation)).unwrap();
    for fault in write_faults() {
        let before = store.injected().values().sum::<u64>();
        store.script(Operation::Put, &key, fault.clone()).unwrap();
        until("the fault has happened", async || {
            store.injected().values().sum::<u64>() > before
        })
        .await;
        heartbeats(&a, 3).await;
        store.settled().await;
        heartbeats(&a, 1).await;
        leadership
            .check()
            .unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        assert_eq!(a.joined().await.unwrap(), me, "{fault:?} cost the session");
    }
    assert!(!other.is_leader());
    // The current state, and nothing since.
    a.shutdown().await;
    let elected = transitions.next().await;
    assert!(
        matches!(elected, Some(Transition::Elected { term: Term(1), .. })),
        "{elected:?}"
    );
    let ended = Transition::Ended {
        term: Term(1),
        reason: EndReason::Resigned,
    };
    assert_eq!(transitions.next().await, Some(ended));
}

#[tokio::test]
async fn a_lease_or_fence_write_that_goes_wrong_makes_no_second_term() {
    let memory = Arc::new(Memory::new());
    let (store, namespace) = (faulty(&memory), namespace());
    let session = brisk(Duration::from_secs(5));
    let a = node_on(&store, &namespace, "a", session).await;
    for kind in ["elections", "fences"] {
        for (number, fault) in write_faults().into_iter().enumerate() {
            let name = format!("{kind}-{number}");
            let key = Key::new(format!("{namespace}/{kind}/{name}")).unwrap();
            store.script(Operation::Put, &key, fault.clone()).unwrap();
            let before = store.injected().values().sum::<u64>();
            let election = a.join(&name).await.unwrap();
            let leadership = elected(&election).await;
            assert!(
                store.injected().values().sum::<u64>() > before,
                "{fault:?} did not happen"
            );
            store.settled().await;
            heartbeats(&a, 2).await;
            assert_eq!(leadership.term(), Term(1), "{fault:?} of {kind}");
            leadership
                .check()
                .unwrap_or_else(|error| panic!("{fault:?} of {kind}: {error}"));
            let status = a.view().status(election.name()).await.unwrap();
            assert_eq!(status.lease.unwrap().history, []);
        }
    }
    a.shutdown().await;
}

#[tokio::test]
async fn a_release_that_goes_wrong_never_touches_the_next_term() {
    let memory = Arc::new(Memory::new());
    let (store, namespace) = (faulty(&memory), namespace());
    let session = brisk(Duration::from_secs(5));
    let a = node_on(&store, &namespace, "a", session.clone()).await;
    let b = node_on(&memory, &namespace, "b", session).await;
    for (number, fault) in write_faults().into_iter().enumerate() {
        let name = format!("e{number}");
        let election = a.join(&name).await.unwrap();
        let old = elected(&election).await;
        let other = b.join(&name).await.unwrap();
        let key = Key::new(format!("{namespace}/elections/{name}")).unwrap();
        store.script(Operation::Put, &key, fault.clone()).unwrap();
        old.resign();
        let new = elected(&other).await;
        store.settled().await;
        old.resign();
        heartbeats(&b, 3).await;
        assert_eq!(new.term(), Term(2), "{fault:?}");
        new.check()
            .unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        assert!(old.check().is_err());
    }
    a.shutdown().await;
    b.shutdown().await;
}

#[tokio::test]
async fn an_outage_within_trust_is_not_noticed() {
    let memory = Arc::new(Memory::new());
    let (store, namespace) = (faulty(&memory), namespace());
    let session = brisk(Duration::from_secs(5));
    let a = node_on(&store, &namespace, "a", session.clone()).await;
    let b = node_on(&memory, &namespace, "b", session.clone()).await;
    let election = a.join("e").await.unwrap();
    let leadership = elected(&election).await;
    let other = b.join("e").await.unwrap();
    for outage in [Outage::Refusing, Outage::Breaking, Outage::Hanging] {
        heartbeats(&a, 1).await;
        let stops = leadership.stopping();
        store.set_outage(outage);
        // Until grace begins there is nothing to be told.
        let spare = session.ttl - session.margin - session.grace - session.heartbeat;
        tokio::time::sleep(spare / 2).await;
        store.set_outage(Outage::Over);
        heartbeats(&a, 2).await;
        assert!(
            !stops.is_cancelled(),
            "{outage:?}: the work was told to stop"
        );
        leadership
            .check()
            .unwrap_or_else(|error| panic!("{outage:?}: {error}"));
    }
    assert!(store.injected()[&Kind::Hung] > 0 && !other.is_leader());
    a.shutdown().await;
    b.shutdown().await;
}

#[tokio::test]
async fn a_leader_that_was_cut_off_has_not_left() {
    let memory = Arc::new(Memory::new());
    let (store, namespace) = (faulty(&memory), namespace());
    let a = node_on(&store, &namespace, "a", brisk(Duration::from_secs(3))).await;
    let election = a.join("e").await.unwrap();
    let old = elected(&election).await;
    store.set_outage(Outage::Hanging);
    until("its session is over", async || {
        a.metrics().sessions_lost == 1
    })
    .await;
    store.set_outage(Outage::Over);
    let new = elected(&election).await;
    assert!(new.term() > old.term());
    let status = a.view().status(election.name()).await.unwrap();
    let reason = &status.lease.unwrap().history[0].reason;
    // Another session may have evicted it before it could say anything.
    assert!(
        ["lost its session", "evicted"].contains(&reason.as_str()),
        "{reason}"
    );
    a.shutdown().await;
}

#[tokio::test]
async fn an_outage_beyond_trust_ends_the_term_at_the_deadline_though_requests_hang() {
    let memory = Arc::new(Memory::new());
    let (store, namespace) = (faulty(&memory), namespace());
    let session = brisk(Duration::from_secs(3));
    let a = node_on(&store, &namespace, "a", session.clone()).await;
    let b = node_on(&memory, &namespace, "b", session.clone()).await;
    let election = a.join("e").await.unwrap();
    let old = elected(&election).await;
    let mut transitions = election.subscribe();
    let other = b.join("e").await.unwrap();

    let worked_at = Arc::new(Mutex::new(Instant::now()));
    let work = tokio::spawn({
        let (old, worked_at) = (old.clone(), worked_at.clone());
        async move {
            let stubborn = async {
                loop {
                    *worked_at.lock().unwrap() = Instant::now();
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            old.run::<()>(stubborn).await
        }
    });
    heartbeats(&a, 1).await;
    store.set_outage(Outage::Hanging);
    // Whatever was on its way has been sent at this moment at the latest.
    let latest = Instant::now() + session.ttl - session.margin;
    // On a thread of its own: how long trust lasts is asked of the clock alone.
    let checked = std::thread::spawn({
        let old = old.clone();
        move || {
            let mut asked_at = Instant::now();
            while let Ok(remaining) = old.check() {
                assert!(asked_at + remaining <= latest, "trust was stretched");
                std::thread::sleep(Duration::from_millis(1));
                asked_at = Instant::now();
            }
        }
    });
    let new = elected(&other).await;
    assert!(old.check().is_err() && new.term() > old.term());
    checked.join().unwrap();

    let stopped = work.await.unwrap().unwrap_err();
    let over = |reason: &EndReason| matches!(reason, EndReason::Expired | EndReason::SessionOver);
    assert!(stopped.reason().is_some_and(over), "{stopped}");
    // The margin is there for what is between asking the clock and acting.
    assert!(*worked_at.lock().unwrap() <= latest + session.margin);
    let first = transitions.next().await;
    assert!(
        matches!(first, Some(Transition::Elected { .. })),
        "{first:?}"
    );
    let Some(Transition::Ended { term, reason }) = transitions.next().await else {
        panic!("no end");
    };
    assert!(term == old.term() && over(&reason), "{term} {reason}");
    assert!(a.session().is_none() && a.metrics().sessions_lost == 1);
    assert_eq!(a.metrics().trust_remaining_ms, 0);

    store.set_outage(Outage::Over);
    tokio::time::timeout(PATIENCE, a.joined())
        .await
        .unwrap()
        .unwrap();
    new.resign();
    let again = elected(&election).await;
    assert!(again.term() > new.term());
    assert_eq!((a.metrics().sessions, b.metrics().evictions), (2, 1));
    let seen = &b.metrics().elections[other.name()];
    assert_eq!((seen.elected, seen.ended.get("resigned")), (1, Some(&1)));
    a.shutdown().await;
    b.shutdown().await;
}

/// What a node that waits asks for between two heartbeats, with room to spare.
const QUIET_READS: u64 = 10;

/// A process in very many elections asks the store for no more than one in few.
#[tokio::test]
async fn a_thousand_elections_ask_as_often_as_one() {
    let one = requests_per_heartbeat(1, Duration::ZERO).await;
    let thousand = requests_per_heartbeat(1000, Duration::ZERO).await;
    assert_eq!(one.writes_besides_heartbeats, 0, "{one:?}");
    assert_eq!(thousand.terms_ended, 0, "{thousand:?}");
    assert_eq!(thousand.writes_besides_heartbeats, 0, "{thousand:?}");
    assert!(thousand.reads_per_heartbeat <= QUIET_READS, "{thousand:?}");
}

/// Whoever hears of its lease when the next look is due already, looks by a listing all the same.
#[tokio::test]
async fn listings_slower_than_a_heartbeat_are_shared_too() {
    let slow = requests_per_heartbeat(100, Duration::from_millis(1500)).await;
    assert_eq!(slow.single_looks, 0, "{slow:?}");
    assert_eq!(slow.writes_besides_heartbeats, 0, "{slow:?}");
    assert!(slow.reads_per_heartbeat <= QUIET_READS, "{slow:?}");
}

#[derive(Debug)]
struct Requests {
    writes_besides_heartbeats: u64,
    reads_per_heartbeat: u64,
    /// Of a lease, by itself, that had not changed.
    single_looks: u64,
    /// How many terms ended meanwhile: a process that cannot look at its leases in time stops to trust them.
    terms_ended: u64,
}

/// What a node that leads so many elections asks for when all is quiet, on a store whose listings take so
/// long.
async fn requests_per_heartbeat(elections: usize, slow: Duration) -> Requests {
    use tenure::store::wrap::metered::{Metered, Outcome, Snapshot};

    const HEARTBEATS: u64 = 6;
    let (faulty, namespace) = (faulty(&Arc::new(Memory::new())), namespace());
    let store = Arc::new(Metered::new(faulty.clone()));
    let session = brisk(Duration::from_secs(20));
    let node = node_on(&store, &namespace, "a", session).await;
    let mut joined = Vec::new();
    for number in 0..elections {
        joined.push(node.join(&format!("e{number}")).await.unwrap());
    }
    for election in &joined {
        elected(election).await;
    }
    // What the session says of its elections is written by then, and every lease that was written has been
    // looked at for that.
    let single_looks =
        |snapshot: &Snapshot| snapshot.count(Operation::GetIfChanged, Outcome::Unchanged);
    let looks = || single_looks(&store.meter().snapshot());
    until("it is quiet", async || {
        let before = looks();
        heartbeats(&node, 2).await;
        looks() - before <= 2
    })
    .await;

    let leases = Prefix::new(format!("{namespace}/elections")).unwrap();
    for _ in 0..10 * HEARTBEATS {
        let fault = Fault::Delay(slow);
        faulty.script(Operation::List, &leases, fault).unwrap();
    }
    let count = |snapshot: &Snapshot, is_write| -> u64 {
        let ended = snapshot.ended.iter();
        ended
            .filter(|ended| ended.operation.is_write() == is_write)
            .map(|ended| ended.count)
            .sum()
    };
    // Heartbeats are counted right after their write: asked before and after, none is missed or counted twice.
    let (confirmed_before, before) = (confirmed(&node), store.meter().snapshot());
    heartbeats(&node, HEARTBEATS).await;
    let (after, confirmed_after) = (store.meter().snapshot(), confirmed(&node));
    let metrics = node.metrics();
    let elections = metrics.elections.values();
    let terms_ended = elections.flat_map(|each| each.ended.values()).sum();
    node.shutdown().await;
    let writes = count(&after, true) - count(&before, true);
    let reads = count(&after, false) - count(&before, false);
    let heartbeats = confirmed_after - confirmed_before;
    Requests {
        // One may have ended between the two questions.
        writes_besides_heartbeats: writes.saturating_sub(heartbeats + 1),
        reads_per_heartbeat: reads / heartbeats,
        single_looks: single_looks(&after) - single_looks(&before),
        terms_ended,
    }
}
