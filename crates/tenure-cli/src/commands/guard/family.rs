//! A program and everything that descends from it, as its guard sees it: see [`family`](crate::commands::family).

use std::time::Duration;

use rustix::event::poll;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process_group, wait, waitpid};
use rustix::time::Timespec;

use super::message::Status;
use crate::commands::family::{Left, children, kill};

/// How often to look whether what was killed is gone, and what may not be killed. The end of a child wakes the
/// guard before that.
const LOOK: Duration = Duration::from_millis(10);
const LOOK_WHEN_STUCK: Duration = Duration::from_millis(250);

/// Sends a signal to the whole group; whether that is permitted. A stopped program is continued, or it could
/// not react.
pub(super) fn tell_group(program: Pid, signal: Signal) -> bool {
    let told = kill_process_group(program, signal);
    let _ = kill_process_group(program, Signal::CONT);
    told != Err(Errno::PERM)
}

/// Kills whatever is left and returns, when all of it is gone, how the program ended. Says which process may
/// not be killed, and then waits for it.
pub(super) fn end_all(program: Pid, mut stuck: impl FnMut(Pid)) -> Status {
    // Before the program is reaped: until then nobody else can have been given its number.
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
        // A signal, such as that a child has ended, wakes it as well.
        let _ = poll(&mut [], Some(&pause));
    }
    match status.and_then(|status| Some((status, status.terminating_signal()?))) {
        Some((_, signal)) => Status::Killed(signal),
        None => Status::Exited(status.and_then(WaitStatus::exit_status).unwrap_or_default()),
    }
}

/// Lets go of every child that has ended; whether there is none left.
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

/// Lets go of orphans that have ended by themselves.
pub(super) fn reap_orphans(program: Pid) {
    for child in children() {
        if child != program {
            let _ = waitpid(Some(child), WaitOptions::NOHANG);
        }
    }
}
