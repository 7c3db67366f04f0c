//! Damage: every bit of everything that is stored, and everything that can be missing or cut short.

use std::fs;

use bytes::Bytes;
use tenure::queue::{Config, Error, Writer};
use tenure::store::{Expect, Key, list_all};
use tokio_util::sync::CancellationToken;

use super::suite::tiny;
use super::world::{World, frames_of, records};

#[tokio::test]
async fn no_bit_of_a_segment_changes_unnoticed() {
    let world = World::file().await;
    for term in 1..=2 {
        let (mut log, _) = world.lead(term, Config::default()).await.unwrap();
        for text in ["a b", "c d"] {
            log.commit(&records(&[text, "x"])).await.unwrap();
        }
    }
    let whole = world.replay().await.unwrap();
    for path in world.segments() {
        let stored = fs::read(&path).unwrap();
        let frames = frames_of(&path);
        // Also the last frame of the last segment: it is whole, so it is no torn one.
        for byte in 0..frames.len() {
            let mut damaged = frames.clone();
            damaged[byte] ^= 1 << (byte % 8);
            // As its leader left it, or as if it had ended in an orderly way.
            damaged.resize(frames.len() + 2000 * (byte % 2), 0);
            fs::write(&path, &damaged).unwrap();
            let error = world.replay().await.expect_err("a changed bit");
            let text = error.to_string();
            let name = path.file_name().unwrap().to_str().unwrap();
            assert!(
                matches!(error, Error::Corrupt { .. }),
                "byte {byte}: {text}"
            );
            assert!(
                text.contains(name) && text.contains("offset"),
                "byte {byte}: {text}"
            );
        }
        fs::write(&path, stored).unwrap();
    }
    assert_eq!(world.replay().await.unwrap().records, whole.records);
}

/// A log, and the snapshots of three.
pub(super) async fn world_with_snapshots() -> World {
    let world = World::memory();
    let (log, machine) = world.lead(1, tiny()).await.unwrap();
    let (handle, writer) = Writer::new(log, machine, CancellationToken::new());
    let writer = tokio::spawn(writer.run());
    let mut number = 0;
    while handle.statistics().snapshots < 3 {
        handle
            .commit(format!("{{\"number\":{number}}}"))
            .await
            .unwrap();
        number += 1;
        tokio::task::yield_now().await;
    }
    // There is a log behind the last snapshot.
    for _ in 0..3 {
        handle.commit("\"more\"").await.unwrap();
    }
    handle.shutdown().await;
    writer.await.unwrap().unwrap();
    world
}

async fn replace(world: &World, key: &Key, value: Bytes) {
    world.store.delete(key).await.unwrap();
    world.store.put(key, value, &Expect::Absent).await.unwrap();
}

/// The keys that recovery needs: the newest snapshot, and the log behind it.
async fn needed(world: &World) -> Vec<Key> {
    let all = list_all(&*world.store, &tenure::store::Prefix::root())
        .await
        .unwrap();
    let keys: Vec<Key> = all.into_iter().map(|entry| entry.key).collect();
    let manifest = keys.iter().rfind(|key| key.name() == "manifest").unwrap();
    let snapshot = manifest.segments().nth(3).unwrap().to_owned();
    let seq: u64 = snapshot.split_once('-').unwrap().0.parse().unwrap();
    let is_needed = |key: &Key| match key.segments().nth(2).unwrap() {
        "log" => key.name().parse::<u64>().unwrap() > seq,
        "snapshot" => key.segments().nth(3).unwrap() == snapshot,
        _ => false,
    };
    keys.into_iter().filter(is_needed).collect()
}

#[tokio::test]
async fn no_bit_of_an_object_changes_unnoticed() {
    let world = world_with_snapshots().await;
    let whole = world.replay().await.unwrap();
    assert!(whole.restored > 0);
    let needed = needed(&world).await;
    assert!(needed.len() > 6, "{needed:?}");
    for key in needed {
        let stored = world.store.get(&key).await.unwrap().unwrap().value;
        let mut damages = vec![Bytes::new(), Bytes::from_static(b"{}\n")];
        damages.extend((0..stored.len()).step_by(41).map(|end| stored.slice(..end)));
        damages.extend((0..stored.len()).step_by(3).map(|byte| {
            let mut damaged = stored.to_vec();
            damaged[byte] ^= 1 << (byte % 8);
            Bytes::from(damaged)
        }));
        damages.push([&stored[..], b"x"].concat().into());
        for damaged in damages {
            replace(&world, &key, damaged).await;
            let error = world.replay().await.expect_err("damage");
            assert!(matches!(error, Error::Corrupt { .. }), "{key}: {error}");
            assert!(
                error.to_string().starts_with(&format!("{key} is damaged")),
                "{error}"
            );
        }
        replace(&world, &key, stored).await;
    }
    assert_eq!(world.replay().await.unwrap().records, whole.records);
}

#[tokio::test]
async fn whatever_is_missing_is_named() {
    let world = world_with_snapshots().await;
    let needed = needed(&world).await;
    let last = needed
        .iter()
        .rfind(|key| key.segments().nth(2) == Some("log"))
        .cloned();
    for key in needed {
        // Without its manifest a snapshot is none, and the one before it counts; the end of the log may
        // always have been there.
        if key.name() == "manifest" || Some(&key) == last.as_ref() {
            continue;
        }
        let stored = world.store.get(&key).await.unwrap().unwrap().value;
        world.store.delete(&key).await.unwrap();
        for error in [
            world.replay().await.unwrap_err(),
            world.lead(2, Config::default()).await.unwrap_err(),
        ] {
            assert_eq!(
                error.to_string(),
                format!("{key} is damaged: it is missing")
            );
        }
        replace(&world, &key, stored).await;
    }
    world.lead(3, Config::default()).await.unwrap();
}

#[tokio::test]
async fn objects_that_changed_places_are_found_out() {
    let world = World::memory();
    let (mut log, _) = world.lead(1, Config::default()).await.unwrap();
    for text in ["a", "b", "c"] {
        log.commit(&records(&[text])).await.unwrap();
    }
    let second = world
        .store
        .get(&world.place(3))
        .await
        .unwrap()
        .unwrap()
        .value;
    replace(&world, &world.place(4), second).await;
    let error = world.replay().await.unwrap_err().to_string();
    assert!(
        error.contains("place 3 with record 2 follows, where place 4"),
        "{error}"
    );
}
