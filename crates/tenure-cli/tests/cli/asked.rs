//! Verbs that change something, with `--server`: a broker makes the change, and the caller needs no access to the
//! store.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Duration;

use crate::serve::Serving;
use crate::support::{run, tenure};

fn broker(folder: &std::path::Path, name: &str) -> Serving {
    let store = format!("file:{}", folder.display());
    Serving::start(folder, &["--store", &store, "--node", name])
}

/// Waits until a broker serves.
fn serving(broker: &Serving) {
    while broker.ask("GET", "/v1/stats", "").0 != 200 {
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn leadership_is_moved_by_way_of_a_broker() {
    let folder = tempfile::tempdir().unwrap();
    let first = broker(folder.path(), "a");
    serving(&first);
    let _second = broker(folder.path(), "b");
    let url = format!("http://{}", first.address);
    let queue = ["--election", "tenure.queue"];
    let mut watch = tenure(&["watch", "--server", &url, "--poll", "100ms"]);
    let watch = watch.args(queue);
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap();
    let first_line = next();
    assert!(first_line.ends_with("  elected a term 1"), "{first_line}");

    let ask = |arguments: &[&str]| {
        let mut all = arguments.to_vec();
        all.extend(["--server", &url, "--wait", "60s"]);
        run(&mut tenure(&all))
    };
    // It may have started a moment ago, and not be a candidate yet.
    let moved = loop {
        let moved = ask(&["transfer", "b"]);
        if moved.0 == 0 {
            break moved;
        }
        assert!(moved.2.contains("candidate"), "{}", moved.2);
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(moved.1, "b leads tenure.queue, term 2\n", "{}", moved.2);
    let (code, stdout, stderr) = ask(&["resign", "--json"]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    let answer: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(answer["outcome"], "done", "{stdout}");
    assert_eq!(answer["leader"], "a", "{stdout}");
    let seen: Vec<String> = std::iter::repeat_with(next)
        .take_while(|line| !line.ends_with("  elected a term 3"))
        .collect();
    assert!(
        seen.iter().any(|line| line.ends_with("  elected b term 2")),
        "{seen:#?}"
    );
    watch.kill().unwrap();
    watch.wait().unwrap();

    let (code, stdout, stderr) = ask(&["transfer", "nobody"]);
    assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
    for arguments in [
        &["resign", "--election", "reports"][..],
        &["transfer", "b/12"],
    ] {
        let (code, stdout, stderr) = ask(arguments);
        assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
        assert!(stderr.contains("hint: name the store"), "{stderr}");
    }
}

#[test]
fn a_node_is_drained_by_way_of_a_broker() {
    let folder = tempfile::tempdir().unwrap();
    let broker = broker(folder.path(), "a");
    serving(&broker);
    let url = format!("http://{}", broker.address);
    let ask = |arguments: &[&str]| {
        let mut all = arguments.to_vec();
        all.extend(["--server", &url]);
        run(&mut tenure(&all))
    };
    let (code, stdout, stderr) = ask(&["drain", "typo"]);
    assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
    assert!(stderr.contains("there is no node typo"), "{stderr}");
    let (code, stdout, stderr) = ask(&["drain", "a"]);
    assert_eq!((code, stdout.as_str()), (0, "a is drained\n"), "{stderr}");
    let (_, nodes, _) = ask(&["nodes", "--json"]);
    let nodes: serde_json::Value = serde_json::from_str(&nodes).unwrap();
    assert!(!nodes["nodes"][0]["drained"].is_null(), "{nodes}");
    let (code, stdout, stderr) = ask(&["undrain", "a"]);
    assert_eq!(
        (code, stdout.as_str(), stderr.as_str()),
        (0, "a may run shards again\n", "")
    );
    let (_, _, stderr) = ask(&["undrain", "a"]);
    assert!(stderr.contains("a was not drained"), "{stderr}");
    let (_, stdout, _) = ask(&["drain", "later", "--absent", "--json"]);
    assert!(stdout.contains("\"outcome\": \"drained\""), "{stdout}");
}
