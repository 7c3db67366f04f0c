//! Counts the requests of brokers to their store, and compares them with `docs/cost.md`.
//!
//! With `TENURE_COST_SECONDS` set, idle brokers at the default ttl are counted for that long, and how many heartbeats
//! they send in this time is compared with the page, too (`make cost`).

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use tenure_server::ECONOMY_TTL_DEFAULT;
use tokio::time::{Instant, sleep};

use crate::support::{Broker, config, store_in};

const PAGE: &str = include_str!("../../../../docs/cost.md");

/// How many heartbeats are counted, and how many pass before that.
const COUNTED: u64 = 60;
const WARM_UP: u64 = 15;

/// How far the count may differ from the page, as a part of all requests of a broker.
const TOLERANCE: f64 = 0.05;

/// How many requests a broker has sent.
#[derive(Debug, Clone, Copy, Default)]
struct Requests {
    writes: f64,
    listings: f64,
    reads: f64,
}

impl Requests {
    fn of(page: &str) -> Self {
        let mut requests = Self::default();
        for line in page.lines() {
            let Some(rest) = line.strip_prefix("tenure_store_request_seconds_count{") else {
                continue;
            };
            let (labels, count) = rest.rsplit_once(' ').unwrap();
            let count: f64 = count.parse().unwrap();
            let operation = labels.split("operation=\"").nth(1).unwrap();
            match operation.split('"').next().unwrap() {
                "put" => requests.writes += count,
                "list" => requests.listings += count,
                "delete" => {}
                _ => requests.reads += count,
            }
        }
        requests
    }

    fn since(self, before: Self) -> Self {
        Self {
            writes: self.writes - before.writes,
            listings: self.listings - before.listings,
            reads: self.reads - before.reads,
        }
    }

    fn per_heartbeat(self) -> Self {
        Self {
            writes: 1.0,
            listings: self.listings / self.writes,
            reads: self.reads / self.writes,
        }
    }

    fn sum(self) -> f64 {
        self.writes + self.listings + self.reads
    }

    /// In dollars per million heartbeats, at the prices of the page.
    fn cost(self) -> f64 {
        (self.writes + self.listings) * 5.0 + self.reads * 0.4
    }

    fn times(self, factor: f64) -> Self {
        Self {
            writes: self.writes * factor,
            listings: self.listings * factor,
            reads: self.reads * factor,
        }
    }

    fn is_near(self, other: Self) -> bool {
        let near = |one: f64, two: f64| (one - two).abs() <= TOLERANCE * other.sum();
        near(self.writes, other.writes)
            && near(self.listings, other.listings)
            && near(self.reads, other.reads)
            && (self.sum() - other.sum()).abs() <= TOLERANCE * other.sum()
            && (self.cost() - other.cost()).abs() <= TOLERANCE * other.cost()
    }
}

/// The rows of the page's table of requests per heartbeat.
fn promised(row: &str) -> Requests {
    let row = PAGE
        .lines()
        .find(|line| line.starts_with(&format!("| {row} |")))
        .unwrap_or_else(|| panic!("docs/cost.md has no row {row:?}"));
    let cells: Vec<f64> = row
        .split('|')
        .skip(2)
        .filter_map(|cell| cell.trim().parse().ok())
        .collect();
    let [writes, listings, reads] = cells[..] else {
        panic!("three numbers in {row}");
    };
    Requests {
        writes,
        listings,
        reads,
    }
}

async fn counted(broker: &Broker) -> Requests {
    let answer = broker.request(reqwest::Method::GET, "/metrics");
    Requests::of(&answer.send().await.unwrap().text().await.unwrap())
}

/// Counts the requests of both brokers while nothing happens, per heartbeat.
async fn idle(leader: &Broker, standby: &Broker, heartbeat: Duration) -> [Requests; 2] {
    let until = async |writes: f64| {
        let patience = Instant::now() + heartbeat * 40 + Duration::from_secs(300);
        loop {
            let now = [counted(leader).await, counted(standby).await];
            if now[0].writes >= writes {
                return now;
            }
            assert!(Instant::now() < patience, "no heartbeats");
            sleep(heartbeat / 3).await;
        }
    };
    let first = counted(leader).await.writes;
    let before = until(first + WARM_UP as f64).await;
    let after = until(before[0].writes + COUNTED as f64).await;
    [0, 1].map(|which| after[which].since(before[which]).per_heartbeat())
}

/// Two brokers on a store; the first leads.
async fn two(store: &str, namespace: &str, times: Times) -> (Broker, Broker) {
    let configured = || {
        let mut config = config(store);
        config.namespace = namespace.to_owned();
        config.ttl = times.ttl;
        config.economy = times.economy;
        config
    };
    let leader = Broker::started(configured()).await;
    leader.serving().await;
    let standby = Broker::started(configured()).await;
    (leader, standby)
}

/// The times of the brokers. Heartbeats have to be several times as long as requests, or the time of the requests
/// would matter.
#[derive(Debug, Clone, Copy)]
struct Times {
    ttl: Duration,
    heartbeat: Duration,
    economy: bool,
}

const USUAL: Times = Times {
    ttl: Duration::from_secs(4),
    heartbeat: Duration::from_millis(1200),
    economy: false,
};

const ECONOMY: Times = Times {
    ttl: Duration::from_secs(3),
    heartbeat: Duration::from_millis(1500),
    economy: true,
};

/// How many heartbeats the page says a broker sends in this time, at a ttl and without economy.
fn heartbeats(during: Duration, ttl: Duration) -> f64 {
    let a_day_by_ttl: f64 = PAGE
        .split_once("> *h* = ")
        .and_then(|(_, rest)| rest.split_once(" / *ttl* heartbeats per day"))
        .and_then(|(number, _)| number.replace(',', "").parse().ok())
        .expect("docs/cost.md says how many heartbeats there are");
    a_day_by_ttl / ttl.as_secs_f64() * during.as_secs_f64() / 86_400.0
}

/// Counts all requests of both brokers for this long, and compares their numbers with the page's.
async fn all_requests_are_as_the_page_says(
    store: &str,
    namespace: &str,
    during: Duration,
    rows: [&str; 2],
) {
    let ttl = config(store).ttl;
    let times = Times {
        ttl,
        heartbeat: ttl * 3 / 10,
        economy: false,
    };
    let (leader, standby) = two(store, namespace, times).await;
    // The standby's first listings, and its first look at the leader.
    sleep(3 * ttl).await;
    let before = [counted(&leader).await, counted(&standby).await];
    sleep(during).await;
    let after = [counted(&leader).await, counted(&standby).await];
    let is_leading = leader.handle.is_serving() && !standby.handle.is_serving();
    standby.handle.stop().await;
    leader.handle.stop().await;
    assert!(is_leading, "another broker leads than at the start");
    let heartbeats = heartbeats(during, ttl);
    let mut differing = Vec::new();
    for (which, row) in rows.iter().enumerate() {
        let (seen, page) = (
            after[which].since(before[which]),
            promised(row).times(heartbeats),
        );
        let requests = 100.0 * (seen.sum() / page.sum() - 1.0);
        let cost = 100.0 * (seen.cost() / page.cost() - 1.0);
        println!(
            "{row}, {during:?}: {seen:?}; by the page {page:.1?}; requests {requests:+.1} %, cost {cost:+.1} %"
        );
        if !seen.is_near(page) {
            differing.push(row);
        }
    }
    assert_eq!(differing, [&""; 0], "docs/cost.md says something else");
}

async fn idle_brokers_ask_what_the_page_says(store: &str, times: Times, rows: [&str; 2]) {
    let started = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos();
    let namespace = format!("cost-{started}");
    if let Ok(seconds) = std::env::var("TENURE_COST_SECONDS") {
        if !times.economy {
            let during = Duration::from_secs(seconds.parse().expect("a number of seconds"));
            all_requests_are_as_the_page_says(store, &namespace, during, rows).await;
        }
        return;
    }
    let mut differences = Vec::new();
    // A machine that stalls must not make the page look wrong.
    for _ in 0..3 {
        let (leader, standby) = two(store, &namespace, times).await;
        let seen = idle(&leader, &standby, times.heartbeat).await;
        let is_leading = leader.handle.is_serving() && !standby.handle.is_serving();
        standby.handle.stop().await;
        leader.handle.stop().await;
        println!("{store}: leader {:?}, standby {:?}", seen[0], seen[1]);
        let page = rows.map(promised);
        if is_leading && seen[0].is_near(page[0]) && seen[1].is_near(page[1]) {
            return;
        }
        differences.push((seen, is_leading));
    }
    panic!(
        "docs/cost.md says {:?}; counted: {differences:#?}",
        rows.map(promised)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_brokers_ask_what_the_page_says_on_files() {
    let folder = tempfile::tempdir().unwrap();
    let rows = ["leader, with hints", "standby, with ages"];
    idle_brokers_ask_what_the_page_says(&store_in(folder.path()), USUAL, rows).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_brokers_ask_what_the_page_says_on_postgres() {
    let Some(store) = crate::support::url("TENURE_TEST_POSTGRES") else {
        return;
    };
    let rows = ["leader, with hints", "standby, without ages"];
    idle_brokers_ask_what_the_page_says(&store, USUAL, rows).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_brokers_ask_what_the_page_says_on_s3() {
    let Some(store) = crate::support::url("TENURE_TEST_S3_CEPH") else {
        return;
    };
    let rows = ["leader, without hints", "standby, without ages"];
    idle_brokers_ask_what_the_page_says(&store, USUAL, rows).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_brokers_ask_what_the_page_says_in_economy_on_s3() {
    let Some(store) = crate::support::url("TENURE_TEST_S3_CEPH") else {
        return;
    };
    let rows = ["leader, economy", "standby, economy"];
    idle_brokers_ask_what_the_page_says(&store, ECONOMY, rows).await;
}

#[test]
fn two_idle_brokers_in_economy_cost_less_than_a_dollar_a_month() {
    // Jitter shortens waits by a tenth on average.
    let heartbeat = ECONOMY_TTL_DEFAULT.as_secs_f64() / 2.0 * 0.9;
    let millions = 30.0 * 86_400.0 / heartbeat / 1_000_000.0;
    let rows = ["leader, economy", "standby, economy"].map(promised);
    let month = millions * (rows[0].cost() + rows[1].cost());
    assert!(month < 1.0, "{month}");
    let row = format!("| {month:.2} |");
    assert!(PAGE.contains(&row), "the page does not say {row}");
}

/// How many requests a job takes, with one call at a time.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_costs_the_writes_that_the_page_says() {
    // Counted where commits are objects: on a file store they are appended, not put.
    let broker = Broker::start_with(|config| config.ttl = Duration::from_secs(24 * 3600)).await;
    let mut written = BTreeMap::new();
    let mut before = counted(&broker).await.writes;
    let mut note = async |what: &'static str| {
        let now = counted(&broker).await.writes;
        written.insert(what, now - before);
        before = now;
    };
    let end = async |job: &serde_json::Value, how: &str, body: serde_json::Value| {
        let path = format!("/v1/jobs/{}/{how}", job["id"].as_str().unwrap());
        let mut body = body;
        body["token"] = job["token"].clone();
        let (status, answer) = broker.post(&path, body).await;
        assert!((200..300).contains(&status), "{status} {answer}");
    };

    broker.submit("a").await;
    note("submit").await;
    let job = broker.claim().await;
    note("claim").await;
    end(&job, "complete", json!({})).await;
    note("complete").await;

    broker.submit("a").await;
    let job = broker.claim().await;
    note("submit and claim").await;
    end(&job, "fail", json!({"error": "x", "retry_in_ms": 0})).await;
    let job = broker.claim().await;
    note("a retry at once").await;
    end(&job, "fail", json!({"error": "x", "retry_in_ms": 300})).await;
    let (status, answer) = broker
        .post("/v1/jobs/claim", json!({"worker": "w", "wait_ms": 30_000}))
        .await;
    assert_eq!(status, 200, "{answer}");
    note("a retry later").await;
    end(&answer["jobs"][0], "complete", json!({})).await;
    note("complete it").await;
    let expected = [
        ("submit", 1.0),
        ("claim", 1.0),
        ("complete", 1.0),
        ("submit and claim", 2.0),
        ("a retry at once", 2.0),
        ("a retry later", 3.0),
        ("complete it", 1.0),
    ];
    assert_eq!(written, expected.into());
}

/// When the day's budget runs low, commits wait; the broker reports this and keeps leading.
#[tokio::test(flavor = "multi_thread")]
async fn a_budget_that_runs_low_slows_commits_down_and_ends_no_lease() {
    // As many as a day's heartbeats take, and a hundred more.
    let broker = Broker::start_with(|config| {
        config.ttl = Duration::from_secs(10);
        config.throttle.writes_per_day = Some(23_811 + 100);
    })
    .await;
    let mut submitted = 0;
    while tokio::time::timeout(Duration::from_secs(5), broker.submit("a"))
        .await
        .is_ok()
    {
        submitted += 1;
        assert!(submitted < 100, "nothing slows it down");
    }
    assert!(submitted > 50, "{submitted}");
    let answer = broker.request(reqwest::Method::GET, "/metrics");
    let page = answer.send().await.unwrap().text().await.unwrap();
    assert!(page.contains("\ntenure_store_writes_low 1"), "{page}");
    // osqueue's statistics show the same: commits were delayed, and for how long.
    let (_, told) = broker.get("/osqueue/v1/throttle-stats").await;
    let number = |field: &str| told[field].as_u64().unwrap();
    assert_eq!(told["throttling"], true);
    assert!(
        number("throttledWrites") >= 1 && number("totalWriteDelayMs") >= 1000,
        "{told}"
    );
    assert!(
        number("dailyWriteCount") > 50 && told["dailyBudgetExceeded"] == false,
        "{told}"
    );
    let before = counted(&broker).await.writes;
    let patience = Instant::now() + Duration::from_secs(60);
    while counted(&broker).await.writes < before + 2.0 {
        assert!(Instant::now() < patience, "no heartbeats");
        sleep(Duration::from_millis(200)).await;
    }
    assert!(broker.handle.is_serving());
}

#[tokio::test]
async fn a_budget_that_heartbeats_alone_would_use_up_is_refused() {
    let mut config = config("memory:");
    config.ttl = Duration::from_secs(10);
    config.throttle.writes_per_day = Some(20_000);
    let error = config.check().unwrap_err().to_string();
    assert!(error.contains("kept for heartbeats"), "{error}");
    config.ttl = Duration::from_secs(30);
    config.check().unwrap();
    config.store = "file:./somewhere".to_owned();
    let error = config.check().unwrap_err().to_string();
    assert!(error.contains("a directory has none"), "{error}");
}
