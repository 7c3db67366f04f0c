//! Two servers: each answers any call, and one takes over from the other.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;
use tenure::queue::{Options, Queue};
use tenure_server::Config;
use tenure_testkit::http_proxy::{Fault, HttpProxy};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::time::{Instant, timeout};

use crate::events::Stream;
use crate::support::{Broker, PATIENCE, answered, config, problem, store_in, until};

/// A leader and a standby that knows it.
async fn pair() -> (TempDir, Broker, Broker) {
    let folder = tempfile::tempdir().unwrap();
    let start = async |name: &str| {
        let mut config = config(&store_in(folder.path()));
        config.node = Some(name.to_owned());
        Broker::started(config).await
    };
    let leader = start("one").await;
    leader.serving().await;
    let standby = start("two").await;
    ready(&standby, "standby").await;
    (folder, leader, standby)
}

async fn ready(broker: &Broker, role: &str) {
    until(async || (broker.get("/readyz").await == (200, json!({ "status": role }))).then_some(()))
        .await;
}

/// Both are stopped at once, as when an operator stops them or a host goes down.
#[tokio::test]
async fn a_leader_does_not_wait_for_a_standby_that_has_gone() {
    // A mistake would cost five seconds each time. A slow machine may take as long, but not every time.
    for _ in 0..3 {
        let (_folder, leader, standby) = pair().await;
        let begun = Instant::now();
        tokio::join!(leader.handle.stop(), standby.handle.stop());
        if begun.elapsed() < Duration::from_millis(4_500) {
            return;
        }
    }
    panic!("it waited for nobody, three times");
}

#[tokio::test]
async fn a_standby_answers_what_the_leader_does() {
    let (_folder, leader, standby) = pair().await;
    let job = json!({"id":"a","type":"t","payload":"x".repeat(100_000)});
    assert_eq!(standby.post("/v1/jobs", job.clone()).await.0, 201);
    assert_eq!(
        leader.post("/v1/jobs", job).await.1["jobs"][0]["status"],
        "duplicate"
    );
    let claimed = standby.claim().await;
    assert_eq!(claimed["payload"].as_str().unwrap().len(), 100_000);
    let done = json!({ "token": claimed["token"] });
    assert_eq!(standby.post("/v1/jobs/a/complete", done).await.0, 200);
    assert_eq!(leader.get("/v1/jobs/a").await.1["state"], "completed");
    let (_, stats) = standby.get("/v1/stats").await;
    assert_eq!(
        (&stats["node"], &stats["serving"]),
        (&json!("one"), &json!(true))
    );
    let mistake = standby.post("/v1/jobs", json!({"type":""})).await;
    problem(
        &mistake,
        StatusCode::UNPROCESSABLE_ENTITY,
        "invalid_field",
        Some("type"),
    );
    let (_, cluster) = standby.get("/v1/cluster").await;
    assert_eq!(cluster["leader"]["node"], "one");
    assert_eq!(cluster["nodes"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn long_polls_and_events_pass_through_a_standby() {
    let (_folder, leader, standby) = pair().await;
    let response = standby
        .request(Method::GET, "/v1/events")
        .send()
        .await
        .unwrap();
    let mut events = Stream::of(response);
    let claim = json!({"worker":"w","wait_ms":60_000});
    let (claimed, id) = tokio::join!(standby.post("/v1/jobs/claim", claim), leader.submit("t"));
    assert_eq!(claimed.1["jobs"][0]["id"], *id);
    assert_eq!(events.next().await.unwrap().0, "submitted");
    assert_eq!(events.next().await.unwrap().0, "claimed");
}

#[tokio::test]
async fn a_call_is_forwarded_once_at_most() {
    let (_folder, _leader, standby) = pair().await;
    let request = standby
        .request(Method::GET, "/v1/jobs")
        .header("tenure-forwarded", "1");
    let response = request.send().await.unwrap();
    assert_eq!(response.headers()["retry-after"], "1");
    let answer = (response.status().as_u16(), response.json().await.unwrap());
    problem(&answer, StatusCode::SERVICE_UNAVAILABLE, "no_leader", None);
}

#[tokio::test]
async fn a_standby_takes_over_and_has_everything() {
    let (_folder, leader, standby) = pair().await;
    let waiting = standby
        .request(Method::POST, "/v1/jobs/claim")
        .json(&json!({"worker":"w","types":["never"],"wait_ms":60_000}));
    let waiting = tokio::spawn(answered(waiting));
    let id = standby.submit("t").await;
    timeout(PATIENCE, leader.handle.stop()).await.unwrap();
    // Its leader stopped: it either got no job, or was told to ask again.
    let (status, answer) = waiting.await.unwrap();
    assert!(
        (status, &answer["jobs"]) == (200, &json!([])) || status == 503,
        "{status} {answer}"
    );
    timeout(PATIENCE, standby.serving()).await.unwrap();
    ready(&standby, "leader").await;
    assert_eq!(
        standby.get(&format!("/v1/jobs/{id}")).await.1["state"],
        "ready"
    );
    standby.submit("t").await;
    let (_, cluster) = standby.get("/v1/cluster").await;
    assert_eq!(
        (&cluster["leader"]["node"], &cluster["history"][0]["node"]),
        (&json!("two"), &json!("one"))
    );
}

#[tokio::test]
async fn a_worker_of_osqueue_goes_on_through_a_failover() {
    let (_folder, leader, standby) = pair().await;
    let job = json!({"payload":1,"type":"t"});
    let (_, submitted) = standby.post("/osqueue/v1/jobs", job).await;
    let worker = json!({"workerId":"w"});
    let (_, claimed) = leader.post("/osqueue/v1/jobs/claim", worker.clone()).await;
    assert_eq!(claimed["jobId"], submitted["jobId"]);
    timeout(PATIENCE, leader.handle.stop()).await.unwrap();
    timeout(PATIENCE, standby.serving()).await.unwrap();
    let path = format!("/osqueue/v1/jobs/{}", claimed["jobId"].as_str().unwrap());
    let heartbeat = standby
        .post(&format!("{path}/heartbeat"), worker.clone())
        .await;
    assert_eq!(heartbeat.0, 204);
    assert_eq!(
        standby.post(&format!("{path}/complete"), worker).await.0,
        204
    );
}

#[tokio::test]
async fn leadership_is_handed_over_by_a_call_to_any_server() {
    let (_folder, leader, standby) = pair().await;
    let (status, _) = standby.post("/v1/leader/resign", json!({})).await;
    assert_eq!(status, 202);
    timeout(PATIENCE, standby.serving()).await.unwrap();
    let id = standby.submit("t").await;
    // The old leader knows of the new one, and forwards.
    let path = format!("/v1/jobs/{id}");
    until(async || (leader.get(&path).await.0 == 200).then_some(())).await;
    // Back at once: a node that resigned is not a candidate for a while, but it takes a lease that is reserved for
    // it.
    let transfer = json!({"node":"one"});
    let (status, _) = leader.post("/v1/leader/transfer", transfer).await;
    assert_eq!(status, 202);
    timeout(PATIENCE, leader.serving()).await.unwrap();
    assert_eq!(leader.get(&path).await.0, 200);
}

#[tokio::test]
async fn a_standby_whose_leader_cannot_be_reached_says_so() {
    let folder = tempfile::tempdir().unwrap();
    // A port without a listener: it was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nowhere = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    let mut first = config(&store_in(folder.path()));
    first.advertise = Some(nowhere);
    let leader = Broker::started(first).await;
    leader.serving().await;
    let standby = impatient(&folder, |_| {}).await;
    let answer = standby.post("/v1/jobs", json!({"type":"t"})).await;
    problem(&answer, StatusCode::SERVICE_UNAVAILABLE, "no_leader", None);
    not_ready(&standby, "the leader does not answer").await;
}

/// A standby that knows its leader, and holds calls only for a moment.
async fn impatient(folder: &TempDir, change: impl FnOnce(&mut Config)) -> Broker {
    let mut second = config(&store_in(folder.path()));
    second.limits.hold_timeout = Duration::from_millis(300);
    change(&mut second);
    let standby = Broker::started(second).await;
    until(async || standby.handle.queue().election().leader()).await;
    standby
}

async fn not_ready(broker: &Broker, reason: &str) {
    let answer = json!({ "status": "not_ready", "reason": reason });
    assert_eq!(broker.get("/readyz").await, (503, answer));
}

#[tokio::test]
async fn a_standby_whose_leader_has_its_own_address_is_not_ready() {
    let folder = tempfile::tempdir().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    // As after a restart: the leader that is known is this server as it was before.
    let mut first = config(&store_in(folder.path()));
    first.node = Some("one".to_owned());
    first.advertise = Some(format!("http://{address}"));
    let leader = Broker::started(first).await;
    leader.serving().await;
    let standby = impatient(&folder, |config| config.listen = address).await;
    not_ready(&standby, "the leader does not serve at the moment").await;
    let answer = standby.post("/v1/jobs", json!({"type":"t"})).await;
    problem(&answer, StatusCode::SERVICE_UNAVAILABLE, "no_leader", None);
}

#[tokio::test]
async fn a_standby_whose_leader_is_no_server_is_not_ready() {
    let folder = tempfile::tempdir().unwrap();
    let options = tenure::NodeOptions::new(store_in(folder.path()), "default");
    // A program that embeds the queue does not serve others.
    let program = tenure::Node::start(options).await.unwrap();
    let queue = Queue::open(&program, Options::default()).await.unwrap();
    queue.serving().await.unwrap();
    let standby = impatient(&folder, |_| {}).await;
    let reason = "the leader has no URL that this broker can use";
    not_ready(&standby, reason).await;
}

/// Submits jobs one after the other until it is told to stop, and returns the answers that were not successful.
async fn submitting(broker: &Broker, name: &str, is_over: &AtomicBool) -> Vec<(u16, Value)> {
    let mut refused = Vec::new();
    for number in 0.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        let job = json!({"id": format!("{name}-{number}"), "type": "t"});
        let request = broker.request(Method::POST, "/v1/jobs").json(&job);
        match request.send().await {
            Ok(response) if response.status() == StatusCode::CREATED => {}
            Ok(response) => {
                let status = response.status().as_u16();
                refused.push((status, response.json().await.unwrap_or_default()));
            }
            Err(error) => refused.push((0, json!(error.to_string()))),
        }
    }
    refused
}

#[tokio::test]
async fn a_hand_over_costs_no_caller_an_error() {
    let (_folder, one, two) = pair().await;
    let is_over = AtomicBool::new(false);
    let hand_over = async {
        for (to, node) in [(&two, "two"), (&one, "one"), (&two, "two")] {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let transfer = json!({ "node": node });
            let (status, answer) = one.post("/v1/leader/transfer", transfer).await;
            assert_eq!(status, 202, "{answer}");
            timeout(PATIENCE, to.serving()).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        is_over.store(true, Ordering::Relaxed);
    };
    let (first, second, third, fourth, ()) = tokio::join!(
        submitting(&one, "a", &is_over),
        submitting(&two, "b", &is_over),
        submitting(&one, "c", &is_over),
        submitting(&two, "d", &is_over),
        hand_over
    );
    let refused = [first, second, third, fourth].concat();
    assert!(refused.is_empty(), "{refused:?}");
}

#[tokio::test]
async fn a_leader_that_stops_costs_no_caller_an_error() {
    let (_folder, leader, standby) = pair().await;
    let is_over = AtomicBool::new(false);
    let waiting = standby.request(Method::POST, "/v1/jobs/claim");
    let waiting = answered(waiting.json(&json!({"worker":"w","types":["never"],"wait_ms":60_000})));
    let stop = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        timeout(PATIENCE, leader.handle.stop()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        is_over.store(true, Ordering::Relaxed);
    };
    let (first, second, (status, answer), ()) = tokio::join!(
        submitting(&standby, "a", &is_over),
        submitting(&standby, "b", &is_over),
        waiting,
        stop
    );
    assert!(
        first.is_empty() && second.is_empty(),
        "{first:?} {second:?}"
    );
    assert_eq!((status, &answer["jobs"]), (200, &json!([])));
    ready(&standby, "leader").await;
}

/// A client of the leader gets answers from it to the end: calls that it can no longer do, it forwards.
#[tokio::test]
async fn a_leader_that_stops_leaves_nobody_in_doubt() {
    let (_folder, leader, standby) = pair().await;
    let (http, url) = (leader.http.clone(), format!("{}/v1/jobs", leader.url));
    let submitting = |name: usize| {
        let (http, url) = (http.clone(), url.clone());
        async move {
            let mut done = 0;
            for number in 0.. {
                let job = json!({"id": format!("{name}-{number}"), "type": "t"});
                // A refused connection means that it has stopped.
                let Ok(response) = http.post(&url).json(&job).send().await else {
                    break;
                };
                let status = response.status();
                let text = response.text().await.unwrap_or_default();
                // It waits only seconds for the hand-over; on a busier machine, callers are told that there is no
                // leader.
                let is_told = text.contains(r#""code":"no_leader""#);
                assert!(status == StatusCode::CREATED || is_told, "{status}: {text}");
                done += usize::from(status == StatusCode::CREATED);
            }
            done
        }
    };
    let submitting = futures_util::future::join_all((0..16).map(submitting));
    let stop = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        timeout(PATIENCE, leader.handle.stop()).await.unwrap();
    };
    let (done, ()) = tokio::join!(submitting, stop);
    assert!(done.iter().all(|&done| done > 0), "{done:?}");
    ready(&standby, "leader").await;
}

#[tokio::test]
async fn calls_are_held_in_bounded_number_and_time() {
    let folder = tempfile::tempdir().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nowhere = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    let mut first = config(&store_in(folder.path()));
    first.advertise = Some(nowhere);
    let leader = Broker::started(first).await;
    leader.serving().await;
    let hold = Duration::from_secs(3);
    let standby = impatient(&folder, |config| {
        config.limits.hold_timeout = hold;
        config.limits.holds_max = 2;
    })
    .await;
    let started = Instant::now();
    let calls = (0..20).map(async |_| {
        let answer = standby.post("/v1/jobs", json!({"type":"t"})).await;
        problem(&answer, StatusCode::SERVICE_UNAVAILABLE, "no_leader", None);
        started.elapsed() >= hold
    });
    let held = futures_util::future::join_all(calls).await;
    assert_eq!(held.iter().filter(|held| **held).count(), 2);
    // A caller that waits for less is answered sooner.
    let hasty = standby.request(Method::POST, "/v1/jobs");
    let hasty = hasty.json(&json!({"type":"t"})).header("prefer", "wait=1");
    let started = Instant::now();
    assert_eq!(answered(hasty).await.0, 503);
    let took = started.elapsed();
    assert!(took >= Duration::from_secs(1) && took < hold, "{took:?}");
}

/// A session that does not exist yet is not a lost one.
#[tokio::test]
async fn a_broker_that_has_just_started_holds_calls() {
    let folder = tempfile::tempdir().unwrap();
    let leader = Broker::started(config(&store_in(folder.path()))).await;
    leader.serving().await;
    for number in 0..5 {
        let mut second = config(&store_in(folder.path()));
        second.node = Some(format!("node-{number}"));
        second.limits.hold_timeout = PATIENCE;
        let standby = Broker::started(second).await;
        let calls = (0..4).map(|_| standby.submit("t"));
        futures_util::future::join_all(calls).await;
        standby.handle.stop().await;
    }
}

#[tokio::test]
async fn a_standby_without_tokens_has_a_dashboard_that_works() {
    let (_folder, _leader, standby) = pair().await;
    let pause = standby.request(Method::POST, "/v1/queues/q/pause");
    let own = pause.try_clone().unwrap();
    let own = own.header("origin", &standby.url);
    let own = own.header("sec-fetch-site", "same-origin");
    assert_eq!(answered(own).await.0, 200);
    let foreign = answered(pause.header("origin", "https://evil.example")).await;
    problem(&foreign, StatusCode::FORBIDDEN, "forbidden", None);
}

#[tokio::test]
async fn a_change_whose_answer_is_lost_may_have_been_done() {
    let folder = tempfile::tempdir().unwrap();
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut first = config(&store_in(folder.path()));
    first.advertise = Some(format!("http://{}", mute.local_addr().unwrap()));
    // A server that reads every call, and closes the connection instead of answering.
    let calls = Arc::new(Mutex::new(Vec::new()));
    let heard = calls.clone();
    tokio::spawn(async move {
        while let Ok((mut call, _)) = mute.accept().await {
            let mut head = [0; 1024];
            let length = call.read(&mut head).await.unwrap_or(0);
            let head = String::from_utf8_lossy(&head[..length]).into_owned();
            heard.lock().unwrap().push(head);
        }
    });
    let leader = Broker::started(first).await;
    leader.serving().await;
    let standby = impatient(&folder, |_| {}).await;
    let change = standby.post("/v1/queues/q/pause", json!({})).await;
    problem(
        &change,
        StatusCode::SERVICE_UNAVAILABLE,
        "unknown_outcome",
        None,
    );
    // Sent only once, since it may have been done; and marked, so that the other does not forward it again.
    let changes = {
        let calls = calls.lock().unwrap();
        let changes = calls
            .iter()
            .filter(|call| call.starts_with("POST /v1/queues/q/pause "));
        changes.cloned().collect::<Vec<_>>()
    };
    assert_eq!(changes.len(), 1, "{changes:?}");
    assert!(changes[0].contains("\r\ntenure-forwarded: "), "{changes:?}");
    // A submit may be sent again, but this leader does not report that it serves.
    let submit = standby.post("/v1/jobs", json!({"type":"t"})).await;
    let unavailable = StatusCode::SERVICE_UNAVAILABLE;
    problem(&submit, unavailable, "unknown_outcome", None);
    let look = standby.get("/v1/jobs/a").await;
    problem(&look, StatusCode::SERVICE_UNAVAILABLE, "no_leader", None);
}

#[tokio::test]
async fn what_keeps_everybody_from_leading_is_named() {
    let emptied = [
        (
            "elections/tenure.queue",
            "default/elections/tenure.queue is damaged",
        ),
        (
            "fences/tenure.queue",
            "default/fences/tenure.queue is damaged",
        ),
        ("queue/segments", "is missing or cut short"),
    ];
    for (path, named) in emptied {
        let folder = tempfile::tempdir().unwrap();
        let first = Broker::started(config(&store_in(folder.path()))).await;
        first.serving().await;
        first.submit("t").await;
        first.handle.stop().await;
        let path = folder.path().join("default").join(path);
        if path.is_dir() {
            for entry in std::fs::read_dir(&path).unwrap() {
                std::fs::write(entry.unwrap().path(), "").unwrap();
            }
        } else {
            std::fs::write(&path, "").unwrap();
        }
        let mut second = config(&store_in(folder.path()));
        second.limits.hold_timeout = Duration::from_millis(300);
        let broker = Broker::started(second).await;
        until(async || {
            let (status, answer) = broker.get("/readyz").await;
            let reason = answer["reason"].as_str().unwrap();
            assert_eq!(status, 503, "{answer}");
            reason.contains(named).then_some(())
        })
        .await;
        until(async || {
            let answer = broker.post("/v1/jobs", json!({"type":"t"})).await;
            problem(&answer, StatusCode::SERVICE_UNAVAILABLE, "no_leader", None);
            let detail = answer.1["detail"].as_str().unwrap();
            detail.contains(named).then_some(())
        })
        .await;
        broker.handle.stop().await;
    }
}

#[tokio::test]
async fn a_call_that_is_held_is_told_that_its_broker_stops() {
    let folder = tempfile::tempdir().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nowhere = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    let mut first = config(&store_in(folder.path()));
    first.advertise = Some(nowhere);
    let leader = Broker::started(first).await;
    leader.serving().await;
    let standby = impatient(&folder, |config| {
        config.limits.hold_timeout = Duration::from_secs(60);
    })
    .await;
    let held = standby.request(Method::POST, "/v1/jobs");
    let held = tokio::spawn(answered(held.json(&json!({"type":"t"}))));
    until(async || {
        let page = standby.request(Method::GET, "/metrics").send().await;
        let page = page.unwrap().text().await.unwrap();
        page.contains("\ntenure_http_requests_held 1\n")
            .then_some(())
    })
    .await;
    assert!(!held.is_finished());
    standby.handle.stop().await;
    let answer = timeout(PATIENCE, held).await.unwrap().unwrap();
    problem(&answer, StatusCode::SERVICE_UNAVAILABLE, "no_leader", None);
    let detail = answer.1["detail"].as_str().unwrap();
    assert!(detail.contains("this broker is stopping"), "{detail}");
}

/// A leader and a standby, with a proxy between them that can lose answers.
async fn behind_proxy() -> (TempDir, Broker, HttpProxy, Broker) {
    let folder = tempfile::tempdir().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let proxy = HttpProxy::start(address).await;
    proxy.count_posts();
    let mut first = config(&store_in(folder.path()));
    first.listen = address;
    first.advertise = Some(format!("http://{}", proxy.address()));
    let leader = Broker::started(first).await;
    leader.serving().await;
    let standby = Broker::started(config(&store_in(folder.path()))).await;
    ready(&standby, "standby").await;
    (folder, leader, proxy, standby)
}

#[tokio::test]
async fn a_submit_whose_answer_is_lost_is_done_once_and_was_created() {
    let (_folder, leader, proxy, standby) = behind_proxy().await;
    proxy.fail_next(Fault::LoseAnswer);
    let (status, answer) = standby.post("/v1/jobs", json!({"type":"t"})).await;
    assert_eq!(status, 201, "{answer}");
    assert_eq!(answer["jobs"][0]["status"], "created", "{answer}");
    assert_eq!(proxy.puts(), 2, "it was sent again");
    // A batch, of which one has an id: that one is a duplicate, as it would be if its caller had sent it again.
    proxy.fail_next(Fault::LoseAnswer);
    let batch = json!({"jobs":[{"type":"t"},{"type":"t","id":"own"}]});
    let sent = standby.request(Method::POST, "/v1/jobs").json(&batch);
    let response = sent.send().await.unwrap();
    assert_eq!(response.status(), 201);
    assert_eq!(response.headers()["tenure-repeated"], "1");
    let answer: Value = response.json().await.unwrap();
    let statuses = [&answer["jobs"][0]["status"], &answer["jobs"][1]["status"]];
    assert_eq!(statuses, ["created", "duplicate"], "{answer}");
    let (_, listed) = leader.get("/v1/jobs").await;
    assert_eq!(listed["jobs"].as_array().unwrap().len(), 3, "{listed}");
    // Calls that were not sent again are not marked.
    let sent = standby.request(Method::POST, "/v1/jobs");
    let response = sent.json(&json!({"type":"t"})).send().await.unwrap();
    assert!(!response.headers().contains_key("tenure-repeated"));
}

/// osqueue's clients cannot determine the outcome of a submit, nor repeat it safely.
#[tokio::test]
async fn a_submit_of_osqueue_whose_answer_is_lost_is_done_once() {
    let (_folder, leader, proxy, standby) = behind_proxy().await;
    // "MQ==" is 1, as bytes of JSON.
    for (number, (path, payload)) in [
        ("/osqueue/v1/jobs", json!(1)),
        ("/osqueue/osqueue.v1.QueueService/SubmitJob", json!("MQ==")),
    ]
    .into_iter()
    .enumerate()
    {
        let sent = proxy.puts();
        proxy.fail_next(Fault::LoseAnswer);
        let (status, answer) = standby.post(path, json!({ "payload": payload })).await;
        assert_eq!(status, 200, "{answer}");
        assert_eq!(proxy.puts(), sent + 2, "it was sent again");
        let (_, listed) = leader.get("/osqueue/v1/jobs").await;
        let jobs = listed["jobs"].as_array().unwrap();
        assert_eq!(jobs.len(), number + 1, "{listed}");
        assert_eq!(jobs[number]["id"], answer["jobId"], "{listed}");
    }
    // A name identifies one job.
    let named = async |payload: u32| {
        let request = leader.request(Method::POST, "/osqueue/v1/jobs");
        let request = request.header("idempotency-key", "mine");
        answered(request.json(&json!({ "payload": payload }))).await
    };
    assert_eq!(named(1).await, (200, json!({"jobId": "mine"})));
    assert_eq!(named(1).await.0, 200);
    assert_eq!(named(2).await.0, 409);
}

#[tokio::test]
async fn a_claim_whose_answer_is_lost_costs_no_attempt() {
    let (_folder, leader, proxy, standby) = behind_proxy().await;
    for path in ["/v1/jobs/claim", "/osqueue/v1/jobs/claim"] {
        let job = json!({"type":"t","max_attempts":1});
        let (_, submitted) = leader.post("/v1/jobs", job).await;
        let id = &submitted["jobs"][0]["id"];
        leader.submit("t").await;
        proxy.fail_next(Fault::LoseAnswer);
        let osqueue = path.starts_with("/osqueue");
        let worker = if osqueue { "workerId" } else { "worker" };
        let (status, answer) = standby.post(path, json!({ worker: "w" })).await;
        let claimed = if osqueue {
            &answer["jobId"]
        } else {
            &answer["jobs"][0]["id"]
        };
        assert_eq!((status, claimed), (200, id), "{answer}");
        let (_, stats) = leader.get("/v1/stats").await;
        assert_eq!(stats["counts"]["running"], 1, "{stats}");
        let path = format!("/osqueue/v1/jobs/{}/complete", id.as_str().unwrap());
        let done = leader.post(&path, json!({"workerId":"w"})).await;
        assert_eq!(done.0, 204, "{done:?}");
        let rest = leader.claim().await;
        let done = json!({ "token": rest["token"] });
        let path = format!("/v1/jobs/{}/complete", rest["id"].as_str().unwrap());
        assert_eq!(leader.post(&path, done).await.0, 200);
    }
}

#[tokio::test]
async fn a_claim_with_a_key_is_the_same_claim_to_whoever_is_asked() {
    let (_folder, leader, standby) = pair().await;
    leader.submit("t").await;
    leader.submit("t").await;
    let claim = async |broker: &Broker, key: &str| {
        let request = broker.request(Method::POST, "/v1/jobs/claim");
        let request = request.header("idempotency-key", key);
        answered(request.json(&json!({"worker":"w"}))).await
    };
    let (_, first) = claim(&leader, "one").await;
    assert_eq!(claim(&standby, "\"one\"").await, (200, first.clone()));
    timeout(PATIENCE, leader.handle.stop()).await.unwrap();
    timeout(PATIENCE, standby.serving()).await.unwrap();
    assert_eq!(claim(&standby, "one").await, (200, first.clone()));
    let (_, second) = claim(&standby, "two").await;
    assert_ne!(first["jobs"][0]["id"], second["jobs"][0]["id"]);
    let refused = claim(&standby, "").await;
    let field = Some("Idempotency-Key");
    problem(
        &refused,
        StatusCode::UNPROCESSABLE_ENTITY,
        "invalid_field",
        field,
    );
}

#[tokio::test]
async fn an_end_whose_answer_is_lost_is_answered_as_if_it_had_not_been() {
    let (_folder, leader, proxy, standby) = behind_proxy().await;
    // The first or the second sending does it.
    for fault in [Fault::LoseAnswer, Fault::LoseRequest] {
        for (end, state, attempt) in [
            ("complete", "completed", 1),
            ("fail", "dead", 1),
            ("release", "ready", 0),
        ] {
            let job = json!({"type":"t","max_attempts":1});
            let (_, submitted) = leader.post("/v1/jobs", job).await;
            let id = submitted["jobs"][0]["id"].as_str().unwrap().to_owned();
            let claimed = leader.claim().await;
            assert_eq!(claimed["id"], id);
            proxy.fail_next(fault);
            let mut claim = json!({"id": id, "token": claimed["token"]});
            if end == "complete" {
                claim["result"] = json!({"n": 1});
            }
            let ended = json!({"claims": [claim.clone()]});
            let path = format!("/v1/jobs/{end}");
            let answer = standby.post(&path, ended.clone()).await;
            let done = (200, json!({"claims":[{"id": id, "status":"ok"}]}));
            assert_eq!(answer, done, "{end} after {fault:?}");
            // A repeat gets the same answer.
            assert_eq!(leader.post(&path, ended).await, done, "{end}");
            let (_, job) = leader.get(&format!("/v1/jobs/{id}")).await;
            assert_eq!(job["state"], state, "{job}");
            assert_eq!(job["attempt"], attempt, "{job}");
            // The next job is claimed next.
            leader
                .post(&format!("/v1/jobs/{id}/cancel"), json!({}))
                .await;
        }
    }
    // One that was ended in another way was not ended by this call, and is told so.
    leader.submit("t").await;
    let claimed = leader.claim().await;
    let id = claimed["id"].as_str().unwrap();
    let held = json!({ "token": claimed["token"] });
    let path = |end: &str| format!("/v1/jobs/{id}/{end}");
    let released = leader.post(&path("release"), held.clone()).await;
    assert_eq!(released.0, 200, "{released:?}");
    proxy.fail_next(Fault::LoseAnswer);
    let answer = standby.post(&path("complete"), held.clone()).await;
    problem(&answer, StatusCode::CONFLICT, "lost", None);
    let reason = json!({"code": "ended", "ended_as": "released"});
    assert_eq!(answer.1["reason"], reason, "{answer:?}");
    // Another claim of the job has ended since: the outcome cannot be determined, and repeating does not help.
    let later = json!({ "token": leader.claim().await["token"] });
    let completed = leader.post(&path("complete"), later).await;
    assert_eq!(completed.0, 200, "{completed:?}");
    proxy.fail_next(Fault::LoseAnswer);
    let answer = standby.post(&path("release"), held).await;
    let unavailable = StatusCode::SERVICE_UNAVAILABLE;
    problem(&answer, unavailable, "unknown_outcome", None);
    let hint = answer.1["hint"].as_str().unwrap();
    assert!(hint.starts_with("look at the job"), "{hint}");
    // A repeated heartbeat counts once.
    leader.submit("t").await;
    let claimed = leader.claim().await;
    let path = format!("/v1/jobs/{}/heartbeat", claimed["id"].as_str().unwrap());
    proxy.fail_next(Fault::LoseAnswer);
    let beat = json!({ "token": claimed["token"] });
    let answer = standby.post(&path, beat).await;
    assert_eq!(answer.0, 200, "{answer:?}");
}

#[tokio::test]
async fn a_claim_with_ends_whose_answer_is_lost_is_done_once() {
    let (_folder, leader, proxy, standby) = behind_proxy().await;
    // The first or the second sending does it.
    for fault in [Fault::LoseAnswer, Fault::LoseRequest] {
        let job = json!({"type":"t","max_attempts":1});
        let jobs: Vec<&Value> = (0..3).map(|_| &job).collect();
        leader.post("/v1/jobs", json!({ "jobs": jobs })).await;
        let (_, first) = leader
            .post("/v1/jobs/claim", json!({"worker":"w","max":2}))
            .await;
        let held = |job: &Value| json!({"id": job["id"], "token": job["token"]});
        let (done, other) = (held(&first["jobs"][0]), held(&first["jobs"][1]));
        // Another worker has claimed it, and ended it.
        assert_eq!(
            leader
                .post("/v1/jobs/release", json!({"claims":[other]}))
                .await
                .0,
            200
        );
        let second = leader.claim().await;
        assert_eq!(second["id"], other["id"]);
        let completed = json!({"claims":[held(&second)]});
        assert_eq!(leader.post("/v1/jobs/complete", completed).await.0, 200);
        proxy.fail_next(fault);
        let claim = json!({"worker":"w","max":5,"ends":{"completed":[done],"failed":[other]}});
        let (status, answer) = standby.post("/v1/jobs/claim", claim).await;
        assert_eq!(status, 200, "{fault:?}: {answer}");
        let done = json!([{"id": done["id"], "status": "ok"}]);
        assert_eq!(answer["ends"]["completed"], done, "{fault:?}: {answer}");
        // Whether the first sending did this one cannot be determined, and the answer says so.
        let lost = &answer["ends"]["failed"][0];
        assert_eq!(lost["status"], "lost", "{answer}");
        let code = &lost["problem"]["code"];
        assert_eq!(code, "unknown_outcome", "{fault:?}: {answer}");
        let jobs = answer["jobs"].as_array().unwrap();
        assert_eq!(
            (jobs.len(), &jobs[0]["attempt"]),
            (1, &json!(1)),
            "{answer}"
        );
        let (_, stats) = leader.get("/v1/stats").await;
        assert_eq!(stats["counts"]["running"], 1, "{stats}");
        let completed = json!({"claims":[held(&jobs[0])]});
        assert_eq!(leader.post("/v1/jobs/complete", completed).await.0, 200);
    }
}

/// A stopped leader accepts calls, answers none, and leads until its ttl is over.
#[tokio::test]
async fn a_leader_that_hangs_is_waited_for_as_long_as_calls_are_held() {
    let folder = tempfile::tempdir().unwrap();
    let hung = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut first = config(&store_in(folder.path()));
    first.advertise = Some(format!("http://{}", hung.local_addr().unwrap()));
    tokio::spawn(async move {
        let mut taken = Vec::new();
        while let Ok((call, _)) = hung.accept().await {
            taken.push(call);
        }
    });
    let leader = Broker::started(first).await;
    leader.serving().await;
    let standby = impatient(&folder, |config| {
        config.limits.hold_timeout = Duration::from_secs(3);
    })
    .await;
    let call = |method: Method, path: &str, body: Value| {
        let call = standby.request(method, path).json(&body);
        // Its own patience is longer than that.
        async move {
            let started = Instant::now();
            let answer = timeout(Duration::from_secs(14), answered(call)).await;
            (answer.expect("an answer in time"), started.elapsed())
        }
    };
    let claim = json!({"worker":"w","wait_ms":3000});
    let (read, submit, pause, claim) = tokio::join!(
        call(Method::GET, "/v1/jobs/a", Value::Null),
        call(Method::POST, "/v1/jobs", json!({"type":"t"})),
        call(Method::POST, "/v1/queues/q/pause", json!({})),
        call(Method::POST, "/v1/jobs/claim", claim),
    );
    let unavailable = StatusCode::SERVICE_UNAVAILABLE;
    for ((answer, took), code, hint, least) in [
        (read, "no_leader", "", 3),
        (submit, "unknown_outcome", "the same id", 3),
        (pause, "unknown_outcome", "look whether it was done", 3),
        // It was going to wait for a job.
        (claim, "unknown_outcome", "Idempotency-Key", 6),
    ] {
        problem(&answer, unavailable, code, None);
        assert!(took >= Duration::from_secs(least), "{answer:?} {took:?}");
        let told = answer.1["hint"].as_str().unwrap_or_default();
        assert!(told.contains(hint), "{answer:?}");
    }
}

/// Two copies of one claim must not displace each other for ever: the earlier one gets an unknown outcome, the
/// standby sends it again, and it displaces the later one.
#[tokio::test]
async fn of_two_copies_of_a_waiting_claim_the_later_one_gets_the_jobs() {
    let (_folder, leader, standby) = pair().await;
    let ask = |broker: &Broker| {
        let request = broker.request(Method::POST, "/v1/jobs/claim");
        let request = request.header("idempotency-key", "one");
        let claim = json!({"worker":"w","wait_ms":60_000});
        tokio::spawn(answered(request.json(&claim)))
    };
    // The request that asks is one of them.
    let one_waits = async || {
        let page = leader.request(Method::GET, "/metrics").send().await;
        let page = page.unwrap().text().await.unwrap();
        page.contains("\ntenure_http_requests_in_flight 2\n")
            .then_some(())
    };
    let earlier = ask(&standby);
    until(one_waits).await;
    let later = ask(&leader);
    until(one_waits).await;
    // It is answered at once, and clearly: it has got no job.
    let told = timeout(PATIENCE, earlier).await.unwrap().unwrap();
    assert_eq!(told, (200, json!({"jobs": []})));
    assert!(!later.is_finished());
    let id = leader.submit("t").await;
    let (status, answer) = later.await.unwrap();
    assert_eq!((status, &answer["jobs"][0]["id"]), (200, &json!(id)));
    assert_eq!(answer["jobs"][0]["attempt"], 1);
}
