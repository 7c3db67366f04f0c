//! The end of the log: that it is missing is noticed, and that it is not is not doubted.

use std::fs;
use std::path::Path;

use bytes::Bytes;
use tenure::log::inspect::{Finding, Stored};
use tenure::log::{Config, Error, Form, Writer};
use tenure::store::Expect;
use tokio_util::sync::CancellationToken;

use super::suite::tiny;
use super::world::{World, frames_of, lines, record, records};

/// Leads, commits so many records, and ends in an orderly way.
async fn lead_in_order(world: &World, term: u64, config: Config, count: usize) {
    let (log, machine) = world.lead(term, config).await.unwrap();
    let (handle, writer) = Writer::new(log, machine, CancellationToken::new());
    let writer = tokio::spawn(writer.run());
    for number in 0..count {
        let line = format!("{{\"term\":{term},\"number\":{number}}}");
        handle.commit(line).await.unwrap();
    }
    handle.shutdown().await;
    writer.await.unwrap().unwrap();
}

async fn damages(world: &World) -> Vec<String> {
    let stored = Stored::open(world.store.clone(), &world.namespace).await;
    let (_, findings) = stored.unwrap().unwrap().verify().await.unwrap();
    let damage = |finding| match finding {
        Finding::Damage { location, what } => Some(format!("{location} is damaged: {what}")),
        Finding::Remains { .. } => None,
    };
    findings.into_iter().filter_map(damage).collect()
}

/// Everyone says that the log is damaged, and nobody takes it over.
async fn is_named(world: &World, term: u64, what: &str) {
    let error = world.replay().await.expect_err(what);
    let taken = world.lead(term, Config::default()).await.expect_err(what);
    for error in [&error, &taken] {
        assert!(matches!(error, Error::Corrupt { .. }), "{what}: {error}");
    }
    let found = damages(world).await;
    assert!(!found.is_empty(), "{what} is whole");
}

async fn note(world: &World) -> Bytes {
    let object = world.store.get(&world.key("reached")).await.unwrap();
    object.unwrap().value
}

async fn set_note(world: &World, note: Option<Bytes>) {
    let key = world.key("reached");
    world.store.delete(&key).await.unwrap();
    if let Some(note) = note {
        world.store.put(&key, note, &Expect::Absent).await.unwrap();
    }
}

/// Something that can become of the log, and what it is called.
type Loss = (&'static str, Box<dyn Fn()>);

/// What can become of the last files.
fn losses(segments: &[std::path::PathBuf]) -> Vec<Loss> {
    let (all, last) = (segments.to_vec(), segments.last().unwrap().clone());
    let two: Vec<_> = segments[segments.len().saturating_sub(2)..].to_vec();
    let remove = |paths: Vec<std::path::PathBuf>| {
        move || paths.iter().for_each(|path| fs::remove_file(path).unwrap())
    };
    let change = |path: &Path, change: fn(&mut Vec<u8>)| {
        let path = path.to_owned();
        move || {
            let mut file = fs::read(&path).unwrap();
            change(&mut file);
            fs::write(&path, file).unwrap();
        }
    };
    vec![
        (
            "without the last file",
            Box::new(remove(vec![last.clone()])),
        ),
        ("without the last two files", Box::new(remove(two))),
        ("without any file", Box::new(remove(all))),
        (
            "with an empty last file",
            Box::new(change(&last, Vec::clear)),
        ),
        (
            "with a last file of zeros",
            Box::new(change(&last, |file| file.fill(0))),
        ),
        (
            "with a last file whose beginning is zeros",
            Box::new(change(&last, |file| {
                let end = file.len().min(1024);
                file[..end].fill(0);
            })),
        ),
    ]
}

async fn each_loss_is_named(world: &World, more: Vec<Loss>) {
    let whole = world.replay().await.unwrap().records;
    assert_eq!(damages(world).await, [""; 0]);
    let segments = world.segments();
    let kept: Vec<_> = segments
        .iter()
        .map(|path| fs::read(path).unwrap())
        .collect();
    for (term, (what, lose)) in (100..).zip(losses(&segments).into_iter().chain(more)) {
        lose();
        is_named(world, term, what).await;
        for (path, bytes) in segments.iter().zip(&kept) {
            fs::write(path, bytes).unwrap();
        }
        assert_eq!(world.replay().await.unwrap().records, whole, "{what}");
    }
    let (_, machine) = world.lead(900, Config::default()).await.unwrap();
    assert_eq!(machine.records, whole);
}

#[tokio::test]
async fn a_lost_end_in_files_is_named_after_an_orderly_stop() {
    // One small file, and several.
    for (config, count) in [(Config::default(), 3), (tiny(), 40)] {
        let world = World::file().await;
        lead_in_order(&world, 1, config, count).await;
        let last = world.segments().pop().unwrap();
        let cut = move |bytes: usize| {
            let last = last.clone();
            Box::new(move || {
                let file = fs::read(&last).unwrap();
                fs::write(&last, &file[..file.len() - bytes]).unwrap();
            }) as Box<dyn Fn()>
        };
        let more = vec![
            ("cut by a byte", cut(1)),
            ("cut by five bytes", cut(5)),
            ("cut by a frame", cut(250)),
        ];
        each_loss_is_named(&world, more).await;
    }
}

#[tokio::test]
async fn a_lost_file_is_named_after_a_crash() {
    for (config, count) in [(Config::default(), 3), (tiny(), 40)] {
        let world = World::file().await;
        lead_in_order(&world, 1, config.clone(), count).await;
        let (mut log, _) = world.lead(2, config).await.unwrap();
        for number in 0..count {
            log.commit(&[record(&number.to_string())]).await.unwrap();
        }
        drop(log);
        each_loss_is_named(&world, Vec::new()).await;
    }
}

#[tokio::test]
async fn a_lost_end_in_objects_is_named() {
    let world = World::memory();
    lead_in_order(&world, 1, Config::default(), 3).await;
    // The term record is at place 1.
    let key = world.place(4);
    let last = world.store.get(&key).await.unwrap().unwrap().value;
    world.store.delete(&key).await.unwrap();
    is_named(&world, 7, "without the last object").await;
    let found = damages(&world).await.remove(0);
    assert!(
        found.contains("log/00000000000000000004 is damaged: it is missing"),
        "{found}"
    );
    world.store.put(&key, last, &Expect::Absent).await.unwrap();

    // A leader that crashed has noted its first place only.
    let (mut log, _) = world.lead(8, Config::default()).await.unwrap();
    log.commit(&records(&["a"])).await.unwrap();
    drop(log);
    world.store.delete(&world.place(6)).await.unwrap();
    assert_eq!(world.replay().await.unwrap().records.len(), 3);
    world.store.delete(&world.place(5)).await.unwrap();
    is_named(&world, 9, "without the last term record").await;
}

#[tokio::test]
async fn a_note_that_is_missing_or_older_keeps_nobody_out() {
    for world in [World::file().await, World::memory()] {
        lead_in_order(&world, 1, Config::default(), 3).await;
        let older = note(&world).await;
        lead_in_order(&world, 2, Config::default(), 3).await;
        for noted in [None, Some(older)] {
            set_note(&world, noted).await;
            assert_eq!(world.replay().await.unwrap().records.len(), 6);
            assert_eq!(damages(&world).await, [""; 0]);
        }
        // Whoever takes over notes it again.
        let (_, machine) = world.lead(3, Config::default()).await.unwrap();
        assert_eq!(machine.records.len(), 6);
        let noted = String::from_utf8(note(&world).await.to_vec()).unwrap();
        assert!(
            noted.contains(r#""takeover":3,"place":9,"position":6,"closed":false"#),
            "{noted}"
        );
    }
}

#[tokio::test]
async fn no_bit_of_the_note_changes_unnoticed() {
    let world = World::memory();
    lead_in_order(&world, 1, Config::default(), 3).await;
    let whole = note(&world).await;
    // Its last byte is a newline.
    for byte in 0..whole.len() - 1 {
        let mut damaged = whole.to_vec();
        damaged[byte] ^= 1 << (byte % 8);
        set_note(&world, Some(damaged.into())).await;
        let error = world.replay().await.expect_err("a changed bit");
        assert!(
            error.to_string().contains("queue/reached is damaged"),
            "{byte}: {error}"
        );
    }
    set_note(&world, Some(whole)).await;
    world.replay().await.unwrap();
}

#[tokio::test]
async fn a_replaced_leader_that_stops_late_does_not_take_the_note_back() {
    for world in [World::file().await, World::memory()] {
        let (log, machine) = world.lead(1, Config::default()).await.unwrap();
        let (handle, writer) = Writer::new(log, machine, CancellationToken::new());
        let writer = tokio::spawn(writer.run());
        handle.commit("\"a\"").await.unwrap();
        let (mut new, _) = world.lead(2, Config::default()).await.unwrap();
        new.commit(&records(&["b"])).await.unwrap();
        let before = note(&world).await;
        handle.shutdown().await;
        writer.await.unwrap().unwrap();
        assert_eq!(note(&world).await, before);
        assert_eq!(world.replay().await.unwrap().records.len(), 2);
    }
}

#[tokio::test]
async fn a_new_leader_builds_on_a_copy_of_what_may_not_be_on_the_disk() {
    let world = World::file().await;
    let (mut log, _) = world.lead(1, Config::default()).await.unwrap();
    log.commit(&records(&["a", "b"])).await.unwrap();
    let first = world.segments().remove(0);
    let written = frames_of(&first);
    drop(log);

    // A leader that died over its copy.
    let copy = first.with_file_name("00000000000000000002-000000");
    for end in [0, 1, written.len() / 2, written.len()] {
        fs::write(&copy, &written[..end]).unwrap();
        assert_eq!(world.replay().await.unwrap().records, lines(&["a", "b"]));
    }
    fs::remove_file(&copy).unwrap();

    let (mut log, machine) = world.lead(2, Config::default()).await.unwrap();
    assert_eq!(machine.records, lines(&["a", "b"]));
    assert_eq!(fs::read(&copy).unwrap(), written);
    log.commit(&records(&["c"])).await.unwrap();
    drop(log);
    // What the disk had of the file that it was made from does not matter any more.
    for end in [written.len() - 3, 100, 0] {
        fs::write(&first, &written[..end]).unwrap();
        assert_eq!(
            world.replay().await.unwrap().records,
            lines(&["a", "b", "c"])
        );
        assert_eq!(damages(&world).await, [""; 0]);
    }
    fs::remove_file(&first).unwrap();
    assert_eq!(
        world.replay().await.unwrap().records,
        lines(&["a", "b", "c"])
    );
    fs::remove_file(&copy).unwrap();
    let error = world.replay().await.unwrap_err().to_string();
    assert!(
        error.contains("-000000 is damaged: it is missing"),
        "{error}"
    );
}

#[tokio::test]
async fn what_an_orderly_leader_has_synced_is_not_copied() {
    let world = World::file().await;
    lead_in_order(&world, 1, Config::default(), 3).await;
    lead_in_order(&world, 2, Config::default(), 3).await;
    let names: Vec<_> = world.segments();
    assert_eq!(names.len(), 2, "{names:?}");
    let (log, machine) = world.lead(3, Config::default()).await.unwrap();
    assert_eq!(machine.records.len(), 6);
    drop(log);
    // That one crashed.
    drop(world.lead(4, Config::default()).await.unwrap());
    let copies = world.segments();
    let copies = copies
        .iter()
        .filter(|path| path.to_str().unwrap().ends_with("-000000"));
    assert_eq!(copies.count(), 1);
    assert_eq!(world.replay().await.unwrap().records.len(), 6);
}

/// What is left that is no part of the log.
async fn remains(world: &World) -> Vec<String> {
    let stored = Stored::open(world.store.clone(), &world.namespace).await;
    let (_, findings) = stored.unwrap().unwrap().verify().await.unwrap();
    let remains = |finding| match finding {
        Finding::Remains { location, what } => Some(format!("{location}: {what}")),
        Finding::Damage { .. } => None,
    };
    findings.into_iter().filter_map(remains).collect()
}

#[tokio::test]
async fn a_segment_under_another_name_is_named_and_left_out() {
    // One file for each leader, and several.
    for config in [Config::default(), tiny()] {
        let world = World::file().await;
        for term in 1..=3 {
            lead_in_order(&world, term, config.clone(), 20).await;
        }
        let whole = world.replay().await.unwrap().records;
        let segments = world.segments();
        let mut stray = Vec::new();
        // Above all leaders, at a number that a later one comes to, and beside the last file.
        for name in ["7-000001", "7-000003", "5-000002", "9-000001", "3-000099"] {
            let path = segments[0].with_file_name(format!("{:0>27}", name));
            let from = match name {
                "9-000001" => &segments[0],
                // The first of its leader, as if it were a later one. That is the last one where each has one.
                "3-000099" if segments.len() > 3 => &segments[0],
                "7-000003" => segments
                    .iter()
                    .find(|path| path.to_str().unwrap().ends_with("-000001"))
                    .unwrap(),
                _ => segments.last().unwrap(),
            };
            fs::copy(from, &path).unwrap();
            stray.push(path);
        }
        assert_eq!(world.replay().await.unwrap().records, whole);
        assert_eq!(damages(&world).await, [""; 0]);
        let found = remains(&world).await.join("\n");
        for path in &stray {
            let name = path.file_name().unwrap().to_str().unwrap();
            let named = found.lines().find(|line| line.contains(name));
            let named = named.unwrap_or_else(|| panic!("{name} is not in {found}"));
            assert!(named.contains("not what its name says"), "{named}");
        }
        // Past the numbers of all of them, with crashes in between. Nothing is ever missing.
        let mut expected = whole;
        for term in 4..=11 {
            let (mut log, machine) = world.lead(term, config.clone()).await.unwrap();
            assert_eq!(machine.records, expected, "{term}");
            for number in 0..20 {
                let text = format!("{term} {number}");
                log.commit(&records(&[&text])).await.unwrap();
                expected.extend(lines(&[&text]));
            }
            drop(log);
            assert_eq!(world.replay().await.unwrap().records, expected, "{term}");
            assert_eq!(damages(&world).await, [""; 0], "{term}");
        }
    }
}

#[tokio::test]
async fn a_later_segment_copied_within_one_takeover_is_named_and_left_out() {
    let world = World::file().await;
    lead_in_order(&world, 1, tiny(), 20).await;
    let (mut log, machine) = world.lead(2, tiny()).await.unwrap();
    let mut expected = machine.records;
    let mut copied = Vec::new();
    for number in 0..40 {
        let text = format!("2 {number}");
        log.commit(&records(&[&text])).await.unwrap();
        expected.extend(lines(&[&text]));
        // What comes later in this file is not in the copy.
        let segments = world.segments();
        let last = segments
            .iter()
            .rfind(|path| !copied.contains(*path))
            .unwrap();
        let name = last.file_name().unwrap().to_str().unwrap();
        if number % 10 == 5 && name > "00000000000000000002-000001" {
            let copy = last.with_file_name(format!("00000000000000000002-0009{number:02}"));
            fs::copy(last, &copy).unwrap();
            copied.push(copy);
        }
    }
    drop(log);
    assert!(copied.len() > 1, "{copied:?}");
    assert_eq!(world.replay().await.unwrap().records, expected);
    assert_eq!(damages(&world).await, [""; 0]);
    let found = remains(&world).await;
    for copy in &copied {
        let name = copy.file_name().unwrap().to_str().unwrap();
        let named = found.iter().find(|line| line.contains(name));
        let named = named.unwrap_or_else(|| panic!("{name} is not in {found:?}"));
        assert!(
            named.contains("its content is that of the segment"),
            "{named}"
        );
    }
    let (_, machine) = world.lead(3, tiny()).await.unwrap();
    assert_eq!(machine.records, expected);
}

#[tokio::test]
async fn damage_in_the_middle_is_blamed_on_no_other_segment() {
    // What lies before a snapshot is not needed.
    let config = Config {
        snapshot_bytes_min: u64::MAX,
        ..tiny()
    };
    for is_orderly in [true, false] {
        let world = World::file().await;
        for term in 1..=3 {
            if is_orderly {
                lead_in_order(&world, term, config.clone(), 20).await;
            } else {
                let (mut log, _) = world.lead(term, config.clone()).await.unwrap();
                for number in 0..20 {
                    log.commit(&records(&[&number.to_string()])).await.unwrap();
                }
            }
        }
        let before = remains(&world).await;
        let is_named_in = |lines: &[String], path: &Path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            lines.iter().any(|line| line.contains(name))
        };
        let segments: Vec<_> = world.segments();
        // Those that are a part of the log, and are not at its ends.
        let middle = &segments[1..segments.len() - 1];
        let middle = middle.iter().filter(|path| !is_named_in(&before, path));
        for (number, path) in middle.enumerate() {
            let whole = fs::read(path).unwrap();
            let mut damaged = whole.clone();
            damaged[20] ^= 1;
            for is_missing in [false, true] {
                if is_missing {
                    fs::remove_file(path).unwrap();
                } else {
                    fs::write(path, &damaged).unwrap();
                }
                let found = damages(&world).await;
                let name = path.file_name().unwrap().to_str().unwrap();
                assert_eq!(found.len(), 1, "{number} {name}: {found:#?}");
                let (location, _) = found[0].split_once(": ").unwrap();
                assert!(location.contains(name), "{number} {name}: {found:#?}");
                // Of a damaged copy the file that it was made from may still be of use.
                let left = remains(&world).await;
                assert!(
                    left.iter().all(|left| before.contains(left)),
                    "{name}: {left:#?}"
                );
                fs::write(path, &whole).unwrap();
            }
        }
        assert_eq!(damages(&world).await, [""; 0]);
    }
}

#[tokio::test]
async fn a_segment_that_another_has_replaced_is_damage() {
    let world = World::file().await;
    for term in 1..=3 {
        lead_in_order(&world, term, Config::default(), 3).await;
    }
    let segments = world.segments();
    for damaged in &segments {
        let whole = fs::read(damaged).unwrap();
        for other in segments.iter().filter(|other| *other != damaged) {
            fs::copy(other, damaged).unwrap();
            is_named(&world, 20, "another segment's content").await;
            fs::write(damaged, &whole).unwrap();
        }
    }
    assert_eq!(world.replay().await.unwrap().records.len(), 9);
}

#[tokio::test]
async fn a_pipe_or_a_folder_in_place_of_a_segment_is_named() {
    let world = World::file().await;
    for term in 1..=2 {
        lead_in_order(&world, term, Config::default(), 3).await;
    }
    let segments = world.segments();
    let above = segments[0].with_file_name("00000000000000000009-000001");
    for path in segments.iter().chain([&above]) {
        let kept = fs::read(path).ok();
        let _ = fs::remove_file(path);
        for is_pipe in [true, false] {
            if is_pipe {
                let made = std::process::Command::new("mkfifo").arg(path).status();
                assert!(made.unwrap().success());
            } else {
                fs::create_dir(path).unwrap();
            }
            let named = is_named(&world, 20, "neither a pipe nor a folder");
            let named = tokio::time::timeout(std::time::Duration::from_secs(20), named);
            named.await.expect("no reader waits for a pipe");
            let found = damages(&world).await.join("\n");
            let name = path.file_name().unwrap().to_str().unwrap();
            assert!(found.contains(name), "{name}: {found}");
            if is_pipe {
                fs::remove_file(path).unwrap();
            } else {
                fs::remove_dir(path).unwrap();
            }
        }
        if let Some(kept) = kept {
            fs::write(path, kept).unwrap();
        }
    }
    assert_eq!(world.replay().await.unwrap().records.len(), 6);
}

/// Though nothing else tells of it: neither the note of its end nor a snapshot.
#[tokio::test]
async fn a_log_that_lost_every_commit_is_not_called_empty() {
    for world in [World::memory(), World::file().await] {
        lead_in_order(&world, 1, Config::default(), 3).await;
        world.store.delete(&world.key("reached")).await.unwrap();
        // Without the note it is taken as it is, as long as there is something.
        assert_eq!(damages(&world).await, Vec::<String>::new());
        for place in 1..10 {
            world.store.delete(&world.place(place)).await.unwrap();
        }
        if world.form == Form::Segments {
            for path in world.segments() {
                fs::write(path, b"").unwrap();
            }
        }
        is_named(&world, 2, "all of its commits are missing").await;
    }
}
