//! `tenure history`: the terms that have ended, and how long nobody led in between.
//!
//! A lease remembers its last 20 terms. The times come from the clocks of the nodes that wrote them, so a
//! gap between two nodes is as exact as their clocks agree.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use tenure::core::election::{Lease, LeaseState};
use tenure::core::{ElectionName, Wall};

use crate::args::History;
use crate::output::{Data, printable, table};
use crate::{EXIT_NO, times};

/// Shorter than this is the hand-over itself.
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
    let lines = status.lease.as_ref().map(lines).unwrap_or_default();
    tell(&election, &lines, arguments.json)
}

/// Prints the terms. Without any the answer is no.
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

/// One term, or a time without a leader; the last may not be over.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// The term and who led it.
    pub(super) term: Option<(u64, String)>,
    pub(super) from: Wall,
    pub(super) to: Option<Wall>,
    /// Why it ended.
    pub(super) why: Option<String>,
}

/// The terms of a lease, oldest first.
pub(super) fn lines(lease: &Lease) -> Vec<Line> {
    let ended = lease.history.iter().map(|past| Line {
        term: Some((past.term.0, past.node.to_string())),
        from: past.since,
        to: Some(past.until),
        why: Some(past.reason.clone()),
    });
    let current = match &lease.state {
        LeaseState::Held { holder, since } => Some(Line {
            term: Some((lease.term.0, holder.node.to_string())),
            from: *since,
            to: None,
            why: None,
        }),
        LeaseState::Vacant | LeaseState::Reserved { .. } => lease.history.last().map(|last| Line {
            term: None,
            from: last.until,
            to: None,
            why: None,
        }),
    };
    with_gaps(ended.chain(current))
}

/// Terms, oldest first, with the times between them in which nobody led.
pub(super) fn with_gaps(terms: impl Iterator<Item = Line>) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for line in terms {
        if let Some(before) = lines.last().and_then(|before| before.to)
            && line.term.is_some()
            && times::between(before, line.from) >= GAP_MIN
        {
            lines.push(Line {
                term: None,
                from: before,
                to: Some(line.from),
                why: None,
            });
        }
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
            times::duration(lasted(line)),
            line.why.as_deref().map(printable).unwrap_or_default(),
        ]);
    }
    table(&rows)
}

fn lasted(line: &Line) -> Duration {
    times::between(line.from, line.to.unwrap_or_else(times::now))
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
    lasted_ms: u128,
    reason: Option<&'a str>,
}

impl<'a> Document<'a> {
    fn of(election: &'a str, lines: &'a [Line]) -> Self {
        let terms = lines.iter().map(|line| LineDocument {
            term: line.term.as_ref().map(|(term, _)| *term),
            node: line.term.as_ref().map(|(_, node)| node.as_str()),
            from: times::rfc3339(line.from),
            to: line.to.map(times::rfc3339),
            lasted_ms: lasted(line).as_millis(),
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
    use super::*;

    /// Term 1 of a from 0 to 10 s, term 2 of b from 13 s to 20 s, and then `state`.
    fn lease(state: &str) -> Lease {
        let past = |term, node, since, until, reason| {
            format!(
                r#"{{"term":{term},"node":"{node}","incarnation":"a","since":{since},"until":{until},"reason":"{reason}"}}"#
            )
        };
        let text = format!(
            r#"{{"format":1,"lineage":"1","term":3,"state":{state},"history":[{},{}],"writer":{{"incarnation":"a","counter":1}}}}"#,
            past(1, "a", 0, 10_000, "evicted"),
            past(2, "b", 13_000, 20_000, "resigned\\u001b[2J"),
        );
        Lease::decode(text.as_bytes()).unwrap()
    }

    #[test]
    fn gaps_without_a_leader_are_lines_of_their_own() {
        let held =
            r#"{"held":{"holder":{"node":"c","incarnation":"c","ttl_ms":10000},"since":20500}}"#;
        let mut lines = lines(&lease(held));
        lines[3].to = Some(Wall(80_500));
        assert_eq!(
            text(&lines),
            "TERM  NODE    FROM                  TO                    LASTED  REASON\n\
             1     a       1970-01-01T00:00:00Z  1970-01-01T00:00:10Z  10s     evicted\n\
             -     nobody  1970-01-01T00:00:10Z  1970-01-01T00:00:13Z  3s\n\
             2     b       1970-01-01T00:00:13Z  1970-01-01T00:00:20Z  7s      resigned\\u{1b}[2J\n\
             3     c       1970-01-01T00:00:20Z  1970-01-01T00:01:20Z  1m 0s\n"
        );
    }

    #[test]
    fn a_vacant_lease_ends_with_nobody() {
        let lines = lines(&lease(r#""vacant""#));
        let last = lines.last().unwrap();
        assert_eq!(
            (last.term.as_ref(), last.from, last.to),
            (None, Wall(20_000), None)
        );
        let document = serde_json::to_value(Document::of("e", &lines)).unwrap();
        assert_eq!(
            document["terms"][1],
            serde_json::json!({
                "term": null,
                "node": null,
                "from": "1970-01-01T00:00:10Z",
                "to": "1970-01-01T00:00:13Z",
                "lasted_ms": 3000,
                "reason": null,
            })
        );
    }
}
