//! The verbs that call a broker, with a real one.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use crate::serve::Serving;
use crate::support::{Ended, ended, run, tenure};

/// A broker, and verbs that call it.
struct Scene {
    serving: Serving,
    _folder: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self {
            serving: Serving::start(folder.path(), &["--store", "memory:"]),
            _folder: folder,
        }
    }

    fn command(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = tenure(arguments);
        command.env("TENURE_SERVER", format!("http://{}", self.serving.address));
        command
    }

    fn run(&self, arguments: &[&str]) -> Ended {
        run(&mut self.command(arguments))
    }

    /// Runs a verb that must succeed without messages, and returns its cells, row by row.
    #[track_caller]
    fn rows(&self, arguments: &[&str]) -> Vec<Vec<String>> {
        let (code, stdout, stderr) = self.run(arguments);
        assert_eq!((code, stderr.as_str()), (0, ""), "{arguments:?}");
        rows(&stdout)
    }

    #[track_caller]
    fn check(&self, arguments: &[&str], code: i32, stdout: &str, stderr: &str) {
        let expected = (code, stdout.to_owned(), stderr.to_owned());
        assert_eq!(self.run(arguments), expected, "{arguments:?}");
    }
}

/// A table without white space and without times.
fn rows(text: &str) -> Vec<Vec<String>> {
    let cell = |cell: &str| {
        let is_time = cell.ends_with(" ago") || cell.starts_with("20") && cell.contains("T");
        if is_time { "TIME" } else { cell }.to_owned()
    };
    let row = |line: &str| {
        let cells = line.split("  ").map(str::trim);
        cells.filter(|text| !text.is_empty()).map(cell).collect()
    };
    text.lines().map(row).collect()
}

#[test]
fn jobs_are_found_by_their_words() {
    let scene = Scene::new();
    for (id, payload) in [
        ("a", r#"{"to":"Ada"}"#),
        ("b", r#"{"to":"Bob"}"#),
        ("c", r#"{"to":"ada"}"#),
    ] {
        scene.check(
            &["job", "submit", "mail", payload, "--id", id],
            0,
            &format!("{id}\n"),
            "",
        );
    }
    let found = scene.rows(&["job", "list", "--search", "ada"]);
    let ids: Vec<&str> = found.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(ids, ["ID", "c", "a"]);
}

#[test]
fn a_job_is_submitted_shown_and_listed() {
    let scene = Scene::new();
    let submit = [
        "job",
        "submit",
        "mail",
        r#"{"to":"you"}"#,
        "--id",
        "a",
        "--queue",
        "bulk",
    ];
    scene.check(&submit, 0, "a\n", "");
    scene.check(&submit, 0, "a\n", "note: the job a already exists\n");
    assert_eq!(
        scene.rows(&["job", "get", "a"]),
        [
            ["id", "a"],
            ["type", "mail"],
            ["queue", "bulk"],
            ["state", "ready"],
            ["attempts", "0 of 20"],
            ["submitted", "TIME"],
            ["payload", r#"{"to":"you"}"#],
        ]
    );
    let (code, stdout, _) = scene.run(&["job", "submit", "mail"]);
    assert_eq!((code, stdout.trim().len()), (0, 36), "a uuid: {stdout}");
    let listed = scene.rows(&["job", "list", "--queue", "bulk", "--state", "ready"]);
    assert_eq!(
        listed,
        [
            ["ID", "TYPE", "QUEUE", "STATE", "ATTEMPT", "SUBMITTED"],
            ["a", "mail", "bulk", "ready", "0/20", "TIME"],
        ]
    );
    let (_, stdout, stderr) = scene.run(&["job", "list", "--limit", "1", "--oldest"]);
    assert_eq!(rows(&stdout)[1][0], "a");
    assert!(
        stderr.starts_with("note: there are more: --from "),
        "{stderr}"
    );
    let (_, stdout, _) = scene.run(&["job", "list", "--json"]);
    let document: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let jobs = document["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 2);
    for job in jobs {
        let (_, stdout, _) = scene.run(&["job", "get", job["id"].as_str().unwrap(), "--json"]);
        let alone: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!(alone, *job);
        assert!(job["created_at"].is_u64() && job["times"]["created_at"].is_string());
    }
}

#[test]
fn a_server_that_says_no_is_an_answer() {
    let scene = Scene::new();
    scene.check(&["job", "submit", "mail", "--id", "a"], 0, "a\n", "");
    scene.check(
        &["job", "submit", "sms", "--id", "a"],
        1,
        "",
        "error: there is already a job a with different content\nhint: use a new id for a new job\n",
    );
    scene.check(
        &["job", "get", "b"],
        1,
        "",
        "error: there is no job b, or it was deleted\n",
    );
    scene.check(&["job", "cancel", "a"], 0, "a  cancelled\n", "");
    scene.check(
        &["job", "cancel", "a", "b"],
        1,
        "a  refused: the job is cancelled, which does not allow this\n\
         b  refused: there is no job b, or it was deleted\n",
        "",
    );
    scene.check(
        &["job", "retry", "a", "b"],
        1,
        "a  runs again\nb  refused: there is no such job\n",
        "",
    );
    scene.check(
        &["job", "delete", "a", "b"],
        1,
        "a  refused: the job is ready, which does not allow this\n\
         b  refused: there is no job b, or it was deleted\n",
        "",
    );
    scene.check(
        &["job", "move", "a", "b", "--to", "slow"],
        1,
        "a  in slow\nb  refused: there is no such job\n",
        "",
    );
    scene.check(&["job", "move", "a", "--to", "slow"], 0, "a  in slow\n", "");
    let moved = scene.rows(&["job", "list", "--queue", "slow"]);
    assert_eq!(moved[1][0], "a", "{moved:?}");
    scene.check(&["job", "cancel", "a"], 0, "a  cancelled\n", "");
    scene.check(&["job", "delete", "a"], 0, "a  deleted\n", "");
    scene.check(
        &["job", "retry", "--state", "dead"],
        0,
        "",
        "note: no jobs match\n",
    );
}

#[test]
fn mistakes_are_found_before_anything_is_sent() {
    let scene = Scene::new();
    scene.check(
        &["job", "submit", "mail", "{oops"],
        2,
        "",
        "error: the payload is not valid JSON: key must be a string at line 1 column 2\n\
         hint: quote it for the shell: '{\"to\":\"you\"}', or '\"text\"' for a string\n",
    );
    let (code, _, stderr) = scene.run(&["job", "submit", "a b"]);
    assert_eq!(code, 1);
    assert!(
        stderr.contains("the job type \"a b\" contains ' '"),
        "{stderr}"
    );
    scene.check(
        &["job", "submit", "mail", "--run-at", "tomorrow"],
        2,
        "",
        "error: --run-at is not a valid time after 1970\n\
         hint: use a time such as 2026-02-28T09:05:03Z, or use --delay\n",
    );
    assert_eq!(scene.rows(&["job", "list"]).len(), 1, "only the heading");
}

#[test]
fn jobs_are_read_from_standard_input() {
    let scene = Scene::new();
    let batch = |text: &str, more: &[&str]| {
        let mut arguments = vec!["job", "submit"];
        arguments.extend(more);
        let mut child = scene
            .command(&arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(text.as_bytes()).unwrap();
        drop(stdin);
        ended(child.wait_with_output().unwrap())
    };
    let many: String = (0..1_200)
        .map(|number| format!("{{\"type\":\"mail\",\"id\":\"job-{number}\"}}\n"))
        .collect();
    let (code, stdout, stderr) = batch(&many, &["--batch"]);
    assert_eq!(
        (code, stdout.lines().count(), stderr.as_str()),
        (0, 1_200, "")
    );
    let again = batch(
        "{\"type\":\"mail\",\"id\":\"job-1\"}\n\n{\"type\":\"sms\",\"id\":\"job-2\"}\n",
        &["--batch"],
    );
    let told = "job-1  duplicate\njob-2  refused: another job has this id\n";
    assert_eq!(again, (1, told.to_owned(), String::new()));
    let wrong = batch("{\"type\":\"mail\"}\n{\"kind\":\"mail\"}\n", &["--batch"]);
    let (code, _, stderr) = wrong;
    assert_eq!(code, 2);
    assert!(
        stderr.starts_with("error: line 2 is not a valid job: unknown field `kind`"),
        "{stderr}"
    );
    // A job that only the broker can refuse, in the second call: what the first one made is told.
    let large = "x".repeat(300_000);
    let late: String = (0..600)
        .map(|number| {
            let payload = if number == 555 { large.as_str() } else { "" };
            format!("{{\"type\":\"late\",\"payload\":\"{payload}\"}}\n")
        })
        .collect();
    let (code, stdout, stderr) = batch(&late, &["--batch"]);
    assert_eq!((code, stdout.lines().count()), (1, 500));
    let told = "error: line 556 was refused, and nothing from line 501 on was added; \
                500 jobs were accepted before, and their ids are printed\n";
    assert!(stderr.starts_with(told), "{stderr}");
    let array = batch("\n[{\"type\":\"mail\"}]\n", &["--batch"]);
    let told = "error: standard input is a JSON array, not one job per line\n\
                hint: split it: jq -c '.[]' FILE | tenure job submit --batch; nothing was sent\n";
    assert_eq!(array, (2, String::new(), told.to_owned()));
    let (code, stdout, _) = batch("[1, 2]\n", &["mail", "-", "--id", "piped"]);
    assert_eq!((code, stdout.as_str()), (0, "piped\n"));
    let shown = scene.rows(&["job", "get", "piped"]);
    assert_eq!(shown.last().unwrap()[1], "[1, 2]");
}

#[test]
fn a_broker_without_tls_is_named_as_such_at_once() {
    let scene = Scene::new();
    let address = &scene.serving.address;
    let server = format!("https://{address}");
    scene.check(
        &["queue", "list", "--server", &server],
        2,
        "",
        &format!(
            "error: no broker has a valid certificate\n\
             caused by: {server}: cannot connect: it does not speak TLS\n\
             hint: a broker without a certificate is at http://\n"
        ),
    );
}

/// Small containers have no certificates.
#[test]
fn a_host_without_certificates_of_authorities_speaks_plain_http() {
    let scene = Scene::new();
    let address = &scene.serving.address;
    let bare = |scheme: &str| {
        let server = format!("{scheme}://{address}");
        let mut command = tenure(&["queue", "list", "--server", &server]);
        run(command
            .env("SSL_CERT_FILE", "/nowhere/certificates.pem")
            .env("SSL_CERT_DIR", "/nowhere"))
    };
    let (code, stdout, stderr) = bare("http");
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.starts_with("QUEUE"), "{stdout}");
    let (code, _, stderr) = bare("https");
    assert_eq!(code, 2, "{stderr}");
    let hint = "for https:// install ca-certificates, or set SSL_CERT_FILE";
    assert!(stderr.contains(hint), "{stderr}");
}

#[test]
fn a_queue_is_paused_and_limited() {
    let scene = Scene::new();
    let limits = |arguments: &[&str]| scene.rows(arguments)[1].last().unwrap().clone();
    let both = [
        "queue",
        "set",
        "bulk",
        "--concurrency",
        "5",
        "--rate",
        "100/1m",
    ];
    assert_eq!(limits(&both), "5 at once, 100 per 1m 0s");
    let one = ["queue", "set", "bulk", "--no-concurrency"];
    assert_eq!(limits(&one), "100 per 1m 0s", "the rest stays");
    assert_eq!(limits(&["queue", "pause", "bulk"]), "paused, 100 per 1m 0s");
    assert_eq!(limits(&["queue", "resume", "bulk"]), "100 per 1m 0s");
    for verb in ["pause", "resume"] {
        let (code, stdout, stderr) = scene.run(&["queue", verb, "blk"]);
        assert_eq!((code, stdout.as_str()), (1, ""));
        assert!(
            stderr.starts_with("error: there is no queue blk\nhint: "),
            "{stderr}"
        );
    }
    assert_eq!(
        scene.rows(&["queue", "list"]),
        [
            vec![
                "QUEUE",
                "READY",
                "RUNNING",
                "SCHEDULED",
                "COMPLETED",
                "CANCELLED",
                "DEAD",
                "OLDEST",
                "LIMITS"
            ],
            vec!["bulk", "0", "0", "0", "0", "0", "0", "-", "100 per 1m 0s"],
        ]
    );
    scene.check(
        &["queue", "set", "bulk", "--rate", "fast"],
        2,
        "",
        "error: \"fast\" is not a valid rate\nhint: give the number of jobs per time: 100/1m, 5/1s\n",
    );
    let (code, _, stderr) = scene.run(&["queue", "set", "bulk", "--concurrency", "0"]);
    assert_eq!(code, 1);
    assert!(
        stderr.contains("concurrency must not be 0; to stop a queue, pause it"),
        "{stderr}"
    );
}

#[test]
fn a_schedule_is_set_listed_and_deleted() {
    let scene = Scene::new();
    let set = [
        "schedule",
        "set",
        "nightly",
        "--cron",
        "0 3 * * *",
        "--timezone",
        "Europe/Berlin",
        "--type",
        "report",
        "--missed",
        "all=3",
    ];
    let rows = scene.rows(&set);
    assert_eq!(
        rows[0],
        ["SCHEDULE", "CRON", "ZONE", "TYPE", "QUEUE", "NEXT", "LAST"]
    );
    let row = [
        "nightly",
        "0 3 * * *",
        "Europe/Berlin",
        "report",
        "default",
        "TIME",
        "-",
    ];
    assert_eq!(rows[1], row);
    assert_eq!(scene.rows(&["schedule", "list"]), rows);
    let (_, stdout, _) = scene.run(&["schedule", "list", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let schedule = &listed["schedules"][0];
    let text = schedule["times"]["next_at"].as_str().unwrap();
    assert!(
        text.ends_with(":00:00Z") && schedule["next_at"].is_u64(),
        "{stdout}"
    );
    for (verb, next) in [("pause", "paused"), ("resume", "TIME")] {
        let mut row = row;
        row[5] = next;
        assert_eq!(scene.rows(&["schedule", verb, "nightly"])[1], row);
        assert_eq!(scene.rows(&["schedule", "list"])[1], row);
        let typo = "error: there is no schedule nigthly\n";
        scene.check(&["schedule", verb, "nigthly"], 1, "", typo);
    }
    let wrong = [
        "schedule",
        "set",
        "nightly",
        "--cron",
        "0 25 * * *",
        "--type",
        "report",
    ];
    let (code, _, stderr) = scene.run(&wrong);
    assert_eq!(code, 1);
    assert!(stderr.contains("cron"), "{stderr}");
    let deleted = "nightly is deleted; its jobs are kept\n";
    scene.check(&["schedule", "delete", "nightly"], 0, deleted, "");
    scene.check(
        &["schedule", "delete", "nightly"],
        1,
        "",
        "error: there is no schedule nightly\n",
    );
}

#[test]
fn nobody_there_is_told_with_a_way_out() {
    // A port without a listener, since it was just closed.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let url = format!("http://{address}");
    let arguments = ["queue", "list", "--server", &url, "--timeout", "100ms"];
    let (code, stdout, stderr) = run(&mut tenure(&arguments));
    assert_eq!((code, stdout.as_str()), (2, ""));
    let lines: Vec<&str> = stderr.lines().collect();
    assert!(
        lines[0].starts_with("error: no broker could do it within "),
        "{stderr}"
    );
    assert_eq!(
        lines[1..],
        [
            format!("caused by: {url}: cannot connect: Connection refused (os error 111)").as_str(),
            "hint: start a broker with `tenure serve`, or name one with --server or TENURE_SERVER",
        ]
    );
}

#[test]
fn the_time_of_the_queue_is_shown_and_set() {
    let scene = Scene::new();
    let shown = |arguments: &[&str]| -> serde_json::Value {
        let (code, stdout, stderr) = scene.run(&[arguments, &["--json"]].concat());
        assert_eq!((code, stderr.as_str()), (0, ""));
        serde_json::from_str(&stdout).unwrap()
    };
    let before = shown(&["queue", "time"]);
    assert_eq!(before["clock"], "followed");
    // Back, as after a clock that was too far ahead.
    let to = before["now_ms"].as_u64().unwrap() - 30 * 24 * 3_600_000;
    let set = shown(&["queue", "time", "--set", &to.to_string()]);
    let set_to = set["now_ms"].as_u64().unwrap();
    assert!(set_to >= to && set_to < to + 3_600_000, "{set}");
    assert_eq!(set["clock"], "ahead");
    let now = shown(&["queue", "time", "--set", "now"]);
    assert_eq!(now["clock"], "followed");
    let rows = scene.rows(&["queue", "time"]);
    assert_eq!(rows[2], ["clock", "followed"]);
    let (code, _, stderr) = scene.run(&["queue", "time", "--set", "soon"]);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("hint: use now"), "{stderr}");
}

#[test]
fn a_job_is_shown_whatever_its_size() {
    let scene = Scene::new();
    let payload = format!("\"{}\"", "x".repeat(65_600));
    let mut submit = scene.command(&["job", "submit", "mail", "-", "--id", "large"]);
    submit.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = submit.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(payload.as_bytes()).unwrap();
    drop(input);
    assert!(child.wait_with_output().unwrap().status.success());
    let (code, stdout, stderr) = scene.run(&["job", "get", "large"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert!(stdout.contains(&payload));
    assert!(stdout.lines().all(|line| line == line.trim_end()));
}

#[test]
fn a_token_comes_from_a_file_or_the_environment_and_is_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    let token = folder.path().join("token");
    std::fs::write(&tokens, "worker a-token-of-the-workers\n").unwrap();
    std::fs::write(&token, "a-token-of-the-workers\n").unwrap();
    let set_mode = |mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&token, permissions).unwrap();
    };
    set_mode(0o640);
    let arguments = ["--store", "memory:", "--tokens", tokens.to_str().unwrap()];
    let serving = Serving::start(folder.path(), &arguments);
    let url = format!("http://{}", serving.address);
    let submit = ["job", "submit", "mail", "--id", "a", "--server", &url];
    let by_file = [&submit[..], &["--token-file", token.to_str().unwrap()]].concat();
    let (code, stdout, stderr) = run(&mut tenure(&by_file));
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, "a\n", ""));
    set_mode(0o644);
    let (code, _, stderr) = run(&mut tenure(&by_file));
    let told = "warning: every user of this host can read the secret in ";
    assert!(code == 0 && stderr.starts_with(told), "{stderr}");
    let by_variable = |token: &str| run(tenure(&submit).env("TENURE_API_TOKEN", token));
    assert_eq!(by_variable("a-token-of-the-workers").0, 0);
    let (code, stdout, stderr) = by_variable("a-token-of-somebody-else");
    assert_eq!((code, stdout.as_str()), (2, ""));
    let told = "error: the token is missing or unknown\n\
                hint: set TENURE_API_TOKEN to a token of this broker, or name a file with --token-file\n";
    assert_eq!(stderr, told);
}

#[test]
fn a_benchmark_counts_what_it_did_and_leaves_nothing() {
    let scene = Scene::new();
    let arguments = [
        "bench",
        "--workload",
        "work",
        "--concurrency",
        "4",
        "--workers",
        "2",
        "--duration",
        "500ms",
        "--json",
    ];
    let (code, stdout, stderr) = scene.run(&arguments);
    assert_eq!((code, stderr.as_str()), (0, ""));
    let report: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert!(report["jobs"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(report["jobs"], report["completed"], "{report}");
    for latency in ["submit_ms", "pick_up_ms", "whole_ms"] {
        assert!(report[latency]["p99"].as_f64().unwrap() > 0.0, "{report}");
    }
    assert_eq!(report["pick_up_ms"]["count"], report["jobs"]);
    let rate = [
        "bench",
        "--rate",
        "50",
        "--duration",
        "300ms",
        "--batch",
        "2",
    ];
    let text = scene.rows(&rate);
    assert_eq!(
        text[1],
        [
            "load",
            "50 calls per second, 2 jobs per call, 100 bytes each"
        ]
    );
    let ready = scene.rows(&["job", "list", "--state", "ready"]);
    assert_eq!(ready.len(), 1, "only the heading");
    assert_eq!(scene.rows(&["job", "list"]).len(), 1, "only the heading");
    assert_eq!(scene.rows(&["queue", "list"]).len(), 1, "only the heading");
}
