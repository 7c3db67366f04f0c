//! What an engine may offer beyond the contract.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::{Finding, Outcome, Suite, ensure};
use crate::{Expect, Hint};

/// How long a hint may take.
const HINT_WITHIN: Duration = Duration::from_secs(1);

pub(super) async fn age(suite: &Suite) -> Outcome {
    if !suite.store.describe().capabilities.age {
        return Err(Finding::NotOffered(
            "the engine cannot tell how old an object is",
        ));
    }
    let key = suite.folder("age").key("object")?;
    let mut expect = Expect::Absent;
    let mut oldest = Duration::ZERO;
    for wait in [0, 5, 300, 1500, 0] {
        // The write happened at some moment after this one, so the real age is less.
        let before = Instant::now();
        let value = format!("{wait} ms later");
        let version = suite.store.put(&key, value.into(), &expect).await?;
        sleep(Duration::from_millis(wait)).await;
        let age = suite.store.get(&key).await?.and_then(|object| object.age);
        let most = before.elapsed();
        let age = age.ok_or_else(|| Finding::Broken("a read gave no age".to_owned()))?;
        ensure(age <= most, || {
            format!("an object of at most {most:?} claims to be {age:?} old")
        })?;
        oldest = oldest.max(age);
        expect = Expect::Version(version);
    }
    Ok(format!(
        "five reads up to 1.5 s after the write, the oldest said {oldest:.1?}"
    ))
}

pub(super) async fn hints(suite: &Suite) -> Outcome {
    if !suite.store.describe().capabilities.hints {
        return Err(Finding::NotOffered(
            "the engine has no hints; changes are found by polling",
        ));
    }
    let folder = suite.folder("hints");
    let key = folder.key("object")?;
    let mut watch = suite
        .store
        .watch(&folder)
        .ok_or_else(|| Finding::Broken("the engine offers hints but gave no watch".to_owned()))?;
    // A watch may take a moment to start, and no hint is promised before that.
    sleep(Duration::from_millis(300)).await;
    let mut expect = Expect::Absent;
    let mut slowest = Duration::ZERO;
    for round in 0..3 {
        // Without this, a late hint of the round before would count for this round.
        while timeout(Duration::from_millis(50), watch.next())
            .await
            .is_ok_and(|hint| hint.is_some())
        {}
        let written = suite
            .store
            .put(&key, format!("round {round}").into(), &expect)
            .await?;
        let started = Instant::now();
        let hint = timeout(HINT_WITHIN, watch.next()).await;
        slowest = slowest.max(started.elapsed());
        match hint {
            Ok(Some(Hint::Anything)) => {}
            Ok(Some(Hint::Changed(changed))) => {
                ensure(changed == key, || {
                    format!("the hint for {key} named {changed}")
                })?;
            }
            Ok(None) => return Err(Finding::Broken("the watch ended on its own".to_owned())),
            Err(_) => return Err(Finding::Broken(format!("no hint within {HINT_WITHIN:?}"))),
        }
        expect = Expect::Version(written);
    }
    Ok(format!("three changes, each reported within {slowest:.1?}"))
}
