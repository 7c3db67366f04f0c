//! Real processes: wall clocks hours apart, `kill -9`, and a leader that is stopped past its ttl.
//!
//! The processes are `tests/programs/leader.rs`, which appends a line `TERM EVENT PID` to one file while it leads.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tenure::core::Namespace;
use tenure::{NamespaceView, store};

use crate::support::{namespace, until, url};

const TTL: Duration = Duration::from_secs(3);

/// What the wall clocks do.
enum Clocks {
    /// The first leader's is ahead by this, those that watch it are as far behind, and right.
    Apart(&'static str),
    /// They are one clock, which is set forward by five hours again and again while someone leads, so that
    /// it happens between a heartbeat and a look at it too.
    SetForward,
}

/// Leaders of one election, and the file that they all append to.
struct Troupe {
    folder: TempDir,
    url: String,
    namespace: String,
    leaders: Vec<Leader>,
}

struct Leader {
    child: Child,
    said: PathBuf,
}

/// A line of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Line {
    term: u64,
    pid: u32,
}

impl Troupe {
    fn new(url: impl FnOnce(&Path) -> String) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self {
            url: url(folder.path()),
            folder,
            namespace: namespace(),
            leaders: Vec::new(),
        }
    }

    /// Starts a leader whose wall clock is off by this, or is the one that can be set.
    fn start(&mut self, name: &str, clock: Option<&str>) {
        let said = self.folder.path().join(name);
        let mut command = Command::new(program());
        match clock {
            Some(clock) => command.env("FAKETIME", clock),
            None => {
                command.env("FAKETIME_TIMESTAMP_FILE", self.folder.path().join("clock"));
                command.env("FAKETIME_NO_CACHE", "1")
            }
        };
        let child = command
            .env("LD_PRELOAD", faketime().unwrap())
            // A wall clock is set, not the one that counts from the start of the host.
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .args([&self.url, name])
            .arg(self.folder.path().join("lines"))
            .args([&TTL.as_millis().to_string(), &self.namespace])
            .stdout(fs::File::create(&said).unwrap())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.leaders.push(Leader { child, said });
    }

    /// Sets the clock of all who were started without one of their own.
    fn set_clock(&self, clock: &str) {
        let next = self.folder.path().join("next");
        fs::write(&next, clock).unwrap();
        fs::rename(next, self.folder.path().join("clock")).unwrap();
    }

    fn lines(&self) -> Vec<Line> {
        let text = fs::read_to_string(self.folder.path().join("lines")).unwrap_or_default();
        text.lines()
            .map(|line| {
                let words: Vec<_> = line.split(' ').collect();
                let [term, "elected" | "works", pid] = words[..] else {
                    panic!("a torn line: {line:?}");
                };
                Line {
                    term: term.parse().unwrap(),
                    pid: pid.parse().unwrap(),
                }
            })
            .collect()
    }

    /// Waits for a line that fits, among those after the first `seen`.
    async fn next(&self, seen: usize, fits: impl Fn(&Line) -> bool) -> Line {
        let mut found = None;
        until("another process leads", async || {
            found = self.lines()[seen..]
                .iter()
                .rfind(|line| fits(line))
                .copied();
            found.is_some()
        })
        .await;
        found.unwrap()
    }

    fn leader(&mut self, pid: u32) -> &mut Leader {
        let mut leaders = self.leaders.iter_mut();
        leaders.find(|leader| leader.child.id() == pid).unwrap()
    }

    /// No line of an older term after one of a newer, and one process per term.
    fn check(&self) {
        for pair in self.lines().windows(2) {
            let [before, after] = pair else {
                unreachable!()
            };
            let same = before == after;
            assert!(
                same || before.term < after.term,
                "{before:?}, then {after:?}"
            );
        }
    }
}

impl Leader {
    fn send(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap();
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap()
    }
}

impl Drop for Troupe {
    fn drop(&mut self) {
        for leader in &mut self.leaders {
            let _ = leader.child.kill();
            let _ = leader.child.wait();
        }
    }
}

/// Built with the tests by `cargo test`; beside them.
fn program() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests
        .parent()
        .unwrap()
        .with_file_name("examples")
        .join("test-leader");
    assert!(
        path.exists(),
        "first: cargo build -p tenure --example test-leader"
    );
    path
}

/// What to load into a process to set its clock: the program itself would be another process, which does
/// not pass signals on.
fn faketime() -> Option<String> {
    let script = ["-f", "+0", "sh", "-c", "printf %s \"$LD_PRELOAD\""];
    let output = Command::new("faketime").args(script).output().ok()?;
    String::from_utf8(output.stdout).ok()
}

#[allow(
    clippy::print_stderr,
    reason = "how long it took is for people to read"
)]
async fn survives_clocks_kills_and_pauses(
    engine: &str,
    clocks: &Clocks,
    url: impl FnOnce(&Path) -> String,
) {
    if faketime().is_none() {
        tenure_testkit::skip::for_want_of(&format!("faketime, for {engine}"));
        return;
    }
    let mut troupe = Troupe::new(url);
    troupe.set_clock("+0");
    let [ahead, behind, right] = match clocks {
        Clocks::Apart(by) => [
            Some(format!("+{by}")),
            Some(format!("-{by}")),
            Some("+0".to_owned()),
        ],
        Clocks::SetForward => [None, None, None],
    };
    troupe.start("ahead", ahead.as_deref());
    let first = troupe.next(0, |_| true).await;
    troupe.start("behind", behind.as_deref());
    troupe.start("right", right.as_deref());
    let store = store::open(&troupe.url).await.unwrap();
    let view = NamespaceView::new(store, Namespace::new(&troupe.namespace).unwrap());
    let election = "leader".parse().unwrap();
    until("all three stand", async || {
        view.status(&election).await.unwrap().candidates.len() == 3
    })
    .await;
    let joined: Vec<u64> = view
        .sessions()
        .await
        .unwrap()
        .iter()
        .map(|each| each.joined_at.0)
        .collect();
    let apart = joined.iter().max().unwrap() - joined.iter().min().unwrap();
    match clocks {
        Clocks::Apart(_) => {
            assert!(apart > 20 * 60 * 1000, "clocks are not set: {joined:?}");
            // They would have taken over within a ttl.
            tokio::time::sleep(TTL + TTL / 2).await;
        }
        Clocks::SetForward => {
            for times in 1..=30 {
                troupe.set_clock(&format!("+{}h", 5 * times));
                tokio::time::sleep(TTL / 20).await;
            }
        }
    }
    assert_eq!(
        troupe.lines().last().map(|line| line.term),
        Some(first.term)
    );

    let (seen, killed_at) = (troupe.lines().len(), Instant::now());
    troupe.leader(first.pid).send(Signal::KILL);
    let second = troupe.next(seen, |line| line.pid != first.pid).await;
    eprintln!(
        "{engine}: led again {:?} after kill -9, ttl {TTL:?}",
        killed_at.elapsed()
    );

    // It has just written a line, and is not stopped between asking for its trust and acting.
    let seen = troupe.lines().len();
    troupe.next(seen, |line| line.pid == second.pid).await;
    troupe.leader(second.pid).send(Signal::STOP);
    let third = troupe.next(seen, |line| line.term > second.term).await;
    assert!(third.pid != second.pid);
    troupe.leader(second.pid).send(Signal::CONT);
    until("the paused leader says why it stepped down", async || {
        troupe
            .leader(second.pid)
            .said()
            .contains(&format!("term {} ended: ", second.term))
    })
    .await;
    let said = troupe.leader(second.pid).said();
    let reasons = [
        "no renewal was confirmed in time",
        "the session is over",
        "another node has the lease",
    ];
    assert!(reasons.iter().any(|reason| said.contains(reason)), "{said}");

    // It is a candidate again, and gets the lease back gracefully.
    until("the paused leader stands again", async || {
        view.status(&election).await.unwrap().candidates.len() == 2
    })
    .await;
    let seen = troupe.lines().len();
    let leading = troupe.lines().last().unwrap().pid;
    troupe.leader(leading).send(Signal::TERM);
    troupe.next(seen, |line| line.pid != leading).await;
    assert!(troupe.leader(leading).child.wait().unwrap().success());
    troupe.check();
}

async fn on_server(variable: &str, clocks: &Clocks) {
    if let Some(url) = url(variable) {
        survives_clocks_kills_and_pauses(variable, clocks, |_| url).await;
    }
}

#[tokio::test]
async fn leaders_in_a_folder_survive_clocks_kills_and_pauses() {
    let url = |folder: &Path| format!("file:{}", folder.join("store").display());
    survives_clocks_kills_and_pauses("file", &Clocks::Apart("5h"), url).await;
}

#[tokio::test]
async fn leaders_on_sqlite_survive_clocks_kills_and_pauses() {
    // One host by nature, and so one clock.
    let url = |folder: &Path| format!("sqlite:{}", folder.join("store").display());
    survives_clocks_kills_and_pauses("sqlite", &Clocks::SetForward, url).await;
}

#[tokio::test]
async fn leaders_on_postgres_survive_clocks_kills_and_pauses() {
    on_server("TENURE_TEST_POSTGRES", &Clocks::Apart("5h")).await;
}

#[tokio::test]
async fn leaders_on_mariadb_survive_clocks_kills_and_pauses() {
    on_server("TENURE_TEST_MYSQL", &Clocks::Apart("5h")).await;
}

#[tokio::test]
async fn leaders_on_ceph_survive_clocks_kills_and_pauses() {
    // A request's signature names the time, and S3 refuses it if that is off by more than 15 minutes.
    on_server("TENURE_TEST_S3_CEPH", &Clocks::Apart("12m")).await;
}
