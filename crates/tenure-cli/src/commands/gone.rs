//! The end of a process whose store was replaced or deleted.
//!
//! It can never lead or serve again: only a new process opens what is there now. A supervisor starts one when this one
//! ends, and would wait for ever if it did not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use tenure::Node;
use tokio::time::sleep;

use crate::output::{self, Hinted};

/// How often it is looked in a ttl, and how often in a row the store must be gone: it may be put back.
const LOOKS: u32 = 4;

/// However long the ttl is.
const PATIENCE_MAX: Duration = Duration::from_secs(30);

static IS_GONE: AtomicBool = AtomicBool::new(false);

/// Whether that is why the process was asked to stop.
pub(crate) fn is_gone() -> bool {
    IS_GONE.load(Ordering::Relaxed)
}

/// From now on this process is asked to stop, as by anybody else, when its store has been gone for a ttl, or half a
/// minute.
pub(super) fn watch(node: &Node, ttl: Duration) {
    let store = node.store().clone();
    tokio::spawn(async move {
        let mut looks = 0;
        while looks < LOOKS {
            sleep(ttl.min(PATIENCE_MAX) / LOOKS).await;
            looks = if store.is_gone() { looks + 1 } else { 0 };
        }
        let what = format!(
            "the store at {} was replaced or deleted",
            store.describe().location
        );
        let hint = "start this process again to use what is there now";
        output::error(&Hinted::new(what, hint).into());
        IS_GONE.store(true, Ordering::Relaxed);
        let _ = kill_process(getpid(), Signal::TERM);
    });
}
