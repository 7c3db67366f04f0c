//! Subscriptions, and what becomes of the work of a term.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::core::election::{EndReason, Term};
use tenure::core::session::Config;
use tenure::store::engine::memory::Memory;
use tenure::{Leadership, Node, Stopped, Transition, Transitions};
use tokio::time::timeout;

use crate::support::{PATIENCE, elected, namespace, node_on, until};

/// Long enough that no term ends by itself.
const TTL: Duration = Duration::from_secs(5);

async fn two_nodes() -> (Node, Node) {
    let (store, namespace) = (Arc::new(Memory::new()), namespace());
    let session = Config::for_ttl(TTL);
    (
        node_on(&store, &namespace, "a", session.clone()).await,
        node_on(&store, &namespace, "b", session).await,
    )
}

async fn renewed(leadership: &Leadership) {
    let renewed = leadership.deadline_after(leadership.deadline());
    timeout(PATIENCE, renewed).await.expect("no heartbeat");
}

async fn next(transitions: &mut Transitions) -> Transition {
    let next = timeout(PATIENCE, transitions.next()).await;
    next.expect("no transition")
        .expect("the subscription ended")
}

#[tokio::test]
async fn every_subscriber_hears_the_present_first_and_then_pairs_in_order() {
    let (a, b) = two_nodes().await;
    let election = a.join("e").await.unwrap();
    elected(&election).await;
    let other = b.join("e").await.unwrap();
    let (mut early, mut slow) = (election.subscribe(), election.subscribe());
    let mut subscribed_while_leading = None;
    for round in 0..4 {
        let leadership = elected(&election).await;
        if round == 2 {
            subscribed_while_leading = Some((leadership.term(), election.subscribe()));
        }
        // Not by chance: of two that stand back the first to come forward would lead.
        until("b is listed", async || {
            election.transfer_to(b.id()).await.is_ok()
        })
        .await;
        elected(&other).await;
        other.transfer_to(a.id()).await.unwrap();
    }
    elected(&election).await;
    a.shutdown().await;
    b.shutdown().await;

    let mut heard = Vec::new();
    while let Some(transition) = timeout(PATIENCE, early.next()).await.unwrap() {
        heard.push(transition);
    }
    assert_eq!(election.subscribe().next().await, None, "nothing will come");
    assert!(heard.len() >= 8, "{heard:?}");
    let mut last = Term(0);
    for pair in heard.chunks(2) {
        let [
            Transition::Elected { term, .. },
            Transition::Ended { term: ended, .. },
        ] = pair
        else {
            panic!("no pair: {pair:?}");
        };
        assert!(term == ended && *term > last, "{heard:?}");
        last = *term;
    }
    // One that did not listen until now has missed nothing and has blocked nobody.
    for expected in &heard {
        assert_eq!(slow.next().await.as_ref(), Some(expected));
    }
    let (current, mut late) = subscribed_while_leading.unwrap();
    let since = heard.iter().position(
        |transition| matches!(transition, Transition::Elected { term, .. } if *term == current),
    );
    for expected in &heard[since.unwrap()..] {
        assert_eq!(late.next().await.as_ref(), Some(expected));
    }
}

#[tokio::test]
async fn a_leader_that_gives_up_says_why_and_a_subscriber_hears_its_state_first() {
    let (a, b) = two_nodes().await;
    let election = a.join("e").await.unwrap();
    let leadership = elected(&election).await;
    let other = b.join("e").await.unwrap();
    let mut not_leading = other.subscribe();
    assert_eq!(next(&mut not_leading).await, Transition::NotLeading);
    leadership.give_up(&"x".repeat(1000));
    elected(&other).await;
    let after = next(&mut not_leading).await;
    assert!(matches!(after, Transition::Elected { .. }), "{after:?}");
    let mut ended = election.subscribe();
    assert_eq!(next(&mut ended).await, Transition::NotLeading);
    let status = b.view().status(other.name()).await.unwrap();
    let reason = &status.lease.unwrap().history[0].reason;
    assert_eq!(*reason, format!("gave up: {}", "x".repeat(200)));
    a.shutdown().await;
    b.shutdown().await;
}

#[tokio::test]
async fn work_that_panics_gives_leadership_up() {
    let (a, b) = two_nodes().await;
    let election = a.join("e").await.unwrap();
    let leadership = elected(&election).await;
    let other = b.join("e").await.unwrap();
    let mut transitions = election.subscribe();
    let work = tokio::spawn(async move {
        leadership
            .run(async { std::panic::resume_unwind(Box::new("on purpose")) })
            .await
            .map(|never: std::convert::Infallible| never)
    });
    assert!(work.await.unwrap_err().is_panic());
    elected(&other).await;
    next(&mut transitions).await;
    let ended = Transition::Ended {
        term: Term(1),
        reason: EndReason::GaveUp {
            why: "the work panicked".to_owned(),
        },
    };
    assert_eq!(next(&mut transitions).await, ended);
    a.shutdown().await;
    b.shutdown().await;
}

#[tokio::test]
async fn work_that_ignores_being_told_is_dropped_and_then_released() {
    let (store, namespace) = (Arc::new(Memory::new()), namespace());
    let session = Config::for_ttl(TTL);
    let impatient = Config {
        stop_within: Duration::from_millis(100),
        ..session.clone()
    };
    let a = node_on(&store, &namespace, "a", impatient).await;
    let b = node_on(&store, &namespace, "b", session).await;
    let election = a.join("e").await.unwrap();
    let leadership = elected(&election).await;
    let other = b.join("e").await.unwrap();
    let work = tokio::spawn({
        let leadership = leadership.clone();
        async move { leadership.run(std::future::pending::<()>()).await }
    });
    tokio::task::yield_now().await;
    leadership.resign();
    let stopped = timeout(PATIENCE, work).await.unwrap().unwrap().unwrap_err();
    assert!(
        matches!(stopped, Stopped::Term { term: Term(1), .. }),
        "{stopped}"
    );
    elected(&other).await;
    // Work that comes too late is not begun.
    assert!(leadership.run(async {}).await.is_err());
    a.shutdown().await;
    b.shutdown().await;
}

#[tokio::test]
async fn work_that_never_yields_keeps_others_from_leading_until_it_returns() {
    let (a, b) = two_nodes().await;
    let election = a.join("e").await.unwrap();
    let leadership = elected(&election).await;
    let other = b.join("e").await.unwrap();
    let (begun, is_begun) = tokio::sync::oneshot::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let has_ended = Arc::new(AtomicBool::new(false));
    let work = std::thread::spawn({
        let (leadership, has_ended) = (leadership.clone(), has_ended.clone());
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .build()
                .unwrap();
            runtime.block_on(leadership.run(async {
                begun.send(()).unwrap();
                released.recv().unwrap();
                has_ended.store(true, Ordering::SeqCst);
            }))
        }
    });
    is_begun.await.unwrap();
    leadership.resign();
    timeout(PATIENCE, leadership.stopping().cancelled_owned())
        .await
        .unwrap();
    // A heartbeat later the term still goes on, since its work does.
    renewed(&leadership).await;
    assert!(!other.is_leader());
    release.send(()).unwrap();
    elected(&other).await;
    assert!(has_ended.load(Ordering::SeqCst));
    // It did return, if late.
    work.join().unwrap().unwrap();
    a.shutdown().await;
    b.shutdown().await;
}

#[tokio::test]
async fn a_fed_watchdog_keeps_leadership_and_a_hungry_one_lets_it_go() {
    let (a, b) = two_nodes().await;
    let election = a.join("e").await.unwrap();
    let leadership = elected(&election).await;
    let other = b.join("e").await.unwrap();
    let period = Duration::from_millis(500);
    let watchdog = leadership.watchdog(period);
    for _ in 0..8 {
        tokio::time::sleep(period / 4).await;
        watchdog.feed();
    }
    assert!(leadership.check().is_ok());
    // The work goes on being polled and makes no progress.
    let work = leadership.run(async {
        leadership.stopping().cancelled_owned().await;
    });
    timeout(PATIENCE, work).await.unwrap().unwrap();
    elected(&other).await;
    drop(watchdog);
    a.shutdown().await;
    b.shutdown().await;
}

#[tokio::test]
async fn a_handle_of_an_old_term_cannot_resign_a_newer_one() {
    let (a, b) = two_nodes().await;
    let election = a.join("e").await.unwrap();
    let first = elected(&election).await;
    let other = b.join("e").await.unwrap();
    first.resign();
    elected(&other).await;
    other.transfer_to(a.id()).await.unwrap();
    let third = elected(&election).await;
    first.resign();
    // Whatever it did has been done by the next heartbeat.
    renewed(&third).await;
    assert!(!third.stopping().is_cancelled() && third.term() == Term(3));
    a.shutdown().await;
    b.shutdown().await;
}
