//! On a terminal there are colours and a line of progress.

use std::fs::File;
use std::io::Read;
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::support::tenure;

/// Runs a quick check on a new terminal and returns everything that the terminal got.
fn on_terminal(environment: &[(&str, &str)]) -> String {
    let mut command = tenure(&["store", "check", "memory:", "--quick"]);
    command.envs(environment.iter().copied());
    run_on_terminal(command)
}

fn run_on_terminal(mut command: Command) -> String {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&controller).unwrap();
    unlockpt(&controller).unwrap();
    let name = ptsname(&controller, Vec::new()).unwrap();
    let terminal = rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();

    if !command.get_envs().any(|(name, _)| name == "TERM") {
        command.env("TERM", "xterm");
    }
    let mut child = command
        .stdout(File::from(terminal.try_clone().unwrap()))
        .stderr(File::from(terminal))
        .spawn()
        .unwrap();
    // The command also holds the terminal open.
    drop(command);
    let mut seen = Vec::new();
    // The last writer closing a terminal is an error to its reader, not an end.
    let _ = File::from(controller).read_to_end(&mut seen);
    assert!(child.wait().unwrap().success());
    String::from_utf8(seen).unwrap()
}

#[test]
fn a_terminal_gets_colours_and_progress() {
    let seen = on_terminal(&[]);
    assert!(
        seen.contains("\x1b[32mpassed\x1b[0m       replacing the current"),
        "{seen}"
    );
    assert!(
        seen.contains("checking 1 of 17: replace-current\r\x1b[2K\x1b[32mpassed"),
        "{seen}"
    );
    assert!(
        seen.contains("removing what the checks wrote\r\x1b[2K\r\nverdict: "),
        "{seen}"
    );
    assert!(seen.contains("\x1b[1mhint:\x1b[0m this store"), "{seen}");
}

#[test]
fn a_log_that_is_verified_on_a_terminal_tells_how_far_it_has_come() {
    let scene = crate::run::Scene::new();
    crate::log::two_terms(&scene);
    let seen = run_on_terminal(scene.tenure(&["log", "verify"]));
    assert!(
        seen.starts_with("\r\x1b[2Kreading: 0 records so far, 0 MiB"),
        "{seen:?}"
    );
    assert!(
        seen.contains("\r\x1b[2K\x1b[32mintact\x1b[0m: "),
        "{seen:?}"
    );
}

#[test]
fn a_terminal_that_wants_no_colours_gets_none() {
    for environment in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let seen = on_terminal(&[environment]);
        assert!(
            seen.contains("\x1b[2Kpassed       replacing the current"),
            "{seen}"
        );
        assert!(!seen.replace("\x1b[2K", "").contains('\x1b'), "{seen}");
    }
}
