//! Does something that only one process may do at a time.
//!
//! ```text
//! cargo run --example leader                        a demonstration in memory, which ends
//! cargo run --example leader -- file:./data web-1   in as many terminals as you like
//! ```
//!
//! Stop the leader with Ctrl-C, and the next one continues at once; kill it with -9, and the next one continues when
//! its ttl is over.

#![allow(clippy::print_stdout, reason = "this is what the example does")]

use std::time::Duration;

use tenure::{Leadership, Node, NodeOptions};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let Some(store) = arguments.next() else {
        return demonstrate().await;
    };
    let mut options = NodeOptions::new(store, "example");
    options.node = arguments.next();

    let node = Node::start(options).await?;
    let election = node.join("leader").await?;
    tokio::select! {
        // Runs `work` each time this process is elected, until it is stopped.
        result = election.lead(work) => result?,
        _ = tokio::signal::ctrl_c() => {}
    }
    node.shutdown().await;
    Ok(())
}

/// What only the leader does, until it is told to stop.
async fn work(leadership: Leadership) {
    println!("term {}: this process leads", leadership.term());
    // Asked right before the act: the process may have been paused.
    while leadership.check().is_ok() {
        println!(
            "term {}: works, with the token {}",
            leadership.term(),
            leadership.token()
        );
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
            () = leadership.stopping().cancelled_owned() => break,
        }
    }
    println!("term {}: stops", leadership.term());
}

async fn demonstrate() -> Result<()> {
    let node = Node::start(NodeOptions::new("memory:", "example")).await?;
    let election = node.join("leader").await?;
    let leadership = election.elected().await?;
    let lines = async {
        for number in 1..=3 {
            println!("line {number}, with the token {}", leadership.token());
        }
    };
    leadership.run(lines).await?;
    node.shutdown().await;
    assert!(leadership.check().is_err());
    Ok(())
}
