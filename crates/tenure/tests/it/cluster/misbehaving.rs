//! Daemons that panic, hang, block or fail: each is moved or reported within its timeout, nobody else is held
//! up, and heartbeats go on.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tenure::cluster::{Config, Definition, Event, RunState};
use tenure::daemon::{Context, Daemon, DaemonError, Work, daemon};
use tenure::testing::ManualClock;

use super::{Board, Peer, counts_are, memory, pass_until, peer_at};
use crate::support::until;

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
}

impl Daemon for Fussy {
    fn id(&self) -> &str {
        "fussy"
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
                How::PanicsInTheMiddle | How::EndsByItself => {}
            }
        }
        Ok(Box::pin(async move {
            let _entered = board.enter(&context);
            if dislikes && how == How::PanicsInTheMiddle {
                tokio::task::yield_now().await;
                panic!("on purpose, in the middle");
            }
            if dislikes {
                return Ok(());
            }
            context.draining().cancelled().await;
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
    b.cluster.withdraw("fussy").unwrap();
    let told = loop {
        if let Event::Failed { error, .. } = events.next().await.unwrap() {
            break error;
        }
    };
    assert_eq!(told, error);
    // It is reported to everybody, tried again, and runs where it can.
    until("the failure is reported", async || {
        let daemons = b.cluster.daemons().await.unwrap();
        let fussy = daemons.iter().find(|it| it.id.as_str() == "fussy").unwrap();
        let plan = b.cluster.plan().await.unwrap();
        let told = plan.iter().any(|line| line.to_string().contains("fussy/0"));
        let reported = &fussy.shards[0].reported;
        told || matches!(reported, Some(RunState::Failed { .. }))
    })
    .await;
    b.cluster.register(fussy(), Definition::shards(1)).unwrap();
    until("it runs on b again", async || {
        let loads = board.loads();
        let on_b = loads.get("b").into_iter().flatten();
        on_b.filter(|shard| shard.daemon.as_str() == "fussy")
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
    is_tried_elsewhere(How::EndsByItself, "it ended by itself").await;
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
    let a = peer_at(clock.clock(), &store, "a", times()).await;
    a.cluster.register(fussy(), Definition::shards(1)).unwrap();
    pass_until(&clock, &[&a], "it is tried on a", async || {
        tried.load(Ordering::SeqCst) == 1
    })
    .await;
    let b = peer_at(clock.clock(), &store, "b", times()).await;
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
                context.draining().cancelled().await;
                std::future::pending().await
            }
        })
    };
    let a = peer_at(clock.clock(), &store, "a", times()).await;
    let first = stubborn(runs.clone(), flag);
    a.cluster.register(first, Definition::shards(1)).unwrap();
    pass_until(&clock, &[&a], "it runs on a", async || {
        runs.load(Ordering::SeqCst) == 1
    })
    .await;
    let b = peer_at(clock.clock(), &store, "b", times()).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_daemon_that_blocks_its_thread_is_taken_away_and_costs_no_heartbeat() {
    let (store, board, clock) = (memory(), Board::new(), ManualClock::new());
    let wall = Arc::new(Wall::default());
    let blocked = Arc::new(AtomicBool::new(false));
    let blocking = || {
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
                context.draining().cancelled().await;
                Ok(())
            }
        })
    };
    let a = peer_at(clock.clock(), &store, "a", times()).await;
    a.cluster
        .register(blocking(), Definition::shards(1))
        .unwrap();
    pass_until(&clock, &[&a], "it blocks", async || {
        blocked.load(Ordering::SeqCst)
    })
    .await;
    let b = peer_at(clock.clock(), &store, "b", times()).await;
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
