//! The end of a process whose store was replaced.
//!
//! It can never lead or serve again: only a new process opens what is there now. A supervisor starts one when this one
//! ends, and would wait for ever if it did not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use tenure::Node;
use tokio::time::sleep;

use crate::output::{self, Hinted};

/// How often it is looked in a ttl, and how often in a row the store must be another: the first may be put back.
const LOOKS: u32 = 4;

/// However long the ttl is.
const PATIENCE_MAX: Duration = Duration::from_secs(30);

static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Whether that is why the process was asked to stop.
pub(crate) fn is_over() -> bool {
    IS_OVER.load(Ordering::Relaxed)
}

/// From now on this process is asked to stop, as by anybody else, when another store has been in the place of its own for a ttl, or half a
/// minute.
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
