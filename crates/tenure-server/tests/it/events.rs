//! Following what happens.

use futures_util::StreamExt;
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::{Broker, PATIENCE, answered, problem};

/// The events of a stream, one after the other.
pub(crate) struct Stream {
    bytes: futures_util::stream::BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    text: String,
}

impl Stream {
    pub(crate) fn of(response: Response) -> Self {
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self {
            bytes: response.bytes_stream().boxed(),
            text: String::new(),
        }
    }

    /// The name and data of the next event; none when the stream has ended.
    pub(crate) async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.text = rest;
                let line = |name: &str| {
                    let prefix = format!("{name}: ");
                    let mut lines = event.lines();
                    lines.find_map(|line| line.strip_prefix(&prefix).map(str::to_owned))
                };
                // What has no name is a sign of life.
                if let (Some(name), Some(data)) = (line("event"), line("data")) {
                    return Some((name, serde_json::from_str(&data).unwrap()));
                }
                continue;
            }
            match timeout(PATIENCE, self.bytes.next()).await.unwrap() {
                Some(Ok(bytes)) => self.text += std::str::from_utf8(&bytes).unwrap(),
                Some(Err(_)) | None => return None,
            }
        }
    }
}

#[tokio::test]
async fn events_come_in_order_without_tokens_or_payloads() {
    let broker = Broker::start().await;
    let response = broker
        .request(Method::GET, "/v1/events")
        .send()
        .await
        .unwrap();
    let mut stream = Stream::of(response);
    let job = json!({"id":"a","type":"t","queue":"q","payload":"geheim"});
    broker.post("/v1/jobs", job).await;
    let claimed = broker.claim().await;
    let token = claimed["token"].as_str().unwrap();
    broker
        .post("/v1/jobs/a/complete", json!({ "token": token }))
        .await;
    let mut position = 0;
    for expected in ["submitted", "claimed", "completed"] {
        let (name, data) = stream.next().await.unwrap();
        assert_eq!((&*name, &data["event"]), (expected, &json!(expected)));
        assert_eq!((&data["id"], &data["queue"]), (&json!("a"), &json!("q")));
        assert!(
            data["at"].is_u64() && data["position"].as_u64().unwrap() > position,
            "{data}"
        );
        position = data["position"].as_u64().unwrap();
        let text = data.to_string();
        assert!(!text.contains(token) && !text.contains("geheim"), "{text}");
    }
}

#[tokio::test]
async fn events_are_chosen_by_queue_and_name() {
    let broker = Broker::start().await;
    let path = "/v1/events?queue=q&type=submitted";
    let mut stream = Stream::of(broker.request(Method::GET, path).send().await.unwrap());
    let jobs = json!({"jobs":[{"type":"t"},{"id":"mine","type":"t","queue":"q"}]});
    broker.post("/v1/jobs", jobs).await;
    broker.claim().await;
    broker
        .post("/v1/jobs", json!({"id":"last","type":"t","queue":"q"}))
        .await;
    for id in ["mine", "last"] {
        let (name, data) = stream.next().await.unwrap();
        assert_eq!((&*name, &data["id"]), ("submitted", &json!(id)));
    }
}

#[tokio::test]
async fn whoever_comes_back_is_told_to_read_anew() {
    let broker = Broker::start().await;
    let request = broker.request(Method::GET, "/v1/events");
    let response = request.header("last-event-id", "7").send().await.unwrap();
    let (name, _) = Stream::of(response).next().await.unwrap();
    assert_eq!(name, "reset");
}

#[tokio::test]
async fn followers_are_limited_and_let_go_when_the_server_stops() {
    let broker = Broker::start_with(|config| config.limits.followers_max = 1).await;
    let first = broker
        .request(Method::GET, "/v1/events")
        .send()
        .await
        .unwrap();
    let mut first = Stream::of(first);
    let second = answered(broker.request(Method::GET, "/v1/events")).await;
    problem(&second, StatusCode::TOO_MANY_REQUESTS, "overloaded", None);
    timeout(PATIENCE, broker.handle.stop()).await.unwrap();
    assert_eq!(first.next().await, None);
}
