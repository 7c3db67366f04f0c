//! What time does by itself: leases run out, delayed jobs become ready, schedules fire. The clock is moved by
//! hand, and nothing else happens.

use std::sync::Arc;
use std::time::Duration;

use tenure::core::queue::{Event, Filter, Missed, PageStart, ScheduleSpec, State};
use tenure::core::{QueueName, ScheduleName};
use tenure::queue::{ClockState, Cut, Error, Follower, Options, Queue};
use tenure::store::engine::memory::Memory;
use tenure::testing::ManualClock;
use tokio::time::timeout;

use super::stage::{claim, id, ids, job, node_on, open, submit, worker};
use crate::support::{PATIENCE, begun_and_dropped, until};

/// Long enough that no session ends when the clock is moved.
const TTL: Duration = Duration::from_secs(24 * 3600);

struct Scene {
    store: Arc<Memory>,
    clock: ManualClock,
}

impl Scene {
    fn new() -> Self {
        Self {
            store: Arc::new(Memory::new()),
            clock: ManualClock::new(),
        }
    }

    async fn lead(&self, name: &str) -> Queue {
        let clock = Some(&self.clock);
        let node = node_on(self.store.clone(), "time", name, TTL, clock).await;
        open(&node).await
    }
}

async fn next(follower: &mut Follower) -> Result<Vec<Event>, Cut> {
    let followed = timeout(PATIENCE, follower.next()).await;
    followed
        .expect("nothing is committed")
        .map(|followed| followed.events.to_vec())
}

#[tokio::test]
async fn leases_run_out_without_any_traffic() {
    let scene = Scene::new();
    let queue = scene.lead("a").await;
    submit(&queue, &["a"]).await;
    let claimed = claim(&queue, worker("w")).await;
    let mut follower = queue.follow();
    scene.clock.advance(Duration::from_secs(31));
    let events = next(&mut follower).await.unwrap();
    assert!(
        matches!(&events[..], [Event::Failed { token, .. }] if *token == claimed[0].token),
        "{events:?}"
    );
    let job = queue.job(&id("a")).unwrap().unwrap();
    assert_eq!(job.error.as_deref(), Some("the lease ran out"));
}

/// Waits until the broker has done what was due when this was called: it looks at the time before each commit, and what it finds
/// then is in the log when the next one is.
async fn has_looked_at_the_time(queue: &Queue) {
    for name in ["first", "second"] {
        let options = serde_json::from_str("{}").unwrap();
        let name = QueueName::new(name).unwrap();
        queue.set_queue(name, options).await.unwrap();
    }
}

#[tokio::test]
async fn a_delayed_job_wakes_who_waits_for_it() {
    let scene = Scene::new();
    let queue = scene.lead("a").await;
    let waits = {
        let queue = queue.clone();
        tokio::spawn(async move { claim(&queue, worker("w")).await })
    };
    let mut delayed = job("a");
    delayed.delay_ms = Some(60_000);
    queue.submit(vec![delayed]).await.unwrap();
    until("it waits", async || queue.metrics().waiting_claims == 1).await;
    scene.clock.advance(Duration::from_secs(59));
    has_looked_at_the_time(&queue).await;
    assert_eq!(
        queue.job(&id("a")).unwrap().unwrap().state,
        State::Scheduled
    );
    assert!(!waits.is_finished());
    let before = queue.statistics().unwrap().records;
    scene.clock.advance(Duration::from_secs(1));
    let claimed = timeout(PATIENCE, waits).await.unwrap().unwrap();
    assert_eq!(ids(&claimed), ["a"]);
    let records = queue.statistics().unwrap().records - before;
    assert_eq!(records, 2, "one for the time, one for the claim");
}

#[tokio::test]
async fn a_rate_wakes_who_waits_when_it_allows_more() {
    let scene = Scene::new();
    let queue = scene.lead("a").await;
    let options = serde_json::from_str(r#"{"rate":{"jobs":1,"period_ms":10000}}"#).unwrap();
    queue.set_queue(job("a").queue, options).await.unwrap();
    submit(&queue, &["a", "b"]).await;
    assert_eq!(ids(&claim(&queue, worker("w")).await), ["a"]);
    let waits = {
        let queue = queue.clone();
        tokio::spawn(async move { claim(&queue, worker("w")).await })
    };
    until("it waits", async || queue.metrics().waiting_claims == 1).await;
    scene.clock.advance(Duration::from_secs(9));
    has_looked_at_the_time(&queue).await;
    assert!(!waits.is_finished());
    assert_eq!(queue.metrics().waiting_claims, 1);
    scene.clock.advance(Duration::from_secs(1));
    let claimed = timeout(PATIENCE, waits).await.unwrap().unwrap();
    assert_eq!(ids(&claimed), ["b"]);
}

#[tokio::test]
async fn a_rate_wakes_one_after_the_other_beside_a_queue_that_nobody_takes_from() {
    let scene = Scene::new();
    let queue = scene.lead("a").await;
    let limited = QueueName::new("limited").unwrap();
    let options =
        serde_json::from_str(r#"{"rate":{"jobs":1,"period_ms":1000,"burst":1}}"#).unwrap();
    queue.set_queue(limited.clone(), options).await.unwrap();
    submit(&queue, &["nobody-takes-it"]).await;
    let (served, mut serves) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..4 {
        let mut claimed = worker(&number.to_string());
        claimed.queues = vec![limited.clone()];
        let (queue, served) = (queue.clone(), served.clone());
        tokio::spawn(async move { served.send(claim(&queue, claimed).await) });
    }
    until("all wait", async || queue.metrics().waiting_claims == 4).await;
    let jobs = (0..10).map(|number| {
        let mut job = job(&number.to_string());
        job.queue = limited.clone();
        job
    });
    queue.submit(jobs.collect()).await.unwrap();
    for number in 0..4 {
        let claimed = timeout(PATIENCE / 2, serves.recv()).await;
        let claimed = claimed.expect("nobody was woken").unwrap();
        assert_eq!(ids(&claimed), [number.to_string()]);
        scene.clock.advance(Duration::from_secs(1));
    }
}

#[tokio::test]
async fn a_paused_schedule_goes_on_with_its_next_slot() {
    let scene = Scene::new();
    let first = scene.lead("a").await;
    let mut template = job("template");
    template.id = None;
    let spec = ScheduleSpec {
        cron: "* * * * *".to_owned(),
        timezone: "Europe/Berlin".to_owned(),
        job: template,
        missed: Missed::All(10),
        run_on_start: false,
    };
    let name = ScheduleName::new("minutely").unwrap();
    let typo = ScheduleName::new("minutly").unwrap();
    first.set_schedule(name.clone(), spec).await.unwrap();
    assert!(!first.pause_schedule(typo.clone()).await.unwrap());
    assert!(first.pause_schedule(name.clone()).await.unwrap());
    scene.clock.advance(Duration::from_secs(180));
    first.close().await;
    let second = scene.lead("b").await;
    assert!(second.schedule(&name).unwrap().unwrap().paused);
    scene.clock.advance(Duration::from_secs(180));
    let mut follower = second.follow();
    assert!(!second.resume_schedule(typo).await.unwrap());
    assert!(second.resume_schedule(name.clone()).await.unwrap());
    let next_slot = second.schedule(&name).unwrap().unwrap().next;
    assert!(next_slot > Some(scene.clock.wall_ms()), "{next_slot:?}");
    let resumed = Event::ScheduleResumed {
        schedule: name,
        next: next_slot,
    };
    assert_eq!(next(&mut follower).await.unwrap(), [resumed]);
    scene.clock.advance(Duration::from_secs(60));
    let events = next(&mut follower).await.unwrap();
    assert!(
        matches!(events[0], Event::Fired { slots: 1, .. }),
        "{events:?}"
    );
    let all = second.page(&Filter::default(), PageStart::After(0), 100);
    assert_eq!(all.unwrap().jobs.len(), 1);
}

#[tokio::test]
async fn schedules_fire_each_slot_once_over_a_change_of_leaders() {
    let scene = Scene::new();
    let first = scene.lead("a").await;
    let mut template = job("template");
    template.id = None;
    let spec = ScheduleSpec {
        cron: "* * * * *".to_owned(),
        timezone: "Europe/Berlin".to_owned(),
        job: template,
        missed: Missed::All(10),
        run_on_start: false,
    };
    let name = ScheduleName::new("minutely").unwrap();
    first
        .set_schedule(name.clone(), spec.clone())
        .await
        .unwrap();
    let mut follower = first.follow();
    for _ in 0..2 {
        scene.clock.advance(Duration::from_secs(60));
        let events = next(&mut follower).await.unwrap();
        assert!(
            matches!(events[0], Event::Fired { slots: 1, .. }),
            "{events:?}"
        );
    }
    first.close().await;
    assert_eq!(next(&mut follower).await.unwrap_err(), Cut::Ended);
    // Nobody leads for three slots.
    scene.clock.advance(Duration::from_secs(180));
    let second = scene.lead("b").await;
    // Set again by the next deployment: what is due stays due.
    second.set_schedule(name, spec).await.unwrap();
    let all = || {
        let page = second.page(&Filter::default(), PageStart::After(0), 100);
        page.unwrap().jobs.len()
    };
    until("the missed slots have fired", async || all() == 5).await;
    let page = second
        .page(&Filter::default(), PageStart::After(0), 100)
        .unwrap();
    // Each slot is in its job's id: five minutes in a row, none of them twice.
    let minute = |id: &str| -> u64 {
        let (_, time) = id.rsplit_once('@').unwrap();
        let parts: Vec<_> = time.split([':', 'T', 'Z']).collect();
        parts[1].parse::<u64>().unwrap() * 60 + parts[2].parse::<u64>().unwrap()
    };
    let mut slots: Vec<_> = page
        .jobs
        .iter()
        .map(|job| minute(job.id.as_str()))
        .collect();
    slots.sort_unstable();
    let expected: Vec<_> = (slots[0]..slots[0] + 5).collect();
    assert_eq!(slots, expected);
}

#[tokio::test]
async fn no_clock_drags_the_queue_years_ahead() {
    let scene = Scene::new();
    let queue = scene.lead("a").await;
    let right = scene.clock.wall_ms();
    let mut far = job("far");
    far.run_at = Some(right + 365 * 24 * 3_600_000);
    queue.submit(vec![far]).await.unwrap();
    scene.clock.set_wall_ms(right + 20 * 365 * 24 * 3_600_000);
    submit(&queue, &["now"]).await;
    assert!(matches!(queue.clock().unwrap(), ClockState::Ahead { .. }));
    assert_eq!(queue.now_ms().unwrap(), right);
    assert_eq!(
        queue.job(&id("far")).unwrap().unwrap().state,
        State::Scheduled
    );
    queue.close().await;

    // Nor does the next broker, unless it is told that the clock is right.
    let clock = Some(&scene.clock);
    let node = node_on(scene.store.clone(), "time", "b", TTL, clock).await;
    let queue = open(&node).await;
    assert!(matches!(queue.clock().unwrap(), ClockState::Ahead { .. }));
    queue.close().await;
    let options = Options {
        clock_ahead_max: Duration::from_secs(100 * 365 * 24 * 3600),
        ..Options::default()
    };
    let node = node_on(scene.store.clone(), "time", "c", TTL, clock).await;
    let queue = super::stage::open_with(&node, options).await;
    assert_eq!(queue.clock().unwrap(), ClockState::Followed);
    // All of it is due now, in the order of the log.
    assert_eq!(ids(&claim(&queue, worker("w")).await), ["far"]);
}

#[tokio::test]
async fn a_second_of_a_wrong_clock_changes_nothing() {
    let scene = Scene::new();
    let queue = scene.lead("a").await;
    let right = scene.clock.wall_ms();
    let mut later = job("later");
    later.delay_ms = Some(30 * 24 * 3_600_000);
    queue.submit(vec![later]).await.unwrap();
    scene.clock.set_wall_ms(right + 200 * 24 * 3_600_000);
    scene.clock.advance(Duration::from_millis(1_200));
    submit(&queue, &["now"]).await;
    assert!(matches!(queue.clock().unwrap(), ClockState::Ahead { .. }));
    scene.clock.set_wall_ms(right + 1_200);
    submit(&queue, &["after"]).await;
    assert_eq!(queue.clock().unwrap(), ClockState::Followed);
    assert!(queue.now_ms().unwrap() < right + 2_000);
    assert_eq!(
        queue.job(&id("later")).unwrap().unwrap().state,
        State::Scheduled
    );
}

#[tokio::test]
async fn an_operator_sets_the_time_back_and_the_next_broker_knows() {
    const DAY: u64 = 24 * 3_600_000;
    let scene = Scene::new();
    let right = scene.clock.wall_ms();
    // The first look of a term believes a clock that is wrong by months.
    scene.clock.set_wall_ms(right + 200 * DAY);
    let queue = scene.lead("a").await;
    let mut delayed = job("delayed");
    delayed.delay_ms = Some(60_000);
    queue.submit(vec![delayed]).await.unwrap();
    assert_eq!(queue.now_ms().unwrap(), right + 200 * DAY);
    scene.clock.set_wall_ms(right);
    assert!(matches!(queue.clock().unwrap(), ClockState::Behind { .. }));
    for wrong in [1_000, right + 400 * DAY] {
        let refused = queue.set_time(Some(wrong)).await.unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
    }
    queue.set_time(None).await.unwrap();
    assert_eq!(queue.now_ms().unwrap(), right);
    assert_eq!(queue.clock().unwrap(), ClockState::Followed);
    let view = queue.job(&id("delayed")).unwrap().unwrap();
    assert_eq!((view.created_at, view.run_at), (right, right + 60_000));
    submit(&queue, &["now"]).await;
    let view = queue.job(&id("now")).unwrap().unwrap();
    assert_eq!(view.created_at, right);
    queue.close().await;
    let node = node_on(scene.store.clone(), "time", "b", TTL, Some(&scene.clock)).await;
    let queue = open(&node).await;
    assert_eq!(queue.now_ms().unwrap(), right);
    assert_eq!(queue.clock().unwrap(), ClockState::Followed);
}

#[tokio::test]
async fn a_new_leader_goes_on_setting_jobs_back() {
    const DAY: u64 = 24 * 3_600_000;
    const JOBS: usize = 9_000;
    let scene = Scene::new();
    let right = scene.clock.wall_ms();
    scene.clock.set_wall_ms(right + 200 * DAY);
    let queue = scene.lead("a").await;
    let jobs: Vec<_> = (0..JOBS)
        .map(|number| {
            let mut job = job(&number.to_string());
            job.delay_ms = Some(60_000);
            job
        })
        .collect();
    for jobs in jobs.chunks(1_000) {
        queue.submit(jobs.to_vec()).await.unwrap();
    }
    scene.clock.set_wall_ms(right);
    let run_at = |queue: &Queue, number: usize| {
        let job = queue.job(&id(&number.to_string())).unwrap();
        job.unwrap().run_at
    };
    let began = begun_and_dropped(queue.set_time(None)).await;
    queue.close().await;
    assert!(began);
    // With or without the rest, the successor ends with all of it.
    let node = node_on(scene.store.clone(), "time", "b", TTL, Some(&scene.clock)).await;
    let queue = open(&node).await;
    assert_eq!(queue.now_ms().unwrap(), right);
    assert_eq!(run_at(&queue, 0), right + 60_000);
    until("every job is set back", async || {
        run_at(&queue, JOBS - 1) == right + 60_000
    })
    .await;
    // Whoever waits for it finds all of it done.
    scene.clock.set_wall_ms(right - DAY);
    queue.set_time(None).await.unwrap();
    let last = right - DAY + 60_000;
    assert_eq!((run_at(&queue, 0), run_at(&queue, JOBS - 1)), (last, last));
}

#[tokio::test]
async fn a_time_that_is_being_set_is_set_to_the_end() {
    const DAY: u64 = 24 * 3_600_000;
    let scene = Scene::new();
    let right = scene.clock.wall_ms();
    scene.clock.set_wall_ms(right + 200 * DAY);
    let queue = scene.lead("a").await;
    let mut template = job("template");
    template.id = None;
    let spec = ScheduleSpec {
        cron: "* * * * *".to_owned(),
        timezone: "Europe/Berlin".to_owned(),
        job: template,
        missed: Missed::All(10),
        run_on_start: false,
    };
    let name = ScheduleName::new("minutely").unwrap();
    queue.set_schedule(name.clone(), spec).await.unwrap();
    scene.clock.set_wall_ms(right);
    // Whoever asked is gone before it is done.
    assert!(begun_and_dropped(queue.set_time(None)).await);
    until("the time is set, and the schedule goes by it", async || {
        let schedule = queue.schedule(&name).unwrap().unwrap();
        let is_planned = schedule.next.is_some_and(|next| next <= right + 60_000);
        is_planned && queue.now_ms().unwrap() == right
    })
    .await;
}
