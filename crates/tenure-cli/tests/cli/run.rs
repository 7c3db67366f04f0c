//! `tenure run`, with real processes on a directory. Whatever happens to them, no program of one term does anything
//! after one of a later term has begun.

use std::process::Command;

use rustix::process::{Signal, kill_process};

use crate::support::{check, run, tenure};

mod scene;

pub(crate) use scene::{Running, Scene, is_gone, stop_guard, until};

/// Long enough for a busy machine to renew, short enough to wait for.
pub(crate) const TTL: &str = "3s";

/// Appends `TERM NODE WORD` to the log when it starts, while it runs, and when it is told to stop.
pub(crate) const PROGRAM: &str = r#"
say() { echo "$TENURE_TERM $TENURE_NODE $1" >> "$LOG"; }
trap 'say stop; exit 0' TERM
say "start $$ $PPID"
while :; do say tick; sleep 0.05; done
"#;

#[test]
fn one_program_runs_at_a_time_and_moves_when_its_node_is_told_to_stop() {
    let scene = Scene::new();
    let mut a = scene.run("a", PROGRAM, &[]);
    scene.wait_for("1 a tick");
    let mut b = scene.run("b", PROGRAM, &[]);
    a.wait_for_note("a leads default in term 1");
    b.wait_for_note("b is a candidate in the election default");

    a.signal(Signal::TERM);
    assert_eq!(a.ended(), 0);
    scene.wait_for("b tick");
    assert!(scene.has("1 a stop"), "{}", scene.log());
    b.signal(Signal::INT);
    // The shell has no trap for it and is ended by it; tenure was asked to stop, and did.
    assert_eq!(b.ended(), 0);
    scene.check_order();
}

#[test]
fn a_program_dies_with_its_tenure_and_so_does_what_it_started() {
    let scene = Scene::new();
    let family = r#"
        sleep 1000 & say "start $!"
        setsid sh -c 'echo "$TENURE_TERM $TENURE_NODE start $$" >> "$LOG"; exec sleep 1000' &
    "#;
    let program = PROGRAM.replace("while :", &format!("{family} while :"));
    let a = scene.run("a", &program, &[]);
    until("a family of three", || scene.pids("a").len() == 3);
    let _b = scene.run("b", PROGRAM, &[]);
    a.signal(Signal::KILL);
    scene.wait_for_end("a");
    scene.wait_for("b tick");
    assert!(!scene.has("1 a stop"), "{}", scene.log());
    scene.check_order();
}

#[test]
fn a_stopped_tenure_loses_its_program_before_another_starts() {
    let scene = Scene::new();
    let mut a = scene.run("a", PROGRAM, &[]);
    scene.wait_for("1 a tick");
    let mut b = scene.run("b", PROGRAM, &[]);
    b.wait_for_note("b is a candidate in");
    a.signal(Signal::STOP);
    scene.wait_for("b tick");
    assert!(scene.all_gone("a"));
    // It was told to stop before it was killed, by the guard alone.
    assert!(scene.has("1 a stop"), "{}", scene.log());

    a.signal(Signal::CONT);
    a.wait_for_note("note: leadership of default in term 1 ended: ");
    // And it is a candidate again.
    b.signal(Signal::TERM);
    assert_eq!(b.ended(), 0);
    until("another term of a", || {
        scene.lines().iter().any(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            words[0] != "1" && words[1] == "a" && words[2] == "tick"
        })
    });
    scene.check_order();
}

#[test]
fn a_program_that_does_not_stop_is_killed() {
    let scene = Scene::new();
    let stubborn = PROGRAM.replace("say stop; exit 0", "say told");
    let mut a = scene.run("a", &stubborn, &["--kill-after", "500ms"]);
    scene.wait_for("1 a tick");
    a.signal(Signal::TERM);
    assert_eq!(a.ended(), 0);
    assert!(scene.has("1 a told") && scene.all_gone("a"));

    // A second signal does not wait. The first may take the program an hour.
    let mut b = scene.run("b", &stubborn, &["--kill-after", "1h"]);
    scene.wait_for("b tick");
    b.signal(Signal::TERM);
    scene.wait_for("b told");
    b.signal(Signal::TERM);
    assert_eq!(b.ended(), 0);
    assert!(scene.all_gone("b"));
    scene.check_order();
}

#[test]
fn a_stop_that_comes_with_the_start_is_not_lost() {
    let scene = Scene::new();
    for _ in 0..10 {
        let mut a = scene.run("a", "exec sleep 1000", &["--kill-after", "1h"]);
        a.wait_for_note("a leads default");
        a.signal(Signal::TERM);
        assert_eq!(a.ended(), 0);
    }
}

#[test]
fn a_stubborn_program_of_a_stopped_tenure_is_killed_in_time() {
    let scene = Scene::new();
    let stubborn = PROGRAM.replace("say stop; exit 0", "say told");
    let a = scene.run("a", &stubborn, &[]);
    scene.wait_for("1 a tick");
    let _b = scene.run("b", PROGRAM, &[]);
    a.signal(Signal::STOP);
    scene.wait_for("b tick");
    assert!(scene.has("1 a told") && scene.all_gone("a"));
    a.signal(Signal::CONT);
    scene.check_order();
}

#[test]
fn a_program_dies_with_its_guard_and_is_started_again() {
    let scene = Scene::new();
    let mut a = scene.run("a", PROGRAM, &["--kill-after", "500ms"]);
    until("a start", || scene.starts().len() == 1);
    let (program, guard) = scene.starts()[0];
    kill_process(guard, Signal::KILL).unwrap();
    until("the end of both", || is_gone(&program) && is_gone(&guard));

    // A stopped guard is noticed as soon as it should do something.
    until("another start", || scene.starts().len() == 2);
    let (program, guard) = scene.starts()[1];
    stop_guard(guard);
    a.signal(Signal::TERM);
    assert_eq!(a.ended(), 0);
    assert!(is_gone(&program) && is_gone(&guard));
    scene.check_order();
}

#[test]
fn leadership_goes_on_when_a_program_outlives_a_short_stop() {
    let scene = Scene::new();
    let mut a = scene.run("a", PROGRAM, &[]);
    scene.wait_for("1 a tick");
    a.signal(Signal::STOP);
    a.signal(Signal::CONT);
    let ticks = scene.log().matches("tick").count();
    until("more ticks", || {
        scene.log().matches("tick").count() > ticks + 5
    });
    assert_eq!(scene.starts().len(), 1);
    a.signal(Signal::TERM);
    assert_eq!(a.ended(), 0);
}

#[test]
fn with_once_the_exit_code_is_that_of_the_program() {
    let scene = Scene::new();
    for (program, code) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)] {
        let mut once = scene.run("a", program, &["--once"]);
        assert_eq!(once.ended(), code, "{program}");
    }
    let program = r#"echo "$TENURE_TERM a start" >> "$LOG"; exec sleep 1000"#;
    let mut once = scene.run("a", program, &["--once"]);
    scene.wait_for("start");
    once.signal(Signal::TERM);
    assert_eq!(once.ended(), 143);
    // It released its leadership, so the next term begins without a wait.
    let (code, history, _) = run(&mut scene.tenure(&["history"]));
    assert_eq!(code, 0);
    assert_eq!(history.matches("  resigned\n").count(), 4, "{history}");
}

#[test]
fn with_once_a_program_that_never_ran_is_no_success() {
    let scene = Scene::new();
    let _a = scene.run("a", PROGRAM, &[]);
    scene.wait_for("1 a tick");
    let mut once = scene.run("b", PROGRAM, &["--once"]);
    once.wait_for_note("note: b is a candidate in the election default");
    once.signal(Signal::TERM);
    assert_eq!(once.ended(), 2);
    once.wait_for_note("warning: stopped before the program ran");
    assert!(!scene.has("b start"), "{}", scene.log());
}

#[test]
fn a_guard_that_was_killed_is_told_as_that() {
    let scene = Scene::new();
    let mut a = scene.run("a", PROGRAM, &[]);
    scene.wait_for("1 a tick");
    let (_, guard) = scene.starts()[0];
    kill_process(guard, Signal::KILL).unwrap();
    a.wait_for_note(
        "note: the guard of the program was killed, and the program with it, starting it again in 250ms",
    );
    until("another start", || scene.starts().len() == 2);
}

#[test]
fn what_a_program_leaves_behind_ends_before_tenure_does() {
    let scene = Scene::new();
    let program = r#"
        setsid sh -c 'echo "$TENURE_TERM $TENURE_NODE start $$" >> "$LOG"; exec sleep 1000' &
        while ! [ -s "$LOG" ]; do sleep 0.01; done
        exit 3
    "#;
    let mut once = scene.run("a", program, &["--once"]);
    assert_eq!(once.ended(), 3);
    let left = scene.pids("a");
    assert!(left.len() == 1 && left.iter().all(is_gone), "{left:?}");
}

#[test]
fn a_program_that_ends_is_started_again_and_one_that_fails_moves_on() {
    let scene = Scene::new();
    let program = PROGRAM.replace("while", r#"[ "$TENURE_NODE" = b ] || exit 9; while"#);
    let mut a = scene.run("a", &program, &[]);
    scene.wait_for("1 a start");
    let _b = scene.run("b", &program, &[]);
    scene.wait_for("b tick");
    a.wait_for_note("note: the program exited with 9, starting it again in 250ms");
    a.wait_for_note(
        "warning: the program exited with 9, 5 times in a row: letting another node try",
    );
    let why = "gave up: the program exited with 9, 5 times in a row";
    a.wait_for_note(&format!(
        "note: leadership of default in term 1 ended: {why}"
    ));
    let (_, history, _) = run(&mut scene.tenure(&["history"]));
    assert!(history.contains(why), "{history}");
    assert_eq!(scene.pids("a").len(), 5);
    scene.check_order();
}

#[test]
fn other_signals_reach_the_program() {
    let scene = Scene::new();
    let traps = "trap 'say hup' HUP; trap 'say usr1' USR1; trap 'say usr2' USR2; while";
    let mut a = scene.run("a", &PROGRAM.replace("while", traps), &[]);
    scene.wait_for("tick");
    for (signal, word) in [
        (Signal::HUP, "hup"),
        (Signal::USR1, "usr1"),
        (Signal::USR2, "usr2"),
    ] {
        a.signal(signal);
        scene.wait_for(&format!("1 a {word}"));
    }
    a.signal(Signal::TERM);
    assert_eq!(a.ended(), 0);
}

#[test]
fn a_candidate_that_never_led_leaves_at_once() {
    let scene = Scene::new();
    let _a = scene.run("a", PROGRAM, &[]);
    scene.wait_for("1 a tick");
    let mut b = scene.run("b", PROGRAM, &[]);
    b.wait_for_note("b is a candidate in");
    b.signal(Signal::HUP);
    b.signal(Signal::TERM);
    assert_eq!(b.ended(), 0);
    assert!(scene.pids("b").is_empty());
}

#[test]
fn the_program_is_told_who_it_is() {
    let scene = Scene::new();
    let output = scene
        .tenure(&[
            "run",
            "--node",
            "web-1",
            "--namespace",
            "shop",
            "--election",
            "reports",
        ])
        .args(["--once", "--", "sh", "-c"])
        .arg("cat; echo $TENURE_NODE $TENURE_NAMESPACE $TENURE_ELECTION $TENURE_TERM $TENURE_TOKEN")
        .output()
        .unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let token = stdout.strip_prefix("web-1 shop reports 1 ").expect(&stdout);
    assert!(token.len() == 35 && token.ends_with(":1\n"), "{token}");
}

#[test]
fn what_cannot_work_is_told_before_standing_in_the_election() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("never-made");
    let store = store.to_str().unwrap();
    let told = |arguments: &[&str], stderr: &str| {
        check(
            &[&["run", "--store", store][..], arguments].concat(),
            2,
            "",
            stderr,
        );
    };
    told(
        &["--", "no-such-program"],
        "error: there is no program no-such-program in PATH\n\
         hint: give its full path, or set PATH\n",
    );
    told(
        &["--", "/etc/passwd"],
        "error: /etc/passwd is not a program that can be run\n\
         hint: check the path, and that the file is executable\n",
    );
    told(
        &["--ttl", "0s", "--", "true"],
        "error: these times are not safe together: ttl 0ns is not between 200ms and 86400s\n",
    );
    told(
        &["--ttl", "100ms", "--", "true"],
        "error: these times are not safe together: ttl 100ms is not between 200ms and 86400s\n",
    );
    told(
        &["--ttl", "10", "--", "true"],
        "error: invalid value '10' for '--ttl <TIME>': use a number and a unit: 500ms, 10s, 2m, 1h \
         or 1d\n\nFor more information, try '--help'.\n",
    );
    let names = "use 1 to 200 of the characters A-Z a-z 0-9 - _ . : @ + =, not starting with a dot";
    told(
        &["--namespace", "a/b", "--", "true"],
        &format!("error: the namespace \"a/b\" contains '/'; {names}\n"),
    );
    told(
        &["--election", "..", "--", "true"],
        &format!("error: the election name \"..\" starts with a dot; {names}\n"),
    );
    told(
        &["--node", "a\nb", "--", "true"],
        &format!("error: the node id \"a\\nb\" contains '\\n'; {names}\n"),
    );
    // All mistakes at once, with the calculation.
    told(
        &[
            "--ttl",
            "10s",
            "--heartbeat",
            "8s",
            "--request-timeout",
            "5s",
            "--node",
            "a/b",
            "--",
            "no-such-program",
        ],
        &format!(
            "error: these times are not safe together: heartbeat 8s + request_timeout 5s + grace 2s + margin 1s = 16s > \
             ttl 10s, so one slow heartbeat would stop a healthy leader; the node id \"a/b\" contains '/'; {names}; there is \
             no program no-such-program in PATH\n"
        ),
    );
    told(
        &[
            "--daemon",
            "d",
            "--acknowledge-timeout",
            "1s",
            "--drain-timeout",
            "12s",
            "--shards",
            "0",
            "--",
            "true",
        ],
        "error: a daemon must have 1 to 20000 shards or replicas, not 0; these times are not safe together: drain_timeout 12s * 9/10 = \
         10.8s < ttl 10s + heartbeat 3s = 13s, so an outage that sessions survive would stop their daemons; \
         acknowledge_timeout 1s < 2 * heartbeat 3s = 6s, so a node that polls could be too late; drain_timeout 12s is \
         shorter than (kill_after 30s + 2s) * 5/4 = 40s, so a program would be killed before its time to stop is over\n",
    );
    let (code, _, stderr) = run(&mut tenure(&["run", "--store", store]));
    assert_eq!(code, 2);
    assert!(stderr.contains("<CMD>"), "{stderr}");
    assert!(!folder.path().join("never-made").exists());
}

#[test]
fn a_guard_by_itself_says_where_it_belongs() {
    check(
        &["__guard", "1000", "--", "true"],
        2,
        "",
        "error: __guard is an internal part of `tenure run` and `tenure worker`\n\
         hint: see `tenure run --help`\n",
    );
    check(
        &["__exec", "1", "--", "true"],
        2,
        "",
        "error: __exec is an internal part of `tenure run` and `tenure worker`\n\
         hint: see `tenure run --help`\n",
    );
}

#[test]
fn a_program_that_cannot_be_loaded_is_told_and_counts_as_a_failure() {
    let scene = Scene::new();
    let script = scene.path("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    let mut executable = Command::new("chmod");
    assert!(
        executable
            .args(["+x"])
            .arg(&script)
            .status()
            .unwrap()
            .success()
    );
    let output = scene
        .tenure(&["run", "--node", "a", "--once", "--"])
        .arg(&script)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(127));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("error: cannot start "), "{stderr}");
}
