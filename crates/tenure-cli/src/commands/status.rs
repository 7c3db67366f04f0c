//! `tenure status`: the leader, the candidates and the last terms. Reads only.

use std::process::ExitCode;

use anyhow::Context;
use serde::Serialize;
use tenure::core::ElectionName;
use tenure::core::election::{Lease, LeaseState, RESERVED_MAX, RequestKind};
use tenure::core::session::{Holder, Record};
use tenure::{Candidate, Status};

use super::history::{Line, lines};
use crate::args::Status as Arguments;
use crate::output::{self, Data, printable, table};
use crate::{EXIT_NO, times};

/// How many terms to show; `tenure history` has the rest.
const TERMS_SHOWN_MAX: usize = 3;

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    super::interruptible(status(arguments)).await
}

async fn status(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let named = arguments.election.map(ElectionName::new).transpose()?;
    if let Some(server) = arguments.broker.named() {
        return Box::pin(super::remote::status(server, named, arguments.json)).await;
    }
    let opened = super::open(&arguments.place).await?;
    let names = match named {
        Some(name) => vec![name],
        None => opened.view.elections().await?,
    };
    let view = opened.view.at_one_look();
    let statuses = view.statuses(&names).await?;
    let troubled = view.troubled().await?;
    let elections: Vec<(ElectionName, Status)> = names.into_iter().zip(statuses).collect();
    let namespace = &arguments.place.namespace;
    if elections.is_empty() {
        output::note(&format!(
            "there are no elections in the namespace {namespace}"
        ));
    }
    let mut data = Data::new();
    data.write(&if arguments.json {
        json(namespace, &elections, &troubled)?
    } else {
        texts(&elections, &troubled)
    });
    data.finish().context("cannot write the status")?;
    let all_led = elections.iter().all(|(_, status)| live_leader(status));
    Ok(if all_led && !elections.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_NO)
    })
}

/// Whether there is a leader that was heard from within its ttl.
fn live_leader(status: &Status) -> bool {
    let holder = status.leader().map(|holder| holder.incarnation);
    let mut candidates = status.candidates.iter();
    holder.is_some() && candidates.any(|candidate| Some(candidate.holder.incarnation) == holder)
}

fn texts(elections: &[(ElectionName, Status)], troubled: &[Record]) -> String {
    let mut texts: Vec<String> = elections
        .iter()
        .map(|(name, status)| text(name, status))
        .collect();
    let rows = troubled.iter().filter_map(|record| {
        let trouble = record.about.trouble.as_deref()?;
        Some([
            "trouble".to_owned(),
            format!("{}: {}", record.node, printable(trouble)),
        ])
    });
    let rows: Vec<[String; 2]> = rows.collect();
    if !rows.is_empty() {
        texts.push(table(&rows));
    }
    texts.join("\n")
}

fn text(name: &ElectionName, status: &Status) -> String {
    let title = match name.purpose() {
        Some(purpose) => format!("{name}, {purpose}"),
        None => name.to_string(),
    };
    let mut rows = vec![["election".to_owned(), title]];
    let mut row = |name: &str, value: String| rows.push([name.to_owned(), value]);
    row("leader", leader(status));
    if let Some(lease) = &status.lease {
        if let LeaseState::Held { since, .. } = lease.state {
            // The time comes from the leader's clock, which may be wrong; the duration does not.
            let since = times::rfc3339(since);
            row(
                "since",
                match status.led_for() {
                    Some(led_for) => {
                        format!("{since} by its clock, for {}", times::duration(led_for))
                    }
                    None => format!("{since} by its clock"),
                },
            );
            if let Some(seen_ago) = status.leader_seen_ago {
                row("heard", format!("{} ago", times::duration(seen_ago)));
            }
        }
        if let Some(request) = request(status, lease) {
            row("request", request);
        }
    }
    for candidate in &status.candidates {
        if let Some(trouble) = &candidate.about.trouble {
            let node = named(status, &candidate.holder);
            row("trouble", format!("{node}: {}", printable(trouble)));
        }
    }
    let mut heading = "candidates";
    if status.candidates.is_empty() {
        row(heading, "none".to_owned());
    }
    for line in candidates(status).lines() {
        row(std::mem::take(&mut heading), line.to_owned());
    }
    let mut heading = "before";
    for line in past(status).lines() {
        row(std::mem::take(&mut heading), line.to_owned());
    }
    table(&rows)
}

/// A candidate's name, with its incarnation if another one has the same name, as `tenure transfer` takes it.
fn named(status: &Status, holder: &Holder) -> String {
    let Holder {
        node, incarnation, ..
    } = holder;
    let is_another = |candidate: &Candidate| {
        candidate.holder.node == *node && candidate.holder.incarnation != *incarnation
    };
    if status.candidates.iter().any(is_another) {
        format!("{node}/{incarnation}")
    } else {
        node.to_string()
    }
}

fn leader(status: &Status) -> String {
    let Some(lease) = &status.lease else {
        return match &status.fence {
            Some(fence) => format!(
                "nobody: the lease of term {} was deleted; candidates wait before they continue",
                fence.term
            ),
            None => "nobody yet".to_owned(),
        };
    };
    match &lease.state {
        LeaseState::Held { holder, .. } if live_leader(status) => {
            let asked = match status.lapses_in() {
                Some(_) => ", asked to step down",
                None => "",
            };
            format!("{}, term {}{asked}", named(status, holder), lease.term)
        }
        LeaseState::Held { holder, .. } => format!(
            "{}, term {}, not heard from for its ttl of {}: the next candidate replaces it",
            named(status, holder),
            lease.term,
            times::duration(holder.ttl)
        ),
        LeaseState::Vacant => format!("nobody since term {}", lease.term),
        LeaseState::Reserved { candidate } => {
            let left = status.reserved().and_then(|(_, left)| left);
            let left = left.map_or(String::new(), |left| {
                format!(", for up to {} more", times::duration(left))
            });
            format!(
                "nobody since term {}, reserved for {}{left}",
                lease.term,
                named(status, candidate)
            )
        }
    }
}

fn request(status: &Status, lease: &Lease) -> Option<String> {
    let request = lease.request.as_ref()?;
    let asked = match &request.kind {
        _ if lease.asked_to_go().is_none() => format!("{} asked it to keep leading", request.by),
        RequestKind::Resign => format!("{} asked it to resign", request.by),
        RequestKind::Transfer { to } => {
            format!(
                "{} asked it to hand over to {}",
                request.by,
                named(status, to)
            )
        }
    };
    let Some(((holder, to), lapses_in)) = lease.lapsing().zip(status.lapses_in()) else {
        return Some(asked);
    };
    let lapses = match lapses_in {
        Some(left) if left.is_zero() => "its lease has lapsed".to_owned(),
        Some(left) => format!("its lease lapses in {}", times::duration(left)),
        None => format!(
            "its lease lapses {} after that",
            times::duration(holder.ttl)
        ),
    };
    let next = match to {
        Some(to) => format!(
            "reserved for {}, for up to {} more",
            named(status, to),
            times::duration(to.ttl.min(RESERVED_MAX))
        ),
        None => "the next candidate takes it".to_owned(),
    };
    // The store's time since the request may start before the holder could see it, so the text counts from the
    // holder's own calls.
    let ttl = times::duration(holder.ttl);
    Some(format!(
        "{asked}; {lapses}: {next}; one that only calls has to call twice, {ttl} apart or more, since this was asked"
    ))
}

fn candidates(status: &Status) -> String {
    let rows: Vec<[String; 3]> = status
        .candidates
        .iter()
        .map(|candidate| {
            let leads = status.leader() == Some(&candidate.holder);
            [
                named(status, &candidate.holder),
                format!("priority {}", candidate.priority),
                if leads { "leads" } else { "" }.to_owned(),
            ]
        })
        .collect();
    table(&rows)
}

fn past(status: &Status) -> String {
    let all = lines(status);
    let ended: Vec<&Line> = all.iter().filter(|line| line.why.is_some()).collect();
    let rows: Vec<[String; 3]> = ended
        .iter()
        .rev()
        .take(TERMS_SHOWN_MAX)
        .filter_map(|line| {
            let ((term, node), to) = (line.term.as_ref()?, line.to?);
            let lasted = line.lasted.map_or(String::new(), |lasted| {
                format!("for {} ", times::duration(lasted))
            });
            Some([
                format!("term {term}"),
                node.clone(),
                format!(
                    "{lasted}until {}: {}",
                    times::rfc3339(to),
                    printable(line.why.as_deref().unwrap_or_default())
                ),
            ])
        })
        .collect();
    table(&rows)
}

fn json(
    namespace: &str,
    elections: &[(ElectionName, Status)],
    troubled: &[Record],
) -> serde_json::Result<String> {
    let troubles = troubled.iter().filter_map(|record| {
        Some(TroubleDocument {
            node: record.node.as_str(),
            incarnation: record.incarnation.to_string(),
            trouble: record.about.trouble.as_deref()?,
        })
    });
    let document = Document {
        namespace,
        troubles: troubles.collect(),
        elections: elections
            .iter()
            .map(|(name, status)| ElectionDocument::of(name, status))
            .collect(),
    };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    namespace: &'a str,
    elections: Vec<ElectionDocument<'a>>,
    /// Nodes that are candidates in no election.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    troubles: Vec<TroubleDocument<'a>>,
}

#[derive(Debug, Serialize)]
struct TroubleDocument<'a> {
    node: &'a str,
    incarnation: String,
    trouble: &'a str,
}

/// Fields are only ever added.
#[derive(Debug, Serialize)]
struct ElectionDocument<'a> {
    election: &'a str,
    /// `held`, `expired` if its holder was not heard from for its ttl, `vacant`, `reserved`, or `missing` if there is no
    /// lease.
    state: &'static str,
    leader: Option<LeaderDocument<'a>>,
    /// The current term, or the last one.
    term: Option<u64>,
    lineage: Option<String>,
    reserved_for: Option<&'a str>,
    reserved_for_incarnation: Option<String>,
    /// For how long from now on at most, if the store can tell.
    reserved_for_ms: Option<u128>,
    request: Option<RequestDocument<'a>>,
    candidates: Vec<CandidateDocument<'a>>,
    history: Vec<PastDocument<'a>>,
}

#[derive(Debug, Serialize)]
struct LeaderDocument<'a> {
    node: &'a str,
    incarnation: String,
    since: String,
    /// For how long it has led, by the store's clock and not by the leader's.
    for_ms: Option<u128>,
    /// How long ago it was heard from, if the store can tell.
    seen_ago_ms: Option<u128>,
    /// Whether it was heard from within its ttl.
    live: bool,
}

#[derive(Debug, Serialize)]
struct RequestDocument<'a> {
    kind: &'static str,
    by: &'a str,
    to: Option<&'a str>,
    to_incarnation: Option<String>,
    /// Whether the lease expires without a further call, since its holder is a one-shot caller.
    lapses: bool,
    /// How long that takes from now on at most, if the store can tell.
    lapses_in_ms: Option<u128>,
}

#[derive(Debug, Serialize)]
struct CandidateDocument<'a> {
    node: &'a str,
    incarnation: String,
    priority: u8,
    ttl_ms: u128,
    /// How long ago it was heard from, if the store can tell.
    seen_ago_ms: Option<u128>,
    /// What keeps it from doing what it was asked to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct PastDocument<'a> {
    term: u64,
    node: &'a str,
    since: String,
    until: String,
    /// Measured by one clock; `None` if not measured.
    lasted_ms: Option<u64>,
    reason: &'a str,
}

impl<'a> ElectionDocument<'a> {
    fn of(name: &'a ElectionName, status: &'a Status) -> Self {
        let lease = status.lease.as_ref();
        let (state, leader, reserved_for) = match lease.map(|lease| &lease.state) {
            None => ("missing", None, None),
            Some(LeaseState::Vacant) => ("vacant", None, None),
            Some(LeaseState::Reserved { candidate }) => ("reserved", None, Some(candidate)),
            Some(LeaseState::Held { holder, since }) => {
                let leader = LeaderDocument {
                    node: holder.node.as_str(),
                    incarnation: holder.incarnation.to_string(),
                    since: times::rfc3339(*since),
                    for_ms: status.led_for().map(|led_for| led_for.as_millis()),
                    seen_ago_ms: status.leader_seen_ago.map(|ago| ago.as_millis()),
                    live: live_leader(status),
                };
                let state = if leader.live { "held" } else { "expired" };
                (state, Some(leader), None)
            }
        };
        let fence = status.fence.as_ref();
        let term = lease
            .map(|lease| lease.term)
            .or(fence.map(|fence| fence.term));
        let lineage = lease
            .map(|lease| lease.lineage)
            .or(fence.map(|fence| fence.lineage));
        Self {
            election: name.as_str(),
            state,
            leader,
            term: term.map(|term| term.0),
            lineage: lineage.map(|lineage| lineage.to_string()),
            reserved_for: reserved_for.map(|candidate| candidate.node.as_str()),
            reserved_for_incarnation: reserved_for
                .map(|candidate| candidate.incarnation.to_string()),
            reserved_for_ms: status
                .reserved()
                .and_then(|(_, left)| Some(left?.as_millis())),
            request: lease.and_then(|lease| RequestDocument::of(status, lease)),
            candidates: status
                .candidates
                .iter()
                .map(CandidateDocument::of)
                .collect(),
            history: lease.map(PastDocument::all).unwrap_or_default(),
        }
    }
}

impl<'a> RequestDocument<'a> {
    fn of(status: &Status, lease: &'a Lease) -> Option<Self> {
        let request = lease.request.as_ref()?;
        let (kind, to) = match &request.kind {
            RequestKind::Resign => ("resign", None),
            RequestKind::Transfer { to } => ("transfer", Some(to)),
        };
        let lapses_in = status.lapses_in();
        Some(Self {
            kind,
            by: request.by.as_str(),
            to: to.map(|to| to.node.as_str()),
            to_incarnation: to.map(|to| to.incarnation.to_string()),
            lapses: lapses_in.is_some(),
            lapses_in_ms: lapses_in.flatten().map(|left| left.as_millis()),
        })
    }
}

impl<'a> CandidateDocument<'a> {
    fn of(candidate: &'a Candidate) -> Self {
        Self {
            node: candidate.holder.node.as_str(),
            incarnation: candidate.holder.incarnation.to_string(),
            priority: candidate.priority,
            ttl_ms: candidate.holder.ttl.as_millis(),
            seen_ago_ms: candidate.seen_ago.map(|ago| ago.as_millis()),
            trouble: candidate.about.trouble.as_deref(),
        }
    }
}

impl<'a> PastDocument<'a> {
    fn all(lease: &'a Lease) -> Vec<Self> {
        let past = lease.history.iter().map(|past| Self {
            term: past.term.0,
            node: past.node.as_str(),
            since: times::rfc3339(past.since),
            until: times::rfc3339(past.until),
            lasted_ms: past.lasted_ms,
            reason: &past.reason,
        });
        past.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn that_the_next_caller_has_to_call_twice_is_told() {
        // A caller whose ttl is a minute was asked to resign ten seconds ago.
        let lease = r#"{"format":1,"lineage":"1","term":3,"state":{"held":{"holder":{"node":"a","incarnation":"a","ttl_ms":60000},"since":0}},"request":{"kind":"resign","by":"ops","lapses":true},"writer":{"incarnation":"a","counter":1}}"#;
        let lease = Lease::decode(lease.as_bytes()).unwrap();
        let status = Status {
            lease: Some(lease.clone()),
            fence: None,
            candidates: Vec::new(),
            lease_age: Some(Duration::from_secs(10)),
            fence_age: None,
            leader_seen_ago: None,
        };
        assert_eq!(
            request(&status, &lease).unwrap(),
            "ops asked it to resign; its lease lapses in 50s: the next candidate takes it; one that only calls has to call twice, \
             1m 0s apart or more, since this was asked"
        );
    }
}
