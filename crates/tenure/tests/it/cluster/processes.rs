//! Real processes: the example `shards`, which notes while it is trusted with a shard, in one file.
//!
//! Whatever is done to them, no two generations of a shard are trusted at one time, and generations only
//! grow: every line of the file says that a node was trusted at the time in it, so the times of one
//! generation all come before those of the next.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tenure::Namespaced;
use tenure::core::Namespace;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::support::{namespace, until, url};

const TTL: Duration = Duration::from_secs(4);
const SHARDS: u32 = 12;

/// How long everything is disturbed; `make overlap` sets five minutes.
const OVERLAP_VARIABLE: &str = "TENURE_OVERLAP_SECONDS";
const OVERLAP_SECONDS_DEFAULT: u64 = 20;

/// Processes that share shards, and the file that they all append to.
struct Troupe {
    folder: TempDir,
    url: String,
    namespace: String,
    nodes: BTreeMap<String, Child>,
}

/// What the file says of a generation of a shard.
#[derive(Debug, Clone)]
struct Held {
    node: String,
    first: u128,
    last: u128,
    drained: bool,
}

type Shards = BTreeMap<String, BTreeMap<u64, Held>>;

impl Troupe {
    async fn start(url: impl FnOnce(&Path) -> String, nodes: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut troupe = Self {
            url: url(folder.path()),
            folder,
            namespace: namespace(),
            nodes: BTreeMap::new(),
        };
        for node in nodes {
            troupe.add(node);
        }
        troupe.settles(nodes.len()).await;
        troupe
    }

    fn add(&mut self, node: &str) {
        let said = fs::File::options()
            .append(true)
            .create(true)
            .open(self.folder.path().join(format!("{node}.said")))
            .unwrap();
        let child = Command::new(example())
            .args([&self.url, node])
            .arg(self.folder.path().join("lines"))
            .args([&TTL.as_millis().to_string(), &self.namespace])
            .arg(SHARDS.to_string())
            .stdout(Stdio::null())
            .stderr(said)
            .spawn()
            .unwrap();
        self.nodes.insert(node.to_owned(), child);
    }

    fn signal(&self, node: &str, signal: Signal) {
        kill_process(Pid::from_child(&self.nodes[node]), signal).unwrap();
    }

    fn wait(&mut self, node: &str) {
        let mut child = self.nodes.remove(node).unwrap();
        child.wait().unwrap();
    }

    /// Starts those again that have ended because the store could not be opened when they were started.
    fn revive(&mut self) {
        let ended = |child: &mut Child| child.try_wait().unwrap().is_some();
        let nodes = self.nodes.iter_mut();
        let ended = nodes.filter_map(|(node, child)| ended(child).then(|| node.clone()));
        let ended: Vec<String> = ended.collect();
        for node in ended {
            self.add(&node);
        }
    }

    fn text(&self) -> String {
        let mut text = fs::read_to_string(self.folder.path().join("lines")).unwrap_or_default();
        // Whoever reads while another writes may see a part of the last line.
        text.truncate(text.rfind('\n').map_or(0, |end| end + 1));
        text
    }

    /// What the file says, after it was checked that no two generations overlap.
    fn shards(&self) -> Shards {
        let mut shards = Shards::new();
        for line in self.text().lines() {
            let words: Vec<_> = line.split(' ').collect();
            let [shard, generation, event, at, node] = words[..] else {
                panic!("a torn line: {line:?}");
            };
            let at: u128 = at.parse().unwrap();
            let generations = shards.entry(shard.to_owned()).or_default();
            let held = generations.entry(generation.parse().unwrap());
            let held = held.or_insert_with(|| {
                assert_eq!(event, "started", "{line}");
                Held {
                    node: node.to_owned(),
                    first: at,
                    last: at,
                    drained: false,
                }
            });
            assert_eq!(held.node, node, "one node per generation: {line}");
            held.last = held.last.max(at);
            held.drained |= event == "drained";
        }
        for (shard, generations) in &shards {
            let held: Vec<_> = generations.values().collect();
            for pair in held.windows(2) {
                assert!(pair[0].last < pair[1].first, "{shard}: {pair:?}");
            }
        }
        shards
    }

    /// Where each shard was last, and in which generation.
    fn last(&self) -> BTreeMap<String, (u64, Held)> {
        let shards = self.shards().into_iter();
        let last = shards.map(|(shard, generations)| {
            let last = generations.into_iter().next_back();
            (shard, last.unwrap())
        });
        last.collect()
    }

    /// Waits until every shard works on a live node, and they are shared evenly. Returns the loads.
    async fn settles(&self, nodes: usize) -> BTreeMap<String, BTreeSet<String>> {
        let mut loads = BTreeMap::new();
        let mut what = String::new();
        let settled = async {
            loop {
                let before = self.last();
                tokio::time::sleep(Duration::from_millis(300)).await;
                let after = self.last();
                loads = self.loads(&before, &after);
                let counts = loads.values().map(BTreeSet::len);
                let (most, least) = (counts.clone().max(), counts.clone().min());
                let all = counts.sum::<usize>() == SHARDS as usize && loads.len() == nodes;
                if all && most.unwrap() - least.unwrap() <= 1 {
                    return;
                }
                what = format!("{loads:?}");
            }
        };
        let patience = Duration::from_secs(120);
        if tokio::time::timeout(patience, settled).await.is_err() {
            panic!("the shards are not shared by {nodes}: {what}");
        }
        loads
    }

    /// The shards that have worked in between, by node.
    fn loads(
        &self,
        before: &BTreeMap<String, (u64, Held)>,
        after: &BTreeMap<String, (u64, Held)>,
    ) -> BTreeMap<String, BTreeSet<String>> {
        let mut loads: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (shard, (generation, held)) in after {
            let (was, earlier) = match before.get(shard) {
                Some((was, earlier)) => (*was, earlier.last),
                None => (0, 0),
            };
            let works = was == *generation && held.last > earlier && !held.drained;
            if works && self.nodes.contains_key(&held.node) {
                let on_node = loads.entry(held.node.clone()).or_default();
                on_node.insert(shard.clone());
            }
        }
        loads
    }

    async fn view(&self) -> Namespaced {
        let store = tenure::store::open(&self.url).await.unwrap();
        Namespaced::new(store, Namespace::new(&self.namespace).unwrap())
    }

    async fn leader(&self) -> String {
        let nodes = self.view().await.nodes().await.unwrap();
        let leader = nodes.into_iter().find(|node| node.leads);
        leader.unwrap().member.node.to_string()
    }
}

impl Drop for Troupe {
    #[allow(
        clippy::print_stderr,
        reason = "a failed test shows what its nodes said"
    )]
    fn drop(&mut self) {
        for (node, child) in &mut self.nodes {
            let _ = child.kill();
            let _ = child.wait();
            if std::thread::panicking() {
                let said = self.folder.path().join(format!("{node}.said"));
                let said = fs::read_to_string(said).unwrap_or_default();
                eprintln!("--- stderr of {node}\n{said}");
            }
        }
    }
}

/// Built with the tests by `cargo test`; beside them.
fn example() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let examples = tests.parent().unwrap().with_file_name("examples");
    let path = examples.join("shards");
    assert!(
        path.exists(),
        "first: cargo build -p tenure --example shards"
    );
    path
}

fn moved(
    before: &BTreeMap<String, (u64, Held)>,
    after: &BTreeMap<String, (u64, Held)>,
) -> BTreeSet<String> {
    let changed = after.iter().filter(|(shard, (generation, _))| {
        before.get(*shard).is_none_or(|(was, _)| was != generation)
    });
    changed.map(|(shard, _)| shard.clone()).collect()
}

#[allow(
    clippy::print_stderr,
    reason = "how long it took is for people to read"
)]
async fn nodes_join_leave_die_and_pause(engine: &str, url: impl FnOnce(&Path) -> String) {
    let mut troupe = Troupe::start(url, &["a", "b", "c"]).await;

    let before = troupe.last();
    troupe.add("e");
    troupe.settles(4).await;
    let joined = moved(&before, &troupe.last());
    assert!(joined.len() <= 3, "a fourth node moved {joined:?}");

    // Somebody who does not lead leaves in good order.
    let leader = troupe.leader().await;
    let others: Vec<String> = troupe.nodes.keys().cloned().collect();
    let others: Vec<String> = others.into_iter().filter(|it| *it != leader).collect();
    let (leaver, victim) = (&others[0], &others[1]);
    let before = troupe.last();
    let asked = Instant::now();
    troupe.signal(leaver, Signal::TERM);
    troupe.wait(leaver);
    let left = asked.elapsed();
    troupe.settles(3).await;
    let after = troupe.last();
    let of_leaver = |shard: &&String| before[*shard].1.node == *leaver;
    let shards = troupe.shards();
    let mut longest = Duration::ZERO;
    for shard in before.keys().filter(of_leaver) {
        let (generation, _) = before[shard];
        let held = &shards[shard][&generation];
        assert!(held.drained, "{shard} was not drained first");
        let next = shards[shard].range(generation + 1..).next().unwrap().1;
        let nanoseconds = u64::try_from(next.first - held.last).unwrap();
        longest = longest.max(Duration::from_nanos(nanoseconds));
    }
    eprintln!("{engine}: left after {left:?}, no shard was idle for more than {longest:?}");
    let stayed = moved(&before, &after);
    assert!(stayed.iter().all(|shard| of_leaver(&shard)), "{stayed:?}");

    // Another one dies.
    let before = troupe.last();
    let killed = Instant::now();
    troupe.signal(victim, Signal::KILL);
    troupe.wait(victim);
    let of_victim: BTreeSet<String> = before
        .iter()
        .filter(|(_, (_, held))| held.node == *victim)
        .map(|(shard, _)| shard.clone())
        .collect();
    until("what the dead node ran runs elsewhere", async || {
        let last = troupe.last();
        of_victim.iter().all(|shard| last[shard].1.node != *victim)
    })
    .await;
    eprintln!(
        "{engine}: {:?} after kill -9 with a ttl of {TTL:?}",
        killed.elapsed()
    );
    troupe.settles(2).await;
    let moved_by_death = moved(&before, &troupe.last());
    assert_eq!(
        moved_by_death, of_victim,
        "only those of the dead node move"
    );

    // The leader is stopped past its ttl, and goes on.
    let leader = troupe.leader().await;
    troupe.signal(&leader, Signal::STOP);
    until("somebody else runs everything", async || {
        troupe.last().values().all(|(_, held)| held.node != leader)
    })
    .await;
    troupe.signal(&leader, Signal::CONT);
    troupe.settles(2).await;
    troupe.shards();
}

#[tokio::test]
async fn nodes_in_a_folder_join_leave_die_and_pause() {
    let url = |folder: &Path| format!("file:{}", folder.join("store").display());
    nodes_join_leave_die_and_pause("file", url).await;
}

#[tokio::test]
async fn nodes_on_postgres_join_leave_die_and_pause() {
    if let Some(url) = url("TENURE_TEST_POSTGRES") {
        nodes_join_leave_die_and_pause("postgres", |_| url).await;
    }
}

#[tokio::test]
async fn nodes_on_ceph_join_leave_die_and_pause() {
    if let Some(url) = url("TENURE_TEST_S3_CEPH") {
        nodes_join_leave_die_and_pause("ceph", |_| url).await;
    }
}

/// A way to a server that can be closed.
struct Gate {
    address: String,
    open: watch::Sender<bool>,
}

impl Gate {
    async fn before(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (open, is_open) = watch::channel(true);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (server, mut is_open) = (server.clone(), is_open.clone());
                tokio::spawn(async move {
                    if !*is_open.borrow_and_update() {
                        return;
                    }
                    let Ok(mut upstream) = TcpStream::connect(server).await else {
                        return;
                    };
                    let mut client = client;
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut upstream) => {}
                        _ = is_open.wait_for(|open| !open) => {}
                    }
                });
            }
        });
        Self { address, open }
    }
}

/// Splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

#[allow(clippy::print_stderr, reason = "what was done is for people to read")]
async fn no_two_generations_overlap(
    engine: &str,
    url: impl FnOnce(&Path) -> String,
    gate: Option<Gate>,
) {
    let seconds = std::env::var(OVERLAP_VARIABLE).ok();
    let seconds = seconds.map_or(OVERLAP_SECONDS_DEFAULT, |it| it.parse().unwrap());
    let mut troupe = Troupe::start(url, &["a", "b", "c", "e"]).await;
    let mut random = Random(std::process::id().into());
    let started = Instant::now();
    let mut done: BTreeMap<&str, u32> = BTreeMap::new();
    while started.elapsed() < Duration::from_secs(seconds) {
        let names = ["a", "b", "c", "e"];
        let node = names[usize::try_from(random.below(4)).unwrap()];
        let pause = Duration::from_millis(200 + random.below(5000));
        let what = match random.below(4) {
            0 => {
                troupe.signal(node, Signal::KILL);
                troupe.wait(node);
                tokio::time::sleep(pause / 4).await;
                troupe.add(node);
                "kill -9"
            }
            1 => {
                troupe.signal(node, Signal::STOP);
                tokio::time::sleep(pause).await;
                troupe.signal(node, Signal::CONT);
                "stop and continue"
            }
            2 => {
                troupe.signal(node, Signal::TERM);
                tokio::time::sleep(pause / 8).await;
                // One that could not drain in time is killed: it has had its time.
                troupe.signal(node, Signal::KILL);
                troupe.wait(node);
                troupe.add(node);
                "leave"
            }
            _ => match &gate {
                Some(gate) => {
                    gate.open.send_replace(false);
                    tokio::time::sleep(pause).await;
                    gate.open.send_replace(true);
                    "outage"
                }
                None => continue,
            },
        };
        *done.entry(what).or_default() += 1;
        tokio::time::sleep(Duration::from_millis(random.below(800))).await;
        troupe.revive();
        troupe.shards();
    }
    // Long enough for whoever cannot be started to say so.
    tokio::time::sleep(TTL).await;
    troupe.revive();
    troupe.settles(4).await;
    let generations: usize = troupe.shards().values().map(BTreeMap::len).sum();
    eprintln!("{engine}: {generations} generations of {SHARDS} shards without overlap; {done:?}");
}

#[tokio::test]
async fn no_two_generations_overlap_in_a_folder() {
    let url = |folder: &Path| format!("file:{}", folder.join("store").display());
    no_two_generations_overlap("file", url, None).await;
}

#[tokio::test]
async fn no_two_generations_overlap_on_postgres_with_outages() {
    let Some(url) = url("TENURE_TEST_POSTGRES") else {
        return;
    };
    // postgres://user:password@host:port/database
    let (head, rest) = url.split_once('@').unwrap_or(("postgres://", &url[11..]));
    let (server, database) = rest.split_once('/').unwrap();
    let head = head.trim_end_matches('@');
    let gate = Gate::before(server.to_owned()).await;
    let at = if head.ends_with('/') { "" } else { "@" };
    let through = format!("{head}{at}{}/{database}", gate.address);
    no_two_generations_overlap("postgres", |_| through, Some(gate)).await;
}
