//! `tenure log diff`: which jobs were added, removed and changed between two places or snapshots.
//!
//! Both states are read side by side in log order, so only a few jobs of each are in memory, or one whole state where
//! it has to be rebuilt.

use std::process::ExitCode;

use anyhow::Context;
use serde_json::{Map, Value, json};
use tenure::core::Wall;
use tenure::core::queue::Job;
use tenure::log::inspect::{Name, Stored};

use super::rebuilt::{Head, Pair};
use crate::args::LogDiff;
use crate::output::{Data, Hinted, printable};
use crate::{EXIT_NO, times};

/// The fields of a job that are times.
const TIMES: [&str; 3] = ["created_at", "run_at", "changed_at"];

/// One side of the comparison, and its place in the log.
#[derive(Debug)]
struct Side {
    place: u64,
    snapshot: Option<Name>,
}

pub(super) async fn diff(arguments: LogDiff) -> anyhow::Result<ExitCode> {
    let stored = super::expect(&arguments.place).await?;
    let before = side(&stored, &arguments.before).await?;
    let after = side(&stored, &arguments.after).await?;
    if before.place > after.place {
        return Err(Hinted::new(
            format!("{} comes after {}", arguments.before, arguments.after),
            "name the earlier one first",
        )
        .into());
    }
    let pair = match (&before.snapshot, &after.snapshot) {
        (Some(before), Some(after)) => Pair::snapshots(&stored, [before, after]),
        _ => Pair::places(&stored, [before.place, after.place]).await?,
    };
    let mut report = Report {
        data: Data::new(),
        json: arguments.json,
        counts: [0; 4],
    };
    report.compare(pair).await?;
    let [added, removed, changed, same] = report.counts;
    if !arguments.json {
        report.data.write(&format!(
            "{added} added, {removed} removed, {changed} changed, {same} unchanged\n"
        ));
    }
    report
        .data
        .finish()
        .context("cannot write the difference")?;
    Ok(match added + removed + changed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(EXIT_NO),
    })
}

async fn side(stored: &Stored, text: &str) -> anyhow::Result<Side> {
    if let Ok(place) = text.parse() {
        let snapshot = None;
        return Ok(Side { place, snapshot });
    }
    match text.parse()? {
        Name::Snapshot(name) => {
            let name = Name::Snapshot(name);
            // Also checks that it exists and is complete enough to be compared.
            let manifest = stored.frames(&name).next().await?;
            let place = manifest.map_or(0, |manifest| manifest.place);
            let snapshot = Some(name);
            Ok(Side { place, snapshot })
        }
        Name::Object(place) => Ok(Side {
            place,
            snapshot: None,
        }),
        name @ Name::Segment(_) => Err(Hinted::new(
            format!("{name} is not a log index"),
            "give a log index, or the name of a snapshot",
        )
        .into()),
    }
}

struct Report {
    data: Data,
    json: bool,
    /// Added, removed, changed, the same.
    counts: [u64; 4],
}

impl Report {
    /// Both sides are in the order of their sequence numbers.
    async fn compare(&mut self, mut pair: Pair) -> anyhow::Result<()> {
        let (mut before, mut after) = (pair.before().await?, pair.after().await?);
        while !self.data.is_over() {
            match (&before, &after) {
                (None, None) => break,
                (Some(old), new) if new.as_ref().is_none_or(|new| old.sequence < new.sequence) => {
                    self.changed("job", old.id.as_str(), Some(&fields(old)?), None);
                    before = pair.before().await?;
                }
                (old, Some(new)) if old.as_ref().is_none_or(|old| new.sequence < old.sequence) => {
                    self.changed("job", new.id.as_str(), None, Some(&fields(new)?));
                    after = pair.after().await?;
                }
                (Some(old), Some(new)) => {
                    if old == new {
                        self.counts[3] += 1;
                    } else {
                        self.changed(
                            "job",
                            new.id.as_str(),
                            Some(&fields(old)?),
                            Some(&fields(new)?),
                        );
                    }
                    (before, after) = (pair.before().await?, pair.after().await?);
                }
                (Some(_), None) | (None, Some(_)) => {
                    unreachable!("one side alone is handled above")
                }
            }
        }
        if !self.data.is_over() {
            let [before, after] = pair.heads()?;
            self.heads(&before, &after);
        }
        Ok(())
    }

    fn heads(&mut self, before: &Head, after: &Head) {
        let mut names: Vec<&String> = before.keys().chain(after.keys()).collect();
        names.sort();
        names.dedup();
        for name in names {
            let (old, new) = (before.get(name), after.get(name));
            if old != new {
                let (kind, name) = name.split_once(' ').unwrap_or((name, ""));
                let of = |value: Option<&Value>| value.and_then(Value::as_object).cloned();
                self.changed(kind, name, of(old).as_ref(), of(new).as_ref());
            }
        }
    }

    /// Prints something that was added, removed or changed.
    fn changed(
        &mut self,
        kind: &str,
        name: &str,
        before: Option<&Map<String, Value>>,
        after: Option<&Map<String, Value>>,
    ) {
        let (index, change, sign) = match (before, after) {
            (None, _) => (0, "added", '+'),
            (_, None) => (1, "removed", '-'),
            _ => (2, "changed", '~'),
        };
        self.counts[index] += 1;
        let differing = match (before, after) {
            (Some(before), Some(after)) => differences(before, after),
            _ => Vec::new(),
        };
        if self.json {
            let document = match (before, after) {
                (Some(_), Some(_)) => {
                    let pick = |which: fn(&Difference) -> &Value| -> Map<String, Value> {
                        let field = |one: &Difference| (one.field.clone(), which(one).clone());
                        differing.iter().map(field).collect()
                    };
                    json!({"change": change, kind: {"id": name},
                           "before": pick(|one| &one.before), "after": pick(|one| &one.after)})
                }
                (one, other) => json!({"change": change, kind: one.or(other)}),
            };
            self.data.write(&format!("{document}\n"));
            return;
        }
        let what = match before.or(after).filter(|_| differing.is_empty()) {
            Some(whole) => summary(kind, whole),
            None => {
                let texts: Vec<String> = differing.iter().map(Difference::text).collect();
                texts.join(", ")
            }
        };
        let name = printable(&format!("{kind} {name}"));
        let line = format!("{sign} {}: {}\n", name.trim_end(), printable(&what));
        self.data.write(&line);
    }
}

struct Difference {
    field: String,
    before: Value,
    after: Value,
}

impl Difference {
    fn text(&self) -> String {
        let text = |value: &Value| text(&self.field, value);
        format!(
            "{} {} -> {}",
            self.field,
            text(&self.before),
            text(&self.after)
        )
    }
}

fn differences(before: &Map<String, Value>, after: &Map<String, Value>) -> Vec<Difference> {
    let mut fields: Vec<&String> = before.keys().chain(after.keys()).collect();
    // The state comes first, since it matters most.
    fields.sort_by_key(|field| (*field != "state", *field));
    fields.dedup();
    let of = |map: &Map<String, Value>, field: &str| map.get(field).cloned().unwrap_or_default();
    fields
        .into_iter()
        .map(|field| Difference {
            field: field.clone(),
            before: of(before, field),
            after: of(after, field),
        })
        .filter(|one| one.before != one.after)
        .collect()
}

/// A short summary of a job or setting; `--json` prints all of it.
fn summary(kind: &str, whole: &Map<String, Value>) -> String {
    if kind != "job" {
        return Value::Object(whole.clone()).to_string();
    }
    let of = |field: &str| text(field, whole.get(field).unwrap_or(&Value::Null));
    format!(
        "{}, queue {}, type {}, attempt {}, since {}",
        of("state"),
        of("queue"),
        of("type"),
        of("attempt"),
        of("changed_at")
    )
}

fn text(field: &str, value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) if TIMES.contains(&field) => {
            times::rfc3339(Wall(number.as_u64().unwrap_or_default()))
        }
        value => value.to_string(),
    }
}

fn fields(job: &Job) -> anyhow::Result<Map<String, Value>> {
    match serde_json::to_value(job)? {
        Value::Object(fields) => Ok(fields),
        _ => anyhow::bail!("a job is not an object"),
    }
}
