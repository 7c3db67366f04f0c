//! Every pair of verbs that are candidates, on one store and with defaults only: they do not get in each other's way,
//! in whichever order they are started.

use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::run::{Running, until};
use crate::serve::Serving;
use crate::support::{run, tenure};

/// Appends to the file that it is given, all the time.
const PROGRAM: &str = "trap 'exit 0' TERM; while :; do echo tick >> \"$LOG\"; sleep 0.05; done";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Serve,
    Run,
    Daemon,
    Elect,
}

/// A folder that holds the default store.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = tenure(arguments);
        command.current_dir(self.path());
        command
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let (_, stdout, stderr) = run(&mut self.command(arguments));
        serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{stdout}{stderr}"))
    }

    fn leads_by_elect(&self) -> bool {
        self.json(&["elect", "--json"])["is_leader"] == true
    }
}

enum Process {
    Server(Box<Serving>),
    Program(Running),
    None,
}

struct Started<'a> {
    place: &'a Folder,
    verb: Verb,
    process: Process,
}

impl<'a> Started<'a> {
    fn new(place: &'a Folder, verb: Verb) -> Self {
        let program = |arguments: &[&str], log: &str| {
            let mut command = place.command(arguments);
            command.env("LOG", place.path().join(log));
            command.args(["--", "sh", "-c", PROGRAM]);
            Process::Program(Running::start(&mut command))
        };
        let process = match verb {
            Verb::Serve => {
                let serve = ["serve", "--listen", "127.0.0.1:0"];
                Process::Server(Box::new(Serving::spawn(place.command(&serve))))
            }
            Verb::Run => program(&["run"], "run"),
            Verb::Daemon => program(&["run", "--daemon", "indexer"], "daemon"),
            Verb::Elect => Process::None,
        };
        Self {
            place,
            verb,
            process,
        }
    }

    /// Waits until it does its work.
    fn works(&self) {
        let grows = |log: &str| {
            let path = self.place.path().join(log);
            let length = || std::fs::metadata(&path).map_or(0, |file| file.len());
            let before = length();
            until(&format!("the program of {:?}", self.verb), || {
                length() > before
            });
        };
        match (self.verb, &self.process) {
            (Verb::Serve, Process::Server(server)) => until("a job that is taken", || {
                server.ask("POST", "/v1/jobs", r#"{"type":"t"}"#).0 == 201
            }),
            (Verb::Run, _) => grows("run"),
            (Verb::Daemon, _) => grows("daemon"),
            _ => until("an election that is won", || self.place.leads_by_elect()),
        }
    }

    fn stop(self) {
        match self.process {
            Process::Server(server) => assert_eq!(server.end(Signal::TERM).0, Some(0)),
            Process::Program(mut program) => {
                program.signal(Signal::TERM);
                assert_eq!(program.ended(), 0);
            }
            Process::None => {
                let release = run(&mut self.place.command(&["elect", "--release"]));
                assert_eq!(release.0, 0, "{release:?}");
            }
        }
    }
}

/// Runs two verbs on one store: both work, and keep working when either of them is restarted.
fn check(one: Verb, other: Verb) {
    let place = Folder::new();
    let mut first = Started::new(&place, one);
    first.works();
    let mut second = Started::new(&place, other);
    second.works();
    first.works();

    first.stop();
    second.works();
    first = Started::new(&place, one);
    first.works();
    second.works();

    second.stop();
    first.works();
    second = Started::new(&place, other);
    second.works();
    first.works();
}

#[test]
fn a_broker_and_a_program_do_not_hinder_each_other() {
    check(Verb::Serve, Verb::Run);
}

#[test]
fn a_broker_and_a_daemon_do_not_hinder_each_other() {
    check(Verb::Serve, Verb::Daemon);
}

#[test]
fn a_broker_and_a_one_shot_leader_do_not_hinder_each_other() {
    check(Verb::Serve, Verb::Elect);
}

#[test]
fn a_program_and_a_daemon_do_not_hinder_each_other() {
    check(Verb::Run, Verb::Daemon);
}

#[test]
fn a_daemon_and_a_one_shot_leader_do_not_hinder_each_other() {
    check(Verb::Daemon, Verb::Elect);
}

#[test]
fn two_brokers_take_turns_beside_everything_else() {
    let place = Folder::new();
    let others = [Verb::Run, Verb::Daemon].map(|verb| Started::new(&place, verb));
    let first = Started::new(&place, Verb::Serve);
    first.works();
    let second = Started::new(&place, Verb::Serve);
    // It forwards to the first, and answers itself when the first has ended.
    second.works();
    first.stop();
    second.works();
    for other in &others {
        other.works();
    }
}

/// Both are candidates in the user's election, so only one of them leads at a time.
#[test]
fn a_program_and_a_one_shot_leader_exclude_each_other() {
    let place = Folder::new();
    let first = Started::new(&place, Verb::Run);
    first.works();
    assert!(!place.leads_by_elect());
    first.stop();
    assert!(place.leads_by_elect());
    let log = place.path().join("run");
    let before = std::fs::metadata(&log).unwrap().len();
    let mut again = Started::new(&place, Verb::Run);
    let Process::Program(program) = &mut again.process else {
        unreachable!("it is a program");
    };
    program.wait_for_note("is a candidate in the election default");
    assert_eq!(std::fs::metadata(&log).unwrap().len(), before);
    Started::new(&place, Verb::Elect).stop();
    again.works();
}

#[test]
fn only_brokers_can_be_handed_the_queue() {
    let place = Folder::new();
    let broker = Started::new(&place, Verb::Serve);
    broker.works();
    let _program = Started::new(&place, Verb::Run);
    let daemon = Started::new(&place, Verb::Daemon);
    daemon.works();
    let host = tenure_host();

    let (code, _, stderr) =
        run(&mut place.command(&["transfer", &host, "--election", "tenure.queue"]));
    assert_eq!(code, 1);
    let told = format!("{host} is not a live candidate of the election tenure.queue");
    assert!(stderr.contains(&told), "{stderr}");
    let Process::Server(server) = &broker.process else {
        unreachable!("it is a server");
    };
    let body = json!({"node": host}).to_string();
    let (status, answer) = server.ask("POST", "/v1/leader/transfer", &body);
    assert_eq!(status, 422, "{answer}");

    for own in ["tenure.queue", "tenure.cluster", "tenure.queue.3"] {
        for verb in [
            vec!["elect", "--election", own],
            vec!["run", "--election", own, "--", "true"],
        ] {
            let (code, _, stderr) = run(&mut place.command(&verb));
            assert_eq!(code, 2, "{verb:?}");
            assert!(
                stderr.contains("reserved for Tenure's own elections"),
                "{stderr}"
            );
        }
    }
    broker.works();
}

/// The default name of a node.
fn tenure_host() -> String {
    tenure::host_name().to_string()
}

/// The verbs that read or change an election use the queue's if there is no other.
#[test]
fn the_election_that_is_meant_is_the_only_one_or_has_to_be_named() {
    let place = Folder::new();
    let broker = Started::new(&place, Verb::Serve);
    broker.works();
    assert_eq!(
        place.json(&["history", "--json"])["election"],
        "tenure.queue"
    );
    let (code, stdout, stderr) = run(&mut place.command(&["resign", "--wait", "0s"]));
    assert!(
        code == 0 && stdout.ends_with(" was asked to resign\n"),
        "{stdout}{stderr}"
    );

    assert!(place.leads_by_elect());
    let (code, _, stderr) = run(&mut place.command(&["history"]));
    let several = "error: there are several elections here: default, tenure.queue\n\
                   hint: choose one with --election NAME\n";
    assert_eq!((code, stderr.as_str()), (2, several));
    assert_eq!(
        place.json(&["history", "--election", "default", "--json"])["election"],
        "default"
    );

    let (_, status, _) = run(&mut place.command(&["status"]));
    for line in [
        "election    default\n",
        "election    tenure.cluster, its leader assigns the daemons\n",
        "election    tenure.queue, its leader serves the queue\n",
    ] {
        assert!(status.contains(line), "{status}");
    }
}

/// One name is one election, through the command line, HTTP and the library. The Python client has its own test of
/// this.
#[test]
fn one_name_is_one_election_for_everybody() {
    let place = Folder::new();
    let broker = Started::new(&place, Verb::Serve);
    broker.works();
    let Process::Server(server) = &broker.process else {
        unreachable!("it is a server");
    };
    let secret = "0123456789abcdef";
    let by_http = |candidate: &str| {
        let body = json!({"candidate": candidate, "secret": secret}).to_string();
        let (status, answer) = server.ask("POST", "/v1/elections/reports/elect", &body);
        assert_eq!(status, 200, "{answer}");
        serde_json::from_str::<Value>(&answer).unwrap()
    };
    let by_elect = || {
        place.json(&[
            "elect",
            "--election",
            "reports",
            "--node",
            "script",
            "--json",
        ])
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let url = format!("file:{}", place.path().join("tenure-data").display());
    let by_library = || {
        let elected = runtime.block_on(async {
            let store = tenure_store::open(&url).await.unwrap();
            let elections =
                tenure::OneShot::new(store, "default", std::time::Duration::from_secs(60));
            let elections = elections.unwrap().with_election("reports").unwrap();
            elections.elect(&"library".parse().unwrap()).await.unwrap()
        });
        elected.is_leader()
    };

    // A program leads, and nobody else does.
    let mut command = place.command(&["run", "--election", "reports", "--node", "program"]);
    command.args(["--", "sleep", "1000"]);
    let mut program = Running::start(&mut command);
    program.wait_for_note("program leads reports in term 1");
    let answer = by_http("web");
    assert_eq!(
        (&answer["is_leader"], &answer["leader"]["node"]),
        (&json!(false), &json!("program"))
    );
    let answer = by_elect();
    assert_eq!(
        (&answer["is_leader"], &answer["leader"]),
        (&json!(false), &json!("program"))
    );
    assert!(!by_library());

    // It ends, a candidate over HTTP leads, and nobody else does.
    program.signal(Signal::TERM);
    assert_eq!(program.ended(), 0);
    let answer = by_http("web");
    assert_eq!(
        (&answer["is_leader"], &answer["term"]),
        (&json!(true), &json!(2))
    );
    assert!(by_elect()["is_leader"] == false && !by_library());

    // That one withdraws, and a candidate of the library leads.
    let body = json!({"secret": secret}).to_string();
    let (status, answer) = server.ask("DELETE", "/v1/elections/reports/candidates/web", &body);
    assert_eq!(status, 204, "{answer}");
    assert!(by_library());
    assert!(by_elect()["is_leader"] == false && by_http("web")["is_leader"] == false);
}
