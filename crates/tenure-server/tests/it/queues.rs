//! Queues, schedules, settings.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{Broker, answered, problem, until};

#[tokio::test]
async fn limits_that_are_not_named_stay_as_they_are() {
    let broker = Broker::start().await;
    let change = async |body: Value| {
        let request = broker.request(Method::PATCH, "/v1/queues/mail");
        let (status, queue) = answered(request.json(&body)).await;
        assert_eq!(status, 200, "{queue}");
        queue["options"].clone()
    };
    let rate = json!({"jobs": 5, "period_ms": 1_000});
    assert_eq!(
        change(json!({"concurrency": 2})).await,
        json!({"concurrency": 2})
    );
    assert_eq!(
        change(json!({"rate": rate})).await,
        json!({"concurrency": 2, "rate": rate})
    );
    assert_eq!(
        change(json!({})).await,
        json!({"concurrency": 2, "rate": rate})
    );
    assert_eq!(
        change(json!({"concurrency": null})).await,
        json!({"rate": rate})
    );
    assert_eq!(change(json!({"rate": null})).await, json!({}));
}

#[tokio::test]
async fn changes_of_different_limits_do_not_undo_each_other() {
    let broker = Broker::start().await;
    let change = |body: Value| {
        let request = broker.request(Method::PATCH, "/v1/queues/mail").json(&body);
        async move {
            let (status, answer) = answered(request).await;
            assert_eq!(status, 200, "{answer}");
        }
    };
    for number in 1..=100_u32 {
        let rate = json!({"jobs": number, "period_ms": 1_000});
        tokio::join!(
            change(json!({"concurrency": number})),
            change(json!({"rate": rate})),
        );
        let (_, queue) = broker.get("/v1/queues/mail").await;
        assert_eq!(
            queue["options"],
            json!({"concurrency": number, "rate": rate})
        );
    }
}

#[tokio::test]
async fn a_queue_is_paused_limited_and_resumed() {
    let broker = Broker::start().await;
    problem(
        &broker.get("/v1/queues/mail").await,
        StatusCode::NOT_FOUND,
        "not_found",
        Some("queue"),
    );
    let jobs = json!({"jobs":[{"type":"t","queue":"mail"},{"type":"t","queue":"mail"}]});
    broker.post("/v1/jobs", jobs).await;
    let (status, queue) = broker.post("/v1/queues/mail/pause", json!({})).await;
    assert_eq!((status, &queue["paused"]), (200, &json!(true)));
    assert_eq!(broker.claim().await, Value::Null);
    let (status, queue) = broker
        .put("/v1/queues/mail", json!({"concurrency":1}))
        .await;
    assert_eq!(
        (status, &queue["options"]),
        (200, &json!({"concurrency":1}))
    );
    let (_, queue) = broker.post("/v1/queues/mail/resume", json!({})).await;
    assert_eq!(
        (&queue["paused"], &queue["counts"]["ready"]),
        (&json!(false), &json!(2))
    );
    assert!(queue["oldest_ready_at"].is_u64(), "{queue}");
    assert_ne!(broker.claim().await, Value::Null);
    assert_eq!(broker.claim().await, Value::Null, "one at a time");
    let (_, queues) = broker.get("/v1/queues").await;
    assert_eq!(queues["queues"].as_array().unwrap().len(), 1);
    let (_, one) = broker.get("/v1/queues/mail").await;
    assert_eq!(one["counts"]["running"], 1);
    let (status, fresh) = broker.post("/v1/queues/new/resume", json!({})).await;
    assert_eq!((status, &fresh["name"]), (200, &json!("new")));
}

#[tokio::test]
async fn a_schedule_is_set_shown_and_deleted() {
    let broker = Broker::start().await;
    let spec = json!({"cron":"0 3 * * *","timezone":"Europe/Berlin","job":{"type":"backup"}});
    let (status, schedule) = broker.put("/v1/schedules/nightly", spec).await;
    assert_eq!(status, 200, "{schedule}");
    assert_eq!(
        (&schedule["name"], &schedule["missed"]),
        (&json!("nightly"), &json!("once"))
    );
    assert!(
        schedule["next_at"].is_u64() && schedule["last_at"].is_null(),
        "{schedule}"
    );
    assert_eq!(
        broker.get("/v1/schedules/nightly").await,
        (200, schedule.clone())
    );
    let (_, all) = broker.get("/v1/schedules").await;
    assert_eq!(all["schedules"], json!([schedule]));
    assert_eq!(broker.delete("/v1/schedules/nightly").await.0, 204);
    let gone = broker.delete("/v1/schedules/nightly").await;
    problem(&gone, StatusCode::NOT_FOUND, "not_found", Some("name"));
}

#[tokio::test]
async fn a_schedule_is_paused_and_resumed() {
    let broker = Broker::start().await;
    let typo = broker.post("/v1/schedules/typo/pause", json!({})).await;
    problem(&typo, StatusCode::NOT_FOUND, "not_found", Some("name"));
    assert_eq!(typo.1["detail"], "there is no schedule typo");
    let spec = json!({"cron":"* * * * * *","job":{"type":"tick"}});
    broker.put("/v1/schedules/seconds", spec.clone()).await;
    let claim = json!({"worker":"w","types":["tick"],"wait_ms":60_000});
    broker.post("/v1/jobs/claim", claim.clone()).await;
    let (status, paused) = broker.post("/v1/schedules/seconds/pause", json!({})).await;
    assert_eq!((status, &paused["paused"]), (200, &json!(true)));
    assert!(paused["next_at"].is_null(), "{paused}");
    // As when a deployment sets it again.
    let (_, set) = broker.put("/v1/schedules/seconds", spec).await;
    assert_eq!(set, paused);
    assert_eq!(broker.get("/v1/schedules/seconds").await, (200, paused));
    while broker.claim().await != Value::Null {}
    let (_, before) = broker.get("/v1/time").await;
    let (status, resumed) = broker.post("/v1/schedules/seconds/resume", json!({})).await;
    assert_eq!((status, &resumed["paused"]), (200, &json!(false)));
    assert!(
        resumed["next_at"].as_u64() > before["now_ms"].as_u64(),
        "{resumed}"
    );
    let (_, claimed) = broker.post("/v1/jobs/claim", claim).await;
    assert_eq!(claimed["jobs"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_schedule_fires_jobs() {
    let broker = Broker::start().await;
    let spec = json!({"cron":"* * * * * *","job":{"type":"tick"}});
    assert_eq!(broker.put("/v1/schedules/seconds", spec).await.0, 200);
    let claim = json!({"worker":"w","types":["tick"],"wait_ms":60_000});
    let (_, claimed) = broker.post("/v1/jobs/claim", claim).await;
    let id = claimed["jobs"][0]["id"].as_str().unwrap();
    assert!(id.starts_with("schedule:seconds@"), "{id}");
}

#[tokio::test]
async fn settings_are_set_and_shown() {
    let broker = Broker::start().await;
    let (_, settings) = broker.get("/v1/settings").await;
    assert_eq!(settings["jobs_max"], 10_000_000);
    assert_eq!(settings["ids"]["age_ms"], 3_600_000);
    let new = json!({"completed":{"count":5},"jobs_max":100});
    let (status, settings) = broker.put("/v1/settings", new).await;
    assert_eq!((status, &settings["completed"]), (200, &json!({"count":5})));
    assert_eq!(broker.get("/v1/settings").await.1, settings);
    let none = broker.put("/v1/settings", json!({"jobs_max":0})).await;
    problem(
        &none,
        StatusCode::UNPROCESSABLE_ENTITY,
        "invalid_field",
        Some("jobs_max"),
    );
}

#[tokio::test]
async fn queues_and_schedules_come_in_pages_and_the_numbers_of_all_at_once() {
    let broker = Broker::start().await;
    for hundred in 0..12 {
        let jobs =
            (0..100).map(|each| json!({"type":"t","queue":format!("q-{hundred:02}{each:02}")}));
        let jobs = json!({"jobs": jobs.collect::<Vec<_>>()});
        assert_eq!(broker.post("/v1/jobs", jobs).await.0, 201);
    }
    let (mut names, mut after) = (Vec::new(), String::new());
    for length in [500, 500, 200] {
        let (status, page) = broker.get(&format!("/v1/queues?limit=500{after}")).await;
        assert_eq!(status, 200, "{page}");
        let queues = page["queues"].as_array().unwrap();
        assert_eq!(queues.len(), length);
        assert!(queues[0]["oldest_ready_at"].is_u64(), "{}", queues[0]);
        names.extend(queues.iter().map(|queue| queue["name"].to_string()));
        after = match page["next"].as_str() {
            Some(next) => format!("&after={next}"),
            None => String::new(),
        };
    }
    assert_eq!(after, "", "the last page has no next");
    assert!(names.is_sorted() && names.len() == 1_200);
    let (_, first) = broker.get("/v1/queues").await;
    assert_eq!(first["queues"].as_array().unwrap().len(), 1_000);
    assert_eq!(first["next"], "q-0999");
    let (_, stats) = broker.get("/v1/stats").await;
    assert_eq!(
        (&stats["counts"]["ready"], &stats["queues_total"]),
        (&json!(1_200), &json!(1_200))
    );
    assert_eq!(stats["queues"].as_array().unwrap().len(), 1_000);
    // Noted once a second.
    let shown = until(async || {
        let (_, shown) = broker.get("/v1/dashboard/queues").await;
        (shown["queues_total"] == 1_200).then_some(shown)
    })
    .await;
    assert_eq!(shown["counts"]["ready"], 1_200);
    assert_eq!(shown["queues"].as_array().unwrap().len(), 200);

    for number in 0..3 {
        let spec = json!({"cron":"0 3 * * *","job":{"type":"t","payload":"x".repeat(250_000)}});
        assert_eq!(
            broker
                .put(&format!("/v1/schedules/s-{number}"), spec)
                .await
                .0,
            200
        );
    }
    let (_, page) = broker.get("/v1/schedules?limit=2").await;
    assert_eq!(
        (page["schedules"].as_array().unwrap().len(), &page["next"]),
        (2, &json!("s-1"))
    );
    let (_, page) = broker.get("/v1/schedules?limit=2&after=s-1").await;
    assert_eq!(
        (page["schedules"].as_array().unwrap().len(), &page["next"]),
        (1, &Value::Null)
    );
    for (path, field) in [
        ("/v1/queues?limit=0", "limit"),
        ("/v1/schedules?after=a%20b", "after"),
    ] {
        let wrong = broker.get(path).await;
        problem(
            &wrong,
            StatusCode::UNPROCESSABLE_ENTITY,
            "invalid_field",
            Some(field),
        );
    }
}

#[tokio::test]
async fn two_who_change_settings_at_once_do_not_undo_each_other() {
    let broker = Broker::start().await;
    let change = async |body: Value| {
        answered(broker.request(Method::PATCH, "/v1/settings").json(&body)).await
    };
    let (_, before) = broker.get("/v1/settings").await;
    let changes = [
        json!({ "jobs_max": 1234 }),
        json!({ "dead": { "count": 7 } }),
        json!({ "completed": { "age_ms": 5000 } }),
    ];
    for (status, _) in futures_util::future::join_all(changes.map(&change)).await {
        assert_eq!(status, 200);
    }
    let (_, after) = broker.get("/v1/settings").await;
    assert_eq!(after["jobs_max"], 1234);
    assert_eq!(after["dead"]["count"], 7);
    assert_eq!(after["completed"]["age_ms"], 5000);
    assert_eq!(after["cancelled"], before["cancelled"]);
    // An empty change changes nothing, and neither does a wrong one.
    assert_eq!(change(json!({})).await, (200, after.clone()));
    for (body, field) in [
        (json!({ "jobs_max": 5, "dead": null }), "dead"),
        (
            json!({ "jobs_max": 5, "dead": { "count": -1 } }),
            "dead.count",
        ),
        (json!({ "jobs_max": null }), "jobs_max"),
    ] {
        let answer = change(body).await;
        problem(
            &answer,
            StatusCode::UNPROCESSABLE_ENTITY,
            "invalid_field",
            Some(field),
        );
    }
    assert_eq!(broker.get("/v1/settings").await.1, after);
}

#[tokio::test]
async fn the_short_names_of_schedules_may_be_written_in_capitals() {
    let broker = Broker::start().await;
    let spec = json!({ "cron": "@DAILY", "job": { "type": "a" } });
    let (status, schedule) = broker.put("/v1/schedules/s", spec).await;
    assert_eq!(
        (status, &schedule["cron"]),
        (200, &json!("@daily")),
        "{schedule}"
    );
    let spec = json!({ "cron": "@Never", "job": { "type": "a" } });
    assert_eq!(broker.put("/v1/schedules/s", spec).await.0, 422);
}

/// Finished jobs are deleted by number at once, and by age when their time has come.
#[tokio::test]
async fn as_many_finished_jobs_are_kept_as_the_settings_say() {
    let broker = Broker::start().await;
    let end = async |id: &str| {
        let job = json!({"id": id, "type": "t"});
        assert_eq!(broker.post("/v1/jobs", job).await.0, 201);
        let claimed = broker.claim().await;
        let done = json!({ "token": claimed["token"], "result": id });
        let path = format!("/v1/jobs/{id}/complete");
        assert_eq!(broker.post(&path, done).await.0, 200);
    };
    let statuses = async |ids: [&'static str; 4]| {
        let mut statuses = Vec::new();
        for id in ids {
            statuses.push(broker.get(&format!("/v1/jobs/{id}")).await.0);
        }
        statuses
    };
    const IDS: [&str; 4] = ["a", "b", "c", "d"];
    for id in ["a", "b", "c"] {
        end(id).await;
    }
    // Unfinished jobs are kept, whatever the settings say.
    broker
        .post("/v1/jobs", json!({"id":"d","type":"waits"}))
        .await;
    let ids = json!({"age_ms": 0, "bytes_max": 1_000_000});
    let settings = json!({"completed": {"count": 2}, "ids": ids});
    let request = broker.request(Method::PATCH, "/v1/settings");
    let (status, changed) = answered(request.json(&settings)).await;
    assert_eq!(status, 200, "{changed}");
    until(async || (statuses(IDS).await == [404, 200, 200, 200]).then_some(())).await;
    // With the job, its id is deleted as well.
    let again = broker.post("/v1/jobs", json!({"id":"a","type":"t"})).await;
    assert_eq!(again.0, 201, "{again:?}");
}

/// A caller that sets the time gets the time that it set, not one that another caller has set since.
#[tokio::test]
async fn each_who_sets_the_time_is_answered_with_its_own() {
    const HOUR: u64 = 3_600_000;
    let broker = Broker::start().await;
    let (_, time) = broker.get("/v1/time").await;
    let now = time["now_ms"].as_u64().unwrap();
    let set = async |hours: u64| {
        let to = now - hours * HOUR;
        let request = broker.request(Method::PUT, "/v1/time");
        let (status, time) = answered(request.json(&json!({ "to": to }))).await;
        assert_eq!(status, 200, "{time}");
        let told = time["now_ms"].as_u64().unwrap();
        assert!((to..to + HOUR).contains(&told), "{to}: {time}");
    };
    futures_util::future::join_all((1..=40).map(set)).await;
}

#[tokio::test]
async fn workers_are_known_by_what_they_run_and_wait_for() {
    let broker = Broker::start().await;
    assert_eq!(broker.get("/v1/workers").await.1, json!({"workers": []}));
    broker.submit("t").await;
    let job = broker.claim().await;
    let waits = broker.post(
        "/v1/jobs/claim",
        json!({"worker": "idle", "wait_ms": 60_000}),
    );
    let looks = until(|| async {
        let (status, answer) = broker.get("/v1/workers").await;
        assert_eq!(status, 200, "{answer}");
        (answer["workers"].as_array().unwrap().len() == 2).then_some(answer)
    });
    let answer = tokio::select! {
        answer = looks => answer,
        answer = waits => panic!("{answer:?}"),
    };
    let [idle, busy] = &answer["workers"].as_array().unwrap()[..] else {
        panic!("{answer}");
    };
    assert_eq!(
        *idle,
        json!({"worker": "idle", "waiting": 1, "running": 0, "jobs": []})
    );
    assert_eq!(
        (&busy["worker"], &busy["running"]),
        (&json!("w"), &json!(1))
    );
    let run = &busy["jobs"][0];
    assert_eq!(
        (&run["id"], &run["type"], &run["attempt"]),
        (&job["id"], &json!("t"), &json!(1))
    );
    assert!(
        run["since_at"].is_u64() && run["heard_ago_ms"].is_u64(),
        "{run}"
    );
    assert!(!answer.to_string().contains(job["token"].as_str().unwrap()));
}

#[tokio::test]
async fn a_schedule_that_is_to_run_on_start_does_so_once() {
    let broker = Broker::start().await;
    let set = async |cron: &str| {
        let job = json!({"type": "report", "queue": "q"});
        let spec = json!({"cron": cron, "job": job, "run_on_start": true});
        let (status, answer) = broker.put("/v1/schedules/yearly", spec).await;
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let jobs = async |count: usize| {
        until(|| async {
            let (_, page) = broker.get("/v1/jobs?queue=q").await;
            let jobs = page["jobs"].as_array().unwrap().len();
            assert!(jobs <= count, "{page}");
            (jobs == count).then_some(())
        })
        .await;
    };
    set("0 0 1 1 *").await;
    jobs(1).await;
    // Its next run is the same as without the run at the start.
    let (_, schedule) = broker.get("/v1/schedules/yearly").await;
    let next = schedule["next_at"].as_u64().unwrap();
    assert!(
        next > schedule["last_at"].as_u64().unwrap() + 60_000,
        "{schedule}"
    );
    assert!(schedule["run_on_start"].is_null(), "{schedule}");
    // As when a deployment sets it again.
    assert_eq!(set("0 0 1 1 *").await["next_at"], next);
    tokio::time::sleep(std::time::Duration::from_millis(1_500)).await;
    jobs(1).await;
    set("0 0 2 1 *").await;
    jobs(2).await;
    // Also within the same second.
    set("0 0 3 1 *").await;
    jobs(3).await;
}
