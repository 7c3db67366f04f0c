//! `tenure log show`: commits, segments and snapshots, line by line.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Context;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use serde_json::value::RawValue;
use tenure::log::inspect::{Frame, Frames, Kind, Name, Stored};

use super::{kind, short, time_of};
use crate::args::LogShow;
use crate::output::{Data, Hinted, printable};

/// What to show.
enum What {
    Place(u64),
    Name(Name),
}

pub(super) async fn show(arguments: LogShow) -> anyhow::Result<ExitCode> {
    let what = arguments.what.as_deref().map(what).transpose()?;
    let stored = super::expect(&arguments.place).await?;
    let mut printer = Printer {
        data: Data::new(),
        json: arguments.json,
    };
    if arguments.follow {
        let from = match what {
            None => stored.last_place().await? + 1,
            Some(What::Place(place)) => place,
            Some(What::Name(_)) => {
                return Err(Hinted::new(
                    "cannot follow a name",
                    "give the log index to start at, or nothing to start now",
                )
                .into());
            }
        };
        follow(&stored, from, arguments.poll, &mut printer).await?;
    } else {
        match what {
            Some(What::Name(name)) => printer.frames(&mut stored.frames(&name)).await?,
            Some(What::Place(place)) => printer.frame(&at(&stored, place).await?)?,
            None => {}
        }
    }
    printer.data.finish().context("cannot write the log")?;
    Ok(ExitCode::SUCCESS)
}

fn what(text: &str) -> anyhow::Result<What> {
    Ok(match text.parse() {
        Ok(place) => What::Place(place),
        Err(_) => What::Name(text.parse()?),
    })
}

/// The frame at a place.
async fn at(stored: &Stored, place: u64) -> anyhow::Result<Frame> {
    stored.frame(place).await?.ok_or_else(|| {
        Hinted::new(
            format!("there is no index {place} in the log"),
            "`tenure log` lists what is stored",
        )
        .into()
    })
}

/// Prints new commits as they come, until the reader is gone.
async fn follow(
    stored: &Stored,
    from: u64,
    poll: std::time::Duration,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let mut last: Option<Frame> = None;
    while !printer.data.is_over() {
        // The commit that was last printed is read again and compared: for a moment a file may show what a replaced
        // leader appends, which is not part of the log.
        let after = last
            .as_ref()
            .map_or(from, |last| last.place)
            .saturating_sub(1);
        let mut frames = stored.log(after).await?;
        if let Some(last) = &last {
            let again = frames.next().await?;
            anyhow::ensure!(
                again.is_some_and(|again| again.says_the_same(last)),
                "index {} of the log has changed: what was shown was never committed",
                last.place
            );
        }
        while let Some(frame) = frames.next().await? {
            printer.frame(&frame)?;
            last = Some(frame);
        }
        tokio::time::sleep(poll).await;
    }
    Ok(())
}

struct Printer {
    data: Data,
    json: bool,
}

/// A record of a queue.
#[derive(Deserialize)]
struct Record<'a> {
    #[serde(borrow, rename = "do")]
    action: &'a RawValue,
}

impl Printer {
    async fn frames(&mut self, frames: &mut Frames) -> anyhow::Result<()> {
        while let Some(frame) = frames.next().await? {
            self.frame(&frame)?;
        }
        Ok(())
    }

    fn frame(&mut self, frame: &Frame) -> anyhow::Result<()> {
        if self.json {
            return self.documents(frame);
        }
        let mut text = heading(frame);
        let mut position = frame.position;
        for line in frame.lines() {
            let line = std::str::from_utf8(line).unwrap_or("(not text)");
            if frame.kind == Kind::Commit {
                text += &format!("{position:>8}  {}\n", record(line));
                position = position.next();
            } else {
                text += &format!("{:>8}  {}\n", "", verb(line));
            }
        }
        self.data.write(&text);
        Ok(())
    }

    /// One document per record; for a frame without records, one that describes it.
    fn documents(&mut self, frame: &Frame) -> anyhow::Result<()> {
        let mut about = json!({
            "place": frame.place,
            "kind": kind(frame.kind),
            "term": frame.term,
            "takeover": frame.takeover,
            "incarnation": frame.incarnation,
        });
        if matches!(frame.kind, Kind::Part) {
            about["part"] = frame.number.into();
        }
        let head = about.to_string();
        let head = head.trim_end_matches('}');
        let mut position = frame.position;
        for line in frame.lines() {
            let text = match serde_json::from_slice::<IgnoredAny>(line) {
                Ok(_) => String::from_utf8_lossy(line).into_owned(),
                Err(_) => serde_json::to_string(&String::from_utf8_lossy(line))?,
            };
            let name = match frame.kind {
                Kind::Commit => format!("\"position\":{position},\"record\""),
                _ => "\"line\"".to_owned(),
            };
            self.data.write(&format!("{head},{name}:{text}}}\n"));
            position = position.next();
        }
        Ok(())
    }
}

fn heading(frame: &Frame) -> String {
    let what = match frame.kind {
        Kind::Commit => match frame.count() {
            1 => format!("commit of record {}", frame.position),
            _ => format!("commit of records {} to {}", frame.position, frame.last()),
        },
        Kind::Term => "takeover".to_owned(),
        Kind::Segment => "new segment".to_owned(),
        Kind::Part => format!("part {} of a snapshot", frame.number),
        Kind::Manifest => format!("snapshot up to record {}", frame.position),
    };
    format!(
        "index {}: {what}, term {}, takeover {} ({} at offset {})\n",
        frame.place,
        frame.term,
        frame.takeover,
        printable(short(&frame.location)),
        frame.offset,
    )
}

/// A record on one line: its time, command and arguments.
fn record(line: &str) -> String {
    let time = time_of(line.as_bytes());
    match (time, serde_json::from_str::<Record<'_>>(line)) {
        (Some(time), Ok(record)) => format!("{time}  {}", verb(record.action.get())),
        _ => printable(line),
    }
}

/// `{"submit":[…]}` as `submit […]`.
fn verb(line: &str) -> String {
    let parsed: Result<BTreeMap<&str, &RawValue>, _> = serde_json::from_str(line);
    match parsed.ok().filter(|parsed| parsed.len() == 1) {
        Some(parsed) => parsed
            .into_iter()
            .map(|(verb, with)| printable(&format!("{verb} {}", with.get())))
            .collect(),
        None => printable(line.trim_matches('"')),
    }
}
