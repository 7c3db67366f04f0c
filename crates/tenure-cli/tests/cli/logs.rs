//! How `tenure serve` logs: for programs, unless on a terminal.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{run, tenure};

/// A broker that chooses the format of its log.
fn serve(arguments: &[&str]) -> Command {
    let mut all = vec!["serve", "--store", "memory:", "--listen", "127.0.0.1:0"];
    all.extend(arguments);
    let mut command = tenure(&all);
    command.env_remove("TENURE_LOG_FORMAT");
    command
}

/// Everything that a broker writes from start to end.
fn said(arguments: &[&str]) -> Vec<String> {
    let mut child = serve(arguments)
        .env("TENURE_LOG", "tenure=debug,tenure_store=debug")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = Pid::from_child(&child);
    let mut lines = Vec::new();
    for line in BufReader::new(child.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        if line.contains("leading, in term 1") {
            kill_process(pid, Signal::TERM).unwrap();
        }
        lines.push(line);
    }
    child.wait().unwrap();
    lines
}

fn entry(line: &str) -> serde_json::Value {
    let entry: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
    let is_whole = ["timestamp", "level", "target"].map(|field| entry[field].is_string());
    assert_eq!(is_whole, [true; 3], "{line}");
    entry
}

#[test]
fn a_log_that_nobody_watches_is_json_lines_and_nothing_else() {
    for arguments in [&[][..], &["--log-format", "json"]] {
        let lines = said(arguments);
        let entries: Vec<_> = lines.iter().map(|line| entry(line)).collect();
        let messages: Vec<_> = entries
            .iter()
            .filter_map(|entry| entry["fields"]["message"].as_str())
            .collect();
        for message in ["serving", "leading, in term 1"] {
            assert!(messages.contains(&message), "{message}: {lines:#?}");
        }
        let serving = entries
            .iter()
            .find(|entry| entry["fields"]["message"] == "serving")
            .unwrap();
        let url = serving["fields"]["url"].as_str().unwrap();
        assert!(url.starts_with("http://127.0.0.1:"), "{url}");
    }
    let text = said(&["--log-format", "text"]);
    assert!(!text.iter().any(|line| line.starts_with('{')), "{text:#?}");
}

#[test]
fn a_server_that_cannot_start_says_so_in_json_too() {
    let (code, stdout, stderr) = run(serve(&["--log-format", "json"]).env("TENURE_LOG", "foo"));
    assert_eq!((code, stdout.as_str()), (2, ""));
    let entry = entry(stderr.trim_end());
    assert_eq!(entry["level"], "ERROR");
    assert_eq!(entry["fields"]["message"], "cannot read TENURE_LOG");
    let cause = entry["fields"]["causes"][0].as_str().unwrap();
    assert!(cause.starts_with("\"foo\" is not a level"), "{cause}");
    let hint = entry["fields"]["hint"].as_str().unwrap();
    assert!(hint.contains("TENURE_LOG=info"), "{hint}");
}
