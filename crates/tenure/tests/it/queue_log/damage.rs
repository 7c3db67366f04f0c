//! Damage: every bit of everything that is stored, and everything that can be missing or cut short.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure::log::inspect::{Finding, Stored};
use tenure::log::{Config, Error, Writer};
use tenure::store::wrap::faulty::{Fault, Faults, Faulty};
use tenure::store::wrap::metered::Operation;
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
    // The second leader goes on from its own copy of the first segment.
    let segments = world.segments();
    assert_eq!(segments.len(), 3);
    for path in segments.into_iter().skip(1) {
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
        let is_snapshot = key.segments().nth(2) == Some("snapshot");
        for damaged in damages {
            replace(&world, &key, damaged).await;
            if is_snapshot {
                // The one before it makes up for it.
                assert_eq!(world.replay().await.unwrap().records, whole.records);
                assert!(is_named(&world, &key).await, "{key}");
                continue;
            }
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
    let whole = world.replay().await.unwrap().records;
    for key in needed {
        let stored = world.store.get(&key).await.unwrap().unwrap().value;
        world.store.delete(&key).await.unwrap();
        if key.segments().nth(2) == Some("snapshot") {
            assert_eq!(world.replay().await.unwrap().records, whole);
            // Without its manifest a snapshot is none.
            let is_none = key.name() == "manifest";
            assert!(is_none || is_named(&world, &key).await, "{key}");
            replace(&world, &key, stored).await;
            continue;
        }
        for error in [
            world.replay().await.unwrap_err(),
            world.lead(2, Config::default()).await.unwrap_err(),
        ] {
            let text = error.to_string();
            let expected = format!("{key} is damaged: it is missing");
            assert!(text.starts_with(&expected), "{text}");
        }
        replace(&world, &key, stored).await;
    }
    world.lead(3, Config::default()).await.unwrap();
}

/// Whether verifying names an object as damaged.
async fn is_named(world: &World, key: &Key) -> bool {
    let stored = Stored::open(world.store.clone(), &world.namespace).await;
    let (_, findings) = stored.unwrap().unwrap().verify().await.unwrap();
    findings.iter().any(
        |finding| matches!(finding, Finding::Damage { location, .. } if location == key.as_str()),
    )
}

/// Flips a bit in the middle of an object.
async fn damage(world: &World, key: &Key) {
    let stored = world.store.get(key).await.unwrap().unwrap().value;
    let mut damaged = stored.to_vec();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 4;
    replace(world, key, damaged.into()).await;
}

async fn keys_of_snapshots(world: &World) -> Vec<Key> {
    let prefix = tenure::store::Prefix::new(world.key("snapshot").as_str()).unwrap();
    let entries = list_all(&*world.store, &prefix).await.unwrap();
    entries.into_iter().map(|entry| entry.key).collect()
}

async fn manifests(world: &World) -> Vec<Key> {
    let keys = keys_of_snapshots(world).await.into_iter();
    keys.filter(|key| key.name() == "manifest").collect()
}

/// Commits until so many snapshots more were published.
async fn grow(world: &World, term: u64, snapshots: u64, sent: &mut Vec<String>) {
    let (log, machine) = world.lead(term, tiny()).await.unwrap();
    assert_eq!(machine.records, *sent);
    let (handle, writer) = Writer::new(log, machine, CancellationToken::new());
    let writer = tokio::spawn(writer.run());
    while handle.statistics().snapshots < snapshots {
        let line = format!("{{\"number\":{}}}", sent.len());
        handle.commit(line.clone()).await.unwrap();
        sent.push(line);
        tokio::task::yield_now().await;
    }
    handle.shutdown().await;
    writer.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_damaged_snapshot_is_made_up_for_and_nothing_rests_on_it() {
    for world in [World::memory(), World::file().await] {
        let mut sent = Vec::new();
        grow(&world, 1, 3, &mut sent).await;
        let before = manifests(&world).await;
        assert_eq!(before.len(), 2);
        let bad = before[1].clone();
        damage(&world, &bad).await;
        assert_eq!(world.replay().await.unwrap().records, sent);

        // A new one is made at once, before anything is committed, and what the damaged one should have made
        // superfluous stays.
        let (log, machine) = world.lead(2, tiny()).await.unwrap();
        assert_eq!(machine.records, sent);
        let (handle, writer) = Writer::new(log, machine, CancellationToken::new());
        let writer = tokio::spawn(writer.run());
        while handle.statistics().snapshots == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        handle.shutdown().await;
        writer.await.unwrap().unwrap();
        let after = manifests(&world).await;
        assert_eq!(after.len(), 3, "{after:?}");
        assert_eq!(after[..2], before);
        let newest = after[2].clone();
        let whole = world.store.get(&newest).await.unwrap().unwrap().value;
        damage(&world, &newest).await;
        assert_eq!(world.replay().await.unwrap().records, sent);
        replace(&world, &newest, whole).await;

        // It goes with the others when there are two good ones.
        grow(&world, 3, 2, &mut sent).await;
        assert!(!manifests(&world).await.contains(&bad));
        assert_eq!(world.replay().await.unwrap().records, sent);
    }
}

async fn findings(world: &World) -> Vec<Finding> {
    let stored = Stored::open(world.store.clone(), &world.namespace).await;
    let (_, findings) = stored.unwrap().unwrap().verify().await.unwrap();
    let is_damage = |finding: &Finding| matches!(finding, Finding::Damage { .. });
    findings.into_iter().filter(is_damage).collect()
}

#[tokio::test]
async fn a_lost_manifest_is_no_damage_of_the_log() {
    for world in [World::memory(), World::file().await] {
        let mut sent = Vec::new();
        grow(&world, 1, 3, &mut sent).await;
        let [older, newest] = &manifests(&world).await[..] else {
            panic!("two are kept");
        };
        world.store.delete(newest).await.unwrap();
        assert_eq!(world.replay().await.unwrap().records, sent);
        assert_eq!(findings(&world).await, []);
        // Nor after the next start.
        let (mut log, _) = world.lead(2, Config::default()).await.unwrap();
        log.commit(&records(&["more"])).await.unwrap();
        drop(log);
        assert_eq!(findings(&world).await, []);
        // What that start would need is looked at as before.
        let place = world.place(place_of(older) + 1);
        if world.store.get(&place).await.unwrap().is_some() {
            world.store.delete(&place).await.unwrap();
            assert_eq!(findings(&world).await.len(), 1);
        }
    }
}

#[tokio::test]
async fn an_only_snapshot_is_made_up_for_by_the_whole_log() {
    for world in [World::memory(), World::file().await] {
        let mut sent = Vec::new();
        grow(&world, 1, 1, &mut sent).await;
        for key in keys_of_snapshots(&world).await {
            damage(&world, &key).await;
        }
        assert_eq!(world.replay().await.unwrap().records, sent);
    }
}

#[tokio::test]
async fn damage_that_nothing_makes_up_for_is_named() {
    let world = world_with_snapshots().await;
    let snapshots = manifests(&world).await;
    let [.., older, newest] = &snapshots[..] else {
        panic!("{snapshots:?}");
    };
    damage(&world, newest).await;
    world.replay().await.unwrap();
    // The one before it is damaged as well, or the log behind it has a gap before the newest.
    let whole = world.store.get(older).await.unwrap().unwrap().value;
    damage(&world, older).await;
    let error = world.replay().await.unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("{newest} is damaged")),
        "{error}"
    );
    replace(&world, older, whole).await;
    let place = place_of(newest);
    world.store.delete(&world.place(place)).await.unwrap();
    let error = world.replay().await.unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("{newest} is damaged")),
        "{error}"
    );
    let error = world.lead(9, Config::default()).await.unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
}

/// As after a crash: what is noted of the end is older than the newest snapshot, so that only the snapshot tells that the log
/// went on.
#[tokio::test]
async fn an_end_that_only_a_snapshot_knows_is_named() {
    for world in [World::memory(), World::file().await] {
        let mut sent = Vec::new();
        grow(&world, 1, 1, &mut sent).await;
        let noted = world.store.get(&world.key("reached")).await.unwrap();
        grow(&world, 2, 2, &mut sent).await;
        replace(&world, &world.key("reached"), noted.unwrap().value).await;
        assert_eq!(world.replay().await.unwrap().records, sent);
        assert_eq!(findings(&world).await, []);
        let place = place_of(manifests(&world).await.last().unwrap());
        let before = cut_before(&world, place).await;
        for error in [
            world.replay().await.unwrap_err(),
            world.lead(3, Config::default()).await.unwrap_err(),
        ] {
            assert!(matches!(error, Error::Corrupt { .. }), "{error}");
        }
        assert_eq!(findings(&world).await.len(), 1);
        // With the place itself it is a log that ended there.
        put_back(&world, place, before).await;
        world.replay().await.unwrap();
        assert_eq!(findings(&world).await, []);
    }
}

/// Though people have said that it is to be taken as it is: there is no file to go on from.
#[tokio::test]
async fn a_log_without_any_file_is_not_called_whole() {
    let world = World::file().await;
    grow(&world, 1, 3, &mut Vec::new()).await;
    world.store.delete(&world.key("reached")).await.unwrap();
    assert_eq!(findings(&world).await, []);
    for path in world.segments() {
        fs::remove_file(path).unwrap();
    }
    let error = world.replay().await.unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    assert_eq!(findings(&world).await.len(), 1);
}

/// What was stored under the names of objects, or in files.
type Removed = Vec<(String, Bytes)>;

/// Takes everything away from a place on, and returns what was there.
async fn cut_before(world: &World, place: u64) -> Removed {
    let mut removed = Vec::new();
    for place in place.. {
        let key = world.place(place);
        let Some(object) = world.store.get(&key).await.unwrap() else {
            break;
        };
        world.store.delete(&key).await.unwrap();
        removed.push((key.to_string(), object.value));
    }
    if !removed.is_empty() {
        return removed;
    }
    let mut is_found = false;
    for path in world.segments() {
        let stored = fs::read(&path).unwrap();
        let at = stored
            .windows(20)
            .position(|window| window.starts_with(format!("\"seq\":{place},").as_bytes()));
        let start = at.map(|at| {
            let line = stored[..at].iter().rposition(|byte| *byte == b'\n');
            line.map_or(0, |line| line + 1)
        });
        if is_found {
            fs::remove_file(&path).unwrap();
        } else if let Some(start) = start {
            fs::write(&path, &stored[..start]).unwrap();
            is_found = true;
        } else {
            continue;
        }
        removed.push((path.to_str().unwrap().to_owned(), stored.into()));
    }
    removed
}

/// Puts that place back, and in files what follows it too.
async fn put_back(world: &World, place: u64, removed: Removed) {
    for (name, value) in removed {
        if name == world.place(place).as_str() {
            replace(world, &world.place(place), value).await;
        } else if name.starts_with('/') {
            fs::write(name, value).unwrap();
        }
    }
}

/// The last place that a snapshot contains.
fn place_of(manifest: &Key) -> u64 {
    let name = manifest.segments().nth(3).unwrap();
    name.split_once('-').unwrap().0.parse().unwrap()
}

#[tokio::test]
async fn a_store_that_fails_while_damage_is_made_up_for_is_no_damage() {
    let world = world_with_snapshots().await;
    let newest = manifests(&world).await.pop().unwrap();
    damage(&world, &newest).await;
    let faulty = Arc::new(Faulty::new(world.store.clone(), Faults::default(), 1).unwrap());
    let needed = world.place(place_of(&newest));
    faulty
        .script(Operation::Get, &needed, Fault::Refuse)
        .unwrap();
    let config = Config {
        patience: Duration::ZERO,
        ..Config::default()
    };
    let slow = world.through(faulty);
    let error = slow.lead(9, config.clone()).await.unwrap_err();
    assert!(matches!(error, Error::Store(_)), "{error}");
    slow.lead(10, config).await.unwrap();
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
        error.contains("index 3 with record 2 follows, but index 4"),
        "{error}"
    );
}
