//! Futures that are dropped half way, by a timeout around them or an aborted task, and answers that are lost: what
//! was begun is ended, and nothing happens twice.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tenure::core::Namespace;
use tenure::core::session::{Config, Record, State};
use tenure::queue::{Options, Queue};
use tenure::store::engine::memory::Memory;
use tenure::store::wrap::faulty::{Fault, Faults, Faulty, Kind};
use tenure::store::wrap::metered::Operation;
use tenure::store::{Key, Prefix, Store, list_all};
use tenure::{NamespaceView, Node};
use tokio::time::timeout;

use crate::support::{
    PATIENCE, begun_and_dropped, elected, id, namespace, node_on, options, until,
};

/// Long enough that no session ends by itself while the test looks.
const TTL: Duration = PATIENCE;

/// Drops a future that has had to wait more often than that, and has not ended. By number, and not by time: what is slow
/// on one machine is done at once on another.
async fn dropped_after<F: Future>(future: F, waits: u64) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = waits;
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

#[tokio::test]
async fn a_start_that_is_dropped_leaves_no_session() {
    let folder = tempfile::tempdir().unwrap();
    let (url, namespace) = (format!("file:{}", folder.path().display()), namespace());
    let mut dropped = 0;
    for number in 0..40 {
        let name = format!("n{number}");
        // On a disk that is busy with other things a sync takes seconds, and a node that leaves gives up after a ttl.
        let config = Config::for_ttl(TTL * 20);
        let start = Node::start(options(&url, &namespace, &name, config));
        match dropped_after(start, number % 4).await {
            Some(node) => node.unwrap().shutdown().await,
            None => dropped += 1,
        }
    }
    assert!(dropped > 0, "none was dropped half way");
    let store = tenure::store::open(&url).await.unwrap();
    all_left(&*store, &namespace).await;
}

#[tokio::test]
async fn work_that_is_dropped_gives_leadership_up() {
    let (store, namespace) = (Arc::new(Memory::new()), namespace());
    let a = node_on(&store, &namespace, "a", Config::for_ttl(TTL)).await;
    let election = a.join("e").await.unwrap();
    let (works, worked) = tokio::sync::oneshot::channel();
    let mut works = Some(works);
    let lead = {
        let election = election.clone();
        tokio::spawn(async move {
            let work = |_| {
                let _ = works.take().map(|works| works.send(()));
                std::future::pending()
            };
            election.lead(work).await
        })
    };
    worked.await.unwrap();
    let b = node_on(&store, &namespace, "b", Config::for_ttl(TTL)).await;
    let other = b.join("e").await.unwrap();
    lead.abort();
    elected(&other).await;
    a.shutdown().await;
    b.shutdown().await;
}

#[tokio::test]
async fn a_request_whose_answer_was_lost_is_not_made_of_the_successor() {
    let (memory, namespace) = (Arc::new(Memory::new()), namespace());
    let a = node_on(&memory, &namespace, "a", Config::for_ttl(TTL)).await;
    let b = node_on(&memory, &namespace, "b", Config::for_ttl(TTL)).await;
    let (of_a, of_b) = (a.join("e").await.unwrap(), b.join("e").await.unwrap());
    let (leader, other) = tokio::select! {
        _ = elected(&of_a) => (&of_a, &of_b),
        _ = elected(&of_b) => (&of_b, &of_a),
    };
    let term = leader.leadership().unwrap().term();

    let faulty = Arc::new(Faulty::new(memory.clone(), Faults::default(), 1).unwrap());
    let lease = Key::new(format!("{namespace}/elections/e")).unwrap();
    faulty
        .script(Operation::Put, &lease, Fault::LoseAnswer)
        .unwrap();
    // What became of the request is looked at only after it was obeyed.
    faulty
        .script(Operation::Get, &lease, Fault::Delay(Duration::ZERO))
        .unwrap();
    faulty.script(Operation::Get, &lease, Fault::Hang).unwrap();
    let view = NamespaceView::new(faulty.clone(), Namespace::new(&namespace).unwrap());
    let asked = {
        let name = leader.name().clone();
        tokio::spawn(async move { view.request_resign(&name, &id("operator")).await })
    };
    let successor = elected(other).await;
    assert!(successor.term() > term);
    faulty.release();
    asked.await.unwrap().unwrap();
    let status = a.view().status(leader.name()).await.unwrap();
    assert_eq!(
        status.lease.unwrap().request,
        None,
        "the successor is asked too"
    );
    assert!(successor.check().is_ok());
    a.shutdown().await;
    b.shutdown().await;
}

/// Waits until no session of the namespace is alive.
async fn all_left(store: &dyn Store, namespace: &str) {
    let sessions = Prefix::new(format!("{namespace}/nodes/")).unwrap();
    let are_alive = async || {
        for entry in list_all(store, &sessions).await.unwrap() {
            let Some(object) = store.get(&entry.key).await.unwrap() else {
                continue;
            };
            if Record::decode(&object.value).unwrap().state == State::Alive {
                return true;
            }
        }
        false
    };
    let all = async {
        while are_alive().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let all = timeout(PATIENCE * 4, all).await;
    all.expect("a session is alive");
}

#[tokio::test]
async fn a_shutdown_that_is_dropped_goes_on() {
    let (store, namespace) = (Arc::new(Memory::new()), namespace());
    let a = node_on(&store, &namespace, "a", Config::for_ttl(TTL)).await;
    let election = a.join("e").await.unwrap();
    elected(&election).await;
    assert!(begun_and_dropped(a.shutdown()).await);
    // The handle is still there: it is not its end that ends the session.
    all_left(&*store, &namespace).await;
    assert!(!election.is_leader());
    a.shutdown().await;
}

#[tokio::test]
async fn a_queue_that_is_being_closed_is_closed() {
    let (store, namespace) = (Arc::new(Memory::new()), namespace());
    let a = node_on(&store, &namespace, "a", Config::for_ttl(TTL)).await;
    let b = node_on(&store, &namespace, "b", Config::for_ttl(TTL)).await;
    let queue = Queue::open(&a, Options::default()).await.unwrap();
    timeout(PATIENCE, queue.serving()).await.unwrap().unwrap();
    assert!(begun_and_dropped(queue.close()).await);
    let other = Queue::open(&b, Options::default()).await.unwrap();
    timeout(PATIENCE, other.serving()).await.unwrap().unwrap();
    a.shutdown().await;
    b.shutdown().await;
}

#[tokio::test]
async fn waiting_that_is_dropped_holds_nothing() {
    let (store, namespace) = (Arc::new(Memory::new()), namespace());
    let a = node_on(&store, &namespace, "a", Config::for_ttl(TTL)).await;
    let b = node_on(&store, &namespace, "b", Config::for_ttl(TTL)).await;
    let election = a.join("e").await.unwrap();
    let leadership = elected(&election).await;
    let other = b.join("e").await.unwrap();
    // Nobody works for it: nothing has to end before it is given up, whatever was waited for.
    assert!(begun_and_dropped(other.elected()).await);
    let known = leadership.deadline();
    assert!(begun_and_dropped(leadership.deadline_after(known)).await);
    let works = leadership.run(std::future::pending::<()>());
    assert!(begun_and_dropped(works).await);
    assert!(
        leadership.check().is_ok(),
        "work that ends does not end the term"
    );
    let mut seen = a.view().follow(election.name(), PATIENCE);
    seen.next().await.unwrap();
    assert!(begun_and_dropped(seen.next()).await);
    leadership.resign();
    elected(&other).await;
    a.shutdown().await;
    b.shutdown().await;
}

#[tokio::test]
async fn a_transfer_that_is_dropped_is_made_once_or_not_at_all() {
    let (memory, namespace) = (Arc::new(Memory::new()), namespace());
    let a = node_on(&memory, &namespace, "a", Config::for_ttl(TTL)).await;
    let of_a = a.join("e").await.unwrap();
    let term = elected(&of_a).await.term();
    let b = node_on(&memory, &namespace, "b", Config::for_ttl(TTL)).await;
    let of_b = b.join("e").await.unwrap();
    let name = of_a.name();
    until("b is a candidate", async || {
        let status = a.view().status(name).await.unwrap();
        status.candidates.len() == 2
    })
    .await;
    // By an operator whose request hangs in the store when it goes.
    let faulty = Arc::new(Faulty::new(memory.clone(), Faults::default(), 1).unwrap());
    let lease = Key::new(format!("{namespace}/elections/e")).unwrap();
    faulty.script(Operation::Put, &lease, Fault::Hang).unwrap();
    let view = NamespaceView::new(faulty.clone(), Namespace::new(&namespace).unwrap());
    let asked = {
        let name = name.clone();
        tokio::spawn(async move {
            view.request_transfer(&name, &id("b"), &id("operator"))
                .await
        })
    };
    until("the request hangs", async || {
        faulty.injected()[&Kind::Hung] >= 1
    })
    .await;
    asked.abort();
    assert!(asked.await.unwrap_err().is_cancelled());
    faulty.release();
    // By the leader itself, which has to look for the candidate first.
    begun_and_dropped(of_a.transfer_to(&id("b"))).await;
    // One of the two before may be under way already, and then nobody leads for a moment.
    match of_a.transfer_to(&id("b")).await {
        Ok(_) | Err(tenure::Error::NoLeader { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    let successor = elected(&of_b).await;
    assert_eq!(successor.term().0, term.0 + 1, "it went to and fro");
    assert!(successor.check().is_ok());
    a.shutdown().await;
    b.shutdown().await;
}
