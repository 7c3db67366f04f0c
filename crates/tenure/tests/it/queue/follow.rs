//! Following: everything that is committed, in order, and a word when something was missed.

use std::sync::Arc;

use tenure::core::queue::Event;
use tenure::queue::{Cut, Options};
use tenure::store::engine::memory::Memory;

use super::stage::{claim, done, node_on, open_with, submit, worker};
use crate::support::PATIENCE;

#[tokio::test]
async fn followers_see_everything_in_order_and_are_told_what_they_missed() {
    let node = node_on(Arc::new(Memory::new()), "follow", "a", PATIENCE, None).await;
    let options = Options {
        follow_max: 8,
        ..Options::default()
    };
    let queue = open_with(&node, options).await;
    let (mut quick, mut slow) = (queue.follow(), queue.follow());
    let mut seen = Vec::new();
    for number in 0..10 {
        submit(&queue, &[&number.to_string()]).await;
        let claimed = claim(&queue, worker("w")).await;
        queue.complete(vec![done(&claimed[0])]).await.unwrap();
        for _ in 0..3 {
            let followed = quick.next().await.unwrap();
            assert!(followed.at_ms > 0);
            seen.push(followed.position.0);
            let event = &followed.events[0];
            assert!(match seen.len() % 3 {
                1 => matches!(event, Event::Submitted { .. }),
                2 => matches!(event, Event::Claimed { .. }),
                _ => matches!(event, Event::Completed { .. }),
            });
        }
    }
    assert!(seen.is_sorted_by(|a, b| a + 1 == *b), "{seen:?}");
    assert!(matches!(slow.next().await, Err(Cut::Behind { .. })));
    assert_eq!(slow.next().await.unwrap_err(), Cut::Ended);
    let metrics = queue.metrics();
    assert_eq!((metrics.commits, metrics.records), (30, 30));
    assert_eq!((metrics.commit_latency.count, metrics.recoveries), (30, 1));
    queue.close().await;
    assert_eq!(queue.metrics().records, 30, "also when it is closed");
    assert_eq!(quick.next().await.unwrap_err(), Cut::Ended);
    assert_eq!(queue.follow().next().await.unwrap_err(), Cut::Ended);
    node.shutdown().await;
}
