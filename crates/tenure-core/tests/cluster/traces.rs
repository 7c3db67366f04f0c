//! Text traces: what is put into an agent or an assigner, and under it, indented, what comes out.
//!
//! Every file in `traces/` is one story of one machine, named in its first line. A line that starts in the first column
//! is an input, with its time in seconds in front; `#` begins a comment. Everything indented is output: it is compared,
//! and rewritten by
//!
//! ```text
//! UPDATE_TRACES=1 cargo test -p tenure-core --test cluster traces
//! ```
//!
//! For both: `9 pass` (time passes until then; the machine is woken whenever it asks for it), `9 wake`.
//!
//! Agent, of the session `a`: `offer d`, `withdraw d`, `joined`, `joined again`, `trusted until 9`,
//! `session over`, `hint`, `leave`, `restart within 60`, `started d/0 5`, `ended d/0 5`,
//! `ended d/0 5: no luck`, and the answers to looks `saw unchanged`, `saw missing`, `saw failed`,
//! `saw v1: d/0 5 assigning, d/1 6 revoking`. Looks that find nothing new are left out after `with looks`.
//!
//! Assigner, of the session `a`: `elected 3`, `elected 3 after b c` (who led before), `ended`, `said`,
//! `sessions: a d=4, b d=4 d/0 5 running`, `sessions: a d=4 blank` (it has assigned nothing),
//! `session: b d=4`, `session: b gone`, `b evicted`; `read: missing`, `failed`, `unchanged`, `unreadable`,
//! `as written v2`, `as before v1`, `term 2 by b v1: d/0 5 b active`, `recovering term 2 by b v1: …`; `written: done v1`, `conflict`, `refused`, `lost`;
//! `drains: missing`, `drains: b v1`. Looks that find nothing new are left out after `with looks`, and `said` where no line has it.

#[path = "traces/agent_story.rs"]
mod agent_story;
#[path = "traces/assigner_story.rs"]
mod assigner_story;
#[path = "traces/words.rs"]
mod words;

use std::path::{Path, PathBuf};
use std::time::Duration;

/// A machine that a story is about.
trait Machine {
    /// Carries out an input and returns the lines of output; `None` if it cannot be read.
    fn input(&mut self, at: Duration, words: &str) -> Option<Vec<String>>;
    /// Time has passed.
    fn wake(&mut self, at: Duration) -> Vec<String>;
    /// When it wants to be woken.
    fn wake_at(&self) -> Duration;
}

#[test]
fn every_trace_is_as_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster/traces");
    let entries = std::fs::read_dir(&folder).expect("the folder is there");
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.expect("the folder can be read").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    paths.sort();
    assert!(paths.len() > 10, "the traces are in {}", folder.display());
    let update = std::env::var_os("UPDATE_TRACES").is_some();
    let mut changed = Vec::new();
    for path in paths {
        let written = std::fs::read_to_string(&path).expect("a trace is text");
        let played = play(&path, &written);
        if written == played {
            continue;
        }
        let lines = written.lines().zip(played.lines()).enumerate();
        let first = lines.map(|(number, lines)| (number + 1, lines));
        let first = first
            .into_iter()
            .find(|(_, (written, played))| written != played);
        changed.push(format!("{}: {first:?}", path.display()));
        if update {
            replace(&path, &played);
        }
    }
    assert!(
        update || changed.is_empty(),
        "{}\nif this is right: UPDATE_TRACES=1 cargo test -p tenure-core --test cluster traces",
        changed.join("\n")
    );
}

#[allow(
    clippy::disallowed_methods,
    reason = "the core does no I/O, its tests write traces"
)]
fn replace(path: &Path, text: &str) {
    std::fs::write(path, text).expect("a trace can be written");
}

fn play(path: &Path, text: &str) -> String {
    let mut machine: Option<Box<dyn Machine>> = None;
    let mut played = String::new();
    let mut now = Duration::ZERO;
    let says = text.lines().any(|line| line.ends_with(" said"));
    for (number, line) in text.lines().enumerate() {
        if line.starts_with(' ') {
            continue;
        }
        played.push_str(line);
        played.push('\n');
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let cannot = format!("{}:{}: cannot read {line:?}", path.display(), number + 1);
        let Some(machine) = &mut machine else {
            machine = Some(match line {
                "agent" => Box::new(agent_story::Story::new(false)),
                "agent with looks" => Box::new(agent_story::Story::new(true)),
                "assigner" => Box::new(assigner_story::Story::new(false, says)),
                "assigner with looks" => Box::new(assigner_story::Story::new(true, says)),
                _ => panic!("{cannot}"),
            });
            continue;
        };
        let (time, words) = line.split_once(' ').expect(&cannot);
        let time = words::seconds(time).expect(&cannot);
        assert!(time >= now, "{}: time only passes", path.display());
        if words == "pass" {
            pass(machine.as_mut(), now, time, &mut played);
            now = time;
            continue;
        }
        now = time;
        let lines = match words {
            "wake" => machine.wake(now),
            _ => machine.input(now, words).expect(&cannot),
        };
        write_lines(&mut played, &lines);
    }
    played
}

fn pass(machine: &mut dyn Machine, from: Duration, until: Duration, played: &mut String) {
    let mut now = from;
    for _ in 0..10_000 {
        let wake_at = machine.wake_at();
        if wake_at > until {
            return;
        }
        now = now.max(wake_at);
        let lines = machine.wake(now);
        if !lines.is_empty() {
            played.push_str(&format!("  at {:.3}\n", now.as_secs_f64()));
        }
        write_lines(played, &lines);
    }
    panic!("the machine never sleeps");
}

fn write_lines(played: &mut String, lines: &[String]) {
    for line in lines {
        played.push_str("    ");
        played.push_str(line);
        played.push('\n');
    }
}
