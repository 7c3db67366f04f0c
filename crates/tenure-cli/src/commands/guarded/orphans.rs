//! Processes that a killed guard leaves behind.
//!
//! This process is the reaper of orphans below it, so processes that lose their guard become its children. So each of
//! its children is either a guard, or was below a dead guard and has to be killed. This holds only if this process
//! had no children when it started: otherwise their orphans would look the same, so then it does not adopt orphans at
//! all.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, waitpid};
use tokio::process::{Child, Command};

use crate::commands::family::{self, Left};

/// The living guards. Locked while a guard is started: before it is listed here it must not be taken for an orphan.
static GUARDS: Mutex<Guards> = Mutex::new(Guards {
    running: Vec::new(),
    is_adopter: false,
});

struct Guards {
    running: Vec<Pid>,
    is_adopter: bool,
}

/// Makes this process the reaper of the orphans below it. Called before the first guard is started.
pub(crate) fn adopt() -> anyhow::Result<()> {
    if !family::children().is_empty() {
        tracing::debug!(
            "this process already had children when it started, so it does not adopt orphans"
        );
        return Ok(());
    }
    set_child_subreaper(Some(getpid())).context("cannot become the reaper of orphans")?;
    guards().is_adopter = true;
    Ok(())
}

pub(super) fn is_adopter() -> bool {
    guards().is_adopter
}

/// Whether any program is left, with its guard or without.
pub(crate) fn is_any_left() -> bool {
    let guards = guards();
    !guards.running.is_empty() || (guards.is_adopter && !family::children().is_empty())
}

/// Starts a guard.
pub(super) fn spawn(command: std::process::Command) -> io::Result<Child> {
    let mut guards = guards();
    let child = Command::from(command).spawn()?;
    guards.running.extend(pid(child.id()));
    Ok(child)
}

/// Removes a guard that was waited for.
pub(super) fn let_go(guard: Option<u32>) {
    if let Some(guard) = pid(guard) {
        guards().running.retain(|&running| running != guard);
    }
}

/// Kills every orphan, reaps those that are gone, and returns what is left. With several dead guards, each waits for
/// the orphans of all of them.
pub(super) fn kill() -> Left {
    let guards = guards();
    if !guards.is_adopter {
        return Left::Nothing;
    }
    // Listed twice: the kernel lists children one by one, and may skip one if another child is reaped at that moment,
    // as another thread may do with a guard.
    let mut orphans = family::children();
    for child in family::children() {
        if !orphans.contains(&child) {
            orphans.push(child);
        }
    }
    orphans.retain(|child| !guards.running.contains(child));
    let left = family::kill(&orphans);
    let mut is_over = true;
    for orphan in orphans {
        // An error means that it is gone.
        is_over &= !matches!(waitpid(Some(orphan), WaitOptions::NOHANG), Ok(None));
    }
    match left {
        // Processes that have just ended may have left children.
        Left::Nothing if is_over => Left::Nothing,
        Left::Nothing | Left::Dying => Left::Dying,
        stuck @ Left::Stuck(_) => stuck,
    }
}

fn pid(id: Option<u32>) -> Option<Pid> {
    Pid::from_raw(i32::try_from(id?).ok()?)
}

/// Plain data, which stays consistent if another thread panics.
fn guards() -> MutexGuard<'static, Guards> {
    GUARDS.lock().unwrap_or_else(PoisonError::into_inner)
}
