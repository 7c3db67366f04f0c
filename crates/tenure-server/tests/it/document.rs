//! The OpenAPI document and the interface agree.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Broker, answered};

fn operations(document: &Value) -> BTreeSet<String> {
    let paths = document["paths"].as_object().unwrap();
    let each = paths.iter().flat_map(|(path, item)| {
        let methods = item.as_object().unwrap().keys();
        methods.map(move |method| format!("{} {path}", method.to_uppercase()))
    });
    each.collect()
}

#[tokio::test]
async fn every_documented_call_is_there_and_none_is_missing() {
    let broker = Broker::start().await;
    let (status, document) = broker.get("/openapi.json").await;
    assert_eq!((status, &document["openapi"]), (200, &json!("3.1.0")));
    let documented = operations(&document);
    for operation in &documented {
        let (method, path) = operation.split_once(' ').unwrap();
        // Two are not JSON, and one would leave no leader to ask.
        if ["/v1/events", "/metrics", "/v1/leader/resign"].contains(&path) {
            continue;
        }
        let path = path.replace(['{', '}'], "");
        let method: Method = method.parse().unwrap();
        // An empty object is wrong for some calls and right for others; but no call must be unknown.
        let mut request = broker.request(method.clone(), &path);
        if method != Method::GET {
            request = request.json(&json!({}));
        }
        let (status, answer) = answered(request).await;
        let is_route = answer["detail"]
            .as_str()
            .is_none_or(|detail| !detail.starts_with("there is nothing at"));
        assert!(
            is_route && status != 405 && status < 500,
            "{operation}: {status} {answer}"
        );
    }
    // The calls that the design promises to clients.
    for operation in [
        "POST /v1/jobs",
        "POST /v1/jobs/claim",
        "POST /v1/jobs/heartbeat",
        "POST /v1/jobs/complete",
        "POST /v1/jobs/fail",
        "POST /v1/jobs/{id}/heartbeat",
        "POST /v1/jobs/{id}/complete",
        "POST /v1/jobs/{id}/fail",
        "POST /v1/jobs/release",
        "POST /v1/jobs/{id}/release",
        "GET /v1/jobs",
        "GET /v1/jobs/{id}",
        "DELETE /v1/jobs/{id}",
        "POST /v1/jobs/{id}/cancel",
        "POST /v1/jobs/{id}/retry",
        "POST /v1/jobs/retry",
        "GET /v1/queues",
        "GET /v1/queues/{queue}",
        "PUT /v1/queues/{queue}",
        "POST /v1/queues/{queue}/pause",
        "POST /v1/queues/{queue}/resume",
        "GET /v1/settings",
        "PUT /v1/settings",
        "PATCH /v1/settings",
        "GET /v1/time",
        "PUT /v1/time",
        "GET /v1/schedules",
        "GET /v1/schedules/{name}",
        "PUT /v1/schedules/{name}",
        "DELETE /v1/schedules/{name}",
        "POST /v1/schedules/{name}/pause",
        "POST /v1/schedules/{name}/resume",
        "GET /v1/stats",
        "GET /v1/events",
        "GET /v1/cluster",
        "GET /v1/cluster/plan",
        "POST /v1/leader/resign",
        "POST /v1/leader/transfer",
        "PUT /v1/elections/{election}/candidates/{id}",
        "DELETE /v1/elections/{election}/candidates/{id}",
        "POST /v1/elections/{election}/elect",
        "GET /v1/elections/{election}",
        "GET /v1/elections/{election}/leader",
        "GET /healthz",
        "GET /readyz",
        "GET /metrics",
    ] {
        assert!(
            documented.contains(operation),
            "{operation} is not documented"
        );
    }
}

#[tokio::test]
async fn every_call_has_a_name_of_its_own_and_says_how_it_fails() {
    let broker = Broker::start().await;
    let (_, document) = broker.get("/openapi.json").await;
    let mut names = BTreeSet::new();
    for item in document["paths"].as_object().unwrap().values() {
        for operation in item.as_object().unwrap().values() {
            let name = operation["operationId"].as_str().unwrap();
            assert!(names.insert(name), "{name} twice");
            let failure = &operation["responses"]["default"]["content"];
            assert!(
                failure["application/problem+json"].is_object(),
                "{name}: {failure}"
            );
        }
    }
}

#[tokio::test]
async fn schemas_allow_only_what_is_taken() {
    let broker = Broker::start().await;
    let (_, document) = broker.get("/openapi.json").await;
    let schemas = &document["components"]["schemas"];
    for name in ["JobId", "JobType", "QueueName", "ScheduleName"] {
        let pattern = schemas[name]["pattern"].as_str().unwrap();
        let (first, _) = pattern.split_once(']').unwrap();
        assert_eq!(first, "^[A-Za-z0-9_:@+=", "{name}");
    }
    let changes = &schemas["SettingsChange"];
    assert_eq!(changes["required"], Value::Null);
    for (name, schema) in changes["properties"].as_object().unwrap() {
        assert!(!schema.to_string().contains("null"), "{name}: {schema}");
    }
}

#[tokio::test]
async fn every_schema_that_is_named_is_there() {
    fn references<'a>(value: &'a Value, found: &mut BTreeSet<&'a str>) {
        match value {
            Value::Object(object) => {
                if let Some(Value::String(reference)) = object.get("$ref") {
                    found.insert(reference);
                }
                object.values().for_each(|value| references(value, found));
            }
            Value::Array(array) => array.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }
    let broker = Broker::start().await;
    let (_, document) = broker.get("/openapi.json").await;
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    assert!(found.len() > 20, "{found:?}");
    for reference in found {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
}
