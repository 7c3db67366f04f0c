//! What happens, as it happens.

use std::time::Duration;

use tenure_client::{Claim, Client, NewJob, QueueName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::support::{Broker, PATIENCE};

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_hears_of_everything_in_its_queue() {
    let broker = Broker::start().await;
    let mut events = broker.client.events(Some(QueueName::new("bulk").unwrap()));
    let first = timeout(PATIENCE, events.next()).await.unwrap().unwrap();
    assert_eq!(first.event, "reset", "what was before is not told");
    let elsewhere = NewJob::new("mail", &1).queue("other");
    broker.client.submit(elsewhere).await.unwrap();
    broker.claim().await;
    let job = NewJob::new("mail", &1).queue("bulk").id("a");
    broker.client.submit(job).await.unwrap();
    let claim = Claim::from(&broker.claim().await);
    broker.client.complete(&claim, None).await.unwrap();
    let mut seen = Vec::new();
    while seen.last().is_none_or(|name| name != "completed") {
        let event = timeout(PATIENCE, events.next()).await.unwrap().unwrap();
        assert_eq!(event.id.unwrap().as_str(), "a");
        seen.push(event.event);
    }
    assert_eq!(seen, ["submitted", "claimed", "completed"]);
}

#[tokio::test]
async fn a_refusal_without_an_end_holds_up_no_follower() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (tell, mut asked) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut kept = Vec::new();
        loop {
            let (mut connection, _) = listener.accept().await.unwrap();
            let asked = connection.read(&mut [0; 4096]).await.unwrap();
            assert!(asked > 0);
            let head = "HTTP/1.1 400 Bad Request\r\ncontent-length: 9\r\n\r\n{";
            connection.write_all(head.as_bytes()).await.unwrap();
            kept.push(connection);
            let _ = tell.send(());
        }
    });
    let builder = Client::builder([url]).attempt_timeout(Duration::from_millis(500));
    let mut events = builder.build().unwrap().events(None);
    let asked_again = async {
        asked.recv().await;
        asked.recv().await;
    };
    tokio::select! {
        event = events.next() => panic!("{event:?}"),
        again = timeout(PATIENCE, asked_again) => again.expect("it asks again"),
    }
}
