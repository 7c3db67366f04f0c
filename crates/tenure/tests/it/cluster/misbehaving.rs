//! Daemons that panic, hang, block or fail: each is moved or reported within its timeout, nobody else is held
//! up, and heartbeats go on.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tenure::cluster::{Config, Definition, Event, Going, Options, RunState};
use tenure::daemon::{Context, Daemon, DaemonError, Work, daemon};
use tenure::testing::ManualClock;
use tenure::{Node, NodeOptions};
use tokio::time::timeout;

use super::{Board, Peer, TTL, config, counts_are, memory, pass_until, peer_at};
use crate::support::{PATIENCE, brisk, until};

/// Fails on one node in one way, and does well on every other.
struct Fussy {
    board: Arc<Board>,
    dislikes: &'static str,
    how: How,
    tried: Arc<AtomicUsize>,
}

#[derive(Clone, Copy, PartialEq)]
enum How {
    FailsToStart,
    PanicsAtStart,
    PanicsInTheMiddle,
    EndsByItself,
    NeverStarts,
    NeverDrains,
}

impl How {
    fn id(self) -> &'static str {
        match self {
            How::FailsToStart => "fails-to-start",
            How::PanicsAtStart => "panics-at-start",
            How::PanicsInTheMiddle => "panics-in-the-middle",
            How::EndsByItself => "ends-by-itself",
            How::NeverStarts => "never-starts",
            How::NeverDrains => "never-drains",
        }
    }
}

impl Daemon for Fussy {
    fn id(&self) -> &str {
        self.how.id()
    }

    async fn start(&self, context: Context) -> Result<Work, DaemonError> {
        let (board, how) = (self.board.clone(), self.how);
        let dislikes = context.node().as_str() == self.dislikes;
        if dislikes {
            self.tried.fetch_add(1, Ordering::SeqCst);
            match how {
                How::FailsToStart => return Err("no such table".into()),
                How::PanicsAtStart => panic!("on purpose, at start"),
                How::NeverStarts => std::future::pending().await,
                How::PanicsInTheMiddle | How::EndsByItself | How::NeverDrains => {}
            }
        }
        Ok(Box::pin(async move {
            let _entered = board.enter(&context);
            if dislikes && how == How::PanicsInTheMiddle {
                tokio::task::yield_now().await;
                panic!("on purpose, in the middle");
            }
            if dislikes && how == How::EndsByItself {
                return Ok(());
            }
            context.stopping().cancelled().await;
            if dislikes && how == How::NeverDrains {
                std::future::pending::<()>().await;
            }
            Ok(())
        }))
    }
}

async fn is_tried_elsewhere(how: How, error: &str) {
    let (store, board) = (memory(), Board::new());
    let tried = Arc::new(AtomicUsize::new(0));
    let fussy = || Fussy {
        board: board.clone(),
        dislikes: "a",
        how,
        tried: tried.clone(),
    };
    // The node that it dislikes has the least to do, so that it is tried there.
    let b = Peer::with(&store, "b", &board, 5).await;
    counts_are(&board, &[5]).await;
    b.cluster.register(fussy(), Definition::shards(1)).unwrap();
    until("it runs on b", async || board.starts() == 6).await;
    let a = Peer::start(&store, "a").await;
    let mut events = a.cluster.subscribe();
    a.cluster.register(fussy(), Definition::shards(1)).unwrap();
    b.cluster.withdraw(how.id()).unwrap();
    let told = loop {
        if let Event::Failed { error, .. } = events.next().await.unwrap() {
            break error;
        }
    };
    assert_eq!(told, error);
    // It is reported to everybody, tried again, and runs where it can.
    until("the failure is reported", async || {
        let daemons = b.cluster.daemons().await.unwrap();
        let fussy = daemons
            .iter()
            .find(|it| it.id.as_str() == how.id())
            .unwrap();
        let plan = b.cluster.plan().await.unwrap();
        let told = plan.iter().any(|line| line.to_string().contains(how.id()));
        let reported = &fussy.shards[0].reported;
        told || matches!(reported, Some(RunState::Failed { .. }))
    })
    .await;
    b.cluster.register(fussy(), Definition::shards(1)).unwrap();
    until("it runs on b again", async || {
        let loads = board.loads();
        let on_b = loads.get("b").into_iter().flatten();
        on_b.filter(|shard| shard.daemon.as_str() == how.id())
            .count()
            == 1
    })
    .await;
    assert!(tried.load(Ordering::SeqCst) >= 1);
    assert_eq!(a.node.metrics().sessions, 1, "no session was lost");
    assert_eq!(b.node.metrics().sessions_lost, 0);
}

#[tokio::test]
async fn a_daemon_that_cannot_start_is_tried_elsewhere() {
    is_tried_elsewhere(How::FailsToStart, "no such table").await;
}

#[tokio::test]
async fn a_daemon_that_panics_at_start_is_tried_elsewhere() {
    let error = "it panicked: on purpose, at start";
    is_tried_elsewhere(How::PanicsAtStart, error).await;
}

#[tokio::test]
async fn a_daemon_that_panics_while_it_runs_is_tried_elsewhere() {
    let error = "it panicked: on purpose, in the middle";
    is_tried_elsewhere(How::PanicsInTheMiddle, error).await;
}

#[tokio::test]
async fn a_daemon_that_ends_by_itself_is_tried_elsewhere() {
    is_tried_elsewhere(How::EndsByItself, "it ended on its own").await;
}

fn times() -> Config {
    Config {
        drain_timeout: Duration::from_secs(20),
        acknowledge_timeout: Duration::from_secs(15),
        ..Config::default()
    }
}

#[tokio::test]
async fn a_daemon_that_never_starts_is_moved_after_its_timeout() {
    let (store, board, clock) = (memory(), Board::new(), ManualClock::new());
    let tried = Arc::new(AtomicUsize::new(0));
    let fussy = || Fussy {
        board: board.clone(),
        dislikes: "a",
        how: How::NeverStarts,
        tried: tried.clone(),
    };
    let a = peer_at(clock.runtime(), &store, "a", times()).await;
    a.cluster.register(fussy(), Definition::shards(1)).unwrap();
    pass_until(&clock, &[&a], "it is tried on a", async || {
        tried.load(Ordering::SeqCst) == 1
    })
    .await;
    let b = peer_at(clock.runtime(), &store, "b", times()).await;
    b.cluster.register(fussy(), Definition::shards(1)).unwrap();
    let passed = pass_until(&clock, &[&a, &b], "it runs on b", async || {
        board.loads().contains_key("b")
    })
    .await;
    // Fifteen seconds to start, and then up to twenty to end; what hangs is aborted before that.
    assert!(passed <= Duration::from_secs(15 + 20 + 5), "{passed:?}");
    assert_eq!(a.node.metrics().sessions_lost, 0);
}

#[tokio::test]
async fn a_daemon_that_never_drains_is_aborted_before_its_timeout() {
    let (store, clock) = (memory(), ManualClock::new());
    let aborted = Arc::new(AtomicBool::new(false));
    let (runs, flag) = (Arc::new(AtomicUsize::new(0)), aborted.clone());
    let stubborn = |runs: Arc<AtomicUsize>, flag: Arc<AtomicBool>| {
        daemon("stubborn", move |context| {
            let (runs, flag) = (runs.clone(), flag.clone());
            async move {
                let _dropped = OnDrop(flag);
                runs.fetch_add(1, Ordering::SeqCst);
                // Told to drain, it goes on.
                context.stopping().cancelled().await;
                std::future::pending().await
            }
        })
    };
    let a = peer_at(clock.runtime(), &store, "a", times()).await;
    let first = stubborn(runs.clone(), flag);
    a.cluster.register(first, Definition::shards(1)).unwrap();
    pass_until(&clock, &[&a], "it runs on a", async || {
        runs.load(Ordering::SeqCst) == 1
    })
    .await;
    let b = peer_at(clock.runtime(), &store, "b", times()).await;
    let other = stubborn(runs.clone(), Arc::default());
    b.cluster.register(other, Definition::shards(1)).unwrap();
    a.cluster.drain().await.unwrap();
    let passed = pass_until(&clock, &[&a, &b], "it runs on b", async || {
        let twice = runs.load(Ordering::SeqCst) == 2;
        assert!(!twice || aborted.load(Ordering::SeqCst), "both run");
        twice
    })
    .await;
    assert!(passed <= Duration::from_secs(20 + 5), "{passed:?}");
    assert!(
        passed >= Duration::from_secs(10),
        "not even told: {passed:?}"
    );
    assert_eq!(a.node.metrics().sessions_lost, 0);
}

/// On a store of files and by the real clock: every kind of misbehaviour on one node at once, beside work that
/// minds its own business. What hangs at start takes the time to acknowledge and to drain; nothing is aborted
/// sooner.
#[cfg(feature = "file")]
#[tokio::test]
async fn all_of_them_at_once_are_reported_and_moved_and_hold_up_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file:{}", folder.path().display());
    let store = tenure::store::open(&url).await.unwrap();
    let board = Board::new();
    let peer = async |name: &str| {
        let mut node_options = NodeOptions::new(url.as_str(), "test");
        node_options.node = Some(name.to_owned());
        node_options.session = brisk(TTL);
        let node = Node::start_with(store.clone(), node_options).await.unwrap();
        let config = Config {
            drain_timeout: TTL * 6 / 5,
            acknowledge_timeout: Duration::from_secs(2),
            ..config()
        };
        let options = Options {
            config,
            ..Options::default()
        };
        let cluster = node.cluster(options).await.unwrap();
        Peer { node, cluster }
    };
    let a = peer("a").await;
    let mut events = a.cluster.subscribe();
    let register = |on: &Peer| {
        for how in [
            How::NeverStarts,
            How::NeverDrains,
            How::PanicsAtStart,
            How::PanicsInTheMiddle,
        ] {
            let fussy = Fussy {
                board: board.clone(),
                dislikes: "a",
                how,
                tried: Arc::default(),
            };
            on.cluster.register(fussy, Definition::shards(1)).unwrap();
        }
    };
    let good = Definition::shards(4);
    a.cluster
        .register(board.daemon("good"), good.clone())
        .unwrap();
    counts_are(&board, &[4]).await;
    let before = board.starts_of("good");
    register(&a);
    until("the stubborn one runs", async || {
        board.starts_of(How::NeverDrains.id()) == 1
    })
    .await;
    let b = peer("b").await;
    register(&b);
    a.cluster.withdraw(How::NeverDrains.id()).unwrap();

    let mut unreported: BTreeMap<String, &str> = [
        (How::NeverStarts, "it did not start in time"),
        (How::PanicsAtStart, "it panicked: on purpose, at start"),
        (
            How::PanicsInTheMiddle,
            "it panicked: on purpose, in the middle",
        ),
    ]
    .map(|(how, error)| (how.id().to_owned(), error))
    .into();
    while !unreported.is_empty() {
        let event = timeout(PATIENCE, events.next()).await.expect("it is told");
        if let Some(Event::Failed { shard, error, .. }) = event
            && let Some(wanted) = unreported.remove(shard.daemon.as_str())
        {
            assert_eq!(error, wanted);
        }
    }
    until("all four run on b", async || {
        let on_b = board.loads().remove("b").unwrap_or_default();
        on_b.len() == 4
    })
    .await;
    assert_eq!(
        board.starts_of("good"),
        before,
        "the good ones were left alone"
    );
    for node in [&a.node, &b.node] {
        assert_eq!(node.metrics().sessions_lost, 0);
    }
}

struct OnDrop(Arc<AtomicBool>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Blocks the thread that it runs on, until it is let go.
#[derive(Default)]
struct Wall {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Wall {
    fn block(&self) {
        let mut open = self.open.lock().unwrap();
        while !*open {
            open = self.opened.wait(open).unwrap();
        }
    }

    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

/// Blocks its thread on node `a` until the wall is opened, and does well on every other.
fn blocking(
    wall: &Arc<Wall>,
    blocked: &Arc<AtomicBool>,
    board: &Arc<Board>,
) -> impl Daemon + use<> {
    let (wall, blocked, board) = (wall.clone(), blocked.clone(), board.clone());
    daemon("blocking", move |context: Context| {
        let (wall, blocked, board) = (wall.clone(), blocked.clone(), board.clone());
        async move {
            if context.node().as_str() == "a" {
                blocked.store(true, Ordering::SeqCst);
                wall.block();
                // What it was about to do, it may do no longer.
                assert!(context.check().is_err());
                return Ok(());
            }
            let _entered = board.enter(&context);
            context.stopping().cancelled().await;
            Ok(())
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_daemon_that_blocks_its_thread_is_taken_away_and_costs_no_heartbeat() {
    let (store, board, clock) = (memory(), Board::new(), ManualClock::new());
    let wall = Arc::new(Wall::default());
    let blocked = Arc::new(AtomicBool::new(false));
    let blocking = || blocking(&wall, &blocked, &board);
    let a = peer_at(clock.runtime(), &store, "a", times()).await;
    a.cluster
        .register(blocking(), Definition::shards(1))
        .unwrap();
    pass_until(&clock, &[&a], "it blocks", async || {
        blocked.load(Ordering::SeqCst)
    })
    .await;
    let b = peer_at(clock.runtime(), &store, "b", times()).await;
    b.cluster
        .register(blocking(), Definition::shards(1))
        .unwrap();
    a.cluster.drain().await.unwrap();
    pass_until(&clock, &[&a, &b], "it runs on b", async || {
        board.loads().contains_key("b")
    })
    .await;
    assert_eq!(a.node.metrics().sessions_lost, 0);
    // Until it has really ended here, nothing of it is started here.
    a.cluster.undrain().await.unwrap();
    b.cluster.drain().await.unwrap();
    let plan = async || a.cluster.plan().await.unwrap();
    pass_until(&clock, &[&a, &b], "it waits for a", async || {
        let lines: Vec<_> = plan().await.iter().map(ToString::to_string).collect();
        !board.loads().contains_key("b") && lines.iter().all(|line| !line.contains("revoke"))
    })
    .await;
    wall.open();
    b.cluster.undrain().await.unwrap();
    pass_until(&clock, &[&a, &b], "it runs again", async || {
        board.loads().contains_key("b")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_node_that_leaves_with_work_that_never_ends_loses_it_all_the_same() {
    let (store, board, clock) = (memory(), Board::new(), ManualClock::new());
    let wall = Arc::new(Wall::default());
    let blocked = Arc::new(AtomicBool::new(false));
    let blocking = || blocking(&wall, &blocked, &board);
    let a = peer_at(clock.runtime(), &store, "a", times()).await;
    a.cluster
        .register(blocking(), Definition::shards(1))
        .unwrap();
    pass_until(&clock, &[&a], "it blocks", async || {
        blocked.load(Ordering::SeqCst)
    })
    .await;
    let b = peer_at(clock.runtime(), &store, "b", times()).await;
    b.cluster
        .register(blocking(), Definition::shards(1))
        .unwrap();
    let cluster = a.cluster.clone();
    let leaving = tokio::spawn(async move { cluster.leave(Going::Leaving).await });
    let passed = pass_until(&clock, &[&a, &b], "it runs on b", async || {
        board.loads().contains_key("b")
    })
    .await;
    // Twice twenty seconds: to end it by itself, and to end it when told.
    assert!(passed <= Duration::from_secs(20 + 20 + 5), "{passed:?}");
    assert_eq!(a.node.metrics().sessions_lost, 0);
    assert!(!leaving.is_finished(), "it has not ended yet");
    wall.open();
    timeout(PATIENCE, leaving).await.expect("it ends").unwrap();
}
