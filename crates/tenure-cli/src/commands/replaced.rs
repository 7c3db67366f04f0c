//! The end of a process whose store was replaced.
//!
//! Such a process can never lead or serve again: only a new process opens the store that is there now. A supervisor
//! starts one when this process ends, so it must not keep running.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use tenure::Node;
use tokio::time::sleep;

use crate::output::{self, Hinted};

/// How many checks there are per ttl, and how many in a row must find another store: the first store may be put back.
const LOOKS: u32 = 4;

/// The most time that the checks take, however long the ttl is.
const PATIENCE_MAX: Duration = Duration::from_secs(30);

static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Whether a replaced store is the reason why the process was asked to stop.
pub(crate) fn is_over() -> bool {
    IS_OVER.load(Ordering::Relaxed)
}

/// Watches the store from now on: when another one has been in its place for a ttl, or half a minute if that is
/// shorter, asks this process to stop by a signal.
pub(super) fn watch(node: &Node, ttl: Duration) {
    let store = node.store().clone();
    tokio::spawn(async move {
        let pause = ttl.min(PATIENCE_MAX) / LOOKS;
        let mut looks = 0;
        while looks < LOOKS {
            sleep(pause).await;
            looks = if store.is_replaced() { looks + 1 } else { 0 };
        }
        let what = format!("the store at {} was replaced", store.describe().location);
        let hint = "start this process again to use what is there now";
        output::error(&Hinted::new(what, hint).into());
        IS_OVER.store(true, Ordering::Relaxed);
        let _ = kill_process(getpid(), Signal::TERM);
    });
}
