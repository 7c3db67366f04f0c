//! Following what happens.

use futures_util::StreamExt;
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use tenure::daemon::daemon;
use tenure::{Node, NodeOptions, cluster};
use tokio::time::timeout;

use crate::support::{Broker, PATIENCE, answered, config, problem, store_in};

/// The events of a stream, one after the other.
pub(crate) struct Stream {
    bytes: futures_util::stream::BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    text: String,
    /// The last id, which browsers keep.
    pub(crate) last_id: String,
}

impl Stream {
    pub(crate) fn of(response: Response) -> Self {
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self {
            bytes: response.bytes_stream().boxed(),
            text: String::new(),
            last_id: String::new(),
        }
    }

    /// Waits for a sign of life, which has an id.
    async fn begun(&mut self) {
        while self.last_id.is_empty() {
            let bytes = timeout(PATIENCE, self.bytes.next()).await.unwrap();
            self.text += std::str::from_utf8(&bytes.unwrap().unwrap()).unwrap();
            let mut lines = self.text.lines();
            let id = lines.find_map(|line| line.strip_prefix("id: "));
            self.last_id = id.unwrap_or_default().to_owned();
        }
    }

    /// The names of the next `count` events.
    async fn take(mut self, count: usize) -> Vec<String> {
        let mut names = Vec::new();
        while names.len() < count {
            names.push(self.next().await.expect("it goes on").0);
        }
        names
    }

    /// Waits for the next event of this name.
    async fn named(&mut self, name: &str) -> Value {
        loop {
            let (next, data) = self.next().await.expect("it goes on");
            if next == name {
                return data;
            }
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
                if let Some(id) = line("id") {
                    self.last_id = id;
                }
                // A message without a name is a sign of life.
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

/// A stream, from an id on if one is given.
async fn follow(broker: &Broker, query: &str, last_id: Option<&str>) -> Stream {
    let path = format!("/v1/events{query}");
    let mut request = broker.request(Method::GET, &path);
    if let Some(last_id) = last_id {
        request = request.header("last-event-id", last_id);
    }
    Stream::of(request.send().await.unwrap())
}

fn batch(names: &[&str]) -> Value {
    let jobs: Vec<Value> = names
        .iter()
        .map(|name| json!({"id": name, "type": "t", "queue": "q"}))
        .collect();
    json!({ "jobs": jobs })
}

#[tokio::test]
async fn whoever_comes_back_goes_on_where_it_was() {
    let broker = Broker::start().await;
    let mut stream = follow(&broker, "", None).await;
    stream.begun().await;
    // A client that got no events and disconnects does not lose what happens meanwhile.
    let start = stream.last_id.clone();
    drop(stream);
    broker.post("/v1/jobs", batch(&["a", "b", "c"])).await;
    let mut stream = follow(&broker, "", Some(&start)).await;
    let (name, data) = stream.next().await.unwrap();
    assert_eq!((&*name, &data["id"]), ("submitted", &json!("a")));
    // In the middle of one commit.
    let middle = stream.last_id.clone();
    drop(stream);
    broker.post("/v1/jobs", batch(&["d"])).await;
    for _ in 0..2 {
        let mut stream = follow(&broker, "", Some(&middle)).await;
        for id in ["b", "c", "d"] {
            let (name, data) = stream.next().await.unwrap();
            assert_eq!((&*name, &data["id"]), ("submitted", &json!(id)), "{middle}");
        }
        broker.post("/v1/jobs", batch(&["d"])).await;
        stream = follow(&broker, "", Some(&stream.last_id)).await;
        broker.submit("last").await;
        assert_eq!(stream.next().await.unwrap().1["queue"], "default");
    }
}

#[tokio::test]
async fn whoever_was_away_for_too_long_is_told_so() {
    let broker = Broker::start().await;
    let mut stream = follow(&broker, "", None).await;
    broker.submit("t").await;
    stream.next().await.unwrap();
    let old = stream.last_id.clone();
    for _ in 0..11 {
        let jobs: Vec<Value> = (0..1000).map(|_| json!({"type": "t"})).collect();
        let (status, _) = broker.post("/v1/jobs", json!({ "jobs": jobs })).await;
        assert_eq!(status, 201);
    }
    for id in [&old, "q999999999", "nonsense", ""] {
        let mut stream = follow(&broker, "", Some(id)).await;
        let (name, data) = stream.next().await.unwrap();
        assert_eq!(name, "reset", "{id:?}");
        assert!(
            data["reason"].as_str().unwrap().contains("not kept"),
            "{data}"
        );
    }
}

#[tokio::test]
async fn nodes_and_daemons_are_followed() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_in(folder.path());
    let broker = Broker::started(config(&store)).await;
    broker.serving().await;
    let kinds = "?kinds=leader,node,daemon";
    let mut stream = follow(&broker, kinds, None).await;
    let leader = stream.named("leader_elected").await;
    assert_eq!(leader["initial"], true, "{leader}");
    assert_eq!(leader["election"], "tenure.queue");
    let me = broker.handle.node().id().to_string();
    assert_eq!(leader["node"], *me);
    let joined = stream.named("node_joined").await;
    assert_eq!(joined["node"], *me, "{joined}");
    stream.begun().await;
    let start = stream.last_id.clone();

    let mut options = NodeOptions::new(&store, "default");
    options.node = Some("other".to_owned());
    let node = Node::start(options).await.unwrap();
    let cluster = node.cluster(cluster::Options::default()).await.unwrap();
    let works = daemon("indexer", |context| async move {
        context.stopping().cancelled().await;
        Ok(())
    });
    cluster
        .register(works, cluster::Definition::shards(1))
        .unwrap();
    let joined = stream.named("node_joined").await;
    assert_eq!(joined["node"], "other");
    assert!(joined["incarnation"].is_string() && joined["initial"].is_null());
    let assigned = stream.named("daemon_assigned").await;
    assert_eq!(assigned["daemon"], "indexer");
    assert_eq!(
        (&assigned["shard"], &assigned["node"]),
        (&json!(0), &json!("other"))
    );
    stream.named("daemon_started").await;
    node.shutdown().await;
    // A broker learns of shards and of nodes in different ways, so either may come first.
    let (mut stopped, mut left) = (Value::Null, Value::Null);
    while stopped.is_null() || left.is_null() {
        match stream.next().await.unwrap() {
            (name, data) if name == "daemon_stopped" => stopped = data,
            (name, data) if name == "node_left" => left = data,
            _ => {}
        }
    }
    assert_eq!(stopped["generation"], assigned["generation"]);
    assert_eq!(left["incarnation"], joined["incarnation"]);
    assert!(left["at"].as_u64().unwrap() > 0 && left["position"].is_null());
    drop(stream);

    // All of it again, for a client that had only got the present state.
    let mut again = follow(&broker, kinds, Some(&start)).await;
    for (name, node) in [
        ("node_joined", "other"),
        ("daemon_assigned", "other"),
        ("daemon_started", "other"),
    ] {
        let (told, data) = again.next().await.unwrap();
        assert_eq!((&*told, &data["node"]), (name, &json!(node)));
    }
    // And by kind.
    let nodes = follow(&broker, "?kinds=node", Some(&start)).await;
    let told: Vec<String> = nodes.take(2).await;
    assert_eq!(told, ["node_joined", "node_left"]);
    let answer = answered(broker.request(Method::GET, "/v1/events?kinds=nodes")).await;
    problem(
        &answer,
        StatusCode::UNPROCESSABLE_ENTITY,
        "invalid_field",
        Some("kinds"),
    );
}

/// Without followers it does not read the store for this.
#[tokio::test]
async fn a_broker_that_does_not_lead_the_cluster_listens_while_somebody_follows() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_in(folder.path());
    let member = async |name: &str| {
        let mut options = NodeOptions::new(&store, "default");
        options.node = Some(name.to_owned());
        let node = Node::start(options).await.unwrap();
        let cluster = node.cluster(cluster::Options::default()).await.unwrap();
        (node, cluster)
    };
    let (first, cluster) = member("first").await;
    timeout(PATIENCE, cluster.election().elected())
        .await
        .unwrap()
        .unwrap();
    let mut config = config(&store);
    config.ttl = std::time::Duration::from_secs(5);
    let broker = Broker::started(config).await;
    broker.serving().await;
    assert_eq!(broker.handle.node().metrics().cluster.nodes, 0);
    let mut stream = follow(&broker, "?kinds=node", None).await;
    for _ in 0..2 {
        stream.named("node_joined").await;
    }
    let (second, _) = member("second").await;
    assert_eq!(stream.named("node_joined").await["node"], "second");
    second.shutdown().await;
    assert_eq!(stream.named("node_left").await["node"], "second");
    first.shutdown().await;
}

#[tokio::test]
async fn a_change_of_leader_is_told_and_nothing_is_passed_over_in_silence() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_in(folder.path());
    let leader = Broker::started(config(&store)).await;
    leader.serving().await;
    let standby = Broker::started(config(&store)).await;
    let kinds = "?kinds=job,leader,node";
    let mut stream = follow(&standby, kinds, None).await;
    let first = stream.named("leader_elected").await;
    stream.begun().await;
    let id = stream.last_id.clone();
    leader.handle.stop().await;
    while stream.next().await.is_some() {}
    let mut stream = follow(&standby, kinds, Some(&id)).await;
    assert_eq!(stream.next().await.unwrap().0, "reset");
    let (name, second) = stream.next().await.unwrap();
    assert_eq!(
        (&*name, &second["election"]),
        ("leader_elected", &json!("tenure.queue"))
    );
    assert!(second["term"].as_u64() > first["term"].as_u64(), "{second}");
    standby.submit("t").await;
    stream.named("submitted").await;
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
