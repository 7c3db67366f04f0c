//! How `tenure serve` logs: for programs unless somebody looks.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::tenure;

/// Everything that a server says from its start to its end.
fn said(arguments: &[&str]) -> Vec<String> {
    let mut all = vec!["serve", "--store", "memory:", "--listen", "127.0.0.1:0"];
    all.extend(arguments);
    let mut child = tenure(&all)
        .env("TENURE_LOG", "tenure=debug,tenure_store=debug")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = Pid::from_child(&child);
    let mut lines = Vec::new();
    for line in BufReader::new(child.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        if line.contains("  standby ") {
            kill_process(pid, Signal::TERM).unwrap();
        }
        lines.push(line);
    }
    child.wait().unwrap();
    lines
}

#[test]
fn a_log_that_nobody_watches_is_json_lines() {
    let objects = |lines: &[String]| lines.iter().filter(|line| line.starts_with('{')).count();
    let lines = said(&[]);
    for line in lines.iter().filter(|line| line.starts_with('{')) {
        let entry: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(
            entry["level"].is_string() && entry["timestamp"].is_string(),
            "{line}"
        );
    }
    assert!(objects(&lines) > 0, "{lines:#?}");
    assert_eq!(objects(&said(&["--log-format", "text"])), 0);
}
