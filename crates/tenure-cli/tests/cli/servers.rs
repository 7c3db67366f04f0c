//! Stores' servers that are not there, that keep their promises, and that do not.

#[cfg(feature = "postgres")]
use crate::support::ended;
#[cfg(feature = "object")]
use crate::support::server;
use crate::support::{run, tenure};

#[test]
fn a_server_that_is_not_there_is_told_without_any_secret() {
    let urls = [
        #[cfg(feature = "postgres")]
        "postgres://user:hunter2@127.0.0.1:1/tenure",
        #[cfg(feature = "mysql")]
        "mysql://user:hunter2@127.0.0.1:1/tenure",
        #[cfg(feature = "object")]
        "s3://bucket/prefix?endpoint=http://127.0.0.1:1",
    ];
    for url in urls {
        for log in ["warn", "trace"] {
            let mut command = tenure(&["store", "check", url, "--quick"]);
            command
                .env("TENURE_LOG", log)
                .env("AWS_ACCESS_KEY_ID", "testkey")
                .env("AWS_SECRET_ACCESS_KEY", "hunter2")
                .env("AWS_REGION", "us-east-1");
            let (code, stdout, stderr) = run(&mut command);
            assert_eq!((code, stdout.as_str()), (2, ""), "{url}: {stderr}");
            assert!(!stderr.contains("hunter2"), "{url}: {stderr}");
            if log == "warn" {
                assert!(stderr.contains("error: "), "{url}: {stderr}");
                assert!(stderr.contains("\nhint: "), "{url}: {stderr}");
            }
        }
    }
}

#[cfg(feature = "object")]
#[test]
fn a_server_that_ignores_conditions_is_found_out() {
    let Some(url) = server("TENURE_TEST_S3_RCLONE") else {
        return;
    };
    let (code, stdout, stderr) = run(&mut tenure(&["store", "check", &url, "--quick"]));
    assert_eq!(code, 1, "{stdout}{stderr}");
    assert!(
        stdout.contains(
            "\nfailed       replacing with an old version is a conflict and changes nothing (If-Match)\n\
             \x20            replace-stale-version: the write was accepted: the condition is ignored\n\
             \x20            this means: a leader that was replaced could overwrite its successor: two leaders\n"
        ),
        "{stdout}"
    );
    assert!(
        stdout.contains("\nverdict: a guarantee is broken ("),
        "{stdout}"
    );
    assert!(stderr.contains("hint: do not use this store"), "{stderr}");
}

#[cfg(feature = "object")]
#[test]
fn a_mistyped_prefix_is_no_store() {
    use tenure_testkit::careless_s3::CarelessS3;

    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(CarelessS3::start("bucket"));
    let url = |prefix: &str| {
        server
            .url()
            .replace("bucket?", &format!("bucket/{prefix}?"))
    };
    let on = |prefix: &str, arguments: &[&str]| {
        let mut command = tenure(arguments);
        command.env("TENURE_STORE", url(prefix));
        run(command.envs(CarelessS3::variables()))
    };
    let (code, _, stderr) = on("store", &["elect", "--node", "a"]);
    assert_eq!(code, 0, "{stderr}");
    let (code, stdout, stderr) = on("store", &["status"]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    let names = server.names();
    for arguments in [
        &["drain", "n"][..],
        &["undrain", "n"],
        &["plan"],
        &["watch"],
        &["status"],
        &["nodes"],
        &["history"],
        &["elect", "--node", "a", "--release"],
    ] {
        let (code, stdout, stderr) = on("typo", arguments);
        assert_eq!((code, &*stdout), (2, ""), "{arguments:?}: {stderr}");
        assert!(stderr.contains("bucket/typo"), "{stderr}");
        assert!(stderr.contains("there is no such store"), "{stderr}");
        // The prefix was left out, or a namespace was added.
        for (prefix, hint) in [
            ("", "at the prefix store"),
            ("store/default", "a namespace"),
        ] {
            let (code, stdout, stderr) = on(prefix, arguments);
            assert_eq!((code, &*stdout), (2, ""), "{arguments:?}: {stderr}");
            assert!(stderr.contains("there is no such store"), "{stderr}");
            assert!(stderr.contains(hint), "{stderr}");
        }
    }
    assert_eq!(server.names(), names, "nothing was made");
}

/// As small containers are.
#[cfg(feature = "object")]
#[test]
fn a_bucket_at_a_plain_endpoint_needs_no_certificates_on_the_host() {
    use tenure_testkit::careless_s3::CarelessS3;

    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(CarelessS3::start("bucket"));
    let elect = |url: &str| {
        let mut command = tenure(&["elect", "--node", "a"]);
        command
            .env("TENURE_STORE", url)
            .env("SSL_CERT_FILE", "/nowhere/certificates.pem")
            .env("SSL_CERT_DIR", "/nowhere");
        run(command.envs(CarelessS3::variables()))
    };
    let (code, _, stderr) = elect(&server.url());
    assert_eq!(code, 0, "{stderr}");
    let (code, _, stderr) = elect(&server.url().replace("http://", "https://"));
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("hint: install ca-certificates"), "{stderr}");
}

#[cfg(feature = "object")]
#[test]
fn a_store_that_ignores_if_match_is_named_and_left_clean() {
    use tenure_testkit::careless_s3::CarelessS3;

    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(CarelessS3::start("bucket"));
    let mut command = tenure(&["store", "check", &server.url(), "--quick", "--json"]);
    let (code, stdout, stderr) = run(command.envs(CarelessS3::variables()));
    assert_eq!(code, 1, "{stdout}{stderr}");
    let report: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let named = |verdict: &str| -> Vec<&str> {
        let of_verdict = checks.iter().filter(|check| check["verdict"] == verdict);
        of_verdict
            .map(|check| check["name"].as_str().unwrap())
            .collect()
    };
    let failed = named("failed");
    for guarantee in [
        "create-on-existing",
        "replace-on-missing",
        "replace-stale-version",
        "create-race",
        "replace-race",
        "increments",
    ] {
        assert!(
            failed.contains(&guarantee),
            "{guarantee} is not named: {stdout}"
        );
    }
    // Checks that have nothing to do with conditional writes still pass.
    assert!(named("passed").contains(&"read-your-write"), "{stdout}");
    assert!(named("passed").contains(&"values"), "{stdout}");
    assert_eq!(server.names(), Vec::<String>::new(), "left behind");
}

#[cfg(feature = "postgres")]
#[test]
fn a_server_that_never_answers_can_be_interrupted() {
    use std::process::Stdio;

    use rustix::process::{Pid, Signal, kill_process};

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://user@{}/tenure", listener.local_addr().unwrap());
    let child = tenure(&["store", "check", &url])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let _connection = listener.accept().unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let told = "note: interrupted before anything was written; there is no verdict\n";
    assert_eq!(
        ended(child.wait_with_output().unwrap()),
        (130, String::new(), told.to_owned())
    );
}
