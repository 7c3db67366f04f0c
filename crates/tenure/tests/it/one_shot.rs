//! Elections without a background loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::join_all;
use tenure::core::election::{LeaseState, Term};
use tenure::core::session::{About, ONE_SHOT, Record, State};
use tenure::core::{ElectionName, Incarnation, Namespace, NodeId, Nonce, Wall};
use tenure::queue::{Options, Queue};
use tenure::store::engine::memory::Memory;
use tenure::store::wrap::faulty::{Fault, Faults, Faulty, Kind};
use tenure::store::wrap::metered::{Meter, Metered, Operation};
use tenure::store::{
    Change, Description, Error as StoreError, Expect, Key, Object, Page, Prefix, Store, Version,
    Watch, list_all,
};
use tenure::{Bounds, Error, NamespaceView, Node, NodeOptions, OneShot, Withdrawal};

use crate::support::until;

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

/// A store that tells other ages than it has.
#[derive(Debug)]
struct Aged(Arc<Memory>, fn(&Key, Object) -> Object);

impl Aged {
    /// None, as databases and object stores.
    fn none() -> Self {
        Self::none_of(Arc::default())
    }

    fn none_of(store: Arc<Memory>) -> Self {
        Self(store, |_, object| Object {
            age: None,
            shown_age: Some(Duration::from_secs(3600)),
            ..object
        })
    }

    /// An hour more than they have.
    fn older() -> Self {
        Self(Arc::default(), |_, object| older(object))
    }

    /// Of leases those since their writes were begun, by writers that were stopped for an hour then.
    fn since_begun() -> Self {
        Self(Arc::default(), |key, object| {
            if key.as_str().contains("/elections/") {
                older(object)
            } else {
                object
            }
        })
    }
}

fn older(object: Object) -> Object {
    Object {
        age: object.age.map(|age| age + Duration::from_secs(3600)),
        ..object
    }
}

#[async_trait]
impl Store for Aged {
    fn describe(&self) -> Description {
        self.0.describe()
    }
    async fn get(&self, key: &Key) -> Result<Option<Object>, StoreError> {
        Ok(self.0.get(key).await?.map(|object| self.1(key, object)))
    }
    async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, StoreError> {
        Ok(match self.0.get_if_changed(key, version).await? {
            Change::Changed(object) => Change::Changed(self.1(key, object)),
            change => change,
        })
    }
    async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, StoreError> {
        self.0.put(key, value, expect).await
    }
    async fn delete(&self, key: &Key) -> Result<(), StoreError> {
        self.0.delete(key).await
    }
    async fn list(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, StoreError> {
        self.0.list(prefix, after).await
    }
    fn watch(&self, prefix: &Prefix) -> Option<Watch> {
        self.0.watch(prefix)
    }
}

/// However old the leader's session looks by the store's clock, only what was seen for a whole ttl counts.
#[tokio::test]
async fn without_ages_the_second_call_after_a_ttl_replaces_a_dead_leader() {
    let ttl = Duration::from_secs(1);
    let store = Arc::new(Aged::none());
    let elections = OneShot::new(store.clone(), "test", ttl).unwrap();
    let (a, b) = ("a".parse().unwrap(), "b".parse().unwrap());
    assert!(elections.elect(&a).await.unwrap().is_leader());
    assert!(!elections.elect(&b).await.unwrap().is_leader());
    // The leader lives on: what was seen of it before says nothing any more.
    tokio::time::sleep(ttl / 2).await;
    assert!(elections.elect(&a).await.unwrap().is_leader());
    tokio::time::sleep(ttl / 2 + Duration::from_millis(50)).await;
    assert!(!elections.elect(&b).await.unwrap().is_leader());
    // It has died. Neither a call too early nor one by a candidate that has not looked replaces it.
    tokio::time::sleep(ttl / 2).await;
    assert!(!elections.elect(&b).await.unwrap().is_leader());
    tokio::time::sleep(ttl / 2 + Duration::from_millis(50)).await;
    assert!(
        !elections
            .elect(&"c".parse().unwrap())
            .await
            .unwrap()
            .is_leader()
    );
    let next = elections.elect(&b).await.unwrap();
    assert_eq!(next.token.map(|token| token.term), Some(Term(2)));
    // What was seen on another host, or before this one was started, says nothing.
    tokio::time::sleep(ttl + Duration::from_millis(50)).await;
    let session = Prefix::new("test/nodes/c").unwrap();
    let entry = store.list(&session, None).await.unwrap().entries.remove(0);
    let object = store.get(&entry.key).await.unwrap().unwrap();
    let text = String::from_utf8(object.value.to_vec()).unwrap();
    let mut record: serde_json::Value = serde_json::from_str(&text).unwrap();
    let seen = &mut record["seen"]["default"];
    assert!(seen["clock"].is_string(), "{text}");
    seen["clock"] = "00000000000000000000000000000abc".into();
    let expect = Expect::Version(object.version);
    let value = Bytes::from(record.to_string());
    store.put(&entry.key, value, &expect).await.unwrap();
    assert!(
        !elections
            .elect(&"c".parse().unwrap())
            .await
            .unwrap()
            .is_leader()
    );
}

/// As when it was removed as long dead by calls for other elections, before anybody looked at this one.
#[tokio::test]
async fn a_leader_whose_session_is_missing_is_replaced_by_the_second_call_after_a_ttl() {
    let ttl = Duration::from_secs(2);
    let store = Arc::new(Memory::new());
    let elections = OneShot::new(store.clone(), "test", ttl).unwrap();
    let (a, b) = ("a".parse().unwrap(), "b".parse().unwrap());
    assert!(elections.elect(&a).await.unwrap().is_leader());
    let session = Prefix::new("test/nodes/a").unwrap();
    for entry in list_all(&*store, &session).await.unwrap() {
        store.delete(&entry.key).await.unwrap();
    }
    // Until then it may be trusted.
    let asked = Instant::now();
    for _ in 0..2 {
        let too_early = elections.elect(&b).await.unwrap();
        assert!(!too_early.is_leader() || asked.elapsed() >= ttl);
    }
    tokio::time::sleep(ttl).await;
    let next = elections.elect(&b).await.unwrap();
    assert_eq!(next.token.map(|token| token.term), Some(Term(2)));
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
    assert!("a\nb".parse::<NodeId>().is_err());
}

/// How many requests of any kind there were.
fn requests(meter: &Meter) -> u64 {
    let snapshot = meter.snapshot();
    snapshot.ended.iter().map(|ended| ended.count).sum()
}

async fn sessions(store: &dyn Store) -> usize {
    let nodes = Prefix::new("test/nodes").unwrap();
    list_all(store, &nodes).await.unwrap().len()
}

#[tokio::test]
async fn rounds_of_electing_and_leaving_leave_nothing_and_cost_the_same() {
    let store = Arc::new(Metered::new(Arc::new(Memory::new())));
    let elections = OneShot::new(store.clone(), "test", Duration::from_secs(60)).unwrap();
    let (a, b) = ("a".parse().unwrap(), "b".parse().unwrap());
    // Somebody else stands all the time, and is looked at.
    elections.register_candidate(&b).await.unwrap();
    let mut costs = Vec::new();
    for _ in 0..120 {
        let before = requests(store.meter());
        assert!(elections.elect(&a).await.unwrap().is_leader());
        elections.unregister_candidate(&a).await.unwrap();
        costs.push(requests(store.meter()) - before);
    }
    // The first round also makes the election.
    let usual = costs[1];
    assert!(costs[1..].iter().all(|&cost| cost == usual), "{costs:?}");
    assert!(usual <= 20, "{usual}");
    assert_eq!(sessions(&*store).await, 1, "that of b");
}

#[tokio::test]
async fn a_renewal_costs_one_write_and_one_listing() {
    let store = Arc::new(Metered::new(Arc::new(Memory::new())));
    let elections = OneShot::new(store.clone(), "test", Duration::from_secs(60)).unwrap();
    let a = "a".parse().unwrap();
    elections.elect(&a).await.unwrap();
    // A note is kept by the whole millisecond: before that is over nobody can tell that it is young, and may look again.
    tokio::time::sleep(Duration::from_millis(2)).await;
    let before = requests(store.meter());
    elections.elect(&a).await.unwrap();
    assert_eq!(
        requests(store.meter()) - before,
        6,
        "a listing, four reads, a write"
    );
}

#[tokio::test]
async fn candidates_that_never_came_back_are_removed_by_those_who_come() {
    let store = Arc::new(Aged::older());
    let elections = OneShot::new(store.clone(), "test", Duration::from_secs(60)).unwrap();
    let mut most = 0;
    for number in 0..300 {
        let id = format!("c{number}").parse().unwrap();
        elections.register_candidate(&id).await.unwrap();
        most = most.max(sessions(&*store).await);
    }
    // Each is evicted, and then deleted: two looks, and every newcomer takes four.
    assert!(most < 100, "{most} sessions of 300 candidates");
}

/// A store that tells no ages. What was noted in sessions was noted a minute earlier.
#[derive(Debug)]
struct Later(Aged);

impl Later {
    fn later(mut object: Object) -> Object {
        if let Ok(mut record) = serde_json::from_slice::<serde_json::Value>(&object.value)
            && let Some(passed) = record.get_mut("passed")
        {
            for clock in ["at_ms", "wall"] {
                passed[clock] = passed[clock]
                    .as_u64()
                    .unwrap()
                    .saturating_sub(61_000)
                    .into();
            }
            object.value = Bytes::from(record.to_string());
        }
        object
    }
}

#[async_trait]
impl Store for Later {
    fn describe(&self) -> Description {
        self.0.describe()
    }
    async fn get(&self, key: &Key) -> Result<Option<Object>, StoreError> {
        Ok(self.0.get(key).await?.map(Self::later))
    }
    async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, StoreError> {
        self.0.get_if_changed(key, version).await
    }
    async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, StoreError> {
        self.0.put(key, value, expect).await
    }
    async fn delete(&self, key: &Key) -> Result<(), StoreError> {
        self.0.delete(key).await
    }
    async fn list(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, StoreError> {
        self.0.list(prefix, after).await
    }
    fn watch(&self, prefix: &Prefix) -> Option<Watch> {
        self.0.watch(prefix)
    }
}

/// Calls that never come back, on a store that cannot say how old they are: others who came on the same host have seen
/// them before.
#[tokio::test]
async fn without_ages_those_who_come_remove_what_others_saw_before() {
    let store = Arc::new(Metered::new(Arc::new(Later(Aged::none()))));
    let elections = OneShot::new(store.clone(), "test", Duration::from_secs(5)).unwrap();
    let (mut most_sessions, mut most_requests) = (0, 0);
    let leader: NodeId = "leader".parse().unwrap();
    assert!(elections.elect(&leader).await.unwrap().is_leader());
    for number in 0..300 {
        let id = format!("c{number}").parse().unwrap();
        let before = requests(store.meter());
        elections.elect(&id).await.unwrap();
        most_requests = most_requests.max(requests(store.meter()) - before);
        most_sessions = most_sessions.max(sessions(&*store).await);
        // It lives, so it stays, however much time passes for the others.
        assert!(
            elections.elect(&leader).await.unwrap().is_leader(),
            "{number}"
        );
    }
    assert!(
        most_sessions < 60,
        "{most_sessions} sessions of 301 candidates"
    );
    assert!(most_requests < 30, "{most_requests} requests for a call");
}

/// Candidates of the past, and one that goes on calling: nobody new comes who would remove them.
#[tokio::test]
async fn those_who_stay_remove_the_dead_as_well() {
    let store = Arc::new(Metered::new(Arc::new(Later(Aged::none()))));
    let elections = OneShot::new(store.clone(), "test", Duration::from_secs(5)).unwrap();
    let id: NodeId = "a".parse().unwrap();
    let first = elections.elect(&id).await.unwrap();
    for number in 0..40_u128 {
        let dead = Record {
            node: format!("dead{number}").parse().unwrap(),
            incarnation: Incarnation(number + 1),
            counter: 1,
            nonce: Nonce::default(),
            ttl: Duration::from_secs(5),
            state: State::Alive,
            joined_at: Wall(0),
            about: Box::new(About {
                labels: [(ONE_SHOT.to_owned(), "true".to_owned())].into(),
                ..About::default()
            }),
        };
        let key = format!("test/nodes/{}/{}", dead.node, dead.incarnation);
        let (key, value) = (Key::new(key).unwrap(), Bytes::from(dead.encode()));
        store.put(&key, value, &Expect::Absent).await.unwrap();
    }
    let mut most_requests = 0;
    for number in 0..300 {
        let before = requests(store.meter());
        let now = elections.elect(&id).await.unwrap();
        most_requests = most_requests.max(requests(store.meter()) - before);
        assert_eq!(
            now.token, first.token,
            "call {number}: it leads all the time"
        );
    }
    assert_eq!(sessions(&*store).await, 1, "its own");
    assert!(most_requests < 30, "{most_requests} requests for a call");
}

#[tokio::test]
async fn a_term_that_was_led_and_given_up_was_resigned() {
    let store = Arc::new(Memory::new());
    let elections = OneShot::new(store.clone(), "test", Duration::from_secs(60)).unwrap();
    let view = NamespaceView::new(store, Namespace::new("test").unwrap());
    let id = "a".parse().unwrap();
    for _ in 0..2 {
        assert!(elections.elect(&id).await.unwrap().is_leader());
        elections.unregister_candidate(&id).await.unwrap();
    }
    let status = view.status(&"default".parse().unwrap()).await.unwrap();
    let history = status.lease.unwrap().history;
    let reasons: Vec<&str> = history.iter().map(|past| &*past.reason).collect();
    assert_eq!(reasons, ["resigned", "resigned"]);
}

/// They all change one session.
#[tokio::test]
async fn many_calls_at_once_for_one_candidate_all_get_through() {
    let faults = Faults {
        delayed: 1.0,
        delay: Duration::from_millis(5)..=Duration::from_millis(5),
        ..Faults::default()
    };
    let store = Faulty::new(Arc::new(Memory::new()), faults, 1).unwrap();
    let elections = OneShot::new(Arc::new(store), "test", Duration::from_secs(60)).unwrap();
    let id: NodeId = "a".parse().unwrap();
    elections.register_candidate(&id).await.unwrap();
    let calls = (0..80).map(|number| {
        let elections = elections.clone().with_election(&format!("e{number}"));
        let id = id.clone();
        async move { elections.unwrap().elect(&id).await }
    });
    for (number, outcome) in join_all(calls).await.into_iter().enumerate() {
        assert!(outcome.unwrap().is_leader(), "e{number}");
    }
}

/// Nobody stays out for ever because those who stood under the name had other secrets, and are dead.
#[tokio::test]
async fn without_ages_a_crowd_of_the_dead_makes_room() {
    let store = Arc::new(Later(Aged::none()));
    let elections = OneShot::new(store, "test", Duration::from_secs(5)).unwrap();
    let id = "a".parse().unwrap();
    for number in 0..50 {
        let elections = elections
            .clone()
            .with_secret_digest(Some(number.to_string()));
        elections.register_candidate(&id).await.unwrap();
    }
}

/// What was seen on another host, or a moment ago, says nothing.
#[tokio::test]
async fn without_ages_nobody_is_removed_who_was_not_seen_for_long() {
    let store = Arc::new(Aged::none());
    let elections = OneShot::new(store.clone(), "test", Duration::from_secs(5)).unwrap();
    for number in 0..40 {
        let id = format!("c{number}").parse().unwrap();
        elections.register_candidate(&id).await.unwrap();
    }
    let nodes = Prefix::new("test/nodes").unwrap();
    for entry in list_all(&*store, &nodes).await.unwrap() {
        let object = store.get(&entry.key).await.unwrap().unwrap();
        let record = Record::decode(&object.value).unwrap();
        assert_eq!(record.state, State::Alive);
    }
    assert_eq!(sessions(&*store).await, 40);
}

#[tokio::test]
async fn a_leader_that_is_asked_to_resign_is_told_and_renewed_no_more() {
    let store = Arc::new(Memory::new());
    let elections = OneShot::new(store.clone(), "test", Duration::from_secs(60)).unwrap();
    let view = NamespaceView::new(store.clone(), Namespace::new("test").unwrap());
    let name = ElectionName::new("default").unwrap();
    let [a, b, ops]: [NodeId; 3] = ["a", "b", "ops"].map(|id| id.parse().unwrap());
    assert!(elections.elect(&a).await.unwrap().is_leader());
    assert!(!elections.elect(&b).await.unwrap().is_leader());
    view.request_resign(&name, &ops).await.unwrap();

    let counter = async || {
        let sessions = view.sessions().await.unwrap();
        sessions
            .iter()
            .find(|session| session.node == a)
            .unwrap()
            .counter
    };
    let before = counter().await;
    let told = elections.elect(&a).await.unwrap();
    assert!(!told.is_leader() && told.valid_for.is_zero(), "{told:?}");
    assert_eq!(told.asked_by, Some(ops.clone()));
    // It notes once when it was told.
    let noted = counter().await;
    assert!(noted <= before + 1);
    // A note counts from the next millisecond on.
    tokio::time::sleep(Duration::from_millis(2)).await;
    assert!(elections.elect(&a).await.unwrap().asked_by.is_some());
    assert_eq!(counter().await, noted, "its session expires");
    // What it was told before may still be acted on: nobody else leads yet.
    assert!(!elections.elect(&b).await.unwrap().is_leader());

    elections.unregister_candidate(&a).await.unwrap();
    let next = elections.elect(&b).await.unwrap();
    assert_eq!(next.token.unwrap().term, Term(2));
    assert_eq!(next.asked_by, None);
}

#[tokio::test]
async fn a_leader_that_is_asked_to_hand_over_reserves_the_lease() {
    let store = Arc::new(Memory::new());
    let elections = OneShot::new(store.clone(), "test", Duration::from_secs(60)).unwrap();
    let view = NamespaceView::new(store.clone(), Namespace::new("test").unwrap());
    let name = ElectionName::new("default").unwrap();
    let [a, b, c]: [NodeId; 3] = ["a", "b", "c"].map(|id| id.parse().unwrap());
    assert!(elections.elect(&a).await.unwrap().is_leader());
    elections.register_candidate(&b).await.unwrap();
    elections.register_candidate(&c).await.unwrap();
    view.request_transfer(&name, &c, &b).await.unwrap();
    assert_eq!(elections.elect(&a).await.unwrap().asked_by, Some(b.clone()));
    elections.unregister_candidate(&a).await.unwrap();
    let status = view.status(&name).await.unwrap();
    let state = status.lease.unwrap().state;
    assert!(
        matches!(&state, LeaseState::Reserved { candidate } if candidate.node == c),
        "{state:?}"
    );
    assert!(elections.elect(&c).await.unwrap().is_leader());
}

#[tokio::test]
async fn a_leader_that_was_asked_leads_again_when_what_it_was_told_is_over() {
    let ttl = Duration::from_secs(1);
    let store = Arc::new(Memory::new());
    let elections = OneShot::new(store.clone(), "test", ttl).unwrap();
    let view = NamespaceView::new(store, Namespace::new("test").unwrap());
    let [a, ops]: [NodeId; 2] = ["a", "ops"].map(|id| id.parse().unwrap());
    assert!(elections.elect(&a).await.unwrap().is_leader());
    let name = ElectionName::new("default").unwrap();
    view.request_resign(&name, &ops).await.unwrap();
    assert!(elections.elect(&a).await.unwrap().asked_by.is_some());
    tokio::time::sleep(ttl + Duration::from_millis(20)).await;
    assert!(
        elections.elect(&a).await.unwrap().asked_by.is_some(),
        "and it has resigned"
    );
    let again = elections.elect(&a).await.unwrap();
    assert_eq!(again.token.unwrap().term, Term(2));
}

/// One session for both: what keeps the one election keeps the other, but not for a leader that was asked to go.
async fn asked_in_one_and_renewed_by_another(store: Arc<dyn Store>, takes_over: bool) {
    let ttl = Duration::from_secs(2);
    let reports = OneShot::new(store.clone(), "test", ttl).unwrap();
    let mails = reports.clone().with_election("mails").unwrap();
    let view = NamespaceView::new(store, Namespace::new("test").unwrap());
    let name = ElectionName::new("default").unwrap();
    let [a, b, ops]: [NodeId; 3] = ["a", "b", "ops"].map(|id| id.parse().unwrap());
    let begun = Instant::now();
    let told = reports.elect(&a).await.unwrap();
    let trusted_until = begun + told.valid_for;
    assert!(mails.elect(&a).await.unwrap().is_leader());
    view.request_resign(&name, &ops).await.unwrap();
    // It does not listen, and goes on with both.
    let next = loop {
        tokio::time::sleep(ttl / 10).await;
        assert!(begun.elapsed() < 5 * ttl, "it never goes");
        assert!(mails.elect(&a).await.unwrap().is_leader());
        reports.register_candidate(&a).await.unwrap();
        let candidate = if takes_over { &b } else { &a };
        let asked = reports.elect(&a).await.unwrap();
        if asked.asked_by.is_some() {
            assert_eq!(asked.asked_by, Some(ops.clone()));
            assert!(!asked.is_leader());
        }
        let outcome = if takes_over {
            reports.elect(candidate).await.unwrap()
        } else {
            asked
        };
        if outcome.is_leader() {
            break outcome;
        }
    };
    assert!(
        Instant::now() >= trusted_until,
        "it was told that it leads until then"
    );
    assert_eq!(next.token.unwrap().term, Term(2));
    assert!(mails.elect(&a).await.unwrap().is_leader(), "it keeps that");
    assert_eq!(
        mails.elect(&a).await.unwrap().token.unwrap().term,
        Term(1),
        "in the same term"
    );
    let status = view.status(&name).await.unwrap();
    let reason = &status.lease.unwrap().history[0].reason;
    assert!(
        reason.contains("asked") && reason.contains("by ops"),
        "{reason}"
    );
}

#[tokio::test]
async fn a_leader_that_is_asked_goes_though_another_election_renews_it() {
    asked_in_one_and_renewed_by_another(Arc::new(Memory::new()), true).await;
}

#[tokio::test]
async fn without_ages_a_leader_that_is_asked_goes_though_another_election_renews_it() {
    asked_in_one_and_renewed_by_another(Arc::new(Aged::none()), true).await;
}

#[tokio::test]
async fn a_leader_that_is_asked_and_is_alone_leads_again_when_its_time_is_over() {
    asked_in_one_and_renewed_by_another(Arc::new(Memory::new()), false).await;
    asked_in_one_and_renewed_by_another(Arc::new(Aged::none()), false).await;
}

/// It calls in the other election only, so nobody gives the lease back: each that wants it counts for itself.
#[tokio::test]
async fn a_caller_takes_over_from_one_that_is_asked_and_never_calls_again() {
    let stores: [Arc<dyn Store>; 2] = [Arc::new(Memory::new()), Arc::new(Aged::none())];
    for store in stores {
        let ttl = Duration::from_secs(1);
        let reports = OneShot::new(store.clone(), "test", ttl).unwrap();
        let mails = reports.clone().with_election("mails").unwrap();
        let view = NamespaceView::new(store, Namespace::new("test").unwrap());
        let name = ElectionName::new("default").unwrap();
        let [a, b, ops]: [NodeId; 3] = ["a", "b", "ops"].map(|id| id.parse().unwrap());
        let begun = Instant::now();
        let told = reports.elect(&a).await.unwrap();
        let trusted_until = begun + told.valid_for;
        view.request_resign(&name, &ops).await.unwrap();
        while !reports.elect(&b).await.unwrap().is_leader() {
            assert!(begun.elapsed() < 8 * ttl, "it never goes");
            assert!(mails.elect(&a).await.unwrap().is_leader());
            tokio::time::sleep(ttl / 10).await;
        }
        assert!(Instant::now() >= trusted_until);
        assert!(mails.elect(&a).await.unwrap().is_leader(), "it keeps that");
    }
}

/// Its leader was told that it leads after the request was begun, and before it could be seen.
#[tokio::test]
async fn the_time_that_a_request_took_to_be_seen_is_not_taken_from_its_leader() {
    let ttl = Duration::from_secs(2);
    let store = Arc::new(Aged::since_begun());
    let elections = OneShot::new(store.clone(), "test", ttl).unwrap();
    let view = NamespaceView::new(store.clone(), Namespace::new("test").unwrap());
    let name = ElectionName::new("default").unwrap();
    let [a, b, ops]: [NodeId; 3] = ["a", "b", "ops"].map(|id| id.parse().unwrap());
    let node = Node::start_with(store, NodeOptions::new("", "test")).await;
    let node = node.unwrap();
    let begun = Instant::now();
    let told = elections.elect(&a).await.unwrap();
    let trusted_until = begun + told.valid_for;
    view.request_resign(&name, &ops).await.unwrap();
    let election = node.join("default").await.unwrap();
    loop {
        let next = elections.elect(&b).await.unwrap();
        if next.is_leader() || election.is_leader() {
            break;
        }
        assert!(begun.elapsed() < 5 * ttl, "it never goes");
        // It has not heard of it, and keeps its session.
        elections.register_candidate(&a).await.unwrap();
        tokio::time::sleep(ttl / 20).await;
    }
    assert!(Instant::now() >= trusted_until, "two may act");
    node.shutdown().await;
}

/// A running node waits no longer than callers do.
#[tokio::test]
async fn a_node_takes_over_from_a_caller_that_is_asked_and_renewed_by_another_election() {
    let ttl = Duration::from_secs(2);
    let store = Arc::new(Memory::new());
    let reports = OneShot::new(store.clone(), "test", ttl).unwrap();
    let mails = reports.clone().with_election("mails").unwrap();
    let a: NodeId = "a".parse().unwrap();
    let begun = Instant::now();
    let told = reports.elect(&a).await.unwrap();
    let trusted_until = begun + told.valid_for;
    let options = NodeOptions::new("", "test");
    let node = Node::start_with(store, options).await.unwrap();
    let election = node.join("default").await.unwrap();
    election.request_resign().await.unwrap();
    while !election.is_leader() {
        assert!(begun.elapsed() < 5 * ttl, "it never goes");
        assert!(mails.elect(&a).await.unwrap().is_leader());
        tokio::time::sleep(ttl / 10).await;
    }
    assert!(Instant::now() >= trusted_until);
    assert!(mails.elect(&a).await.unwrap().is_leader(), "it keeps that");
    node.shutdown().await;
}

/// A term that was begun with a short ttl may be taken a short while after a request: nobody is told that it acts for longer.
#[tokio::test]
async fn a_longer_ttl_counts_from_the_next_term_on() {
    let store = Arc::new(Memory::new());
    let short = OneShot::new(store.clone(), "test", Duration::from_secs(5)).unwrap();
    let long = OneShot::new(store, "test", Duration::from_secs(600)).unwrap();
    let a = "a".parse().unwrap();
    assert!(short.elect(&a).await.unwrap().is_leader());
    let told = long.elect(&a).await.unwrap();
    assert!(
        told.is_leader() && told.valid_for <= Duration::from_secs(5),
        "{told:?}"
    );
    long.unregister_candidate(&a).await.unwrap();
    let told = long.elect(&a).await.unwrap();
    assert!(told.valid_for > Duration::from_secs(500), "{told:?}");
}

#[tokio::test]
async fn a_term_that_was_given_up_on_request_was_not_resigned() {
    let store = Arc::new(Memory::new());
    let elections = OneShot::new(store.clone(), "test", Duration::from_secs(60)).unwrap();
    let view = NamespaceView::new(store, Namespace::new("test").unwrap());
    let name = ElectionName::new("default").unwrap();
    let [a, b, ops]: [NodeId; 3] = ["a", "b", "ops"].map(|id| id.parse().unwrap());
    assert!(elections.elect(&a).await.unwrap().is_leader());
    view.request_resign(&name, &ops).await.unwrap();
    elections.unregister_candidate(&a).await.unwrap();
    assert!(elections.elect(&a).await.unwrap().is_leader());
    elections.register_candidate(&b).await.unwrap();
    view.request_transfer(&name, &b, &ops).await.unwrap();
    elections.unregister_candidate(&a).await.unwrap();
    let history = view.status(&name).await.unwrap().lease.unwrap().history;
    let reasons: Vec<&str> = history.iter().map(|past| &*past.reason).collect();
    assert_eq!(reasons, ["resigned, asked by ops", "transferred to b"]);
    // Whom it is for, and for how long.
    let status = view.status(&name).await.unwrap();
    let (candidate, left) = status.reserved().unwrap();
    assert_eq!(candidate.node, b);
    assert!(left.unwrap() <= Duration::from_secs(30), "{left:?}");
}

#[tokio::test]
async fn a_name_of_a_node_and_of_a_caller_is_ambiguous() {
    let store = Arc::new(Memory::new());
    let elections = OneShot::new(store.clone(), "test", Duration::from_secs(60)).unwrap();
    let view = NamespaceView::new(store.clone(), Namespace::new("test").unwrap());
    let name = ElectionName::new("default").unwrap();
    let [a, twice]: [NodeId; 2] = ["a", "twice"].map(|id| id.parse().unwrap());
    assert!(elections.elect(&a).await.unwrap().is_leader());
    elections.register_candidate(&twice).await.unwrap();
    view.request_transfer(&name, &twice, &a).await.unwrap();
    let mut options = NodeOptions::new("", "test");
    options.node = Some("twice".to_owned());
    let node = Node::start_with(store, options).await.unwrap();
    node.join("default").await.unwrap();
    until("both are listed", async || {
        view.candidates(&name).await.unwrap().len() == 3
    })
    .await;
    let error = view.request_transfer(&name, &twice, &a).await.unwrap_err();
    let Error::AmbiguousCandidate { sessions, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(sessions.len(), 2);
    let text = error.to_string();
    assert!(
        text.contains("which runs") && text.contains("which calls"),
        "{text}"
    );
    let (running, _) = *sessions.iter().find(|(_, is_caller)| !is_caller).unwrap();
    let asked = view.request_transfer_to(&name, &twice, running, &a);
    asked.await.unwrap();
    elections.unregister_candidate(&a).await.unwrap();
    until("the node leads", async || {
        let leader = view.status(&name).await.unwrap();
        leader
            .leader()
            .is_some_and(|leader| leader.incarnation == running)
    })
    .await;
    node.shutdown().await;
}

/// Also where one of them leads: it may be the one that is to be relieved.
#[tokio::test]
async fn a_name_of_two_processes_is_ambiguous() {
    let store = Arc::new(Memory::new());
    let view = NamespaceView::new(store.clone(), Namespace::new("test").unwrap());
    let name = ElectionName::new("default").unwrap();
    let twice: NodeId = "twice".parse().unwrap();
    let mut nodes = Vec::new();
    for count in 1..=2 {
        let mut options = NodeOptions::new("", "test");
        options.node = Some("twice".to_owned());
        let node = Node::start_with(store.clone(), options).await.unwrap();
        let election = node.join("default").await.unwrap();
        nodes.push((node, election));
        until("it is listed", async || {
            view.candidates(&name).await.unwrap().len() == count
        })
        .await;
    }
    until("one leads", async || {
        view.status(&name).await.unwrap().leader().is_some()
    })
    .await;
    let error = view.request_transfer(&name, &twice, &twice).await;
    let error = error.unwrap_err();
    assert!(matches!(error, Error::AmbiguousCandidate { .. }), "{error}");
    for candidate in view.candidates(&name).await.unwrap() {
        let in_full = format!("twice/{}", candidate.incarnation);
        assert!(error.to_string().contains(&in_full), "{error}");
    }
    for (_, election) in &nodes {
        let error = election.transfer_to(&twice).await.unwrap_err();
        assert!(matches!(error, Error::AmbiguousCandidate { .. }), "{error}");
    }
    for (node, _) in nodes {
        node.shutdown().await;
    }
}

/// Whose writes are applied one after the other, each a while after it was sent.
#[derive(Debug)]
struct LateWrites(Arc<Memory>, AtomicU64);

#[async_trait]
impl Store for LateWrites {
    fn describe(&self) -> Description {
        self.0.describe()
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>, StoreError> {
        self.0.get(key).await
    }

    async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, StoreError> {
        self.0.get_if_changed(key, version).await
    }

    async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, StoreError> {
        let turn = self.1.fetch_add(1, Relaxed);
        tokio::time::sleep(Duration::from_millis(50 * turn)).await;
        self.0.put(key, value, expect).await
    }

    async fn delete(&self, key: &Key) -> Result<(), StoreError> {
        self.0.delete(key).await
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, StoreError> {
        self.0.list(prefix, after).await
    }

    fn watch(&self, prefix: &Prefix) -> Option<Watch> {
        self.0.watch(prefix)
    }
}

/// Each of them is about the term that it found.
#[tokio::test]
async fn many_requests_to_resign_at_once_move_leadership_once() {
    let store = Arc::new(Memory::new());
    let options = |name: &str| {
        let mut options = NodeOptions::new("", "test");
        options.node = Some(name.to_owned());
        options
    };
    let a = Node::start_with(store.clone(), options("a")).await.unwrap();
    let b = Node::start_with(store.clone(), options("b")).await.unwrap();
    let first = a.join("e").await.unwrap();
    until("a leads", async || first.is_leader()).await;
    let second = b.join("e").await.unwrap();
    // All have looked before the first is heard.
    let store = Arc::new(LateWrites(store, AtomicU64::new(1)));
    let view = NamespaceView::new(store, Namespace::new("test").unwrap());
    let name = ElectionName::new("e").unwrap();
    until("b is listed", async || {
        view.candidates(&name).await.unwrap().len() == 2
    })
    .await;
    let before = view.status(&name).await.unwrap().lease.unwrap();
    let ops = "ops".parse().unwrap();
    let requests = join_all((0..10).map(|_| view.request_resign(&name, &ops))).await;
    for request in requests {
        request.unwrap();
    }
    until("b leads", async || second.is_leader()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let status = view.status(&name).await.unwrap();
    assert_eq!(status.lease.unwrap().term, Term(2));
    // Nor does one that comes now, and is about the leader before.
    view.request_resign_of(&name, &before, &ops).await.unwrap();
    let lease = view.status(&name).await.unwrap().lease.unwrap();
    assert_eq!((lease.term, lease.request), (Term(2), None));
    a.shutdown().await;
    b.shutdown().await;
}

#[tokio::test]
async fn a_withdrawal_of_one_term_ends_no_later_one() {
    let elections = elections(Duration::from_secs(60));
    let a = "a".parse().unwrap();
    for term in 1..=3 {
        assert_eq!(
            elections.elect(&a).await.unwrap().token.unwrap().term,
            Term(term)
        );
        if term < 3 {
            let done = elections.withdraw(&a, Some(Term(term))).await.unwrap();
            assert_eq!(done, Withdrawal::Done);
            let again = elections.withdraw(&a, Some(Term(term))).await.unwrap();
            assert_eq!(again, Withdrawal::NotStanding);
        }
    }
    let replayed = elections.withdraw(&a, Some(Term(1))).await.unwrap();
    assert_eq!(replayed, Withdrawal::OtherTerm);
    assert!(elections.is_leader(&a).await.unwrap());
    assert_eq!(
        elections.elect(&a).await.unwrap().token.unwrap().term,
        Term(3)
    );
}

#[tokio::test]
async fn candidates_with_different_secrets_are_different_candidates() {
    let elections = elections(Duration::from_secs(60));
    let with = |secret: &str| {
        elections
            .clone()
            .with_secret_digest(Some(secret.to_owned()))
    };
    let (mine, yours) = (with("mine"), with("yours"));
    let a = "a".parse().unwrap();
    assert!(mine.elect(&a).await.unwrap().is_leader());
    assert!(!yours.elect(&a).await.unwrap().is_leader());
    assert!(!elections.elect(&a).await.unwrap().is_leader());
    for other in [&yours, &elections] {
        other.unregister_candidate(&a).await.unwrap();
    }
    assert!(mine.elect(&a).await.unwrap().is_leader());
    assert!(elections.is_taken(&a).await.unwrap());
    mine.unregister_candidate(&a).await.unwrap();
    assert!(!elections.is_taken(&a).await.unwrap());
    for number in 0..8 {
        with(&number.to_string())
            .register_candidate(&a)
            .await
            .unwrap();
    }
    let error = with("one more").register_candidate(&a).await.unwrap_err();
    assert!(matches!(error, Error::Crowded { .. }), "{error}");
}

#[tokio::test]
async fn the_elections_of_the_product_itself_are_not_for_users() {
    let elections = elections(Duration::from_secs(60));
    let error = elections.with_election("tenure.queue").unwrap_err();
    assert!(matches!(error, Error::Name(_)), "{error}");
    let node = Node::start(NodeOptions::new("memory:", "test"))
        .await
        .unwrap();
    for own in ["tenure.queue", "tenure.cluster", "tenure.mine"] {
        let error = node.join(own).await.unwrap_err();
        assert!(matches!(error, Error::Name(_)), "{error}");
        // To look is allowed.
        assert!(node.observe(own).await.unwrap().leader().is_none());
    }
    let options = Options {
        election: "default".to_owned(),
        ..Options::default()
    };
    let error = Queue::open(&node, options).await.unwrap_err().to_string();
    assert!(error.contains("cannot serve a queue"), "{error}");
    let options = Options {
        election: "tenure.queue.3".to_owned(),
        ..Options::default()
    };
    let error = Queue::open(&node, options).await.unwrap_err().to_string();
    assert!(error.contains("cannot be stored in the folder"), "{error}");

    let mut options = Options {
        election: "tenure.queue.3".to_owned(),
        ..Options::default()
    };
    options.log.folder = "queue.3".to_owned();
    let third = Queue::open(&node, options).await.unwrap();
    let first = Queue::open(&node, Options::default()).await.unwrap();
    for queue in [&third, &first] {
        queue.serving().await.unwrap();
    }
    // Observing it does not take the candidate out of it.
    let seen = node.observe("tenure.queue").await.unwrap();
    assert!(seen.is_leader() && first.is_serving());
    for origin in ["test/queue/origin", "test/queue.3/origin"] {
        assert!(
            node.store()
                .get(&Key::new(origin).unwrap())
                .await
                .unwrap()
                .is_some()
        );
    }
    node.shutdown().await;
}

#[tokio::test]
async fn the_write_of_another_call_is_not_taken_for_a_lost_one() {
    let memory = Arc::new(Memory::new());
    let ttl = Duration::from_secs(60);
    let id: NodeId = "a".parse().unwrap();
    let calls = OneShot::new(memory.clone(), "test", ttl).unwrap();
    calls.register_candidate(&id).await.unwrap();

    // The renewal is lost on its way, and what became of it is looked at only after another call was made.
    let faulty = Arc::new(Faulty::new(memory.clone(), Faults::default(), 1).unwrap());
    let sessions = Prefix::new("test/nodes/a").unwrap();
    let session = list_all(&*memory, &sessions).await.unwrap().remove(0).key;
    let lost = Fault::LoseRequest;
    faulty.script(Operation::Put, &session, lost).unwrap();
    let at_once = Fault::Delay(Duration::ZERO);
    faulty.script(Operation::List, &sessions, at_once).unwrap();
    let hang = Fault::Hang;
    faulty.script(Operation::List, &sessions, hang).unwrap();
    let slow = OneShot::new(faulty.clone(), "test", ttl).unwrap();
    let slow = slow.with_election("slow").unwrap();
    let renewed = {
        let (slow, id) = (slow.clone(), id.clone());
        tokio::spawn(async move { slow.register_candidate(&id).await })
    };
    until("the renewal is looked for", async || {
        faulty.injected()[&Kind::Hung] >= 1
    })
    .await;
    let other = calls.clone().with_election("other").unwrap();
    other.register_candidate(&id).await.unwrap();
    faulty.release();
    renewed.await.unwrap().unwrap();
    for (elections, name) in [(calls, "default"), (other, "other"), (slow, "slow")] {
        let candidates = elections.list_candidates().await.unwrap();
        assert_eq!(candidates.len(), 1, "it does not stand in {name}");
    }
}

#[tokio::test]
async fn an_election_that_is_dropped_keeps_nobody_from_leading() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file:{}", folder.path().display());
    let store = tenure::store::open(&url).await.unwrap();
    let elections = OneShot::new(store, "test", Duration::from_secs(60)).unwrap();
    let (a, b): (NodeId, NodeId) = ("a".parse().unwrap(), "b".parse().unwrap());
    let mut dropped = 0;
    for number in 0..40 {
        let elect = elections.elect(&a);
        let elect = tokio::time::timeout(Duration::from_micros(100 * number), elect);
        dropped += usize::from(elect.await.is_err());
        // However far it came, the same candidate goes on from there.
        assert!(elections.elect(&a).await.unwrap().is_leader());
        elections.unregister_candidate(&a).await.unwrap();
        assert!(elections.elect(&b).await.unwrap().is_leader());
        let withdraw = elections.unregister_candidate(&b);
        let withdraw = tokio::time::timeout(Duration::from_micros(50 * number), withdraw);
        dropped += usize::from(withdraw.await.is_err());
        elections.unregister_candidate(&b).await.unwrap();
    }
    assert!(dropped > 0, "none was dropped half way");
}

/// Counts requests, and what they carry: values, and the lines of listings.
#[derive(Debug, Default)]
struct Counted {
    inner: Memory,
    requests: AtomicU64,
    lines: AtomicU64,
    bytes: AtomicU64,
}

/// Requests, lines of listings, and bytes read.
type Cost = (u64, u64, u64);

impl Counted {
    fn cost(&self) -> Cost {
        let of = |number: &AtomicU64| number.load(Relaxed);
        (of(&self.requests), of(&self.lines), of(&self.bytes))
    }
}

#[async_trait]
impl Store for Counted {
    fn describe(&self) -> Description {
        self.inner.describe()
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>, StoreError> {
        self.requests.fetch_add(1, Relaxed);
        let object = self.inner.get(key).await?;
        let bytes = object.as_ref().map_or(0, |object| object.value.len());
        self.bytes.fetch_add(bytes as u64, Relaxed);
        Ok(object)
    }

    async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, StoreError> {
        self.requests.fetch_add(1, Relaxed);
        self.inner.get_if_changed(key, version).await
    }

    async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, StoreError> {
        self.requests.fetch_add(1, Relaxed);
        self.inner.put(key, value, expect).await
    }

    async fn delete(&self, key: &Key) -> Result<(), StoreError> {
        self.requests.fetch_add(1, Relaxed);
        self.inner.delete(key).await
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, StoreError> {
        self.requests.fetch_add(1, Relaxed);
        let page = self.inner.list(prefix, after).await?;
        self.lines.fetch_add(page.entries.len() as u64, Relaxed);
        Ok(page)
    }

    fn watch(&self, prefix: &Prefix) -> Option<Watch> {
        self.inner.watch(prefix)
    }
}

/// All that a broker does for its callers, except to list the candidates.
#[tokio::test]
async fn within_bounds_a_call_costs_the_same_however_many_there_are() {
    let store = Arc::new(Counted::default());
    let bounds = Arc::new(Bounds::new(10_000, 10_000));
    let all = OneShot::new(store.clone(), "test", Duration::from_secs(600)).unwrap();
    let all = all.with_bounds(bounds);
    // A newcomer, a renewal, and a question; of some, the cheapest, since the first of them all has to count.
    let mut made = 1000;
    let mut cheapest = async || {
        let mut cheapest: Option<[Cost; 3]> = None;
        for _ in 0..5 {
            made += 1;
            let id: NodeId = format!("c{made}").parse().unwrap();
            let election = all.clone().with_election(&format!("e{made}")).unwrap();
            let mut costs = [Cost::default(); 3];
            for (call, cost) in costs.iter_mut().enumerate() {
                let before = store.cost();
                let leads = match call {
                    2 => election.is_leader(&id).await.unwrap(),
                    _ => election.elect(&id).await.unwrap().is_leader(),
                };
                assert!(leads, "{id}, call {call}");
                let after = store.cost();
                *cost = (after.0 - before.0, after.1 - before.1, after.2 - before.2);
            }
            cheapest = Some(match cheapest {
                None => costs,
                Some(best) => std::array::from_fn(|call| best[call].min(costs[call])),
            });
        }
        cheapest.unwrap()
    };
    let few = cheapest().await;
    for _ in 0..20 {
        cheapest().await;
    }
    let many = cheapest().await;
    let [(newcomer, lines, _), (renewal, _, _), (question, _, _)] = many;
    assert!(newcomer <= 16 && renewal <= 8, "{many:?}");
    assert_eq!((lines, question), (0, 2), "{many:?}");
    for (few, many) in few.into_iter().zip(many) {
        assert_eq!((few.0, few.1), (many.0, many.1));
        // Some digits more.
        assert!(many.2.abs_diff(few.2) <= 20, "{few:?} {many:?}");
    }
}

#[tokio::test]
async fn beyond_the_bounds_nothing_new_comes_in_until_there_is_room() {
    let store = Arc::new(Memory::new());
    let elections = OneShot::new(store.clone(), "test", Duration::from_secs(600)).unwrap();
    let elections = elections.with_bounds(Arc::new(Bounds::new(3, 2)));
    let ids: Vec<NodeId> = (0..4).map(|n| format!("c{n}").parse().unwrap()).collect();
    for id in &ids[..3] {
        elections.elect(id).await.unwrap();
    }
    let full = |error: Error| assert!(matches!(error, Error::Full { .. }), "{error}");
    full(elections.elect(&ids[3]).await.unwrap_err());
    full(elections.register_candidate(&ids[3]).await.unwrap_err());
    assert_eq!(sessions(&*store).await, 3);
    // Whoever is in stays in.
    assert!(elections.elect(&ids[0]).await.unwrap().is_leader());
    let named = |name| elections.clone().with_election(name).unwrap();
    assert!(named("second").elect(&ids[0]).await.unwrap().is_leader());
    full(named("third").elect(&ids[0]).await.unwrap_err());
    let lease = Key::new("test/elections/third").unwrap();
    assert!(store.get(&lease).await.unwrap().is_none());
    assert!(!named("second").elect(&ids[1]).await.unwrap().is_leader());

    elections.unregister_candidate(&ids[2]).await.unwrap();
    until("there is room", async || {
        tokio::time::sleep(Duration::from_millis(50)).await;
        elections.elect(&ids[3]).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn within_bounds_one_candidate_stands_in_so_many_elections_at_most() {
    let elections = elections(Duration::from_secs(600));
    let elections = elections.with_bounds(Arc::new(Bounds::new(1_000, 1_000)));
    let a = "a".parse().unwrap();
    let stand = async |number: usize| {
        let election = elections.clone().with_election(&format!("e{number}"));
        election.unwrap().register_candidate(&a).await
    };
    for number in 0..100 {
        stand(number).await.unwrap();
    }
    let error = stand(100).await.unwrap_err();
    assert!(matches!(error, Error::Full { .. }), "{error}");
    stand(99).await.unwrap();
}

/// A store whose requests each let others go first, so that calls at one time come in turn.
#[derive(Debug)]
struct Yielding(Memory);

#[async_trait]
impl Store for Yielding {
    fn describe(&self) -> Description {
        self.0.describe()
    }
    async fn get(&self, key: &Key) -> Result<Option<Object>, StoreError> {
        tokio::task::yield_now().await;
        self.0.get(key).await
    }
    async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, StoreError> {
        tokio::task::yield_now().await;
        self.0.get_if_changed(key, version).await
    }
    async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, StoreError> {
        tokio::task::yield_now().await;
        self.0.put(key, value, expect).await
    }
    async fn delete(&self, key: &Key) -> Result<(), StoreError> {
        tokio::task::yield_now().await;
        self.0.delete(key).await
    }
    async fn list(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, StoreError> {
        tokio::task::yield_now().await;
        self.0.list(prefix, after).await
    }
    fn watch(&self, prefix: &Prefix) -> Option<Watch> {
        self.0.watch(prefix)
    }
}

/// The first calls of a candidate, if they come at one time, find no session and make one each.
#[tokio::test]
async fn a_candidate_with_several_sessions_is_withdrawn_by_all_of_them() {
    let store = Arc::new(Yielding(Memory::new()));
    let of = |name: &str| {
        let elections = OneShot::new(store.clone(), "test", Duration::from_secs(60)).unwrap();
        elections.with_election(name).unwrap()
    };
    let (reports, mails) = (of("reports"), of("mails"));
    // Which of the two sessions is found first is a matter of chance.
    for number in 0..16 {
        let id: NodeId = format!("c{number}").parse().unwrap();
        let (first, second, third) = tokio::join!(
            reports.register_candidate(&id),
            mails.register_candidate(&id),
            reports.register_candidate(&id)
        );
        first.unwrap();
        second.unwrap();
        third.unwrap();
        let sessions = Prefix::new(format!("test/nodes/{id}")).unwrap();
        let sessions = list_all(&*store, &sessions).await.unwrap().len();
        assert_eq!(sessions, 3, "they came one after the other");
        let withdrawal = reports.withdraw(&id, None).await.unwrap();
        assert_eq!(withdrawal, Withdrawal::Done);
        assert!(reports.list_candidates().await.unwrap().is_empty());
        assert_eq!(mails.list_candidates().await.unwrap().len(), 1);
        mails.withdraw(&id, None).await.unwrap();
        assert!(mails.list_candidates().await.unwrap().is_empty());
    }
}

/// A candidate of two elections, and a store through which one of its calls is slow.
async fn slow_candidate(store: Arc<dyn Store>) -> (Arc<Faulty>, OneShot, OneShot, NodeId, Key) {
    let ttl = Duration::from_secs(60);
    let id: NodeId = "a".parse().unwrap();
    let other = OneShot::new(store.clone(), "test", ttl).unwrap();
    other.register_candidate(&id).await.unwrap();
    let faulty = Arc::new(Faulty::new(store.clone(), Faults::default(), 1).unwrap());
    let slow = OneShot::new(faulty.clone(), "test", ttl).unwrap();
    let slow = slow.with_election("reports").unwrap();
    let prompt = other.with_election("reports").unwrap();
    let sessions = Prefix::new("test/nodes/a").unwrap();
    let session = list_all(&*store, &sessions).await.unwrap().remove(0).key;
    (faulty, slow, prompt, id, session)
}

#[tokio::test]
async fn an_election_that_was_slow_gives_nothing_to_a_candidate_that_was_withdrawn() {
    let (faulty, slow, prompt, id, _) = slow_candidate(Arc::new(Memory::new())).await;
    let lease = Key::new("test/elections/reports").unwrap();
    faulty.script(Operation::Put, &lease, Fault::Hang).unwrap();
    let elected = {
        let (slow, id) = (slow.clone(), id.clone());
        tokio::spawn(async move { slow.elect(&id).await })
    };
    until("the lease is about to be written", async || {
        faulty.injected()[&Kind::Hung] >= 1
    })
    .await;
    let withdrawal = prompt.withdraw(&id, None).await.unwrap();
    assert_eq!(withdrawal, Withdrawal::Done);
    faulty.release();
    let elected = elected.await.unwrap();
    assert!(
        !elected.as_ref().is_ok_and(tenure::Outcome::is_leader),
        "{elected:?}"
    );
    // The session lives on in the other election, and is in nobody's way in this one.
    let next = prompt.elect(&"b".parse().unwrap()).await.unwrap();
    assert!(next.is_leader(), "{next:?}");
}

#[tokio::test]
async fn a_note_of_what_was_seen_brings_no_candidate_back() {
    let store = Arc::new(Aged::none());
    let (faulty, slow, prompt, id, session) = slow_candidate(store.clone()).await;
    let leader = prompt.elect(&"b".parse().unwrap()).await.unwrap();
    assert!(leader.is_leader());
    // It is renewed, and then told what it saw of the leader.
    let at_once = Fault::Delay(Duration::ZERO);
    faulty.script(Operation::Put, &session, at_once).unwrap();
    faulty
        .script(Operation::Put, &session, Fault::Hang)
        .unwrap();
    let elected = {
        let (slow, id) = (slow.clone(), id.clone());
        tokio::spawn(async move { slow.elect(&id).await })
    };
    until("the note is about to be written", async || {
        faulty.injected()[&Kind::Hung] >= 1
    })
    .await;
    let withdrawal = prompt.withdraw(&id, None).await.unwrap();
    assert_eq!(withdrawal, Withdrawal::Done);
    faulty.release();
    assert!(!elected.await.unwrap().unwrap().is_leader());
    let stored = store.get(&session).await.unwrap().unwrap();
    let stands = Record::decode(&stored.value).unwrap().about.stands;
    assert!(
        stands.keys().all(|it| it.as_str() == "default"),
        "{stands:?}"
    );
}

/// A leader `a` that has handed over to `b`, and `c` that waits. All have this ttl.
async fn handed_over(store: Arc<Memory>, ttl: Duration) -> (OneShot, NamespaceView, [NodeId; 3]) {
    let elections = OneShot::new(store.clone(), "test", ttl).unwrap();
    let view = NamespaceView::new(store, Namespace::new("test").unwrap());
    let nodes: [NodeId; 3] = ["a", "b", "c"].map(|id| id.parse().unwrap());
    let [a, b, _] = &nodes;
    assert!(elections.elect(a).await.unwrap().is_leader());
    elections.register_candidate(b).await.unwrap();
    let name = ElectionName::new("default").unwrap();
    view.request_transfer(&name, b, a).await.unwrap();
    elections.unregister_candidate(a).await.unwrap();
    (elections, view, nodes)
}

#[tokio::test]
async fn a_reserved_lease_is_told_at_once_and_free_when_its_candidate_withdraws() {
    let day = Duration::from_secs(24 * 3600);
    let (elections, _, [_, b, c]) = handed_over(Arc::new(Memory::new()), day).await;
    let told = Box::pin(timeout(elections.elect(&c))).await.unwrap();
    assert_eq!((told.is_leader(), told.leader), (false, None));
    assert_eq!(told.reserved_for.map(|to| to.node), Some(b.clone()));
    let other_term = elections.withdraw(&b, Some(Term(1))).await.unwrap();
    assert_eq!(other_term, Withdrawal::OtherTerm, "it leads nothing");
    let told = elections.elect(&c).await.unwrap();
    assert_eq!(told.reserved_for.map(|to| to.node), Some(b.clone()));
    elections.unregister_candidate(&b).await.unwrap();
    let next = Box::pin(timeout(elections.elect(&c))).await.unwrap();
    assert_eq!(next.token.unwrap().term, Term(2));
    assert_eq!(next.reserved_for, None);
}

#[tokio::test]
async fn a_lease_that_was_reserved_for_one_that_had_withdrawn_is_free() {
    let store = Arc::new(Memory::new());
    let day = Duration::from_secs(24 * 3600);
    let elections = OneShot::new(store.clone(), "test", day).unwrap();
    let view = NamespaceView::new(store, Namespace::new("test").unwrap());
    let [a, b, c]: [NodeId; 3] = ["a", "b", "c"].map(|id| id.parse().unwrap());
    assert!(elections.elect(&a).await.unwrap().is_leader());
    elections.register_candidate(&b).await.unwrap();
    let name = ElectionName::new("default").unwrap();
    view.request_transfer(&name, &b, &a).await.unwrap();
    elections.unregister_candidate(&b).await.unwrap();
    elections.unregister_candidate(&a).await.unwrap();
    assert!(
        Box::pin(timeout(elections.elect(&c)))
            .await
            .unwrap()
            .is_leader()
    );
}

#[tokio::test]
async fn a_reserved_lease_goes_to_another_or_is_free_if_that_is_asked() {
    let name = ElectionName::new("default").unwrap();
    let day = Duration::from_secs(24 * 3600);
    let (elections, view, [_, b, c]) = handed_over(Arc::new(Memory::new()), day).await;
    elections.register_candidate(&c).await.unwrap();
    view.request_transfer(&name, &c, &b).await.unwrap();
    let told = Box::pin(timeout(elections.elect(&b))).await.unwrap();
    assert_eq!(told.reserved_for.map(|to| to.node), Some(c.clone()));
    view.request_resign(&name, &b).await.unwrap();
    assert!(elections.elect(&b).await.unwrap().is_leader());
}

#[tokio::test]
async fn a_lease_is_reserved_for_a_while_only_also_where_no_age_is_told() {
    let ttl = Duration::from_secs(1);
    let store = Arc::new(Memory::new());
    let (_, _, [_, b, c]) = handed_over(store.clone(), ttl).await;
    let elections = OneShot::new(Arc::new(Aged::none_of(store)), "test", ttl).unwrap();
    let told = elections.elect(&c).await.unwrap();
    assert_eq!(told.reserved_for.map(|to| to.node), Some(b.clone()));
    tokio::time::sleep(ttl / 2).await;
    // It lives, and does not ask for the lease.
    elections.heartbeat(&b).await.unwrap();
    elections.elect(&c).await.unwrap();
    tokio::time::sleep(ttl / 2 + Duration::from_millis(20)).await;
    elections.heartbeat(&b).await.unwrap();
    assert!(elections.elect(&c).await.unwrap().is_leader());
}

#[tokio::test]
async fn a_lease_that_cannot_be_read_is_told_at_once() {
    let store = Arc::new(Memory::new());
    let day = Duration::from_secs(24 * 3600);
    let elections = OneShot::new(store.clone(), "test", day).unwrap();
    let key = Key::new("test/elections/default").unwrap();
    let damaged = Bytes::from_static(b"?");
    store.put(&key, damaged, &Expect::Absent).await.unwrap();
    let told = Box::pin(timeout(elections.elect(&"a".parse().unwrap()))).await;
    assert!(matches!(told, Err(Error::Unreadable { .. })), "{told:?}");
}

/// A call that hangs would hang for a day.
async fn timeout<T>(call: impl Future<Output = T>) -> T {
    let answer = tokio::time::timeout(Duration::from_secs(60), call).await;
    answer.expect("the call hangs")
}
