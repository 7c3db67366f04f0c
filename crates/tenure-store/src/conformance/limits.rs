//! Sizes, characters and listings.

use bytes::Bytes;

use super::{Finding, Outcome, Suite, ensure};
use crate::{Error, Expect, Key, PAGE_ENTRIES_MAX, SEGMENT_BYTES_MAX, VALUE_BYTES_MAX, list_all};

pub(super) async fn values(suite: &Suite) -> Outcome {
    let folder = suite.folder("values");
    let every_byte: Bytes = (0..=255).collect();
    let blanks = Bytes::from(format!("\n{}", " \t".repeat(32)));
    // Not compressible and not periodic, so that a store that drops a block is caught.
    let large: Bytes = (0..VALUE_BYTES_MAX as u64)
        .map(|at| (at * at / 251).to_le_bytes()[0])
        .collect();
    let samples = [
        Bytes::new(),
        Bytes::from_static(b"\0"),
        every_byte,
        blanks,
        large,
    ];
    for (index, value) in samples.into_iter().enumerate() {
        let key = folder.key(index.to_string())?;
        let first = suite
            .store
            .put(&key, "before".into(), &Expect::Absent)
            .await?;
        suite
            .store
            .put(&key, value.clone(), &Expect::Version(first))
            .await?;
        let read = suite.store.get(&key).await?.map(|object| object.value);
        ensure(read.as_ref() == Some(&value), || {
            let read = read.map_or("nothing".to_owned(), |read| format!("{} bytes", read.len()));
            format!(
                "a value of {} bytes came back as {read}, or with other bytes",
                value.len()
            )
        })?;
    }

    let key = folder.key("too-large")?;
    match suite
        .store
        .put(&key, vec![0; VALUE_BYTES_MAX + 1].into(), &Expect::Absent)
        .await
    {
        Err(Error::Invalid { .. }) => {}
        other => {
            return Err(Finding::Broken(format!(
                "a value that is too large gave {other:?}"
            )));
        }
    }
    ensure(suite.store.get(&key).await?.is_none(), || {
        "part of it was stored".to_owned()
    })?;
    Ok("0 B, 1 B, 256 B, 65 B of blanks and 8 MiB came back; 8 MiB + 1 was refused".to_owned())
}

pub(super) async fn keys(suite: &Suite) -> Outcome {
    let folder = suite.folder("keys");
    let names = [
        "a",
        "A",
        "b.",
        "b",
        "b-",
        "b_",
        "0",
        "00",
        "-",
        "_",
        "a:b@c+d=e",
        "a.b..c",
        "41",
    ];
    let mut keys: Vec<Key> = Vec::new();
    for name in names {
        keys.push(folder.key(name)?);
    }
    let longest_bytes = suite.options.key_bytes_max;
    keys.push(longest(folder.as_str(), longest_bytes)?);
    for key in &keys {
        suite
            .store
            .put(key, key.as_str().to_owned().into(), &Expect::Absent)
            .await
            .map_err(|error| match error {
                Error::Conflict { .. } => {
                    Finding::Broken(format!("{key} was mistaken for another key"))
                }
                error => error.into(),
            })?;
    }
    for key in &keys {
        let read = suite.store.get(key).await?.map(|object| object.value);
        ensure(read.as_deref() == Some(key.as_str().as_bytes()), || {
            format!("{key} holds what was written to another key")
        })?;
    }
    keys.sort();
    let listed: Vec<Key> = list_all(&*suite.store, &folder)
        .await?
        .into_iter()
        .map(|entry| entry.key)
        .collect();
    ensure(listed == keys, || {
        format!("the listing differs: {listed:?}")
    })?;
    Ok(format!(
        "{} keys, the longest of {longest_bytes} bytes",
        keys.len()
    ))
}

/// A key of `bytes` under `folder`, made of full-length segments as far as they fit.
fn longest(folder: &str, bytes: usize) -> Result<Key, Error> {
    let mut text = folder.to_owned();
    while bytes - text.len() > SEGMENT_BYTES_MAX + 1 {
        text.push_str(&"x".repeat(SEGMENT_BYTES_MAX));
        text.push('/');
    }
    text.push_str(&"y".repeat(bytes - text.len()));
    Key::new(text)
}

pub(super) async fn list(suite: &Suite) -> Outcome {
    let folder = suite.folder("list");
    let mut keys: Vec<Key> = Vec::new();
    // Names that sort around `/`: a walk through folders easily gets their order wrong.
    for name in ["a-b", "a/b", "a/c/d", "a0", "a.c", "ab/c", "z"] {
        keys.push(folder.key(name)?);
    }
    for index in 0..suite.options.listed {
        keys.push(folder.key(format!("many/{index:06}"))?);
    }
    suite
        .for_each_key(keys.iter().cloned(), |store, key| async move {
            store
                .put(&key, key.as_str().to_owned().into(), &Expect::Absent)
                .await
                .map(drop)
        })
        .await?;
    keys.sort();

    let entries = list_all(&*suite.store, &folder).await?;
    let listed: Vec<Key> = entries.iter().map(|entry| entry.key.clone()).collect();
    ensure(listed == keys, || {
        let wrong = keys
            .iter()
            .zip(&listed)
            .position(|(left, right)| left != right);
        format!(
            "{} keys were written, {} listed, first difference at {wrong:?}",
            keys.len(),
            listed.len()
        )
    })?;

    for entry in [&entries[0], &entries[entries.len() / 2]] {
        let read = suite
            .store
            .get(&entry.key)
            .await?
            .map(|object| object.version);
        ensure(read.as_ref() == Some(&entry.version), || {
            format!(
                "{} was listed with {:?} but has {read:?}",
                entry.key, entry.version
            )
        })?;
    }
    // A version from a listing must work for a write, as one from a read does.
    let first = &entries[0];
    suite
        .store
        .put(
            &first.key,
            "again".into(),
            &Expect::Version(first.version.clone()),
        )
        .await?;

    let page = suite.store.list(&folder, Some(&keys[2])).await?;
    let expected = keys.len().min(3 + PAGE_ENTRIES_MAX) - 3;
    ensure(
        page.entries.first().map(|entry| &entry.key) == keys.get(3),
        || "a listing does not start right after the given key".to_owned(),
    )?;
    ensure(
        page.entries.len() <= PAGE_ENTRIES_MAX && (page.more || page.entries.len() == expected),
        || {
            format!(
                "a page has {} entries and more is {}",
                page.entries.len(),
                page.more
            )
        },
    )?;

    let inside = list_all(&*suite.store, &folder.join("a")?).await?;
    ensure(inside.len() == 2, || {
        "a prefix matched half a segment".to_owned()
    })?;
    let beyond = suite.store.list(&folder, keys.last()).await?;
    ensure(beyond.entries.is_empty() && !beyond.more, || {
        "there are entries after the last key".to_owned()
    })?;
    Ok(format!("{} keys in order", keys.len()))
}
