use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::*;
use crate::engine::memory::Memory;

const SECOND: Duration = Duration::from_secs(1);

fn faulty(faults: Faults, seed: u64) -> (Arc<Memory>, Arc<Faulty>) {
    let memory = Arc::new(Memory::new());
    let faulty = Faulty::new(memory.clone(), faults, seed).unwrap();
    (memory, Arc::new(faulty))
}

fn calm() -> (Arc<Memory>, Arc<Faulty>) {
    faulty(Faults::default(), 1)
}

fn key() -> Key {
    Key::new("a/b").unwrap()
}

async fn create(store: &Faulty) -> Result<Version, Error> {
    store.put(&key(), "value".into(), &Expect::Absent).await
}

async fn exists(memory: &Memory) -> bool {
    memory.get(&key()).await.unwrap().is_some()
}

fn only(kind: Kind) -> BTreeMap<Kind, u64> {
    Kind::ALL.map(|each| (each, u64::from(each == kind))).into()
}

#[test]
fn impossible_faults_are_refused_all_together() {
    let faults = Faults {
        delayed: 1.5,
        refused: 0.6,
        retried: 0.6,
        young: f64::NAN,
        hint_lost: -0.1,
        delay: SECOND..=Duration::ZERO,
        ..Faults::default()
    };
    let error = Faulty::new(Arc::new(Memory::new()), faults, 1).unwrap_err();
    let text = error.to_string();
    for part in [
        "delayed is 1.5",
        "refused to retried together is 1.2",
        "young is NaN",
        "hint_lost is -0.1",
        "delay ends before it begins",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[tokio::test]
async fn reads_take_no_fault_of_writes() {
    let (_, store) = calm();
    let script = store.script(Operation::Get, &key(), Fault::LoseAnswer);
    assert!(matches!(script, Err(Error::Invalid { .. })));
}

#[tokio::test]
async fn a_refusal_is_not_applied() {
    let (memory, store) = calm();
    store.script(Operation::Put, &key(), Fault::Refuse).unwrap();
    let error = create(&store).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(!exists(&memory).await);
    assert_eq!(store.injected(), only(Kind::Refused));
    create(&store).await.expect("a script is for one request");
}

#[tokio::test]
async fn a_lost_answer_is_applied_and_a_lost_request_is_not() {
    for (fault, kind, applied) in [
        (Fault::LoseAnswer, Kind::AnswerLost, true),
        (Fault::LoseRequest, Kind::RequestLost, false),
    ] {
        let (memory, store) = calm();
        store.script(Operation::Put, &key(), fault.clone()).unwrap();
        let error = create(&store).await.unwrap_err();
        assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
        assert_eq!(exists(&memory).await, applied);
        assert_eq!(store.injected(), only(kind));

        let _ = create(&store).await;
        store.script(Operation::Delete, &key(), fault).unwrap();
        let error = store.delete(&key()).await.unwrap_err();
        assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
        assert_eq!(exists(&memory).await, !applied);
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_request_lands_later_or_conflicts() {
    let (memory, store) = calm();
    let late = || store.script(Operation::Put, &key(), Fault::Late(SECOND));
    late().unwrap();
    let error = create(&store).await.unwrap_err();
    assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
    assert!(!exists(&memory).await, "a read right after proves nothing");
    store.settled().await;
    assert!(exists(&memory).await);

    let version = memory.get(&key()).await.unwrap().unwrap().version;
    let expect = Expect::Version(version);
    late().unwrap();
    let put = store.put(&key(), "late".into(), &expect).await;
    assert!(put.is_err());
    store.put(&key(), "newer".into(), &expect).await.unwrap();
    store.settled().await;
    let value = memory.get(&key()).await.unwrap().unwrap().value;
    assert_eq!(value, "newer", "what came too late changed nothing");
    assert_eq!(store.injected()[&Kind::Late], 2);
}

#[tokio::test]
async fn a_duplicate_hides_its_second_answer_and_a_retry_shows_it() {
    let (memory, store) = calm();
    store
        .script(Operation::Put, &key(), Fault::Duplicate)
        .unwrap();
    let version = create(&store).await.unwrap();
    let object = memory.get(&key()).await.unwrap().unwrap();
    assert_eq!(object.version, version);
    assert_eq!(store.injected(), only(Kind::Duplicated));

    let (memory, store) = calm();
    store.script(Operation::Put, &key(), Fault::Retry).unwrap();
    let error = create(&store).await.unwrap_err();
    assert!(matches!(error, Error::Conflict { .. }), "{error:?}");
    assert!(exists(&memory).await, "the conflict is with itself");
    assert_eq!(store.injected(), only(Kind::Retried));
}

#[tokio::test(start_paused = true)]
async fn a_delay_takes_its_time_before_and_after() {
    let faults = Faults {
        delayed: 1.0,
        delay: SECOND..=2 * SECOND,
        ..Faults::default()
    };
    let (memory, store) = faulty(faults, 5);
    let mut applied_at = Vec::new();
    for _ in 0..10 {
        let started = Instant::now();
        store.delete(&key()).await.unwrap();
        memory
            .put(&key(), "x".into(), &Expect::Absent)
            .await
            .unwrap();
        let request = tokio::spawn({
            let store = store.clone();
            async move { store.delete(&key()).await }
        });
        let second = Instant::now();
        while exists(&memory).await {
            sleep(Duration::from_millis(1)).await;
        }
        applied_at.push(second.elapsed());
        request.await.unwrap().unwrap();
        let took = started.elapsed();
        let slack = Duration::from_millis(10);
        assert!(took >= 2 * SECOND && took <= 4 * SECOND + slack, "{took:?}");
    }
    let (first, last) = (applied_at.iter().min(), applied_at.iter().max());
    assert!(first < Some(&(SECOND / 2)) && last > Some(&(SECOND / 2)));
    assert_eq!(store.injected()[&Kind::Delayed], 20);
}

#[tokio::test(start_paused = true)]
async fn an_age_is_too_small_or_missing_but_never_too_large() {
    let faults = Faults {
        young: 1.0,
        ..Faults::default()
    };
    let (_, store) = faulty(faults, 3);
    create(&store).await.unwrap();
    sleep(10 * SECOND).await;
    let old = Version::new("none");
    let (mut younger, mut missing) = (0, 0);
    for _ in 0..50 {
        let Change::Changed(changed) = store.get_if_changed(&key(), &old).await.unwrap() else {
            panic!("it has another version");
        };
        let read = store.get(&key()).await.unwrap().unwrap();
        for object in [read, changed] {
            match object.age {
                None => missing += 1,
                Some(age) => {
                    assert!(age < 10 * SECOND);
                    younger += 1;
                }
            }
        }
    }
    assert!(younger > 20 && missing > 20, "{younger} {missing}");
    assert_eq!(store.injected()[&Kind::Young], 100);
}

#[tokio::test(start_paused = true)]
async fn hints_are_lost_doubled_and_late() {
    let hints = async |faults: Faults| {
        let (memory, store) = faulty(faults, 1);
        let mut watch = store.watch(&Prefix::new("a").unwrap()).unwrap();
        memory
            .put(&key(), "x".into(), &Expect::Absent)
            .await
            .unwrap();
        let started = Instant::now();
        let mut seen = Vec::new();
        while let Ok(hint) = timeout(5 * SECOND, watch.next()).await {
            assert_eq!(hint, Some(Hint::Changed(key())));
            seen.push(started.elapsed());
        }
        (seen, store.injected())
    };
    let none = Faults::default;

    let (seen, injected) = hints(none()).await;
    assert_eq!((seen.len(), injected.values().sum()), (1, 0_u64));
    let (seen, injected) = hints(Faults {
        hint_lost: 1.0,
        ..none()
    })
    .await;
    assert_eq!((seen.len(), injected), (0, only(Kind::HintLost)));
    let (seen, injected) = hints(Faults {
        hint_doubled: 1.0,
        ..none()
    })
    .await;
    assert_eq!((seen.len(), injected), (2, only(Kind::HintDoubled)));
    let late_by = SECOND..=2 * SECOND;
    let (seen, injected) = hints(Faults {
        hint_late: 1.0,
        late_by,
        ..none()
    })
    .await;
    assert_eq!((seen.len(), injected), (1, only(Kind::HintLate)));
    assert!(seen[0] >= SECOND && seen[0] <= 3 * SECOND, "{seen:?}");
}

#[tokio::test]
async fn the_end_of_a_watch_passes_through() {
    let (_, store) = calm();
    let mut watch = store.watch(&Prefix::root()).unwrap();
    let (weak, shared) = (Arc::downgrade(&store), Arc::downgrade(&store.shared));
    // When the engine ends, the watch ends. When the watcher is dropped, nothing is kept for it.
    let second = store.watch(&Prefix::root()).unwrap();
    drop(second);
    drop(store);
    assert!(weak.upgrade().is_none());
    assert_eq!(watch.next().await, None);
    drop(watch);
    while shared.upgrade().is_some() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn an_outage_lasts_until_it_is_over() {
    let (memory, store) = calm();
    store.set_outage(Outage::Refusing);
    for error in [
        create(&store).await.unwrap_err(),
        store.get(&key()).await.unwrap_err(),
        store.list(&Prefix::root(), None).await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    }
    assert!(!exists(&memory).await);

    store.set_outage(Outage::Breaking);
    let read = store.get(&key()).await.unwrap_err();
    assert!(matches!(read, Error::Unavailable { .. }), "{read:?}");
    let mut applied = 0;
    for _ in 0..20 {
        let error = create(&store).await.unwrap_err();
        assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
        applied += u32::from(exists(&memory).await);
        memory.delete(&key()).await.unwrap();
    }
    assert!((3..18).contains(&applied), "{applied} of 20 were applied");

    store.set_outage(Outage::Over);
    create(&store).await.unwrap();
    assert_eq!(store.injected()[&Kind::Outage], 24);
}

#[tokio::test(start_paused = true)]
async fn what_hangs_answers_only_when_released() {
    let (memory, store) = calm();
    let start = || {
        let store = store.clone();
        tokio::spawn(async move { create(&store).await })
    };
    store.set_outage(Outage::Hanging);
    let put = start();
    sleep(1000 * SECOND).await;
    assert!(!put.is_finished() && !exists(&memory).await);
    store.set_outage(Outage::Over);
    put.await.unwrap().unwrap();

    memory.delete(&key()).await.unwrap();
    store.script(Operation::Put, &key(), Fault::Hang).unwrap();
    let put = start();
    sleep(1000 * SECOND).await;
    assert!(!put.is_finished() && !exists(&memory).await);
    store.get(&key()).await.expect("only that one hangs");
    store.release();
    put.await.unwrap().unwrap();
    assert_eq!(store.injected()[&Kind::Hung], 2);
}

#[tokio::test(start_paused = true)]
async fn one_seed_gives_one_history() {
    let run = async |seed: u64| {
        let faults = Faults {
            delayed: 0.3,
            refused: 0.1,
            answer_lost: 0.1,
            request_lost: 0.1,
            late: 0.1,
            duplicated: 0.1,
            retried: 0.1,
            young: 0.3,
            ..Faults::default()
        };
        let (_, store) = faulty(faults, seed);
        let start = Instant::now();
        let mut history = Vec::new();
        for round in 0..200 {
            let object = store.get(&key()).await;
            let expect = match &object {
                Ok(Some(object)) => Expect::Version(object.version.clone()),
                _ => Expect::Absent,
            };
            let put = store
                .put(&key(), format!("{round}").into(), &expect)
                .await
                .map_err(|error| error.to_string());
            let age = object.ok().flatten().map(|object| object.age);
            history.push((put, age, start.elapsed()));
        }
        store.settled().await;
        (history, store.injected())
    };
    let first = run(7).await;
    assert_eq!(first, run(7).await);
    assert_ne!(first.0, run(8).await.0);
}
