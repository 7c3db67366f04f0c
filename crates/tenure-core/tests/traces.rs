//! Text traces: what is put into a node, and under it, indented, what comes out.
//!
//! Every file in `traces/` is one story of one node, `a`, in one election. A line that starts in the first column is an
//! input, with its time in seconds in front; `#` begins a comment. Everything indented is output: it is compared, and
//! rewritten by
//!
//! ```text
//! UPDATE_TRACES=1 cargo test -p tenure-core --test traces
//! ```
//!
//! Inputs:
//!
//! ```text
//! 0 start | leave | resign | transfer to b | work 1 ended | hint | join | join priority 50 | observe
//! 0 take part | offer d | ended d/0 1  in the cluster; the shard d/0 of generation 1
//! 0 lead 1 | follow | hint of b       the election of the cluster is held elsewhere
//! 0 me: …       the answer to the last request about the own session
//! 0 b: …        about the session of b
//! 0 lease: …    about the lease
//! 0 fence: …    about the fence
//! 0 look: …     about the assignments, to run what they say: `d/0 1 v1`
//! 0 assignments: … | drains: … | sessions: b v1 | record of b: …    about what a leader of the cluster reads
//! 9 pass        time passes until then; the node is woken whenever it asks for it
//! 9 wake        time has passed; the node was not woken before
//! 9 again       the session has left, and the next one of the process begins
//! ```
//!
//! Answers: `done v1`, `conflict`, `refused`, `lost`; `missing`, `failed`, `unreadable v1`, `unchanged`,
//! `as written v1` (what the node wrote last); sessions `alive #3 v1`, `gone #3 v1`, `evicted #3 v1`,
//! `alive #3 by a copy v1` (of this process, which counts like it);
//! leases `term 3 held by b v1`, `term 3 vacant after b v1` (`after`: whose term is the last in the
//! history), `term 3 reserved for b v1`, with `asks resign` or `asks transfer to b`; fences `term 3 by b v1`; each with `age 4` if the store tells it. Ttls are 10 s,
//! unless `ttl 20` says otherwise.
//!
//! Directives: `with strict age`; `with heartbeats` and `without heartbeats` (the store confirms the own
//! session at once, and it is not mentioned); `with looks` and `without looks` (the same for reads that
//! find the lease unchanged, and for whatever else shows nothing new).

#[path = "traces/story.rs"]
mod story;

use std::fs;
use std::path::{Path, PathBuf};

#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "the core does no I/O, its tests read files"
)]
fn every_trace_is_as_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces");
    let mut paths: Vec<PathBuf> = fs::read_dir(&folder)
        .expect("the folder is there")
        .map(|entry| entry.expect("the folder can be read").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    paths.sort();
    assert!(paths.len() > 20, "the traces are in {}", folder.display());
    let update = std::env::var_os("UPDATE_TRACES").is_some();
    let mut changed = Vec::new();
    for path in paths {
        let written = fs::read_to_string(&path).expect("a trace is text");
        let played = story::play(&path, &written);
        if written == played {
            continue;
        }
        if update {
            fs::write(&path, &played).expect("a trace can be written");
        }
        changed.push(format!(
            "{}:\n{}",
            path.display(),
            difference(&written, &played)
        ));
    }
    assert!(
        update || changed.is_empty(),
        "{}\nif this is right: UPDATE_TRACES=1 cargo test -p tenure-core --test traces",
        changed.join("\n")
    );
}

/// The first lines that differ.
fn difference(written: &str, played: &str) -> String {
    let mut lines = written.lines().zip(played.lines()).enumerate();
    let first = lines.find(|(_, (written, played))| written != played);
    match first {
        Some((number, (written, played))) => {
            format!("line {}\n  - {written}\n  + {played}", number + 1)
        }
        None => format!(
            "{} lines, now {}",
            written.lines().count(),
            played.lines().count()
        ),
    }
}
