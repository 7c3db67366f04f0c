//! Elections without a background loop.

use std::sync::Arc;
use std::time::Duration;

use tenure::core::election::Term;
use tenure::store::engine::memory::Memory;
use tenure::{Error, OneShot};

fn elections(ttl: Duration) -> OneShot {
    OneShot::new(Arc::new(Memory::new()), "test", ttl).unwrap()
}

#[tokio::test]
async fn the_first_to_ask_leads_and_nobody_is_pushed_out() {
    let elections = elections(Duration::from_secs(60));
    let (a, b) = ("a".parse().unwrap(), "b".parse().unwrap());
    let first = elections.elect(&a).await.unwrap();
    assert!(first.is_leader() && first.valid_for > Duration::from_secs(50));
    for _ in 0..2 {
        let other = elections.elect(&b).await.unwrap();
        assert!(!other.is_leader() && other.valid_for.is_zero());
        assert_eq!(other.leader.unwrap().node, a);
    }
    // Asking again keeps the term: a new one would fence off work that is still allowed.
    let again = elections.elect(&a).await.unwrap();
    assert_eq!(again.token, first.token);
    assert!(elections.is_leader(&a).await.unwrap());
    assert!(!elections.is_leader(&b).await.unwrap());
    assert_eq!(elections.list_candidates().await.unwrap().len(), 2);
}

#[tokio::test]
async fn unregistering_vacates_for_the_next_to_ask() {
    let elections = elections(Duration::from_secs(60));
    let (a, b) = ("a".parse().unwrap(), "b".parse().unwrap());
    elections.elect(&a).await.unwrap();
    elections.unregister_candidate(&a).await.unwrap();
    assert!(!elections.is_leader(&a).await.unwrap());
    assert!(elections.list_candidates().await.unwrap().is_empty());
    let next = elections.elect(&b).await.unwrap();
    assert_eq!(next.token.unwrap().term, Term(2));
    // A delayed second unregister of the old leader changes nothing.
    elections.unregister_candidate(&a).await.unwrap();
    assert!(elections.is_leader(&b).await.unwrap());
}

#[tokio::test]
async fn a_candidate_that_stopped_calling_is_replaced_after_its_ttl() {
    let ttl = Duration::from_secs(1);
    let elections = elections(ttl);
    let (a, b) = ("a".parse().unwrap(), "b".parse().unwrap());
    let first = elections.elect(&a).await.unwrap();
    // The store's own clock decides, so real time has to pass.
    tokio::time::sleep(ttl + Duration::from_millis(20)).await;
    let next = elections.elect(&b).await.unwrap();
    assert_eq!(next.token.unwrap().term, Term(2));
    assert!(
        next.token
            .unwrap()
            .check_against(first.token.unwrap())
            .is_ok()
    );
    let late = elections.elect(&a).await.unwrap();
    assert!(!late.is_leader());
}

#[tokio::test]
async fn one_candidate_can_stand_in_several_elections() {
    let reports = elections(Duration::from_secs(60));
    let mails = reports.clone().with_election("mails").unwrap();
    let (a, b) = ("a".parse().unwrap(), "b".parse().unwrap());
    assert!(reports.elect(&a).await.unwrap().is_leader());
    assert!(mails.elect(&b).await.unwrap().is_leader());
    assert!(!mails.elect(&a).await.unwrap().is_leader());
    assert_eq!(mails.list_candidates().await.unwrap().len(), 2);

    // Whoever leaves one of them stays in the other.
    mails.unregister_candidate(&a).await.unwrap();
    assert_eq!(mails.list_candidates().await.unwrap().len(), 1);
    assert!(reports.is_leader(&a).await.unwrap());
    reports.unregister_candidate(&a).await.unwrap();
    assert!(reports.list_candidates().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_later_call_never_shortens_what_an_earlier_one_was_told() {
    let store = Arc::new(Memory::new());
    let elections = |ttl| OneShot::new(store.clone(), "test", ttl).unwrap();
    let (long, short) = (Duration::from_secs(60), Duration::from_millis(500));
    let (a, b) = ("a".parse().unwrap(), "b".parse().unwrap());
    let first = elections(long).elect(&a).await.unwrap();
    elections(short).elect(&a).await.unwrap();
    tokio::time::sleep(short * 2).await;
    let other = elections(short).elect(&b).await.unwrap();
    assert!(first.is_leader() && !other.is_leader());
}

#[tokio::test]
async fn bad_names_and_times_are_refused() {
    let store = Arc::new(Memory::new());
    let error = OneShot::new(store.clone(), "a/b", Duration::from_secs(60)).unwrap_err();
    assert!(matches!(error, Error::Name(_)), "{error}");
    let elections = OneShot::new(store.clone(), "a", Duration::from_secs(60)).unwrap();
    let error = elections.with_election("a\nb").unwrap_err();
    assert!(matches!(error, Error::Name(_)), "{error}");
    let error = OneShot::new(store, "a", Duration::ZERO).unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error}");
    assert!("a\nb".parse::<tenure::core::NodeId>().is_err());
}
