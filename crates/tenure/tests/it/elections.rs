//! Elections between nodes of one process, on a store in memory.

use std::sync::Arc;
use std::time::Duration;

use tenure::core::NodeId;
use tenure::core::election::{EndReason, Term};
use tenure::core::session::Config;
use tenure::store::engine::memory::Memory;
use tenure::store::{Expect, Prefix, Store, list_all};
use tenure::{Error, Node, NodeOptions, Seen, Transition};
use tokio::time::timeout;

use crate::support::{PATIENCE, elected};

async fn node(store: &Arc<Memory>, name: &str, ttl: Duration) -> Node {
    let mut options = NodeOptions::new("memory:", "test");
    options.node = Some(name.to_owned());
    options.session = Config::for_ttl(ttl);
    Node::start_with(store.clone(), options).await.unwrap()
}

#[tokio::test]
async fn one_of_three_leads_and_resigning_moves_leadership() {
    let store = Arc::new(Memory::new());
    let ttl = Duration::from_secs(10);
    let mut elections = Vec::new();
    for name in ["a", "b", "c"] {
        let node = node(&store, name, ttl).await;
        elections.push((node.join("e").await.unwrap(), node));
        // Whoever comes first leads: the others come later.
        elected(&elections[0].0).await;
    }
    let first = elected(&elections[0].0).await;
    assert_eq!(first.term(), Term(1));
    assert_eq!(
        elections
            .iter()
            .filter(|(election, _)| election.is_leader())
            .count(),
        1
    );

    let mut transitions = elections[0].0.subscribe();
    elections[0].0.resign();
    assert!(matches!(
        transitions.next().await,
        Some(Transition::Elected { term: Term(1), .. })
    ));
    let ended = Transition::Ended {
        term: Term(1),
        reason: EndReason::Resigned,
    };
    assert_eq!(transitions.next().await, Some(ended));

    let (second, _) = tokio::select! {
        leadership = elected(&elections[1].0) => (leadership, 1),
        leadership = elected(&elections[2].0) => (leadership, 2),
    };
    assert_eq!(second.term(), Term(2));
    assert!(first.check().is_err());
    assert!(!elections[0].0.is_leader());
}

#[tokio::test]
async fn release_waits_for_the_work_to_end() {
    let store = Arc::new(Memory::new());
    let (a, b) = (
        node(&store, "a", PATIENCE).await,
        node(&store, "b", PATIENCE).await,
    );
    let election_a = a.join("e").await.unwrap();
    let leadership = elected(&election_a).await;
    let election_b = b.join("e").await.unwrap();

    let (release, released) = tokio::sync::oneshot::channel::<()>();
    let work = tokio::spawn({
        let leadership = leadership.clone();
        async move { leadership.run(async { released.await.unwrap() }).await }
    });
    tokio::task::yield_now().await;
    leadership.resign();
    timeout(PATIENCE, leadership.stopping().cancelled())
        .await
        .unwrap();
    // Told to stop, but not stopped: still the leader, and nobody else is.
    assert!(leadership.check().is_ok());
    assert!(!election_b.is_leader());
    release.send(()).unwrap();
    work.await.unwrap().unwrap();
    assert_eq!(elected(&election_b).await.term(), Term(2));
    assert!(leadership.check().is_err());
}

#[tokio::test]
async fn a_transfer_reaches_its_target_and_a_wrong_one_is_refused() {
    let store = Arc::new(Memory::new());
    let nodes = [
        node(&store, "a", PATIENCE).await,
        node(&store, "b", PATIENCE).await,
        node(&store, "c", PATIENCE).await,
    ];
    let a = nodes[0].join("e").await.unwrap();
    elected(&a).await;
    let b = nodes[1].join("e").await.unwrap();
    let c = nodes[2].join("e").await.unwrap();
    let to = |name: &str| NodeId::new(name).unwrap();

    // Candidates are listed in the sessions, which say so with a write of their own.
    while nodes[0]
        .view()
        .status(a.name())
        .await
        .unwrap()
        .candidates
        .len()
        < 3
    {
        tokio::task::yield_now().await;
    }
    let refused = a.transfer_to(&to("nobody")).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "nobody is not a live candidate of the election e; its candidates are a, b, c"
    );
    a.transfer_to(&to("c")).await.unwrap();
    assert_eq!(elected(&c).await.term(), Term(2));
    // Anyone may ask, also a node that does not lead.
    b.transfer_to(&to("a")).await.unwrap();
    assert_eq!(elected(&a).await.term(), Term(3));
    b.request_resign().await.unwrap();
    let (next, _) = tokio::select! {
        leadership = elected(&b) => (leadership, "b"),
        leadership = elected(&c) => (leadership, "c"),
    };
    assert_eq!(next.term(), Term(4));
}

/// A leader that is asked to go, and to stay after that, stays: what is asked last counts, no matter which node is asked to pass it on.
#[tokio::test]
async fn a_leader_that_is_asked_to_stay_leads_again_when_its_work_has_stopped() {
    let store = Arc::new(Memory::new());
    let (a, b) = (
        node(&store, "a", PATIENCE).await,
        node(&store, "b", PATIENCE).await,
    );
    let election_a = a.join("e").await.unwrap();
    let mut leadership = elected(&election_a).await;
    let election_b = b.join("e").await.unwrap();
    let to_a = NodeId::new("a").unwrap();
    for (asks, term) in [(&election_a, Term(2)), (&election_b, Term(3))] {
        let (release, released) = tokio::sync::oneshot::channel::<()>();
        let work = tokio::spawn({
            let leadership = leadership.clone();
            async move { leadership.run(async { released.await.unwrap() }).await }
        });
        tokio::task::yield_now().await;
        election_b.request_resign().await.unwrap();
        let stopping = leadership.stopping();
        timeout(PATIENCE, stopping.cancelled()).await.unwrap();
        asks.transfer_to(&to_a).await.unwrap();
        let status = a.view().status(election_a.name()).await.unwrap();
        assert!(status.lease.unwrap().asked_to_go().is_none());
        release.send(()).unwrap();
        work.await.unwrap().unwrap();
        let leads_again = async {
            loop {
                let next = elected(&election_a).await;
                if next.term() > leadership.term() {
                    break next;
                }
                tokio::task::yield_now().await;
            }
        };
        let next = timeout(PATIENCE, leads_again).await.unwrap();
        assert_eq!(next.term(), term);
        leadership = next;
    }
    assert!(!election_b.is_leader());
    // One that is asked nothing is asked nothing by this.
    election_b.transfer_to(&to_a).await.unwrap();
    let status = a.view().status(election_a.name()).await.unwrap();
    assert_eq!(status.lease.unwrap().request, None);
}

/// A program may say anything, such as all that another one has printed.
#[tokio::test]
async fn a_long_trouble_costs_nobody_the_session() {
    let store = Arc::new(Memory::new());
    let node = node(&store, "a", Duration::from_secs(2)).await;
    let election = node.join("e").await.unwrap();
    let leadership = elected(&election).await;
    node.set_trouble(Some("x".repeat(9 << 20)));
    let shown = async {
        loop {
            let standing = node.view().standing(election.name()).await.unwrap();
            let about = standing.into_iter().next().map(|it| it.about);
            if let Some(trouble) = about.and_then(|about| about.trouble) {
                break trouble;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let shown = timeout(PATIENCE, shown).await.unwrap();
    assert_eq!(shown.len(), 500);
    assert!(leadership.check().is_ok());
}

#[tokio::test]
async fn shutdown_hands_over_and_ends_every_handle() {
    let store = Arc::new(Memory::new());
    let (a, b) = (
        node(&store, "a", PATIENCE).await,
        node(&store, "b", PATIENCE).await,
    );
    let election_a = a.join("e").await.unwrap();
    elected(&election_a).await;
    let election_b = b.join("e").await.unwrap();
    a.shutdown().await;
    assert!(matches!(election_a.elected().await, Err(Error::ShutDown)));
    assert_eq!(elected(&election_b).await.term(), Term(2));
}

#[tokio::test]
async fn a_blocked_application_keeps_leadership_unless_a_watchdog_is_set() {
    let store = Arc::new(Memory::new());
    let ttl = Duration::from_millis(1500);
    let (a, b) = (node(&store, "a", ttl).await, node(&store, "b", ttl).await);
    let election = a.join("e").await.unwrap();
    let leadership = elected(&election).await;
    let other = b.join("e").await.unwrap();
    // The whole runtime of this test is one thread, and it sleeps.
    std::thread::sleep(ttl * 3);
    assert!(leadership.check().is_ok());

    let watchdog = leadership.watchdog(ttl / 4);
    std::thread::sleep(ttl * 3);
    drop(watchdog);
    assert_eq!(elected(&other).await.term(), Term(2));
    assert!(leadership.check().is_err());
}

#[tokio::test]
async fn the_deadline_moves_with_every_heartbeat_and_work_holds_the_lease() {
    let store = Arc::new(Memory::new());
    let ttl = Duration::from_secs(3);
    let (a, b) = (node(&store, "a", ttl).await, node(&store, "b", ttl).await);
    let election_a = a.join("e").await.unwrap();
    let leadership = elected(&election_a).await;
    let election_b = b.join("e").await.unwrap();

    let first = leadership.deadline();
    let second = timeout(PATIENCE, leadership.deadline_after(first))
        .await
        .expect("no heartbeat moved the deadline");
    assert!(first < second);

    let working = leadership.begin_work().unwrap();
    leadership.resign();
    leadership.stopping().cancelled().await;
    // Told to stop, but not stopped: heartbeats go on, and nobody else leads.
    timeout(PATIENCE, leadership.deadline_after(leadership.deadline()))
        .await
        .unwrap();
    assert!(!election_b.is_leader() && !leadership.ended().is_cancelled());
    assert!(leadership.begin_work().is_err());
    drop(working);
    leadership.ended().cancelled().await;
    assert_eq!(elected(&election_b).await.term(), Term(2));
}

#[tokio::test]
async fn the_deadline_is_as_close_as_the_time_that_work_has_to_stop() {
    let mut options = NodeOptions::new("memory:", "test");
    options.session = Config::for_ttl(PATIENCE);
    options.session.stop_within = PATIENCE / 3;
    let node = Node::start(options).await.unwrap();
    let leadership = elected(&node.join("e").await.unwrap()).await;
    let working = leadership.begin_work().unwrap();
    let first = leadership.deadline();
    leadership.resign();
    leadership.stopping().cancelled().await;
    assert!(leadership.deadline() < first);
    drop(working);
    leadership.ended().cancelled().await;
}

#[tokio::test]
async fn a_follower_sees_every_state_and_writes_nothing() {
    let store = Arc::new(Memory::new());
    let a = node(&store, "a", PATIENCE).await;
    let e = tenure::core::ElectionName::new("e").unwrap();
    let mut follower = a.view().follow(&e, PATIENCE);
    assert!(matches!(follower.next().await.unwrap(), Seen::Missing));
    let election = a.join("e").await.unwrap();
    let Seen::Lease(lease) = follower.next().await.unwrap() else {
        panic!("no lease");
    };
    assert_eq!((lease.term, lease.holder().is_some()), (Term(1), true));
    elected(&election).await;
    election.resign();
    let Seen::Lease(lease) = follower.next().await.unwrap() else {
        panic!("no lease");
    };
    assert_eq!((lease.holder(), lease.history.len()), (None, 1));
    let key = tenure::store::Key::new("test/elections/e").unwrap();
    let object = store.get(&key).await.unwrap().unwrap();
    let expect = Expect::Version(object.version);
    store.put(&key, "{".into(), &expect).await.unwrap();
    assert!(matches!(
        follower.next().await.unwrap(),
        Seen::Unreadable(_)
    ));
    store.delete(&key).await.unwrap();
    assert!(matches!(follower.next().await.unwrap(), Seen::Missing));
}

#[tokio::test]
async fn a_node_that_leaves_takes_its_session_with_it_and_its_successor_leads() {
    let store = Arc::new(Memory::new());
    let ttl = Duration::from_secs(600);
    let a = node(&store, "a", ttl).await;
    elected(&a.join("e").await.unwrap()).await;
    let b = node(&store, "b", ttl).await;
    b.joined().await.unwrap();
    let other = b.join("e").await.unwrap();
    a.shutdown().await;
    let sessions = Prefix::new("test/nodes/").unwrap();
    let sessions = list_all(&*store, &sessions).await.unwrap();
    let names: Vec<&str> = sessions.iter().map(|entry| entry.key.as_str()).collect();
    assert!(
        matches!(names[..], [name] if name.starts_with("test/nodes/b/")),
        "{names:?}"
    );
    // Without waiting for the ttl of the one that left.
    assert_eq!(elected(&other).await.term(), Term(2));
    b.shutdown().await;
}
