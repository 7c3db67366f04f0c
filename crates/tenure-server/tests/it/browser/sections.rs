//! The tasks of each section, done in a browser: elections, workers, several jobs at once, schedules, times, errors.

use serde_json::json;

use super::driver::{Browser, at_each_size};
use crate::support::Broker;

at_each_size! {
    elections_are_shown_with_their_leaders_and_candidates,
    workers_are_shown_with_what_they_run,
    several_jobs_are_retried_moved_cancelled_and_deleted_at_once,
    a_schedule_is_made_without_json_run_by_hand_and_shows_its_runs,
    times_are_local_until_the_reader_wants_utc,
    lists_show_what_happened_and_the_job_the_whole_trace,
    an_empty_broker_shows_how_the_first_job_gets_there,
    what_is_not_there_is_said_to_be_not_there,
}

async fn elections_are_shown_with_their_leaders_and_candidates(browser: Browser) {
    let broker = Broker::start_with(|config| config.node = Some("web-1".to_owned())).await;
    for candidate in ["alice", "bob"] {
        let body = json!({"candidate": candidate, "ttl_ms": 600_000});
        let (status, answer) = broker.post("/v1/elections/reports/elect", body).await;
        assert_eq!(status, 200, "{answer}");
    }
    browser.open(&broker.url, "#/elections").await;
    browser
        .row("#elections", "reports", &["led", "alice", "1"])
        .await;
    browser.shows("#elections", "who serves the queue").await;
    browser.fill("#election-name", "reports").await;
    browser.press("Show").await;
    browser.shows("main h1", "reports").await;
    browser.shows("#about", "alice").await;
    browser.row("#candidates", "bob", &[]).await;
    browser.open(&broker.url, "#/elections/typo").await;
    browser.shows("main", "There is no election typo").await;
    browser.end().await;
    broker.handle.stop().await;
}

async fn workers_are_shown_with_what_they_run(browser: Browser) {
    let broker = Broker::start().await;
    browser.open(&broker.url, "#/workers").await;
    browser
        .shows("#workers", "No worker is running a job")
        .await;
    for _ in 0..3 {
        broker.submit("send").await;
    }
    for (worker, max) in [("worker-7", 2), ("worker-8", 1)] {
        let claim = json!({"worker": worker, "max": max});
        assert_eq!(broker.post("/v1/jobs/claim", claim).await.0, 200);
    }
    browser
        .row("#workers", "worker-7", &["2", "default", "send"])
        .await;
    browser.row("#workers", "worker-8", &["1"]).await;
    let claim = json!({"worker": "worker-9", "wait_ms": 60_000});
    tokio::select! {
        () = browser.row("#workers", "worker-9", &["0", "1"]) => {}
        answer = broker.post("/v1/jobs/claim", claim) => panic!("{answer:?}"),
    }
    browser.end().await;
    broker.handle.stop().await;
}

#[tokio::test]
async fn activity_tells_what_happens_to_jobs() {
    let Some(browser) = Browser::start(1280, 900).await else {
        return;
    };
    let broker = Broker::start().await;
    browser.open(&broker.url, "#/activity").await;
    browser.shows("#activity", "Nothing has happened").await;
    let id = broker.submit("send").await;
    browser.row("#activity", &id, &["submitted"]).await;
    assert_eq!(kill_one(&broker, "out of paper").await, id);
    browser.shows("#activity", "claimed, attempt 1").await;
    browser.shows("#activity", "out of paper").await;
    browser.end().await;
    broker.handle.stop().await;
}

#[tokio::test]
async fn a_commit_and_an_object_are_shown_as_they_are_stored() {
    let Some(browser) = Browser::start(1280, 900).await else {
        return;
    };
    let broker = Broker::start().await;
    broker.submit("send").await;
    browser.open(&broker.url, "#/storage").await;
    browser
        .shows("#log", "commits and objects as they are stored")
        .await;
    browser.open(&broker.url, "#/raw").await;
    browser.shows("#commit", "commit").await;
    browser.shows("#commit pre", "send").await;
    browser.fill("#raw-index", "1").await;
    browser.press("Show").await;
    browser.shows("#commit", "term").await;
    browser.shows("#objects", "elections/tenure.queue").await;
    let key = "#/raw?key=default%2Felections%2Ftenure.queue";
    browser.open(&broker.url, key).await;
    browser.shows("#object pre", "holder").await;
    browser.open(&broker.url, "#/raw?index=999999").await;
    browser.shows("#commit", "there is no index 999999").await;
    browser.end_after_refusals().await;
    broker.handle.stop().await;
}

/// Makes the next job dead, with this error.
async fn kill_one(broker: &Broker, error: &str) -> String {
    let job = broker.claim().await;
    let id = job["id"].as_str().unwrap().to_owned();
    let failure = json!({"token": job["token"], "error": error, "permanent": true});
    let (status, answer) = broker.post(&format!("/v1/jobs/{id}/fail"), failure).await;
    assert_eq!(status, 200, "{answer}");
    id
}

async fn several_jobs_are_retried_moved_cancelled_and_deleted_at_once(browser: Browser) {
    let broker = Broker::start().await;
    for _ in 0..3 {
        broker.submit("send").await;
        kill_one(&broker, "no").await;
    }
    let left = broker.submit("stay").await;
    let all = "document.querySelector('#jobs thead input').click()";
    browser.open(&broker.url, "#/jobs?state=dead").await;
    browser.shows("#jobs tbody", "dead").await;
    browser.run(all).await;
    browser.shows(".selected", "3 jobs selected").await;
    browser.press("Retry 3").await;
    browser.shows("#toasts", "3 jobs retried").await;
    browser.open(&broker.url, "#/jobs?type=send").await;
    browser.shows("#jobs tbody", "ready").await;
    browser.run(all).await;
    browser.press("Move 3").await;
    browser
        .shows("dialog", "Move 3 jobs to another queue")
        .await;
    browser.press_in("dialog", "Close").await;
    browser.shows(".selected", "3 jobs selected").await;
    browser.press("Move 3").await;
    browser.fill("#field-queue", "slow").await;
    browser.press_in("dialog", "Move 3 jobs").await;
    browser.shows("#toasts", "3 jobs moved").await;
    let (_, moved) = broker.get("/v1/jobs?queue=slow").await;
    assert_eq!(moved["jobs"].as_array().unwrap().len(), 3);
    browser.open(&broker.url, "#/jobs?queue=slow").await;
    browser.shows("#jobs tbody", "ready").await;
    browser.run(all).await;
    browser.press("Cancel 3").await;
    browser.shows("dialog", "Cancel 3 jobs?").await;
    browser.press_in("dialog", "Cancel 3 jobs").await;
    browser.shows("#toasts", "3 jobs cancelled").await;
    browser.open(&broker.url, "#/jobs").await;
    browser.shows("#jobs tbody", "cancelled").await;
    // Tick two of the three: only ticked jobs are deleted, and jobs that cannot be deleted have no box.
    let two = "const boxes = [...document.querySelectorAll('#jobs tbody tr')]
        .filter((row) => row.innerText.includes('cancelled')).slice(0, 2).map((row) => row.querySelector('input'));
        boxes.forEach((box) => box.click()); return boxes.length";
    assert_eq!(browser.run(two).await, json!(2));
    browser.press("Delete 2").await;
    browser.press_in("dialog", "Delete 2 jobs").await;
    browser.shows("#toasts", "2 jobs deleted").await;
    let (_, cancelled) = broker.get("/v1/jobs?state=cancelled").await;
    let kept = cancelled["jobs"].as_array().unwrap().iter();
    assert_eq!(kept.filter(|job| job["remnant"] != true).count(), 1);
    let (_, job) = broker.get(&format!("/v1/jobs/{left}")).await;
    assert_eq!(job["state"], "ready");
    browser.end().await;
    broker.handle.stop().await;
}

async fn a_schedule_is_made_without_json_run_by_hand_and_shows_its_runs(browser: Browser) {
    let broker = Broker::start().await;
    browser.open(&broker.url, "#/schedules").await;
    browser.shows("#schedules", "There are no schedules").await;
    browser.press("Add a schedule…").await;
    for (field, value) in [
        ("#field-name", "nightly"),
        ("#field-cron", "30 2 * * *"),
        ("#field-timezone", "Europe/Berlin"),
        ("#field-missed", "skip"),
        ("#field-type", "report"),
        ("#field-queue", "reports"),
        ("#field-max_attempts", "3"),
    ] {
        browser.fill(field, value).await;
    }
    browser.press("Add").await;
    browser
        .row("#schedules", "nightly", &["30 2 * * *\nEurope/Berlin"])
        .await;
    let (_, set) = broker.get("/v1/schedules/nightly").await;
    assert_eq!(set["missed"], "skip");
    let job = json!({"queue": "reports", "type": "report", "payload": {}, "max_attempts": 3});
    assert_eq!(set["job"], job);
    browser.press("Add a schedule…").await;
    for (field, value) in [
        ("#field-name", "nightly"),
        ("#field-cron", "1 1 1 1 *"),
        ("#field-type", "other"),
    ] {
        browser.fill(field, value).await;
    }
    browser.press_in("dialog", "Add").await;
    browser
        .shows("dialog", "There is a schedule nightly already")
        .await;
    browser.press_in("dialog", "Close").await;
    let (_, kept) = broker.get("/v1/schedules/nightly").await;
    assert_eq!(kept["cron"], "30 2 * * *");
    browser.press("Run now").await;
    browser.shows("#toasts", "nightly runs now").await;
    let (_, jobs) = broker.get("/v1/jobs?queue=reports").await;
    let run = jobs["jobs"][0]["id"].as_str().unwrap();
    assert!(run.starts_with("run-of-schedule:nightly@"), "{run}");
    browser.press("Pause").await;
    browser.shows("#schedules", "paused").await;
    let (_, paused) = broker.get("/v1/schedules/nightly").await;
    assert_eq!(paused["paused"], true);
    browser.open(&broker.url, "#/schedules/nightly").await;
    browser.shows("#about", "paused").await;
    browser.press("Resume").await;
    browser.shows("#toasts", "nightly is resumed").await;
    let (_, resumed) = broker.get("/v1/schedules/nightly").await;
    assert_eq!(resumed["paused"], false);
    browser.shows("#runs tbody", "ready").await;
    browser.shows("#runs tbody", "run manually").await;
    browser.press("Change…").await;
    browser.fill("#field-cron", "0 4 * * *").await;
    browser.fill("#field-missed", "all").await;
    browser.press_in("dialog", "Change").await;
    browser.shows("#about", "0 4 * * *").await;
    let (_, set) = broker.get("/v1/schedules/nightly").await;
    assert_eq!(set["missed"], json!({"all": 1_000}));
    browser.press("Delete…").await;
    browser.press_in("dialog", "Delete").await;
    browser.shows("#schedules", "There are no schedules").await;
    browser.open(&broker.url, "#/schedules/nightly").await;
    browser.shows("main", "There is no schedule nightly").await;
    browser.end_after_refusals().await;
    broker.handle.stop().await;
}

async fn times_are_local_until_the_reader_wants_utc(browser: Browser) {
    browser.lives_in("Asia/Tokyo").await;
    let broker = Broker::start().await;
    let job = json!({"type": "later", "run_at": "2031-05-06T20:30:00Z"});
    let (_, answer) = broker.post("/v1/jobs", job).await;
    let id = answer["jobs"][0]["id"].as_str().unwrap();
    browser.open(&broker.url, &format!("#/jobs/{id}")).await;
    browser.shows("#about", "2031-05-07 05:30:00").await;
    browser.shows("footer", "Asia/Tokyo").await;
    browser.press("times are Asia/Tokyo; show UTC").await;
    browser.shows("#about", "2031-05-06 20:30:00").await;
    // The choice is kept when the page is closed.
    browser.leave().await;
    browser.open(&broker.url, &format!("#/jobs/{id}")).await;
    browser.shows("#about", "2031-05-06 20:30:00").await;
    browser.press("times are UTC; show local times").await;
    browser.shows("#about", "2031-05-07 05:30:00").await;
    browser.end().await;
    broker.handle.stop().await;
}

async fn lists_show_what_happened_and_the_job_the_whole_trace(browser: Browser) {
    let broker = Broker::start().await;
    broker.submit("send").await;
    let trace =
        "Traceback (most recent call last):\n  File \"mail.py\", line 7\nTimeoutError: no answer\n";
    let id = kill_one(&broker, trace).await;
    for (hash, part) in [
        ("#/", "#glance"),
        ("#/", "#failed"),
        ("#/jobs?state=dead", "#jobs"),
    ] {
        browser.open(&broker.url, hash).await;
        browser.shows(part, "TimeoutError: no answer").await;
        let seen = format!("return document.querySelector('{part}').innerText");
        let seen = browser.run(&seen).await.to_string();
        assert!(!seen.contains("Traceback"), "{hash} {part}: {seen}");
    }
    browser.open(&broker.url, &format!("#/jobs/{id}")).await;
    browser.shows("#last-error", "Traceback").await;
    browser
        .shows("#last-error", "TimeoutError: no answer")
        .await;
    browser.end().await;
    broker.handle.stop().await;
}

async fn an_empty_broker_shows_how_the_first_job_gets_there(browser: Browser) {
    let broker = Broker::start().await;
    for hash in ["#/", "#/queues", "#/jobs"] {
        browser.open(&broker.url, hash).await;
        let curl = format!("curl {}/v1/jobs", broker.url);
        browser.shows(".welcome", &curl).await;
    }
    let said = browser.run("return document.querySelector('.welcome pre').innerText");
    let said = said.await.as_str().unwrap().to_owned();
    // The example works unchanged.
    let ran = tokio::task::spawn_blocking(move || {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &said]).output().unwrap()
    });
    let ran = ran.await.unwrap();
    assert!(ran.status.success(), "{ran:?}");
    browser.shows("#jobs tbody", "hello").await;
    let (_, jobs) = broker.get("/v1/jobs?type=hello").await;
    assert_eq!(jobs["jobs"][0]["payload"], json!({"name": "world"}));
    browser.end().await;
    broker.handle.stop().await;
}

async fn what_is_not_there_is_said_to_be_not_there(browser: Browser) {
    let broker = Broker::start().await;
    for hash in ["#/typo", "#/queues/a/b", "#/storage/x", "#/constructor"] {
        browser.open(&broker.url, hash).await;
        browser.shows("main", "There is no such page").await;
    }
    for hash in ["#/jobs/no-such-job", "#/jobs/%3Cb%3E"] {
        browser.open(&broker.url, hash).await;
        browser.shows("main", "There is no job with this id").await;
        browser.shows(".title", "not found").await;
        let buttons = "return [...document.querySelectorAll('.title button')].some((each) => each.offsetParent)";
        assert_eq!(browser.run(buttons).await, json!(false), "{hash}");
    }
    // One that is deleted while it is looked at.
    broker.submit("send").await;
    let id = kill_one(&broker, "no").await;
    browser.open(&broker.url, &format!("#/jobs/{id}")).await;
    browser.shows(".title", "dead").await;
    assert_eq!(broker.delete(&format!("/v1/jobs/{id}")).await.0, 204);
    browser.shows("main", "This job was deleted").await;
    browser.end_after_refusals().await;
    broker.handle.stop().await;
}
