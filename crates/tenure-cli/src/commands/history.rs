//! `tenure history`: the terms that have ended, and how long there was no leader in between.
//!
//! A lease remembers its last 20 terms. The times come from the clocks of the nodes that wrote them. These may be
//! wrong, so they are never compared: a duration is shown only if one clock has measured it.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use tenure::Status;
use tenure::core::election::LeaseState;
use tenure::core::{ElectionName, Wall};

use crate::args::History;
use crate::output::{Data, printable, table};
use crate::{EXIT_NO, times};

/// A shorter time without a leader is the hand-over itself.
const GAP_MIN: Duration = Duration::from_secs(1);

pub(crate) async fn run(arguments: History) -> anyhow::Result<ExitCode> {
    super::interruptible(history(arguments)).await
}

async fn history(arguments: History) -> anyhow::Result<ExitCode> {
    if let Some(server) = arguments.broker.named() {
        let named = arguments.election.election.map(ElectionName::new);
        return super::remote::history(server, named.transpose()?, arguments.json).await;
    }
    let opened = super::open(&arguments.election.place).await?;
    let election = super::which(&opened.view, arguments.election.election.as_deref()).await?;
    let status = opened.view.status(&election).await?;
    let lines = lines(&status);
    tell(&election, &lines, arguments.json)
}

/// Prints the terms. If there are none, the exit code says no.
pub(super) fn tell(
    election: &ElectionName,
    lines: &[Line],
    is_json: bool,
) -> anyhow::Result<ExitCode> {
    let mut data = Data::new();
    data.write(&if is_json {
        serde_json::to_string_pretty(&Document::of(election.as_str(), lines))? + "\n"
    } else if lines.is_empty() {
        crate::output::note(&format!("no leader was ever elected in {election}"));
        String::new()
    } else {
        text(lines)
    });
    data.finish().context("cannot write the history")?;
    Ok(if lines.is_empty() {
        ExitCode::from(EXIT_NO)
    } else {
        ExitCode::SUCCESS
    })
}

/// One term, or a time without a leader. The last one may still go on.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// The term and who led it.
    pub(super) term: Option<(u64, String)>,
    pub(super) from: Wall,
    pub(super) to: Option<Wall>,
    /// How long it lasted, or lasts, if one clock has measured it.
    pub(super) lasted: Option<Duration>,
    /// Why it ended.
    pub(super) why: Option<String>,
}

/// The terms of an election, oldest first.
pub(super) fn lines(status: &Status) -> Vec<Line> {
    let Some(lease) = &status.lease else {
        return Vec::new();
    };
    let ended = lease.history.iter().map(|past| {
        let line = Line {
            term: Some((past.term.0, past.node.to_string())),
            from: past.since,
            to: Some(past.until),
            lasted: past.lasted_ms.map(Duration::from_millis),
            why: Some(past.reason.clone()),
        };
        (line, past.vacant_ms.map(Duration::from_millis))
    });
    let current = match &lease.state {
        LeaseState::Held { holder, since } => Some(Line {
            term: Some((lease.term.0, holder.node.to_string())),
            from: *since,
            to: None,
            lasted: status.led_for(),
            why: None,
        }),
        LeaseState::Vacant | LeaseState::Reserved { .. } => lease.history.last().map(|last| Line {
            term: None,
            from: last.until,
            to: None,
            lasted: status.lease_age,
            why: None,
        }),
    };
    with_gaps(ended.chain(current.map(|line| (line, None))))
}

/// Adds lines for times without a leader. Takes terms, oldest first, each with the time without a leader after it.
pub(super) fn with_gaps(terms: impl Iterator<Item = (Line, Option<Duration>)>) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut gap = None;
    for (line, vacant) in terms {
        if let Some(before) = lines.last().and_then(|before| before.to)
            && line.term.is_some()
            && gap.is_some_and(|gap| gap >= GAP_MIN)
        {
            lines.push(Line {
                term: None,
                from: before,
                to: Some(line.from),
                lasted: gap,
                why: None,
            });
        }
        gap = vacant;
        lines.push(line);
    }
    lines
}

fn text(lines: &[Line]) -> String {
    let heading = ["TERM", "NODE", "FROM", "TO", "LASTED", "REASON"];
    let mut rows = vec![heading.map(str::to_owned)];
    for line in lines {
        let (term, node) = match &line.term {
            Some((term, node)) => (term.to_string(), node.clone()),
            None => ("-".to_owned(), "nobody".to_owned()),
        };
        rows.push([
            term,
            node,
            times::rfc3339(line.from),
            line.to.map_or("now".to_owned(), times::rfc3339),
            line.lasted.map_or("-".to_owned(), times::duration),
            line.why.as_deref().map(printable).unwrap_or_default(),
        ]);
    }
    table(&rows)
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    election: &'a str,
    terms: Vec<LineDocument<'a>>,
}

/// A term, or, if it has no number, a time without a leader.
#[derive(Debug, Serialize)]
struct LineDocument<'a> {
    term: Option<u64>,
    node: Option<&'a str>,
    from: String,
    to: Option<String>,
    /// Measured by one clock; `None` if not measured.
    lasted_ms: Option<u128>,
    reason: Option<&'a str>,
}

impl<'a> Document<'a> {
    fn of(election: &'a str, lines: &'a [Line]) -> Self {
        let terms = lines.iter().map(|line| LineDocument {
            term: line.term.as_ref().map(|(term, _)| *term),
            node: line.term.as_ref().map(|(_, node)| node.as_str()),
            from: times::rfc3339(line.from),
            to: line.to.map(times::rfc3339),
            lasted_ms: line.lasted.map(|lasted| lasted.as_millis()),
            reason: line.why.as_deref(),
        });
        Self {
            election,
            terms: terms.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure::core::election::Lease;

    use super::*;

    /// Term 1 of a for 10 s, no leader for 3 s, term 2 of b, whose clock is an hour behind, and then `state`.
    fn status(state: &str) -> Status {
        let past = |term, node, since, until, reason, measured| {
            format!(
                r#"{{"term":{term},"node":"{node}","incarnation":"a","since":{since},"until":{until},"reason":"{reason}"{measured}}}"#
            )
        };
        let measured = r#","lasted_ms":10000,"vacant_ms":3000"#;
        let text = format!(
            r#"{{"format":1,"lineage":"1","term":3,"state":{state},"history":[{},{}],"writer":{{"incarnation":"a","counter":1}}}}"#,
            past(1, "a", 3_600_000, 3_610_000, "evicted", measured),
            past(2, "b", 13_000, 20_000, "resigned\\u001b[2J", ""),
        );
        Status {
            lease: Some(Lease::decode(text.as_bytes()).unwrap()),
            fence: None,
            candidates: Vec::new(),
            lease_age: Some(Duration::from_secs(60)),
            fence_age: None,
            leader_seen_ago: None,
        }
    }

    #[test]
    fn gaps_without_a_leader_are_lines_of_their_own() {
        let held =
            r#"{"held":{"holder":{"node":"c","incarnation":"c","ttl_ms":10000},"since":20500}}"#;
        assert_eq!(
            text(&lines(&status(held))),
            "TERM  NODE    FROM                  TO                    LASTED  REASON\n\
             1     a       1970-01-01T01:00:00Z  1970-01-01T01:00:10Z  10s     evicted\n\
             -     nobody  1970-01-01T01:00:10Z  1970-01-01T00:00:13Z  3s\n\
             2     b       1970-01-01T00:00:13Z  1970-01-01T00:00:20Z  -       resigned\\u{1b}[2J\n\
             3     c       1970-01-01T00:00:20Z  now                   -\n"
        );
    }

    #[test]
    fn a_vacant_lease_ends_with_nobody() {
        let lines = lines(&status(r#""vacant""#));
        let last = lines.last().unwrap();
        assert_eq!(
            (last.term.as_ref(), last.from, last.to, last.lasted),
            (None, Wall(20_000), None, Some(Duration::from_secs(60)))
        );
        let document = serde_json::to_value(Document::of("e", &lines)).unwrap();
        assert_eq!(
            document["terms"][1],
            serde_json::json!({
                "term": null,
                "node": null,
                "from": "1970-01-01T01:00:10Z",
                "to": "1970-01-01T00:00:13Z",
                "lasted_ms": 3000,
                "reason": null,
            })
        );
    }
}
