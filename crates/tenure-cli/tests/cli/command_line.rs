//! Mistakes, and what must never be printed.

use crate::support::{check, run, tenure};

pub(crate) const SCHEMES: &str = "hint: use memory:, file:DIR or a plain path, s3://BUCKET/PREFIX, \
    gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, postgres://HOST/DATABASE, mysql://HOST/DATABASE or \
    sqlite:PATH\n";

#[test]
fn an_unknown_flag_is_a_two_not_a_no() {
    check(
        &["store", "check", "memory:", "--fast"],
        2,
        "",
        "error: unexpected argument '--fast' found\n\n  \
         tip: to pass '--fast' as a value, use '-- --fast'\n\n\
         Usage: tenure store check <URL>\n\n\
         For more information, try '--help'.\n",
    );
}

#[test]
fn one_writer_is_no_race() {
    check(
        &["store", "check", "memory:", "--writers", "1"],
        2,
        "",
        "error: invalid value '1' for '--writers <N>': 1 is not in 2..=1000\n\n\
         For more information, try '--help'.\n",
    );
}

#[test]
fn no_store_is_told_with_a_hint() {
    let told = "error: no store was named\n\
                hint: give a URL, such as file:./tenure-data, or set TENURE_STORE\n";
    check(&["store", "check"], 2, "", told);
    check(&["store", "check", ""], 2, "", told);
    let ended = run(tenure(&["store", "check"]).env("TENURE_STORE", ""));
    assert_eq!(ended, (2, String::new(), told.to_owned()));
}

#[test]
fn an_unknown_scheme_is_told_without_the_password() {
    for arguments in [
        &["store", "check", "ftp://user:hunter2@host/x"][..],
        &["store", "check", "ftp://user:hunter2@host/x", "--json"],
    ] {
        check(
            arguments,
            2,
            "",
            &format!("error: this build has no store with the scheme \"ftp\"\n{SCHEMES}"),
        );
    }
}

#[test]
fn the_store_may_come_from_the_environment() {
    let ended = run(tenure(&["store", "check"]).env("TENURE_STORE", "ftp://user:hunter2@host/x"));
    assert_eq!(ended.0, 2);
    assert!(ended.2.contains("\"ftp\""), "{}", ended.2);
}

#[test]
fn a_misplaced_url_is_not_repeated() {
    let url = "postgres://user:hunter2@host/x?sslmode=require";
    for arguments in [
        vec![url],
        vec!["store", url],
        vec!["store", "check", "memory:", url],
        vec!["store", "check", "memory:", "--writers", url],
        vec!["serve", url],
        vec!["status", url],
        vec!["run", url],
    ] {
        let (code, stdout, stderr) = run(&mut tenure(&arguments));
        assert_eq!((code, stdout.as_str()), (2, ""), "{arguments:?}");
        assert!(stderr.contains("'postgres://…'"), "{arguments:?}: {stderr}");
        assert!(
            !stderr.contains("hunter2") && !stderr.contains("sslmode"),
            "{stderr}"
        );
    }
}

#[test]
fn help_does_not_show_the_store_of_the_environment() {
    for arguments in [
        &["--help"][..],
        &["run", "--help"],
        &["status", "--help"],
        &["serve", "--help"],
        &["store", "--help"],
        &["store", "check", "--help"],
        &["store", "check", "-h"],
    ] {
        let (code, stdout, stderr) =
            run(tenure(arguments).env("TENURE_STORE", "postgres://user:hunter2@host/x"));
        assert_eq!((code, stderr.as_str()), (0, ""));
        assert!(!stdout.contains("hunter2"), "{stdout}");
    }
}

#[test]
fn a_program_without_dashes_gets_a_tip() {
    check(
        &["worker", "--type", "t", "./prog"],
        2,
        "",
        "error: unexpected argument './prog' found\n\n  \
         tip: put -- before the program: tenure worker --type t -- ./prog, or --exec './prog'\n\n\
         Usage: tenure worker [OPTIONS] --type <TYPE> <--exec <LINE>|CMD>\n\n\
         For more information, try '--help'.\n",
    );
    let (_, _, stderr) = run(&mut tenure(&["job", "submit", "--batch", "jobs.json"]));
    assert!(
        stderr.contains("tip: --batch reads jobs from standard input"),
        "{stderr}"
    );
}

#[test]
fn every_network_is_not_assumed() {
    check(
        &["serve", "--listen", ":8080"],
        2,
        "",
        "error: invalid value ':8080' for '--listen <ADDR:PORT>': use 127.0.0.1:8080 for this host \
         only, or 0.0.0.0:8080 for every network\n\nFor more information, try '--help'.\n",
    );
}

#[cfg(feature = "file")]
#[test]
fn a_store_in_an_odd_place_is_told_what_is_odd() {
    for (place, why) in [
        (
            "/proc/x",
            "/proc is a proc file system, which keeps no files",
        ),
        ("/dev/null", "/dev/null is not a folder"),
        ("/dev/null/x", "/dev/null is not a folder"),
    ] {
        check(
            &["serve", "--store", place, "--listen", "127.0.0.1:0"],
            2,
            "",
            &format!(
                "error: opening the store in {place} was refused; nothing was written\n\
                 caused by: {why}\n\
                 hint: name a folder on a disk; if it does not exist, it is created\n"
            ),
        );
    }
}

#[test]
fn a_log_level_that_does_not_exist_is_told() {
    let (_, _, stderr) = run(tenure(&["serve", "--store", "memory:"]).env("TENURE_LOG", "loud"));
    let cause =
        "caused by: \"loud\" is not a level; levels are off, error, warn, info, debug, trace\n";
    assert!(stderr.contains(cause), "{stderr}");
    let ended = run(tenure(&["serve", "--store", "memory:"]).env("TENURE_LOG", "tenure=loud"));
    assert_eq!(
        ended,
        (
            2,
            String::new(),
            "error: cannot read TENURE_LOG\n\
             caused by: error parsing level filter: expected one of \"off\", \"error\", \"warn\", \
             \"info\", \"debug\", \"trace\", or a number 0-5\n\
             hint: try TENURE_LOG=info, or TENURE_LOG=tenure_store=debug\n"
                .to_owned()
        )
    );
}

#[test]
fn a_usage_names_no_flag_whose_value_is_in_a_variable() {
    let told = "error: the following required arguments were not provided:\n  --to <QUEUE>\n\n\
                Usage: tenure job move [OPTIONS] --to <QUEUE> <ID>...\n\n\
                For more information, try '--help'.\n";
    let mut without = tenure(&["job", "move", "a"]);
    let ended = run(without.env("TENURE_SERVER", "http://127.0.0.1:1"));
    assert_eq!(ended, (2, String::new(), told.to_owned()));
}
