//! Guarantees that only many writers at once can test.
//!
//! Under contention a server may answer "unknown" to some writers; that is honest and allowed. The
//! checks settle such answers by reading back, as every caller must.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::{Finding, Outcome, Suite, ensure, joined};
use crate::{Error, Expect, Key, Store, Version};

/// How often a writer that loses tries again before the store counts as unusable.
const ATTEMPTS_MAX: usize = 2000;

pub(super) async fn create_race(suite: &Suite) -> Outcome {
    let folder = suite.folder("create-race");
    let mut unknown = 0;
    for round in 0..suite.options.rounds {
        let key = folder.key(round.to_string())?;
        let race = one_winner(suite, &key, &Expect::Absent, round).await?;
        unknown += race.unknown;
    }
    Ok(tally(suite, unknown))
}

pub(super) async fn replace_race(suite: &Suite) -> Outcome {
    let key = suite.folder("replace-race").key("object")?;
    let mut version = suite
        .store
        .put(&key, "start".into(), &Expect::Absent)
        .await?;
    let mut unknown = 0;
    for round in 0..suite.options.rounds {
        let race = one_winner(suite, &key, &Expect::Version(version), round).await?;
        unknown += race.unknown;
        version = race.version;
    }
    Ok(tally(suite, unknown))
}

struct Race {
    unknown: usize,
    version: Version,
}

/// Lets every writer try the same write at the same moment. Two winners, or a winner whose value is not
/// there afterwards, break the guarantee.
async fn one_winner(
    suite: &Suite,
    key: &Key,
    expect: &Expect,
    round: usize,
) -> Result<Race, Finding> {
    let writers = suite.options.writers;
    let start = Arc::new(Barrier::new(writers));
    let mut tasks = JoinSet::new();
    for writer in 0..writers {
        let (store, key, expect) = (suite.store.clone(), key.clone(), expect.clone());
        let start = start.clone();
        tasks.spawn(async move {
            // No value is used twice, or the winner of the last round would pass for this one's.
            let value = Bytes::from(format!("round {round}, writer {writer}"));
            start.wait().await;
            (value.clone(), store.put(&key, value, &expect).await)
        });
    }

    let (mut winners, mut unknown, mut losers) = (Vec::new(), Vec::new(), Vec::new());
    while !tasks.is_empty() {
        let (value, result) = joined(tasks.join_next().await);
        match result {
            Ok(version) => winners.push((value, version)),
            Err(Error::Unknown { .. }) => unknown.push(value),
            // Busy is an honest answer under contention, and nothing was written.
            Err(Error::Conflict { .. } | Error::Unavailable { .. }) => losers.push(value),
            Err(error) => return Err(error.into()),
        }
    }
    ensure(winners.len() <= 1, || {
        format!("{} of {writers} racing writers won", winners.len())
    })?;

    let object = suite.store.get(key).await?;
    let version = match (winners.first(), object) {
        (Some((value, version)), Some(object)) => {
            ensure(object.value == *value && object.version == *version, || {
                "the winner's value was overwritten by a loser".to_owned()
            })?;
            object.version
        }
        (Some(_), None) => {
            return Err(Finding::Broken(
                "the winner's value is not there".to_owned(),
            ));
        }
        (None, Some(object)) if unknown.contains(&object.value) => object.version,
        (None, Some(object)) if losers.contains(&object.value) => {
            return Err(Finding::Broken(
                "a writer was told that nothing was written, and it was".to_owned(),
            ));
        }
        // Nobody won. That is allowed only if every writer was told so, or its write may still arrive.
        (None, _) => alone(suite, key, expect, &unknown).await?,
    };
    Ok(Race {
        unknown: unknown.len(),
        version,
    })
}

/// Repeats the write alone. It must succeed now, unless one of the writes without an answer arrives first.
async fn alone(
    suite: &Suite,
    key: &Key,
    expect: &Expect,
    unknown: &[Bytes],
) -> Result<Version, Finding> {
    match suite.store.put(key, "alone".into(), expect).await {
        Ok(version) => Ok(version),
        Err(error @ Error::Conflict { .. }) => match suite.store.get(key).await? {
            Some(object) if unknown.contains(&object.value) => Ok(object.version),
            _ => Err(error.into()),
        },
        Err(error) => Err(error.into()),
    }
}

fn tally(suite: &Suite, unknown: usize) -> String {
    let Suite { options, .. } = suite;
    let settled = match unknown {
        0 => String::new(),
        count => format!(", {count} unknown answers settled by reading back"),
    };
    format!(
        "{} races of {} writers, one winner each{settled}",
        options.rounds, options.writers
    )
}

/// Every writer raises its own count in one shared object, by read, change, conditional write. At the end each count
/// must be exactly what its writer was told.
pub(super) async fn increments(suite: &Suite) -> Outcome {
    let writers = suite.options.writers;
    let each = 4;
    let key = suite.folder("increments").key("object")?;
    suite
        .store
        .put(&key, encode(&vec![0; writers]), &Expect::Absent)
        .await?;

    let mut tasks = JoinSet::new();
    for writer in 0..writers {
        let (store, key) = (suite.store.clone(), key.clone());
        tasks.spawn(async move {
            for count in 1..=each {
                raise(&*store, &key, writers, writer, count).await?;
            }
            Ok::<_, Finding>(())
        });
    }
    while !tasks.is_empty() {
        joined(tasks.join_next().await)?;
    }

    let counts = read(&*suite.store, &key, writers).await?.0;
    ensure(counts.iter().all(|&count| count == each), || {
        format!("{writers} writers added {each} each, the object holds {counts:?}")
    })?;
    Ok(format!(
        "{writers} writers, {} increments, all there",
        writers * each as usize
    ))
}

/// Raises this writer's count to `count`, once.
async fn raise(
    store: &dyn Store,
    key: &Key,
    writers: usize,
    writer: usize,
    count: u32,
) -> Result<(), Finding> {
    for attempt in 0..ATTEMPTS_MAX {
        let (mut counts, version) = read(store, key, writers).await?;
        // This is also how a write whose answer was lost is recognised: it is never repeated blindly.
        if counts[writer] == count {
            return Ok(());
        }
        ensure(counts[writer] + 1 == count, || {
            "an update was lost".to_owned()
        })?;
        counts[writer] = count;
        match store
            .put(key, encode(&counts), &Expect::Version(version))
            .await
        {
            Ok(_) => return Ok(()),
            Err(Error::Conflict { .. } | Error::Unknown { .. } | Error::Unavailable { .. }) => {
                // Spread the losers out, each at its own pace, so that the race ends.
                let pause = (attempt * 3 + writer * 7) % 40;
                tokio::time::sleep(Duration::from_millis(pause as u64)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(Finding::Broken(format!(
        "a writer lost {ATTEMPTS_MAX} times in a row"
    )))
}

async fn read(
    store: &dyn Store,
    key: &Key,
    writers: usize,
) -> Result<(Vec<u32>, Version), Finding> {
    let object = store.get(key).await?;
    let object = object.ok_or_else(|| Finding::Broken("the object vanished".to_owned()))?;
    let counts: Option<Vec<u32>> = std::str::from_utf8(&object.value)
        .ok()
        .and_then(|text| text.split(' ').map(|count| count.parse().ok()).collect())
        .filter(|counts: &Vec<u32>| counts.len() == writers);
    let counts = counts.ok_or_else(|| Finding::Broken("a reader saw half a value".to_owned()))?;
    Ok((counts, object.version))
}

fn encode(counts: &[u32]) -> Bytes {
    counts
        .iter()
        .map(u32::to_string)
        .collect::<Vec<_>>()
        .join(" ")
        .into()
}
