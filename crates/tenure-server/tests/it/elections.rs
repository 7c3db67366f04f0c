//! One-shot elections.

use serde_json::{Value, json};

use crate::support::Broker;

#[tokio::test]
async fn the_first_to_ask_leads_until_it_withdraws() {
    let broker = Broker::start().await;
    let elect = async |candidate: &str| {
        let body = json!({ "candidate": candidate, "ttl_ms": 60_000 });
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

    assert_eq!(
        broker.delete("/v1/elections/reports/candidates/a").await.0,
        204
    );
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
    assert_eq!(shown["candidates"], json!([{"id":"a","ttl_ms":30_000}]));
    assert_eq!(shown["leader"], Value::Null);
}
