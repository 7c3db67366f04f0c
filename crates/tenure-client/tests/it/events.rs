//! What happens, as it happens.

use tenure_client::{Claim, NewJob, QueueName};
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
