//! What an open page costs: the broker's time, and the browser's memory over an hour.
//!
//! 100,000 jobs in 20 queues, and traffic that never ends. `make soak` runs the whole of it in real time; without
//! `TENURE_SOAK_MINUTES` it runs for a few seconds, which only tests the measuring.

use std::time::Duration;

use reqwest::Client;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until};

use super::driver::Browser;
use super::processes::{self, Process};
use crate::support::{client, until};

const MINUTES: &str = "TENURE_SOAK_MINUTES";
const QUEUES: usize = 20;

/// How many jobs are submitted, claimed and ended in each tenth of a second.
const PER_STEP: usize = 10;
const STEP: Duration = Duration::from_millis(100);

const SECTIONS: [&str; 8] = [
    "#/",
    "#/queues",
    "#/queues/queue-7",
    "#/jobs",
    "#/cluster",
    "#/schedules",
    "#/outboxes",
    "#/storage",
];

/// How long to run, and whether the results are checked against the promises.
struct Plan {
    minutes: u64,
    minute: Duration,
    jobs: usize,
    is_judged: bool,
}

fn plan() -> Plan {
    match std::env::var(MINUTES) {
        Ok(minutes) => Plan {
            minutes: minutes.parse().unwrap(),
            minute: Duration::from_secs(60),
            jobs: 100_000,
            is_judged: true,
        },
        Err(_) => Plan {
            minutes: 1,
            minute: Duration::from_secs(1),
            jobs: 2_000,
            is_judged: false,
        },
    }
}

/// Adds jobs that stay: half of them wait for a worker, half are delayed.
async fn fill(http: &Client, url: &str, jobs: usize) {
    let mut place = 0;
    while place < jobs {
        let batch: Vec<Value> = (place..jobs.min(place + 1_000))
            .map(|number| {
                let delay_ms = (number % 2) * 86_400_000;
                let queue = format!("queue-{}", number % QUEUES);
                json!({"queue": queue, "type": "wait", "payload": {"number": number}, "delay_ms": delay_ms})
            })
            .collect();
        place += batch.len();
        call(http, url, "/v1/jobs", json!({ "jobs": batch })).await;
    }
}

/// Repeats the call while there is no leader yet, or the disk is slower than the traffic.
async fn call(http: &Client, url: &str, path: &str, body: Value) -> Value {
    until(async || {
        let answer = http.post(format!("{url}{path}")).json(&body).send();
        let answer = answer.await.unwrap();
        match answer.status().as_u16() {
            429 | 503 => None,
            status => {
                assert!(answer.status().is_success(), "{status}");
                Some(answer.json().await.unwrap())
            }
        }
    })
    .await
}

/// Jobs that come and go, in every queue; one in a hundred fails for good.
async fn traffic(url: String) {
    let http = client();
    for step in 0_usize.. {
        let next = Instant::now() + STEP;
        let jobs: Vec<Value> = (0..PER_STEP)
            .map(|number| json!({"queue": format!("queue-{}", (step * PER_STEP + number) % QUEUES), "type": "send", "payload": {"step": step}, "max_attempts": 1}))
            .collect();
        call(&http, &url, "/v1/jobs", json!({ "jobs": jobs })).await;
        let claim = json!({"worker": "worker-1", "types": ["send"], "max": PER_STEP});
        let claimed = call(&http, &url, "/v1/jobs/claim", claim).await;
        let claims: Vec<Value> = claimed["jobs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|job| json!({"id": job["id"], "token": job["token"]}))
            .collect();
        let (failed, done) = claims.split_at(usize::from(step % 10 == 0).min(claims.len()));
        if !failed.is_empty() {
            let failed: Vec<Value> = failed.iter().map(|claim| json!({"id": claim["id"], "token": claim["token"], "error": format!("step {step} went wrong")})).collect();
            call(&http, &url, "/v1/jobs/fail", json!({ "claims": failed })).await;
        }
        if !done.is_empty() {
            call(&http, &url, "/v1/jobs/complete", json!({ "claims": done })).await;
        }
        sleep_until(next).await;
    }
}

/// A broker with many jobs under way, in a separate process.
async fn busy_broker(
    folder: &std::path::Path,
    jobs: usize,
) -> (Process, tokio::task::JoinHandle<()>) {
    let broker = processes::serve(folder, "web-1").await;
    fill(&client(), &broker.url, jobs).await;
    let traffic = tokio::spawn(traffic(broker.url.clone()));
    (broker, traffic)
}

/// How much of a core the broker takes over a while, in percent.
async fn share(broker: &Process, window: Duration) -> f64 {
    let (began, before) = (Instant::now(), broker.processor_time());
    sleep(window).await;
    let used = broker.processor_time() - before;
    used.as_secs_f64() / began.elapsed().as_secs_f64() * 100.0
}

#[tokio::test]
async fn an_open_page_costs_the_broker_little() {
    let plan = plan();
    let Some(browser) = Browser::start(1400, 1000).await else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let (broker, traffic) = busy_broker(folder.path(), plan.jobs).await;
    let sections = if plan.is_judged {
        &SECTIONS[..]
    } else {
        &SECTIONS[..1]
    };
    let mut worst = f64::MIN;
    for section in sections {
        browser.leave().await;
        let without = share(&broker, plan.minute).await;
        browser.open(&broker.url, section).await;
        browser.shows("#connection", "live").await;
        let with = share(&broker, plan.minute).await;
        println!(
            "{section}: {:.2} % of a core ({with:.2} with the page, {without:.2} without)",
            with - without
        );
        worst = worst.max(with - without);
    }
    traffic.abort();
    assert!(!plan.is_judged || worst < 2.0, "{worst} % of a core");
    browser.end().await;
}

/// What the page holds in memory after garbage collection.
#[derive(Debug, Clone, Copy)]
struct Held {
    heap_bytes: f64,
    nodes: f64,
    listeners: f64,
}

async fn held(browser: &Browser, url: &str) -> Held {
    browser.open(url, SECTIONS[0]).await;
    browser.shows("#connection", "live").await;
    browser.shows("#queues", "queue-7").await;
    let [heap_bytes, nodes, listeners] = browser.held().await;
    Held {
        heap_bytes,
        nodes,
        listeners,
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[tokio::test]
async fn an_hour_of_traffic_does_not_fill_the_browser() {
    let plan = plan();
    let Some(browser) = Browser::start(1400, 1000).await else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let (broker, traffic) = busy_broker(folder.path(), plan.jobs).await;
    browser.open(&broker.url, "#/").await;
    let mut samples = Vec::new();
    let began = Instant::now();
    for minute in 0..=plan.minutes {
        let sample = held(&browser, &broker.url).await;
        println!(
            "minute {minute}: {:.2} MB of heap, {} nodes, {} listeners",
            sample.heap_bytes / 1e6,
            sample.nodes,
            sample.listeners
        );
        samples.push(sample);
        // Visits each section, then stays on one for the rest of the minute.
        for section in SECTIONS {
            browser.open(&broker.url, section).await;
            browser.shows("#connection", "live").await;
        }
        let stay = usize::try_from(minute).unwrap() % SECTIONS.len();
        browser.open(&broker.url, SECTIONS[stay]).await;
        sleep_until(began + plan.minute * u32::try_from(minute + 1).unwrap()).await;
    }
    traffic.abort();
    let third = samples.len() / 3;
    let of = |part: &[Held], what: fn(&Held) -> f64| median(part.iter().map(what).collect());
    let (first, last) = (
        &samples[..third.max(1)],
        &samples[samples.len() - third.max(1)..],
    );
    for (name, what, room) in [
        // The points of the last hour accumulate during the first hour, up to 720.
        (
            "heap_bytes",
            (|held: &Held| held.heap_bytes) as fn(&Held) -> f64,
            1e6,
        ),
        ("nodes", |held| held.nodes, 500.0),
        ("listeners", |held| held.listeners, 50.0),
    ] {
        let (before, after) = (of(first, what), of(last, what));
        println!("{name}: median {before} in the first third, {after} in the last");
        assert!(
            !plan.is_judged || after < before * 1.1 + room,
            "{name} grew from {before} to {after}"
        );
    }
    browser.end().await;
}
