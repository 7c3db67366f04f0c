//! A store in a directory, and programs that write what they do into one log.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tempfile::TempDir;

use super::TTL;
use crate::support::tenure;

/// Long enough for a slow machine; nothing is measured against it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until another process has done something.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process has ended; a zombie counts as ended.
pub(crate) fn is_gone(pid: &Pid) -> bool {
    test_kill_process(*pid).is_err() || state(*pid) == Some('Z')
}

fn state(pid: Pid) -> Option<char> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    status.rsplit(')').next()?.trim_start().chars().next()
}

/// Stops the guard of a running program, but only once it waits: before that it may not have reported that the
/// program runs, and would have minutes to do so.
pub(crate) fn stop_guard(guard: Pid) {
    until("the guard to wait", || state(guard) == Some('S'));
    kill_process(guard, Signal::STOP).unwrap();
}

/// Describes a process: its name, its parent, and what it waits for.
fn describe(pid: Pid) -> String {
    let read = |name| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let status = read("status");
    let told = ["Name:", "State:", "PPid:", "SigPnd:", "ShdPnd:"];
    let told = status
        .lines()
        .filter(|line| told.iter().any(|name| line.starts_with(name)));
    let told: Vec<&str> = told.collect();
    let command = read("cmdline").replace('\0', " ");
    format!(
        "{pid}: {} in {}: {command:.80}",
        told.join(" "),
        read("wchan")
    )
}

pub(crate) struct Scene {
    folder: TempDir,
}

impl Scene {
    /// A scene with an empty store, since verbs that only read do not create one.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut store = std::fs::DirBuilder::new();
        store.recursive(true).mode(0o700);
        store
            .create(folder.path().join("store/.tenure/lock"))
            .unwrap();
        Self { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The binary, on the store of this scene.
    pub(crate) fn tenure(&self, arguments: &[&str]) -> Command {
        let mut command = tenure(arguments);
        command.env("TENURE_STORE", self.path("store"));
        command.env("LOG", self.path("log"));
        command
    }

    /// A node that runs a shell script while it leads.
    pub(crate) fn run(&self, node: &str, script: &str, options: &[&str]) -> Running {
        let mut command = self.tenure(&["run", "--ttl", TTL, "--node", node]);
        command.args(options).args(["--", "sh", "-c", script]);
        Running::start(&mut command)
    }

    /// Everything that programs have written, in order.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.log().lines().map(str::to_owned).collect()
    }

    pub(crate) fn has(&self, words: &str) -> bool {
        self.lines().iter().any(|line| line.contains(words))
    }

    pub(crate) fn wait_for(&self, words: &str) {
        until(&format!("{words:?} in the log"), || self.has(words));
    }

    /// The processes that a node's programs said they had started.
    pub(crate) fn pids(&self, node: &str) -> Vec<Pid> {
        let lines = self.lines();
        let words = lines.iter().map(|line| line.split(' ').collect::<Vec<_>>());
        words
            .filter(|words| words[1] == node && words[2] == "start")
            .map(|words| Pid::from_raw(words[3].parse().unwrap()).unwrap())
            .collect()
    }

    /// Waits until this many programs of a node have logged that they run. Guards report it earlier.
    pub(crate) fn wait_for_programs(&self, node: &str, count: usize) {
        until(&format!("{count} programs of {node}"), || {
            self.pids(node).len() >= count
        });
    }

    /// Whether a node has started programs, and all of them have ended.
    pub(crate) fn all_gone(&self, node: &str) -> bool {
        let pids = self.pids(node);
        !pids.is_empty() && pids.iter().all(is_gone)
    }

    /// Waits for the end of all programs of a node; panics with what is left if it does not come.
    pub(crate) fn wait_for_end(&self, node: &str) {
        let started = Instant::now();
        while !self.all_gone(node) {
            if started.elapsed() >= PATIENCE {
                let left = self.starts().into_iter().flat_map(<[Pid; 2]>::from);
                let left: Vec<String> = left.filter(|pid| !is_gone(pid)).map(describe).collect();
                panic!(
                    "programs of {node} still run; of all nodes:\n{}",
                    left.join("\n")
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Every start of a program, as the ids of the program and of its guard.
    pub(crate) fn starts(&self) -> Vec<(Pid, Pid)> {
        let lines = self.lines();
        let words = lines.iter().map(|line| line.split(' ').collect::<Vec<_>>());
        let pid = |word: &str| Pid::from_raw(word.parse().unwrap()).unwrap();
        words
            .filter(|words| words[2] == "start")
            .map(|words| (pid(words[3]), pid(words[4])))
            .collect()
    }

    /// Checks that no program did anything after one of a later term had begun, and that no term has two nodes.
    pub(crate) fn check_order(&self) {
        let mut last = (0, String::new());
        for line in self.lines() {
            let mut words = line.split(' ');
            let term: u64 = words.next().unwrap().parse().unwrap();
            let node = words.next().unwrap().to_owned();
            assert!(
                term > last.0 || (term, &node) == (last.0, &last.1),
                "{line:?} after term {} of {}:\n{}",
                last.0,
                last.1,
                self.log()
            );
            last = (term, node);
        }
    }
}

/// A process of the test, killed at its end.
pub(crate) struct Running {
    child: Child,
    told: Arc<Mutex<String>>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let told = Arc::new(Mutex::new(String::new()));
        let (stderr, heard) = (child.stderr.take().unwrap(), told.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines() {
                *heard.lock().unwrap() += &(line.unwrap() + "\n");
            }
        });
        Self { child, told }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// The same for a process that may have ended: until it is waited for, its id is not reused.
    pub(crate) fn signal_if_running(&mut self, signal: Signal) {
        if !self.has_ended() {
            self.signal(signal);
        }
    }

    /// Its stderr so far.
    pub(crate) fn said(&self) -> String {
        self.told.lock().unwrap().clone()
    }

    pub(crate) fn wait_for_note(&mut self, words: &str) {
        until(&format!("{words:?} on stderr"), || {
            self.told.lock().unwrap().contains(words)
        });
    }

    /// Waits for its exit code.
    pub(crate) fn ended(&mut self) -> i32 {
        let mut code = None;
        until("the end of a process", || {
            code = self.child.try_wait().unwrap();
            code.is_some()
        });
        code.unwrap().code().expect("it ended on its own")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- stderr of a process\n{}", self.told.lock().unwrap());
        }
    }
}
