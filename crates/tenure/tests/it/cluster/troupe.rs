//! Real processes: `tests/programs/shards.rs`, which notes while it is trusted with a shard, in one file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tenure::NamespaceView;
use tenure::core::Namespace;

use super::held::{self, Held, Shards};
use crate::support::namespace;

pub(super) const TTL: Duration = Duration::from_secs(4);
pub(super) const SHARDS: u32 = 12;

/// Where each shard was last, by its name.
pub(super) type Last = BTreeMap<String, (u64, Held)>;

/// Processes that share shards, and the file that they all append to.
pub(super) struct Troupe {
    folder: TempDir,
    url: String,
    namespace: String,
    pub(super) nodes: BTreeMap<String, Child>,
    is_reckless: bool,
}

impl Troupe {
    pub(super) async fn start(url: impl FnOnce(&Path) -> String, nodes: &[&str]) -> Self {
        Self::start_with(url, nodes, false).await
    }

    /// The same with workers that never ask whether they are trusted. They need not have settled: until then they may overlap already.
    pub(super) async fn start_reckless(url: impl FnOnce(&Path) -> String, nodes: &[&str]) -> Self {
        Self::start_with(url, nodes, true).await
    }

    async fn start_with(
        url: impl FnOnce(&Path) -> String,
        nodes: &[&str],
        is_reckless: bool,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut troupe = Self {
            url: url(folder.path()),
            folder,
            namespace: namespace(),
            nodes: BTreeMap::new(),
            is_reckless,
        };
        for node in nodes {
            troupe.add(node);
        }
        if !is_reckless {
            troupe.settles(nodes.len()).await;
        }
        troupe
    }

    pub(super) fn add(&mut self, node: &str) {
        let said = fs::File::options()
            .append(true)
            .create(true)
            .open(self.folder.path().join(format!("{node}.said")))
            .unwrap();
        let child = Command::new(program())
            .args([&self.url, node])
            .arg(self.folder.path().join("lines"))
            .args([&TTL.as_millis().to_string(), &self.namespace])
            .arg(SHARDS.to_string())
            .args(self.is_reckless.then_some("reckless"))
            .stdout(Stdio::null())
            .stderr(said)
            .spawn()
            .unwrap();
        self.nodes.insert(node.to_owned(), child);
    }

    pub(super) fn signal(&self, node: &str, signal: Signal) {
        kill_process(Pid::from_child(&self.nodes[node]), signal).unwrap();
    }

    /// Stops a process that is not in the middle of a write: on files it would keep the lock, and block the others.
    pub(super) async fn stop_between_writes(&self, node: &str) {
        loop {
            self.signal(node, Signal::STOP);
            // A lock that stays held is that of the process which is stopped.
            for _ in 0..20 {
                if self.locks_are_free() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            self.signal(node, Signal::CONT);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn locks_are_free(&self) -> bool {
        let locks = fs::read_dir(self.folder.path().join("store/.tenure/lock")).unwrap();
        locks.flatten().all(|lock| {
            let file = fs::File::open(lock.path()).unwrap();
            flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
        })
    }

    pub(super) fn wait(&mut self, node: &str) {
        let mut child = self.nodes.remove(node).unwrap();
        child.wait().unwrap();
    }

    /// Starts those again that have ended because the store could not be opened when they were started.
    pub(super) fn revive(&mut self) {
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

    /// What the file says, which must be right.
    pub(super) fn shards(&self) -> Shards {
        self.try_shards().unwrap()
    }

    /// What the file says, or what is wrong with it.
    pub(super) fn try_shards(&self) -> Result<Shards, String> {
        held::read(&self.text())
    }

    /// Where each shard was last, and in which generation.
    pub(super) fn last(&self) -> Last {
        self.try_last().unwrap()
    }

    /// The same, or what is wrong with the file.
    pub(super) fn try_last(&self) -> Result<Last, String> {
        let shards = self.try_shards()?.into_iter();
        let last = shards.map(|(shard, generations)| {
            let last = generations.into_iter().next_back();
            (shard, last.unwrap())
        });
        Ok(last.collect())
    }

    /// Waits until every shard works on a live node, and they are shared evenly. Returns the loads.
    pub(super) async fn settles(&self, nodes: usize) -> BTreeMap<String, BTreeSet<String>> {
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
    fn loads(&self, before: &Last, after: &Last) -> BTreeMap<String, BTreeSet<String>> {
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

    async fn view(&self) -> NamespaceView {
        let store = tenure::store::open(&self.url).await.unwrap();
        NamespaceView::new(store, Namespace::new(&self.namespace).unwrap())
    }

    pub(super) async fn leader(&self) -> String {
        let nodes = self.view().await.nodes().await.unwrap();
        let leader = nodes.into_iter().find(|node| !node.leads.is_empty());
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
fn program() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let examples = tests.parent().unwrap().with_file_name("examples");
    let path = examples.join("test-shards");
    assert!(
        path.exists(),
        "first: cargo build -p tenure --example test-shards"
    );
    path
}

/// The shards that are in another generation.
pub(super) fn moved(before: &Last, after: &Last) -> BTreeSet<String> {
    let changed = after.iter().filter(|(shard, (generation, _))| {
        before.get(*shard).is_none_or(|(was, _)| was != generation)
    });
    changed.map(|(shard, _)| shard.clone()).collect()
}
