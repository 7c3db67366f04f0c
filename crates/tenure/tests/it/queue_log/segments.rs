//! The form with files: torn tails, chains, and leaders that append late.

use std::fs;
use std::sync::Arc;

use tenure::log::{Config, Error, Form};
use tenure::store::Expect;

use super::suite::tiny;
use super::world::{World, frames_of, lines, record, records, without_folder};

#[tokio::test]
async fn a_torn_tail_is_cut_off_wherever_it_was_torn() {
    let world = World::file().await;
    let (mut log, _) = world.lead(1, Config::default()).await.unwrap();
    log.commit(&records(&["a"])).await.unwrap();
    let path = world.segments().remove(0);
    let acknowledged = frames_of(&path);
    log.commit(&records(&["b", "c"])).await.unwrap();
    let whole = frames_of(&path);
    drop(log);
    for end in acknowledged.len()..whole.len() {
        // The file ends there, or was filled with zeros before.
        for zeros in [0, 3000] {
            fs::write(&path, [&whole[..end], &vec![0; zeros]].concat()).unwrap();
            assert_eq!(
                world.replay().await.unwrap().records,
                lines(&["a"]),
                "cut at {end}"
            );
        }
    }
    // Blocks of the frame that the disk never got.
    let mut zeros = acknowledged.clone();
    zeros.resize(whole.len(), 0);
    fs::write(&path, &zeros).unwrap();
    assert_eq!(world.replay().await.unwrap().records, lines(&["a"]));

    // The next leader goes on behind what is whole, and the remains never come back.
    let (mut log, machine) = world.lead(2, Config::default()).await.unwrap();
    assert_eq!(machine.records, lines(&["a"]));
    log.commit(&records(&["d"])).await.unwrap();
    fs::write(&path, &whole).unwrap();
    assert_eq!(world.replay().await.unwrap().records, lines(&["a", "d"]));
    let (_, machine) = world.lead(3, Config::default()).await.unwrap();
    assert_eq!(machine.records, lines(&["a", "d"]));
}

#[tokio::test]
async fn what_an_old_leader_appends_late_is_in_no_log() {
    let world = World::file().await;
    let (mut old, _) = world.lead(1, Config::default()).await.unwrap();
    old.commit(&records(&["a"])).await.unwrap();
    let (mut new, _) = world.lead(2, Config::default()).await.unwrap();
    let before = frames_of(&world.segments()[0]).len();
    let late = old.commit(&records(&["late"])).await;
    assert!(matches!(late, Err(Error::Fenced)), "{late:?}");
    // It is in the file all the same, whole and synced: the fence alone has kept it out.
    assert!(frames_of(&world.segments()[0]).len() > before);
    assert_eq!(world.replay().await.unwrap().records, lines(&["a"]));
    new.commit(&records(&["b"])).await.unwrap();
    let (_, machine) = world.lead(3, Config::default()).await.unwrap();
    assert_eq!(machine.records, lines(&["a", "b"]));
}

#[tokio::test]
async fn a_leader_that_died_while_taking_over_leaves_nothing_in_the_way() {
    let world = World::file().await;
    let (mut log, _) = world.lead(1, Config::default()).await.unwrap();
    log.commit(&records(&["a"])).await.unwrap();
    let key = world.key("reached");
    let noted = world.store.get(&key).await.unwrap().unwrap().value;
    drop(world.lead(2, Config::default()).await.unwrap());
    // It had not come so far as to note that it has taken over.
    world.store.delete(&key).await.unwrap();
    world.store.put(&key, noted, &Expect::Absent).await.unwrap();
    let last = world.segments().pop().unwrap();
    let whole = fs::read(&last).unwrap();
    // Its segment was made, and its first frame is not whole.
    for end in 0..whole.len() {
        fs::write(&last, &whole[..end]).unwrap();
        assert_eq!(
            world.replay().await.unwrap().records,
            lines(&["a"]),
            "cut at {end}"
        );
    }
    let (mut log, machine) = world.lead(3, Config::default()).await.unwrap();
    assert_eq!(machine.records, lines(&["a"]));
    log.commit(&records(&["b"])).await.unwrap();
    // It turns up whole after all, from an older leader: no chain leads to it.
    fs::write(&last, &whole).unwrap();
    assert_eq!(world.replay().await.unwrap().records, lines(&["a", "b"]));
}

#[tokio::test]
async fn a_full_segment_is_followed_by_another() {
    let world = World::file().await;
    let mut expected = Vec::new();
    for term in 1..=3 {
        let (mut log, machine) = world.lead(term, tiny()).await.unwrap();
        assert_eq!(machine.records, expected);
        for number in 0..30 {
            let text = format!("{term}-{number}");
            log.commit(&[record(&text)]).await.unwrap();
            expected.extend(lines(&[&text]));
        }
    }
    assert!(world.segments().len() > 6, "{:?}", world.segments());
    assert_eq!(world.replay().await.unwrap().records, expected);
}

#[tokio::test]
async fn a_missing_segment_is_named() {
    let world = World::file().await;
    let (mut log, _) = world.lead(1, tiny()).await.unwrap();
    for number in 0..60 {
        log.commit(&[record(&number.to_string())]).await.unwrap();
    }
    let segments = world.segments();
    assert!(segments.len() >= 4);
    for lost in &segments {
        let kept = fs::read(lost).unwrap();
        fs::remove_file(lost).unwrap();
        let error = world.replay().await.unwrap_err();
        let name = lost.file_name().unwrap().to_str().unwrap();
        let text = error.to_string();
        assert!(text.contains(name) && text.contains("is missing"), "{text}");
        let error = world.lead(2, Config::default()).await.unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
        fs::write(lost, kept).unwrap();
    }
    assert_eq!(world.replay().await.unwrap().records.len(), 60);
}

#[tokio::test]
async fn the_two_forms_are_never_mixed_up() {
    let world = World::file().await;
    let (mut log, _) = world.lead(1, Config::default()).await.unwrap();
    log.commit(&records(&["a"])).await.unwrap();
    assert_eq!(log.form(), Form::Segments);
    // Without the folder it would look empty.
    let wrapped = world.through(without_folder(world.store.clone()));
    for error in [
        wrapped.lead(2, Config::default()).await.unwrap_err(),
        wrapped.replay().await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        assert!(error.to_string().contains("the log is in files"), "{error}");
    }
    log.commit(&records(&["b"])).await.unwrap();

    // The other way round the folder is left alone.
    let world = World::file_as_objects().await;
    drop(world.lead(1, Config::default()).await.unwrap());
    let folder = world.folder.as_ref().unwrap().path();
    let direct = Arc::new(
        tenure::store::engine::file::File::open(folder)
            .await
            .unwrap(),
    );
    let (log, _) = world
        .through(direct)
        .lead(2, Config::default())
        .await
        .unwrap();
    assert_eq!(log.form(), Form::Objects);
}

#[tokio::test]
async fn a_lost_origin_does_not_begin_a_new_history() {
    for world in [World::file().await, World::memory()] {
        let (mut log, _) = world.lead(1, Config::default()).await.unwrap();
        log.commit(&records(&["a"])).await.unwrap();
        world.store.delete(&world.key("origin")).await.unwrap();
        for error in [
            world.replay().await.unwrap_err(),
            world.lead(2, Config::default()).await.unwrap_err(),
        ] {
            assert!(
                error
                    .to_string()
                    .contains("queue/origin is damaged: it is missing"),
                "{error}"
            );
        }
        if world.form == Form::Segments {
            // Whether it still leads cannot be known.
            let error = log.commit(&records(&["b"])).await.unwrap_err();
            assert!(matches!(error, Error::Unknown { .. }), "{error}");
        }
    }
}

/// Where it is noted that there was a log.
fn begun(world: &World) -> tenure::store::Key {
    tenure::store::Key::new(format!("{}/logs/queue", world.namespace)).unwrap()
}

/// The log says itself that it is damaged if some of it is gone; nothing of it does if all of it is.
#[tokio::test]
async fn a_log_that_is_gone_altogether_does_not_begin_a_new_history() {
    let everything = async |world: &World| {
        let root = tenure::store::Prefix::root();
        let page = world.store.list(&root, None).await.unwrap();
        let keys = page.entries.into_iter().map(|entry| entry.key);
        keys.filter(|key| key.as_str().contains("/queue/"))
            .collect::<Vec<_>>()
    };
    for world in [World::file().await, World::memory()] {
        let (mut log, _) = world.lead(1, Config::default()).await.unwrap();
        log.commit(&records(&["a"])).await.unwrap();
        for key in everything(&world).await {
            world.store.delete(&key).await.unwrap();
        }
        if world.form == Form::Segments {
            // They were deleted like objects, and their folder with them.
            let lost = log.commit(&records(&["lost"])).await;
            assert!(lost.is_err(), "{lost:?}");
        }
        drop(log);
        for key in everything(&world).await {
            world.store.delete(&key).await.unwrap();
        }
        for error in [
            world.replay().await.unwrap_err(),
            world.lead(2, Config::default()).await.unwrap_err(),
        ] {
            assert!(matches!(error, Error::Corrupt { .. }), "{error:?}");
            assert!(
                error.to_string().contains("everything in it is missing"),
                "{error}"
            );
        }
        assert!(everything(&world).await.is_empty(), "something was begun");
        // Whoever wants to lose it says so.
        world.store.delete(&begun(&world)).await.unwrap();
        let (_, memo) = world.lead(3, Config::default()).await.unwrap();
        assert!(memo.records.is_empty());
    }
}

/// A log of an older version gets its note from the next leader.
#[tokio::test]
async fn a_log_without_a_note_that_it_was_begun_gets_one() {
    let world = World::memory();
    drop(world.lead(1, Config::default()).await.unwrap());
    let begun = begun(&world);
    world.store.delete(&begun).await.unwrap();
    drop(world.lead(2, Config::default()).await.unwrap());
    assert!(world.store.get(&begun).await.unwrap().is_some());
}

/// A backup of the folder has the same fence, and not the file that is appended to.
#[tokio::test]
async fn a_commit_to_a_folder_that_was_replaced_is_not_acknowledged() {
    let world = World::file().await;
    let (mut log, _) = world.lead(1, Config::default()).await.unwrap();
    log.commit(&records(&["a"])).await.unwrap();
    let folder = world.folder.as_ref().unwrap().path();
    let aside = folder.with_extension("aside");
    fs::rename(folder, &aside).unwrap();
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .args([&aside, folder])
        .status();
    assert!(copied.unwrap().success());
    let lost = log.commit(&records(&["lost"])).await;
    assert!(lost.is_err(), "{lost:?}");
    let after = log.commit(&records(&["after"])).await;
    assert!(after.is_err(), "{after:?}");
    fs::remove_dir_all(aside).unwrap();
    // And so it is when there is nothing any more.
    let world = World::file().await;
    let (mut log, _) = world.lead(1, Config::default()).await.unwrap();
    log.commit(&records(&["a"])).await.unwrap();
    fs::remove_dir_all(world.folder.as_ref().unwrap().path()).unwrap();
    let lost = log.commit(&records(&["lost"])).await;
    assert!(lost.is_err(), "{lost:?}");
}
