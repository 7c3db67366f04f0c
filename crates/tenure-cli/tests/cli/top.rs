//! `tenure top`, on a real terminal and without one.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};

use crate::serve::Serving;
use crate::support::{run, tenure};

/// A generous limit; nothing is measured against it.
const PATIENCE: Duration = Duration::from_secs(60);

fn serving(folder: &std::path::Path) -> (Serving, String) {
    let serving = Serving::start(folder, &["--store", "memory:", "--node", "n1"]);
    let url = format!("http://{}", serving.address);
    let job = r#"{"type":"send","queue":"mail"}"#;
    while serving.ask("POST", "/v1/jobs", job).0 != 201 {
        std::thread::sleep(Duration::from_millis(20));
    }
    (serving, url)
}

#[test]
fn one_screen_is_plain_text() {
    let folder = tempfile::tempdir().unwrap();
    let (_serving, url) = serving(folder.path());
    let (code, stdout, stderr) = run(&mut tenure(&["top", "--once", "--server", &url]));
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    for expected in [
        "namespace default, as seen by n1\n",
        "leader    n1 in term 1, for ",
        "jobs      1 ready  0 running",
        "rates     submitted ",
        "n1    leader",
        "mail   open   1      0        0          0     ",
    ] {
        assert!(stdout.contains(expected), "{expected}\n{stdout}");
    }
    assert!(!stdout.contains('\x1b'), "{stdout}");
}

#[test]
fn a_server_that_is_not_there_is_told() {
    let arguments = [
        "top",
        "--once",
        "--server",
        "http://127.0.0.1:1",
        "--timeout",
        "1ms",
    ];
    let (code, stdout, stderr) = run(&mut tenure(&arguments));
    assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
    assert!(stderr.contains("error: "), "{stderr}");
}

fn terminal() -> (File, OwnedFd) {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&controller).unwrap();
    unlockpt(&controller).unwrap();
    let name = ptsname(&controller, Vec::new()).unwrap();
    let terminal = rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
    let size = Winsize {
        ws_row: 30,
        ws_col: 120,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&terminal, size).unwrap();
    (File::from(controller), terminal)
}

/// Reads everything that a terminal shows, as it comes.
fn read_on(mut controller: File) -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = controller.read(&mut buffer) {
            if sender.send(buffer[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}

fn until(pieces: &mpsc::Receiver<Vec<u8>>, seen: &mut String, wanted: &str) {
    while !seen.contains(wanted) {
        let piece = pieces.recv_timeout(PATIENCE);
        let piece = piece.unwrap_or_else(|_| panic!("{wanted} never came: {seen}"));
        seen.push_str(&String::from_utf8_lossy(&piece));
    }
}

#[test]
fn the_terminal_is_given_back_however_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let (_serving, url) = serving(folder.path());
    for by_key in [true, false] {
        let (mut controller, terminal) = terminal();
        let before = tcgetattr(&terminal).unwrap();
        let pieces = read_on(controller.try_clone().unwrap());
        let file = || File::from(terminal.try_clone().unwrap());
        let mut child = tenure(&["top", "--server", &url])
            .env("TERM", "xterm-256color")
            .stdin(file())
            .stdout(file())
            .stderr(file())
            .spawn()
            .unwrap();
        let mut seen = String::new();
        until(&pieces, &mut seen, "quit");
        until(&pieces, &mut seen, "mail");
        assert_ne!(
            tcgetattr(&terminal).unwrap().local_modes,
            before.local_modes
        );
        if by_key {
            controller.write_all(b"q").unwrap();
        } else {
            kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        }
        child.wait().unwrap();
        // The terminal is restored: the normal screen, the cursor, and line editing.
        until(&pieces, &mut seen, "\x1b[?1049l");
        until(&pieces, &mut seen, "\x1b[?25h");
        assert_eq!(
            tcgetattr(&terminal).unwrap().local_modes,
            before.local_modes
        );
    }
}
