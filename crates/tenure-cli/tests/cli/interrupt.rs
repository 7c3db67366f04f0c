//! Ctrl-C and SIGTERM.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Ended, ended, tenure};

pub(crate) const TOLD: &str = "\
note: interrupted; removing what this run wrote (interrupt again to leave it)
note: everything that this run wrote is removed; there is no verdict
";

/// Starts a check that takes far longer than a test, and sends the signal once it is under way.
pub(crate) fn interrupted(url: &str, signal: Signal) -> Ended {
    let long = ["--writers", "1000", "--rounds", "10000"];
    let mut child = tenure(&[&["store", "check", url][..], &long].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let reader = BufReader::new(child.stdout.take().unwrap());
    let mut lines = reader.lines().map(Result::unwrap);
    // The check after this one is the first race.
    assert!(lines.any(|line| line.contains("replace-recreated: ")));
    kill_process(Pid::from_child(&child), signal).unwrap();
    ended(child.wait_with_output().unwrap())
}

#[test]
fn an_interrupted_check_says_so_and_decides_nothing() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let ended = interrupted("memory:", signal);
        assert_eq!(ended, (code, String::new(), TOLD.to_owned()));
    }
}
