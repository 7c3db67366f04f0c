//! Servers in separate processes: this test program, started again.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tenure_server::Server;

use crate::support::{config, store_in};

const FOLDER: &str = "TENURE_TEST_SERVE_FOLDER";
const NODE: &str = "TENURE_TEST_SERVE_NODE";
const SAYS: &str = "listening on ";

/// A server that can be killed.
pub(crate) struct Process {
    child: Child,
    pub(crate) url: String,
}

impl Process {
    /// The processor time that it has used so far.
    pub(crate) fn processor_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // The 14th and 15th field, counted from after the program's name, which may contain anything.
        let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
        let ticks: u64 = fields
            .skip(11)
            .take(2)
            .map(|each| each.parse::<u64>().unwrap())
            .sum();
        Duration::from_millis(ticks * 1_000 / rustix::param::clock_ticks_per_second())
    }

    /// Kills it with SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts one, and waits until it listens.
pub(crate) async fn serve(folder: &Path, node: &str) -> Process {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "browser::processes::a_process_that_serves",
            "--exact",
            "--nocapture",
        ])
        .env(FOLDER, folder)
        .env(NODE, node)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = child.stdout.take().unwrap();
    let (found, url) = tokio::sync::oneshot::channel();
    // Reads to the end: writing to a closed pipe would end it.
    std::thread::spawn(move || {
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        let url = lines.find_map(|line| Some(line.split_once(SAYS)?.1.to_owned()));
        let _ = found.send(url);
        lines.for_each(drop);
    });
    let url = url.await.unwrap().expect("it says where it listens");
    Process { child, url }
}

/// Not a test: this is what the processes run.
#[tokio::test]
async fn a_process_that_serves() {
    let (Ok(folder), Ok(node)) = (std::env::var(FOLDER), std::env::var(NODE)) else {
        return;
    };
    let mut config = config(&store_in(Path::new(&folder)));
    config.node = Some(node);
    // It is going to be killed, and another should soon take over.
    config.ttl = Duration::from_secs(5);
    let server = Server::start(config).await.unwrap();
    println!("{SAYS}{}", server.url());
    std::future::pending::<()>().await;
}
