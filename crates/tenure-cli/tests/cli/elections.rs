//! The verbs that read an election, or send its leader a request: whole outputs, without times.

use std::io::{BufRead, BufReader, Write as _};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::run::{PROGRAM, Running, Scene, until};
use crate::support::{Ended, run};

/// A program that does nothing until it is stopped.
const IDLE: &str = "exec sleep 1000";

/// Replaces every time by `TIME` and every duration by `LONG`, and closes the gaps between columns.
pub(crate) fn without_times(text: &str) -> String {
    let word = |word: &str| {
        let digits = word.trim_end_matches(|character: char| character.is_ascii_lowercase());
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let unit = &word[digits.len()..];
        let end = if word.ends_with(':') || word.ends_with(',') {
            &word[word.len() - 1..]
        } else {
            ""
        };
        if word.len() >= 20 && word.as_bytes()[10] == b'T' && word.as_bytes()[19] == b'Z' {
            format!("TIME{end}")
        } else if is_number && ["ms", "s", "m"].contains(&unit) {
            "LONG".to_owned()
        } else {
            word.to_owned()
        }
    };
    let line = |line: &str| {
        let words: Vec<String> = line.split_whitespace().map(word).collect();
        words.join(" ") + "\n"
    };
    text.lines().map(line).collect()
}

pub(crate) fn asked(scene: &Scene, arguments: &[&str]) -> Ended {
    let (code, stdout, stderr) = run(&mut scene.tenure(arguments));
    (code, without_times(&stdout), without_times(&stderr))
}

pub(crate) fn check(scene: &Scene, arguments: &[&str], code: i32, stdout: &str, stderr: &str) {
    let ended = asked(scene, arguments);
    assert_eq!(
        ended,
        (code, stdout.to_owned(), stderr.to_owned()),
        "tenure {arguments:?}"
    );
}

pub(crate) fn document(scene: &Scene, arguments: &[&str]) -> serde_json::Value {
    let (_, stdout, stderr) = run(&mut scene.tenure(arguments));
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}"))
}

/// Two candidates, of which a leads. The ttl is long: nothing here waits for one to end.
fn two_nodes(scene: &Scene) -> [Running; 2] {
    let start = |node, priority| {
        let mut command = scene.tenure(&["run", "--ttl", "60s", "--node", node]);
        command.args(["--priority", priority, "--", "sh", "-c", IDLE]);
        Running::start(&mut command)
    };
    let mut a = start("a", "100");
    a.wait_for_note("a leads default in term 1");
    let b = start("b", "90");
    until("two candidates", || {
        let status = document(scene, &["status", "--json"]);
        status["elections"][0]["candidates"]
            .as_array()
            .unwrap()
            .len()
            == 2
    });
    [a, b]
}

#[test]
fn who_only_looks_makes_no_store() {
    let scene = Scene::new();
    let typo = scene.path("typo");
    let folder = typo.display().to_string();
    let database = format!("sqlite:{folder}.db");
    for arguments in [
        &["status"][..],
        &["nodes"],
        &["daemons"],
        &["plan"],
        &["history"],
        &["watch"],
        &["drain", "a"],
        &["resign"],
        &["log"],
        &["log", "verify"],
        &["elect", "--node", "a", "--release"],
    ] {
        for store in [&folder, &database] {
            let mut command = scene.tenure(arguments);
            let (code, stdout, stderr) = run(command.env("TENURE_STORE", store));
            assert_eq!((code, &*stdout), (2, ""), "{arguments:?}: {stderr}");
            assert!(stderr.contains("there is no such store"), "{stderr}");
            assert!(stderr.contains("hint: check the store's URL"), "{stderr}");
        }
    }
    assert!(!typo.exists() && !scene.path("typo.db").exists());
}

#[test]
fn a_namespace_without_elections_says_so() {
    let scene = Scene::new();
    let none = "note: there are no elections in the namespace default\n";
    check(&scene, &["status"], 1, "", none);
    let status = document(&scene, &["status", "--json"]);
    assert_eq!(status, json!({"namespace": "default", "elections": []}));
    check(
        &scene,
        &["status", "--election", "x"],
        1,
        "election x\nleader nobody yet\ncandidates none\n",
        "",
    );
    check(
        &scene,
        &["history"],
        1,
        "",
        "note: no leader was ever elected in default\n",
    );
    let nobody = "error: nobody leads the election default\n\
                  hint: `tenure status` shows the candidates\n";
    check(&scene, &["resign"], 1, "", nobody);
    check(&scene, &["transfer", "a"], 1, "", nobody);
}

#[test]
fn status_shows_who_leads_and_who_stands() {
    let scene = Scene::new();
    let mut nodes = two_nodes(&scene);
    check(
        &scene,
        &["status"],
        0,
        "election default\n\
         leader a, term 1\n\
         since TIME by its clock, for LONG\n\
         heard LONG ago\n\
         candidates a priority 100 leads\n\
         b priority 90\n",
        "",
    );
    let mut status = document(&scene, &["status", "--json"]);
    let election = &mut status["elections"][0];
    for text in ["/leader/incarnation", "/leader/since", "/lineage"] {
        assert!(election.pointer_mut(text).unwrap().take().is_string());
    }
    for number in ["/leader/for_ms", "/leader/seen_ago_ms"] {
        assert!(election.pointer_mut(number).unwrap().take().is_u64());
    }
    for index in 0..2 {
        let candidate = &mut election["candidates"][index];
        assert!(candidate["incarnation"].take().is_string());
        assert!(candidate["seen_ago_ms"].take().is_u64());
    }
    assert_eq!(
        status,
        json!({"namespace": "default", "elections": [{
            "election": "default",
            "state": "held",
            "leader": {
                "node": "a", "incarnation": null, "since": null, "for_ms": null, "seen_ago_ms": null, "live": true
            },
            "term": 1,
            "lineage": null,
            "reserved_for": null,
            "reserved_for_incarnation": null,
            "reserved_for_ms": null,
            "request": null,
            "candidates": [
                {"node": "a", "incarnation": null, "priority": 100, "ttl_ms": 60_000, "seen_ago_ms": null},
                {"node": "b", "incarnation": null, "priority": 90, "ttl_ms": 60_000, "seen_ago_ms": null},
            ],
            "history": [],
        }]})
    );
    for node in &mut nodes {
        node.signal(Signal::TERM);
        assert_eq!(node.ended(), 0);
    }
    let (code, text, _) = asked(&scene, &["status"]);
    assert_eq!(code, 1);
    assert!(
        text.contains("leader nobody since term")
            && text.contains("candidates none\n")
            && text.contains("term 1 a for LONG until TIME: resigned\n"),
        "{text}"
    );
}

#[test]
fn a_transfer_and_a_resignation_happen_and_are_remembered() {
    let scene = Scene::new();
    let _nodes = two_nodes(&scene);
    check(
        &scene,
        &["transfer", "nobody"],
        1,
        "",
        "error: nobody is not a live candidate of the election default; its candidates are a, b\n",
    );
    check(
        &scene,
        &["transfer", "a"],
        0,
        "a leads default, term 1\n",
        "",
    );
    // A node that resigned is not a candidate for a while, so a resigns only once.
    check(
        &scene,
        &["resign", "--node", "me", "--wait", "60s"],
        0,
        "b leads default, term 2\n",
        "",
    );
    let back = document(&scene, &["transfer", "a", "--wait", "60s", "--json"]);
    assert_eq!(
        back,
        json!({"election": "default", "outcome": "done", "leader": "a", "term": 3})
    );
    let (code, history, _) = asked(&scene, &["history"]);
    // On a busy machine a hand-over may take so long that it shows.
    assert_eq!(
        (
            code,
            history.replace("- nobody TIME TIME LONG\n", "").as_str()
        ),
        (
            0,
            "TERM NODE FROM TO LASTED REASON\n\
             1 a TIME TIME LONG resigned, asked by me\n\
             2 b TIME TIME LONG transferred to a\n\
             3 a TIME now LONG\n"
        )
    );
    let history = document(&scene, &["history", "--json"]);
    assert_eq!(history["election"], "default");
    let mut terms = history["terms"].as_array().unwrap().clone();
    terms.retain(|term| !term["term"].is_null());
    assert_eq!(terms.len(), 3);
    assert_eq!(terms[0]["reason"], "resigned, asked by me");
    assert_eq!(terms[2]["to"], json!(null));
}

/// A request made before leadership moved, and read afterwards, was meant for the former leader.
#[test]
fn several_who_ask_at_one_time_move_leadership_once() {
    let scene = Scene::new();
    let _nodes = two_nodes(&scene);
    // These were started before, but ask only after leadership has moved.
    let mut late: Vec<_> = (0..3)
        .map(|_| {
            let resign = scene.tenure(&["resign", "--wait", "60s"]);
            let mut shell = Command::new("sh");
            shell.args(["-c", "read line; exec \"$0\" \"$@\""]);
            shell.arg(resign.get_program()).args(resign.get_args());
            for (name, value) in resign.get_envs() {
                match value {
                    Some(value) => shell.env(name, value),
                    None => shell.env_remove(name),
                };
            }
            if let Some(folder) = resign.get_current_dir() {
                shell.current_dir(folder);
            }
            shell.stdin(Stdio::piped()).stdout(Stdio::piped());
            shell.spawn().unwrap()
        })
        .collect();
    let moved = "b leads default, term 2\n";
    check(&scene, &["resign", "--wait", "60s"], 0, moved, "");
    for child in &mut late {
        child.stdin.take().unwrap().write_all(b"now\n").unwrap();
    }
    for child in late {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        assert_eq!(String::from_utf8(output.stdout).unwrap(), moved);
    }
    let status = document(&scene, &["status", "--json"]);
    assert_eq!(status["elections"][0]["term"], 2, "{status}");
}

#[test]
fn what_does_not_happen_in_time_is_a_no() {
    let scene = Scene::new();
    // A program that is slow to stop.
    let slow = PROGRAM.replace("say stop; exit 0", "say told");
    let mut a = scene.run("a", &slow, &["--kill-after", "1h"]);
    scene.wait_for("1 a tick");
    check(
        &scene,
        &["resign", "--node", "me", "--wait", "0s"],
        0,
        "a was asked to resign\n",
        "",
    );
    scene.wait_for("told");
    let (_, text, _) = asked(&scene, &["status"]);
    assert!(text.contains("request me asked it to resign\n"), "{text}");
    check(
        &scene,
        &["resign", "--node", "me", "--wait", "100ms"],
        1,
        "a leads default, term 1\n",
        "warning: this has not happened within LONG\n\
         hint: the request stays in the lease: the leader may still be stopping its work\n",
    );
    // It leads but was asked to resign, so the transfer to it is not fulfilled yet.
    check(
        &scene,
        &["transfer", "a", "--node", "me", "--wait", "100ms"],
        1,
        "a leads default, term 1\n",
        "warning: this has not happened within LONG\n\
         hint: it had been asked to step down: it keeps leading if it has not begun to stop its work; otherwise it leads again after that\n",
    );
    let (_, text, _) = asked(&scene, &["status"]);
    assert!(
        text.contains("request me asked it to keep leading\n"),
        "{text}"
    );
    until("the effect of a second signal", || {
        // Two signals of one kind may arrive as one.
        a.signal_if_running(Signal::TERM);
        a.has_ended()
    });
    assert_eq!(a.ended(), 0);
}

#[test]
fn watch_tells_every_transition_and_stands_for_nothing() {
    let scene = Scene::new();
    let _nodes = two_nodes(&scene);
    let mut watch = scene
        .tenure(&["watch"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next = || without_times(&lines.next().unwrap().unwrap());
    assert_eq!(next(), "TIME elected a term 1\n");
    check(
        &scene,
        &["transfer", "b", "--node", "me", "--wait", "60s"],
        0,
        "b leads default, term 2\n",
        "",
    );
    let mut seen = vec![next()];
    while seen.last().unwrap() != "TIME elected b term 2\n" {
        seen.push(next());
    }
    // The request and the reservation may have come and gone between two looks.
    seen.retain(|line| !line.contains("asked the leader") && !line.contains("reserved"));
    assert_eq!(
        seen,
        [
            "TIME ended a term 1: transferred to b\n",
            "TIME elected b term 2\n"
        ]
    );
    std::fs::remove_file(scene.path("store/default/elections/default")).unwrap();
    // A candidate soon creates it again, though it leads only after a ttl.
    let told = next();
    assert!(
        [
            "TIME anomaly: the lease was deleted; candidates wait a full ttl before they continue\n",
            "TIME anomaly: the lease was deleted and made again\n"
        ]
        .contains(&told.as_str()),
        "{told}"
    );
    let status = document(&scene, &["status", "--election", "default", "--json"]);
    let candidates = status["elections"][0]["candidates"].as_array().unwrap();
    assert_eq!(candidates.len(), 2, "{status}");
    // It may have been taken already by the candidate that leads after a ttl.
    let state = status["elections"][0]["state"].as_str().unwrap();
    assert!(["missing", "held"].contains(&state), "{status}");
    kill_process(Pid::from_child(&watch), Signal::INT).unwrap();
    assert_eq!(watch.wait_with_output().unwrap().status.code(), Some(0));
}

#[test]
fn watch_prints_a_document_per_line_until_nobody_reads() {
    let scene = Scene::new();
    let mut watch = scene
        .tenure(&["watch", "--json", "--election", "x"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reader = BufReader::new(watch.stdout.take().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let mut told: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert!(told["at"].take().is_string());
    assert_eq!(
        told,
        json!({"at": null, "election": "x", "event": "never_held"})
    );
    drop(reader);
    let mut once = scene.run("a", "exit 0", &["--election", "x", "--once"]);
    assert_eq!(once.ended(), 0);
    assert_eq!(watch.wait().unwrap().code(), Some(0));
}

#[test]
fn a_one_shot_election_has_one_winner_until_it_is_released() {
    let scene = Scene::new();
    let elect = |arguments: &[&str]| {
        let (code, stdout, stderr) = asked(&scene, &[&["elect"], arguments].concat());
        assert_eq!(stderr, "");
        (code, stdout)
    };
    let (code, text) = elect(&["--node", "a"]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        (code, lines[0], lines[1]),
        (0, "leader a, this node", "term 1")
    );
    assert!(
        lines[2].starts_with("token ") && lines[2].ends_with(":1"),
        "{text}"
    );
    assert_eq!(lines[3], "valid for LONG");

    let (code, other) = elect(&["--node", "b", "--election", "mails"]);
    assert!(
        code == 0 && other.starts_with("leader b, this node"),
        "{other}"
    );
    assert_eq!(
        elect(&["--node", "b"]),
        (1, "leader a\nterm 1\n".to_owned())
    );
    let other = document(&scene, &["elect", "--node", "b", "--json"]);
    assert_eq!(
        other,
        json!({
            "node": "b",
            "is_leader": false,
            "leader": "a",
            "term": 1,
            "token": null,
            "valid_for_ms": 0,
            "asked_by": null,
            "reserved_for": null,
            "reserved_for_incarnation": null,
        })
    );
    assert_eq!(
        elect(&["--node", "a", "--release"]),
        (0, "a is no longer a candidate of default\n".to_owned())
    );
    let next = document(&scene, &["elect", "--node", "b", "--json"]);
    assert_eq!((&next["leader"], &next["term"]), (&json!("b"), &json!(2)));
    let released = document(&scene, &["elect", "--node", "b", "--release", "--json"]);
    assert_eq!(released, json!({"released": "b"}));
}

#[test]
fn a_reserved_lease_is_told_and_can_be_given_to_another() {
    let scene = Scene::new();
    for node in ["a", "b", "c"] {
        run(&mut scene.tenure(&["elect", "--node", node, "--ttl", "24h"]));
    }
    let warning = |node| {
        format!(
            "warning: {node} only calls now and then: it leads when it calls `elect`; until then nobody leads, for up to LONG\n"
        )
    };
    check(
        &scene,
        &["transfer", "b", "--wait", "0s"],
        0,
        "a was asked to hand over to b\n",
        &warning("b"),
    );
    // It keeps leading until it calls, and everybody sees the request, until when it may lead, and who comes next.
    let (code, text, _) = asked(&scene, &["status"]);
    assert_eq!(code, 0);
    assert!(
        text.contains("leader a, term 1, asked to step down\n"),
        "{text}"
    );
    assert!(
        text.contains("asked it to hand over to b; its lease lapses in 2")
            && text.contains(
                ": reserved for b, for up to LONG more; one that only calls has to call twice"
            ),
        "{text}"
    );
    let status = document(&scene, &["status", "--json"]);
    let request = &status["elections"][0]["request"];
    assert_eq!(
        (&request["kind"], &request["to"], &request["lapses"]),
        (&json!("transfer"), &json!("b"), &json!(true))
    );
    let left = request["lapses_in_ms"].as_u64().unwrap();
    assert!((1..=86_400_000).contains(&left), "{left}");
    assert!(request["to_incarnation"].is_string(), "{request}");
    check(
        &scene,
        &["elect", "--node", "a", "--release"],
        0,
        "a is no longer a candidate of default\n",
        "",
    );
    let nobody = "leader nobody, reserved for b\n";
    check(
        &scene,
        &["elect", "--node", "c", "--ttl", "24h"],
        1,
        nobody,
        "",
    );
    let told = document(&scene, &["elect", "--node", "c", "--ttl", "24h", "--json"]);
    assert_eq!(told["reserved_for"], json!("b"));
    let (_, text, _) = asked(&scene, &["status"]);
    let reserved = "leader nobody since term 1, reserved for b, for up to LONG more\n";
    assert!(text.contains(reserved), "{text}");
    assert!(text.contains("transferred to b\n"), "{text}");
    let status = document(&scene, &["status", "--json"]);
    let election = &status["elections"][0];
    let mut candidates = election["candidates"].as_array().unwrap().iter();
    let b = candidates.find(|each| each["node"] == "b").unwrap();
    assert!(b["incarnation"].is_string());
    for reserved in [election, &told] {
        assert_eq!(reserved["reserved_for_incarnation"], b["incarnation"]);
    }
    let left = election["reserved_for_ms"].as_u64().unwrap();
    assert!(left <= 30_000, "{left}");
    check(
        &scene,
        &["transfer", "c", "--wait", "3s"],
        1,
        "nobody leads default, reserved for c; term 1 has ended\n",
        &format!(
            "{}warning: this has not happened within LONG\n\
             hint: c leads if it calls in time, otherwise another candidate; `tenure resign` ends the reservation\n",
            warning("c")
        ),
    );
    check(
        &scene,
        &["resign", "--wait", "0s"],
        0,
        "nobody leads default; it is no longer reserved for c\n",
        "",
    );
    let (code, ..) = run(&mut scene.tenure(&["elect", "--node", "b", "--ttl", "24h"]));
    assert_eq!(code, 0);
}

/// A caller that is asked to resign, and to stay before it learns of that, keeps leading in its term.
#[test]
fn a_caller_that_is_asked_to_stay_leads_on() {
    let scene = Scene::new();
    let elect = ["elect", "--node", "a", "--ttl", "60s"];
    assert_eq!(run(&mut scene.tenure(&elect)).0, 0);
    let resign = ["resign", "--node", "me", "--wait", "0s"];
    check(&scene, &resign, 0, "a was asked to resign\n", "");
    let stay = ["transfer", "a", "--node", "me", "--wait", "0s"];
    check(&scene, &stay, 0, "a was asked to keep leading\n", "");
    check(&scene, &resign, 0, "a was asked to resign\n", "");
    let stay = ["transfer", "a", "--node", "me", "--wait", "60s"];
    check(&scene, &stay, 0, "a leads default, term 1\n", "");
    let request = &document(&scene, &["status", "--json"])["elections"][0]["request"];
    assert_eq!(request["lapses"], json!(false), "{request}");
    assert_eq!(run(&mut scene.tenure(&elect)).0, 0);
}

/// A running node and a one-shot caller are two candidates, even under one name.
#[test]
fn a_transfer_to_a_name_that_two_have_names_one_in_full() {
    let scene = Scene::new();
    let _nodes = two_nodes(&scene);
    run(&mut scene.tenure(&["elect", "--node", "b", "--ttl", "60s"]));
    let (code, _, told) = asked(&scene, &["transfer", "b", "--wait", "0s"]);
    assert_eq!(code, 1, "{told}");
    assert!(
        told.starts_with("error: b names several candidates of the election default: b/")
            && told
                .ends_with("hint: name one of them in full: `tenure transfer NODE/INCARNATION`\n"),
        "{told}"
    );
    let words = told.split_whitespace();
    let is_name = |word: &&str| word.starts_with("b/");
    let named: Vec<&str> = words.filter(is_name).collect();
    assert_eq!(named.len(), 2, "{told}");
    let status = document(&scene, &["status", "--json"]);
    let candidates = status["elections"][0]["candidates"].as_array().unwrap();
    let runs = candidates.iter().find(|each| each["priority"] == 90);
    let runs = format!("b/{}", runs.unwrap()["incarnation"].as_str().unwrap());
    assert!(
        named.iter().any(|name| name.trim_end_matches(',') == runs),
        "{told}"
    );
    check(
        &scene,
        &["transfer", &runs, "--wait", "60s"],
        0,
        "b leads default, term 2\n",
        "",
    );
    // The same when one of the two leads.
    let (code, _, told) = asked(&scene, &["transfer", "b", "--wait", "0s"]);
    assert!(
        code == 1 && told.starts_with("error: b names several candidates"),
        "{told}"
    );
    let (_, text, _) = asked(&scene, &["status"]);
    assert!(text.contains(&format!("leader {runs}, term 2\n")), "{text}");
    assert!(text.contains("candidates a priority"), "{text}");
    for name in &named {
        let name = name.trim_end_matches(',');
        assert!(text.contains(&format!("{name} priority")), "{text}");
    }
    let (code, _, told) = asked(&scene, &["transfer", "b/none", "--wait", "0s"]);
    assert!(code != 0 && told.contains("names no session"), "{told}");
}

#[test]
fn the_first_digits_of_an_incarnation_are_enough_if_they_fit_one() {
    let scene = Scene::new();
    run(&mut scene.tenure(&["elect", "--node", "a", "--ttl", "60s"]));
    run(&mut scene.tenure(&["elect", "--node", "b", "--ttl", "60s"]));
    let folder = scene.path("store/default/nodes/b");
    let session = std::fs::read_dir(&folder).unwrap();
    let session = session.map(|entry| entry.unwrap().file_name()).next();
    let session = session.unwrap().into_string().unwrap();
    // Another session of that name, which differs in the last two digits.
    let (digits, last) = session.split_at(session.len() - 2);
    let last = u8::from_str_radix(last, 16).unwrap() ^ 0x11;
    let other = format!("{digits}{last:02x}");
    let text = std::fs::read_to_string(folder.join(&session)).unwrap();
    std::fs::write(folder.join(&other), text.replace(&session, &other)).unwrap();

    let several = format!("b/{digits}");
    let (code, _, told) = asked(&scene, &["transfer", &several, "--wait", "0s"]);
    assert_eq!(code, 1, "{told}");
    let begins = format!("error: {several} names several candidates of the election default: b/");
    assert!(told.starts_with(&begins), "{told}");
    assert!(told.contains(&session) && told.contains(&other), "{told}");

    let (code, _, told) = asked(&scene, &["transfer", "c/1", "--wait", "0s"]);
    let none = "error: no candidate of the election default is c/1\n";
    assert!(code == 1 && told.starts_with(none), "{told}");
    let none = if digits.starts_with('0') {
        "b/1"
    } else {
        "b/0"
    };
    let (code, _, told) = asked(&scene, &["transfer", none, "--wait", "0s"]);
    let begins = format!("error: no candidate of the election default is {none}; there is b/");
    assert!(code == 1 && told.starts_with(&begins), "{told}");

    let one = format!("b/{}", &other[..other.len() - 1]);
    let (code, told, warned) = asked(&scene, &["transfer", &one, "--wait", "0s"]);
    assert_eq!(
        (code, told.as_str()),
        (0, "a was asked to hand over to b\n"),
        "{warned}"
    );
    let status = document(&scene, &["status", "--json"]);
    assert_eq!(
        status["elections"][0]["request"]["to_incarnation"],
        json!(other)
    );
}

/// A leader that has died is not shown as leading.
#[test]
fn a_dead_leader_is_shown_as_expired() {
    let scene = Scene::new();
    run(&mut scene.tenure(&["elect", "--node", "a", "--ttl", "1s"]));
    until("it has expired", || {
        let status = document(&scene, &["status", "--json"]);
        let election = &status["elections"][0];
        assert!(["held", "expired"].contains(&election["state"].as_str().unwrap()));
        assert_eq!(
            election["leader"]["live"],
            json!(election["state"] == "held")
        );
        election["state"] == "expired"
            && election["leader"]["seen_ago_ms"].as_u64().unwrap() >= 1000
    });
}

#[test]
fn what_another_program_has_entered_is_not_released() {
    let scene = Scene::new();
    let _nodes = two_nodes(&scene);
    for term in [&[][..], &["--term", "1"]] {
        let arguments = [&["elect", "--node", "a", "--release"], term].concat();
        check(
            &scene,
            &arguments,
            1,
            "",
            "error: a was not entered with `tenure elect`, and is still a candidate of default; nothing was changed\n",
        );
    }
}

#[test]
fn bad_names_and_times_are_told() {
    let scene = Scene::new();
    for (arguments, told) in [
        (&["elect", "--ttl", "0s"][..], "ttl 0ns is not between"),
        (
            &["elect", "--node", "a/b"],
            "the node id \"a/b\" contains '/'",
        ),
        (
            &["status", "--namespace", "a\nb"],
            "the namespace \"a\\nb\" contains '\\n'",
        ),
        (
            &["status", "--election", "a b"],
            "the election name \"a b\" contains ' '",
        ),
        (
            &["watch", "--election", ""],
            "the election name \"\" is empty",
        ),
        (&["transfer", ".x"], "the node id \".x\" starts with a dot"),
        (&["resign", "--wait", "soon"], "use a number and a unit"),
        (
            &["history", "--namespace", "é"],
            "the namespace \"é\" contains 'é'",
        ),
        (&["status", "--store", ""], "no store was named"),
    ] {
        let (code, stdout, stderr) = run(&mut scene.tenure(arguments));
        assert_eq!((code, stdout.as_str()), (2, ""), "{arguments:?}: {stderr}");
        assert!(stderr.contains(told), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_damaged_lease_is_named() {
    let scene = Scene::new();
    let mut once = scene.run("a", "exit 0", &["--once"]);
    assert_eq!(once.ended(), 0);
    std::fs::write(scene.path("store/default/elections/default"), "{").unwrap();
    for verb in ["status", "history", "resign"] {
        let (code, stdout, stderr) = run(&mut scene.tenure(&[verb]));
        assert_eq!((code, stdout.as_str()), (2, ""), "{verb}: {stderr}");
        assert!(stderr.starts_with("error: "), "{verb}: {stderr}");
    }
}
