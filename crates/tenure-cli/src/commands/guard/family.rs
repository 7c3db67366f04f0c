//! A program and everything that descends from it.
//!
//! The guard is a child subreaper: whoever loses its parent below the guard becomes a child of the guard.
//! So to kill all children again and again until there is none is to kill every descendant, also those
//! that have left the process group.

use anyhow::Context;
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, waitpid,
};

use super::message::Status;

/// Sends a signal to the whole group. A stopped program is continued, or it could not react.
pub(super) fn tell_group(program: Pid, signal: Signal) {
    // An error means that all of them have ended.
    let _ = kill_process_group(program, signal);
    let _ = kill_process_group(program, Signal::CONT);
}

/// Kills whatever is left and returns, when all of it is gone, how the program ended.
pub(super) fn end_all(program: Pid) -> anyhow::Result<Status> {
    // Before the program is reaped: until then nobody else can have been given its number.
    let _ = kill_process_group(program, Signal::KILL);
    let status = loop {
        match waitpid(Some(program), WaitOptions::empty()) {
            Ok(Some((_, status))) => break status,
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot learn how the program ended"),
        }
    };
    loop {
        let orphans = children();
        if orphans.is_empty() {
            break;
        }
        for &orphan in &orphans {
            let _ = kill_process(orphan, Signal::KILL);
        }
        for orphan in orphans {
            // An error is an orphan that is gone already, or a signal: the next round looks again.
            let _ = waitpid(Some(orphan), WaitOptions::empty());
        }
    }
    Ok(match status.terminating_signal() {
        Some(signal) => Status::Killed(signal),
        None => Status::Exited(status.exit_status().unwrap_or_default()),
    })
}

/// Lets go of orphans that have ended by themselves.
pub(super) fn reap_orphans(program: Pid) {
    for child in children() {
        if child != program {
            let _ = waitpid(Some(child), WaitOptions::NOHANG);
        }
    }
}

/// This process's children. None where the kernel cannot say: then only the process group is covered.
fn children() -> Vec<Pid> {
    let me = getpid();
    let listed = std::fs::read_to_string(format!("/proc/self/task/{me}/children"));
    listed
        .unwrap_or_default()
        .split_ascii_whitespace()
        .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
        .collect()
}
