//! Daemons on real nodes in a directory: the whole output of the cluster's verbs, without times; and that no two
//! programs of a shard ever run at the same time, whatever happens to their nodes.

use std::collections::BTreeMap;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::elections::{asked, check, document, without_times};
use crate::run::{Running, Scene, is_gone, until};
use crate::serve::Serving;
use crate::support::{run, tenure};

/// Appends `GENERATION NODE WORD SHARD` to the log when it starts, while it runs, and when it is told to stop.
pub(crate) const PROGRAM: &str = r#"
say() { echo "$TENURE_GENERATION $TENURE_NODE $1 $TENURE_SHARD" >> "$LOG"; }
trap 'say stop; exit 0' TERM
echo "$TENURE_GENERATION $TENURE_NODE start $$ $PPID $TENURE_SHARD/$TENURE_SHARDS of $TENURE_DAEMON in $TENURE_NAMESPACE" >> "$LOG"
while :; do say tick; sleep 0.05; done
"#;

/// A node that can run the daemon.
pub(crate) fn node(
    scene: &Scene,
    name: &str,
    ttl: &str,
    options: &[&str],
    program: &str,
) -> Running {
    let mut command: Command = scene.tenure(&["run", "--daemon", "worker", "--node", name]);
    command.args(["--ttl", ttl]).args(options);
    command.args(["--", "sh", "-c", program]);
    Running::start(&mut command)
}

/// How many shards of a namespace run on each node.
pub(crate) fn running(scene: &Scene) -> BTreeMap<String, usize> {
    let daemons = document(scene, &["daemons", "--json"]);
    let mut running = BTreeMap::new();
    for daemon in daemons["daemons"].as_array().unwrap() {
        for shard in daemon["shards"].as_array().unwrap() {
            if shard["state"] == "running" {
                let node = shard["node"].as_str().unwrap().to_owned();
                *running.entry(node).or_default() += 1;
            }
        }
    }
    running
}

pub(crate) fn wait_for_loads(scene: &Scene, wanted: &[(&str, usize)]) {
    let wanted = wanted
        .iter()
        .map(|(node, load)| ((*node).to_owned(), *load));
    let wanted: BTreeMap<String, usize> = wanted.collect();
    until(&format!("{wanted:?}"), || running(scene) == wanted);
}

/// Checks that no program of a shard did anything after one of a later generation had begun.
fn check_order(scene: &Scene) {
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    for line in scene.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let generation: u64 = words[0].parse().unwrap();
        let shard = match words[2] {
            "start" => words[5].split('/').next().unwrap(),
            _ => words[3],
        };
        let last = last.entry(shard.to_owned()).or_default();
        assert!(generation >= *last, "{line:?}:\n{}", scene.log());
        *last = generation;
    }
}

#[test]
fn an_empty_namespace_says_so() {
    let scene = Scene::new();
    let no_node = "note: there are no nodes in the namespace default\n";
    check(&scene, &["nodes"], 1, "", no_node);
    let no_daemon = "note: there are no daemons in the namespace default\n";
    check(&scene, &["daemons"], 1, "", no_daemon);
    check(&scene, &["plan"], 0, "", "note: nothing to do\n");
    let nodes = document(&scene, &["nodes", "--json"]);
    assert_eq!(nodes, json!({"namespace": "default", "nodes": []}));
    let daemons = document(&scene, &["daemons", "--json"]);
    assert_eq!(daemons, json!({"namespace": "default", "daemons": []}));
    let plan = document(&scene, &["plan", "--json"]);
    assert_eq!(plan, json!({"namespace": "default", "decisions": []}));
    let absent = "note: there is no node b now; when it joins it gets no shards\n";
    let unknown = "error: there is no node b\n\
                   hint: `tenure nodes` shows the nodes; with --absent it is drained before it joins\n";
    check(&scene, &["drain", "b"], 1, "", unknown);
    let drain = ["drain", "b", "--absent"];
    check(&scene, &drain, 0, "b is drained\n", absent);
    check(&scene, &["undrain", "b"], 0, "b may run shards again\n", "");
    let again = "note: b was not drained\n";
    check(
        &scene,
        &["undrain", "b"],
        0,
        "b may run shards again\n",
        again,
    );
}

#[test]
fn a_plan_says_why_no_node_may_run_a_shard() {
    let scene = Scene::new();
    let options = ["--shards", "1", "--label", "disk=fast"];
    let mut a = node(&scene, "a", "60s", &options, PROGRAM);
    wait_for_loads(&scene, &[("a", 1)]);
    check(&scene, &["drain", "a"], 0, "a is drained\n", "");
    // Once the leader has noted everything else.
    let plan = |words: &str| {
        let wanted = format!("worker/0: wait, {words}\n");
        until(&wanted, || asked(&scene, &["plan"]).1 == wanted);
    };
    plan("every node that may run it is drained");
    let revision = ["--shards", "1", "--revision", "2", "--require", "disk=none"];
    let mut b = node(&scene, "b", "60s", &revision, PROGRAM);
    plan("no live node that offers it has the labels it requires");
    for node in [&mut b, &mut a] {
        node.signal(Signal::TERM);
        assert_eq!(node.ended(), 0);
    }
}

#[test]
fn a_broker_tells_what_the_store_does() {
    let scene = Scene::new();
    let store = scene.path("store");
    let options = ["--store", store.to_str().unwrap(), "--node", "broker"];
    let serving = Serving::start(&scene.path(""), &options);
    until("a leader", || asked(&scene, &["status"]).0 == 0);
    let mut a = node(
        &scene,
        "a",
        "60s",
        &["--shards", "2", "--capacity", "10"],
        PROGRAM,
    );
    wait_for_loads(&scene, &[("a", 2)]);
    until("the leader's notes", || asked(&scene, &["plan"]).0 == 0);

    let server = format!("http://{}", serving.address);
    let told = |verb: &str, more: &[&str]| {
        // From a folder without a store, and with none named.
        let folder = tempfile::tempdir().unwrap();
        let mut command = tenure(&[&[verb, "--server", &server], more].concat());
        let (code, stdout, stderr) = run(command.current_dir(folder.path()));
        (code, without_times(&stdout), stderr)
    };
    for verb in ["nodes", "daemons", "history", "plan"] {
        let by_store = match verb {
            "history" => asked(&scene, &[verb, "--election", "tenure.queue"]),
            _ => asked(&scene, &[verb]),
        };
        // A broker's view of the cluster is up to a second old.
        until(verb, || told(verb, &[]) == by_store);
    }
    let (code, stdout, stderr) = told("status", &["--election", "tenure.queue"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert!(stdout.contains("\nleader broker, term 1\n"), "{stdout}");
    assert!(stdout.contains("\ncandidates broker leads\n"), "{stdout}");
    let (_, stdout, _) = told("status", &["--json"]);
    let status: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let names = status["elections"].as_array().unwrap().iter();
    let names: Vec<_> = names.map(|it| it["election"].as_str().unwrap()).collect();
    assert_eq!(names, ["tenure.cluster", "tenure.queue"]);
    assert_eq!(status["elections"][1]["leader"]["live"], true, "{status}");
    let (code, _, stderr) = told("status", &["--election", "nothing"]);
    assert_eq!((code, stderr.as_str()), (1, ""));
    let (code, _, stderr) = told("history", &["--election", "nothing"]);
    assert_eq!(code, 2);
    assert!(
        stderr.contains("past terms of tenure.queue only"),
        "{stderr}"
    );
    check(&scene, &["drain", "a"], 0, "a is drained\n", "");
    let waits = "every node that may run it is drained";
    let waits = format!("worker/0: wait, {waits}\nworker/1: wait, {waits}\n");
    until(&waits, || {
        told("plan", &[]) == (1, waits.clone(), String::new())
    });
    let (_, by_store, _) = asked(&scene, &["plan", "--json"]);
    let (code, by_broker, stderr) = told("plan", &["--json"]);
    assert_eq!((code, by_broker), (1, by_store), "{stderr}");
    a.signal(Signal::TERM);
    assert_eq!(a.ended(), 0);
}

#[test]
fn shards_are_shared_shown_drained_and_given_back() {
    let scene = Scene::new();
    let options = ["--shards", "4", "--capacity", "10", "--label", "disk=fast"];
    // The ttl is long: nothing here waits for one to end.
    let mut a = node(&scene, "a", "60s", &options, PROGRAM);
    wait_for_loads(&scene, &[("a", 4)]);
    let mut b = node(&scene, "b", "60s", &options, PROGRAM);
    wait_for_loads(&scene, &[("a", 2), ("b", 2)]);
    until("the leader's notes", || asked(&scene, &["plan"]).0 == 0);

    let version = concat!("tenure ", env!("CARGO_PKG_VERSION"));
    check(
        &scene,
        &["nodes"],
        0,
        &format!(
            "NODE STATE SHARDS LOAD SINCE VERSION ADDRESS LABELS\n\
             a alive, leads cluster 2 2/10 TIME {version} - disk=fast\n\
             b alive 2 2/10 TIME {version} - disk=fast\n"
        ),
        "",
    );
    let (code, stdout, _) = asked(&scene, &["daemons"]);
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!((code, lines.len()), (0, 5), "{stdout}");
    assert_eq!(lines[0], "SHARD NODE GENERATION STATE SINCE");
    for (number, line) in lines[1..].iter().enumerate() {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(words[0], format!("worker/{number}"));
        assert_eq!(words[3..], ["running", "TIME"], "{line}");
    }

    let drained = "b is drained\n";
    check(&scene, &["drain", "b", "--node", "ops"], 0, drained, "");
    assert_eq!(running(&scene), [("a".to_owned(), 4)].into());
    let nodes = document(&scene, &["nodes", "--json"]);
    let b_now = &nodes["nodes"][1];
    assert_eq!(b_now["drained"]["by"], "ops");
    assert_eq!(
        (&b_now["shards"], &b_now["live"]),
        (&json!(0), &json!(true))
    );
    // Again, in words for programs.
    let again = document(&scene, &["drain", "b", "--json"]);
    assert_eq!(
        again,
        json!({"node": "b", "outcome": "drained", "shards": 0})
    );
    check(&scene, &["undrain", "b"], 0, "b may run shards again\n", "");
    wait_for_loads(&scene, &[("a", 2), ("b", 2)]);

    // A node that is told to stop stops its programs first.
    b.signal(Signal::TERM);
    assert_eq!(b.ended(), 0);
    wait_for_loads(&scene, &[("a", 4)]);
    a.signal(Signal::TERM);
    assert_eq!(a.ended(), 0);
    assert!(scene.all_gone("a") && scene.all_gone("b"));
    check_order(&scene);
    let first = scene.lines().remove(0);
    assert!(first.ends_with("of worker in default"), "{first}");
    let stops = scene
        .lines()
        .iter()
        .filter(|line| line.contains(" stop "))
        .count();
    let starts = scene
        .lines()
        .iter()
        .filter(|line| line.contains(" start "))
        .count();
    assert_eq!(
        stops,
        starts,
        "every program was told to stop:\n{}",
        scene.log()
    );
}

#[test]
fn programs_die_with_their_tenure_and_run_elsewhere() {
    let scene = Scene::new();
    let options = ["--shards", "4"];
    let mut nodes = BTreeMap::new();
    for name in ["a", "b"] {
        nodes.insert(name, node(&scene, name, "4s", &options, PROGRAM));
    }
    until("both run two", || {
        running(&scene).values().copied().eq([2, 2])
    });
    scene.wait_for_programs("a", 2);
    nodes["a"].signal(Signal::KILL);
    scene.wait_for_end("a");
    wait_for_loads(&scene, &[("b", 4)]);
    check_order(&scene);

    // A node is stopped for longer than its ttl: its guards kill the programs, since it cannot.
    nodes.insert("c", node(&scene, "c", "4s", &options, PROGRAM));
    until("c runs two", || running(&scene).get("c") == Some(&2));
    scene.wait_for_programs("c", 2);
    nodes["c"].signal(Signal::STOP);
    scene.wait_for_end("c");
    wait_for_loads(&scene, &[("b", 4)]);
    nodes["c"].signal(Signal::CONT);
    until("c runs two again", || running(&scene).get("c") == Some(&2));
    check_order(&scene);
}

#[test]
fn a_broker_that_leads_hands_out_daemons_too() {
    let scene = Scene::new();
    let store = scene.path("store");
    let _broker = Serving::start(&scene.path(""), &["--store", store.to_str().unwrap()]);
    let leader = || {
        let nodes = document(&scene, &["nodes", "--json"]);
        let mut nodes = nodes["nodes"].as_array().unwrap().clone().into_iter();
        nodes.find(|node| {
            let led = node["elections"].as_array().unwrap();
            led.contains(&json!("tenure.cluster"))
        })
    };
    until("the broker leads", || leader().is_some());
    let _a = node(&scene, "a", "60s", &["--shards", "2"], PROGRAM);
    wait_for_loads(&scene, &[("a", 2)]);
    assert_ne!(leader().unwrap()["node"], "a");
}

#[test]
fn a_program_that_ends_by_itself_has_failed_and_is_started_again() {
    let scene = Scene::new();
    let program = r#"echo "$TENURE_GENERATION $TENURE_NODE start $$ $PPID 0/1" >> "$LOG"; exit 3"#;
    let mut a = node(&scene, "a", "60s", &[], program);
    a.wait_for_note("worker/0 has failed: the program exited with 3");
    until("another try", || scene.starts().len() >= 2);
    check_order(&scene);
    // It does not matter that one of them ends while everything is told to stop.
    a.signal(Signal::TERM);
    assert_eq!(a.ended(), 0);
}

#[test]
fn a_guard_that_is_killed_takes_its_program_along_and_nothing_else() {
    let scene = Scene::new();
    let _a = node(&scene, "a", "60s", &["--shards", "2"], PROGRAM);
    until("two programs", || scene.starts().len() == 2);
    let (program, guard): (Pid, Pid) = scene.starts()[0];
    let (other, _) = scene.starts()[1];
    kill_process(guard, Signal::KILL).unwrap();
    until("its death", || is_gone(&program));
    until("another start", || scene.starts().len() == 3);
    wait_for_loads(&scene, &[("a", 2)]);
    assert!(!is_gone(&other));
    check_order(&scene);
}
