//! What a guard leaves behind when it is killed.
//!
//! This process is the reaper of orphans below it, so whatever loses its guard becomes its child. All its
//! children are guards, then, or were under a guard that is dead, and are to be killed. That is so only if it
//! had none when it started: else the orphans of those would look the same, and it inherits nothing.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, waitpid};
use tokio::process::{Child, Command};

use crate::commands::family::{self, Left};

/// The guards that live. Locked while one is started: between its birth and its entry here it must not be taken
/// for an orphan.
static GUARDS: Mutex<Guards> = Mutex::new(Guards {
    running: Vec::new(),
    is_adopter: false,
});

struct Guards {
    running: Vec<Pid>,
    is_adopter: bool,
}

/// Makes this process the reaper of the orphans below it. Before the first guard.
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

/// A guard was waited for.
pub(super) fn let_go(guard: Option<u32>) {
    if let Some(guard) = pid(guard) {
        guards().running.retain(|&running| running != guard);
    }
}

/// Kills every orphan and lets go of those that are gone; what is left of them. Of several dead guards each waits
/// for the orphans of all.
pub(super) fn kill() -> Left {
    let guards = guards();
    if !guards.is_adopter {
        return Left::Nothing;
    }
    // Twice: the kernel lists children one by one, and skips one if another is waited for at that very moment, as a
    // guard may be by another thread.
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
        // An error is one that is gone.
        is_over &= !matches!(waitpid(Some(orphan), WaitOptions::NOHANG), Ok(None));
    }
    match left {
        // Those that ended just now may have left children of their own.
        Left::Nothing if is_over => Left::Nothing,
        Left::Nothing | Left::Dying => Left::Dying,
        stuck @ Left::Stuck(_) => stuck,
    }
}

fn pid(id: Option<u32>) -> Option<Pid> {
    Pid::from_raw(i32::try_from(id?).ok()?)
}

/// Plain data: a panic elsewhere leaves it whole.
fn guards() -> MutexGuard<'static, Guards> {
    GUARDS.lock().unwrap_or_else(PoisonError::into_inner)
}
