//! One-shot elections.

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Broker, until};

#[tokio::test]
async fn the_first_to_ask_leads_until_it_withdraws() {
    let broker = Broker::start().await;
    let elect = async |candidate: &str| {
        let secret = format!("the-only-secret-of-{candidate}");
        let body = json!({ "candidate": candidate, "ttl_ms": 60_000, "secret": secret });
        let (status, answer) = broker.post("/v1/elections/reports/elect", body).await;
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let a = elect("a").await;
    assert_eq!(
        (&a["is_leader"], &a["leader"]["node"], &a["term"]),
        (&json!(true), &json!("a"), &json!(1))
    );
    assert!(a["token"].as_str().unwrap().ends_with(":1"), "{a}");
    assert!(
        (1..60_000).contains(&a["valid_for_ms"].as_u64().unwrap()),
        "{a}"
    );
    let b = elect("b").await;
    assert_eq!(
        (&b["is_leader"], &b["leader"]["node"]),
        (&json!(false), &json!("a"))
    );
    assert_eq!((&b["token"], &b["valid_for_ms"]), (&Value::Null, &json!(0)));

    let (_, shown) = broker.get("/v1/elections/reports").await;
    assert_eq!(
        (&shown["leader"]["node"], &shown["term"]),
        (&json!("a"), &json!(1))
    );
    let mut candidates: Vec<_> = shown["candidates"]
        .as_array()
        .unwrap()
        .iter()
        .map(|each| each["id"].as_str().unwrap())
        .collect();
    candidates.sort_unstable();
    assert_eq!(candidates, ["a", "b"]);
    for (candidate, leads) in [("a", true), ("b", false)] {
        let path = format!("/v1/elections/reports/leader?candidate={candidate}");
        assert_eq!(broker.get(&path).await.1["is_leader"], leads);
    }

    let secret = json!({"secret": "the-only-secret-of-a"});
    let path = "/v1/elections/reports/candidates/a";
    assert_eq!(broker.delete_with(path, secret).await.0, 204);
    assert_eq!(
        broker.get("/v1/elections/reports/leader").await.1["leader"],
        Value::Null
    );
    let b = elect("b").await;
    assert_eq!((&b["is_leader"], &b["term"]), (&json!(true), &json!(2)));
}

#[tokio::test]
async fn a_candidate_stands_without_leading() {
    let broker = Broker::start().await;
    let (status, shown) = broker
        .put("/v1/elections/e/candidates/a", json!({"ttl_ms":30_000}))
        .await;
    assert_eq!(status, 200);
    let candidate = &shown["candidates"][0];
    assert_eq!(
        (&candidate["id"], &candidate["ttl_ms"]),
        (&json!("a"), &json!(30_000))
    );
    assert_eq!(shown["candidates"].as_array().unwrap().len(), 1);
    assert_eq!(shown["leader"], Value::Null);
    assert_eq!(shown["secret"].as_str().unwrap().len(), 32);
}

#[tokio::test]
async fn a_candidate_belongs_to_whoever_knows_its_secret() {
    let broker = Broker::start().await;
    let elect = "/v1/elections/billing/elect";
    let own = "/v1/elections/billing/candidates/billing-1";
    let (_, first) = broker.post(elect, json!({"candidate": "billing-1"})).await;
    assert_eq!(
        (&first["is_leader"], &first["term"]),
        (&json!(true), &json!(1))
    );
    let secret = first["secret"].as_str().unwrap().to_owned();

    // Without the secret, or with another one, the candidate cannot be withdrawn or renewed, so nobody else can lead.
    let stranger = json!({"secret": "a-secret-of-another"});
    for body in [json!({}), stranger] {
        let (status, answer) = broker.delete_with(own, body).await;
        assert_eq!(
            (status, &answer["code"]),
            (403, &json!("forbidden")),
            "{answer}"
        );
        assert_eq!(answer["field"], "secret");
    }
    for (status, answer) in [
        broker.post(elect, json!({"candidate": "billing-1"})).await,
        broker.put(own, json!({})).await,
    ] {
        assert_eq!(status, 403, "{answer}");
    }
    let (_, mallory) = broker.post(elect, json!({"candidate": "mallory"})).await;
    assert_eq!(mallory["is_leader"], false);
    // The same name with another secret is another program.
    let body = json!({"candidate": "billing-1", "secret": "a-secret-of-another"});
    let (_, namesake) = broker.post(elect, body).await;
    assert_eq!(
        (&namesake["is_leader"], &namesake["secret"]),
        (&json!(false), &Value::Null)
    );

    let body = json!({"candidate": "billing-1", "secret": secret});
    let (_, again) = broker.post(elect, body).await;
    assert_eq!(
        (&again["is_leader"], &again["term"]),
        (&json!(true), &json!(1))
    );
    assert_eq!(again["secret"], Value::Null, "it is told once");
    let (_, shown) = broker.get("/v1/elections/billing").await;
    assert!(!shown.to_string().contains(&secret), "{shown}");
    let (_, cluster) = broker.get("/v1/cluster").await;
    assert!(!cluster.to_string().contains(&secret), "{cluster}");
    assert_eq!(
        cluster["nodes"].as_array().unwrap().len(),
        1,
        "candidates are no nodes: {cluster}"
    );

    assert_eq!(
        broker.delete_with(own, json!({"secret": secret})).await.0,
        204
    );
}

#[tokio::test]
async fn a_repeated_withdrawal_ends_no_later_term() {
    let broker = Broker::start().await;
    let own = "/v1/elections/e/candidates/a";
    let secret = "the-secret-of-this-a";
    let elect = async || {
        let body = json!({"candidate": "a", "secret": secret});
        broker.post("/v1/elections/e/elect", body).await.1
    };
    let first = json!({"secret": secret, "term": 1});
    for term in 1..=3 {
        assert_eq!(elect().await["term"], term);
        if term < 3 {
            let body = json!({"secret": secret, "term": term});
            assert_eq!(broker.delete_with(own, body.clone()).await.0, 204);
            assert_eq!(broker.delete_with(own, body).await.0, 204, "nobody stands");
        }
    }
    let (status, answer) = broker.delete_with(own, first).await;
    assert_eq!(
        (status, &answer["field"]),
        (409, &json!("term")),
        "{answer}"
    );
    let now = elect().await;
    assert_eq!((&now["is_leader"], &now["term"]), (&json!(true), &json!(3)));
}

#[tokio::test]
async fn a_leader_over_http_obeys_a_request_at_its_next_call() {
    let broker = Broker::start().await;
    let elect = async |candidate: &str| {
        let body = json!({"candidate": candidate, "secret": "one-secret-for-all"});
        broker.post("/v1/elections/e/elect", body).await.1
    };
    assert_eq!(elect("a").await["is_leader"], true);
    assert_eq!(elect("b").await["is_leader"], false);
    let name = "e".parse().unwrap();
    let view = broker.handle.node().view().clone();
    view.request_resign(&name, &"ops".parse().unwrap())
        .await
        .unwrap();
    // Everybody sees the request, and until when the leader may lead.
    let (_, shown) = broker.get("/v1/elections/e").await;
    assert_eq!(shown["leader"]["node"], "a", "{shown}");
    let request = &shown["request"];
    assert_eq!(
        (&request["kind"], &request["by"], &request["lapses"]),
        (&json!("resign"), &json!("ops"), &json!(true))
    );
    let left = request["lapses_in_ms"].as_u64().unwrap();
    assert!((1..=60_000).contains(&left), "{shown}");
    let told = elect("a").await;
    assert_eq!(
        (&told["is_leader"], &told["asked_by"]),
        (&json!(false), &json!("ops"))
    );
    let body = json!({"secret": "one-secret-for-all"});
    assert_eq!(
        broker
            .delete_with("/v1/elections/e/candidates/a", body)
            .await
            .0,
        204
    );
    let next = elect("b").await;
    assert_eq!(
        (&next["is_leader"], &next["term"]),
        (&json!(true), &json!(2))
    );
    let (_, shown) = broker.get("/v1/elections/e").await;
    assert!(shown["led_for_ms"].as_u64().unwrap() < 60_000, "{shown}");
    assert!(shown["seen_ago_ms"].is_u64() && shown["candidates"][0]["seen_ago_ms"].is_u64());

    // The reservation is shown, and for how long it lasts.
    elect("c").await;
    let (to, by) = ("c".parse().unwrap(), "ops".parse().unwrap());
    view.request_transfer(&name, &to, &by).await.unwrap();
    let (_, shown) = broker.get("/v1/elections/e").await;
    assert_eq!(shown["request"]["to"], "c", "{shown}");
    assert!(shown["request"]["to_incarnation"].is_string(), "{shown}");
    let body = json!({"secret": "one-secret-for-all"});
    let withdrawn = broker.delete_with("/v1/elections/e/candidates/b", body);
    assert_eq!(withdrawn.await.0, 204);
    let (_, shown) = broker.get("/v1/elections/e").await;
    assert_eq!(shown["reserved_for"], "c", "{shown}");
    let told = elect("d").await;
    assert_eq!(told["reserved_for"], "c", "{told}");
    for reserved in [&shown, &told] {
        let incarnation = reserved["reserved_for_incarnation"].as_str().unwrap();
        assert_eq!(incarnation.len(), 32, "{reserved}");
    }
    assert!(
        shown["reserved_for_ms"].as_u64().unwrap() <= 30_000,
        "{shown}"
    );
    assert!(
        shown["leader"].is_null() && shown.get("led_for_ms").is_none(),
        "{shown}"
    );
}

#[tokio::test]
async fn the_brokers_election_is_shown_however_many_users_have() {
    let broker = Broker::start().await;
    for number in 0..25 {
        let path = format!("/v1/elections/a{number}/elect");
        let body = json!({"candidate": "a", "secret": "one-secret-for-all"});
        assert_eq!(broker.post(&path, body).await.0, 200);
    }
    let (_, cluster) = broker.get("/v1/cluster").await;
    assert_eq!(cluster["leader"]["node"], cluster["node"], "{cluster}");
    let names: Vec<_> = cluster["elections"].as_array().unwrap().iter().collect();
    assert_eq!(names.len(), 20);
    assert_eq!(
        (&names[0]["name"], &names[1]["name"]),
        (&json!("tenure.cluster"), &json!("tenure.queue"))
    );
}

#[tokio::test]
async fn as_many_candidates_and_elections_as_the_limits_allow() {
    let broker = Broker::start_with(|config| {
        // The broker's session, and its two elections, count.
        config.limits.candidates_max = 3;
        config.limits.elections_max = 4;
    })
    .await;
    let elections = async || {
        let (_, shown) = broker.get("/v1/cluster").await;
        shown["elections"].as_array().unwrap().len()
    };
    until(async || (elections().await == 2).then_some(())).await;
    let elect = async |election: &str, candidate: &str| {
        let secret = format!("the-only-secret-of-{candidate}");
        let body = json!({ "candidate": candidate, "ttl_ms": 60_000, "secret": secret });
        let path = format!("/v1/elections/{election}/elect");
        broker.post(&path, body).await
    };
    assert_eq!(elect("e1", "a").await.0, 200);
    assert_eq!(elect("e2", "b").await.0, 200);
    let (status, refused) = elect("e1", "c").await;
    assert_eq!(
        (status, &refused["code"]),
        (429, &json!("full")),
        "{refused}"
    );
    let (status, refused) = elect("e3", "a").await;
    assert_eq!(
        (status, &refused["code"]),
        (429, &json!("full")),
        "{refused}"
    );
    let (status, refused) = broker.put("/v1/elections/e1/candidates/d", json!({})).await;
    assert_eq!(
        (status, &refused["code"]),
        (429, &json!("full")),
        "{refused}"
    );
    assert_eq!(elect("e1", "a").await.1["is_leader"], true);
    assert_eq!(elections().await, 4);
}

/// How many requests the broker's store has answered.
async fn store_requests(broker: &Broker) -> u64 {
    let answer = broker.request(Method::GET, "/metrics").send().await;
    let text = answer.unwrap().text().await.unwrap();
    let counts = text
        .lines()
        .filter(|line| line.starts_with("tenure_store_request_seconds_count"));
    let counts: Vec<u64> = counts
        .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
        .collect();
    assert!(!counts.is_empty(), "{text}");
    counts.iter().sum()
}

/// Reads cannot make the broker read the whole namespace for every call.
#[tokio::test]
async fn those_who_look_at_one_time_share_what_is_read() {
    let broker = Broker::start().await;
    for number in 0..50 {
        let path = format!("/v1/elections/e/candidates/c{number}");
        assert_eq!(broker.put(&path, json!({})).await.0, 200);
    }
    for (path, each) in [("/v1/elections/e", 3), ("/v1/cluster", 0)] {
        let before = store_requests(&broker).await;
        let calls = join_all((0..100).map(|_| broker.get(path))).await;
        assert!(calls.iter().all(|(status, _)| *status == 200), "{calls:?}");
        let requests = store_requests(&broker).await - before;
        // Each reading takes 50 requests and some; a slow machine takes several seconds, with one reading per second.
        assert!(requests < 100 * each + 1000, "{path}: {requests} requests");
    }
}

/// A reading from before a change through this broker is not shown after it.
#[tokio::test]
async fn whoever_changes_candidates_sees_the_change() {
    let broker = Broker::start().await;
    let names = |shown: &Value| {
        let candidates = shown["candidates"].as_array().unwrap().iter();
        let names = candidates.map(|each| each["id"].as_str().unwrap().to_owned());
        names.collect::<Vec<String>>()
    };
    let show = async || names(&broker.get("/v1/elections/e").await.1);
    let secret = "one-secret-for-all";
    for _ in 0..5 {
        assert!(show().await.is_empty());
        let path = "/v1/elections/e/candidates/a";
        let (status, put) = broker.put(path, json!({ "secret": secret })).await;
        assert_eq!((status, names(&put)), (200, vec!["a".to_owned()]), "{put}");
        assert_eq!(show().await, ["a"]);
        let body = json!({ "candidate": "b", "secret": secret });
        assert_eq!(broker.post("/v1/elections/e/elect", body).await.0, 200);
        assert_eq!(show().await.len(), 2);
        for path in [path, "/v1/elections/e/candidates/b"] {
            let gone = broker.delete_with(path, json!({ "secret": secret })).await;
            assert_eq!(gone.0, 204);
        }
    }
}

/// The calls come at the same time, so that one candidate gets several sessions.
#[tokio::test]
async fn a_candidate_of_many_elections_leaves_each_that_it_withdraws_from() {
    let broker = Broker::start().await;
    let body = json!({ "secret": "one-secret-for-all" });
    let elections: Vec<String> = (0..8).map(|it| format!("/v1/elections/e{it}")).collect();
    for round in 0..4 {
        let paths = elections.iter();
        let paths: Vec<String> = paths
            .map(|it| format!("{it}/candidates/c{round}"))
            .collect();
        let stood = join_all(paths.iter().map(|path| broker.put(path, body.clone()))).await;
        assert!(stood.iter().all(|(status, _)| *status == 200), "{stood:?}");
        for (path, election) in paths.iter().zip(&elections) {
            assert_eq!(broker.delete_with(path, body.clone()).await.0, 204);
            let (_, shown) = broker.get(election).await;
            assert_eq!(shown["candidates"], json!([]), "{path}");
        }
    }
}

#[tokio::test]
async fn what_is_wrong_is_told_in_the_callers_terms() {
    let broker = Broker::start_with(|config| config.limits.candidates_max = 2).await;
    for ttl_ms in [0_u64, 199, 3_600_001, 90_000_000] {
        let body = json!({ "candidate": "a", "ttl_ms": ttl_ms });
        let (status, problem) = broker.post("/v1/elections/e/elect", body).await;
        assert_eq!((status, &problem["field"]), (422, &json!("ttl_ms")));
        let detail = format!("ttl_ms is {ttl_ms}, but must be between 200 and 3600000");
        assert_eq!(problem["detail"], json!(detail));
    }
    let body = json!({ "candidate": "a", "ttl_ms": 3_600_000, "secret": "one-secret-for-all" });
    assert_eq!(broker.post("/v1/elections/e/elect", body).await.0, 200);
    let candidate = async |id: &str| {
        let path = format!("/v1/elections/e/candidates/{id}");
        broker.put(&path, json!({})).await.1
    };
    let titles = [
        candidate("a").await["title"].clone(),
        candidate("b").await["title"].clone(),
    ];
    assert_eq!(titles, ["not allowed", "a limit is reached"]);
}

/// Clocks of two hosts are not compared: the leader's may be an hour ahead.
#[tokio::test]
async fn how_long_a_leader_leads_is_not_taken_from_its_clock() {
    use tenure::store::{Expect, Key};

    let broker = Broker::start().await;
    let store = broker.handle.node().view().store().clone();
    let key = Key::new("default/elections/tenure.queue").unwrap();
    let object = store.get(&key).await.unwrap().unwrap();
    let mut lease: Value = serde_json::from_slice(&object.value).unwrap();
    let since = lease["state"]["held"]["since"].as_u64().unwrap();
    lease["state"]["held"]["since"] = json!(since + 3_600_000);
    let value = serde_json::to_vec(&lease).unwrap();
    let expect = Expect::Version(object.version);
    store.put(&key, value.into(), &expect).await.unwrap();

    let (_, cluster) = broker.get("/v1/cluster").await;
    assert_eq!(cluster["leader"]["since_at"], since + 3_600_000);
    let led_for = cluster["led_for_ms"].as_u64().unwrap();
    assert!(led_for < 60_000, "{cluster}");
    assert!(cluster.get("led_for_at_least").is_none(), "{cluster}");
    let (_, shown) = broker.get("/v1/dashboard/node").await;
    let led_for = shown["leader"]["for_ms"].as_u64().unwrap();
    assert!(led_for < 60_000, "{shown}");
    assert_eq!(shown["leader"]["for_at_least"], false, "{shown}");
}
