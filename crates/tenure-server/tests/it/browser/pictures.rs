//! The pictures of the documentation: the dashboard of a cluster that works, fails over and has trouble.
//!
//! `make screenshots` lets the cluster run for ten minutes and puts the pictures into `docs/images`. Without
//! `TENURE_SCREENSHOT_SECONDS` it runs for a few seconds, which shows that every picture can be taken.

use std::time::Duration;

use reqwest::{Client, Method};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::driver::Browser;
use super::processes;
use crate::support::{client, until};

const SECONDS: &str = "TENURE_SCREENSHOT_SECONDS";
const WIDTH: u32 = 1300;

/// Each picture's name, section, colours, and a text that it shows when it is complete.
const PICTURES: [(&str, &str, &str, &str); 6] = [
    ("overview", "#/", "light", "SMTP 550"),
    ("queue-dark", "#/queues/mail", "dark", "Pick-up p95"),
    ("jobs", "#/jobs?state=dead&queue=mail", "light", "SMTP 550"),
    ("workers", "#/workers", "light", "worker-2"),
    (
        "schedules",
        "#/schedules/refresh-search",
        "light",
        "Europe/Berlin",
    ),
    ("elections", "#/elections", "light", "nightly-mail"),
];

#[tokio::test]
async fn the_pictures_of_the_documentation_can_be_taken() {
    let Some(browser) = Browser::start(WIDTH, 900).await else {
        return;
    };
    let seconds = std::env::var(SECONDS).map_or(12, |seconds| seconds.parse().unwrap());
    let time = Duration::from_secs(seconds);
    let folder = tempfile::tempdir().unwrap();
    let mut first = processes::serve(folder.path(), "web-1").await;
    let second = processes::serve(folder.path(), "web-2").await;
    let http = client();
    let url = second.url.as_str();
    prepare(&http, url).await;
    let works = async {
        tokio::join!(
            submits(url),
            works(url, "worker-1", 11),
            works(url, "worker-2", 12),
            works(url, "worker-3", 13),
        )
    };
    let happens = async {
        sleep(time / 3).await;
        first.kill();
        sleep(time / 6).await;
        let again = processes::serve(folder.path(), "web-1").await;
        sleep(time / 3).await;
        send(
            &http,
            Method::POST,
            url,
            "/v1/queues/reports/pause",
            json!({}),
        )
        .await;
        sleep(time / 12).await;
        for (name, hash, colours, text) in PICTURES {
            browser.looks(WIDTH, 400, colours).await;
            browser.open(url, hash).await;
            browser.shows("main", text).await;
            browser.shows("#connection", "live").await;
            if name == "jobs" {
                let three = "[...document.querySelectorAll('#jobs tbody input')].slice(0, 3).forEach((box) => box.click())";
                browser.run(three).await;
                browser.shows(".selected", "selected").await;
            }
            // Wait until plots are drawn and messages have disappeared.
            sleep(Duration::from_secs(2)).await;
            browser.picture(&format!("docs/{name}.webp")).await;
        }
        drop(again);
    };
    tokio::select! {
        () = happens => {}
        _ = works => unreachable!("work has no end"),
    }
    browser.end_after_refusals().await;
}

/// An election with two candidates, schedules, and a job that some schedule has run.
async fn prepare(http: &Client, url: &str) {
    for candidate in ["app-1", "app-2"] {
        let body = json!({"candidate": candidate, "ttl_ms": 3_600_000});
        send(
            http,
            Method::POST,
            url,
            "/v1/elections/nightly-mail/elect",
            body,
        )
        .await;
    }
    let job = |kind: &str| json!({"queue": "reports", "type": kind, "payload": {"kind": "all"}});
    let nightly = json!({"cron": "30 2 * * *", "timezone": "Europe/Berlin", "job": job("report")});
    send(
        http,
        Method::PUT,
        url,
        "/v1/schedules/nightly-report",
        nightly,
    )
    .await;
    let often = json!({"cron": "*/2 * * * *", "timezone": "Europe/Berlin", "job": job("refresh")});
    send(
        http,
        Method::PUT,
        url,
        "/v1/schedules/refresh-search",
        often,
    )
    .await;
}

/// Repeats the call until it succeeds: there may be no leader for a while.
async fn send(http: &Client, method: Method, url: &str, path: &str, body: Value) -> Value {
    until(async || {
        let request = http.request(method.clone(), format!("{url}{path}"));
        let answer = request.json(&body).send().await.ok()?;
        answer.status().is_success().then_some(())?;
        answer.json().await.ok()
    })
    .await
}

/// Numbers that look random, and are the same each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % bound
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[usize::try_from(self.below(of.len() as u64)).unwrap()]
    }
}

async fn submits(url: &str) {
    let (http, mut dice) = (client(), Dice(7));
    loop {
        let next = Instant::now() + Duration::from_millis(100);
        let jobs: Vec<Value> = (0..=dice.below(4))
            .map(|_| {
                let queue = dice.pick(&["billing", "mail", "mail", "reports", "search", "webhooks"]);
                let kind = dice.pick(&["send", "update", "render"]);
                let to = format!("customer-{}@example.com", dice.below(9_000));
                json!({"queue": queue, "type": kind, "payload": {"to": to}, "max_attempts": 2, "backoff": {"first_ms": 3_000}})
            })
            .collect();
        send(&http, Method::POST, url, "/v1/jobs", json!({"jobs": jobs})).await;
        tokio::time::sleep_until(next).await;
    }
}

const ERRORS: [&str; 4] = [
    "SMTP 550 5.1.1 mailbox unavailable",
    "SMTP 550 5.1.1 mailbox unavailable",
    "connect ECONNREFUSED 10.2.3.4:443",
    "Traceback (most recent call last):\n  File \"send.py\", line 31, in send\nTimeoutError: no answer in 30 s",
];

async fn works(url: &str, name: &str, seed: u64) {
    let (http, mut dice) = (client(), Dice(seed));
    loop {
        let claim = json!({"worker": name, "max": 3, "wait_ms": 500});
        let claimed = send(&http, Method::POST, url, "/v1/jobs/claim", claim).await;
        for job in claimed["jobs"].as_array().unwrap() {
            sleep(Duration::from_millis(10 + dice.below(90))).await;
            let mut end = json!({"id": job["id"], "token": job["token"]});
            let how = if dice.below(16) == 0 {
                "fail"
            } else {
                "complete"
            };
            if how == "fail" {
                end["error"] = dice.pick(&ERRORS).into();
            }
            let path = format!("/v1/jobs/{how}");
            send(&http, Method::POST, url, &path, json!({"claims": [end]})).await;
        }
    }
}
