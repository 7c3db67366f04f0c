//! Looking at a log: everything is shown, every damage is named, and nothing that is whole is called damaged.

use bytes::Bytes;
use tenure::log::inspect::{Finding, Frames, Kind, Name, Stored};
use tenure::log::{Config, Error, Form, Writer};
use tenure::store::{Expect, Key, list_all};
use tokio_util::sync::CancellationToken;

use super::suite::tiny;
use super::world::{Memo, World, lines, records};

async fn open(world: &World) -> Stored {
    let stored = Stored::open(world.store.clone(), &world.namespace).await;
    stored.unwrap().expect("there is a queue")
}

async fn damages(world: &World) -> Vec<(String, String)> {
    let (_, findings) = open(world).await.verify().await.unwrap();
    let damage = |finding| match finding {
        Finding::Damage { location, what } => Some((location, what)),
        Finding::Remains { .. } => None,
    };
    findings.into_iter().filter_map(damage).collect()
}

async fn texts(frames: &mut Frames) -> Vec<String> {
    let mut texts = Vec::new();
    while let Some(frame) = frames.next().await.unwrap() {
        if frame.kind == Kind::Commit {
            let text = |line| String::from_utf8(Vec::from(line)).unwrap();
            texts.extend(frame.lines().map(text));
        }
    }
    texts
}

/// Three terms, snapshots and a log behind them. Returns what was committed.
async fn busy(world: &World) -> Vec<String> {
    let mut sent = Vec::new();
    for term in 1..=3 {
        let (log, machine) = world.lead(term, tiny()).await.unwrap();
        let (handle, writer) = Writer::new(log, machine, CancellationToken::new());
        let writer = tokio::spawn(writer.run());
        while handle.statistics().snapshots < 1 {
            let line = format!("{{\"number\":{}}}", sent.len());
            handle.commit(line.clone()).await.unwrap();
            sent.push(line);
            tokio::task::yield_now().await;
        }
        handle.shutdown().await;
        writer.await.unwrap().unwrap();
    }
    let (mut log, _) = world.lead(4, tiny()).await.unwrap();
    for text in ["x", "y", "z"] {
        log.commit(&records(&[text])).await.unwrap();
        sent.extend(lines(&[text]));
    }
    sent
}

#[tokio::test]
async fn a_namespace_without_a_queue_has_none() {
    for world in [World::memory(), World::file().await] {
        let stored = Stored::open(world.store.clone(), &world.namespace).await;
        assert!(stored.unwrap().is_none());
    }
}

#[tokio::test]
async fn the_log_is_shown_as_it_was_written() {
    for world in [World::memory(), World::file().await] {
        let (mut log, _) = world.lead(1, Config::default()).await.unwrap();
        log.commit(&records(&["a", "b"])).await.unwrap();
        let (mut log, _) = world.lead(2, Config::default()).await.unwrap();
        let third = log.commit(&records(&["c"])).await.unwrap();
        let stored = open(&world).await;
        assert_eq!(stored.summary().form, world.form);
        assert_eq!(stored.summary().takeover, 2);

        let mut frames = stored.log(0).await.unwrap();
        let mut seen = Vec::new();
        while let Some(frame) = frames.next().await.unwrap() {
            seen.push((frame.place, frame.kind, frame.term.0, frame.last().0));
        }
        let expected = [
            (1, Kind::Term, 1, 0),
            (2, Kind::Commit, 1, 2),
            (3, Kind::Term, 2, 2),
            (4, Kind::Commit, 2, 3),
        ];
        assert_eq!(seen, expected);
        assert_eq!(third.seq, 4);
        assert_eq!(
            texts(&mut stored.log(3).await.unwrap()).await,
            lines(&["c"])
        );
        assert!(texts(&mut stored.log(4).await.unwrap()).await.is_empty());

        let mut all = Vec::new();
        let mut segments = stored.segments().await.unwrap();
        if let [left, ..] = &segments[..] {
            // The second leader goes on from a copy of it.
            assert!(!left.is_in_log && segments.len() == 3);
            segments.remove(0);
        }
        for segment in segments {
            assert!(segment.is_in_log);
            all.extend(texts(&mut stored.frames(&segment.name)).await);
        }
        let places = stored.places(0).await.unwrap();
        all.extend(texts(&mut stored.objects(places)).await);
        assert_eq!(all, lines(&["a", "b", "c"]));
        assert!(stored.snapshots().await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn every_place_can_be_rebuilt_that_was_not_cleaned_up() {
    for world in [World::memory(), World::file().await] {
        let sent = busy(&world).await;
        let stored = open(&world).await;
        let snapshots = stored.snapshots().await.unwrap();
        // Older ones may be there still, without the log behind them.
        let oldest = snapshots.iter().rev().filter(|one| one.is_published).nth(1);
        let oldest = oldest.unwrap();
        let mut last = oldest.place;
        let mut frames = stored.log(last).await.unwrap();
        while let Some(frame) = frames.next().await.unwrap() {
            last = frame.place;
        }
        let places: Vec<u64> = (oldest.place..=last).collect();
        let (mut machine, mut lengths) = (Memo::default(), Vec::new());
        let reached = |_, machine: &mut Memo| {
            assert_eq!(machine.records, sent[..machine.records.len()]);
            lengths.push(machine.records.len());
        };
        stored
            .rebuild(&mut machine, &places, reached)
            .await
            .unwrap();
        assert_eq!(machine.records, sent);
        assert_eq!(lengths.len(), places.len());
        assert!(lengths.is_sorted());

        let gone = stored.rebuild(&mut machine, &[2], |_, _| {}).await;
        let told = gone.unwrap_err().to_string();
        assert!(told.contains("can no longer be rebuilt"), "{told}");
        let none = stored.rebuild(&mut machine, &[last + 1], |_, _| {}).await;
        let told = none.unwrap_err().to_string();
        assert!(told.contains(&format!("ends at index {last}")), "{told}");
    }
}

#[tokio::test]
async fn what_is_whole_is_verified() {
    for world in [World::memory(), World::file().await] {
        let sent = busy(&world).await;
        assert_eq!(damages(&world).await, []);
        let (verified, _) = open(&world).await.verify().await.unwrap();
        assert_eq!(verified.position.0, sent.len() as u64);
        assert!(
            verified.snapshots >= 2 && verified.frames > 3,
            "{verified:?}"
        );
    }
}

#[tokio::test]
async fn what_a_replaced_leader_leaves_is_no_damage() {
    let world = World::file().await;
    let (mut old, _) = world.lead(1, Config::default()).await.unwrap();
    old.commit(&records(&["a"])).await.unwrap();
    let (mut new, _) = world.lead(2, Config::default()).await.unwrap();
    assert!(old.commit(&records(&["late"])).await.is_err());
    new.commit(&records(&["b"])).await.unwrap();
    let last = world.segments().pop().unwrap();
    let mut torn = std::fs::read(&last).unwrap();
    torn.extend_from_slice(b"{\"format\":1,\"ki");
    std::fs::write(&last, torn).unwrap();

    let stored = open(&world).await;
    let (verified, findings) = stored.verify().await.unwrap();
    assert_eq!(verified.records, 2);
    let whats: Vec<&str> = findings
        .iter()
        .map(|finding| match finding {
            Finding::Remains { what, .. } => what.as_str(),
            Finding::Damage { location, what } => panic!("{location}: {what}"),
        })
        .collect();
    assert_eq!(
        whats,
        [
            "a file left by a replaced leader, not part of the log",
            "an unfinished frame; it was never acknowledged if a crash tore it"
        ]
    );
    assert_eq!(
        texts(&mut stored.log(0).await.unwrap()).await,
        lines(&["a", "b"])
    );
}

#[tokio::test]
async fn every_damaged_or_missing_object_is_named() {
    let world = World::memory();
    busy(&world).await;
    let snapshots = open(&world).await.snapshots().await.unwrap();
    let published: Vec<_> = snapshots.iter().filter(|one| one.is_published).collect();
    let needed_from = published[published.len() - 2].place;
    let entries = list_all(&*world.store, &tenure::store::Prefix::root()).await;
    // Nobody reads what was not finished.
    let is_read = |name: &str| {
        published
            .iter()
            .any(|one| one.name.to_string().ends_with(name))
    };
    let is_stored = |key: &Key| match key.segments().nth(2) {
        Some("snapshot") => is_read(key.segments().nth(3).unwrap()),
        place => place == Some("log"),
    };
    let keys: Vec<Key> = entries
        .unwrap()
        .into_iter()
        .map(|entry| entry.key)
        .collect();
    let is_log = |key: &&Key| key.segments().nth(2) == Some("log");
    let last = keys.iter().rfind(is_log).unwrap();
    for key in keys.iter().filter(|key| is_stored(key)) {
        let whole = world.store.get(key).await.unwrap().unwrap().value;
        let mut changed = whole.to_vec();
        let middle = changed.len() / 2;
        changed[middle] ^= 4;
        world.store.delete(key).await.unwrap();
        let put = |value: Bytes| world.store.put(key, value, &Expect::Absent);
        // Of the log, only what is needed is missed, and without its last object it ends before that. A
        // snapshot without its manifest is none.
        let is_missed = match key.segments().nth(2) {
            Some("log") => key != last && key.name().parse::<u64>().unwrap() > needed_from,
            _ => true,
        };
        let found = damages(&world).await;
        if key.name() != "manifest" {
            assert_eq!(!found.is_empty(), is_missed, "without {key}: {found:?}");
        }
        put(changed.into()).await.unwrap();
        let found = damages(&world).await;
        assert!(
            found.iter().any(|(location, _)| location == key.as_str()),
            "{key}: {found:?}"
        );
        world.store.delete(key).await.unwrap();
        put(whole).await.unwrap();
    }
    assert_eq!(damages(&world).await, []);
}

#[tokio::test]
async fn every_damaged_segment_is_named() {
    let world = World::file().await;
    busy(&world).await;
    assert_eq!(world.form, Form::Segments);
    let segments = world.segments();
    assert!(segments.len() > 2);
    for path in &segments {
        let whole = std::fs::read(path).unwrap();
        let mut changed = whole.clone();
        changed[whole.len() / 2] ^= 4;
        std::fs::write(path, changed).unwrap();
        let found = damages(&world).await;
        let name = path.file_name().unwrap().to_str().unwrap();
        let names = |(location, _): &(String, String)| location.contains(name);
        assert!(found.iter().any(names), "{name}: {found:?}");
        std::fs::write(path, whole).unwrap();
    }
    assert_eq!(damages(&world).await, []);
}

#[tokio::test]
async fn names_are_taken_as_they_are_written_and_others_refused() {
    let world = World::memory();
    let (log, _) = world.lead(1, Config::default()).await.unwrap();
    drop(log);
    let stored = open(&world).await;
    for name in [
        "log/00000000000000000007",
        "segments/00000000000000000001-000001",
        "snapshot/00000000000000000007-0123456789abcdef",
    ] {
        let named: Name = name.parse().unwrap();
        assert_eq!(named.to_string(), name);
        let told = stored.frames(&named).next().await.unwrap_err().to_string();
        assert_eq!(told, format!("there is no {name}"));
    }
    for name in [
        "",
        "log/7",
        "log/../origin",
        "snapshot/1-a/b",
        "snapshot/1-a",
        "snapshot/00000000000000000007-..",
        "segments/x",
        "etc/passwd",
    ] {
        let refused = name.parse::<Name>();
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{name}");
    }
}
