//! How a guard ends a program and all its descendants: see [`family`](crate::commands::family).

use std::time::Duration;

use rustix::event::poll;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process_group, wait, waitpid};
use rustix::time::Timespec;

use super::message::Status;
use crate::commands::family::{Left, children, kill};

/// How often to check whether killed processes are gone, and which may not be killed. The end of a child wakes the
/// guard sooner.
const LOOK: Duration = Duration::from_millis(10);
const LOOK_WHEN_STUCK: Duration = Duration::from_millis(250);

/// Sends a signal to the whole group, and returns whether that is permitted. Also continues a stopped program, which
/// could not react otherwise.
pub(super) fn tell_group(program: Pid, signal: Signal) -> bool {
    let told = kill_process_group(program, signal);
    let _ = kill_process_group(program, Signal::CONT);
    told != Err(Errno::PERM)
}

/// Kills everything that is left, and returns how the program ended once all of it is gone. Reports a process that
/// may not be killed, and waits for its end.
pub(super) fn end_all(program: Pid, mut stuck: impl FnMut(Pid)) -> Status {
    // Done before the program is reaped: until then no other process can have its id.
    let _ = kill_process_group(program, Signal::KILL);
    let mut status = None;
    let mut told = None;
    loop {
        let left = kill(&children());
        let is_over = reap(program, &mut status);
        if is_over {
            break;
        }
        let pause = match left {
            Left::Stuck(process) => {
                if told.replace(process) != Some(process) {
                    stuck(process);
                }
                LOOK_WHEN_STUCK
            }
            Left::Nothing | Left::Dying => LOOK,
        };
        let pause = Timespec::try_from(pause).expect("a short time");
        // A signal, such as that a child has ended, also ends the pause.
        let _ = poll(&mut [], Some(&pause));
    }
    match status.and_then(|status| Some((status, status.terminating_signal()?))) {
        Some((_, signal)) => Status::Killed(signal),
        None => Status::Exited(status.and_then(WaitStatus::exit_status).unwrap_or_default()),
    }
}

/// Reaps every child that has ended. Returns whether none is left.
fn reap(program: Pid, status: &mut Option<WaitStatus>) -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, ended))) if pid == program => *status = Some(ended),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return false,
            // There is no child.
            Err(_) => return true,
        }
    }
}

/// Reaps orphans that have ended.
pub(super) fn reap_orphans(program: Pid) {
    for child in children() {
        if child != program {
            let _ = waitpid(Some(child), WaitOptions::NOHANG);
        }
    }
}
