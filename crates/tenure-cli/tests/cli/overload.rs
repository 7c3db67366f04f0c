//! More load than a broker can take, for a while: every call is answered, memory stays within bounds, no accepted job
//! is lost, and afterwards it serves as before.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Signal, getrlimit, setrlimit};
use tenure::core::queue::{Filter, PageStart};
use tenure::queue::Config;
use tenure_store::engine::object::Objects;
use tenure_testkit::gcs::Gcs;
use tenure_testkit::tcp_proxy::{Line, TcpProxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{interval, sleep, timeout};

use crate::log::take_over_in;
use crate::serve::Serving;
use crate::support::tenure;

/// A generous limit: a call that is not answered by then never will be.
const PATIENCE: Duration = Duration::from_secs(120);

/// The delay of requests to the store, and of its answers.
const STORE_DELAY: Duration = Duration::from_millis(100);

/// How many records may wait for a commit: some ten jobs a second, on this store.
const BACKLOG_MAX: &str = "4";

/// Jobs are submitted at this interval, whatever happened to earlier ones: 400 a second.
const ARRIVAL_INTERVAL: Duration = Duration::from_micros(2500);
const ARRIVALS: usize = 2000;
const PAYLOAD_BYTES: usize = 64 * 1024;

const IDLE_WORKERS: usize = 1000;
const SLOW_CLIENTS: usize = 100;

/// A hundred more than the idle and slow clients use.
const CONNECTIONS_MAX: &str = "1200";

/// What the server may take on top of what it had. All payloads together are 125 MiB.
///
/// Measured in a build without optimisation: 50 KiB for each of 1,200 connections that has had a request, 60 MiB in
/// all. The rest is an allowance for bodies in transit, accepted jobs, commits and the allocator's reserves; 31 MiB
/// of it were in use.
const GROWTH_KIB_MAX: u64 = 112 * 1024;

#[tokio::test(flavor = "multi_thread")]
async fn ten_times_too_much_is_turned_away_and_nothing_is_lost() {
    allow_many_connections();
    let bucket = Gcs::start("bucket").await;
    let line = TcpProxy::start(bucket.address()).await.unwrap();
    let store = format!("gs://bucket?endpoint=http://{}", line.address());
    let serving = block_in_place(|| {
        Serving::spawn(on_bucket(&[
            "serve",
            "--store",
            &store,
            "--listen",
            "127.0.0.1:0",
            "--ttl",
            "60s",
            "--backlog-max",
            BACKLOG_MAX,
            "--connections-max",
            CONNECTIONS_MAX,
        ]))
    });
    let address = serving.address.clone();
    leads(&address).await;

    let before_kib = memory_kib(serving.id(), "VmRSS:");
    let mut idle = idle_workers(&address);
    in_flight(&address, IDLE_WORKERS).await;
    let slow = slow_clients(&address).await;
    line.set(Line::Slow(STORE_DELAY));
    let (accepted, refused) = offer_too_much(&address).await;
    let peak_kib = memory_kib(serving.id(), "VmHWM:");
    eprintln!(
        "{} accepted, {} turned away; memory {before_kib} KiB, then up to {peak_kib} KiB",
        accepted.len(),
        refused.len()
    );
    assert!(!accepted.is_empty(), "it went on serving");
    assert!(
        refused.len() > accepted.len(),
        "{} accepted",
        accepted.len()
    );
    assert!(
        peak_kib < before_kib + GROWTH_KIB_MAX,
        "from {before_kib} KiB to {peak_kib} KiB"
    );

    // It serves as before, on an equally slow store: new calls, and calls that waited all the time.
    let mut accepted = accepted;
    for (id, job_type) in [("after", "t"), ("awaited", "rare")] {
        let submitted = async {
            while submit(&address, id, job_type, 10).await.0 != 201 {
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(PATIENCE, submitted).await.expect("it recovers");
        accepted.insert(id.to_owned());
    }
    let got = idle.join_next().await.unwrap().unwrap();
    assert!(got.contains(r#""id":"awaited""#), "{got}");
    drop((idle, slow));

    // Accepted jobs are in the store, even if the broker is killed, and refused ones are not.
    block_in_place(|| serving.end(Signal::KILL));
    line.set(Line::Good);
    assert_eq!(stored(&store).await, accepted);
}

/// How many files a broker may open, and how many connections strangers make.
const FILES: usize = 256;
const STRANGERS: usize = 400;

/// A token, which strangers do not have.
const TOKEN: &str = "a-token-of-some-length-that-is-long-enough";

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn strangers_cannot_take_the_last_file() {
    allow_many_connections();
    let folder = tempfile::tempdir().unwrap();
    let serve = ["serve", "--listen", "127.0.0.1:0", "--store", "file:store"];
    let broker = tenure(&[&serve[..], &["--ttl", "10s"]].concat());
    let mut command = Command::new("prlimit");
    command
        .arg(format!("--nofile={FILES}:{FILES}"))
        .arg(broker.get_program())
        .args(broker.get_args())
        .current_dir(folder.path())
        .env("TENURE_LOG_FORMAT", "text")
        .env("TENURE_ADMIN_TOKEN", TOKEN);
    let serving = block_in_place(|| Serving::spawn(command));
    assert!(
        serving.banner.contains("limit of open files")
            && serving.banner.contains(&format!("files={FILES}"))
            && serving.banner.contains("wanted=10000"),
        "{}",
        serving.banner
    );
    let address = serving.address.clone();
    leads(&address).await;
    let mut strangers = Vec::new();
    for _ in 0..STRANGERS {
        strangers.push(TcpStream::connect(&address).await.unwrap());
    }
    // By now it has accepted as many connections as it takes.
    let body = r#"{"id":"a","type":"t"}"#;
    let authorised = format!("\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type");
    let submit = post("/v1/jobs", body).replacen("\r\nContent-Type", &authorised, 1);
    for _ in 0..20 {
        let health = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        assert_eq!(answer(open(&address, health).await).await.0, 200);
        let (status, answer) = answer(open(&address, &submit).await).await;
        assert!((200..300).contains(&status), "{answer}");
    }
    let open = std::fs::read_dir(format!("/proc/{}/fd", serving.id())).unwrap();
    let open = open.count();
    assert!(open < FILES, "{open} files are open");
    drop(strangers);
    block_in_place(|| serving.end(Signal::KILL));
}

/// Submits at a steady pace. Returns the ids that were accepted, and those refused.
async fn offer_too_much(address: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let mut calls = JoinSet::new();
    let mut arrivals = interval(ARRIVAL_INTERVAL);
    for number in 0..ARRIVALS {
        arrivals.tick().await;
        let address = address.to_owned();
        calls.spawn(async move {
            let id = format!("j{number}");
            // Every tenth client disappears in the middle of its request.
            if number % 10 == 9 {
                let request = request(&id, "t", PAYLOAD_BYTES);
                open(&address, &request[..request.len() / 2]).await;
                return None;
            }
            let (status, answer) = submit(&address, &id, "t", PAYLOAD_BYTES).await;
            Some((id, status, answer))
        });
    }
    let (mut accepted, mut refused) = (BTreeSet::new(), BTreeSet::new());
    for (id, status, answer) in calls.join_all().await.into_iter().flatten() {
        match status {
            201 => accepted.insert(id),
            429 => {
                assert!(answer.contains("\r\nretry-after: "), "{answer}");
                assert!(answer.contains(r#""code":"overloaded""#), "{answer}");
                refused.insert(id)
            }
            _ => panic!("{id}: {answer}"),
        };
    }
    (accepted, refused)
}

/// The jobs according to the log in the store.
async fn stored(store: &str) -> BTreeSet<String> {
    let url = store.parse().unwrap();
    let store = Objects::open_with(&url, Gcs::variables()).await.unwrap();
    let term = 1_000;
    let (_, jobs) = take_over_in(Arc::new(store), term, Config::default()).await;
    let page = jobs
        .queue
        .page(&Filter::default(), PageStart::After(0), ARRIVALS * 2);
    page.jobs.iter().map(|job| job.id.to_string()).collect()
}

/// The binary, with the variables that it needs for the bucket.
fn on_bucket(arguments: &[&str]) -> Command {
    let mut command = tenure(arguments);
    command.envs(Gcs::variables());
    command
}

async fn leads(address: &str) {
    until(address, "/readyz", |answer| answer.contains(r#""leader""#)).await;
}

/// Waits until the broker is handling this many requests.
async fn in_flight(address: &str, count: usize) {
    let line = format!("\ntenure_http_requests_in_flight {}\n", count + 1);
    until(address, "/metrics", |answer| answer.contains(&line)).await;
}

async fn until(address: &str, path: &str, is_right: impl Fn(&str) -> bool) {
    let ask = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let asked = async {
        while !is_right(&answer(open(address, &ask).await).await.1) {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, asked).await.expect("it comes about");
}

/// Workers that wait a long time for a job. Each returns the job that it got.
fn idle_workers(address: &str) -> JoinSet<String> {
    let body = r#"{"worker":"w","types":["rare"],"wait_ms":60000}"#;
    let claim = post("/v1/jobs/claim", body);
    let mut workers = JoinSet::new();
    for _ in 0..IDLE_WORKERS {
        let (address, claim) = (address.to_owned(), claim.clone());
        workers.spawn(async move {
            loop {
                let (status, answer) = answer(open(&address, &claim).await).await;
                match status {
                    200 if answer.ends_with(r#"{"jobs":[]}"#) => {}
                    200 => return answer,
                    // Its wait ended during the overload, so it asked again.
                    429 => sleep(Duration::from_secs(1)).await,
                    _ => panic!("{answer}"),
                }
            }
        });
    }
    workers
}

/// Clients that begin a request and never finish it.
async fn slow_clients(address: &str) -> Vec<TcpStream> {
    let request = request("never", "t", PAYLOAD_BYTES);
    let mut clients = Vec::new();
    for number in 0..SLOW_CLIENTS {
        clients.push(open(address, &request[..number * 40]).await);
    }
    clients
}

/// Submits a job: the status, and the answer with its head.
async fn submit(address: &str, id: &str, job_type: &str, payload_bytes: usize) -> (u16, String) {
    answer(open(address, &request(id, job_type, payload_bytes)).await).await
}

fn request(id: &str, job_type: &str, payload_bytes: usize) -> String {
    let payload = "x".repeat(payload_bytes);
    post(
        "/v1/jobs",
        &format!(r#"{{"id":"{id}","type":"{job_type}","payload":"{payload}"}}"#),
    )
}

fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

async fn open(address: &str, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

async fn answer(mut stream: TcpStream) -> (u16, String) {
    let mut answer = String::new();
    let read = timeout(PATIENCE, stream.read_to_string(&mut answer)).await;
    read.expect("nobody is left without an answer").unwrap();
    let status = answer.get(9..12).and_then(|status| status.parse().ok());
    (status.unwrap_or(0), answer)
}

/// A line of the system's data about a process.
fn memory_kib(process: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap()
}

/// Raises the limit of files, like the broker does.
fn allow_many_connections() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}
