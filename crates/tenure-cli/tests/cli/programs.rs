//! Programs that change their user, leave their session or do not end, and the processes around them: nothing of a
//! program is left when it is started again, whatever happens to any of these processes.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::cluster::{self, node, running, wait_for_loads};
use crate::elections::{asked, document};
use crate::run::{PROGRAM, Running, Scene, is_gone, stop_guard, until};
use crate::serve::Serving;
use crate::support::{Ended, binary, run, tenure};

/// A user without any files.
const NOBODY: &str = "65534";

/// Whether this test runs as root; if not, it is skipped with a message.
pub(crate) fn is_root(what: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        tenure_testkit::skip::for_want_of(&format!("root, for {what}"));
    }
    is_root
}

/// All descendants of a process.
pub(crate) fn descendants(of: Pid) -> Vec<Pid> {
    let mut found = Vec::new();
    let threads = std::fs::read_dir(format!("/proc/{of}/task"));
    for thread in threads.into_iter().flatten().flatten() {
        let children = std::fs::read_to_string(thread.path().join("children"));
        for pid in children.unwrap_or_default().split_ascii_whitespace() {
            let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
            found.push(pid);
            found.extend(descendants(pid));
        }
    }
    found
}

/// A scene that an ordinary user may use, and a program that becomes root when it is started, like sudo.
struct Users {
    scene: Scene,
    sudo: PathBuf,
}

/// Makes a folder accessible to everybody, and puts a program there that becomes root when it is started.
pub(crate) fn make_sudo(folder: &Path) -> PathBuf {
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(folder, 0o777);
    let sudo = folder.join("sudo");
    std::fs::copy("/usr/bin/setpriv", &sudo).unwrap();
    open(&sudo, 0o4755);
    sudo
}

/// The binary, as an ordinary user: a copy in a folder that is open to everybody, since the build may not be.
pub(crate) fn nobody(folder: &Path, arguments: &[&str]) -> Command {
    let copy = folder.join("tenure");
    if !copy.exists() {
        // A link if possible, since the binary is large.
        if std::fs::hard_link(binary(), &copy).is_err() {
            std::fs::copy(binary(), &copy).unwrap();
        }
    }
    let inner = tenure(arguments);
    let mut command = as_nobody();
    command.arg(copy).args(arguments);
    with_environment(command, &inner)
}

fn as_nobody() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]);
    command
}

/// Wraps a command in another one, with the inner one's environment.
fn inside(mut outer: Command, inner: &Command) -> Command {
    outer.arg(inner.get_program()).args(inner.get_args());
    with_environment(outer, inner)
}

fn with_environment(mut outer: Command, inner: &Command) -> Command {
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    outer
}

impl Users {
    fn new() -> Self {
        let scene = Scene::new();
        let sudo = make_sudo(&scene.path(""));
        let owner = format!("{NOBODY}:{NOBODY}");
        let mut command = Command::new("chown");
        command.args(["-R", &owner]).arg(scene.path("store"));
        assert!(command.status().unwrap().success());
        Self { scene, sudo }
    }

    /// Runs a verb as the user nobody, who owns the store.
    fn asked(&self, arguments: &[&str]) -> Ended {
        run(nobody(&self.scene.path(""), arguments).env("TENURE_STORE", self.scene.path("store")))
    }

    /// Runs, as the user nobody, a program that becomes root. It logs that, and then keeps writing.
    fn start(&self, arguments: &[&str]) -> Running {
        let mut command = nobody(&self.scene.path(""), arguments);
        command
            .arg("--")
            .arg(&self.sudo)
            .args(["--reuid", "0", "--regid", "0", "--clear-groups", "sh", "-c"])
            .arg(r#"umask 0; me=${TENURE_TERM:-$TENURE_GENERATION}; echo "$me $TENURE_NODE start $$ $PPID 0/1" >> "$LOG"
                while :; do echo "$me $TENURE_NODE tick 0" >> "$LOG"; sleep 0.05; done"#)
            .env("TENURE_STORE", self.scene.path("store"))
            .env("LOG", self.scene.path("log"));
        Running::start(&mut command)
    }
}

#[test]
fn a_program_that_may_not_be_killed_keeps_its_lease() {
    if !is_root("programs that change their user") {
        return;
    }
    let users = Users::new();
    let run_as = |node| {
        users.start(&[
            "run",
            "--ttl",
            "3s",
            "--node",
            node,
            "--kill-after",
            "300ms",
        ])
    };
    let mut a = run_as("a");
    users.scene.wait_for("1 a tick");
    let mut b = run_as("b");
    b.wait_for_note("b is a candidate in");
    // It cannot be done, and is not reported as done.
    let resigned = users.asked(&["resign", "--wait", "4s"]);
    assert_eq!(resigned.0, 1, "{resigned:?}");
    a.wait_for_note("this user may not kill");
    a.wait_for_note("which keeps running: the lease is kept until it ends");
    let (_, status, _) = users.asked(&["status"]);
    assert!(status.contains("this user may not kill"), "{status}");
    assert!(!users.scene.has("b tick"), "{}", users.scene.log());

    let (program, _) = users.scene.starts()[0];
    kill_process(program, Signal::KILL).unwrap();
    users.scene.wait_for("b tick");
    users.scene.check_order();
    // At the second signal, tenure exits without the program, and does not release the lease.
    b.signal(Signal::TERM);
    b.wait_for_note("the lease is kept");
    b.signal(Signal::TERM);
    assert_eq!(b.ended(), 143);
    let (_, history, _) = users.asked(&["history"]);
    assert!(!history.contains("term 2 b resigned"), "{history}");
    for (program, _) in users.scene.starts() {
        let _ = kill_process(program, Signal::KILL);
    }
    drop(a);
}

#[test]
fn a_program_that_may_not_be_killed_keeps_its_shard() {
    if !is_root("programs that change their user") {
        return;
    }
    let users = Users::new();
    let scene = &users.scene;
    let run_as = |node| {
        users.start(&[
            "run",
            "--daemon",
            "worker",
            "--ttl",
            "2s",
            "--node",
            node,
            "--kill-after",
            "300ms",
        ])
    };
    let mut a = run_as("a");
    scene.wait_for("a tick");
    let mut b = run_as("b");
    b.wait_for_note("b can run worker");
    // Longer than the drain timeout of these sessions, after which a silent node loses its shard.
    let drained = users.asked(&["drain", "a", "--wait", "12s"]);
    assert_eq!(drained.0, 1, "{drained:?}");
    a.wait_for_note("worker/0 is kept until it ends");
    let (code, daemons, _) = users.asked(&["daemons"]);
    assert_eq!(code, 1);
    assert!(
        daemons.contains("stuck: this user may not kill process"),
        "{daemons}"
    );
    assert!(!scene.has("b tick"), "{}", scene.log());
    kill_process(scene.starts()[0].0, Signal::KILL).unwrap();
    scene.wait_for("b tick");
    for (program, _) in scene.starts() {
        let _ = kill_process(program, Signal::KILL);
    }
}

/// Trust ends while the store is unavailable. A program that may not be killed keeps running, and is reported as
/// running.
#[test]
fn a_program_that_may_not_be_killed_outlives_trust_and_that_shows() {
    if !is_root("programs that change their user") {
        return;
    }
    let users = Users::new();
    let scene = &users.scene;
    let run_as = |node, more: &[&str]| {
        let mut arguments = vec!["run", "--ttl", "2s", "--node", node];
        arguments.extend(["--kill-after", "300ms"]);
        arguments.extend(more);
        users.start(&arguments)
    };
    let mut a = run_as("a", &["--namespace", "other"]);
    let mut d = run_as("d", &["--daemon", "worker"]);
    scene.wait_for("a tick");
    scene.wait_for("d tick");
    std::fs::rename(scene.path("store"), scene.path("away")).unwrap();
    a.wait_for_note("the lease is lost, and another node may start the program beside it");
    d.wait_for_note("worker/0 is no longer this node's");
    std::fs::rename(scene.path("away"), scene.path("store")).unwrap();
    until("the shard is shown as stuck", || {
        let (_, daemons, _) = users.asked(&["daemons"]);
        daemons.contains("stuck: this user may not kill process")
    });
    until("the node without a lease tells of its program", || {
        let (_, status, _) = users.asked(&["status", "--namespace", "other"]);
        status.contains("a: this user may not kill process")
    });
    // Longer than the acknowledge timeout.
    std::thread::sleep(Duration::from_secs(8));
    let (_, daemons, _) = users.asked(&["daemons"]);
    assert!(daemons.contains("stuck: "), "{daemons}");
    let (_, plan, _) = users.asked(&["plan"]);
    assert!(plan.contains("wait, its node cannot end it"), "{plan}");
    assert!(!d.said().contains("has stopped"), "{}", d.said());
    for (program, _) in scene.starts() {
        let _ = kill_process(program, Signal::KILL);
    }
}

/// After losing its lease, a node becomes a candidate again only when the program that may not be killed has ended.
#[test]
fn a_node_stands_again_when_a_program_that_may_not_be_killed_has_ended() {
    if !is_root("programs that change their user") {
        return;
    }
    let users = Users::new();
    let scene = &users.scene;
    let mut a = users.start(&["run", "--ttl", "2s", "--node", "a", "--kill-after", "300ms"]);
    scene.wait_for("1 a tick");
    // It wakes up when its lease is over; there was no other candidate.
    a.signal(Signal::STOP);
    std::thread::sleep(Duration::from_secs(4));
    a.signal(Signal::CONT);
    a.wait_for_note("the lease is lost, and another node may start the program beside it");
    // There is no leader by now, but the program still runs.
    let shows = |status: &str| status.contains("a: this user may not kill process");
    until("the node tells of it", || {
        shows(&users.asked(&["status"]).1)
    });
    // Longer than a lease lasts.
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(scene.starts().len(), 1, "{}", scene.log());
    let (code, status, _) = users.asked(&["status", "--json"]);
    assert_eq!(code, 1, "{status}");
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["troubles"][0]["node"], "a", "{status}");
    assert_eq!(status["elections"][0]["candidates"], serde_json::json!([]));
    assert!(!a.said().contains("same node id"), "{}", a.said());
    kill_process(scene.starts()[0].0, Signal::KILL).unwrap();
    until("it is started again", || scene.starts().len() == 2);
    until("it is over", || !shows(&users.asked(&["status"]).1));
    for (program, _) in scene.starts() {
        let _ = kill_process(program, Signal::KILL);
    }
}

/// As when a user has used up its limit of processes: nothing panics, and the reason is reported.
#[test]
fn a_process_without_threads_says_so_and_ends() {
    if !is_root("a user without other processes") {
        return;
    }
    let users = Users::new();
    let folder = users.scene.path("");
    let plain = nobody(&folder, &[]);
    let asked = |threads: u32, arguments: &[&str]| {
        // A user without other processes.
        let user = (200_000 + std::process::id() % 100_000).to_string();
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", &user, "--regid", &user, "--clear-groups"])
            .args(["timeout", "--signal", "KILL", "4"])
            .args(["prlimit", &format!("--nproc={threads}")])
            .arg(folder.join("tenure"))
            .args(arguments)
            .current_dir(&folder);
        // With all the threads that it needs, it keeps running until it is killed.
        let ended = with_environment(command, &plain).output().unwrap();
        let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
        (ended.status.code(), stderr)
    };
    let store = format!("file:{}", folder.join("own").display());
    let cores = u32::try_from(std::thread::available_parallelism().unwrap().get()).unwrap();
    for verb in [
        vec!["status", "--store", &store],
        vec!["serve", "--store", &store, "--listen", "127.0.0.1:0"],
        vec!["run", "--store", &store, "--", "true"],
        vec!["worker", "--type", "work", "--exec", "true"],
    ] {
        // One more than the runtime's threads, and none for anything else: the next thread fails.
        for threads in [1, 1 + cores, 2 + cores] {
            let (code, stderr) = asked(threads, &verb);
            assert!(!stderr.contains("panicked"), "{verb:?}: {stderr}");
            if threads == 1 {
                assert_eq!(code, Some(2), "{verb:?}: {stderr}");
                assert!(stderr.contains("no more threads"), "{verb:?}: {stderr}");
                assert!(stderr.contains("ulimit -u"), "{verb:?}: {stderr}");
            }
        }
    }
}

/// Appends `GENERATION NODE WORD SHARD/SHARDS` when it starts, while it runs, and when it ends.
const COUNTING: &str = r#"
say() { echo "$TENURE_GENERATION $TENURE_NODE $1 $TENURE_SHARD/$TENURE_SHARDS" >> "$LOG"; }
trap 'say stop; exit 0' TERM
say start
while :; do say tick; sleep 0.05; done
"#;

/// The shard counts that programs were given, in the order of the log.
fn counts(scene: &Scene) -> Vec<u32> {
    let lines = scene.lines();
    let count = |line: &String| line.rsplit('/').next().unwrap().parse().unwrap();
    lines.iter().map(count).collect()
}

#[test]
fn every_program_is_told_the_number_of_shards_that_rules() {
    let scene = Scene::new();
    let mut old = Vec::new();
    for name in ["a", "b"] {
        old.push(node(&scene, name, "4s", &["--shards", "4"], COUNTING));
    }
    wait_for_loads(&scene, &[("a", 2), ("b", 2)]);
    // A rolling change: the count of four is in force as long as a node offers it.
    let _c = node(&scene, "c", "4s", &["--shards", "6"], COUNTING);
    scene.wait_for(" c tick ");
    assert!(
        counts(&scene).iter().all(|&count| count == 4),
        "{}",
        scene.log()
    );
    let _d = node(&scene, "d", "4s", &["--shards", "6"], COUNTING);
    for mut node in old {
        node.signal(Signal::TERM);
        assert_eq!(node.ended(), 0);
    }
    wait_for_loads(&scene, &[("c", 3), ("d", 3)]);
    // A higher revision is in force at once.
    let _e = node(
        &scene,
        "e",
        "4s",
        &["--shards", "2", "--revision", "1"],
        COUNTING,
    );
    until("two shards", || {
        running(&scene).values().sum::<usize>() == 2
    });
    until("the last tick", || counts(&scene).last() == Some(&2));
    // No program kept using an old count after one had started with a new count.
    let mut seen = counts(&scene);
    seen.dedup();
    assert_eq!(seen, [4, 6, 2], "{}", scene.log());
}

/// Prints its process id, and then sleeps, in its own session and without a parent.
const AWAY: &str =
    r#"setsid sh -c 'echo "$TENURE_TERM $TENURE_NODE start $$ $$" >> "$LOG"; exec sleep 1000' & "#;

#[test]
fn what_left_the_session_dies_with_the_guard_before_the_program_starts_again() {
    let scene = Scene::new();
    let program = PROGRAM.replace("say \"start", &format!("{AWAY} sleep 0.2; say \"start"));
    let mut a = scene.run("a", &program, &[]);
    until("a family", || scene.starts().len() == 2);
    let [(away, _), (program, guard)] = scene.starts()[..] else {
        panic!("{}", scene.log());
    };
    kill_process(guard, Signal::KILL).unwrap();
    until("another start", || scene.starts().len() >= 3);
    assert!(is_gone(&away) && is_gone(&program), "{}", scene.log());
    a.signal(Signal::TERM);
    assert_eq!(a.ended(), 0);
    assert!(scene.all_gone("a"));
}

#[test]
fn ps_says_what_a_guard_is_and_it_is_small() {
    let scene = Scene::new();
    let a = node(&scene, "a", "60s", &["--shards", "3"], cluster::PROGRAM);
    wait_for_loads(&scene, &[("a", 3)]);
    // A shard is reported running before its guard has got that far.
    scene.wait_for_programs("a", 3);
    let line = |pid: &Pid| std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
    // Only those of this node: other tests have guards of that name, some of them only just started.
    let guards: Vec<(Pid, String)> = descendants(a.pid())
        .into_iter()
        .filter_map(|pid| Some((pid, line(&pid).ok()?)))
        .filter(|(_, line)| line.starts_with("tenure: guard of worker/"))
        .collect();
    assert_eq!(guards.len(), 3, "{guards:?}");
    for (guard, _) in guards {
        let name = std::fs::read_to_string(format!("/proc/{guard}/comm")).unwrap();
        assert_eq!(name, "tenure-guard\n");
        // Its private memory: 2.5 MB in a debug build, most of it relocated addresses of the program itself.
        let memory = std::fs::read_to_string(format!("/proc/{guard}/smaps_rollup")).unwrap();
        let mut private = memory
            .lines()
            .filter_map(|line| line.strip_prefix("Private_Dirty:"));
        let private = private.next().unwrap().trim().trim_end_matches(" kB");
        assert!(private.parse::<u64>().unwrap() < 5_000, "{private} kB");
    }
}

/// As process 1 of a namespace.
pub(crate) fn first_process(arguments: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    inside(command, &tenure(arguments))
}

/// Whether this test may create a process namespace; if not, it is skipped with a message. Ordinary users may, where
/// the system allows them user namespaces.
pub(crate) fn has_namespaces() -> bool {
    let arguments = ["--user", "--map-root-user", "--pid", "--fork", "true"];
    let may_unshare = Command::new("unshare").args(arguments).output();
    may_unshare.is_ok_and(|ended| ended.status.success()) || is_root("a namespace of processes")
}

#[test]
fn process_1_survives_its_guard_and_keeps_no_zombies() {
    if !has_namespaces() {
        return;
    }
    let scene = Scene::new();
    let orphan = r#"(sleep 0.1 &) ; echo "$TENURE_TERM $TENURE_NODE start $$ $PPID" >> "$LOG"
        (sleep 1000 &) ; exec sleep 1000"#;
    let mut command = first_process(&["run", "--ttl", "3s", "--node", "a", "--kill-after", "1s"]);
    command
        .env("TENURE_STORE", scene.path("store"))
        .env("LOG", scene.path("log"));
    let mut a = Running::start(command.args(["--", "sh", "-c", orphan]));
    let unshare = a.pid();
    until("a start", || scene.starts().len() == 1);
    let guard = |unshare| {
        let all = descendants(unshare);
        let is_guard = |pid: &&Pid| {
            let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
            line.unwrap_or_default().contains("\0__guard\0")
        };
        all.iter().find(is_guard).copied()
    };
    // Process 1 and the process that does the work, however it was started.
    for pid in &descendants(unshare)[..2] {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        assert_eq!(name.unwrap(), "tenure\n");
    }
    kill_process(guard(unshare).unwrap(), Signal::KILL).unwrap();
    until("another start", || scene.starts().len() == 2);
    until("the end of all zombies", || zombies(unshare) == 0);
    // unshare does not pass it on: to process 1 itself.
    let first = descendants(unshare)[0];
    kill_process(first, Signal::TERM).unwrap();
    assert_eq!(a.ended(), 0);
}

/// Ignored signals, as a shell without job control starts background processes. A process that is not process 1 acts on
/// them.
#[test]
fn process_1_acts_on_signals_that_were_ignored_when_it_was_started() {
    if !has_namespaces() {
        return;
    }
    let scene = Scene::new();
    let inner = first_process(&["run", "--ttl", "3s", "--node", "a"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' INT HUP USR1; exec \"$@\"", "sh"]);
    let mut command = inside(shell, &inner);
    command
        .env("TENURE_STORE", scene.path("store"))
        .env("LOG", scene.path("log"));
    let program = r#"trap 'echo usr1 >> "$LOG.usr1"' USR1
        echo "$TENURE_TERM $TENURE_NODE start $$ $PPID" >> "$LOG"
        while :; do sleep 0.1; done"#;
    let mut a = Running::start(command.args(["--", "sh", "-c", program]));
    until("a start", || scene.starts().len() == 1);
    let first = descendants(a.pid())[0];
    // What stays ignored does nothing.
    kill_process(first, Signal::HUP).unwrap();
    kill_process(first, Signal::USR1).unwrap();
    until("the signal in the program", || {
        Path::new(&scene.path("log.usr1")).exists()
    });
    kill_process(first, Signal::INT).unwrap();
    assert_eq!(a.ended(), 0);
}

/// The number of zombies below a process.
pub(crate) fn zombies(below: Pid) -> usize {
    let is_zombie = |pid: &&Pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let state = stat.rsplit(") ").next().unwrap_or_default();
        state.starts_with('Z')
    };
    descendants(below).iter().filter(is_zombie).count()
}

/// A full pipe, which is not read until the test reads it.
fn stalled() -> (OwnedFd, OwnedFd) {
    let (read, write) = std::io::pipe().unwrap();
    let (read, write) = (OwnedFd::from(read), OwnedFd::from(write));
    rustix::io::ioctl_fionbio(&write, true).unwrap();
    while rustix::io::write(&write, &[b'.'; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&write, false).unwrap();
    (read, write)
}

fn ends_within(child: &mut Child, patience: Duration) -> Option<i32> {
    let started = Instant::now();
    while started.elapsed() < patience {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    None
}

#[test]
fn a_stalled_reader_of_stderr_holds_up_neither_run_nor_serve() {
    let scene = Scene::new();
    let (_reader, full) = stalled();
    let stderr = || Stdio::from(full.try_clone().unwrap());
    let mut run = scene
        .tenure(&[
            "run",
            "--ttl",
            "2s",
            "--kill-after",
            "1s",
            "--node",
            "a",
            "--",
            "sh",
            "-c",
            PROGRAM,
        ])
        .env("TENURE_LOG", "debug")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr())
        .spawn()
        .unwrap();
    scene.wait_for("1 a tick");
    // Longer than the ttl: it keeps leading, since it keeps renewing.
    std::thread::sleep(Duration::from_secs(4));
    let history = document(&scene, &["history", "--json"]);
    assert_eq!(history["terms"].as_array().unwrap().len(), 1, "{history}");
    kill_process(Pid::from_child(&run), Signal::TERM).unwrap();
    assert_eq!(ends_within(&mut run, Duration::from_secs(30)), Some(0));

    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = port.local_addr().unwrap().to_string();
    drop(port);
    let mut serve = tenure(&["serve", "--store", "memory:", "--listen", &address])
        .env("TENURE_LOG", "debug")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr())
        .spawn()
        .unwrap();
    until("a server that is ready", || {
        let (code, _, _) = crate::support::run(&mut tenure(&[
            "job",
            "submit",
            "x",
            "1",
            "--server",
            &format!("http://{address}"),
        ]));
        code == 0
    });
    kill_process(Pid::from_child(&serve), Signal::TERM).unwrap();
    assert_eq!(ends_within(&mut serve, Duration::from_secs(30)), Some(0));
}

/// A guard whose user may have only one process, so that it cannot start its program.
fn lonely_guard(folder: &Path) -> Command {
    /// A user without any process yet, so that the limit counts only the guard.
    const NO_ONE: &str = "65532";
    let mut command = Command::new("prlimit");
    command.arg("--nproc=1");
    if rustix::process::geteuid().is_root() {
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
        let copy = folder.join("tenure");
        std::fs::copy(binary(), &copy).unwrap();
        command.args(["setpriv", "--reuid", NO_ONE, "--clear-groups"]);
        command.arg(copy);
    } else {
        command.arg(binary());
    }
    command.args(["__guard", "1000", "1000", "null", "--", "sleep", "1000"]);
    command
}

#[test]
fn a_stalled_reader_of_stderr_holds_up_no_guard_and_no_start() {
    let folder = tempfile::tempdir().unwrap();
    let (_reader, full) = stalled();
    let stderr = || Stdio::from(full.try_clone().unwrap());
    let (mut orders, control) = UnixStream::pair().unwrap();
    orders
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let until = u64::MAX / 2;
    writeln!(orders, "until {until} {until}").unwrap();
    let mut guard = lonely_guard(folder.path())
        .stdin(OwnedFd::from(control))
        .stderr(stderr())
        .spawn()
        .unwrap();
    let mut report = String::new();
    let heard = BufReader::new(&orders).read_line(&mut report);
    let ended = ends_within(&mut guard, Duration::from_secs(30));
    let _ = guard.kill();
    assert_eq!(report, "ended exited 126 short\n", "{heard:?}");
    assert_eq!(ended, Some(0));

    // The last step before a program that does not exist.
    let me = std::process::id().to_string();
    let mut start = tenure(&["__exec", &me, "1000", "--", "/there/is/none"])
        .stdin(Stdio::null())
        .stderr(stderr())
        .spawn()
        .unwrap();
    let ended = ends_within(&mut start, Duration::from_secs(30));
    let _ = start.kill();
    assert_eq!(ended, Some(127));
}

/// Through a shell that sets limits first.
fn limited(scene: &Scene, limits: &str, arguments: &[&str], program: &str) -> Running {
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(format!("{limits}; exec \"$0\" \"$@\""));
    let mut command = inside(command, &scene.tenure(arguments));
    Running::start(command.args(["--", "sh", "-c", program]))
}

#[test]
fn a_low_limit_of_files_is_raised_for_tenure_and_kept_for_its_programs() {
    let scene = Scene::new();
    let program = r#"echo "$TENURE_GENERATION $TENURE_NODE start $$ $PPID limit $(ulimit -n) end" >> "$LOG"
        exec sleep 1000"#;
    let arguments = [
        "run", "--daemon", "worker", "--node", "a", "--ttl", "10s", "--shards", "40",
    ];
    let _a = limited(&scene, "ulimit -Sn 100", &arguments, program);
    wait_for_loads(&scene, &[("a", 40)]);
    until("all their words", || scene.lines().len() >= 40);
    let lines = scene.lines();
    assert_eq!(lines.len(), 40, "each was started once:\n{}", scene.log());
    assert!(
        lines.iter().all(|line| line.ends_with("limit 100 end")),
        "{}",
        scene.log()
    );
}

#[test]
fn a_node_with_too_few_files_for_any_program_is_no_candidate() {
    let scene = Scene::new();
    for more in [&[][..], &["--daemon", "worker"]] {
        let arguments = [&["run", "--node", "a"], more].concat();
        for files in [24, 32, 40] {
            let mut a = limited(&scene, &format!("ulimit -n {files}"), &arguments, PROGRAM);
            assert_eq!(a.ended(), 2, "{}", a.said());
            until("it says why", || {
                a.said().contains("a node with one program needs about")
            });
        }
    }
    assert_eq!(scene.starts().len(), 0);
}

#[test]
fn a_restarted_node_does_not_tell_of_what_ran_before_it() {
    let scene = Scene::new();
    let generations = |said: &str| -> Vec<u64> {
        let told = said
            .lines()
            .filter_map(|line| line.split_once(" is running, generation "));
        told.map(|(_, generation)| generation.trim().parse().unwrap())
            .collect()
    };
    let mut highest = 0;
    for round in 0..3 {
        let mut a = node(&scene, "a", "2s", &["--shards", "2"], "exec sleep 1000");
        until("both shards run", || generations(&a.said()).len() == 2);
        let said = a.said();
        assert!(!said.contains("has stopped"), "round {round}: {said}");
        let told = generations(&said);
        assert!(
            told.iter().all(|generation| *generation > highest),
            "round {round}: {said}"
        );
        highest = told.into_iter().max().unwrap();
        // In order the first time; then killed when it is dropped.
        if round == 0 {
            a.signal(Signal::TERM);
            assert_eq!(a.ended(), 0);
        }
    }
}

#[test]
fn a_program_that_cannot_be_started_is_tried_again() {
    let scene = Scene::new();
    let mut a = scene.run("a", PROGRAM, &[]);
    until("a start", || scene.starts().len() == 1);
    let limit = |files: &str| {
        let mut command = Command::new("prlimit");
        command.args(["--pid", &a.pid().to_string(), &format!("--nofile={files}:")]);
        assert!(command.status().unwrap().success());
    };
    // So few that none is left besides those of the session.
    limit("30");
    kill_process(scene.starts()[0].0, Signal::KILL).unwrap();
    until("a start that fails", || {
        a.said()
            .contains("are reserved for the session: raise the limit")
    });
    assert_eq!(asked(&scene, &["status"]).0, 0);
    limit("1000");
    until("another start", || scene.starts().len() == 2);
    a.signal(Signal::TERM);
    assert_eq!(a.ended(), 0);
    scene.check_order();
}

#[test]
fn a_hang_up_between_two_programs_is_for_neither() {
    let scene = Scene::new();
    let program = r#"echo "$TENURE_TERM $TENURE_NODE start $$ $PPID" >> "$LOG"
        [ $(grep -c start "$LOG") = 4 ] && exec sleep 1000
        exit 1"#;
    let mut a = scene.run("a", program, &[]);
    // The third wait is a second long.
    a.wait_for_note("starting it again in 1s");
    a.signal(Signal::HUP);
    until("the fourth start", || scene.starts().len() == 4);
    let (program, _) = scene.starts()[3];
    std::thread::sleep(Duration::from_millis(500));
    assert!(!is_gone(&program));
    assert!(!a.said().contains("signal 1"), "{}", a.said());
    a.signal(Signal::TERM);
    assert_eq!(a.ended(), 0);
}

#[test]
fn with_nohup_neither_tenure_nor_its_program_ends() {
    let scene = Scene::new();
    let inner = scene.tenure(&[]);
    let mut command = Command::new("nohup");
    command
        .arg(inner.get_program())
        .args(["run", "--ttl", "3s", "--node", "a", "--"]);
    command.args([
        "sh",
        "-c",
        r#"echo "$TENURE_TERM a start $$ $PPID" >> "$LOG"; exec sleep 1000"#,
    ]);
    command
        .env("TENURE_STORE", scene.path("store"))
        .env("LOG", scene.path("log"));
    let mut a = Running::start(&mut command);
    until("a start", || scene.starts().len() == 1);
    let (program, guard) = scene.starts()[0];
    for process in [a.pid(), guard, program] {
        kill_process(process, Signal::HUP).unwrap();
    }
    std::thread::sleep(Duration::from_millis(500));
    assert!(!a.has_ended() && !is_gone(&program));
    assert_eq!(scene.starts().len(), 1);
    a.signal(Signal::TERM);
    assert_eq!(a.ended(), 0);
}

#[test]
fn tenure_ends_in_order_when_its_terminal_is_closed() {
    let scene = Scene::new();
    let controller =
        openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&controller).unwrap();
    unlockpt(&controller).unwrap();
    let name = ptsname(&controller, Vec::new()).unwrap();
    let terminal = rustix::fs::open(
        &name,
        OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .unwrap();
    let inner = scene.tenure(&[]);
    // A session with a controlling terminal, like that of a shell in a window.
    let mut command = Command::new("setsid");
    command.arg("--ctty").arg("--wait").arg(inner.get_program());
    command.args([
        "run", "--ttl", "60s", "--node", "a", "--", "sh", "-c", PROGRAM,
    ]);
    command
        .env("TENURE_STORE", scene.path("store"))
        .env("LOG", scene.path("log"));
    let stdio = || Stdio::from(terminal.as_fd().try_clone_to_owned().unwrap());
    command.stdin(stdio()).stdout(stdio()).stderr(stdio());
    let mut child = command.spawn().unwrap();
    drop(command);
    drop(terminal);
    scene.wait_for("1 a tick");
    drop(controller);
    assert!(
        ends_within(&mut child, Duration::from_secs(30)).is_some(),
        "{}",
        scene.log()
    );
    assert!(scene.has("1 a stop"), "{}", scene.log());
    assert!(scene.all_gone("a"));
    // The next one leads at once, without waiting for a ttl.
    let (_, history, _) = asked(&scene, &["history"]);
    assert!(history.contains("resigned"), "{history}");
}

#[test]
fn a_program_that_was_stopped_for_lost_trust_has_not_failed() {
    let scene = Scene::new();
    let a = node(&scene, "a", "2s", &[], cluster::PROGRAM);
    until("a start", || scene.starts().len() == 1);
    // The store takes no writes, so no heartbeat is confirmed.
    let locks = std::fs::read_dir(scene.path("store/.tenure/lock")).unwrap();
    let locks: Vec<File> = locks
        .map(|lock| File::open(lock.unwrap().path()).unwrap())
        .collect();
    for lock in &locks {
        lock.lock().unwrap();
    }
    until("the end of the program", || is_gone(&scene.starts()[0].0));
    std::thread::sleep(Duration::from_secs(2));
    drop(locks);
    until("another start", || scene.starts().len() == 2);
    let said = a.said();
    assert!(
        !said.contains("ended on its own") && !said.contains("has failed"),
        "{said}"
    );
}

#[test]
fn a_shard_that_lost_its_guard_starts_again_without_waiting_for_the_end_of_trust() {
    let scene = Scene::new();
    // Trust lasts long enough, so only the next attempt has to be waited for: a program gets twelve seconds to stop.
    let a = node(&scene, "a", "60s", &[], cluster::PROGRAM);
    until("a start", || scene.starts().len() == 1);
    let (program, guard) = scene.starts()[0];
    kill_process(guard, Signal::KILL).unwrap();
    let killed = Instant::now();
    until("another start", || scene.starts().len() == 2);
    let without = killed.elapsed();
    assert!(is_gone(&program));
    assert!(without < Duration::from_secs(10), "{without:?}");
    let said = a.said();
    let why = "the guard of the program was killed, and the program with it";
    assert!(said.contains(why), "{said}");
}

#[test]
fn a_drained_node_leaves_it_to_another_to_lead_the_cluster() {
    let scene = Scene::new();
    let start =
        |name: &str, priority: &str| node(&scene, name, "3s", &["--priority", priority], COUNTING);
    let mut a = start("a", "100");
    let leads = |name: &str| {
        let (_, nodes, _) = asked(&scene, &["nodes"]);
        nodes.contains(&format!("{name} alive, leads cluster"))
            || nodes.contains(&format!("{name} drained, leads cluster"))
    };
    until("a to lead", || leads("a"));
    // Of these two the first is elected, and the second later or not at all.
    let (b, _c) = (start("b", "100"), start("c", "10"));
    until("two more nodes", || {
        asked(&scene, &["nodes"]).1.lines().count() == 4
    });
    assert_eq!(
        run(&mut scene.tenure(&["drain", "b", "--wait", "30s"])).0,
        0
    );
    a.signal(Signal::TERM);
    assert_eq!(a.ended(), 0);
    until("c to lead", || leads("c"));
    drop(b);
}

#[test]
fn a_daemon_that_fails_again_and_again_shows_how_often_and_how() {
    let scene = Scene::new();
    let _a = node(&scene, "a", "2s", &[], "sleep 0.3; exit 3");
    // Most of the time it waits to be started, or runs; showing either would mislead.
    until("it has failed twice", || {
        let (code, daemons, _) = asked(&scene, &["daemons"]);
        code == 1 && daemons.contains("failing, 2 times: the program exited with 3")
    });
    let (_, daemons, _) = asked(&scene, &["daemons", "--json"]);
    let daemons: serde_json::Value = serde_json::from_str(&daemons).unwrap();
    let shard = &daemons["daemons"][0]["shards"][0];
    assert_eq!(shard["state"], "failing", "{shard}");
    assert!(shard["failures"].as_u64() >= Some(2), "{shard}");
    assert_eq!(shard["error"], "the program exited with 3", "{shard}");
}

#[test]
fn shards_of_nodes_that_are_gone_are_lost_and_not_assigned() {
    let scene = Scene::new();
    let a = node(&scene, "a", "2s", &["--shards", "2"], COUNTING);
    wait_for_loads(&scene, &[("a", 2)]);
    a.signal(Signal::KILL);
    until("the end of the ttl", || {
        let (code, daemons, _) = asked(&scene, &["daemons"]);
        assert!(code == 0 || !daemons.contains("assigned"), "{daemons}");
        daemons.matches(" lost ").count() == 2
    });
    drop(a);
}

#[test]
fn a_broker_whose_store_was_away_serves_again() {
    let scene = Scene::new();
    let store = scene.path("store");
    let broker = Serving::start(
        &scene.path(""),
        &["--store", store.to_str().unwrap(), "--ttl", "2s"],
    );
    until("a job", || {
        broker.ask("POST", "/v1/jobs", r#"{"type":"x"}"#).0 == 201
    });
    // The store is away for longer than trust lasts: when it is back, its leader is an earlier session of this broker.
    std::fs::rename(&store, scene.path("elsewhere")).unwrap();
    let mut said = String::new();
    let away = Instant::now();
    while away.elapsed() < Duration::from_secs(4) {
        said += &broker.ask("POST", "/v1/jobs", r#"{"type":"x"}"#).1;
        std::thread::sleep(Duration::from_millis(20));
    }
    std::fs::rename(scene.path("elsewhere"), &store).unwrap();
    until("another job", || {
        let (code, answer) = broker.ask("POST", "/v1/jobs", r#"{"type":"x"}"#);
        said += &answer;
        code == 201
    });
    assert!(!said.contains("does not advertise"), "{said}");
}

/// Then the leader is an earlier session of this broker, which does not exist any more.
#[test]
fn a_broker_whose_session_was_deleted_knows_what_to_say_of_it() {
    let scene = Scene::new();
    let store = scene.path("store");
    let arguments = ["--store", store.to_str().unwrap(), "--ttl", "3s"];
    let broker = Serving::start(
        &scene.path(""),
        &[&arguments[..], &["--node", "b"]].concat(),
    );
    let submit = || broker.ask("POST", "/v1/jobs", r#"{"type":"x"}"#);
    until("a job", || submit().0 == 201);
    let sessions = || {
        let sessions = std::fs::read_dir(store.join("default/nodes/b"));
        let sessions = sessions.into_iter().flatten().flatten();
        sessions.map(|it| it.path()).collect::<Vec<_>>()
    };
    let deleted = sessions();
    assert_eq!(deleted.len(), 1);
    std::fs::remove_file(&deleted[0]).unwrap();
    let mut said = String::new();
    let mut ask = || {
        let (code, answer) = submit();
        if code != 201 {
            said += &answer;
        }
        code == 201
    };
    until("another session", || {
        ask();
        sessions().iter().any(|it| !deleted.contains(it))
    });
    until("another job", &mut ask);
    assert!(!said.contains("does not advertise an address"), "{said}");
}

#[test]
fn programs_that_start_others_without_end_are_ended() {
    /// A user without any process yet, so that the limit counts only this program.
    const SOMEBODY: &str = "65533";
    if !is_root("another user, with a limit of processes") {
        return;
    }
    let users = Users::new();
    let folder = users.scene.path("");
    // Each process is in its own session and starts more: killing one makes room for another.
    let bomb = "import os, time\nwhile True:\n try:\n  if os.fork() == 0: os.setsid()\n except OSError: time.sleep(0.001)";
    let mut limited = Command::new("prlimit");
    limited.args([
        "--nproc=60",
        "setpriv",
        "--reuid",
        SOMEBODY,
        "--clear-groups",
    ]);
    // The first call makes the copy of the binary.
    let _ = users.asked(&["status"]);
    limited.arg(folder.join("tenure")).args([
        "run",
        "--ttl",
        "10s",
        "--kill-after",
        "300ms",
        "--store",
    ]);
    limited.arg(folder.join("store-of-somebody"));
    let mut a = Running::start(limited.args(["--", "python3", "-c", bomb]));
    until("a crowd", || descendants(a.pid()).len() > 30);
    let crowd = descendants(a.pid());
    a.signal(Signal::TERM);
    assert_eq!(a.ended(), 0);
    assert!(crowd.iter().all(is_gone));
    // Including those that were started after the list was read.
    let mut left = Command::new("pgrep");
    let left = left.args(["-u", SOMEBODY]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&left.stdout), "");
}

/// It holds a lock that every descendant inherits: if the lock is taken, another program of the shard runs, and it logs
/// which. It ignores signals, leaves processes in their own sessions, and depending on its shard goes into the
/// background or changes its user.
const CHURNED: &str = r#"
    exec 9>>"$LOCKS/$TENURE_SHARD"
    say() { echo "$(cut -d' ' -f1 /proc/uptime) $* $TENURE_SHARD $TENURE_NODE $TENURE_GENERATION" >> "$LOG"; }
    flock --nonblock 9
    code=$?
    # It may be flock itself that is killed.
    [ $code -le 1 ] || exit 1
    [ $code = 0 ] || {
        say overlap
        # Whose processes hold it: a shell is one of them, as it has opened it.
        for process in /proc/[0-9]*; do
            [ "$process/fd/9" -ef "$LOCKS/$TENURE_SHARD" ] || continue
            say "held by" $(cut -d' ' -f1-5 "$process/stat") \
                $(tr '\0' '\n' < "$process/environ" | grep -E '^TENURE_(NODE|GENERATION)=') for
        done
        exit 1
    }
    say run
    trap '' TERM HUP INT
    (setsid sleep 1000 &)
    (setsid sh -c 'trap "" TERM; sleep 1000; true' &)
    [ "$TENURE_SHARD" = 1 ] && exit 0
    [ "$TENURE_SHARD" = 2 ] && [ -n "$CHANGE" ] && exec setpriv --reuid 65534 --clear-groups sleep 1000
    sleep 1000; true
"#;
const CHURNED_SHARDS: usize = 6;

/// Which shards run according to the locks, sampled all the time.
struct Coverage {
    stop: Arc<AtomicBool>,
    watcher: JoinHandle<Vec<Gap>>,
    started: Instant,
}

/// A time without a program: which shard, from when, for how long.
struct Gap {
    shard: usize,
    from: Instant,
    lasted: Duration,
}

impl Coverage {
    fn watch(locks: PathBuf) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let started = Instant::now();
        let watcher = std::thread::spawn(move || {
            let mut gaps = Vec::new();
            let mut without = [Some(started); CHURNED_SHARDS];
            loop {
                let is_over = stopped.load(Ordering::Relaxed);
                for (shard, since) in without.iter_mut().enumerate() {
                    let is_held = is_held(&locks.join(shard.to_string()));
                    if !is_held && since.is_none() {
                        *since = Some(Instant::now());
                    } else if is_held || is_over {
                        gaps.extend(since.take().map(|from| Gap {
                            shard,
                            from,
                            lasted: from.elapsed(),
                        }));
                    }
                }
                if is_over {
                    return gaps;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Self {
            stop,
            watcher,
            started,
        }
    }

    /// Reports for what part of the time each shard ran, and how long it was without a program after each kind of
    /// fault. Shard 1 is left out since it ends all the time, and the first start is not a gap.
    fn told(self, faults: &[(Instant, usize)]) -> String {
        self.stop.store(true, Ordering::Relaxed);
        let lasted = self.started.elapsed();
        let mut gaps = self.watcher.join().unwrap();
        gaps.retain(|gap| gap.from != self.started && gap.shard != 1);
        let mut told = String::new();
        for shard in (0..CHURNED_SHARDS).filter(|&shard| shard != 1) {
            let of_shard = gaps.iter().filter(|gap| gap.shard == shard);
            let lengths: Vec<Duration> = of_shard.map(|gap| gap.lasted).collect();
            let without: Duration = lengths.iter().sum();
            let part = 100.0 * (1.0 - without.as_secs_f64() / lasted.as_secs_f64());
            let longest = lengths.iter().max().copied().unwrap_or_default();
            told += &format!("shard {shard}: {part:.1} %, at most {longest:.1?} without\n");
        }
        for (kind, name) in FAULTS.iter().enumerate() {
            let cause = |gap: &&Gap| {
                let before = faults.iter().rev().find(|(at, _)| *at <= gap.from);
                before.is_some_and(|(_, it)| *it == kind)
            };
            let mut lengths: Vec<Duration> =
                gaps.iter().filter(cause).map(|it| it.lasted).collect();
            lengths.sort();
            let count = faults.iter().filter(|(_, it)| *it == kind).count();
            let median = lengths.get(lengths.len() / 2).copied().unwrap_or_default();
            let longest = lengths.last().copied().unwrap_or_default();
            let sum: Duration = lengths.iter().sum();
            told += &format!(
                "{count} times {name}: {} gaps, {sum:.1?} in all, {median:.2?} at the median, {longest:.1?} at most\n",
                lengths.len()
            );
        }
        told
    }
}

/// The faults that are injected into nodes and the processes below them.
const FAULTS: [&str; 8] = [
    "a node killed",
    "a node told to go",
    "a node stopped for 2.5 s",
    "a node drained",
    "a process stopped for 1 s",
    "a process stopped for 4 s",
    "a process killed",
    "a process killed",
];

/// Whether a file is locked. Does not try the lock, which would get in the way of a process that wants it.
fn is_held(lock: &Path) -> bool {
    let Ok(file) = std::fs::metadata(lock) else {
        return false;
    };
    let of_file = format!(":{} ", file.ino());
    let locks = std::fs::read_to_string("/proc/locks").unwrap();
    let mut lines = locks.lines();
    lines.any(|line| line.contains("FLOCK") && line.contains(&of_file))
}

#[test]
fn no_two_programs_of_a_shard_run_at_once_on_files() {
    churn(None);
}

#[cfg(feature = "postgres")]
#[test]
fn no_two_programs_of_a_shard_run_at_once_on_postgres() {
    if let Some(store) = crate::support::server("TENURE_TEST_POSTGRES") {
        churn(Some(&store));
    }
}

/// Everything at once, for `TENURE_CHURN_SECONDS`: programs that leave their session, ignore signals and, as root,
/// change their user; nodes, guards and programs that are killed, stopped, drained and told to resign.
fn churn(store: Option<&str>) {
    let seconds = std::env::var("TENURE_CHURN_SECONDS").ok();
    let seconds = seconds
        .and_then(|seconds| seconds.parse().ok())
        .unwrap_or(20);
    let scene = Scene::new();
    std::fs::create_dir(scene.path("locks")).unwrap();
    let count = CHURNED_SHARDS.to_string();
    let seed = u64::from(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .subsec_nanos(),
    );
    let namespace = format!("churn-{}-{seed}", std::process::id());
    let tenure = |arguments: &[&str]| {
        let mut command = scene.tenure(arguments);
        if let Some(store) = store {
            command.env("TENURE_STORE", store);
        }
        command.env("TENURE_NAMESPACE", &namespace);
        command
    };
    let start = |name: &str| {
        let mut command = tenure(&["run", "--daemon", "worker", "--node", name]);
        command.args(["--ttl", "2s", "--kill-after", "200ms", "--shards", &count]);
        command.env("LOCKS", scene.path("locks"));
        if rustix::process::geteuid().is_root() {
            command.env("CHANGE", "1");
        }
        Running::start(command.args(["--", "sh", "-c", CHURNED]))
    };
    let mut nodes: Vec<Running> = (0..4).map(|number| start(&format!("n{number}"))).collect();
    let coverage = Coverage::watch(scene.path("locks"));
    let mut random = 0x2545_f491_4f6c_dd1d ^ seed;
    let mut below = |most: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        usize::try_from(random % 1_000_003).unwrap() % most
    };
    let pause = |milliseconds| std::thread::sleep(Duration::from_millis(milliseconds));
    let (started, mut faults, mut done) = (Instant::now(), Vec::new(), String::new());
    // Read from the same clock as the times in the programs' log.
    let uptime = || std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let uptime = || uptime().split(' ').next().unwrap_or_default().to_owned();
    while started.elapsed() < Duration::from_secs(seconds) {
        pause(300 + 100 * below(12) as u64);
        let chosen = below(nodes.len());
        let node = nodes[chosen].pid();
        let below_node = descendants(node);
        let kind = below(FAULTS.len());
        faults.push((Instant::now(), kind));
        done += &format!("{} {}: n{chosen}\n", uptime(), FAULTS[kind]);
        match kind {
            0 => {
                nodes[chosen].signal_if_running(Signal::KILL);
                until("the end of a node", || nodes[chosen].has_ended());
            }
            1 => nodes[chosen].signal_if_running(Signal::TERM),
            2 => {
                nodes[chosen].signal_if_running(Signal::STOP);
                pause(2500);
                nodes[chosen].signal_if_running(Signal::CONT);
            }
            3 => {
                let name = format!("n{chosen}");
                let _ = run(&mut tenure(&["drain", &name, "--wait", "1s"]));
                let _ = run(&mut tenure(&["undrain", &name]));
            }
            // A guard or a program, killed or stopped for a while, even for longer than trust lasts. Never a node and
            // its guard at the same time: then processes that a program has started may survive, as documented.
            kind if !below_node.is_empty() => {
                let one = below_node[below(below_node.len())];
                let (signal, wait) = match kind {
                    4 => (Signal::STOP, 1000),
                    5 => (Signal::STOP, 4000),
                    _ => (Signal::KILL, 1000),
                };
                let line = std::fs::read_to_string(format!("/proc/{one}/cmdline"));
                done += &format!(
                    "    {one}: {:.40}\n",
                    line.unwrap_or_default().replace('\0', " ")
                );
                let _ = kill_process(one, signal);
                pause(wait);
                let _ = kill_process(one, Signal::CONT);
            }
            _ => {}
        }
        if nodes[chosen].has_ended() {
            nodes[chosen] = start(&format!("n{chosen}"));
        }
    }
    assert!(!scene.log().contains("overlap"), "{}{done}", scene.log());
    // Shard 1 ends all the time.
    until("all others to run", || {
        let (_, daemons, _) = run(&mut tenure(&["daemons"]));
        let held = |shard: &usize| is_held(&scene.path("locks").join(shard.to_string()));
        let held = (0..CHURNED_SHARDS).filter(held).count();
        // Programs that were killed more than once count as failing until they have run for a minute.
        let up = daemons.matches(" running ").count() + daemons.matches(" failing, ").count();
        up.min(held) >= CHURNED_SHARDS - 1
    });
    let covered = coverage.told(&faults);
    let before: Vec<Pid> = nodes
        .iter()
        .flat_map(|node| descendants(node.pid()))
        .collect();
    for node in &mut nodes {
        // A node that was only just started does not handle signals yet.
        node.wait_for_note("can run worker");
        node.signal_if_running(Signal::TERM);
        assert_eq!(node.ended(), 0);
    }
    until("the end of everything", || before.iter().all(is_gone));
    assert!(!scene.log().contains("overlap"), "{}", scene.log());
    eprintln!(
        "{} faults, {} starts, no overlap in {seconds} s\n{covered}",
        faults.len(),
        scene.log().matches(" run ").count()
    );
}

#[test]
fn a_guard_that_is_stopped_is_replaced_and_its_program_too() {
    let scene = Scene::new();
    let mut a = scene.run("a", PROGRAM, &["--kill-after", "1s"]);
    until("a start", || scene.starts().len() == 1);
    let (program, guard) = scene.starts()[0];
    stop_guard(guard);
    // The node is healthy and keeps leading, but nothing is left to end the program in time.
    until("another start", || scene.starts().len() == 2);
    assert!(is_gone(&program) && is_gone(&guard));
    let history = document(&scene, &["history", "--json"]);
    assert_eq!(history["terms"].as_array().unwrap().len(), 1, "{history}");
    a.signal(Signal::TERM);
    assert_eq!(a.ended(), 0);
    scene.check_order();
}

#[test]
fn a_session_outlives_a_time_without_any_process_to_be_had() {
    if !is_root("an ordinary user, whom limits bind") {
        return;
    }
    let users = Users::new();
    let mut a = nobody(
        &users.scene.path(""),
        &["run", "--ttl", "60s", "--node", "a", "--", "sleep", "1000"],
    );
    let a = Running::start(a.env("TENURE_STORE", users.scene.path("store")));
    let leads = || a.said().contains("a leads default");
    until("a leader", leads);
    // Long enough for unneeded threads to end.
    std::thread::sleep(Duration::from_secs(12));
    let mut limit = as_nobody();
    limit.args(["prlimit", "--pid", &a.pid().to_string(), "--nproc=1:"]);
    assert!(limit.status().unwrap().success());
    // More than one heartbeat.
    std::thread::sleep(Duration::from_secs(30));
    let said = a.said();
    assert!(
        !said.contains("panicked") && !said.contains("not confirmed"),
        "{said}"
    );
}

#[test]
fn a_reader_that_comes_back_is_told_what_it_missed() {
    let scene = Scene::new();
    let (reader, full) = stalled();
    let mut run = scene
        .tenure(&[
            "run", "--ttl", "1s", "--node", "a", "--", "sh", "-c", PROGRAM,
        ])
        .env("TENURE_LOG", "trace")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::from(full))
        .spawn()
        .unwrap();
    scene.wait_for("1 a tick");
    kill_process(Pid::from_child(&run), Signal::TERM).unwrap();
    let mut said = Vec::new();
    File::from(reader).read_to_end(&mut said).unwrap();
    assert_eq!(ends_within(&mut run, Duration::from_secs(30)), Some(0));
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("a leads default in term 1"), "{said}");
}
