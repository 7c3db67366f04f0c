//! The end of trust, to the millisecond, on a clock that is moved by hand.

use std::sync::Arc;
use std::time::Duration;

use tenure::core::election::{EndReason, Term};
use tenure::core::session::Config;
use tenure::store::engine::memory::Memory;
use tenure::store::wrap::faulty::{Faults, Faulty, Outage};
use tenure::testing::ManualClock;
use tenure::{Election, Node, NodeOptions, Transition};
use tokio::time::timeout;

use crate::support::{PATIENCE, elected, until};

const TTL: Duration = Duration::from_secs(10);
/// The ttl less the margin.
const TRUST: Duration = Duration::from_secs(9);
const MILLISECOND: Duration = Duration::from_millis(1);

struct Scene {
    clock: ManualClock,
    store: Arc<Faulty>,
}

impl Scene {
    fn new() -> Self {
        let faulty = Faulty::new(Arc::new(Memory::new()), Faults::default(), 1).unwrap();
        Self {
            clock: ManualClock::new(),
            store: Arc::new(faulty),
        }
    }

    async fn node(&self, name: &str) -> (Node, Election) {
        let mut options = NodeOptions::new("memory:", "test");
        options.node = Some(name.to_owned());
        options.session = Config::for_ttl(TTL);
        options.runtime = self.clock.runtime();
        let node = Node::start_with(self.store.clone(), options).await.unwrap();
        let election = node.join("e").await.unwrap();
        (node, election)
    }
}

#[tokio::test]
async fn trust_ends_at_the_deadline_and_not_later_while_requests_hang() {
    let scene = Scene::new();
    let (_node, election) = scene.node("a").await;
    let mut transitions = election.subscribe();
    let leadership = elected(&election).await;
    assert_eq!(leadership.check(), Ok(TRUST));
    let (begun, has_begun) = tokio::sync::oneshot::channel();
    let work = tokio::spawn({
        let leadership = leadership.clone();
        async move {
            let work = async {
                begun.send(()).unwrap();
                std::future::pending::<()>().await;
            };
            leadership.run(work).await
        }
    });
    // Without work under way a term that is told to stop ends at once.
    has_begun.await.unwrap();

    scene.store.set_outage(Outage::Hanging);
    scene.clock.advance(TRUST - MILLISECOND);
    assert_eq!(leadership.check(), Ok(MILLISECOND));
    assert!(election.is_leader());

    scene.clock.advance(MILLISECOND);
    // Checked at use: true before any thread has noticed.
    assert!(leadership.check().is_err());
    assert!(!election.is_leader());
    let stopped = timeout(PATIENCE, work).await.unwrap().unwrap();
    assert!(stopped.is_err(), "the work outlived the term");
    assert_eq!(transitions.next().await, Some(Transition::NotLeading));
    let elected = transitions.next().await;
    assert!(matches!(
        elected,
        Some(Transition::Elected { term: Term(1), .. })
    ));
    match transitions.next().await {
        Some(Transition::Ended {
            term: Term(1),
            reason,
        }) => {
            let expected = [EndReason::Expired, EndReason::SessionOver];
            assert!(expected.contains(&reason), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn heartbeats_carry_trust_on_and_an_outage_shorter_than_it_changes_nothing() {
    let scene = Scene::new();
    let (_node, election) = scene.node("a").await;
    let leadership = elected(&election).await;
    for _ in 0..20 {
        // Less than what is left of trust: the store is down, and then it is back.
        scene.store.set_outage(Outage::Refusing);
        scene.clock.advance(Duration::from_secs(5));
        assert!(leadership.check().is_ok());
        scene.store.set_outage(Outage::Over);
        // Time has to pass for a retry to be due. Both the session and the lease have to be confirmed
        // before trust is back to what it was.
        let mut pause = Duration::ZERO;
        while leadership.check().unwrap() < Duration::from_secs(7) {
            assert!(pause < Duration::from_secs(3), "not confirmed again");
            scene.clock.advance(Duration::from_millis(50));
            pause += Duration::from_millis(50);
            let known = leadership.deadline();
            let _ = timeout(Duration::from_millis(20), leadership.deadline_after(known)).await;
        }
        assert_eq!(leadership.term(), Term(1));
    }
    assert!(election.is_leader());
}

#[tokio::test]
async fn silence_for_a_whole_ttl_moves_leadership_and_for_less_does_not() {
    let scene = Scene::new();
    let (_a, election_a) = scene.node("a").await;
    elected(&election_a).await;
    // The clock of the first node stands still from here on, and with it its heartbeats.
    let other = Scene {
        clock: ManualClock::new(),
        store: scene.store.clone(),
    };
    let (b, election_b) = other.node("b").await;
    timeout(PATIENCE, b.joined()).await.unwrap().unwrap();
    // The other must have seen the session for its silence to count.
    until("the other node sees the leader", async || {
        other.clock.advance(MILLISECOND);
        election_b.leader().is_some()
    })
    .await;

    let mut silent = Duration::ZERO;
    while silent < TTL - Duration::from_secs(1) {
        silent += Duration::from_millis(500);
        other.clock.advance(Duration::from_millis(500));
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(
            !election_b.is_leader(),
            "elected after {silent:?} of silence"
        );
    }
    // All that it does about the silence so far takes no more requests than it takes to lead another election.
    let probe = b.join("probe").await.unwrap();
    until("the other node has looked at the time", async || {
        other.clock.advance(MILLISECOND);
        silent += MILLISECOND;
        probe.is_leader()
    })
    .await;
    assert!(silent < TTL, "it took {silent:?}");
    assert!(
        !election_b.is_leader(),
        "elected after {silent:?} of silence"
    );
    let next = async {
        while !election_b.is_leader() {
            other.clock.advance(Duration::from_millis(100));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, next).await.expect("never elected");
    assert_eq!(elected(&election_b).await.term(), Term(2));
}
