//! What the tests of several processes run: appends lines to a file while it leads.
//!
//! The arguments are store, node, file, ttl in milliseconds and namespace. Each line that is appended is `TERM EVENT PID`.

#![allow(clippy::print_stdout, reason = "the tests read it")]

use std::fs::File;
use std::io::Write;
use std::process;
use std::time::Duration;

use tenure::core::session::Config;
use tenure::{Leadership, Node, NodeOptions, Transition, Transitions};
use tokio::signal::unix::{SignalKind, signal};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let store = arguments.next().ok_or("which store?")?;
    let mut options = NodeOptions::new(store, "example");
    options.node = arguments.next();
    let path = arguments.next().unwrap_or("/dev/stdout".to_owned());
    if let Some(ttl) = arguments.next() {
        options.session = Config::for_ttl(Duration::from_millis(ttl.parse()?));
    }
    if let Some(namespace) = arguments.next() {
        options.namespace = namespace;
    }
    let file = File::options().append(true).create(true).open(path)?;

    let node = Node::start(options).await?;
    let election = node.join("leader").await?;
    tokio::spawn(tell(election.subscribe()));
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        result = election.lead(|leadership| work(leadership, &file)) => result?,
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    node.shutdown().await;
    Ok(())
}

/// What only the leader does, until it is told to stop.
async fn work(leadership: Leadership, mut file: &File) {
    let mut event = "elected";
    // Asked right before the act: the process may have been paused.
    while leadership.check().is_ok() {
        let line = format!("{} {event} {}\n", leadership.term(), process::id());
        if let Err(error) = file.write_all(line.as_bytes()) {
            println!("cannot write: {error}");
            return;
        }
        event = "works";
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(50)) => {}
            () = leadership.stopping().cancelled_owned() => return,
        }
    }
}

async fn tell(mut transitions: Transitions) {
    while let Some(transition) = transitions.next().await {
        match transition {
            // How it begins.
            Transition::NotLeading => {}
            Transition::Elected { term, .. } => println!("term {term} elected"),
            Transition::Ended { term, reason } => println!("term {term} ended: {reason}"),
        }
    }
}
