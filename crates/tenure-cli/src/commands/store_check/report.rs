//! The report of a run, for people and for programs.

use std::process::ExitCode;

use serde::Serialize;
use tenure_store::Description;
use tenure_store::conformance::{Check, Options, Report, Verdict};

use crate::output::{Paint, Style, counted, printable};
use crate::{EXIT_BROKEN, EXIT_NO};

/// The width of the longest verdict and two spaces.
const INDENT: usize = 13;

/// The heading: what is checked, and how thoroughly.
pub(super) fn head(store: &Description, options: &Options) -> String {
    format!(
        "store        {}\nrun          {}, {}, {}\n\n",
        printable(&store.location),
        counted(options.writers, "writer"),
        counted(options.rounds, "round"),
        counted(options.listed, "key")
    )
}

/// One guarantee and its result; if it is broken, also the consequences.
pub(super) fn row(check: &Check, paint: Paint) -> String {
    let style = match check.verdict {
        Verdict::Passed => Style::Good,
        Verdict::Failed => Style::Bad,
        Verdict::NotOffered => Style::Faint,
        Verdict::Unclear => Style::Doubtful,
    };
    let word = words(&check.verdict);
    let mut text = format!(
        "{}{:pad$}{}\n{:INDENT$}{}: {}\n",
        paint.apply(style, word),
        "",
        check.guarantee,
        "",
        check.name,
        printable(&check.seen),
        pad = INDENT - word.len(),
    );
    if check.verdict == Verdict::Failed {
        text += &format!("{:INDENT$}this means: {}\n", "", check.otherwise);
    }
    text
}

/// The last line: the answer.
pub(super) fn verdict(report: &Report, paint: Paint) -> String {
    let (style, answer) = match Answer::of(report) {
        Answer::Passed => (Style::Good, "every guarantee holds"),
        Answer::Failed => (Style::Bad, "a guarantee is broken"),
        Answer::Unclear => (Style::Doubtful, "could not determine"),
    };
    let counts: Vec<String> = [
        Verdict::Passed,
        Verdict::Failed,
        Verdict::NotOffered,
        Verdict::Unclear,
    ]
    .iter()
    .filter(|verdict| report.count(verdict) > 0)
    .map(|verdict| format!("{} {}", report.count(verdict), words(verdict)))
    .collect();
    format!(
        "\nverdict: {} ({})\n",
        paint.apply(style, answer),
        counts.join(", ")
    )
}

/// The whole report as one document. Fields are only ever added.
pub(super) fn json(report: &Report, options: &Options) -> serde_json::Result<String> {
    let capabilities = report.store.capabilities;
    let document = Document {
        verdict: Answer::of(report),
        store: StoreDocument {
            engine: report.store.engine,
            location: &report.store.location,
            durable: capabilities.durable,
            hints: capabilities.hints,
            age: capabilities.age,
        },
        options: OptionsDocument {
            writers: options.writers,
            rounds: options.rounds,
            listed: options.listed,
        },
        checks: report.checks.iter().map(CheckDocument::of).collect(),
        left_behind: report.left_behind.as_deref(),
    };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

/// The overall result of the checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    Passed,
    Failed,
    Unclear,
}

impl Answer {
    /// A broken guarantee is a clear no, even if other checks could not be made.
    pub(super) fn of(report: &Report) -> Self {
        if report.passed() {
            Answer::Passed
        } else if report.count(&Verdict::Failed) > 0 {
            Answer::Failed
        } else {
            Answer::Unclear
        }
    }

    pub(super) fn exit_code(self) -> ExitCode {
        ExitCode::from(match self {
            Answer::Passed => 0,
            Answer::Failed => EXIT_NO,
            Answer::Unclear => EXIT_BROKEN,
        })
    }
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    verdict: Answer,
    store: StoreDocument<'a>,
    options: OptionsDocument,
    checks: Vec<CheckDocument<'a>>,
    left_behind: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct StoreDocument<'a> {
    engine: &'a str,
    location: &'a str,
    durable: bool,
    hints: bool,
    age: bool,
}

#[derive(Debug, Serialize)]
struct OptionsDocument {
    writers: usize,
    rounds: usize,
    listed: usize,
}

#[derive(Debug, Serialize)]
struct CheckDocument<'a> {
    name: &'a str,
    verdict: &'a str,
    guarantee: &'a str,
    seen: &'a str,
    otherwise: &'a str,
    took_ms: f64,
}

impl<'a> CheckDocument<'a> {
    fn of(check: &'a Check) -> Self {
        Self {
            name: check.name,
            verdict: match check.verdict {
                Verdict::Passed => "passed",
                Verdict::Failed => "failed",
                Verdict::NotOffered => "not_offered",
                Verdict::Unclear => "unclear",
            },
            guarantee: check.guarantee,
            seen: &check.seen,
            otherwise: check.otherwise,
            took_ms: check.took.as_micros() as f64 / 1000.0,
        }
    }
}

fn words(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "passed",
        Verdict::Failed => "failed",
        Verdict::NotOffered => "not offered",
        Verdict::Unclear => "unclear",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tenure_store::Capabilities;

    use super::*;

    fn report(verdicts: &[Verdict]) -> Report {
        Report {
            store: Description {
                engine: "s3",
                location: "s3://bucket/prefix".to_owned(),
                capabilities: Capabilities {
                    age: true,
                    hints: false,
                    durable: true,
                },
            },
            checks: verdicts
                .iter()
                .map(|verdict| Check {
                    name: "replace-race",
                    guarantee: "exactly one wins",
                    verdict: verdict.clone(),
                    seen: "2 of 16\nwon \x1b[2J".to_owned(),
                    otherwise: "two leaders",
                    took: Duration::from_micros(1500),
                })
                .collect(),
            left_behind: None,
        }
    }

    fn text(report: &Report) -> String {
        let rows: String = report
            .checks
            .iter()
            .map(|check| row(check, Paint::OFF))
            .collect();
        rows + &verdict(report, Paint::OFF)
    }

    #[test]
    fn a_broken_guarantee_says_what_follows_from_it() {
        let report = report(&[
            Verdict::Passed,
            Verdict::Failed,
            Verdict::NotOffered,
            Verdict::Unclear,
        ]);
        assert_eq!(
            text(&report),
            "passed       exactly one wins\n\
             \x20            replace-race: 2 of 16 won \\u{1b}[2J\n\
             failed       exactly one wins\n\
             \x20            replace-race: 2 of 16 won \\u{1b}[2J\n\
             \x20            this means: two leaders\n\
             not offered  exactly one wins\n\
             \x20            replace-race: 2 of 16 won \\u{1b}[2J\n\
             unclear      exactly one wins\n\
             \x20            replace-race: 2 of 16 won \\u{1b}[2J\n\
             \n\
             verdict: a guarantee is broken (1 passed, 1 failed, 1 not offered, 1 unclear)\n"
        );
    }

    #[test]
    fn the_answer_is_yes_no_or_not_known() {
        for (verdicts, answer, line) in [
            (
                vec![Verdict::Passed, Verdict::NotOffered],
                Answer::Passed,
                "every guarantee holds (1 passed, 1 not offered)",
            ),
            (
                vec![Verdict::Unclear, Verdict::Failed],
                Answer::Failed,
                "a guarantee is broken (1 failed, 1 unclear)",
            ),
            (
                vec![Verdict::Passed, Verdict::Unclear],
                Answer::Unclear,
                "could not determine (1 passed, 1 unclear)",
            ),
        ] {
            let report = report(&verdicts);
            assert_eq!(Answer::of(&report), answer);
            assert_eq!(verdict(&report, Paint::OFF), format!("\nverdict: {line}\n"));
        }
    }

    #[test]
    fn the_document_has_these_fields() {
        let mut report = report(&[Verdict::NotOffered]);
        report.left_behind = Some("x".to_owned());
        let text = json(&report, &Options::quick()).unwrap();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            document,
            serde_json::json!({
                "verdict": "passed",
                "store": {
                    "engine": "s3",
                    "location": "s3://bucket/prefix",
                    "durable": true,
                    "hints": false,
                    "age": true,
                },
                "options": { "writers": 8, "rounds": 5, "listed": 40 },
                "checks": [{
                    "name": "replace-race",
                    "verdict": "not_offered",
                    "guarantee": "exactly one wins",
                    "seen": "2 of 16\nwon \u{1b}[2J",
                    "otherwise": "two leaders",
                    "took_ms": 1.5,
                }],
                "left_behind": "x",
            })
        );
    }
}
