//! The children of this process, and what can be done about them.
//!
//! A child subreaper becomes the parent of whoever loses its parent below it. So to kill all children again and
//! again until there is none is to kill every descendant, also those that have left the process group or the
//! session. Those that start others without end would win that race, so all of them are stopped first. That a
//! process may not be killed does not mean that it is gone: only its end does.

use std::collections::BTreeSet;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open, pidfd_send_signal,
};

/// How many times to look for descendants that are not stopped yet. Each look finds what was started during the one
/// before, and whoever is stopped starts nothing: a few are enough, unless these processes are many.
const LOOKS_MAX: u32 = 100;

/// What is left of those that were killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    Nothing,
    /// They were told, and have not ended yet.
    Dying,
    /// This one may not be killed: it belongs to another user.
    Stuck(Pid),
}

/// Stops these children of this process and all that descends from them, then kills the children. What they leave
/// becomes this process's own: to be called again. Whoever is told of has not been waited for yet, a zombie too.
pub(crate) fn kill(children: &[Pid]) -> Left {
    stop(children);
    let mut left = Left::Nothing;
    for &child in children {
        left = match kill_process(child, Signal::KILL) {
            Err(Errno::SRCH) => left,
            // A zombie may be "killed", whoever it belonged to.
            Err(_) if !is_zombie(child) => Left::Stuck(child),
            _ if left == Left::Nothing => Left::Dying,
            _ => left,
        };
    }
    left
}

/// Stops children of this process, and all that descends from them.
fn stop(children: &[Pid]) {
    let mut stopped = BTreeSet::new();
    for _ in 0..LOOKS_MAX {
        let before = stopped.len();
        for &child in children {
            if stopped.insert(child.as_raw_nonzero()) {
                // One that is gone, or may not be stopped, is none that this can help with.
                let _ = kill_process(child, Signal::STOP);
            }
        }
        let mut parents = children.to_vec();
        while let Some(parent) = parents.pop() {
            for child in children_of(parent) {
                if stopped.insert(child.as_raw_nonzero()) {
                    stop_child_of(parent, child);
                }
                parents.push(child);
            }
        }
        if stopped.len() == before {
            return;
        }
    }
}

/// Stops a child of another process. That one may have let go of it by now, and a stranger may have its number: only
/// who is still its child is stopped.
fn stop_child_of(parent: Pid, child: Pid) {
    let Ok(held) = pidfd_open(child, PidfdFlags::empty()) else {
        return;
    };
    if stat(child).is_some_and(|(_, its_parent)| its_parent == parent.to_string()) {
        let _ = pidfd_send_signal(&held, Signal::STOP);
    }
}

/// This process's children, those of all its threads.
pub(crate) fn children() -> Vec<Pid> {
    children_of(getpid())
}

fn children_of(parent: Pid) -> Vec<Pid> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{parent}/task")) else {
        // It is gone, unless there is nothing to look at.
        return if parent == getpid() {
            by_parent(parent)
        } else {
            Vec::new()
        };
    };
    let mut children = Vec::new();
    for thread in threads.flatten() {
        match std::fs::read_to_string(thread.path().join("children")) {
            Ok(listed) => children.extend(listed.split_ascii_whitespace().filter_map(pid)),
            // The thread is gone, and its children are another's.
            Err(_) if !thread.path().exists() => {}
            // A kernel that does not list them.
            Err(_) => return by_parent(parent),
        }
    }
    children
}

/// The same, from everything that runs on this host.
fn by_parent(parent: Pid) -> Vec<Pid> {
    let parent = parent.to_string();
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mine = all.filter_map(|entry| {
        let child = pid(entry.file_name().to_str()?)?;
        (stat(child)?.1 == parent).then_some(child)
    });
    mine.collect()
}

/// Whether a process has ended and only waits to be waited for.
fn is_zombie(process: Pid) -> bool {
    stat(process).is_none_or(|(state, _)| state == "Z" || state == "X")
}

/// The state of a process, and its parent; `None` if there is no such process.
fn stat(process: Pid) -> Option<(String, String)> {
    let path = Path::new("/proc").join(process.to_string()).join("stat");
    let text = std::fs::read_to_string(path).ok()?;
    // The name is in parentheses, and may contain some.
    let mut words = text.rsplit_once(')')?.1.split_ascii_whitespace();
    Some((words.next()?.to_owned(), words.next()?.to_owned()))
}

/// What a process is called, for people.
pub(crate) fn name(process: Pid) -> String {
    let path = Path::new("/proc").join(process.to_string()).join("comm");
    let name = std::fs::read_to_string(path).unwrap_or_default();
    match name.trim() {
        "" => format!("process {process}"),
        name => format!("process {process} ({name})"),
    }
}

fn pid(text: &str) -> Option<Pid> {
    Pid::from_raw(text.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn children_are_found_in_both_ways_and_a_zombie_is_no_trouble() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_child(&child);
        assert!(children().contains(&pid) && by_parent(getpid()).contains(&pid));
        assert_eq!(kill(&[pid]), Left::Dying);
        while !is_zombie(pid) {
            std::thread::yield_now();
        }
        assert_eq!(kill(&[pid]), Left::Dying);
        child.wait().unwrap();
        assert!(!children().contains(&pid));
        assert_eq!(kill(&[pid]), Left::Nothing);
    }
}
