//! Guarantees that a single writer can test.

use bytes::Bytes;

use super::{Finding, Outcome, Suite, ensure};
use crate::{Change, Error, Expect, Key, Version};

pub(super) async fn replace_current(suite: &Suite) -> Outcome {
    let key = suite.folder("replace-current").key("object")?;
    let mut version = suite.store.put(&key, "0".into(), &Expect::Absent).await?;
    for round in 1..=3 {
        let value = round.to_string().into();
        version = match suite
            .store
            .put(&key, value, &Expect::Version(version))
            .await
        {
            Err(Error::Conflict { .. }) => {
                let seen = "the version of the last write was refused as stale";
                return Err(Finding::Broken(seen.to_owned()));
            }
            written => written?,
        };
    }
    Ok("three writes, each on the one before".to_owned())
}

pub(super) async fn read_your_write(suite: &Suite) -> Outcome {
    let key = suite.folder("read-your-write").key("object")?;
    let mut expect = Expect::Absent;
    for round in 0..20 {
        let value = format!("round {round}");
        let version = suite.store.put(&key, value.clone().into(), &expect).await?;
        holds(suite, &key, value.as_bytes(), &version).await?;
        expect = Expect::Version(version);
    }
    Ok("20 writes, each read back at once".to_owned())
}

pub(super) async fn create_on_existing(suite: &Suite) -> Outcome {
    let key = suite.folder("create-on-existing").key("object")?;
    let first = suite
        .store
        .put(&key, "first".into(), &Expect::Absent)
        .await?;
    refuses(suite, &key, "second", &Expect::Absent).await?;
    holds(suite, &key, b"first", &first).await?;
    Ok("the second create was a conflict".to_owned())
}

pub(super) async fn replace_on_missing(suite: &Suite) -> Outcome {
    let folder = suite.folder("replace-on-missing");
    let other = suite
        .store
        .put(&folder.key("other")?, "other".into(), &Expect::Absent)
        .await?;
    let key = folder.key("object")?;
    refuses(suite, &key, "value", &Expect::Version(other.clone())).await?;
    ensure(suite.store.get(&key).await?.is_none(), || {
        "the object was created".to_owned()
    })?;
    suite
        .store
        .put(&key, "value".into(), &Expect::Absent)
        .await?;
    suite.store.delete(&key).await?;
    refuses(suite, &key, "value", &Expect::Version(other)).await?;
    ensure(suite.store.get(&key).await?.is_none(), || {
        "the deleted object came back".to_owned()
    })?;
    Ok("a conflict, before it ever existed and after it was deleted".to_owned())
}

pub(super) async fn replace_stale_version(suite: &Suite) -> Outcome {
    let key = suite.folder("replace-stale-version").key("object")?;
    let first = suite
        .store
        .put(&key, "first".into(), &Expect::Absent)
        .await?;
    let expect = Expect::Version(first.clone());
    let second = suite.store.put(&key, "second".into(), &expect).await?;
    ensure(first != second, || "two writes have one version".to_owned())?;
    refuses(suite, &key, "late", &expect).await?;
    holds(suite, &key, b"second", &second).await?;
    Ok("the late write was a conflict".to_owned())
}

pub(super) async fn replace_identical_content(suite: &Suite) -> Outcome {
    let key = suite.folder("replace-identical-content").key("object")?;
    let first = suite.store.put(&key, "x".into(), &Expect::Absent).await?;
    let second = suite
        .store
        .put(&key, "y".into(), &Expect::Version(first.clone()))
        .await?;
    let third = suite
        .store
        .put(&key, "x".into(), &Expect::Version(second))
        .await?;
    ensure(first != third, || {
        "the same bytes had the same version again".to_owned()
    })?;
    refuses(suite, &key, "late", &Expect::Version(first)).await?;
    holds(suite, &key, b"x", &third).await?;
    Ok("x, y, x again: the first version stayed old".to_owned())
}

pub(super) async fn replace_recreated(suite: &Suite) -> Outcome {
    let key = suite.folder("replace-recreated").key("object")?;
    let first = suite.store.put(&key, "x".into(), &Expect::Absent).await?;
    suite.store.delete(&key).await?;
    let second = suite.store.put(&key, "x".into(), &Expect::Absent).await?;
    ensure(first != second, || {
        "the new object has the version of the deleted one".to_owned()
    })?;
    refuses(suite, &key, "late", &Expect::Version(first)).await?;
    holds(suite, &key, b"x", &second).await?;
    Ok("the version of the deleted object stayed old".to_owned())
}

pub(super) async fn get_if_changed(suite: &Suite) -> Outcome {
    let key = suite.folder("get-if-changed").key("object")?;
    let first = suite
        .store
        .put(&key, "first".into(), &Expect::Absent)
        .await?;
    let change = suite.store.get_if_changed(&key, &first).await?;
    ensure(change == Change::Unchanged, || {
        format!("an unchanged object gave {change:?}")
    })?;

    let second = suite
        .store
        .put(&key, "second".into(), &Expect::Version(first.clone()))
        .await?;
    match suite.store.get_if_changed(&key, &first).await? {
        Change::Changed(object) if object.version == second && object.value == "second" => {}
        other => return Err(Finding::Broken(format!("a changed object gave {other:?}"))),
    }

    suite.store.delete(&key).await?;
    let change = suite.store.get_if_changed(&key, &second).await?;
    ensure(change == Change::Missing, || {
        format!("a deleted object gave {change:?}")
    })?;
    Ok("unchanged, changed and missing were told apart".to_owned())
}

pub(super) async fn delete(suite: &Suite) -> Outcome {
    let folder = suite.folder("delete");
    let key = folder.key("object")?;
    suite
        .store
        .put(&key, "value".into(), &Expect::Absent)
        .await?;
    suite.store.delete(&key).await?;
    ensure(suite.store.get(&key).await?.is_none(), || {
        "the object can still be read".to_owned()
    })?;
    let listed = suite.store.list(&folder, None).await?.entries;
    ensure(listed.is_empty(), || {
        format!("the listing still shows {listed:?}")
    })?;
    suite.store.delete(&key).await?;
    Ok("gone from reads and listings".to_owned())
}

/// Fails the check unless this write is a conflict.
async fn refuses(suite: &Suite, key: &Key, value: &str, expect: &Expect) -> Result<(), Finding> {
    match suite
        .store
        .put(key, Bytes::copy_from_slice(value.as_bytes()), expect)
        .await
    {
        Err(Error::Conflict { .. }) => Ok(()),
        Ok(_) => Err(Finding::Broken(
            "the write was accepted: the condition is ignored".to_owned(),
        )),
        Err(error) => Err(error.into()),
    }
}

/// Fails the check unless the object has this value and version.
async fn holds(suite: &Suite, key: &Key, value: &[u8], version: &Version) -> Result<(), Finding> {
    match suite.store.get(key).await? {
        Some(object) if object.value == value && object.version == *version => Ok(()),
        Some(object) if object.value == value => Err(Finding::Broken(format!(
            "the write was answered with {version:?}, the read with {:?}",
            object.version
        ))),
        Some(_) => Err(Finding::Broken("a read shows another value".to_owned())),
        None => Err(Finding::Broken("a read shows no object".to_owned())),
    }
}
