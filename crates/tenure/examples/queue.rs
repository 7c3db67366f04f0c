//! A queue in a program of your own: workers take jobs, one fails and is tried again, and progress is shown.
//!
//! ```text
//! cargo run --example queue                       in memory
//! cargo run --example queue -- file:./data        in a folder; start it twice, and one of them serves
//! ```

#![allow(clippy::print_stdout, reason = "this is what the example does")]

use std::time::Duration;

use tenure::core::queue::{ClaimRequest, Claimed, Completion, Failure, Key, Payload, Submission};
use tenure::core::{JobId, JobType};
use tenure::queue::{Error, Options, Queue};
use tenure::{Node, NodeOptions};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const JOBS: usize = 10;

#[tokio::main]
async fn main() -> Result<()> {
    let store = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let node = Node::start(NodeOptions::new(store, "queue-example")).await?;
    let queue = Queue::open(&node, Options::default()).await?;
    println!("waiting until this process leads");
    queue.serving().await?;

    // Ids of our own: whatever is sent twice is enqueued once.
    let jobs = (0..JOBS).map(job).collect::<Result<Vec<_>>>()?;
    for answer in queue.submit(jobs).await? {
        println!("{}", serde_json::to_string(&answer)?);
    }
    let workers = ["ann", "bob"].map(|name| tokio::spawn(work(queue.clone(), name)));
    for worker in workers {
        worker.await??;
    }
    for view in queue.queues()? {
        println!("{}", serde_json::to_string(&view)?);
    }
    queue.close().await;
    node.shutdown().await;
    Ok(())
}

fn job(number: usize) -> Result<Submission> {
    let mut job = Submission::new(JobType::new("square")?);
    job.id = Some(JobId::new(format!("square-{number}"))?);
    job.payload = Payload::new(number.to_string())?;
    Ok(job)
}

/// Takes jobs until there are none for a while.
async fn work(queue: Queue, name: &str) -> Result<()> {
    let mut claim = ClaimRequest::new(Key::new(name)?);
    claim.max = 3;
    loop {
        let jobs = queue
            .claim(claim.clone().waiting(Duration::from_secs(1)))
            .await?;
        if jobs.is_empty() {
            return Ok(());
        }
        for job in jobs {
            settle(&queue, name, job).await?;
        }
    }
}

async fn settle(queue: &Queue, name: &str, job: Claimed) -> Result<()> {
    let number: u64 = job.payload.as_str().parse()?;
    let Claimed {
        id, token, attempt, ..
    } = job;
    // Every third job fails at first.
    if number.is_multiple_of(3) && attempt == 1 {
        println!("{name}: {id} fails");
        let failure = Failure {
            id,
            token,
            error: Some("not today".into()),
            retry_in_ms: Some(100),
            permanent: false,
        };
        return ended(queue.fail(vec![failure]).await);
    }
    println!("{name}: {id} is {}", number * number);
    let result = Some(Payload::new((number * number).to_string())?);
    ended(queue.complete(vec![Completion { id, token, result }]).await)
}

/// After an unknown outcome a program sends the same again, to the leader of that time; here it is over.
fn ended<T>(result: std::result::Result<T, Error>) -> Result<()> {
    result.map(drop).map_err(Into::into)
}
