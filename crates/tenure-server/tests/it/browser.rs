//! The dashboard in a real browser, on real servers with live data.
//!
//! Every test ends with the same checks: did any script fail, did the content policy block anything, is anything
//! wider than the screen. Screenshots of each section are left in `target/screenshots`.

use std::time::Duration;

use serde_json::json;
use tenure::core::session;
use tenure::daemon::daemon;
use tenure::{NodeOptions, cluster};
use tokio::time::sleep;

use crate::support::{Broker, config, store_in, until};

mod driver;
mod pictures;
mod processes;
mod sections;
mod soak;
mod tabs;

use driver::Browser;

/// Text that does harm wherever it is not treated as plain text.
const HOSTILE: &str = "</script><script>window.harmed=1</script><img src=x onerror=\"window.harmed=1\">\u{202e}\u{5e9}\u{5dc}\u{5d5}\u{5dd}\u{1f480}'\"`&amp;{{7*7}}";

/// Jobs in every state, a paused queue, a schedule, dead jobs with a reason.
async fn busy(broker: &Broker) {
    for (queue, number) in [("mail", 6), ("reports", 3), ("thumbnails", 4)] {
        for _ in 0..number {
            let job = json!({"queue": queue, "type": "send", "payload": {"to": "a@example.org"}, "max_attempts": 1});
            assert_eq!(broker.post("/v1/jobs", job).await.0, 201);
        }
    }
    let later = json!({"queue": "mail", "type": "digest", "delay_ms": 3_600_000});
    broker.post("/v1/jobs", later).await;
    let claim = json!({"worker": "worker-7", "queues": ["mail"], "max": 4});
    let (_, claimed) = broker.post("/v1/jobs/claim", claim).await;
    let jobs = claimed["jobs"].as_array().unwrap();
    let of = |place: usize| json!({"id": jobs[place]["id"], "token": jobs[place]["token"]});
    broker
        .post("/v1/jobs/complete", json!({"claims": [of(0), of(1)]}))
        .await;
    let mut failed = of(2);
    failed["error"] = "550 mailbox unavailable".into();
    broker
        .post("/v1/jobs/fail", json!({"claims": [failed]}))
        .await;
    broker.post("/v1/queues/reports/pause", json!({})).await;
    let schedule =
        json!({"cron": "30 2 * * *", "timezone": "Europe/Berlin", "job": {"type": "report"}});
    assert_eq!(broker.put("/v1/schedules/nightly", schedule).await.0, 200);
}

#[tokio::test]
async fn each_section_shows_what_is_so() {
    let Some(browser) = Browser::start(1400, 1000).await else {
        return;
    };
    let broker = Broker::start_with(|config| config.node = Some("web-1".to_owned())).await;
    busy(&broker).await;

    browser.open(&broker.url, "#/").await;
    browser.shows("#glance", "web-1").await;
    browser.shows("#glance", "term 1").await;
    browser.shows("#glance", "550 mailbox unavailable").await;
    browser.shows("#glance", "reports: paused, 3 ready").await;
    browser.shows("#failed", "550 mailbox unavailable").await;
    browser.shows("#connection", "live").await;

    browser.open(&broker.url, "#/queues").await;
    browser
        .row("#queues", "mail", &["open", "2", "1", "1", "1"])
        .await;
    browser
        .row("#queues", "reports", &["paused", "3", "0", "0", "0"])
        .await;

    browser.open(&broker.url, "#/queues/mail").await;
    browser.shows(".figures", "Dead").await;
    browser.shows(".figures", "Pick-up p95").await;
    // Wait until the plots have something to draw.
    browser
        .until("return document.querySelectorAll('.plot path').length >= 6")
        .await;

    browser.open(&broker.url, "#/jobs?state=dead").await;
    browser.shows("#jobs", "550 mailbox unavailable").await;
    browser.open(&broker.url, "#/jobs?state=running").await;
    browser.shows("#jobs tbody", "running").await;
    browser.open(&broker.url, "#/jobs").await;
    browser.shows("#jobs tbody", "ready").await;
    browser.fill("#filter-search", "MAILBOX").await;
    browser.press("Search").await;
    browser
        .until("return document.querySelectorAll('#jobs tbody tr').length === 1")
        .await;
    browser.shows("#jobs", "550 mailbox unavailable").await;
    browser
        .open(&broker.url, "#/jobs?search=no+such+word")
        .await;
    browser.shows("#jobs", "No jobs match.").await;

    browser.open(&broker.url, "#/cluster").await;
    browser.row("#nodes", "web-1", &["leader"]).await;
    browser.shows("#leadership", "leads now").await;
    browser.shows("#leadership .trust", "trust").await;

    browser.open(&broker.url, "#/schedules").await;
    browser
        .row("#schedules", "nightly", &["30 2 * * *\nEurope/Berlin"])
        .await;

    browser.open(&broker.url, "#/storage").await;
    browser.shows("#requests", "get_if_changed").await;
    browser.shows("#log", "Commands").await;
    browser.end().await;
    broker.handle.stop().await;
}

#[tokio::test]
async fn a_job_tells_its_whole_story() {
    let Some(browser) = Browser::start(1400, 1000).await else {
        return;
    };
    let broker = Broker::start().await;
    let id = broker.submit("send").await;
    browser.open(&broker.url, &format!("#/jobs/{id}")).await;
    browser.shows("#history", "submitted").await;
    let job = broker.claim().await;
    // It appears without a reload.
    browser.shows("#history", "claimed, attempt 1").await;
    browser.shows("#history", "by w").await;
    browser.shows(".title", "running").await;
    let path = format!("/v1/jobs/{id}/fail");
    let failure = json!({"token": job["token"], "error": "out of paper", "permanent": true});
    broker.post(&path, failure).await;
    browser
        .shows("#history", "attempt 1 failed, now dead")
        .await;
    browser.shows("#last-error", "out of paper").await;
    browser.press("Retry").await;
    browser.shows("#history", "retried manually").await;
    browser.shows(".title", "ready").await;
    assert_eq!(
        broker.get(&format!("/v1/jobs/{id}")).await.1["state"],
        "ready"
    );
    browser.press("Cancel").await;
    browser.press("Cancel the job").await;
    browser.shows(".title", "cancelled").await;
    browser.end().await;
    broker.handle.stop().await;
}

#[tokio::test]
async fn what_is_done_on_the_page_is_done() {
    let Some(browser) = Browser::start(1400, 1000).await else {
        return;
    };
    let broker = Broker::start().await;
    busy(&broker).await;
    browser.open(&broker.url, "#/queues/thumbnails").await;
    browser.press("Pause").await;
    browser.shows("dialog", "Pause thumbnails?").await;
    browser.press_in("dialog", "Pause").await;
    browser.shows(".title", "paused").await;
    assert_eq!(broker.get("/v1/queues/thumbnails").await.1["paused"], true);
    browser.press("Resume").await;
    browser.shows(".title", "open").await;

    browser.press("Limits…").await;
    browser.fill("#field-concurrency", "2").await;
    browser.press("Set").await;
    browser.shows(".figures", "of 2").await;

    browser.open(&broker.url, "#/jobs").await;
    browser.press("Retry all dead jobs").await;
    browser.press("Retry them").await;
    browser.shows("#toasts", "1 job runs again").await;

    browser.press("Submit a job…").await;
    browser.fill("#field-type", "print").await;
    browser.fill("#field-payload", "{\"pages\": ").await;
    browser.press("Submit").await;
    browser.shows("dialog", "not valid JSON").await;
    browser.fill("#field-payload", "{\"pages\": 3}").await;
    browser.press("Submit").await;
    browser.shows("#payload", "\"pages\": 3").await;
    let (_, printed) = broker.get("/v1/jobs?type=print").await;
    assert_eq!(printed["jobs"].as_array().unwrap().len(), 1);
    browser.end().await;
    broker.handle.stop().await;
}

/// A node that runs a daemon, on the store of a broker.
async fn member(broker: &Broker, name: &str) -> tenure::Node {
    let mut options = NodeOptions::new("memory:", "default");
    options.node = Some(name.to_owned());
    options.session = session::Config::for_ttl(Duration::from_secs(5));
    let store = broker.handle.node().store().clone();
    let node = tenure::Node::start_with(store, options).await.unwrap();
    let options = cluster::Options {
        priority: None,
        ..cluster::Options::default()
    };
    let member = node.cluster(options).await.unwrap();
    let indexer = daemon("indexer", async |context| {
        context.stopping().cancelled().await;
        Ok(())
    });
    let definition = cluster::Definition::shards(4);
    member.register(indexer, definition).unwrap();
    node
}

#[tokio::test]
async fn daemons_move_before_the_eyes_when_their_node_is_drained() {
    let Some(browser) = Browser::start(1400, 1000).await else {
        return;
    };
    let broker = Broker::start_with(|config| config.node = Some("web-1".to_owned())).await;
    let nodes = [
        member(&broker, "worker-1").await,
        member(&broker, "worker-2").await,
    ];
    browser.open(&broker.url, "#/cluster").await;
    for index in 0..4 {
        let name = format!("indexer/{index}");
        browser.row("#daemons", &name, &["running"]).await;
    }
    browser.shows("#daemons", "worker-1").await;
    browser.shows("#daemons", "worker-2").await;
    browser.row("#nodes", "worker-1", &["alive"]).await;
    let drain = "const row = [...document.querySelectorAll('#nodes tbody tr')]
        .find((row) => row.cells[0].innerText.trim() === 'worker-1');
        const button = [...(row?.querySelectorAll('button') ?? [])].find((each) => each.innerText === 'Drain');
        button?.click(); return Boolean(button)";
    browser.until(drain).await;
    browser.press_in("dialog", "Drain").await;
    for index in 0..4 {
        let name = format!("indexer/{index}");
        browser
            .row("#daemons", &name, &["worker-2", "running"])
            .await;
    }
    browser
        .shows("#daemons .moves", "worker-1 → worker-2")
        .await;
    browser.row("#nodes", "worker-1", &["draining"]).await;
    browser.end().await;
    for node in nodes {
        node.shutdown().await;
    }
    broker.handle.stop().await;
}

#[tokio::test]
async fn hostile_text_stays_text() {
    let Some(browser) = Browser::start(390, 844).await else {
        return;
    };
    let broker = Broker::start().await;
    let payload = json!({"text": HOSTILE, HOSTILE: 1, "long": "x".repeat(100_000)});
    let job = json!({"type": "evil", "payload": payload, "max_attempts": 1,
        "unique_key": "<b>key</b>", "group": "\u{202e}group"});
    let (status, answer) = broker.post("/v1/jobs", job).await;
    assert_eq!(status, 201, "{answer}");
    let id = answer["jobs"][0]["id"].as_str().unwrap();
    let claim = json!({"worker": "<script>window.harmed=1</script>"});
    let (_, claimed) = broker.post("/v1/jobs/claim", claim).await;
    let failure = json!({"token": claimed["jobs"][0]["token"], "error": HOSTILE.repeat(20)});
    let (status, answer) = broker.post(&format!("/v1/jobs/{id}/fail"), failure).await;
    assert_eq!(status, 200, "{answer}");

    for hash in ["#/", "#/jobs", "#/queues", "#/cluster"] {
        browser.open(&broker.url, hash).await;
        browser.shows("#glance", "onerror").await;
        harmless(&browser).await;
    }
    browser.open(&broker.url, &format!("#/jobs/{id}")).await;
    browser.shows("#last-error", "<img src=x").await;
    browser.shows("#payload", "Show all").await;
    browser.shows("#history", "<script>").await;
    // Characters that would reverse the text are shown as escapes.
    browser.shows("#payload", "\\u202e").await;
    browser.press("Show all 100 kB").await;
    browser.shows("#payload", "Show less").await;
    harmless(&browser).await;
    // A name in the address that is not a valid queue name.
    let hash = "#/queues/%3Cimg%20src%3Dx%20onerror%3D%22window.harmed%3D1%22%3E";
    browser.open(&broker.url, hash).await;
    browser.shows("main h1", "<img").await;
    harmless(&browser).await;
    // The request for that queue's series is refused.
    browser.end_after_refusals().await;
    broker.handle.stop().await;
}

async fn harmless(browser: &Browser) {
    let script = "return [window.harmed ?? null, document.querySelectorAll('main img, main script, main b b').length, \
        document.documentElement.scrollWidth > Math.min(innerWidth, screen.width)]";
    assert_eq!(browser.run(script).await, json!([null, 0, false]));
}

#[tokio::test]
async fn a_token_is_asked_for_and_stays_out_of_addresses() {
    let Some(browser) = Browser::start(1400, 1000).await else {
        return;
    };
    let tokens = "read rrrrrrrrrrrrrrrrrrrr\nadmin aaaaaaaaaaaaaaaaaaaa\n";
    let tokens = tenure_server::Tokens::parse(tokens).unwrap();
    let broker = Broker::start_with(|config| config.tokens = tokens).await;
    browser.open(&broker.url, "#/queues/mail").await;
    browser.shows("dialog", "Access token").await;
    browser.shows("#banner", "Access refused").await;
    browser.fill("#field-token", "rrrrrrrrrrrrrrrrrrrr").await;
    browser.press("Log in").await;
    browser.shows("#connection", "live").await;
    // A reader with a read-only token does not see buttons that would be refused.
    let pause =
        "return [...document.querySelectorAll('.needs-admin')].some((each) => each.offsetParent)";
    assert_eq!(browser.run(pause).await, json!(false));
    browser.press_named("Set the access token").await;
    browser.fill("#field-token", "aaaaaaaaaaaaaaaaaaaa").await;
    browser.press("Log in").await;
    browser.until(pause).await;
    let addresses = "return [location.href, ...performance.getEntriesByType('resource').map((each) => each.name)].join(' ')";
    let addresses = browser.run(addresses).await.to_string();
    assert!(addresses.contains("/v1/dashboard/series"), "{addresses}");
    assert!(
        !addresses.contains("aaaaaa") && !addresses.contains("rrrrrr"),
        "{addresses}"
    );
    browser.end_after_refusals().await;
    broker.handle.stop().await;
}

#[tokio::test]
async fn a_lost_connection_is_said_and_comes_back_by_itself() {
    let Some(browser) = Browser::start(1400, 1000).await else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::started(config(&store_in(folder.path()))).await;
    broker.serving().await;
    let address = broker.handle.address();
    browser.open(&broker.url, "#/").await;
    browser.shows("#connection", "live").await;
    browser.run("window.marker = 'not reloaded'").await;
    broker.handle.stop().await;
    browser.shows("#connection", "no connection").await;
    browser
        .shows("#banner", "This page shows the state at")
        .await;
    let mut again = config(&store_in(folder.path()));
    again.listen = address;
    let broker = Broker::started(again).await;
    broker.serving().await;
    browser.shows("#connection", "live").await;
    browser.shows("#glance", "term 2").await;
    browser
        .until("return document.querySelector('#banner').hidden")
        .await;
    assert_eq!(
        browser.run("return window.marker").await,
        json!("not reloaded")
    );
    browser.end_after_refusals().await;
    broker.handle.stop().await;
}

/// Uses processes, so that the leader can be killed and not only stopped.
#[tokio::test]
async fn a_new_leader_appears_without_a_reload() {
    let Some(browser) = Browser::start(1400, 1000).await else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut leader = processes::serve(folder.path(), "first").await;
    let http = crate::support::client();
    let standby = processes::serve(folder.path(), "second").await;
    browser.open(&standby.url, "#/").await;
    browser.shows("#glance", "first").await;
    browser.shows("#glance", "term 1").await;
    // Through the standby.
    let job = json!({"queue": "mail", "type": "send"});
    let sent = http.post(format!("{}/v1/jobs", standby.url)).json(&job);
    assert_eq!(sent.send().await.unwrap().status(), 201);
    browser.row("#queues", "mail", &["open"]).await;
    browser.run("window.marker = 'not reloaded'").await;

    leader.kill();
    browser
        .shows("#banner", "Cannot get the queues from the leader")
        .await;
    let (http, url) = (&http, &standby.url);
    let elected = until(async || {
        let answer = http.get(format!("{url}/v1/dashboard/node")).send().await;
        let node: serde_json::Value = answer.ok()?.json().await.ok()?;
        (node["leader"]["term"] == 2).then(std::time::Instant::now)
    })
    .await;
    browser.shows("#glance", "term 2").await;
    browser.shows("#glance", "second (this node)").await;
    println!(
        "the page showed the new term {:?} after the election was seen",
        elected.elapsed()
    );
    browser.row("#queues", "mail", &["open"]).await;
    browser
        .until("return document.querySelector('#banner').hidden")
        .await;
    assert_eq!(
        browser.run("return window.marker").await,
        json!("not reloaded")
    );

    browser.open(&standby.url, "#/cluster").await;
    browser.shows("#leadership table", "evicted").await;
    browser
        .shows("#leadership table", "not heard from until")
        .await;
    browser
        .until("return document.querySelectorAll('#leadership .timeline li.silent').length === 1")
        .await;
    browser.shows("#leadership .timeline", "second").await;
    browser.end_after_refusals().await;
}

#[tokio::test]
async fn every_section_can_be_used_without_a_mouse_and_without_eyes() {
    let Some(browser) = Browser::start(1400, 1000).await else {
        return;
    };
    let broker = Broker::start().await;
    busy(&broker).await;
    for hash in [
        "#/",
        "#/queues",
        "#/queues/mail",
        "#/jobs",
        "#/schedules",
        "#/outboxes",
        "#/schedules/nightly",
        "#/workers",
        "#/activity",
        "#/raw",
        "#/elections",
        "#/elections/tenure.queue",
        "#/cluster",
        "#/storage",
        "#/typo",
    ] {
        browser.open(&broker.url, hash).await;
        browser.shows("#connection", "live").await;
        let nameless = browser.run(NAMELESS).await;
        assert_eq!(nameless, json!([]), "{hash}");
    }
    // To the first section by keys alone.
    browser.open(&broker.url, "#/").await;
    browser
        .run("document.querySelector('#sections a:nth-child(2)').focus()")
        .await;
    browser.keys("\u{e007}").await;
    browser
        .until("return location.hash === '#/queues' && document.activeElement.id === 'main'")
        .await;
    browser.end().await;
    broker.handle.stop().await;
}

/// Finds elements without a name for screen readers, and headings that break the outline.
const NAMELESS: &str = "
    const named = (each) => (each.getAttribute('aria-label') || each.textContent || '').trim()
        || (each.id && document.querySelector(`label[for='${each.id}']`));
    const wrong = [...document.querySelectorAll('button, a, input, select, textarea, [role=img], [role=region]')]
        .filter((each) => each.offsetParent && !named(each)).map((each) => each.outerHTML);
    if (document.querySelectorAll('h1').length !== 1) wrong.push('not one h1');
    for (const tag of ['header', 'nav', 'main', 'footer']) if (document.querySelectorAll(tag).length !== 1) wrong.push(tag);
    for (const each of document.querySelectorAll('table')) if (!each.caption || !each.tHead) wrong.push('table without caption');
    return wrong;";

/// Pictures of each section, light and dark, on a phone, a laptop and a large screen.
#[tokio::test]
async fn pictures_are_taken() {
    let Some(browser) = Browser::start(1400, 1000).await else {
        return;
    };
    let broker = Broker::start_with(|config| config.node = Some("web-1".to_owned())).await;
    busy(&broker).await;
    // Long enough for some points of the past.
    sleep(Duration::from_secs(11)).await;
    let (_, dead) = broker.get("/v1/jobs?state=dead").await;
    let job = format!("#/jobs/{}", dead["jobs"][0]["id"].as_str().unwrap());
    let sections = [
        ("overview", "#/"),
        ("queues", "#/queues"),
        ("queue", "#/queues/mail"),
        ("jobs", "#/jobs"),
        ("job", &job),
        ("schedules", "#/schedules"),
        ("outboxes", "#/outboxes"),
        ("schedule", "#/schedules/nightly"),
        ("workers", "#/workers"),
        ("elections", "#/elections"),
        ("election", "#/elections/tenure.queue"),
        ("cluster", "#/cluster"),
        ("storage", "#/storage"),
    ];
    for (width, height) in [(1280, 900), (1920, 1080), (390, 844)] {
        for colours in ["light", "dark"] {
            browser.looks(width, height, colours).await;
            for (name, hash) in sections {
                browser.open(&broker.url, hash).await;
                browser.shows("#glance", "term 1").await;
                browser
                    .until("return document.querySelector('main').innerText.length > 60")
                    .await;
                browser
                    .picture(&format!("{name}-{colours}-{width}.png"))
                    .await;
                assert_eq!(browser.sticks_out().await, 0, "{name} at {width}");
                // On a phone a table may scroll sideways; on a larger screen it has to fit.
                let cut = "return [...document.querySelectorAll('.scroll')].filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.ariaLabel)";
                if width >= 1280 {
                    assert_eq!(browser.run(cut).await, json!([]), "{name} at {width}");
                }
            }
        }
    }
    browser.end().await;
    broker.handle.stop().await;
}
