//! Real processes and trouble with their storage: a leader that dies on each engine, a table that is locked, a store
//! that is replaced.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::run::{Running, until};
use crate::serve::Serving;
use crate::support::tenure;

/// The available servers, by the name of the engine.
fn servers() -> Vec<(&'static str, String)> {
    let known = [
        ("postgres", "TENURE_TEST_POSTGRES"),
        ("mariadb", "TENURE_TEST_MYSQL"),
        ("ceph", "TENURE_TEST_S3_CEPH"),
        ("azurite", "TENURE_TEST_AZURE"),
    ];
    let found = known.into_iter();
    found
        .filter_map(|(name, variable)| Some((name, crate::support::server(variable)?)))
        .collect()
}

/// A name that no other test uses.
fn fresh(prefix: &str) -> String {
    let at = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    format!("{prefix}_{}_{}", std::process::id(), at.unwrap().as_nanos())
}

// ---- a leader that dies ---------------------------------------------------------------------------------------------

const FAILOVER_TTL: Duration = Duration::from_secs(10);

/// Runs two nodes, and kills the leader this many times. Returns how long it took each time until the other's program
/// ran.
fn failovers(store: &str, folder: &Path, count: usize) -> Vec<Duration> {
    let namespace = fresh("failover");
    let mark = |node: usize| folder.join(format!("mark-{node}"));
    let start = |node: usize| {
        let mut command = tenure(&["run", "--ttl", "10s", "--namespace", &namespace]);
        command
            .args(["--node", &node.to_string(), "--", "sh", "-c"])
            .arg("echo $TENURE_TERM >\"$MARK\"; exec sleep 1000")
            .env("MARK", mark(node))
            .env("TENURE_STORE", store);
        Running::start(&mut command)
    };
    let mut nodes = vec![start(0)];
    until("the first leader", || mark(0).exists());
    nodes.push(start(1));
    let mut times = Vec::new();
    for round in 0..count {
        let (leader, standby) = (round % 2, (round + 1) % 2);
        // The standby has watched for a ttl.
        std::thread::sleep(FAILOVER_TTL + Duration::from_secs(1));
        assert!(!mark(standby).exists());
        nodes[leader].signal(Signal::KILL);
        let killed = Instant::now();
        until("the next leader", || mark(standby).exists());
        times.push(killed.elapsed());
        std::fs::remove_file(mark(leader)).unwrap();
        nodes[leader] = start(leader);
    }
    times
}

/// On each available engine, a standby that has watched for a ttl takes over within a ttl and a tenth, including its
/// program's start. `TENURE_FAILOVERS` sets how often.
#[cfg(feature = "sqlite")]
#[test]
fn a_leader_that_dies_is_replaced_within_a_ttl_and_a_tenth() {
    let count = std::env::var("TENURE_FAILOVERS").map_or(1, |count| count.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let mut stores = servers();
    for scheme in ["file", "sqlite"] {
        let path = folder.path().join(format!("store-{scheme}"));
        stores.push((scheme, format!("{scheme}:{}", path.display())));
    }
    let threads: Vec<_> = stores
        .into_iter()
        .map(|(engine, store)| {
            let own = folder.path().join(engine);
            std::fs::create_dir(&own).unwrap();
            std::thread::spawn(move || (engine, failovers(&store, &own, count)))
        })
        .collect();
    for thread in threads {
        let (engine, mut times) = thread.join().unwrap();
        times.sort();
        let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
        eprintln!(
            "{engine}: {count} fail-overs at a ttl of {FAILOVER_TTL:?}: {median:?} at the median, {worst:?} at most"
        );
        assert!(worst < FAILOVER_TTL * 11 / 10, "{engine}: {times:?}");
    }
}

// ---- a table that is locked -----------------------------------------------------------------------------------------

/// The lock lasts much longer than this: sessions end, and stop trying to record that.
const LOCK_TTL: Duration = Duration::from_secs(6);

/// A new database, and a client for it.
struct Database {
    url: String,
    /// The most connections of a process.
    most: usize,
    /// The client, for a statement.
    client: Box<dyn Fn(&str) -> Command>,
    /// The statement that locks the table for a number of seconds.
    lock: fn(u64) -> String,
    /// The query for the number of connections of each process.
    count: String,
}

impl Database {
    fn ask(&self, statement: &str) -> String {
        let output = (self.client)(statement).output().unwrap();
        assert!(output.status.success(), "{statement}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Two brokers and ten nodes while the table is locked: none makes more connections than documented, and when the lock
/// is gone everything works again within a ttl.
fn locked(database: &Database) {
    let seconds = std::env::var("TENURE_LOCK_SECONDS").map_or(20, |text| text.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let mark = |node: usize| folder.path().join(format!("mark-{node}"));
    let named = |name: &str| database.url.replace("NAME", name);
    let broker = |name: &str| {
        let store = named(name);
        let arguments = ["--store", &store, "--node", name, "--ttl", "6s"];
        Serving::start(folder.path(), &arguments)
    };
    let brokers = [broker("b0"), broker("b1")];
    let nodes: Vec<Running> = (0..10)
        .map(|node| {
            let (name, election) = (format!("n{node}"), format!("e{node}"));
            let mut command = tenure(&["run", "--ttl", "6s", "--node", &name]);
            command
                .args(["--election", &election, "--", "sh", "-c"])
                .arg("while echo >\"$MARK\"; do sleep 0.1; done")
                .env("MARK", mark(node))
                .env("TENURE_STORE", named(&name));
            Running::start(&mut command)
        })
        .collect();
    let submit = |number: &mut usize| {
        *number += 1;
        let job = format!(r#"{{"id":"job-{number}","type":"t"}}"#);
        brokers.iter().all(|broker| {
            let (status, _) = broker.ask("POST", "/v1/jobs", &job);
            status == 201 || status == 200
        })
    };
    let is_well = |number: &mut usize| {
        (0..nodes.len()).all(|node| mark(node).exists())
            && brokers
                .iter()
                .all(|broker| broker.ask("GET", "/readyz", "").0 == 200)
            && submit(number)
    };
    let mut number = 0;
    until("everything to work", || is_well(&mut number));

    let lock = (database.client)(&(database.lock)(seconds))
        .stdout(Stdio::null())
        .spawn();
    let mut lock = lock.unwrap();
    let mut most = (0, String::new());
    let mut sum = 0;
    while lock.try_wait().unwrap().is_none() {
        let text = database.ask(&database.count);
        let counts = text.lines().filter_map(|line| {
            let (name, count) = line.split_once(['|', '\t'])?;
            Some((count.trim().parse::<usize>().ok()?, name.to_owned()))
        });
        let counts: Vec<_> = counts.collect();
        sum = sum.max(counts.iter().map(|(count, _)| count).sum());
        most = most.max(counts.into_iter().max().unwrap_or_default());
        std::thread::sleep(Duration::from_millis(300));
    }
    let unlocked = Instant::now();
    // Running programs create them again.
    for node in 0..nodes.len() {
        std::fs::remove_file(mark(node)).unwrap();
    }
    until("everything to work again", || is_well(&mut number));
    let back = unlocked.elapsed();
    eprintln!(
        "locked for {seconds} s: at most {} connections of {}, {sum} of all; back after {back:?}",
        most.0, most.1
    );
    assert!(most.0 <= database.most, "{} of {}", most.0, most.1);
    assert!(back < LOCK_TTL, "back after {back:?}");
}

#[cfg(feature = "postgres")]
#[test]
fn a_locked_table_of_postgres_costs_no_connections_and_no_more_time_than_a_ttl() {
    let Some(server) = crate::support::server("TENURE_TEST_POSTGRES") else {
        return;
    };
    let name = fresh("locked");
    let psql = |url: String| {
        move |statement: &str| {
            let mut command = Command::new("psql");
            command.args([&url, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"]);
            command.args(["-c", statement]);
            command
        }
    };
    let create = format!("CREATE DATABASE {name}");
    assert!(psql(server.clone())(&create).status().unwrap().success());
    let (base, _) = server.rsplit_once('/').unwrap();
    let url = format!("{base}/{name}");
    locked(&Database {
        // One connection to listen, eight for the session, eight for everything else.
        most: 17,
        client: Box::new(psql(url.clone())),
        url: format!("{url}?application_name=NAME"),
        lock: |seconds| {
            format!(
                "BEGIN; LOCK TABLE tenure_objects IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep({seconds})"
            )
        },
        count: "SELECT application_name, count(*) FROM pg_stat_activity \
                WHERE datname = current_database() AND application_name ~ '^[bn][0-9]' GROUP BY 1"
            .to_owned(),
    });
    let drop = format!("DROP DATABASE {name} WITH (FORCE)");
    assert!(psql(server)(&drop).status().unwrap().success());
}

#[cfg(feature = "mysql")]
#[test]
fn a_locked_table_of_mariadb_costs_no_connections_and_no_more_time_than_a_ttl() {
    let Some(server) = crate::support::server("TENURE_TEST_MYSQL") else {
        return;
    };
    let name = fresh("locked");
    let (base, _) = server.rsplit_once('/').unwrap();
    let (user, place) = base.trim_start_matches("mysql://").split_once('@').unwrap();
    let (host, port) = place.split_once(':').unwrap();
    let options = [
        format!("--user={user}"),
        format!("--host={host}"),
        format!("--port={port}"),
    ];
    let client = move |database: String| {
        let options = options.clone();
        move |statement: &str| {
            let mut command = Command::new("mariadb");
            command.args(["--no-defaults", "--batch", "--skip-column-names"]);
            command.args(&options).args(["-e", statement, &database]);
            command
        }
    };
    let admin = client(String::from("mysql"));
    let create = format!("CREATE DATABASE {name}");
    assert!(admin(&create).status().unwrap().success());
    // A user for each process, since nothing else distinguishes their connections.
    let prefix = format!("t{}", std::process::id());
    let users: Vec<String> = (0..2).map(|node| format!("{prefix}_b{node}")).collect();
    let users = users
        .into_iter()
        .chain((0..10).map(|node| format!("{prefix}_n{node}")));
    let users: Vec<String> = users.collect();
    for user in &users {
        let create = format!(
            "DROP USER IF EXISTS '{user}'@'%'; CREATE USER '{user}'@'%'; \
             GRANT ALL ON {name}.* TO '{user}'@'%'"
        );
        assert!(admin(&create).status().unwrap().success());
    }
    locked(&Database {
        // Eight connections for the session, eight for everything else.
        most: 16,
        client: Box::new(client(name.clone())),
        url: format!("mysql://{prefix}_NAME@{place}/{name}"),
        lock: |seconds| {
            format!("LOCK TABLES tenure_objects WRITE; DO SLEEP({seconds}); UNLOCK TABLES")
        },
        count: format!(
            "SELECT user, count(*) FROM information_schema.processlist \
             WHERE user LIKE '{prefix}\\_%' GROUP BY 1"
        ),
    });
    for user in &users {
        let drop = format!("DROP USER '{user}'@'%'");
        assert!(admin(&drop).status().unwrap().success());
    }
    let drop = format!("DROP DATABASE {name}");
    assert!(admin(&drop).status().unwrap().success());
}

// ---- a store that is replaced ---------------------------------------------------------------------------------------

const REPLACED_TTL: Duration = Duration::from_secs(9);

fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(status.unwrap().success());
}

/// Brokers whose store is deleted, or replaced by a copy: from then on they acknowledge nothing, and within a heartbeat
/// none reports ready.
#[cfg(feature = "sqlite")]
#[test]
fn brokers_whose_store_is_replaced_acknowledge_nothing_and_are_not_ready() {
    for (scheme, is_deleted) in [
        ("file", false),
        ("file", true),
        ("sqlite", false),
        ("sqlite", true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let store = format!("{scheme}:{}", path.display());
        let start = |name| {
            let arguments = ["--store", &store, "--node", name, "--ttl", "9s"];
            Serving::start(folder.path(), &arguments)
        };
        let brokers = [start("one"), start("two")];
        let is_ready = |broker: &Serving| {
            let answer = broker.try_ask("GET", "/readyz", "");
            answer.is_some_and(|(status, _)| status == 200)
        };
        until("both are ready", || brokers.iter().all(is_ready));
        let job = |number: usize| format!(r#"{{"id":"job-{number}","type":"t"}}"#);
        assert_eq!(brokers[0].ask("POST", "/v1/jobs", &job(0)).0, 201);

        let others: &[&str] = match scheme {
            "sqlite" => &["", "-wal", "-shm"],
            _ => &[""],
        };
        let part = |suffix: &str| PathBuf::from(format!("{}{suffix}", path.display()));
        let aside = |suffix: &str| folder.path().join(format!("aside{suffix}"));
        let new = |suffix: &str| folder.path().join(format!("new{suffix}"));
        for suffix in others.iter().filter(|suffix| part(suffix).exists()) {
            copy(&part(suffix), &new(suffix));
        }
        for suffix in others.iter().filter(|suffix| part(suffix).exists()) {
            std::fs::rename(part(suffix), aside(suffix)).unwrap();
            if !is_deleted {
                std::fs::rename(new(suffix), part(suffix)).unwrap();
            }
        }
        let replaced = Instant::now();
        let heartbeat = REPLACED_TTL / 3;
        let mut ready_until = Duration::ZERO;
        let mut number = 1;
        while replaced.elapsed() < heartbeat * 3 {
            for broker in &brokers {
                let asked = replaced.elapsed();
                if is_ready(broker) {
                    ready_until = asked;
                }
                let answer = broker.try_ask("POST", "/v1/jobs", &job(number));
                let is_done = answer.as_ref().is_some_and(|(status, _)| *status < 300);
                assert!(!is_done, "{scheme}, deleted: {is_deleted}: {answer:?}");
                number += 1;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("{scheme}, deleted: {is_deleted}: {number} submits; ready for {ready_until:?}");
        // An answer from the store is reused for a second.
        let most = heartbeat + Duration::from_secs(1);
        assert!(ready_until <= most, "{scheme}: ready for {ready_until:?}");
        assert!(!is_deleted || !path.exists(), "{scheme}: it was made anew");
        // Restarted brokers use what is there now. A deleted store may still come back, so those are left out.
        for broker in brokers.into_iter().filter(|_| !is_deleted) {
            let (code, said) = broker.ended();
            assert_eq!(code, Some(2), "{scheme}: {said}");
            assert!(said.contains("was replaced\n"), "{said}");
        }
    }
}

/// The folder of a namespace is moved away under its brokers and created again by another process: they do not start it
/// anew, and exit as they do when the whole store is replaced.
#[test]
fn brokers_whose_namespace_is_replaced_end_and_acknowledge_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store/default");
    let store = format!("file:{}", folder.path().join("store").display());
    let start = |name| {
        let arguments = ["--store", &store, "--node", name, "--ttl", "3s"];
        Serving::start(folder.path(), &arguments)
    };
    let is_ready = |broker: &Serving| {
        let answer = broker.try_ask("GET", "/readyz", "");
        answer.is_some_and(|(status, _)| status == 200)
    };
    let brokers = [start("one"), start("two")];
    until("both are ready", || brokers.iter().all(is_ready));
    let submit = |broker: &Serving, id: &str| {
        let job = format!(r#"{{"id":"{id}","type":"t"}}"#);
        broker.try_ask("POST", "/v1/jobs", &job)
    };
    assert_eq!(submit(&brokers[0], "first").unwrap().0, 201);
    std::fs::rename(&path, folder.path().join("aside")).unwrap();
    let moved = Instant::now();
    let mut number = 0;
    // Longer than a term lasts.
    while moved.elapsed() < Duration::from_secs(5) {
        for broker in &brokers {
            let answer = submit(broker, &format!("job-{number}"));
            let is_done = answer.as_ref().is_some_and(|(status, _)| *status < 300);
            assert!(!is_done, "{answer:?}");
            number += 1;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!path.exists(), "they began it anew");
    // A process that starts now cannot know that there was something before.
    let third = start("three");
    for broker in brokers {
        let (code, said) = broker.ended();
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("was replaced\n"), "{said}");
    }
    until("the third is ready", || is_ready(&third));
    assert_eq!(third.ask("GET", "/v1/jobs/first", "").0, 404);
}
