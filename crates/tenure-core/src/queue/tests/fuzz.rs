//! The queue's log and snapshots: what can be read is applied without a panic, and reads back as the same.

mod schedules;

use tenure_fuzz::Fuzz;

use super::applied;
use super::generator::Generator;
use crate::queue::{Command, Queue, Restore};

/// A life of a queue: its log, and its end.
fn lived(seed: u64, commands: usize) -> (Vec<String>, Queue) {
    let (mut generator, mut queue) = (Generator::new(seed), Queue::new(seed));
    let mut log = Vec::new();
    for _ in 0..commands {
        let command = generator.command(&queue);
        log.push(serde_json::to_string(&command).unwrap());
        generator.follow(&applied(&mut queue, command).0);
    }
    (log, queue)
}

#[test]
fn whatever_the_log_says_is_applied() {
    let (commands, _) = lived(3, 300);
    let corpus: Vec<String> = commands.chunks(10).map(|lines| lines.join("\n")).collect();
    // Jobs, names and their indexes cost more than their text.
    let fuzz = Fuzz::new("commands", corpus).within(1 << 20, 256);
    fuzz.run(|input| {
        let mut queue = Queue::new(7);
        for line in input.split(|&byte| byte == b'\n') {
            let Ok(command) = Command::from_record(line) else {
                continue;
            };
            let text = serde_json::to_vec(&command).unwrap();
            assert_eq!(Command::from_record(&text).unwrap(), command);
            applied(&mut queue, command);
        }
        // A year later.
        let _ = queue.due_firings(1_731_536_000_000);
        go_on(queue);
    });
}

#[test]
fn a_snapshot_that_is_taken_can_be_gone_on_from() {
    let corpus: Vec<Vec<u8>> = (0..6).map(|seed| lived(seed, 60).1.encode()).collect();
    let fuzz = Fuzz::new("snapshots", corpus).within(1 << 20, 256);
    fuzz.run(|input| {
        let mut restore = Restore::new(7);
        let pieces = input.chunks(1 + input.len() / 3);
        for piece in pieces {
            if let Err(error) = restore.feed(piece) {
                assert!(error.to_string().len() < 2_000, "{error}");
                return;
            }
        }
        if let Ok(queue) = restore.finish() {
            queue.check_invariants();
            go_on(queue);
        }
    });
}

/// A queue as it was read is used like any other.
fn go_on(mut queue: Queue) {
    for line in [
        r#"{"at":1,"do":"tick"}"#,
        r#"{"at":1,"do":{"submit":[{"type":"t0","queue":"q0","group":"k0"},{"id":"id1","type":"t1","unique_key":"k1"}]}}"#,
        r#"{"at":1,"do":{"claim":{"worker":"w","max":20,"lease_ms":30000,"nonce":7}}}"#,
        r#"{"at":1,"do":{"cancel":["id0","id1","id2","id3"]}}"#,
        r#"{"at":1,"do":{"retry":["id0","id1","id2","id3"]}}"#,
        r#"{"at":9000000000000,"do":"tick"}"#,
        r#"{"at":9000000000000,"do":{"claim":{"worker":"w","max":20,"lease_ms":30000,"nonce":7}}}"#,
        r#"{"at":9000000000000,"do":{"forget":["id0","id1","id2","id3"]}}"#,
    ] {
        applied(&mut queue, serde_json::from_str(line).unwrap());
    }
    queue.check_invariants();
    let text = queue.encode();
    let mut again = Restore::new(8);
    again.feed(&text).expect("what was written can be read");
    let again = again.finish().expect("it is whole");
    assert_eq!(again.encode(), text);
}
