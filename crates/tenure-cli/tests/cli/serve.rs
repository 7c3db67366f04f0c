//! `tenure serve`, as a process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
#[cfg(feature = "file")]
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{run, tenure};

/// A server on a free port, killed when the test is over.
pub(crate) struct Serving {
    child: Child,
    stderr: BufReader<ChildStderr>,
    /// What it printed when it had started.
    pub(crate) banner: String,
    pub(crate) address: String,
}

impl Serving {
    pub(crate) fn start(folder: &Path, arguments: &[&str]) -> Self {
        Self::start_with(folder, arguments, &[])
    }

    /// The same, with these variables in its environment.
    pub(crate) fn start_with(
        folder: &Path,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let mut all = vec!["serve", "--listen", "127.0.0.1:0"];
        if !arguments.contains(&"--ttl") {
            // Long, so that a machine that stalls for a while does not lose leadership.
            all.extend(["--ttl", "60s"]);
        }
        all.extend(arguments);
        let mut command = tenure(&all);
        command.current_dir(folder);
        command.envs(variables.iter().copied());
        Self::spawn(command)
    }

    /// Waits until it listens.
    pub(crate) fn spawn(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut banner = String::new();
        while !banner.contains("  standby ") {
            assert_ne!(stderr.read_line(&mut banner).unwrap(), 0, "{banner}");
        }
        let (_, dashboard) = banner.split_once("  dashboard ").unwrap();
        let (_, address) = dashboard.split_once("://").unwrap();
        let address = address.split('/').next().unwrap().to_owned();
        Self {
            child,
            stderr,
            banner,
            address,
        }
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The status and body of one request.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        self.try_ask(method, path, body).unwrap()
    }

    /// The same with a header, which includes its line end.
    #[cfg(feature = "file")]
    fn ask_as(&self, method: &str, path: &str, body: &str, header: &str) -> (u16, String) {
        self.send(method, path, body, header).unwrap()
    }

    /// The same for a server that may have ended.
    pub(crate) fn try_ask(&self, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
        self.send(method, path, body, "")
    }

    fn send(&self, method: &str, path: &str, body: &str, header: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n{header}\r\n{body}",
            self.address
        )
        .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let status = answer.get(9..12)?.parse().unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        Some((status, body.to_owned()))
    }

    /// Sends a signal and waits for the end. Returns the exit code and the rest of the output.
    pub(crate) fn end(self, signal: Signal) -> (Option<i32>, String) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.ended()
    }

    /// Waits for its end. Returns the exit code and the output.
    pub(crate) fn ended(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code(), rest)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // It has ended already if the test got that far.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn it_says_where_it_is_and_ends_when_asked() {
    for signal in [Signal::TERM, Signal::INT] {
        let folder = tempfile::tempdir().unwrap();
        let serving = Serving::start(folder.path(), &["--store", "memory:", "--node", "n1"]);
        let url = format!("http://{}", serving.address);
        for line in [
            "  node       n1 in namespace default\n".to_owned(),
            "  store      memory:\n".to_owned(),
            format!("  dashboard  {url}/\n"),
            format!(
                "  try        curl --json '{{\"type\":\"hello\",\"payload\":{{\"name\":\"world\"}}}}' {url}/v1/jobs\n"
            ),
        ] {
            assert!(serving.banner.contains(&line), "{}", serving.banner);
        }
        assert_eq!(
            serving.ask("GET", "/healthz", ""),
            (200, r#"{"status":"ok"}"#.to_owned())
        );
        let (code, rest) = serving.end(signal);
        assert_eq!(code, Some(0));
        assert!(rest.contains("loses everything"), "{rest}");
        assert!(rest.contains("note: stopping"), "{rest}");
    }
}

/// Waits until a server reports that it is ready, in this role.
#[cfg(feature = "file")]
fn ready(serving: &Serving, role: &str) {
    let give_up = Instant::now() + Duration::from_secs(60);
    let expected = (200, format!(r#"{{"status":"{role}"}}"#));
    while serving.ask("GET", "/readyz", "") != expected {
        assert!(Instant::now() < give_up, "not a {role} in time");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[cfg(feature = "file")]
#[test]
fn a_standby_takes_over_from_a_leader_that_was_killed() {
    let folder = tempfile::tempdir().unwrap();
    let leader = Serving::start(folder.path(), &["--node", "one", "--ttl", "5s"]);
    ready(&leader, "leader");
    let standby = Serving::start(folder.path(), &["--node", "two", "--ttl", "5s"]);
    ready(&standby, "standby");
    let job = r#"{"id":"a","type":"t"}"#;
    assert_eq!(standby.ask("POST", "/v1/jobs", job).0, 201, "forwarded");
    let claim = r#"{"worker":"w"}"#;
    let (status, claimed) = leader.ask("POST", "/v1/jobs/claim", claim);
    assert_eq!(status, 200);
    let token = claimed
        .split(r#""token":""#)
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    assert_eq!(leader.end(Signal::KILL).0, None);
    ready(&standby, "leader");
    // What was acknowledged is there, and the worker's claim still holds.
    let (status, answer) = standby.ask("POST", "/v1/jobs", job);
    assert_eq!(
        (status, answer.contains("duplicate")),
        (200, true),
        "{answer}"
    );
    let body = format!(r#"{{"token":"{token}"}}"#);
    let done = standby.ask("POST", "/v1/jobs/a/complete", &body);
    assert_eq!(done, (200, r#"{"id":"a","status":"ok"}"#.to_owned()));
    let (code, said) = standby.end(Signal::TERM);
    assert_eq!(code, Some(0));
    assert!(
        said.contains("note: standby: one leads, in term 1\n"),
        "{said}"
    );
    assert!(said.contains("note: leading, in term 2\n"), "{said}");
}

/// Ends the claim in an answer, in one of three ways, through a server.
#[cfg(feature = "file")]
fn end_claim(server: &Serving, claimed: &str, number: u32) -> (u16, String) {
    let of = |name: &str| {
        let (_, rest) = claimed.split_once(&format!(r#""{name}":""#)).unwrap();
        rest.split('"').next().unwrap().to_owned()
    };
    let (id, token) = (of("id"), of("token"));
    let (end, more) = match number % 3 {
        0 => ("complete", r#","result":{"n":1}"#),
        1 => ("fail", r#","permanent":true"#),
        _ => ("release", ""),
    };
    let claim = format!(r#"{{"claims":[{{"id":"{id}","token":"{token}"{more}}}]}}"#);
    let (status, answer) = server.ask("POST", &format!("/v1/jobs/{end}"), &claim);
    (status, format!("{end} {answer}"))
}

/// Submits one job after the other to a standby while its leader is ended by a signal, claims each and ends the
/// claim. Returns the answers that were not successful.
#[cfg(feature = "file")]
fn working_while_the_leader_ends(signal: Signal) -> Vec<(u16, String)> {
    let folder = tempfile::tempdir().unwrap();
    let start = |node| Serving::start(folder.path(), &["--node", node, "--ttl", "3s"]);
    let leader = start("one");
    ready(&leader, "leader");
    let standby = start("two");
    ready(&standby, "standby");
    let (mut refused, mut leader) = (Vec::new(), Some(leader));
    let mut ended = None;
    for number in 0_u32.. {
        let job = format!(r#"{{"id":"job-{number}","type":"t"}}"#);
        let answer = standby.ask("POST", "/v1/jobs", &job);
        if answer.0 != 201 {
            refused.push(answer);
        }
        let claim = standby.ask("POST", "/v1/jobs/claim", r#"{"worker":"w"}"#);
        if claim.0 == 200 && claim.1.contains(r#""token""#) {
            let ended = end_claim(&standby, &claim.1, number);
            if !(ended.0 == 200 && ended.1.contains(r#""status":"ok""#)) {
                refused.push(ended);
            }
        } else {
            refused.push(claim);
        }
        if number == 20 {
            let leader = leader.take().unwrap();
            ended = Some(std::thread::spawn(move || leader.end(signal)));
        }
        // Until it has been the leader itself for a while.
        if number > 20 && standby.ask("GET", "/readyz", "").1.contains("leader") {
            break;
        }
    }
    ended.unwrap().join().unwrap();
    refused
}

#[test]
#[cfg(feature = "file")]
fn a_leader_that_is_stopped_costs_no_caller_an_error() {
    let refused = working_while_the_leader_ends(Signal::TERM);
    assert!(refused.is_empty(), "{refused:?}");
}

#[test]
#[cfg(feature = "file")]
fn a_leader_that_is_killed_costs_callers_time_and_no_error() {
    // Calls in transit are sent again. If one had been done, the job with this id already exists; claims and their
    // ends get the same answers as before.
    for (status, answer) in working_while_the_leader_ends(Signal::KILL) {
        let is_there = answer.contains(r#""status":"duplicate""#);
        assert!(status == 200 && is_there, "{status} {answer}");
    }
}

/// Stops a leader's process without ending it, and continues it when this is dropped.
#[cfg(feature = "file")]
struct Hung<'a>(&'a Serving);

#[cfg(feature = "file")]
impl<'a> Hung<'a> {
    fn stop(leader: &'a Serving) -> Self {
        kill_process(Pid::from_child(&leader.child), Signal::STOP).unwrap();
        Self(leader)
    }
}

#[cfg(feature = "file")]
impl Drop for Hung<'_> {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0.child), Signal::CONT);
    }
}

#[test]
#[cfg(feature = "file")]
fn a_leader_that_hangs_is_not_waited_for_once_another_leads() {
    let folder = tempfile::tempdir().unwrap();
    let start = |node| Serving::start(folder.path(), &["--node", node, "--ttl", "8s"]);
    let leader = start("one");
    ready(&leader, "leader");
    let standby = start("two");
    ready(&standby, "standby");
    let hung = Hung::stop(&leader);
    std::thread::scope(|scope| {
        // One call that can be sent again, and one that cannot.
        let submit = scope.spawn(|| {
            let answer = standby.ask("POST", "/v1/jobs", r#"{"type":"t"}"#);
            (Instant::now(), answer)
        });
        let pause = scope.spawn(|| {
            let answer = standby.ask("POST", "/v1/queues/q/pause", "{}");
            (Instant::now(), answer)
        });
        // A caller that says how long it waits is answered by then, before there is a new leader.
        let begun = Instant::now();
        let impatient = standby.ask_as("POST", "/v1/jobs", r#"{"type":"t"}"#, "Prefer: wait=1\r\n");
        let waited = begun.elapsed();
        assert_eq!(impatient.0, 503, "{impatient:?}");
        assert!(impatient.1.contains("unknown_outcome"), "{impatient:?}");
        assert!(waited >= Duration::from_secs(1), "{waited:?}");
        let read = standby.ask_as("GET", "/v1/queues", "", "Prefer: wait=1\r\n");
        assert!(read.0 == 503 && read.1.contains("no_leader"), "{read:?}");
        while !standby.ask("GET", "/readyz", "").1.contains(r#""leader""#) {
            std::thread::sleep(Duration::from_millis(20));
        }
        // Well before the call to the old leader would otherwise have been abandoned, three seconds later.
        let latest = Instant::now() + Duration::from_secs(2);
        let (at, answer) = submit.join().unwrap();
        assert_eq!(answer.0, 201, "{answer:?}");
        assert!(at < latest, "{:?} too late", at - latest);
        let (at, answer) = pause.join().unwrap();
        assert!(
            answer.0 == 503 && answer.1.contains("unknown_outcome"),
            "{answer:?}"
        );
        assert!(at < latest, "{:?} too late", at - latest);
    });
    drop(hung);
}

#[test]
#[cfg(feature = "file")]
fn a_standby_is_not_ready_when_its_leader_was_killed() {
    // A slow machine may take as long as a leader's report is reused, but not every time.
    let mut fastest = Duration::MAX;
    for _ in 0..3 {
        let folder = tempfile::tempdir().unwrap();
        let leader = Serving::start(folder.path(), &["--node", "one"]);
        ready(&leader, "leader");
        let standby = Serving::start(folder.path(), &["--node", "two"]);
        ready(&standby, "standby");
        leader.end(Signal::KILL);
        let begun = Instant::now();
        while standby.ask("GET", "/readyz", "").0 == 200 {
            std::thread::sleep(Duration::from_millis(10));
        }
        fastest = fastest.min(begun.elapsed());
        if fastest < Duration::from_millis(500) {
            return;
        }
    }
    panic!("it was ready for {fastest:?}");
}

#[test]
fn a_port_that_is_taken_is_told_with_a_way_out() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let ended = run(&mut tenure(&[
        "serve",
        "--store",
        "memory:",
        "--listen",
        &address.to_string(),
    ]));
    let expected = format!(
        "error: cannot listen on {address}\n\
         caused by: Address already in use (os error 98)\n\
         hint: another process listens there; to start a standby on this host, use --listen 127.0.0.1:{}\n",
        address.port() + 1
    );
    assert_eq!(ended, (2, String::new(), expected));
}

#[test]
fn what_makes_no_sense_is_told_before_anything_is_opened() {
    for (arguments, told) in [
        (
            &["--listen", "0.0.0.0:0", "--advertise", "http://h:1"][..],
            "error: other hosts can reach 0.0.0.0:0, but no token is configured\n\
             hint: configure a token (see --tokens), or listen on 127.0.0.1\n",
        ),
        (
            &["--namespace", "a/b"],
            "error: the namespace \"a/b\" contains '/'; use 1 to 200 of the characters \
             A-Z a-z 0-9 - _ . : @ + =, not starting with a dot\n",
        ),
        (
            &["--config", "/no/such/file"],
            "error: cannot read /no/such/file\n",
        ),
        (
            &[
                "--tls-certificate",
                "/no/such/file",
                "--tls-key",
                "/no/such/key",
            ],
            "error: cannot use /no/such/file: ",
        ),
    ] {
        let mut all = vec!["serve", "--store", "file:/no/such/place"];
        all.extend(arguments);
        let (code, stdout, stderr) = run(&mut tenure(&all));
        assert_eq!((code, stdout.as_str()), (2, ""));
        assert!(stderr.starts_with(told), "{stderr}");
    }
}

#[test]
fn a_configuration_file_counts_after_flags_and_shows_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tenure.toml");
    let path = file.to_str().unwrap();
    std::fs::write(
        &file,
        "store = \"memory:\"\nnode = \"from-file\"\nnamespace = \"ns\"\n",
    )
    .unwrap();
    let serving = Serving::start(folder.path(), &["--config", path, "--node", "from-flag"]);
    let line = "  node       from-flag in namespace ns\n";
    assert!(serving.banner.contains(line), "{}", serving.banner);
    assert_eq!(serving.end(Signal::TERM).0, Some(0));

    std::fs::write(
        &file,
        "\nstore = \"postgres://u:geheim@h/d\"\nttl = \"soon\"\n",
    )
    .unwrap();
    let (code, _, stderr) = run(&mut tenure(&["serve", "--config", path]));
    assert_eq!(code, 2);
    assert!(
        stderr.starts_with(&format!("error: line 3 of {path}: use a number")),
        "{stderr}"
    );
    assert!(!stderr.contains("geheim"), "{stderr}");
}

#[test]
fn tokens_come_from_a_file_or_the_environment_and_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens");
    std::fs::write(&file, "read rrrrrrrrrrrrrrrrrrrr\n").unwrap();
    let alone = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&file, alone).unwrap();
    let path = file.to_str().unwrap();
    let serving = Serving::start(folder.path(), &["--store", "memory:", "--tokens", path]);
    assert!(
        serving.banner.contains("Bearer $TENURE_API_TOKEN"),
        "{}",
        serving.banner
    );
    assert_eq!(serving.ask("GET", "/v1/cluster", "").0, 401);
    assert_eq!(serving.ask("GET", "/healthz", "").0, 200);

    let short = run(tenure(&["serve", "--store", "memory:"]).env("TENURE_ADMIN_TOKEN", "short"));
    let told = "error: cannot use TENURE_ADMIN_TOKEN: a token must have 16 to 512 characters; this one has 5\n";
    assert_eq!(short, (2, String::new(), told.to_owned()));
}

#[test]
fn a_fencing_token_opens_no_broker() {
    // The variable that `tenure run` sets for its programs. Without tokens, other hosts must not be served.
    let mut serve = tenure(&["serve", "--store", "memory:", "--listen", "0.0.0.0:0"]);
    let (code, _, stderr) = run(serve.env("TENURE_TOKEN", "default/leader:7-and-longer"));
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("configure a token"), "{stderr}");
}
