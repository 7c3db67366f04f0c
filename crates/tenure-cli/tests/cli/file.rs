//! The command on a directory: what it leaves there, and its messages when the directory cannot be used.

use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::command_line::SCHEMES;
use crate::interrupt::{TOLD, interrupted};
use crate::serve::Serving;
use crate::support::{check, run, tenure};

/// Every file in the store that is not the engine's own. Empty folders are not objects.
fn objects(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() == ".tenure" {
            continue;
        }
        if entry.file_type().unwrap().is_dir() {
            found.extend(objects(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found
}

#[test]
fn a_directory_passes_and_is_left_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let (code, stdout, stderr) = run(&mut tenure(&["store", "check", path, "--quick"]));
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(
        stdout.contains("\nverdict: every guarantee holds ("),
        "{stdout}"
    );
    assert_eq!(
        stderr,
        "hint: check again without --quick before you rely on the store\n"
    );
    assert_eq!(objects(folder.path()), Vec::<PathBuf>::new());
}

#[test]
fn an_interrupted_check_leaves_nothing_behind() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let folder = tempfile::tempdir().unwrap();
        let ended = interrupted(folder.path().to_str().unwrap(), signal);
        assert_eq!(ended, (code, String::new(), TOLD.to_owned()));
        assert_eq!(objects(folder.path()), Vec::<PathBuf>::new());
    }
}

#[test]
fn serve_keeps_its_state_in_the_current_directory_unless_told_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    let serving = Serving::start(&path, &[]);
    let line = format!("  store      file:{}/tenure-data\n", path.display());
    assert!(serving.banner.contains(&line), "{}", serving.banner);
    assert!(path.join("tenure-data").is_dir());
    assert_eq!(serving.end(Signal::TERM).0, Some(0));
}

#[test]
fn a_url_without_a_path_is_told() {
    let told = format!("error: the store URL \"file:\" has no path\n{SCHEMES}");
    check(&["store", "check", "file:"], 2, "", &told);
    check(
        &["serve", "--store", "file:", "--listen", "127.0.0.1:0"],
        2,
        "",
        &told,
    );
}

#[test]
fn a_store_that_cannot_be_opened_could_not_be_checked() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let (code, stdout, stderr) = run(&mut tenure(&["store", "check", path, "--json"]));
    assert_eq!((code, stdout.as_str()), (2, ""));
    let lines: Vec<&str> = stderr.lines().collect();
    assert_eq!(
        lines[..2],
        [
            format!("error: opening the store in {path} was refused; nothing was written").as_str(),
            format!("caused by: {path} is not a folder").as_str(),
        ]
    );
    assert!(
        lines[2].starts_with("hint: ") && lines.len() == 3,
        "{stderr}"
    );
}
