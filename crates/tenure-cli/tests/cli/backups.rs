//! Backup and restore of each engine, step by step as in docs/operations.md.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::run::until;
use crate::serve::Serving;
use crate::support::{run, server, tenure};

/// A store, and the page's steps for it.
struct Place {
    url: String,
    /// Whether the page wants the brokers stopped for the copy.
    stops: bool,
    backup: Box<dyn Fn()>,
    /// Replaces everything that is there by the copy.
    restore: Box<dyn Fn()>,
}

fn done(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}

/// A name that no other test uses.
fn fresh() -> String {
    let at = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    format!("backup_{}", at.unwrap().as_nanos())
}

fn start(folder: &Path, store: &str, name: &str) -> Serving {
    // Short, since a node that starts on the copy finds sessions in it and waits for them.
    let arguments = ["--store", store, "--node", name, "--ttl", "3s"];
    let broker = Serving::start(folder, &arguments);
    until("it is ready", || broker.ask("GET", "/readyz", "").0 == 200);
    broker
}

fn submit(broker: &Serving, id: &str) {
    let job = format!(r#"{{"id":"{id}","type":"{id}","payload":"of {id}"}}"#);
    let answer = broker.ask("POST", "/v1/jobs", &job);
    assert_eq!(answer.0, 201, "{answer:?}");
}

fn complete(broker: &Serving, id: &str) {
    let claim = format!(r#"{{"worker":"w","types":["{id}"]}}"#);
    let (status, claimed) = broker.ask("POST", "/v1/jobs/claim", &claim);
    assert_eq!(status, 200, "{claimed}");
    let claimed: serde_json::Value = serde_json::from_str(&claimed).unwrap();
    let end = serde_json::json!({ "token": claimed["jobs"][0]["token"], "result": "done" });
    let path = format!("/v1/jobs/{id}/complete");
    let answer = broker.ask("POST", &path, &end.to_string());
    assert_eq!(answer.0, 200, "{answer:?}");
}

fn state(broker: &Serving, id: &str) -> String {
    let (status, job) = broker.ask("GET", &format!("/v1/jobs/{id}"), "");
    if status == 404 {
        return "none".to_owned();
    }
    let job: serde_json::Value = serde_json::from_str(&job).unwrap();
    assert_eq!(job["type"], id);
    job["state"].as_str().unwrap().to_owned()
}

fn term(store: &str) -> u64 {
    let (_, status, _) =
        run(tenure(&["status", "--election", "tenure.queue", "--json"]).env("TENURE_STORE", store));
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    status["elections"][0]["term"].as_u64().unwrap()
}

fn is_restored(folder: &Path, place: &Place) {
    let mut broker = start(folder, &place.url, "one");
    // Enough for the log to have more than one commit, and a few megabytes.
    for number in 0..40 {
        let payload = "x".repeat(100_000);
        let job = format!(r#"{{"id":"large-{number}","type":"large","payload":"{payload}"}}"#);
        assert_eq!(broker.ask("POST", "/v1/jobs", &job).0, 201);
    }
    for id in ["waits", "ended", "ends-later"] {
        submit(&broker, id);
    }
    complete(&broker, "ended");
    if place.stops {
        assert_eq!(broker.end(Signal::TERM).0, Some(0));
        (place.backup)();
        broker = start(folder, &place.url, "one");
    } else {
        (place.backup)();
    }
    let term_copied = term(&place.url);
    submit(&broker, "comes-later");
    complete(&broker, "ends-later");
    let other = start(folder, &place.url, "two");

    // Stop all brokers, replace everything by the copy, start one broker, check that all is well, then start the
    // others.
    for broker in [other, broker] {
        assert_eq!(broker.end(Signal::TERM).0, Some(0));
    }
    (place.restore)();
    let broker = start(folder, &place.url, "one");
    let verified = run(tenure(&["log", "verify"]).env("TENURE_STORE", &place.url));
    assert_eq!(verified.0, 0, "{verified:?}");
    let found = ["waits", "ended", "ends-later", "comes-later"].map(|id| state(&broker, id));
    assert_eq!(found, ["ready", "completed", "ready", "none"]);
    let (_, large) = broker.ask("GET", "/v1/jobs/large-39", "");
    assert!(large.len() > 100_000, "{large}");
    // Terms continue from the copy's.
    let now = term(&place.url);
    assert!(now + 1 >= term_copied, "{now} after {term_copied}");
    complete(&broker, "ends-later");
    submit(&broker, "comes-later");
    let other = start(folder, &place.url, "two");
    assert_eq!(state(&other, "comes-later"), "ready");
    assert_eq!(broker.end(Signal::TERM).0, Some(0));
    until("the other serves it", || state(&other, "waits") == "ready");
    assert_eq!(other.end(Signal::TERM).0, Some(0));
}

/// A new folder, which is removed when the first of the two is dropped.
fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    (folder, path)
}

#[test]
fn a_copy_of_the_folder_is_restored() {
    // With stopped brokers; and while one runs, with `reached` copied first.
    for stops in [true, false] {
        let (_folder, path) = folder();
        let (store, copy) = (path.join("store"), path.join("copy"));
        let url = format!("file:{}", store.display());
        let copies = {
            let (store, copy) = (store.clone(), copy.clone());
            move || {
                let reached = "default/queue/reached";
                std::fs::create_dir_all(copy.join("default/queue")).unwrap();
                let was_there = store.join(reached).exists();
                if was_there {
                    std::fs::copy(store.join(reached), copy.join(reached)).unwrap();
                }
                // Files disappear during the copy; only temporary ones, which are not needed.
                let mut command = Command::new("cp");
                command.args(["-a", "--update=none", "-T"]);
                if !is_supported("--update=none") {
                    command = Command::new("cp");
                    command.args(["-a", "-n", "-T"]);
                }
                let output = command.args([&store, &copy]).output().unwrap();
                assert!(output.status.success() || !stops, "{output:?}");
            }
        };
        is_restored(
            &path,
            &Place {
                url,
                stops,
                backup: Box::new(copies),
                restore: Box::new(move || {
                    std::fs::remove_dir_all(&store).unwrap();
                    std::fs::rename(&copy, &store).unwrap();
                }),
            },
        );
    }
}

/// Newer versions of `cp` warn of `-n`.
fn is_supported(option: &str) -> bool {
    let asked = Command::new("cp").args([option, "--version"]).output();
    asked.is_ok_and(|output| output.status.success())
}

#[cfg(feature = "sqlite")]
#[test]
fn a_backup_of_sqlite_is_restored() {
    if Command::new("sqlite3").arg("--version").output().is_err() {
        tenure_testkit::skip::for_want_of("the program sqlite3");
        return;
    }
    let (_folder, path) = folder();
    let (store, copy) = (path.join("store.db"), path.join("copy.db"));
    let url = format!("sqlite:{}", store.display());
    let copied = (store.clone(), copy.clone());
    is_restored(
        &path,
        &Place {
            url,
            stops: false,
            backup: Box::new(move || {
                let (store, copy) = &copied;
                let statement = format!(".backup {}", copy.display());
                done(Command::new("sqlite3").arg(store).arg(statement));
            }),
            restore: Box::new(move || {
                for beside in ["-wal", "-shm"] {
                    let beside = PathBuf::from(format!("{}{beside}", store.display()));
                    if beside.exists() {
                        std::fs::remove_file(beside).unwrap();
                    }
                }
                std::fs::rename(&copy, &store).unwrap();
            }),
        },
    );
}

#[cfg(feature = "postgres")]
#[test]
fn a_dump_of_postgres_is_restored() {
    let Some(server) = server("TENURE_TEST_POSTGRES") else {
        return;
    };
    let (_folder, path) = folder();
    let name = fresh();
    let (base, _) = server.rsplit_once('/').unwrap();
    let (admin, url) = (format!("{base}/postgres"), format!("{base}/{name}"));
    let psql = |database: &str| {
        let mut command = Command::new("psql");
        command.args([database, "-X", "-q", "-v", "ON_ERROR_STOP=1"]);
        command
    };
    done(psql(&admin).args(["-c", &format!("CREATE DATABASE {name}")]));
    let dump = path.join("dump.sql");
    let (dumped, from) = (dump.clone(), url.clone());
    let (into, owner, named) = (url.clone(), admin.clone(), name.clone());
    is_restored(
        &path,
        &Place {
            url,
            stops: false,
            backup: Box::new(move || {
                done(Command::new("pg_dump").arg(&from).arg("-f").arg(&dumped));
            }),
            restore: Box::new(move || {
                done(psql(&owner).args(["-c", &format!("DROP DATABASE {named}")]));
                done(psql(&owner).args(["-c", &format!("CREATE DATABASE {named}")]));
                done(psql(&into).arg("-f").arg(&dump));
            }),
        },
    );
    done(psql(&admin).args(["-c", &format!("DROP DATABASE {name} WITH (FORCE)")]));
}

#[cfg(feature = "mysql")]
#[test]
fn a_dump_of_mariadb_is_restored() {
    let Some(server) = server("TENURE_TEST_MYSQL") else {
        return;
    };
    let (_folder, path) = folder();
    let name = fresh();
    let (base, _) = server.rsplit_once('/').unwrap();
    let (user, place) = base.trim_start_matches("mysql://").split_once('@').unwrap();
    let (host, port) = place.split_once(':').unwrap();
    let options = [
        "--no-defaults".to_owned(),
        format!("--user={user}"),
        format!("--host={host}"),
        format!("--port={port}"),
    ];
    let client = move |program: &str| {
        let mut command = Command::new(program);
        command.args(&options);
        command
    };
    done(client("mariadb").args(["-e", &format!("CREATE DATABASE {name}")]));
    let dump = path.join("dump.sql");
    let (dumped, named, clients) = (dump.clone(), name.clone(), client.clone());
    let (into, restores) = (name.clone(), client.clone());
    is_restored(
        &path,
        &Place {
            url: format!("{base}/{name}"),
            stops: false,
            backup: Box::new(move || {
                let mut command = clients("mysqldump");
                let file = std::fs::File::create(&dumped).unwrap();
                let dumps = command.args(["--single-transaction", &named]).stdout(file);
                assert!(dumps.stderr(Stdio::null()).status().unwrap().success());
            }),
            restore: Box::new(move || {
                let anew = format!("DROP DATABASE {into}; CREATE DATABASE {into}");
                done(restores("mariadb").args(["-e", &anew]));
                let file = std::fs::File::open(&dump).unwrap();
                done(restores("mariadb").arg(&into).stdin(file));
            }),
        },
    );
    done(client("mariadb").args(["-e", &format!("DROP DATABASE {name}")]));
}

#[cfg(feature = "object")]
#[test]
fn a_copy_of_a_prefix_is_restored() {
    let Some((server, rclone)) =
        server("TENURE_TEST_S3_CEPH").zip(server("TENURE_TEST_RCLONE_BIN"))
    else {
        return;
    };
    let (_folder, path) = folder();
    let name = fresh();
    // s3://BUCKET?endpoint=URL&…
    let (bucket, options) = server.trim_start_matches("s3://").split_once('?').unwrap();
    let endpoint = options
        .split('&')
        .find_map(|it| it.strip_prefix("endpoint="));
    let endpoint = endpoint.unwrap().to_owned();
    let prefix = format!(":s3:{bucket}/{name}");
    let sync = move |from: &str, to: &str| {
        let mut command = Command::new(&rclone);
        command.args(["sync", from, to, "--s3-provider", "Ceph", "--s3-env-auth"]);
        command.args(["--s3-endpoint", &endpoint, "--config", "/dev/null"]);
        done(&mut command);
    };
    let copy = path.join("copy").display().to_string();
    let (from, to, copies) = (prefix.clone(), copy.clone(), sync.clone());
    is_restored(
        &path,
        &Place {
            url: format!("s3://{bucket}/{name}?{options}"),
            stops: true,
            backup: Box::new(move || copies(&from, &to)),
            // Objects that are not in the copy are deleted.
            restore: Box::new(move || sync(&copy, &prefix)),
        },
    );
}
