//! Whole logs of which one object or file is damaged, with its checksums put right: what is read of them is an
//! error or a log, in both forms, and neither a panic nor a search without end.

use std::convert::Infallible;
use std::fs;
use std::time::Duration;

use bytes::Bytes;
use tenure::log::inspect::Stored;
use tenure::log::{Config, Machine, Position, Record};
use tenure::store::{Expect, Key, Prefix, list_all};
use tenure_fuzz::Fuzz;
use tokio::runtime::Builder;
use tokio::time::timeout;

use super::damage::world_with_snapshots;
use super::world::{World, records};

/// Nothing here takes long; what does not end is what this is about.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

/// Behind the line that says where it is stored.
fn reseal(input: &mut Vec<u8>) {
    let lines: Vec<usize> = (0..input.len()).filter(|&at| input[at] == b'\n').collect();
    let [name, header, ..] = lines[..] else {
        return;
    };
    let body = input.split_off(header + 1);
    let line = String::from_utf8_lossy(&input[name + 1..header]).into_owned();
    let line = line
        .rsplit_once(",\"check\":")
        .map_or(&*line, |(line, _)| line);
    let line = match line.rsplit_once("\"body\":\"") {
        Some((before, _)) => format!("{before}\"body\":\"{:08x}\"", crc(&body)),
        None => line.to_owned(),
    };
    input.truncate(name + 1);
    input.extend(format!("{line},\"check\":\"{:08x}\"}}\n", crc(line.as_bytes())).bytes());
    input.extend(body);
}

fn crc(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// What is stored where, and the other way round.
fn labelled(name: &str, value: &[u8]) -> Vec<u8> {
    [name.as_bytes(), b"\n", value].concat()
}

fn unlabelled(input: &[u8]) -> Option<(&str, &[u8])> {
    let at = input.iter().position(|&byte| byte == b'\n')?;
    Some((std::str::from_utf8(&input[..at]).ok()?, &input[at + 1..]))
}

/// Takes any line for a record.
struct Anything {
    records: u64,
}

impl Machine for Anything {
    type Command = Record;
    type Answer = ();
    type Error = Infallible;

    fn replay(&mut self, _: Position, _: &[u8]) -> Result<(), Infallible> {
        self.records += 1;
        Ok(())
    }

    fn apply(&mut self, _: Position, _: Record) {}

    fn reset(&mut self) {
        self.records = 0;
    }

    fn restore(&mut self, _: &[u8]) -> Result<(), Infallible> {
        Ok(())
    }

    fn restored(&mut self) -> Result<(), Infallible> {
        Ok(())
    }

    fn begin_snapshot(&mut self) {}

    fn snapshot_chunk(&mut self, _: usize) -> Option<Bytes> {
        None
    }
}

async fn read(world: &World) {
    let mut machine = Anything { records: 0 };
    let (store, namespace) = (world.store.clone(), &world.namespace);
    let _ = tenure::log::replay(store, namespace, Config::default(), &mut machine, |_| {}).await;
    if let Ok(Some(stored)) = Stored::open(world.store.clone(), &world.namespace).await {
        let _ = stored.snapshots().await;
        let _ = stored.segments().await;
    }
}

#[test]
fn a_log_of_objects_with_a_damaged_one_is_read_or_refused() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let (world, stored) = runtime.block_on(async {
        let world = world_with_snapshots().await;
        let mut stored = Vec::new();
        for entry in list_all(&*world.store, &Prefix::root()).await.unwrap() {
            let object = world.store.get(&entry.key).await.unwrap().unwrap();
            stored.push((entry.key, object.value));
        }
        (world, stored)
    });
    let corpus = stored
        .iter()
        .map(|(key, value)| labelled(key.as_str(), value));
    let fuzz = Fuzz::new("a log of objects", corpus).repaired_by(reseal);
    fuzz.within(4 << 20, 64).run(|input| {
        let Some((name, value)) = unlabelled(input) else {
            return;
        };
        let Some((key, whole)) = stored.iter().find(|(key, _)| key.as_str() == name) else {
            return;
        };
        runtime.block_on(async {
            replace(&world, key, Bytes::copy_from_slice(value)).await;
            timeout(ENDS_WITHIN, read(&world)).await.expect("it ends");
            replace(&world, key, whole.clone()).await;
        });
    });
}

async fn replace(world: &World, key: &Key, value: Bytes) {
    world.store.delete(key).await.unwrap();
    world.store.put(key, value, &Expect::Absent).await.unwrap();
}

/// Three leaders, each with a file.
async fn world_of_files() -> World {
    let world = World::file().await;
    for term in 1..=3 {
        let (mut log, _) = world.lead(term, Config::default()).await.unwrap();
        for text in ["a b", "c d"] {
            log.commit(&records(&[text, "x"])).await.unwrap();
        }
    }
    world
}

#[tokio::test]
async fn a_file_that_names_itself_as_the_one_before_is_damage() {
    let world = world_of_files().await;
    let [.., before, last] = &world.segments()[..] else {
        panic!("there are three");
    };
    let name = |path: &std::path::Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let text = fs::read_to_string(last).unwrap();
    let (first_line, rest) = text.split_once('\n').unwrap();
    let circular = first_line.replace(&name(before), &name(last));
    assert_ne!(circular, first_line);
    // Its own record is the first frame's body; the others follow as they are.
    let (body, others) = rest.split_once('\n').unwrap();
    let mut frame = format!("-\n{circular}\n{body}\n").into_bytes();
    reseal(&mut frame);
    fs::write(last, [&frame[2..], others.as_bytes()].concat()).unwrap();
    let read = timeout(ENDS_WITHIN, world.replay()).await.expect("it ends");
    let error = read.unwrap_err().to_string();
    assert!(error.contains("is not a segment before it"), "{error}");
}

#[test]
fn a_log_of_files_with_a_damaged_one_is_read_or_refused() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let world = runtime.block_on(world_of_files());
    let folder = world.segments()[0].parent().unwrap().to_owned();
    let stored: Vec<(String, Vec<u8>)> = world
        .segments()
        .iter()
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            (name.to_owned(), fs::read(path).unwrap())
        })
        .collect();
    let corpus = stored.iter().map(|(name, value)| labelled(name, value));
    let fuzz = Fuzz::new("a log of files", corpus).repaired_by(reseal);
    fuzz.within(4 << 20, 64).run(|input| {
        let Some((name, value)) = unlabelled(input) else {
            return;
        };
        let Some((name, whole)) = stored.iter().find(|(known, _)| known == name) else {
            return;
        };
        fs::write(folder.join(name), value).unwrap();
        let ended = runtime.block_on(async { timeout(ENDS_WITHIN, read(&world)).await });
        fs::write(folder.join(name), whole).unwrap();
        ended.expect("it ends");
    });
}
