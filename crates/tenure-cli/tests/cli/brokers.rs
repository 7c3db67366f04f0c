//! Options of `tenure serve` that need more than one broker, or a slow request; and brokers on an Azure bucket.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::run::until;
use crate::serve::Serving;
use crate::support::{run, tenure};

fn start(folder: &Path, name: &str, more: &[&str]) -> Serving {
    let mut arguments = vec!["--node", name];
    if !more.contains(&"--store") {
        arguments.extend(["--store", "file:store"]);
    }
    arguments.extend(more);
    let broker = Serving::start(folder, &arguments);
    until("it is ready", || broker.ask("GET", "/readyz", "").0 == 200);
    broker
}

/// A submit whose last byte is missing.
fn begun(broker: &Serving) -> TcpStream {
    let mut stream = TcpStream::connect(&broker.address).unwrap();
    let job = r#"{"id":"slow","type":"t"}"#;
    let address = &broker.address;
    let head =
        format!("POST /v1/jobs HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json");
    let (start, _) = job.split_at(job.len() - 1);
    write!(
        stream,
        "{head}\r\nContent-Length: {}\r\n\r\n{start}",
        job.len()
    )
    .unwrap();
    until("its request is there", || {
        let (_, page) = broker.ask("GET", "/metrics", "");
        // The other is the one that asks.
        page.contains("\ntenure_http_requests_in_flight 2\n")
    });
    stream
}

/// Asks it to stop, and waits until it accepts no more connections.
fn stopping(broker: &Serving) {
    let pid = Pid::from_raw(i32::try_from(broker.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    until("it takes no more connections", || {
        TcpStream::connect(&broker.address).is_err()
    });
}

#[test]
fn requests_have_the_stop_timeout_to_end() {
    let folder = tempfile::tempdir().unwrap();
    let patient = start(folder.path(), "a", &["--stop-timeout", "5m"]);
    let mut slow = begun(&patient);
    stopping(&patient);
    // Longer than the default, ten seconds.
    std::thread::sleep(Duration::from_secs(11));
    slow.write_all(b"}").unwrap();
    let mut answer = String::new();
    slow.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    let (code, said) = patient.ended();
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("did not finish in time"), "{said}");

    let impatient = start(folder.path(), "a", &["--stop-timeout", "1s"]);
    // What was answered is there.
    assert_eq!(impatient.ask("GET", "/v1/jobs/slow", "").0, 200);
    let _slow = begun(&impatient);
    let asked = Instant::now();
    stopping(&impatient);
    // The request is never completed.
    let (code, said) = impatient.ended();
    assert_eq!(code, Some(0), "{said}");
    assert!(asked.elapsed() < Duration::from_secs(10));
    assert!(
        said.contains("some requests did not finish in time"),
        "{said}"
    );
}

/// Each point of priority makes the others wait 10 ms longer.
#[test]
fn the_broker_with_the_higher_priority_leads_next() {
    // In either order, so that neither start nor name decides.
    for (first, second) in [("0", "100"), ("100", "0")] {
        let folder = tempfile::tempdir().unwrap();
        let leader = start(folder.path(), "leader", &["--priority", "50"]);
        let brokers = [
            start(folder.path(), "b", &["--priority", first]),
            start(folder.path(), "c", &["--priority", second]),
        ];
        let expected = if first == "100" { "b" } else { "c" };
        let status = || {
            let mut status = tenure(&["status", "--election", "tenure.queue", "--json"]);
            let (_, status, _) = run(status
                .current_dir(folder.path())
                .env("TENURE_STORE", "file:store"));
            serde_json::from_str::<serde_json::Value>(&status).unwrap()["elections"][0].clone()
        };
        let before = status();
        assert_eq!(before["leader"]["node"], "leader", "{before}");
        let priorities = before["candidates"].as_array().unwrap().iter();
        let priorities: Vec<_> = priorities
            .map(|candidate| candidate["priority"].as_u64().unwrap())
            .collect();
        assert_eq!(priorities, [100, 50, 0], "{before}");
        assert_eq!(leader.end(Signal::TERM).0, Some(0));
        until("another leads", || status()["leader"]["live"] == true);
        assert_eq!(status()["leader"]["node"], expected, "{}", status());
        drop(brokers);
    }
}

#[cfg(feature = "object")]
#[test]
fn brokers_on_azure_lose_nothing_when_their_leader_dies() {
    let Some(store) = crate::support::server("TENURE_TEST_AZURE") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let at = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let namespace = format!("azure-{}", at.unwrap().as_nanos());
    let broker = |name| {
        let more = ["--store", &store, "--namespace", &namespace, "--ttl", "5s"];
        start(folder.path(), name, &more)
    };
    let (leader, standby) = (broker("a"), broker("b"));
    for number in 0..20 {
        // Half of them go through the standby, which forwards them.
        let broker = if number % 2 == 0 { &leader } else { &standby };
        let job = format!(r#"{{"id":"job-{number}","type":"t"}}"#);
        let answer = broker.ask("POST", "/v1/jobs", &job);
        assert_eq!(answer.0, 201, "{answer:?}");
    }
    let claim = r#"{"worker":"w","types":["t"],"max":1}"#;
    let (_, claimed) = standby.ask("POST", "/v1/jobs/claim", claim);
    let claimed: serde_json::Value = serde_json::from_str(&claimed).unwrap();
    let claimed = &claimed["jobs"][0];
    leader.end(Signal::KILL);
    until("the other serves", || {
        let ready = standby.try_ask("GET", "/readyz", "");
        ready.is_some_and(|(status, body)| status == 200 && body.contains("leader"))
    });
    // The claim is still its worker's.
    let end = serde_json::json!({ "token": claimed["token"] });
    let path = format!("/v1/jobs/{}/complete", claimed["id"].as_str().unwrap());
    let answer = standby.ask("POST", &path, &end.to_string());
    assert_eq!(answer.0, 200, "{answer:?}");
    let states: Vec<u16> = (0..20)
        .map(|number| standby.ask("GET", &format!("/v1/jobs/job-{number}"), "").0)
        .collect();
    assert_eq!(states, [200; 20]);
    // The next broker reads all of it.
    let third = broker("c");
    assert_eq!(standby.end(Signal::TERM).0, Some(0));
    until("the third serves", || {
        third
            .try_ask("GET", "/v1/jobs/job-19", "")
            .is_some_and(|(status, _)| status == 200)
    });
    let verified =
        run(tenure(&["log", "verify", "--namespace", &namespace]).env("TENURE_STORE", &store));
    assert_eq!(verified.0, 0, "{verified:?}");
}

/// Half as many heartbeats, and a crash is noticed as soon.
#[test]
fn an_economical_broker_that_is_killed_is_replaced_within_its_ttl() {
    const TTL: Duration = Duration::from_secs(10);
    let folder = tempfile::tempdir().unwrap();
    let options = ["--economy", "--ttl", "10s"];
    let leader = start(folder.path(), "a", &options);
    let standby = start(folder.path(), "b", &options);
    assert!(standby.ask("GET", "/readyz", "").1.contains("standby"));
    let pid = Pid::from_raw(i32::try_from(leader.id()).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    let killed = Instant::now();
    until("the standby leads", || {
        standby.ask("GET", "/readyz", "").1.contains("leader")
    });
    // A busy machine may be slow to check; twice the ttl would mean that it checks too rarely.
    let took = killed.elapsed();
    assert!(took < TTL * 2, "{took:?}");
}

/// Times from a file are checked like those of flags, and all mistakes are reported together.
#[test]
fn a_file_says_all_that_is_wrong_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tenure.toml");
    let told = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let (code, stdout, stderr) =
            run(tenure(&["serve", "--store", "memory:", "--config"]).arg(&file));
        assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
        stderr
    };
    let said = told(
        "ttl = 'soon'\nport = 8080\nlabels = { a = 'b' }\npriority = 'high'\nlisten = ':80'\n",
    );
    for (line, problem) in [
        (1, "use a number and a unit"),
        (2, "unknown field `port`"),
        (4, "invalid type"),
        (5, "0.0.0.0:80 for every network"),
    ] {
        let place = format!("line {line} of {}: ", file.display());
        let start = said
            .find(&place)
            .unwrap_or_else(|| panic!("{place}: {said}"));
        assert!(
            said[start + place.len()..].starts_with(problem) || said.contains(problem),
            "{said}"
        );
    }
    assert!(!said.contains("line 3"), "{said}");
    let said = told(
        "ttl = '10s'\nheartbeat = '8s'\nrequest_timeout = '5s'\nacknowledge_timeout = '1s'\ndrain_timeout = '5s'\n\
         connections_max = 0\n",
    );
    for problem in [
        "heartbeat 8s + request_timeout 5s + grace 2s + margin 1s = 16s > ttl 10s",
        "drain_timeout 5s * 9/10",
        "acknowledge_timeout 1s < 2 * heartbeat 8s",
        "connections",
    ] {
        assert!(said.contains(problem), "{problem}: {said}");
    }
    let said = told(&".".repeat(70_000));
    assert!(said.contains("is larger than 64 KiB"), "{said}");
}

#[test]
fn watch_tells_of_nodes_and_daemons_by_way_of_a_broker() {
    let folder = tempfile::tempdir().unwrap();
    let broker = start(folder.path(), "a", &[]);
    let server = format!("http://{}", broker.address);
    let mut watching = tenure(&["watch", "--server", &server, "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    // In any order: a broker learns of nodes and of shards in different ways.
    let mut told: Vec<serde_json::Value> = Vec::new();
    let mut next = |event: &str, node: &str| -> serde_json::Value {
        loop {
            let is_it = |told: &serde_json::Value| told["event"] == event && told["node"] == node;
            if let Some(found) = told.iter().find(|told| is_it(told)) {
                return found.clone();
            }
            let line = lines
                .next()
                .unwrap_or_else(|| panic!("no {event} in {told:?}"));
            told.push(serde_json::from_str(&line.unwrap()).unwrap());
        }
    };
    let leader = next("leader_elected", "a");
    assert_eq!(
        (&leader["node"], &leader["initial"]),
        (&"a".into(), &true.into())
    );
    let mut daemon = tenure(&[
        "run",
        "--store",
        "file:store",
        "--node",
        "b",
        "--daemon",
        "indexer",
    ]);
    let mut daemon = daemon
        .args(["--", "sleep", "1000"])
        .current_dir(folder.path())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    next("node_joined", "b");
    let started = next("daemon_started", "b");
    assert_eq!(
        (&started["daemon"], &started["shard"]),
        (&"indexer".into(), &0.into())
    );
    kill_process(Pid::from_child(&daemon), Signal::TERM).unwrap();
    daemon.wait().unwrap();
    // That its shard stopped is left out if the broker hears of both at once.
    next("node_left", "b");
    kill_process(Pid::from_child(&watching), Signal::TERM).unwrap();
    assert!(watching.wait().unwrap().success());
    let (_, page) = broker.ask("GET", "/metrics", "");
    assert!(
        page.contains("\ntenure_node{node=\"a\",namespace=\"default\",incarnation=\""),
        "{page}"
    );
    for line in [
        "tenure_cluster_node_events_total{event=\"left\"} 1",
        "tenure_cluster_shard_events_total{event=\"failed\"} 0",
        "tenure_cluster_shards 0.0",
    ] {
        assert!(page.contains(&format!("\n{line}\n")), "{line}: {page}");
    }
}
