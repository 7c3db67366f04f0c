use std::sync::Mutex;

use super::*;
use crate::engine::memory::Memory;
use tokio::task::yield_now;
use tokio::time::{advance, sleep};

fn throttled(config: Config) -> Arc<Throttled> {
    Arc::new(Throttled::new(Arc::new(Memory::new()), config).unwrap())
}

fn key(number: usize) -> Key {
    Key::new(number.to_string()).unwrap()
}

const NONE: Config = Config {
    reads_per_minute: None,
    writes_per_minute: None,
    writes_per_day: None,
    reserved_per_day: 0,
    burst: 2,
    waiters_max: 100,
};

#[test]
fn every_zero_is_refused_with_its_reason_at_once() {
    let zero = Config {
        reads_per_minute: Some(0),
        writes_per_minute: Some(0),
        writes_per_day: Some(0),
        reserved_per_day: 0,
        burst: 0,
        waiters_max: 0,
    };
    let error = Throttled::new(Arc::new(Memory::new()), zero).unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }));
    let text = error.to_string();
    for field in [
        "reads_per_minute is 0",
        "writes_per_minute is 0",
        "writes_per_day is 0",
        "burst is 0",
        "waiters_max is 0",
    ] {
        assert!(text.contains(field), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_minute_exceeds_the_rate_and_its_burst() {
    let store = throttled(Config {
        reads_per_minute: Some(7),
        ..NONE
    });
    let start = Instant::now();
    let mut sent: Vec<Duration> = Vec::new();
    for _ in 0..60 {
        store.get(&key(0)).await.unwrap();
        sent.push(start.elapsed());
    }
    assert_eq!(sent[1], Duration::ZERO, "the burst goes at once");
    assert!(
        sent[2] >= Duration::from_secs(8),
        "then one by one: {sent:?}"
    );
    for (at, from) in sent.iter().enumerate() {
        let within = sent[at..]
            .iter()
            .filter(|&&other| other < *from + Duration::from_secs(60))
            .count();
        assert!(within <= 7 + 2, "{within} in the minute from {from:?}");
    }
    // Unused tokens are not saved up beyond the burst, and none is lost.
    let last = *sent.last().unwrap();
    assert!(last < Duration::from_secs(60) * 58 / 7 + Duration::from_secs(1));
    sleep(Duration::from_secs(3600)).await;
    let idle = Instant::now();
    for _ in 0..2 {
        store.get(&key(0)).await.unwrap();
    }
    assert_eq!(idle.elapsed(), Duration::ZERO);
    store.get(&key(0)).await.unwrap();
    assert!(idle.elapsed() >= Duration::from_secs(8));
}

#[tokio::test(start_paused = true)]
async fn reads_of_a_take_over_have_no_rate_and_use_up_nothing() {
    let store = throttled(Config {
        reads_per_minute: Some(1),
        burst: 1,
        ..NONE
    });
    let start = Instant::now();
    unlimited_reads(async {
        for _ in 0..100 {
            store.get(&key(0)).await.unwrap();
        }
    })
    .await;
    store.get(&key(0)).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    store.get(&key(0)).await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(60));
    assert_eq!(store.statistics().reads.sent, 102);
}

#[tokio::test(start_paused = true)]
async fn waiters_go_in_the_order_they_came_and_nobody_barges() {
    let store = throttled(Config {
        writes_per_minute: Some(60),
        burst: 1,
        ..NONE
    });
    let order = Arc::new(Mutex::new(Vec::new()));
    let start = |number: usize| {
        let (store, order) = (store.clone(), order.clone());
        tokio::spawn(async move {
            store
                .put(&key(number), "".into(), &Expect::Absent)
                .await
                .unwrap();
            order.lock().unwrap().push(number);
        })
    };
    let mut tasks = Vec::new();
    for number in 0..40 {
        tasks.push(start(number));
        yield_now().await;
    }
    assert_eq!(store.statistics().writes.waiting, 39);
    // Newcomers arrive just when a token is due, before any of the waiters could wake.
    for number in 40..60 {
        advance(Duration::from_secs(1)).await;
        tasks.push(start(number));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let order = order.lock().unwrap();
    assert_eq!(*order, (0..60).collect::<Vec<_>>());

    let writes = store.statistics().writes;
    assert_eq!((writes.sent, writes.waited, writes.waiting), (60, 59, 0));
    assert!(
        writes.waited_longest >= Duration::from_secs(39),
        "{writes:?}"
    );
    assert!(writes.waited_total > writes.waited_longest);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_waiter_takes_no_turn_and_blocks_nobody() {
    let store = throttled(Config {
        reads_per_minute: Some(1),
        burst: 1,
        ..NONE
    });
    let start = Instant::now();
    store.get(&key(0)).await.unwrap();
    let spawn = || {
        let store = store.clone();
        tokio::spawn(async move { store.get(&key(0)).await.map(drop) })
    };
    // The first sleeps for the token, the second queues behind it.
    let (first, second, third) = (spawn(), spawn(), spawn());
    sleep(Duration::from_secs(30)).await;
    assert_eq!(store.statistics().reads.waiting, 3);
    first.abort();
    second.abort();
    assert!(first.await.is_err() && second.await.is_err());
    third.await.unwrap().unwrap();
    let waited = start.elapsed();
    assert!(waited < Duration::from_secs(61), "{waited:?}");
    let reads = store.statistics().reads;
    assert_eq!((reads.sent, reads.waited, reads.waiting), (2, 3, 0));
}

#[tokio::test(start_paused = true)]
async fn no_more_than_the_bound_may_wait() {
    let store = throttled(Config {
        writes_per_minute: Some(1),
        burst: 1,
        waiters_max: 1,
        ..NONE
    });
    store.delete(&key(0)).await.unwrap();
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.delete(&key(1)).await }
    });
    yield_now().await;
    let error = store.delete(&key(2)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    store.get(&key(2)).await.unwrap();
    waiting.await.unwrap().unwrap();
    assert_eq!(store.statistics().writes.turned_away, 1);
    assert_eq!(store.statistics().writes.sent, 2);
}

#[tokio::test(start_paused = true)]
async fn a_spent_day_refuses_writes_until_it_ends_and_lets_reads_go_on() {
    let store = throttled(Config {
        writes_per_day: Some(3),
        ..NONE
    });
    // The day begins with its first write, not with the process.
    sleep(Duration::from_secs(5 * 3600)).await;
    store
        .put(&key(0), "".into(), &Expect::Absent)
        .await
        .unwrap();
    let conflict = store.put(&key(0), "".into(), &Expect::Absent).await;
    assert!(matches!(conflict, Err(Error::Conflict { .. })));
    sleep(Duration::from_secs(10_230)).await;
    store.delete(&key(1)).await.unwrap();

    let error = store
        .put(&key(2), "".into(), &Expect::Absent)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(
        error
            .hint()
            .contains("3 writes per day resets in 21 h 10 min"),
        "{}",
        error.hint()
    );
    assert!(store.delete(&key(0)).await.is_err());
    assert!(store.get(&key(0)).await.unwrap().is_some());
    assert!(store.get(&key(2)).await.unwrap().is_none());
    let statistics = store.statistics();
    assert_eq!(statistics.refused, 2);
    assert_eq!(
        (statistics.spent_today, statistics.remaining_today),
        (3, Some(0))
    );
    assert_eq!(
        statistics.resets_in,
        Some(Duration::from_secs(86_400) - Duration::from_secs(10_230))
    );

    sleep(statistics.resets_in.unwrap()).await;
    assert_eq!(store.statistics().remaining_today, Some(3));
    store
        .put(&key(2), "".into(), &Expect::Absent)
        .await
        .unwrap();
    let statistics = store.statistics();
    assert_eq!(
        (statistics.spent_today, statistics.remaining_today),
        (1, Some(2))
    );
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_when_the_day_is_spent_is_refused_at_once() {
    let store = throttled(Config {
        writes_per_minute: Some(1),
        writes_per_day: Some(2),
        burst: 1,
        ..NONE
    });
    let start = Instant::now();
    let tasks: Vec<_> = (0..4)
        .map(|number| {
            let store = store.clone();
            tokio::spawn(async move { store.delete(&key(number)).await.is_ok() })
        })
        .collect();
    let mut done = Vec::new();
    for task in tasks {
        done.push(task.await.unwrap());
    }
    assert_eq!(done, [true, true, false, false]);
    assert!(start.elapsed() < Duration::from_secs(61));
}

async fn put(store: &Throttled, number: usize) -> Result<(), Error> {
    let key = key(number);
    let put = store.put(&key, "1".into(), &Expect::Absent);
    put.await.map(drop)
}

#[tokio::test(start_paused = true)]
async fn heartbeats_are_sent_from_a_reserve_that_lasts_for_the_day() {
    let store = throttled(Config {
        writes_per_day: Some(100),
        reserved_per_day: 24,
        ..NONE
    });
    let mut sent = 0;
    while put(&store, sent).await.is_ok() {
        sent += 1;
    }
    assert_eq!(sent, 76, "all but the reserve");
    assert!(store.statistics().is_low);
    for heartbeat in 0..24 {
        let urgent = crate::urgent(put(&store, 1000 + heartbeat)).await;
        assert!(urgent.is_ok(), "{heartbeat}: {urgent:?}");
        assert!(put(&store, 999).await.is_err(), "the reserve is not its");
        advance(Duration::from_secs(3600)).await;
    }
    assert!(put(&store, 999).await.is_ok(), "another day");
    assert!(!store.statistics().is_low);
}

#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_low_budget_is_spread_over_the_day() {
    let store = throttled(Config {
        writes_per_day: Some(20_000),
        reserved_per_day: 10_000,
        ..NONE
    });
    let mut sent = 0;
    while store.pause_before_write().is_zero() {
        assert!(put(&store, sent).await.is_ok());
        sent += 1;
    }
    assert_eq!(sent, 8001, "a fifth is left, and would not last");
    assert!(store.statistics().is_low && store.throttle.is_low());
    // A writer that waits as it is asked to is never refused.
    let end = Instant::now() + Duration::from_secs(24 * 3600 - 60);
    while Instant::now() < end {
        sleep(store.pause_before_write()).await;
        assert!(put(&store, sent).await.is_ok(), "{sent}");
        sent += 1;
    }
    assert!(sent > 9_000, "{sent}");
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_waits_for_nobody() {
    let store = throttled(Config {
        writes_per_minute: Some(6),
        ..NONE
    });
    for number in 0..2 {
        put(&store, number).await.unwrap();
    }
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { put(&store, 2).await }
    });
    yield_now().await;
    let start = Instant::now();
    crate::urgent(put(&store, 3)).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert!(store.pause_before_write() > Duration::ZERO);
    waiting.await.unwrap().unwrap();
    assert!(start.elapsed() >= Duration::from_secs(10), "it is counted");
}
