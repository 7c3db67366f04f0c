//! Fuzzes command lines, settings and the short texts in them: see `tenure_fuzz`.

use std::time::Duration;

use clap::Parser;
use tenure_fuzz::Fuzz;

use super::serve::parse_bytes;
use super::{Cli, without_urls};
use crate::commands::guard::message::{Order, Report};
use crate::commands::serve::parse_settings;
use crate::times::{duration, parse_duration};

const PASSWORD: &str = "u:hunter2@";

#[test]
fn a_command_line_is_taken_or_refused_without_its_passwords() {
    let corpus = [
        "tenure serve --store postgres://u:hunter2@h/d --listen 127.0.0.1:0 --ttl 1.5s --label a=b --body-max 2MiB",
        "tenure run --store s3://bucket/prefix --election reports -- ./reports --all",
        "tenure job submit mail {\"to\":\"you\"} --queue q --priority -3 --delay 10s --max-attempts 5",
        "tenure job list --state dead --queue q --type mail --limit 5 --json",
        "tenure schedule set nightly --cron 0_3_*_*_* --timezone Europe/Berlin --type report",
        "tenure queue limit q --concurrency 5 --rate 10/s",
        "tenure worker --type mail --exec ./send --concurrency 4 --server http://127.0.0.1:8080",
        "tenure store check --quick --writers 8 --rounds 5 memory:",
        "tenure log show log/00000000000000000007 --json",
        "tenure transfer web-2 --namespace prod --election default",
        "tenure bench --seconds 5 --clients 64",
    ];
    let fuzz = Fuzz::new("command lines", corpus).within(8 << 20, 256);
    fuzz.run(|input| {
        let text = String::from_utf8_lossy(input);
        let words = text.split(' ').filter(|word| !word.contains('\0'));
        let Err(error) = Cli::try_parse_from(words) else {
            return;
        };
        // Outside of a URL it is not a password.
        let is_secret = text.matches(PASSWORD).count() == text.matches("://u:hunter2@").count();
        let shown = without_urls(&error.render().to_string());
        assert!(!is_secret || !shown.contains(PASSWORD), "{shown}");
    });
}

#[test]
fn a_duration_reads_back() {
    let corpus = ["10s", "500ms", "1.5m", "2h", "365d", "0.001s"];
    Fuzz::new("durations", corpus).run(|input| {
        let text = String::from_utf8_lossy(input);
        if let Ok(read) = parse_duration(&text) {
            assert!(read <= Duration::from_secs(365 * 86_400));
            let first = duration(read);
            let first = first.split(' ').next().unwrap();
            assert!(parse_duration(first).unwrap() <= read);
        }
        if let Ok(bytes) = parse_bytes(&text) {
            assert!(text.contains(char::is_numeric), "{bytes}");
        }
    });
}

#[test]
fn a_file_of_settings_is_read_or_refused_at_a_line() {
    let corpus = [
        "store = 'memory:'\nlisten = '127.0.0.1:0'\nttl = '500ms'\nbody_max = '2MiB'\n",
        "payload_max = 1000\nlabels = { zone = 'a' }\ntokens = 'x'\npriority = 7\n# é\nnode = \"\\u00e9\"\n",
    ];
    // A line of dots makes an error for each dot; the file's own size is limited.
    let fuzz = Fuzz::new("settings", corpus).within(256 << 10, 1024);
    fuzz.run(|input| {
        let text = String::from_utf8_lossy(input);
        for (line, problem) in parse_settings(&text).err().unwrap_or_default() {
            assert!(line <= text.matches('\n').count() + 1, "{line}: {problem}");
        }
    });
}

#[test]
fn a_guard_takes_what_it_knows() {
    let corpus = [
        "until 12 34",
        "stop 15",
        "pass 1",
        "kill",
        "started 7",
        "ended exited 0 itself",
    ];
    Fuzz::new("the guard's lines", corpus).run(|input| {
        let text = String::from_utf8_lossy(input);
        if let Some(order) = Order::parse(&text) {
            assert_eq!(Order::parse(&order.to_string()), Some(order));
        }
        if let Some(report) = Report::parse(&text) {
            assert_eq!(Report::parse(&report.to_string()), Some(report));
        }
    });
}
