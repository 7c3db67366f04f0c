//! `tenure store check`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::support::{Ended, ended, run, tenure};

/// What a quick run on the memory engine prints, with the measured times left out.
const QUICK: &str = "\
store        memory:
run          8 writers, 5 rounds, 40 keys

passed       replacing the current version works (If-Match matches)
             replace-current: three writes, each on the one before
passed       a read after a finished write sees it
             read-your-write: 20 writes, each read back at once
passed       creating what exists is a conflict and changes nothing
             create-on-existing: the second create was a conflict
passed       replacing what does not exist is a conflict and creates nothing
             replace-on-missing: a conflict, before it ever existed and after it was deleted
passed       replacing with an old version is a conflict and changes nothing (If-Match)
             replace-stale-version: the late write was a conflict
passed       an old version stays old, even when a later write has the same bytes
             replace-identical-content: x, y, x again: the first version stayed old
passed       an old version stays old after the object was deleted and created again
             replace-recreated: the version of the deleted object stayed old
passed       of many racing creators exactly one wins
             create-race: 5 races of 8 writers, one winner each
passed       of many racing writers that expect one version exactly one wins
             replace-race: 5 races of 8 writers, one winner each
passed       concurrent read-modify-write loses no update and applies none twice
             increments: 8 writers, 32 increments, all there
passed       a conditional read tells unchanged, changed and missing apart
             get-if-changed: unchanged, changed and missing were told apart
passed       a deleted object is gone, and deleting it again is fine
             delete: gone from reads and listings
passed       values of 0 bytes, 1 byte and 8 MiB come back as written, larger ones are refused
             values: 0 B, 1 B, 256 B, 65 B of blanks and 8 MiB came back; 8 MiB + 1 was refused
passed       keys of full length and with every allowed character stay distinct
             keys: 14 keys, the longest of 700 bytes
passed       listings are complete, in key order, paged, and show current versions
             list: 47 keys in order
passed       the age of an object is never more than the time since it was written
             age: five reads up to 1.5 s after the write, the oldest said TIME
passed       a watcher is notified of a change within a second
             hints: three changes, each reported within TIME

verdict: every guarantee holds (17 passed)
";

const MEMORY_HINT: &str =
    "hint: this store keeps nothing when the process ends; use it only for tests\n";

/// Replaces measured times by `TIME`.
fn without_times(text: &str) -> String {
    text.lines()
        .map(|line| {
            let measured = ["the oldest said ", "each reported within "]
                .iter()
                .find_map(|words| Some(line.find(words)? + words.len()));
            match measured {
                Some(end) => format!("{}TIME\n", &line[..end]),
                None => format!("{line}\n"),
            }
        })
        .collect()
}

#[test]
fn a_sound_store_passes() {
    let (code, stdout, stderr) = run(&mut tenure(&["store", "check", "memory:", "--quick"]));
    assert_eq!(
        (code, without_times(&stdout).as_str(), stderr.as_str()),
        (0, QUICK, MEMORY_HINT)
    );
}

#[test]
fn writers_and_rounds_can_be_chosen() {
    let arguments = [
        "store",
        "check",
        "memory:",
        "--quick",
        "--writers",
        "3",
        "--rounds",
        "2",
    ];
    let (code, stdout, _) = run(&mut tenure(&arguments));
    assert_eq!(code, 0);
    assert!(
        stdout.contains("run          3 writers, 2 rounds, 40 keys\n"),
        "{stdout}"
    );
    assert!(
        stdout.contains("replace-race: 2 races of 3 writers,"),
        "{stdout}"
    );
}

#[test]
fn json_is_one_document_with_every_check() {
    let (code, stdout, stderr) = run(&mut tenure(&[
        "store", "check", "memory:", "--quick", "--json",
    ]));
    assert_eq!((code, stderr.as_str()), (0, MEMORY_HINT));
    let mut document: serde_json::Value = serde_json::from_str(&stdout).expect("one document");
    let checks = document["checks"].take();
    assert_eq!(
        document,
        serde_json::json!({
            "verdict": "passed",
            "store": {
                "engine": "memory",
                "location": "memory:",
                "durable": false,
                "hints": true,
                "age": true,
            },
            "options": { "writers": 8, "rounds": 5, "listed": 40 },
            "checks": null,
            "left_behind": null,
        })
    );
    let checks = checks.as_array().expect("a list");
    assert_eq!(checks.len(), QUICK.matches("\npassed ").count());
    for check in checks {
        assert_eq!(check["verdict"], "passed", "{check}");
        assert!(check["took_ms"].is_f64(), "{check}");
        for text in ["name", "guarantee", "seen", "otherwise"] {
            assert!(
                check[text].as_str().is_some_and(|text| !text.is_empty()),
                "{check}"
            );
        }
    }
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    let mut child = tenure(&["store", "check", "memory:", "--quick"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    let mut reader = BufReader::with_capacity(1, child.stdout.take().unwrap());
    reader.read_line(&mut first).unwrap();
    drop(reader);
    assert_eq!(first, "store        memory:\n");
    let ended: Ended = ended(child.wait_with_output().unwrap());
    assert_eq!(ended, (0, String::new(), MEMORY_HINT.to_owned()));
}

#[cfg(target_os = "linux")]
#[test]
fn a_report_that_cannot_be_written_is_no_success() {
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let ended = run(tenure(&["store", "check", "memory:", "--quick"]).stdout(full));
    assert_eq!(
        ended,
        (
            2,
            String::new(),
            "error: cannot write the report\n\
             caused by: No space left on device (os error 28)\n"
                .to_owned()
        )
    );
}
