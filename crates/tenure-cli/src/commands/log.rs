//! `tenure log`: shows what is stored of a queue, for troubleshooting. Reads only.
//!
//! Everything is printed as it is read, so a log of any size can be listed.

use std::process::ExitCode;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tenure::NamespaceView;
use tenure::core::{Namespace, Wall};
use tenure::log::Form;
use tenure::log::inspect::{Frame, Frames, Kind, Segment, Snapshot, Stored};

use crate::args::{InNamespace, Log, LogCommand, LogList};
use crate::output::{self, Data, Hinted, printable};
use crate::{EXIT_NO, times};

mod diff;
mod rebuilt;
mod show;
mod verify;

pub(crate) async fn run(arguments: Log) -> anyhow::Result<ExitCode> {
    match arguments.command {
        None => super::interruptible(list(arguments.list)).await,
        Some(LogCommand::Show(arguments)) => super::interruptible(show::show(arguments)).await,
        Some(LogCommand::Diff(arguments)) => super::interruptible(diff::diff(arguments)).await,
        Some(LogCommand::Verify(arguments)) => {
            super::interruptible(verify::verify(arguments)).await
        }
    }
}

/// Opens the log of a namespace, if it has one.
async fn open(place: &InNamespace) -> anyhow::Result<Option<Stored>> {
    let url = super::named(Some(place.store.clone()))?;
    let namespace = Namespace::new(&place.namespace)?;
    let store = tenure_store::open_existing(&url).await?;
    Ok(Stored::open(store, &namespace).await?)
}

/// The namespace, to read other objects than the log.
async fn namespace(place: &InNamespace) -> anyhow::Result<NamespaceView> {
    let url = super::named(Some(place.store.clone()))?;
    let store = tenure_store::open_existing(&url).await?;
    Ok(NamespaceView::new(store, Namespace::new(&place.namespace)?))
}

/// Opens the log of a namespace that must have one.
async fn expect(place: &InNamespace) -> anyhow::Result<Stored> {
    open(place).await?.ok_or_else(|| {
        Hinted::new(
            none(place),
            "check that --store and --namespace are the same as the broker's",
        )
        .into()
    })
}

fn none(place: &InNamespace) -> String {
    format!("there is no queue in the namespace {}", place.namespace)
}

async fn list(arguments: LogList) -> anyhow::Result<ExitCode> {
    let Some(stored) = open(&arguments.place).await? else {
        output::note(&none(&arguments.place));
        return Ok(ExitCode::from(EXIT_NO));
    };
    let mut list = List {
        data: Data::new(),
        json: arguments.json,
    };
    list.head(&stored);
    for snapshot in stored.snapshots().await? {
        list.snapshot(&stored, &snapshot).await?;
    }
    for segment in stored.segments().await? {
        list.segment(&stored, &segment).await?;
    }
    let mut after = 0;
    loop {
        let places = stored.places(after).await?;
        let Some(&last) = places.last() else { break };
        after = last;
        list.objects(&mut stored.objects(places)).await?;
    }
    list.data.finish().context("cannot write the list")?;
    Ok(ExitCode::SUCCESS)
}

/// Prints rows as they are read.
struct List {
    data: Data,
    json: bool,
}

/// One stored object: a commit, segment or snapshot.
#[derive(Debug, Default, Serialize)]
struct Row {
    name: String,
    kind: &'static str,
    /// The first and last place; for a snapshot, only the last place that it contains.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_place: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_record: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    takeover: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    term: Option<u64>,
    bytes: u64,
    /// When the broker took the last record.
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remark: Option<String>,
}

impl Row {
    /// Adds a frame's numbers.
    fn add(&mut self, frame: &Frame) {
        self.bytes += frame.bytes;
        self.takeover.get_or_insert(frame.takeover);
        self.term.get_or_insert(frame.term.0);
        self.place = Some(frame.place);
        match frame.kind {
            Kind::Commit => {
                self.first_place.get_or_insert(frame.place);
                self.first_record.get_or_insert(frame.position.0);
                self.record = Some(frame.last().0);
                self.time = frame
                    .lines()
                    .next_back()
                    .and_then(time_of)
                    .or(self.time.take());
            }
            Kind::Term | Kind::Segment => {
                self.first_place.get_or_insert(frame.place);
            }
            Kind::Part | Kind::Manifest => self.record = Some(frame.position.0),
        }
    }
}

impl List {
    fn head(&mut self, stored: &Stored) {
        if self.json {
            return;
        }
        let summary = stored.summary();
        let form = match summary.form {
            Form::Objects => "objects",
            Form::Segments => "segments",
        };
        self.data.write(&format!(
            "stored in {form}, takeover {}, term {}\n",
            summary.takeover, summary.term
        ));
        let heading = ["NAME", "INDEX", "RECORD", "TERM", "BYTES", "TIME", ""];
        self.columns(heading.map(str::to_owned));
    }

    async fn snapshot(&mut self, stored: &Stored, snapshot: &Snapshot) -> anyhow::Result<()> {
        let mut row = Row {
            name: snapshot.name.to_string(),
            kind: "snapshot",
            place: Some(snapshot.place),
            ..Row::default()
        };
        if snapshot.is_published {
            self.read(&mut row, &mut stored.frames(&snapshot.name))
                .await?;
        } else {
            row.remark = Some("not finished".to_owned());
        }
        self.row(&row)
    }

    async fn segment(&mut self, stored: &Stored, segment: &Segment) -> anyhow::Result<()> {
        let mut row = Row {
            name: segment.name.to_string(),
            kind: "segment",
            ..Row::default()
        };
        self.read(&mut row, &mut stored.frames(&segment.name))
            .await?;
        if let Some(what) = &segment.misnamed {
            row.remark = Some(format!("not part of the log: {what}"));
        }
        if !segment.is_in_log {
            row.remark.get_or_insert("not part of the log".to_owned());
        }
        if let Some(end) = segment.end.filter(|&end| end < row.bytes) {
            let remark = format!("part of the log up to offset {end}");
            row.remark.get_or_insert(remark);
        }
        self.row(&row)
    }

    /// Reads all frames and adds them up. Damage becomes the remark.
    async fn read(&mut self, row: &mut Row, frames: &mut Frames) -> anyhow::Result<()> {
        loop {
            match frames.next().await {
                Ok(Some(frame)) => row.add(&frame),
                Ok(None) => return Ok(()),
                Err(tenure::log::Error::Corrupt { what, .. }) => {
                    row.remark = Some(format!("damaged: {what}"));
                }
                Err(tenure::log::Error::Newer { what, .. }) => {
                    row.remark = Some(format!("written by a newer version: {what}"));
                }
                // It was cleaned up after it was listed.
                Err(tenure::log::Error::Invalid { .. }) => {
                    row.remark = Some("deleted meanwhile".to_owned());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn objects(&mut self, frames: &mut Frames) -> anyhow::Result<()> {
        loop {
            let row = match frames.next().await {
                Ok(None) => return Ok(()),
                Ok(Some(frame)) => {
                    let mut row = Row {
                        name: short(&frame.location).to_owned(),
                        kind: kind(frame.kind),
                        ..Row::default()
                    };
                    row.add(&frame);
                    row
                }
                Err(tenure::log::Error::Corrupt { location, what }) => Row {
                    name: short(&location).to_owned(),
                    kind: "object",
                    remark: Some(format!("damaged: {what}")),
                    ..Row::default()
                },
                Err(tenure::log::Error::Newer { location, what }) => Row {
                    name: short(&location).to_owned(),
                    kind: "object",
                    remark: Some(format!("written by a newer version: {what}")),
                    ..Row::default()
                },
                Err(error) => return Err(error.into()),
            };
            self.row(&row)?;
        }
    }

    fn row(&mut self, row: &Row) -> anyhow::Result<()> {
        if self.json {
            self.data.write(&(serde_json::to_string(row)? + "\n"));
            return Ok(());
        }
        let number =
            |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
        let term = matches!(row.kind, "term").then(|| "takeover".to_owned());
        self.columns([
            row.name.clone(),
            range(row.first_place, row.place),
            range(row.first_record, row.record),
            number(row.term),
            row.bytes.to_string(),
            row.time.clone().unwrap_or("-".to_owned()),
            row.remark
                .clone()
                .or(term)
                .as_deref()
                .map(printable)
                .unwrap_or_default(),
        ]);
        Ok(())
    }

    /// Names have known lengths, so columns line up before all rows are known.
    fn columns(&mut self, cells: [String; 7]) {
        let [name, place, record, term, bytes, time, remark] = cells;
        let line = format!(
            "{name:<46}  {place:>11}  {record:>15}  {term:>6}  {bytes:>10}  {time:<20}  {remark}"
        );
        self.data.write(&format!("{}\n", line.trim_end()));
    }
}

fn range(first: Option<u64>, last: Option<u64>) -> String {
    match (first, last) {
        (Some(first), Some(last)) if first != last => format!("{first}-{last}"),
        (_, Some(last)) => last.to_string(),
        _ => "-".to_owned(),
    }
}

/// A name without the folders above the queue's.
fn short(location: &str) -> &str {
    location
        .rsplit_once("/queue/")
        .map_or(location, |(_, name)| name)
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Term => "term",
        Kind::Commit => "commit",
        Kind::Segment => "segment",
        Kind::Part => "part",
        Kind::Manifest => "manifest",
    }
}

/// When the broker took a record.
fn time_of(record: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct At {
        at: u64,
    }
    let At { at } = serde_json::from_slice(record).ok()?;
    Some(times::rfc3339(Wall(at)))
}
