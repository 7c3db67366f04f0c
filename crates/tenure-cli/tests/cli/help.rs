//! The whole help. Snapshots hold the binary's output: after a change, write them again, for instance with `tenure
//! serve --help > crates/tenure-cli/tests/cli/snapshots/serve.txt`, and read the difference.

use crate::support::{check, run, tenure};

#[test]
fn every_verb_explains_itself() {
    for flag in ["-h", "--help"] {
        check(&[flag], 0, include_str!("snapshots/tenure.txt"), "");
        for (verb, help) in [
            ("run", include_str!("snapshots/run.txt")),
            ("elect", include_str!("snapshots/elect.txt")),
            ("status", include_str!("snapshots/status.txt")),
            ("watch", include_str!("snapshots/watch.txt")),
            ("resign", include_str!("snapshots/resign.txt")),
            ("transfer", include_str!("snapshots/transfer.txt")),
            ("history", include_str!("snapshots/history.txt")),
            ("nodes", include_str!("snapshots/nodes.txt")),
            ("daemons", include_str!("snapshots/daemons.txt")),
            ("plan", include_str!("snapshots/plan.txt")),
            ("drain", include_str!("snapshots/drain.txt")),
            ("undrain", include_str!("snapshots/undrain.txt")),
            ("serve", include_str!("snapshots/serve.txt")),
            ("top", include_str!("snapshots/top.txt")),
            ("worker", include_str!("snapshots/worker.txt")),
            ("bench", include_str!("snapshots/bench.txt")),
            ("completions", include_str!("snapshots/completions.txt")),
            ("man", include_str!("snapshots/man.txt")),
            ("help", include_str!("snapshots/help.txt")),
        ] {
            check(&[verb, flag], 0, help, "");
        }
        check(&["log", flag], 0, include_str!("snapshots/log.txt"), "");
        for (verb, help) in [
            ("show", include_str!("snapshots/log-show.txt")),
            ("diff", include_str!("snapshots/log-diff.txt")),
            ("verify", include_str!("snapshots/log-verify.txt")),
        ] {
            check(&["log", verb, flag], 0, help, "");
        }
        for (verb, help) in [
            ("job", include_str!("snapshots/job.txt")),
            ("job submit", include_str!("snapshots/job-submit.txt")),
            ("job get", include_str!("snapshots/job-get.txt")),
            ("job list", include_str!("snapshots/job-list.txt")),
            ("job cancel", include_str!("snapshots/job-cancel.txt")),
            ("job retry", include_str!("snapshots/job-retry.txt")),
            ("job move", include_str!("snapshots/job-move.txt")),
            ("job delete", include_str!("snapshots/job-delete.txt")),
            ("queue", include_str!("snapshots/queue.txt")),
            ("queue list", include_str!("snapshots/queue-list.txt")),
            ("queue pause", include_str!("snapshots/queue-pause.txt")),
            ("queue resume", include_str!("snapshots/queue-resume.txt")),
            ("queue set", include_str!("snapshots/queue-set.txt")),
            ("queue time", include_str!("snapshots/queue-time.txt")),
            ("outbox", include_str!("snapshots/outbox.txt")),
            ("outbox schema", include_str!("snapshots/outbox-schema.txt")),
            ("outbox run", include_str!("snapshots/outbox-run.txt")),
            ("outbox status", include_str!("snapshots/outbox-status.txt")),
            ("outbox retry", include_str!("snapshots/outbox-retry.txt")),
            ("outbox purge", include_str!("snapshots/outbox-purge.txt")),
            (
                "outbox release",
                include_str!("snapshots/outbox-release.txt"),
            ),
            ("import", include_str!("snapshots/import.txt")),
            (
                "import osqueue",
                include_str!("snapshots/import-osqueue.txt"),
            ),
            ("schedule", include_str!("snapshots/schedule.txt")),
            ("schedule set", include_str!("snapshots/schedule-set.txt")),
            ("schedule list", include_str!("snapshots/schedule-list.txt")),
            (
                "schedule pause",
                include_str!("snapshots/schedule-pause.txt"),
            ),
            (
                "schedule resume",
                include_str!("snapshots/schedule-resume.txt"),
            ),
            (
                "schedule delete",
                include_str!("snapshots/schedule-delete.txt"),
            ),
        ] {
            let mut arguments: Vec<&str> = verb.split(' ').collect();
            arguments.push(flag);
            check(&arguments, 0, help, "");
        }
        check(&["store", flag], 0, include_str!("snapshots/store.txt"), "");
        let store_check = include_str!("snapshots/store-check.txt");
        check(&["store", "check", flag], 0, store_check, "");
    }
}

#[test]
fn help_about_a_verb_is_the_verbs_own() {
    check(&["help"], 0, include_str!("snapshots/tenure.txt"), "");
    check(
        &["help", "serve"],
        0,
        include_str!("snapshots/serve.txt"),
        "",
    );
    check(&["help", "help"], 0, include_str!("snapshots/help.txt"), "");
    let submit = include_str!("snapshots/job-submit.txt");
    check(&["help", "job", "submit"], 0, submit, "");
    let (code, stdout, stderr) = run(&mut tenure(&["help", "statsu"]));
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert!(
        stderr.contains("similar subcommand exists: 'status'"),
        "{stderr}"
    );
}

#[test]
fn no_verb_at_all_gets_help_but_is_no_success() {
    check(&[], 2, "", include_str!("snapshots/tenure.txt"));
    check(&["store"], 2, "", include_str!("snapshots/store.txt"));
}

#[test]
fn the_version_is_that_of_the_package() {
    let version = concat!("tenure ", env!("CARGO_PKG_VERSION"), "\n");
    check(&["--version"], 0, version, "");
    check(&["-V"], 0, version, "");
}
