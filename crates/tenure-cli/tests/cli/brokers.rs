//! Options of `tenure serve` that need more than one broker, or a request that takes its time; and brokers on a bucket of Azure.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
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

/// A submit of which the last byte is missing.
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

/// Asks it to stop, and waits until it takes no more connections.
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
    // Longer than the time that they have without the option, ten seconds.
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
    // Nobody ends the request.
    let (code, said) = impatient.ended();
    assert_eq!(code, Some(0), "{said}");
    assert!(asked.elapsed() < Duration::from_secs(10));
    assert!(
        said.contains("some requests did not finish in time"),
        "{said}"
    );
}

/// Each point of priority is 10 ms that others wait.
#[test]
fn the_broker_with_the_higher_priority_leads_next() {
    // Whichever of the two came first, and whatever its name.
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
        // Half of them by the standby, which forwards them.
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
    // Whoever comes next reads it all.
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
