//! One candidate in elections with different ttls.

use std::sync::Arc;
use std::time::Duration;

use tenure::core::NodeId;
use tenure::core::election::Term;
use tenure::store::engine::memory::Memory;
use tenure::store::{Prefix, Store, list_all};
use tenure::{OneShot, Withdrawal};

fn election(store: &Arc<Memory>, name: &str, ttl: Duration) -> OneShot {
    let elections = OneShot::new(store.clone(), "test", ttl).unwrap();
    elections.with_election(name).unwrap()
}

async fn sessions(store: &Arc<Memory>) -> usize {
    let store: &dyn Store = &**store;
    let listed = list_all(store, &Prefix::new("test/nodes").unwrap()).await;
    listed.unwrap().len()
}

#[tokio::test]
async fn each_election_goes_by_the_ttl_that_it_was_entered_with() {
    let store = Arc::new(Memory::new());
    let (long, short) = (Duration::from_secs(60), Duration::from_secs(1));
    let reports = election(&store, "reports", long);
    let mails = election(&store, "mails", short);
    let [a, b]: [NodeId; 2] = ["a", "b"].map(|id| id.parse().unwrap());
    for calls in [[&reports, &mails], [&mails, &reports]] {
        let ours = [calls[0].elect(&a).await, calls[1].elect(&a).await];
        assert!(ours.iter().all(|told| told.as_ref().unwrap().is_leader()));
        assert!(!mails.elect(&b).await.unwrap().is_leader());
        let reports_term = reports.elect(&a).await.unwrap().token.unwrap().term;
        tokio::time::sleep(short + Duration::from_millis(20)).await;
        // It has called in neither since. Only one of them has it lost.
        assert!(mails.elect(&b).await.unwrap().is_leader());
        assert!(!reports.elect(&b).await.unwrap().is_leader());
        let told = reports.elect(&a).await.unwrap();
        assert_eq!(told.token.unwrap().term, reports_term);
        assert!(!mails.elect(&a).await.unwrap().is_leader());
        for elections in [&reports, &mails] {
            elections.unregister_candidate(&a).await.unwrap();
            elections.unregister_candidate(&b).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_candidate_of_elections_with_one_ttl_has_one_session_and_never_many() {
    let store = Arc::new(Memory::new());
    let a: NodeId = "a".parse().unwrap();
    let ttl = Duration::from_secs(60);
    for name in ["one", "two"] {
        let told = election(&store, name, ttl).elect(&a).await.unwrap();
        assert!(told.is_leader());
    }
    assert_eq!(sessions(&store).await, 1);
    for number in 0..8 {
        let name = format!("e{number}");
        let elections = election(&store, &name, ttl * (number + 2));
        assert!(elections.elect(&a).await.unwrap().is_leader());
        assert!(elections.elect(&a).await.unwrap().is_leader());
    }
    assert_eq!(sessions(&store).await, 4);
}

/// Whoever withdraws need not know with which ttl the candidate was entered.
#[tokio::test]
async fn a_candidate_is_withdrawn_whatever_its_ttl_is() {
    let store = Arc::new(Memory::new());
    let [a, b]: [NodeId; 2] = ["a", "b"].map(|id| id.parse().unwrap());
    let (long, short) = (Duration::from_secs(60), Duration::from_secs(20));
    assert!(
        election(&store, "mails", short)
            .elect(&a)
            .await
            .unwrap()
            .is_leader()
    );
    let with_other_ttl = |name| election(&store, name, long);
    let done = with_other_ttl("mails").withdraw(&a, Some(Term(2))).await;
    assert_eq!(done.unwrap(), Withdrawal::OtherTerm);
    // It is its candidate, and does not stand there: that is so now.
    let done = with_other_ttl("reports").withdraw(&a, None).await;
    assert_eq!(done.unwrap(), Withdrawal::Done);
    let done = with_other_ttl("mails").withdraw(&a, Some(Term(1))).await;
    assert_eq!(done.unwrap(), Withdrawal::Done);
    assert_eq!(sessions(&store).await, 0);
    let done = with_other_ttl("mails").withdraw(&b, None).await;
    assert_eq!(done.unwrap(), Withdrawal::NotStanding);
}
