//! Eight tasks raise one counter, on any store:
//!
//! ```sh
//! cargo run -p tenure-store --example counter -- file:./counter-data
//! ```
//!
//! `raise` is the loop that every user of a store writes: read, change, write if nothing has
//! changed meanwhile; start over on a conflict; and after a lost answer, look for your own write
//! before anything else.
#![allow(clippy::print_stdout)]

use std::sync::Arc;

use tenure_store::{Error, Expect, Key, Store, Version};

const TASKS: usize = 8;
const EACH: u32 = 5;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1);
    let store = tenure_store::open(url.as_deref().unwrap_or("memory:")).await?;
    // Each run has its own key, so that counters of earlier runs do not matter.
    let key = Key::new(format!("example/counter/{}", std::process::id()))?;
    write(&*store, &key, &[0; TASKS], &Expect::Absent).await?;

    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let (store, key): (Arc<dyn Store>, _) = (store.clone(), key.clone());
        tasks.spawn(async move {
            for count in 1..=EACH {
                raise(&*store, &key, task, count).await?;
            }
            Ok::<_, Error>(())
        });
    }
    while let Some(result) = tasks.join_next().await {
        result??;
    }

    let (counts, _) = read(&*store, &key).await?;
    assert_eq!(counts, [EACH; TASKS]);
    let total: u32 = counts.iter().sum();
    println!("{TASKS} tasks raised the counter to {total}");
    store.delete(&key).await?;
    Ok(())
}

/// Raises this task's share of the counter to `count`, exactly once.
async fn raise(store: &dyn Store, key: &Key, task: usize, count: u32) -> Result<(), Error> {
    loop {
        let (mut counts, version) = read(store, key).await?;
        if counts[task] == count {
            return Ok(()); // An earlier attempt did arrive; only its answer was lost.
        }
        counts[task] = count;
        match write(store, key, &counts, &Expect::Version(version)).await {
            Ok(_) => return Ok(()),
            Err(Error::Conflict { .. } | Error::Unknown { .. }) => {}
            Err(error) => return Err(error),
        }
    }
}

async fn read(store: &dyn Store, key: &Key) -> Result<(Vec<u32>, Version), Error> {
    let object = store.get(key).await?;
    let parsed = object.and_then(|object| {
        let text = std::str::from_utf8(&object.value).ok()?;
        let counts: Option<Vec<u32>> = text.split(' ').map(|count| count.parse().ok()).collect();
        Some((
            counts.filter(|counts| counts.len() == TASKS)?,
            object.version,
        ))
    });
    parsed.ok_or_else(|| Error::Corrupt {
        location: key.to_string(),
        what: "it does not hold the counters of this run".to_owned(),
    })
}

async fn write(
    store: &dyn Store,
    key: &Key,
    counts: &[u32],
    expect: &Expect,
) -> Result<Version, Error> {
    let text: Vec<String> = counts.iter().map(u32::to_string).collect();
    store.put(key, text.join(" ").into(), expect).await
}
