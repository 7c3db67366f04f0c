//! A PostgreSQL server that the test starts, and kills while writers use it.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tenure_store::{Error, Expect, Key, Store, Version};
use tenure_testkit::port::Port;
use tokio::task::JoinSet;

use crate::{sql, support};

const PROGRAMS: &str = "TENURE_TEST_POSTGRES_BIN";
const WRITERS: usize = 4;
const RESTARTS: usize = 5;

#[tokio::test(flavor = "multi_thread")]
async fn what_was_done_survives_restarts_and_what_was_unknown_is_settled() {
    let Some(server) = Server::start("trust") else {
        return;
    };
    let store = tenure_store::open(&server.url("")).await.unwrap();
    let progress = Arc::new(Progress::default());
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let (store, progress) = (store.clone(), progress.clone());
        writers.spawn(async move { write_on(&*store, writer, &progress).await });
    }
    for _ in 0..RESTARTS {
        // Every writer gets some way between two restarts, so the store has recovered on its own.
        let before = progress.done.load(Ordering::SeqCst);
        while progress.done.load(Ordering::SeqCst) < before + 40 * WRITERS {
            assert!(writers.try_join_next().is_none(), "a writer gave up");
            tokio::task::yield_now().await;
        }
        server.restart().await;
    }
    progress.stop.store(true, Ordering::SeqCst);
    writers.join_all().await;
}

#[derive(Default)]
struct Progress {
    done: AtomicUsize,
    stop: AtomicBool,
}

/// Counts up in its own object, and checks every answer of the store.
async fn write_on(store: &dyn Store, writer: usize, progress: &Progress) {
    let key = Key::new(format!("it/restart/{writer}")).unwrap();
    let mut count = 0_u64;
    let mut version = put(store, &key, &count, &Expect::Absent).await;
    let mut stop = false;
    while !stop {
        // Write once more after the last restart.
        stop = progress.stop.load(Ordering::SeqCst);
        count += 1;
        version = put(store, &key, &count, &Expect::Version(version)).await;
        progress.done.fetch_add(1, Ordering::SeqCst);
        let read = read(store, &key).await.expect("what was done is there");
        assert_eq!(read, (count, version.clone()));
    }
}

/// Puts until it succeeds. Only this writer writes the key, so a conflict would be false.
async fn put(store: &dyn Store, key: &Key, count: &u64, expect: &Expect) -> Version {
    loop {
        match store.put(key, count.to_string().into(), expect).await {
            Ok(version) => return version,
            Err(Error::Unavailable { .. }) => tokio::task::yield_now().await,
            Err(Error::Unknown { .. }) => {
                // The server that may have received it is dead once its successor answers.
                match (read(store, key).await, expect) {
                    (Some((read, version)), _) if read == *count => return version,
                    (Some((_, version)), Expect::Version(expected)) => {
                        assert_eq!(version, *expected, "neither the old nor the new");
                    }
                    (None, Expect::Absent) => {}
                    (read, _) => panic!("{read:?} after an unknown write of {count}"),
                }
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// Reads until the server answers.
async fn read(store: &dyn Store, key: &Key) -> Option<(u64, Version)> {
    loop {
        match store.get(key).await {
            Ok(None) => return None,
            Ok(Some(object)) => {
                let text = std::str::from_utf8(&object.value).unwrap();
                return Some((text.parse().unwrap(), object.version));
            }
            Err(Error::Unavailable { .. }) => tokio::task::yield_now().await,
            Err(error) => panic!("{error:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_refused_with_a_hint_and_shown_nowhere() {
    let Some(server) = Server::start("scram-sha-256") else {
        return;
    };
    let store = tenure_store::open(&server.url(&format!(":{}", Server::PASSWORD))).await;
    assert!(!format!("{:?}", store.unwrap()).contains(Server::PASSWORD));
    for wrong in ["", &format!(":{}", sql::PASSWORD)] {
        let error = tenure_store::open(&server.url(wrong)).await.unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        assert!(error.hint().contains("password"), "{error:?}");
        let everything = sql::everything(&error);
        assert!(!everything.contains(sql::PASSWORD), "{everything}");
    }
}

/// Stopped, and its files removed, when dropped.
pub(super) struct Server {
    programs: PathBuf,
    folder: tempfile::TempDir,
    port: Port,
}

impl Server {
    const PASSWORD: &str = "right-and-still-secret";

    pub(super) fn start(authentication: &str) -> Option<Self> {
        let server = Self::prepare()?;
        let password = server.folder.path().join("password");
        std::fs::write(&password, Self::PASSWORD).unwrap();
        let password = format!("--pwfile={}", password.display());
        let arguments = [
            "-A",
            authentication,
            "-U",
            "postgres",
            "--no-sync",
            &password,
        ];
        server.run("initdb", &arguments);
        server.control("start");
        Some(server)
    }

    /// A standby of this one, which accepts connections.
    pub(super) fn standby(&self) -> Self {
        let standby = Self::prepare().expect("there is a primary");
        let port = self.port.number().to_string();
        let mut arguments = vec!["-h", "127.0.0.1", "-p", &port, "-U", "postgres"];
        arguments.extend(["-R", "--no-sync", "-c", "fast"]);
        standby.run("pg_basebackup", &arguments);
        standby.control("start");
        standby
    }

    /// PostgreSQL refuses to run as root, so the test must be able to switch to another user.
    fn prepare() -> Option<Self> {
        let programs = PathBuf::from(support::url(PROGRAMS)?);
        if std::fs::metadata("/proc/self").ok()?.uid() != 0 {
            tenure_testkit::skip::for_want_of("root, to start a server as the user postgres");
            return None;
        }
        let folder = tempfile::Builder::new()
            .permissions(std::fs::Permissions::from_mode(0o777))
            .tempdir_in("/tmp")
            .unwrap();
        // The umask may have removed the right to enter.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        Some(Self {
            programs,
            folder,
            port: Port::hold(),
        })
    }

    pub(super) fn url(&self, password: &str) -> String {
        format!(
            "postgres://postgres{password}@127.0.0.1:{}/postgres",
            self.port.number()
        )
    }

    async fn restart(&self) {
        tokio::task::block_in_place(|| self.control("restart"));
    }

    /// `immediate`: as if the server had crashed.
    fn control(&self, verb: &str) -> Output {
        let log = self.folder.path().join("log").display().to_string();
        let options = format!(
            "-p {} -c listen_addresses=127.0.0.1 -k {}",
            self.port.number(),
            self.folder.path().display()
        );
        let mut arguments = vec!["-w", "-l", &log];
        if verb != "start" {
            arguments.extend(["-m", "immediate"]);
        }
        if verb != "stop" {
            arguments.extend(["-o", &options]);
        }
        arguments.push(verb);
        self.run("pg_ctl", &arguments)
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Output {
        let output = Command::new("runuser")
            .args(["-u", "postgres", "--"])
            .arg(self.programs.join(program))
            .arg("-D")
            .arg(self.folder.path().join("data"))
            .args(arguments)
            .current_dir("/")
            .output()
            .unwrap();
        assert!(
            output.status.success() || std::thread::panicking(),
            "{output:?}"
        );
        output
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.control("stop");
    }
}
