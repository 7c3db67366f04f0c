//! `tenure worker`: programs, their jobs, and how both end.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

#[cfg(feature = "file")]
use crate::run::stop_guard;
use crate::serve::Serving;
use crate::support::{run, tenure};

/// Long enough for a slow machine; nothing is measured against it.
const PATIENCE: Duration = Duration::from_secs(60);

struct Scene {
    serving: Serving,
    folder: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self {
            serving: Serving::start(folder.path(), &["--store", "memory:"]),
            folder,
        }
    }

    fn url(&self) -> String {
        format!("http://{}", self.serving.address)
    }

    /// A worker that runs this line for jobs of the type `work`.
    fn worker(&self, line: &str, more: &[&str]) -> Worker {
        let mut arguments = vec!["worker", "--type", "work", "--exec", line, "--name", "w"];
        arguments.extend(more);
        let child = tenure(&arguments)
            .env("TENURE_SERVER", self.url())
            .current_dir(self.folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Worker(child)
    }

    fn submit(&self, id: &str, payload: &str, more: &[&str]) {
        let mut arguments = vec!["job", "submit", "work", payload, "--id", id];
        arguments.extend(more);
        let ended = run(tenure(&arguments).env("TENURE_SERVER", self.url()));
        assert_eq!(ended, (0, format!("{id}\n"), String::new()));
    }

    fn cancel(&self, id: &str) {
        let ended = run(tenure(&["job", "cancel", id]).env("TENURE_SERVER", self.url()));
        assert_eq!(ended.0, 0, "{ended:?}");
    }

    /// Waits until a job is in a state, and returns it.
    #[track_caller]
    fn reaches(&self, id: &str, state: &str) -> Value {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let (_, body) = self.serving.ask("GET", &format!("/v1/jobs/{id}"), "");
            let job: Value = serde_json::from_str(&body).unwrap();
            if job["state"] == state {
                return job;
            }
            assert!(Instant::now() < give_up, "{id} is not {state}: {body}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until a program has made this file.
    #[track_caller]
    fn made(&self, name: &str) -> String {
        let give_up = Instant::now() + PATIENCE;
        let path = self.folder.path().join(name);
        while !path.exists() {
            assert!(Instant::now() < give_up, "{name} was not made");
            std::thread::sleep(Duration::from_millis(10));
        }
        std::fs::read_to_string(path).unwrap().trim().to_owned()
    }
}

#[test]
fn a_program_does_not_inherit_the_secrets_of_the_worker() {
    let scene = Scene::new();
    let secrets = [
        "TENURE_API_TOKEN",
        "TENURE_ADMIN_TOKEN",
        "TENURE_WORKER_TOKEN",
        "TENURE_READ_TOKEN",
        "TENURE_STORE",
        "TENURE_OSQUEUE_TOKEN",
        "TENURE_OUTBOX",
        "OTEL_EXPORTER_OTLP_HEADERS",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    ];
    // The last lines of its stderr are kept with the job.
    let program = "env | grep -E '^(TENURE|OTEL|OF)_' >&2; exit 1";
    let mut worker = tenure(&["worker", "--type", "work", "--exec", program]);
    worker
        .env("TENURE_SERVER", scene.url())
        .env("OF_ITS_OWN", "kept");
    for secret in secrets {
        worker.env(secret, "a-secret-of-the-worker");
    }
    worker.stdout(Stdio::null()).stderr(Stdio::piped());
    let _worker = Worker(worker.spawn().unwrap());
    scene.submit("a", "1", &["--max-attempts", "1"]);
    let job = scene.reaches("a", "dead");
    let environment = job["error"].as_str().unwrap();
    assert!(environment.contains("OF_ITS_OWN=kept"), "{environment}");
    assert!(
        !environment.contains("a-secret-of-the-worker"),
        "{environment}"
    );
}

#[test]
fn a_program_is_told_the_trace_of_its_job() {
    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let scene = Scene::new();
    let _worker = scene.worker(r#"echo "\"$TRACEPARENT $TRACESTATE\"""#, &[]);
    scene.submit("a", "1", &["--traceparent", PARENT]);
    assert_eq!(
        scene.reaches("a", "completed")["result"],
        format!("{PARENT} ")
    );
    let submit = |id: &str, parent: &str| {
        let mut command = tenure(&["job", "submit", "work", "1", "--id", id]);
        command.env("TENURE_SERVER", scene.url());
        command.env("TRACEPARENT", parent).env("TRACESTATE", "x=1");
        assert_eq!(run(&mut command), (0, format!("{id}\n"), String::new()));
        scene.reaches(id, "completed")["result"].clone()
    };
    assert_eq!(submit("b", PARENT), format!("{PARENT} x=1"));
    // A malformed value is ignored.
    assert_eq!(submit("c", "what"), " ");
    let arguments = ["job", "submit", "work", "--traceparent", "what"];
    let (code, _, stderr) = run(tenure(&arguments).env("TENURE_SERVER", scene.url()));
    assert_eq!(code, 2, "{stderr}");
    assert!(
        stderr.contains("--traceparent is not a valid span"),
        "{stderr}"
    );
}

/// Killed when the test is over.
struct Worker(Child);

impl Worker {
    fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// The exit code, and its whole stderr.
    fn ended(mut self) -> (Option<i32>, String) {
        let mut stderr = String::new();
        let mut pipe = self.0.stderr.take().unwrap();
        pipe.read_to_string(&mut stderr).unwrap();
        (self.0.wait().unwrap().code(), stderr)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_running(pid: &str) -> bool {
    let status = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    // A zombie has ended.
    status.is_ok_and(|status| !status.contains(") Z "))
}

#[track_caller]
fn ends(pid: &str) {
    let give_up = Instant::now() + PATIENCE;
    while is_running(pid) {
        assert!(Instant::now() < give_up, "process {pid} goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_program_gets_the_job_and_its_last_line_is_the_result() {
    let scene = Scene::new();
    let line = r#"echo starting; read -r payload; echo "$payload" >&2
        echo "[\"$TENURE_JOB_ID\",\"$TENURE_JOB_TYPE\",\"$TENURE_QUEUE\",$TENURE_ATTEMPT,$TENURE_MAX_ATTEMPTS]""#;
    let worker = scene.worker(line, &[]);
    scene.submit(
        "a",
        r#"{"n": 1.0}"#,
        &["--queue", "bulk", "--max-attempts", "3"],
    );
    let job = scene.reaches("a", "completed");
    assert_eq!(
        job["result"],
        serde_json::json!(["a", "work", "bulk", 1, 3])
    );
    worker.send(Signal::TERM);
    let (code, stderr) = worker.ended();
    assert_eq!(code, Some(0));
    let expected = format!(
        "note: w takes jobs of type work from {}\n\
         a: {{\"n\": 1.0}}\n\
         note: letting programs finish; signal again to hand their jobs back\n\
         note: 1 completed, 0 failed\n",
        scene.url()
    );
    assert_eq!(stderr, expected);
}

#[test]
fn a_program_that_fails_leaves_its_last_words() {
    let scene = Scene::new();
    let _worker = scene.worker("cat >/dev/null; echo no paper >&2; echo '{}'; exit 3", &[]);
    scene.submit("a", "1", &["--max-attempts", "1"]);
    let job = scene.reaches("a", "dead");
    assert_eq!(job["error"], "exit code 3: no paper");
    assert_eq!(job["result"], Value::Null);
}

#[test]
fn a_cancelled_job_ends_its_program_and_what_that_started() {
    let scene = Scene::new();
    // The shell's child ignores SIGTERM, and so has to be killed.
    let line = "trap '' TERM; sleep 1000 & echo $! >child.new; mv child.new child; wait";
    let _worker = scene.worker(line, &["--kill-after", "200ms", "--lease", "3s"]);
    scene.submit("a", "1", &[]);
    let child = scene.made("child");
    scene.cancel("a");
    let job = scene.reaches("a", "cancelled");
    assert_eq!(job["error"], "killed by signal 9");
    ends(&child);
}

/// A program whose clean-up takes longer than a lease.
#[test]
fn a_cancelled_job_is_kept_until_its_program_has_ended() {
    let scene = Scene::new();
    let line = r#"if [ "$TENURE_JOB_ID" = a ]; then trap 'while ! [ -e go ]; do sleep 0.05; done; touch clean; exit 3' TERM; fi
        touch "started-$TENURE_JOB_ID"; [ -e clean ] && exit 0
        while true; do sleep 0.05; done"#;
    let _worker = scene.worker(line, &["--kill-after", "60s", "--lease", "3s"]);
    scene.submit("a", "1", &["--group", "g", "--unique-key", "k"]);
    scene.submit("b", "1", &["--group", "g"]);
    scene.made("started-a");
    scene.cancel("a");
    // Far longer than a lease.
    std::thread::sleep(Duration::from_secs(7));
    let job = scene.reaches("a", "running");
    assert_eq!(job["attempt"], 1);
    assert!(!scene.folder.path().join("started-b").exists());
    let second = [
        "job",
        "submit",
        "work",
        "1",
        "--unique-key",
        "k",
        "--id",
        "c",
    ];
    let ended = run(tenure(&second).env("TENURE_SERVER", scene.url()));
    assert!(!ended.1.starts_with('c'), "{ended:?}");
    let ended = run(tenure(&["job", "retry", "a"]).env("TENURE_SERVER", scene.url()));
    assert_eq!(ended.0, 1, "{ended:?}");
    std::fs::write(scene.folder.path().join("go"), "").unwrap();
    let job = scene.reaches("a", "cancelled");
    let error = job["error"].as_str().unwrap_or_default();
    assert!(error.starts_with("exit code 3"), "{job}");
    scene.reaches("b", "completed");
}

/// A worker under limits that a shell sets first.
fn limited(scene: &Scene, limits: &str, line: &str, more: &[&str]) -> Worker {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("{limits}; exec \"$0\" \"$@\"")])
        .arg(tenure(&[]).get_program())
        .args(["worker", "--type", "work", "--exec", line])
        .args(more)
        .env("TENURE_SERVER", scene.url())
        .current_dir(scene.folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    Worker(command.spawn().unwrap())
}

#[test]
fn a_worker_short_of_files_uses_as_many_slots_as_fit() {
    let scene = Scene::new();
    for number in 0..40 {
        scene.submit(&format!("j{number}"), "1", &["--max-attempts", "1"]);
    }
    let more = ["--concurrency", "40"];
    let worker = limited(&scene, "ulimit -n 80", "sleep 0.5", &more);
    for number in 0..40 {
        let job = scene.reaches(&format!("j{number}"), "completed");
        assert_eq!(job["attempt"], 1);
    }
    worker.send(Signal::TERM);
    let (code, stderr) = worker.ended();
    assert_eq!(code, Some(0), "{stderr}");
    let said = stderr.lines().next().unwrap_or_default();
    assert!(
        said.starts_with("warning: only ")
            && said.contains(" of 40 programs run at once: 80 files"),
        "{stderr}"
    );
    assert!(!stderr.contains("no room"), "{stderr}");
}

#[test]
fn a_worker_that_has_no_room_for_any_program_claims_nothing() {
    let scene = Scene::new();
    scene.submit("a", "1", &["--max-attempts", "1"]);
    for limit in ["ulimit -n 12", "ulimit -n 16"] {
        let (code, stderr) = limited(&scene, limit, "true", &[]).ended();
        assert_eq!(code, Some(2), "{limit}: {stderr}");
        assert!(!stderr.contains("panicked"), "{limit}: {stderr}");
    }
    assert_eq!(scene.reaches("a", "ready")["attempt"], 0);
}

#[test]
fn a_job_that_finds_no_room_for_its_program_is_handed_back() {
    let scene = Scene::new();
    let line = "touch started-$TENURE_JOB_ID; while ! [ -e go ]; do sleep 0.05; done";
    let worker = scene.worker(line, &["--concurrency", "4", "--drain", "60s"]);
    scene.submit("a", "1", &["--max-attempts", "1"]);
    scene.made("started-a");
    let limit = |files: &str| {
        let mut command = Command::new("prlimit");
        let pid = worker.0.id().to_string();
        command.args(["--pid", &pid, &format!("--nofile={files}:")]);
        assert!(command.status().unwrap().success());
    };
    // So few that none is left besides those of the worker itself.
    limit("24");
    for id in ["b", "c", "d"] {
        scene.submit(id, "1", &["--max-attempts", "1"]);
    }
    std::thread::sleep(Duration::from_secs(4));
    for id in ["b", "c", "d"] {
        let (_, body) = scene.serving.ask("GET", &format!("/v1/jobs/{id}"), "");
        let job: Value = serde_json::from_str(&body).unwrap();
        assert!(job["state"] != "dead" && job["error"].is_null(), "{job}");
    }
    limit("1000");
    std::fs::write(scene.folder.path().join("go"), "").unwrap();
    for id in ["a", "b", "c", "d"] {
        assert_eq!(scene.reaches(id, "completed")["attempt"], 1);
    }
    worker.send(Signal::TERM);
    let (code, stderr) = worker.ended();
    assert_eq!(code, Some(0), "{stderr}");
    let warned = stderr.matches("there is no room for more jobs").count();
    assert_eq!(warned, 1, "{stderr}");
    assert!(stderr.contains("are reserved for the session"), "{stderr}");
}

/// A user that may not have more processes for a while, so that a program's guard cannot be started.
#[cfg(feature = "file")]
#[test]
fn a_job_that_finds_no_process_for_its_program_is_handed_back() {
    use crate::programs::{is_root, make_sudo, nobody};
    if !is_root("processes of another user") {
        return;
    }
    let scene = Scene::new();
    make_sudo(scene.folder.path());
    // Makes a copy of the binary that everybody may start.
    let plain = nobody(scene.folder.path(), &[]);
    let limited = |line: &str| {
        // A user without other processes.
        let user = (100_000 + std::process::id() % 100_000).to_string();
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", &user, "--regid", &user, "--clear-groups"])
            .args(["prlimit", "--nproc=40", "sh", "-c", line])
            .envs(
                plain
                    .get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            )
            .env("TENURE_SERVER", scene.url())
            .current_dir(scene.folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let worker = Worker(limited(
        "exec ./tenure worker --type work --exec 'touch ran-$TENURE_JOB_ID'",
    ));
    scene.submit("a", "1", &["--max-attempts", "1"]);
    scene.reaches("a", "completed");
    // They end by themselves.
    let fill = "i=0; while [ $i -lt 60 ]; do sleep 10 >/dev/null 2>&1 & i=$((i + 1)); done";
    let filled = limited(fill).wait_with_output().unwrap();
    assert!(
        !filled.status.success(),
        "there is room for more: {filled:?}"
    );
    scene.submit("b", "1", &["--max-attempts", "1"]);
    std::thread::sleep(Duration::from_secs(3));
    let (_, body) = scene.serving.ask("GET", "/v1/jobs/b", "");
    let job: Value = serde_json::from_str(&body).unwrap();
    assert!(job["state"] != "dead", "{job}");
    assert!(!scene.folder.path().join("ran-b").exists());
    assert_eq!(scene.reaches("b", "completed")["attempt"], 1);
    worker.send(Signal::TERM);
    let (code, stderr) = worker.ended();
    assert_eq!(code, Some(0), "{stderr}");
    assert!(
        stderr.contains("there is no room for more jobs"),
        "{stderr}"
    );
}

#[test]
fn a_worker_that_is_asked_to_stop_lets_its_program_finish() {
    let scene = Scene::new();
    let line = "touch started; while ! [ -e go ]; do sleep 0.05; done; echo 7";
    let worker = scene.worker(line, &["--drain", "60s"]);
    scene.submit("a", "1", &[]);
    scene.made("started");
    worker.send(Signal::TERM);
    std::fs::write(scene.folder.path().join("go"), "").unwrap();
    let (code, stderr) = worker.ended();
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(scene.reaches("a", "completed")["result"], 7);
}

#[test]
fn a_second_signal_hands_the_job_back() {
    let scene = Scene::new();
    let line = "echo $$ >pid.new; mv pid.new pid; sleep 1000";
    // One slot, so that no further claim waits.
    let worker = scene.worker(line, &["--drain", "1h", "--concurrency", "1"]);
    // On its last attempt: the end of a worker must not make the job dead.
    scene.submit("a", "1", &["--max-attempts", "1"]);
    let pid = scene.made("pid");
    worker.send(Signal::INT);
    worker.send(Signal::TERM);
    let (code, stderr) = worker.ended();
    assert_eq!(code, Some(0), "{stderr}");
    assert!(
        stderr.ends_with("note: 0 completed, 0 failed, 1 handed back\n"),
        "{stderr}"
    );
    ends(&pid);
    let job = scene.reaches("a", "ready");
    assert_eq!((&job["attempt"], &job["error"]), (&0.into(), &Value::Null));
}

#[test]
fn a_worker_that_is_killed_takes_its_program_with_it() {
    let scene = Scene::new();
    let worker = scene.worker("echo $$ >pid.new; mv pid.new pid; exec sleep 1000", &[]);
    scene.submit("a", "1", &[]);
    let pid = scene.made("pid");
    worker.send(Signal::KILL);
    ends(&pid);
}

/// A stopped worker cannot renew its claim, and looks dead to everybody.
#[test]
fn the_program_of_a_stopped_worker_ends_before_the_next_attempt_begins() {
    let scene = Scene::new();
    let line = "case $TENURE_ATTEMPT in
        1) echo $$ >pid.new; mv pid.new pid; trap '' TERM; while :; do sleep 0.1; done;;
        *) if kill -0 $(cat pid); then echo '\"beside the first\"'; else echo '\"alone\"'; fi;;
        esac";
    // One slot, so that no further claim waits for the same job.
    let options = ["--lease", "3s", "--kill-after", "1h", "--concurrency", "1"];
    let stopped = scene.worker(line, &options);
    scene.submit("a", "1", &[]);
    let pid = scene.made("pid");
    stopped.send(Signal::STOP);
    let _other = scene.worker(line, &options);
    assert_eq!(scene.reaches("a", "completed")["result"], "alone");
    assert!(!is_running(&pid));
    stopped.send(Signal::TERM);
    stopped.send(Signal::CONT);
    let (code, stderr) = stopped.ended();
    assert_eq!(code, Some(0), "{stderr}");
    assert!(
        stderr.ends_with("note: 0 completed, 0 failed, 1 claim lost\n"),
        "{stderr}"
    );
}

#[cfg(feature = "file")]
#[test]
fn as_process_1_a_worker_keeps_no_zombies() {
    use crate::programs::{descendants, first_process, has_namespaces, zombies};
    if !has_namespaces() {
        return;
    }
    let scene = Scene::new();
    // Each leaves a process behind that ends before it does, and one that would not end.
    let line = "(sleep 0.1 &); (sleep 1000 &); sleep 0.3";
    let mut command = first_process(&["worker", "--type", "work", "--exec", line]);
    let child = command
        .env("TENURE_SERVER", scene.url())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let worker = Worker(child);
    for id in ["a", "b", "c", "d", "e"] {
        scene.submit(id, "1", &[]);
        scene.reaches(id, "completed");
    }
    let unshare = Pid::from_child(&worker.0);
    let give_up = Instant::now() + PATIENCE;
    while zombies(unshare) > 0 || descendants(unshare).len() > 2 {
        assert!(Instant::now() < give_up, "{} zombies", zombies(unshare));
        std::thread::sleep(Duration::from_millis(20));
    }
    kill_process(descendants(unshare)[0], Signal::TERM).unwrap();
    let (code, stderr) = worker.ended();
    assert_eq!(code, Some(0), "{stderr}");
}

/// A program whose work is done by processes that are not its children, one of them in its own session.
const FAMILY: &str = "
    setsid sh -c 'echo $$ >away.new; mv away.new away; exec sleep 1000' &
    sh -c 'echo $$ >child.new; mv child.new child; exec sleep 1000'
    echo ok";

#[test]
fn a_worker_that_is_killed_takes_everything_with_it() {
    let scene = Scene::new();
    let worker = scene.worker(FAMILY, &[]);
    scene.submit("a", "1", &[]);
    let family = [scene.made("away"), scene.made("child")];
    worker.send(Signal::KILL);
    family.iter().for_each(|pid| ends(pid));
}

#[test]
fn a_cancelled_job_ends_what_left_its_session() {
    let scene = Scene::new();
    let _worker = scene.worker(FAMILY, &["--kill-after", "200ms", "--lease", "3s"]);
    scene.submit("a", "1", &[]);
    let family = [scene.made("away"), scene.made("child")];
    scene.cancel("a");
    scene.reaches("a", "cancelled");
    family.iter().for_each(|pid| ends(pid));
}

#[test]
fn a_worker_that_is_hung_up_stops_in_order() {
    let scene = Scene::new();
    let worker = scene.worker(
        FAMILY,
        &[
            "--drain",
            "200ms",
            "--kill-after",
            "200ms",
            "--concurrency",
            "1",
        ],
    );
    scene.submit("a", "1", &["--max-attempts", "1"]);
    let family = [scene.made("away"), scene.made("child")];
    worker.send(Signal::HUP);
    let (code, stderr) = worker.ended();
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.ends_with("0 failed, 1 handed back\n"), "{stderr}");
    family.iter().for_each(|pid| assert!(!is_running(pid)));
    scene.reaches("a", "ready");
}

#[test]
fn a_guard_that_is_killed_fails_the_job_and_leaves_nothing() {
    let scene = Scene::new();
    let line = format!("echo $PPID >guard.new; mv guard.new guard; {FAMILY}");
    let _worker = scene.worker(&line, &[]);
    scene.submit("a", "1", &["--max-attempts", "1"]);
    let (guard, family) = (
        scene.made("guard"),
        [scene.made("away"), scene.made("child")],
    );
    kill_process(Pid::from_raw(guard.parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    let error = "the guard of the program was killed, and the program with it";
    assert_eq!(scene.reaches("a", "dead")["error"], error);
    family.iter().for_each(|pid| assert!(!is_running(pid)));
}

#[cfg(feature = "file")]
#[test]
fn a_job_is_kept_while_its_guard_is_stopped() {
    let scene = Scene::new();
    let line = format!("echo $PPID >guard.new; mv guard.new guard; {FAMILY}");
    // Longer than a handler is normally waited for: it must not be dropped and its job released.
    let worker = scene.worker(
        &line,
        &["--drain", "0s", "--kill-after", "7s", "--lease", "3s"],
    );
    scene.submit("a", "1", &["--max-attempts", "1"]);
    let guard = scene.made("guard").parse().unwrap();
    let family = [scene.made("away"), scene.made("child")];
    stop_guard(Pid::from_raw(guard).unwrap());
    worker.send(Signal::TERM);
    // No other worker gets it before the last of its processes has ended.
    scene.reaches("a", "ready");
    let left: Vec<_> = family.iter().filter(|pid| is_running(pid)).collect();
    let _ = kill_process(Pid::from_raw(guard).unwrap(), Signal::CONT);
    assert!(left.is_empty(), "{left:?} of {family:?} go on");
    let (code, stderr) = worker.ended();
    assert_eq!(code, Some(0), "{stderr}");
}

#[cfg(feature = "file")]
#[test]
fn a_job_whose_guard_is_stopped_is_ended() {
    let scene = Scene::new();
    let line = format!("echo $PPID >guard.new; mv guard.new guard; {FAMILY}");
    let _worker = scene.worker(&line, &[]);
    scene.submit("a", "1", &["--max-attempts", "1"]);
    let guard = scene.made("guard");
    let family = [scene.made("away"), scene.made("child")];
    stop_guard(Pid::from_raw(guard.parse().unwrap()).unwrap());
    // If the worker died now, nothing would end the program.
    assert_eq!(scene.reaches("a", "dead")["error"], "killed by signal 9");
    family.iter().for_each(|pid| assert!(!is_running(pid)));
    assert!(!is_running(&guard));
}

#[cfg(feature = "file")]
#[test]
fn a_job_is_kept_while_its_program_may_not_be_killed() {
    use crate::programs::{is_root, make_sudo, nobody};
    if !is_root("programs that change their user") {
        return;
    }
    let scene = Scene::new();
    make_sudo(scene.folder.path());
    let line = "exec ./sudo --reuid 0 --regid 0 --clear-groups sh -c 'echo $$ >pid.new; mv pid.new pid; exec sleep 1000'";
    let mut command = nobody(
        scene.folder.path(),
        &["worker", "--type", "work", "--exec", line],
    );
    command.args(["--drain", "0s", "--kill-after", "100ms", "--lease", "3s"]);
    let child = command
        .env("TENURE_SERVER", scene.url())
        .current_dir(scene.folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let worker = Worker(child.unwrap());
    scene.submit("a", "1", &["--max-attempts", "1"]);
    let pid = scene.made("pid");
    worker.send(Signal::TERM);
    // Far longer than a lease, and than a handler that can be stopped takes.
    std::thread::sleep(Duration::from_secs(8));
    let job = scene.reaches("a", "running");
    let said = job["progress"]["stuck"].as_str().unwrap_or_default();
    assert!(said.contains("this user may not kill"), "{job}");
    assert!(is_running(&pid));
    kill_process(Pid::from_raw(pid.parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    scene.reaches("a", "ready");
    let (code, stderr) = worker.ended();
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("job a is kept until it ends"), "{stderr}");
}

#[cfg(feature = "file")]
#[test]
fn a_cancelled_job_is_kept_while_its_program_may_not_be_killed() {
    use crate::programs::{is_root, make_sudo, nobody};
    if !is_root("programs that change their user") {
        return;
    }
    let scene = Scene::new();
    make_sudo(scene.folder.path());
    let line = "if [ $TENURE_JOB_ID = b ]; then touch b; exit 0; fi
        exec ./sudo --reuid 0 --regid 0 --clear-groups sh -c 'echo $$ >pid.new; mv pid.new pid; exec sleep 1000'";
    let arguments = ["worker", "--type", "work", "--exec", line];
    let child = nobody(scene.folder.path(), &arguments)
        .args(["--kill-after", "100ms", "--lease", "3s"])
        .env("TENURE_SERVER", scene.url())
        .current_dir(scene.folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let worker = Worker(child.unwrap());
    scene.submit("a", "1", &["--group", "g"]);
    scene.submit("b", "1", &["--group", "g"]);
    let pid = scene.made("pid");
    scene.cancel("a");
    std::thread::sleep(Duration::from_secs(8));
    let job = scene.reaches("a", "running");
    let said = job["progress"]["stuck"].as_str().unwrap_or_default();
    assert!(said.contains("this user may not kill"), "{job}");
    assert!(is_running(&pid) && !scene.folder.path().join("b").exists());
    kill_process(Pid::from_raw(pid.parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    scene.reaches("a", "cancelled");
    scene.made("b");
    worker.send(Signal::TERM);
    let (code, stderr) = worker.ended();
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("job a is kept until it ends"), "{stderr}");
}

#[test]
fn a_result_that_is_too_large_is_left_out_and_the_job_is_completed() {
    let scene = Scene::new();
    let line = r#"read -r length; printf '"'; head -c "$length" /dev/zero | tr '\0' x; echo '"'"#;
    let worker = scene.worker(line, &[]);
    // With its quotation marks: the largest allowed, one more, and more than is kept of the output.
    for (id, length) in [
        ("a", "16382"),
        ("b", "16383"),
        ("c", "60000"),
        ("d", "700000"),
    ] {
        scene.submit(id, length, &["--max-attempts", "1"]);
        let job = scene.reaches(id, "completed");
        assert_eq!(job["result"].is_string(), id == "a", "{job}");
    }
    worker.send(Signal::TERM);
    let (code, stderr) = worker.ended();
    assert_eq!(code, Some(0));
    let words = "warning: b: completed without a result: the last line has 16385 bytes, but a result may have at most 16384\n";
    assert!(stderr.contains(words), "{stderr}");
    assert!(
        stderr.contains("warning: d: completed without a result"),
        "{stderr}"
    );
    assert_eq!(stderr.matches("warning: ").count(), 3, "{stderr}");
}

#[test]
fn a_stalled_reader_of_stderr_costs_no_job_its_lease() {
    let scene = Scene::new();
    // One that writes a lot, and one that takes longer than its lease.
    let line = r#"read -r kind; case $kind in
        1) head -c 300000 /dev/zero | tr '\0' '\n' >&2;;
        2) touch slow; sleep 6;;
        *) touch after;;
    esac"#;
    let mut worker = scene.worker(line, &["--lease", "3s", "--concurrency", "2"]);
    scene.submit("slow", "2", &["--max-attempts", "1"]);
    scene.made("slow");
    scene.submit("loud", "1", &["--max-attempts", "1"]);
    scene.reaches("loud", "completed");
    scene.submit("after", "3", &["--max-attempts", "1"]);
    scene.reaches("after", "completed");
    scene.reaches("slow", "completed");
    worker.send(Signal::TERM);
    let give_up = Instant::now() + PATIENCE;
    while worker.0.try_wait().unwrap().is_none() {
        assert!(Instant::now() < give_up, "it does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_program_that_is_not_there_is_told_at_once() {
    let arguments = ["worker", "--type", "work", "--", "/nowhere/at/all"];
    let expected = "error: /nowhere/at/all is not a program that can be run\n\
                    hint: check the path, and that the file is executable\n";
    assert_eq!(
        run(&mut tenure(&arguments)),
        (2, String::new(), expected.to_owned())
    );
}
