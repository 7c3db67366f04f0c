//! Completions and manual pages, as shells and `man` take them.

use std::process::{Command, Stdio};

use tenure_testkit::skip;

use crate::support::{run, tenure};

fn script(shell: &str) -> String {
    let (code, script, stderr) = run(&mut tenure(&["completions", shell]));
    assert_eq!((code, stderr.as_str()), (0, ""));
    script
}

/// What bash would offer for the last of these words.
fn offered(words: &[&str]) -> Vec<String> {
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let (last, before) = (words[words.len() - 1], words[words.len() - 2]);
    let program = format!(
        "{}\nCOMP_WORDS=({}); COMP_CWORD={}\n_tenure tenure '{last}' '{before}'\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
        script("bash"),
        quoted.join(" "),
        words.len() - 1,
    );
    let output = Command::new("bash")
        .args(["--norc", "-c", &program])
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let errors = text(output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{errors}");
    text(output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_verbs_flags_and_values() {
    assert_eq!(offered(&["tenure", "dae"]), ["daemons"]);
    assert_eq!(offered(&["tenure", "job", "sub"]), ["submit"]);
    assert_eq!(offered(&["tenure", "serve", "--econ"]), ["--economy"]);
    let formats = offered(&["tenure", "serve", "--log-format", ""]);
    assert_eq!(formats, ["text", "json"]);
}

#[test]
fn other_shells_can_read_their_scripts() {
    for (shell, first) in [("zsh", "#compdef tenure\n"), ("fish", "# Print an optspec")] {
        let script = script(shell);
        assert!(script.starts_with(first), "{shell}: {script:.200}");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("script");
        std::fs::write(&path, &script).unwrap();
        let read = Command::new(shell).arg("-n").arg(&path).output();
        let Ok(read) = read else {
            skip::note(&format!("{shell} is not installed"));
            continue;
        };
        let errors = String::from_utf8_lossy(&read.stderr);
        assert!(read.status.success() && errors.is_empty(), "{errors}");
    }
}

#[test]
fn every_verb_has_a_manual_page_that_man_can_read() {
    let directory = tempfile::tempdir().unwrap();
    let pages = directory.path().join("deep/man1");
    let arguments = ["man", pages.to_str().unwrap()];
    assert_eq!(
        run(&mut tenure(&arguments)),
        (0, String::new(), String::new())
    );
    for page in ["tenure", "tenure-serve", "tenure-job-submit", "tenure-help"] {
        let path = pages.join(page).with_extension("1");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(".SH SYNOPSIS"), "{page}: {text}");
        let checked = Command::new("groff")
            .args(["-Kutf8", "-man", "-ww", "-z", "-Tutf8"])
            .arg(&path)
            .stdin(Stdio::null())
            .output();
        match checked {
            Ok(checked) => assert_eq!(String::from_utf8_lossy(&checked.stderr), "", "{page}"),
            Err(_) => skip::note("groff is not installed"),
        }
    }
    let (code, _, stderr) = run(&mut tenure(&["man", "/proc/nowhere"]));
    assert_eq!(code, 2);
    assert!(stderr.contains("cannot write manual pages to /proc/nowhere"));
}
