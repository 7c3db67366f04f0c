//! Snapshots: the state at one place of the log, in parts, and a manifest that is written last.
//!
//! A snapshot is the objects `<namespace>/queue/snapshot/<seq>-<unique>/<part>` and
//! `<namespace>/queue/snapshot/<seq>-<unique>/manifest`. It counts from the moment that the manifest is there;
//! parts without one are the remains of a leader that did not finish, and nobody reads them. The name is
//! unique, so two leaders, or two attempts of one, never mix their parts.
//!
//! The state at a place follows from the log up to there, and a leader snapshots only what it has committed. So
//! a snapshot is true, however late it is written: also that of a leader that has been replaced.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use tenure_store::{Key, VALUE_BYTES_MAX};
use tokio::sync::mpsc;

use super::access::{Access, Created};
use super::error::Halt;
use super::frame::{self, Checksum, Cursor, Frame, Header, Kind, Lines, Unread};
use super::{Error, Machine};
use crate::requests::Chain;

/// How many parts are read at once.
const PARTS_AHEAD: usize = 4;

/// What the manifest says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) parts: Vec<Part>,
    /// Every object of the log up to this place was deleted, but for those that are kept for ever.
    pub(crate) swept: u64,
    /// The places behind it, up to that of the snapshot, that are to be kept for ever.
    pub(crate) kept: Vec<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    count: usize,
    bytes: usize,
    body: Checksum,
}

impl Part {
    pub(crate) fn of(header: &Header) -> Self {
        Self {
            count: header.count,
            bytes: header.bytes,
            body: header.body,
        }
    }
}

/// A snapshot that counts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Published {
    pub(crate) seq: u64,
    pub(crate) name: String,
}

/// Everything under the prefix of snapshots.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// In order.
    pub(crate) published: Vec<Published>,
    /// All objects of each snapshot, finished or not.
    pub(crate) objects: BTreeMap<String, Vec<Key>>,
}

/// What is sent to the task that writes a snapshot. Without the end there is none: the sender has gone.
#[derive(Debug)]
pub(crate) enum Piece {
    /// Whole lines that have been checked.
    Lines(Bytes),
    End,
}

impl Manifest {
    /// What a manifest says.
    pub(crate) fn of(manifest: &Frame) -> Result<Self, String> {
        let line = manifest.lines().next();
        let line = line.ok_or_else(|| "it is empty".to_owned())?;
        serde_json::from_slice(line).map_err(|error| error.to_string())
    }
}

impl Listing {
    pub(crate) async fn read(access: &Access) -> Result<Self, Error> {
        let prefix = access.keys.snapshots();
        let mut listing = Self::default();
        for entry in access.list(&prefix, None).await? {
            let Some(rest) = entry.key.strip(&prefix) else {
                continue;
            };
            let segments: Vec<&str> = rest.segments().collect();
            let [name, object] = segments[..] else {
                continue;
            };
            let Some(seq) = seq_of(name) else { continue };
            if object == "manifest" {
                let name = name.to_owned();
                listing.published.push(Published { seq, name });
            }
            let objects = listing.objects.entry(name.to_owned()).or_default();
            objects.push(entry.key);
        }
        listing.published.sort_unstable();
        Ok(listing)
    }

    pub(crate) fn newest(&self) -> Option<&Published> {
        self.published.last()
    }

    /// Those of this place or an earlier one, in order.
    pub(crate) fn until(&self, seq: u64) -> &[Published] {
        let later = self.published.partition_point(|one| one.seq <= seq);
        &self.published[..later]
    }
}

/// The place of the newest snapshot; 0 without one.
pub(crate) async fn newest_seq(access: &Access) -> Result<u64, Error> {
    Ok(Listing::read(access)
        .await?
        .newest()
        .map_or(0, |newest| newest.seq))
}

/// The place that a snapshot is of. Only as it is written, so that nothing else is taken for one.
pub(crate) fn seq_of(name: &str) -> Option<u64> {
    let (place, unique) = name.split_once('-')?;
    let seq = place.parse().ok()?;
    let unique = u64::from_str_radix(unique, 16).ok()?;
    (name_of(seq, unique) == name).then_some(seq)
}

fn name_of(seq: u64, unique: u64) -> String {
    format!("{seq:020}-{unique:016x}")
}

/// Writes what comes through the channel, part by part, and then the manifest. Returns the size.
///
/// The state was taken at `cursor`: its last place and its last position.
pub(crate) async fn write(
    access: &Access,
    cursor: Cursor,
    mut manifest: Manifest,
    mut pieces: mpsc::Receiver<Piece>,
) -> Result<(Published, u64), Error> {
    let unique = access.runtime.unique().as_u64_pair().0;
    let name = name_of(cursor.seq, unique);
    let (mut part, mut total) = (Lines::with_capacity(0), 0);
    while let Piece::Lines(lines) = pieces.recv().await.ok_or(Error::Stopped)? {
        if part.bytes() + lines.len() > access.config.part_bytes_max && part.count() > 0 {
            let next = Lines::with_capacity(part.bytes());
            let full = std::mem::replace(&mut part, next);
            total += write_part(access, &name, cursor, &mut manifest, full).await?;
        }
        part.extend(&lines);
    }
    if part.count() > 0 {
        total += write_part(access, &name, cursor, &mut manifest, part).await?;
    }
    let line = serde_json::to_vec(&manifest).expect("a manifest has no failing serializers");
    let frame = frame::encode(Kind::Manifest, cursor, None, &[line]);
    create(access, &access.keys.manifest(&name), &frame).await?;
    let seq = cursor.seq;
    Ok((Published { seq, name }, total))
}

async fn write_part(
    access: &Access,
    name: &str,
    cursor: Cursor,
    manifest: &mut Manifest,
    lines: Lines,
) -> Result<u64, Error> {
    let number = manifest.parts.len() as u64;
    let (part, header) = lines.seal(Kind::Part, Cursor { number, ..cursor }, None, None);
    let key = access.keys.part(name, number);
    // The store would refuse it, and the next one, for ever: say why.
    if part.len() > VALUE_BYTES_MAX {
        let bytes = part.len();
        return Err(Error::invalid(
            format!(
                "{key} would have {bytes} bytes, but an object may have at most {VALUE_BYTES_MAX}"
            ),
            "a line of the snapshot is too long; nothing was written",
        ));
    }
    create(access, &key, &part).await?;
    manifest.parts.push(Part::of(&header));
    Ok(part.len() as u64)
}

async fn create(access: &Access, key: &Key, value: &Bytes) -> Result<(), Error> {
    match access.create(key, value).await? {
        Created::Done => Ok(()),
        Created::Taken(_) => Err(Error::corrupt(key, "another process has written it")),
    }
}

/// Gives the state of a snapshot to the machine, and returns its manifest and its size.
pub(crate) async fn restore<M: Machine>(
    access: &Access,
    published: &Published,
    machine: &mut M,
    mut progress: impl FnMut(usize, usize),
) -> Result<(Frame, Manifest, u64), Halt> {
    let key = access.keys.manifest(&published.name);
    let manifest = read(access, &key, Kind::Manifest, published.seq).await?;
    let contents = Manifest::of(&manifest).map_err(|what| Error::corrupt(&key, what))?;
    let keys =
        (0..contents.parts.len() as u64).map(|number| access.keys.part(&published.name, number));
    let mut parts = stream::iter(keys)
        .map(|key| async move {
            let part = read(access, &key, Kind::Part, published.seq).await;
            (key, part)
        })
        .buffered(PARTS_AHEAD);
    let mut total = 0;
    for expected in &contents.parts {
        let (key, part) = parts.next().await.expect("as many as the manifest says");
        let part = part?;
        let found = Part::of(&part.header);
        if found != *expected {
            let what = "it is not the part that the manifest names";
            return Err(Error::corrupt(&key, what).into());
        }
        machine
            .restore(part.body())
            .map_err(|error| Error::corrupt(&key, Chain(&error).to_string()))?;
        total += found.bytes as u64;
        progress(found.count, found.bytes);
    }
    machine
        .restored()
        .map_err(|error| Error::corrupt(&key, Chain(&error).to_string()))?;
    Ok((manifest, contents, total))
}

pub(crate) async fn read(access: &Access, key: &Key, kind: Kind, seq: u64) -> Result<Frame, Halt> {
    let object = access.get(key).await?;
    let Some(object) = object else {
        return Err(Halt::Missing(key.to_string()));
    };
    let frame = frame::decode(&object.value).and_then(|frame| {
        if (frame.header.kind, frame.header.seq) == (kind, seq) {
            Ok(frame)
        } else {
            Err(Unread::Damaged("it belongs elsewhere".to_owned()))
        }
    });
    Ok(frame.map_err(|unread| unread.at(key))?)
}
