//! The children of this process, and how to end them.
//!
//! A child subreaper becomes the parent of every process below it that loses its parent. So killing all children, again
//! and again until there are none, kills every descendant, even those that have left the process group or the session.
//! Processes that keep starting others would win that race, so all of them are stopped first. A process that may not be
//! killed is not gone: only its end counts.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open, pidfd_send_signal,
};
use rustix::time::Timespec;

/// How many times to look for descendants that are not stopped yet. Each look finds what was started during the one
/// before, and stopped processes start nothing: unless there are very many, a few looks are enough.
const LOOKS_MAX: u32 = 100;

/// What is left after a kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    Nothing,
    /// They were sent the signal, and have not ended yet.
    Dying,
    /// This one may not be killed: it belongs to another user.
    Stuck(Pid),
}

/// Stops these children of this process and all their descendants, then kills the children. Their own children then
/// become this process's: call this again until nothing is left. Reported processes have not been waited for yet, and
/// may be zombies.
pub(crate) fn kill(children: &[Pid]) -> Left {
    stop(children);
    let mut left = Left::Nothing;
    for &child in children {
        left = match kill_process(child, Signal::KILL) {
            Err(Errno::SRCH) => left,
            // A zombie has ended, whichever user it belongs to.
            Err(_) if !is_zombie(child) => Left::Stuck(child),
            _ if left == Left::Nothing => Left::Dying,
            _ => left,
        };
    }
    left
}

/// Stops children of this process and all their descendants. A child's process id is its own until this process has
/// waited for it. Further down, an id may be reused by an unrelated process at any time, hence [`Held`].
fn stop(children: &[Pid]) {
    let mut stopped = BTreeSet::new();
    for _ in 0..LOOKS_MAX {
        let before = stopped.len();
        let mut parents = Vec::new();
        for &child in children {
            if stopped.insert(child.as_raw_nonzero()) {
                // If it is gone or may not be stopped, there is nothing to do here.
                let _ = kill_process(child, Signal::STOP);
            }
            parents.extend(Held::open(child));
        }
        while let Some(parent) = parents.pop() {
            for child in children_of(parent.pid) {
                let Some(child) = Held::open(child).filter(|child| child.is_child_of(&parent))
                else {
                    continue;
                };
                if stopped.insert(child.pid.as_raw_nonzero()) {
                    let _ = pidfd_send_signal(&child.held, Signal::STOP);
                }
                parents.push(child);
            }
        }
        if stopped.len() == before {
            return;
        }
    }
}

/// A process held by a descriptor, so that it cannot be confused with a later one of the same id.
struct Held {
    pid: Pid,
    held: OwnedFd,
}

impl Held {
    fn open(pid: Pid) -> Option<Self> {
        let held = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        Some(Self { pid, held })
    }

    /// The parent still lives after the child's parent id was read, so the id was the parent's at that moment.
    fn is_child_of(&self, parent: &Self) -> bool {
        stat(self.pid).is_some_and(|(_, of)| of == parent.pid.to_string())
            && self.lives()
            && parent.lives()
    }

    fn lives(&self) -> bool {
        let mut ended = [PollFd::new(&self.held, PollFlags::IN)];
        let at_once = Timespec::default();
        poll(&mut ended, Some(&at_once)) == Ok(0)
    }
}

/// This process's children, including those of all its threads.
pub(crate) fn children() -> Vec<Pid> {
    children_of(getpid())
}

fn children_of(parent: Pid) -> Vec<Pid> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{parent}/task")) else {
        // The process is gone, unless the kernel shows nothing at all.
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
            // The thread is gone, and its children belong to another one.
            Err(_) if !thread.path().exists() => {}
            // This kernel does not list children.
            Err(_) => return by_parent(parent),
        }
    }
    children
}

/// The same, found by reading all processes of this host.
fn by_parent(parent: Pid) -> Vec<Pid> {
    let parent = parent.to_string();
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mine = all.filter_map(|entry| {
        let child = pid(entry.file_name().to_str()?)?;
        (stat(child)?.1 == parent).then_some(child)
    });
    mine.collect()
}

/// Whether a process has ended and has not been waited for.
fn is_zombie(process: Pid) -> bool {
    stat(process).is_none_or(|(state, _)| state == "Z" || state == "X")
}

/// The state of a process, and its parent; `None` if there is no such process.
fn stat(process: Pid) -> Option<(String, String)> {
    let path = Path::new("/proc").join(process.to_string()).join("stat");
    let text = std::fs::read_to_string(path).ok()?;
    // The name is in parentheses, and may itself contain parentheses.
    let mut words = text.rsplit_once(')')?.1.split_ascii_whitespace();
    Some((words.next()?.to_owned(), words.next()?.to_owned()))
}

/// A process's name, for messages.
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
    fn a_stranger_is_nobodys_child() {
        // The child of a child, whose id may be reused.
        let mut child = Command::new("sh")
            .args(["-c", "sleep 1000 & wait"])
            .spawn()
            .unwrap();
        let parent = Held::open(Pid::from_child(&child)).unwrap();
        let below = loop {
            match children_of(parent.pid)[..] {
                [below] => break Held::open(below).unwrap(),
                _ => std::thread::yield_now(),
            }
        };
        let me = Held::open(getpid()).unwrap();
        assert!(below.is_child_of(&parent) && !below.is_child_of(&me));
        // The id of a process that has ended may belong to another.
        child.kill().unwrap();
        while parent.lives() {
            std::thread::yield_now();
        }
        assert!(!below.is_child_of(&parent));
        pidfd_send_signal(&below.held, Signal::KILL).unwrap();
        child.wait().unwrap();
        while below.lives() {
            std::thread::yield_now();
        }
        assert!(!below.is_child_of(&me));
    }

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
