//! Very much is due at one moment: all of it happens, and nothing else has to wait for it.

use std::sync::Arc;
use std::time::Duration;

use tenure::core::ScheduleName;
use tenure::core::queue::{Missed, ScheduleSpec, State};
use tenure::queue::Queue;
use tenure::store::engine::memory::Memory;
use tenure::testing::ManualClock;

use super::stage::{claim, claim_now, id, ids, job, node_on, open, submit, worker};
use crate::support::until;

/// Long enough that no session ends when the clock is moved.
const TTL: Duration = Duration::from_secs(24 * 3600);

async fn schedule(queue: &Queue, names: impl Iterator<Item = String>, cron: &str, missed: Missed) {
    let mut template = job("template");
    template.id = None;
    let spec = ScheduleSpec {
        cron: cron.to_owned(),
        timezone: "UTC".to_owned(),
        job: template,
        missed,
        run_on_start: false,
    };
    let names: Vec<_> = names.map(|name| ScheduleName::new(name).unwrap()).collect();
    for names in names.chunks(500) {
        let set = names
            .iter()
            .map(|name| queue.set_schedule(name.clone(), spec.clone()));
        for set in futures_util::future::join_all(set).await {
            assert!(set.unwrap().is_some());
        }
    }
}

fn ready(queue: &Queue) -> u64 {
    let queues = queue.queues().unwrap();
    queues.iter().map(|queue| queue.counts.ready).sum()
}

#[tokio::test]
async fn ten_thousand_schedules_that_are_due_at_once_all_fire() {
    let clock = ManualClock::new();
    let node = node_on(Arc::new(Memory::new()), "due", "a", TTL, Some(&clock)).await;
    let queue = open(&node).await;
    submit(&queue, &["runs"]).await;
    assert_eq!(ids(&claim(&queue, worker("w")).await), ["runs"]);
    let mut delayed = job("delayed");
    delayed.delay_ms = Some(60_000);
    queue.submit(vec![delayed]).await.unwrap();
    let names = (0..10_500).map(|number| format!("{number:0>100}"));
    schedule(&queue, names, "* * * * *", Missed::Once).await;
    clock.advance(Duration::from_secs(61));
    until("all have fired", async || ready(&queue) >= 10_501).await;
    let job = |name| queue.job(&id(name)).unwrap().unwrap();
    until("the lease has run out", async || {
        job("runs").error.as_deref() == Some("the lease ran out")
    })
    .await;
    assert_eq!(job("delayed").state, State::Ready);
    assert!(queue.is_serving());
}

#[tokio::test]
async fn schedules_that_missed_two_months_catch_up_in_portions() {
    let store = Arc::new(Memory::new());
    let clock = ManualClock::new();
    let node = node_on(store.clone(), "due", "a", TTL, Some(&clock)).await;
    let queue = open(&node).await;
    let names = (0..80).map(|number| format!("hourly-{number}"));
    schedule(&queue, names, "0 * * * *", Missed::All(1_000)).await;
    queue.close().await;
    node.shutdown().await;
    clock.advance(Duration::from_secs(60 * 24 * 3600));
    let node = node_on(store, "due", "b", TTL, Some(&clock)).await;
    let queue = open(&node).await;
    submit(&queue, &["other"]).await;
    until("all have fired", async || ready(&queue) == 80_001).await;
    assert!(!claim_now(&queue, worker("w")).await.unwrap().is_empty());
    let one = ScheduleName::new("hourly-7").unwrap();
    let schedule = queue.schedule(&one).unwrap().unwrap();
    assert!(schedule.next > Some(clock.wall_ms()), "{schedule:?}");
    assert!(queue.is_serving());
}
