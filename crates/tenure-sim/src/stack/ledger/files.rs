//! The log in files, as the disk has it for certain. Knows the format by its own reading, not by the production
//! code.
//!
//! A record is committed when it is durable in the chain of the leader whose origin stands: who takes over later
//! replaces the origin, then reads, and so finds it. What is durable after the origin was replaced may be found
//! or not; it is decided by the broker that takes over, and becomes durable in turn.
//!
//! A file whose number is 0 is a copy, of the last file that its leader has read. Where a chain leads to it, it stands
//! in for that file, and must have all of it that was committed.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;

use super::super::disk::Durable;
use super::{Header, Ledger};
use crate::invariants::Violation;

/// How far each file is committed.
#[derive(Debug, Default)]
pub(crate) struct Files {
    ends: BTreeMap<String, usize>,
    /// The last file of the log.
    last: Option<String>,
}

fn is_copy(name: &str) -> bool {
    name.ends_with("-000000")
}

/// What of a file's first line matters here.
#[derive(Debug, Deserialize)]
struct First {
    seq: u64,
    previous: Option<Previous>,
    bytes: usize,
}

#[derive(Debug, Deserialize)]
struct Previous {
    segment: String,
    end: usize,
}

impl Ledger {
    /// Something became durable, while the origin was that of a take-over.
    pub(crate) fn synced(&mut self, disk: &Durable<'_>, takeover: u64) -> Result<(), Violation> {
        let files = disk.last_of(takeover);
        let last = files.iter().filter(|(name, _)| !is_copy(name));
        let last = last.clone().find(|(name, file)| {
            self.files.ends.contains_key(*name) || frame_at(file, 0, file.len()).is_some()
        });
        let Some(&(last, _)) = last else {
            return Ok(());
        };
        let committed = self.places.len();
        for (name, end) in self.files.chain(disk, last, committed)? {
            let from = self.files.ends.get(&name).copied().unwrap_or(0);
            let (end, place) = self.read(disk, &name, from, end)?;
            if is_copy(&name) && place.is_some_and(|place| place < committed) {
                return broken(format!(
                    "{last} goes on from {name}, which ends at place {place:?} of {committed}"
                ));
            }
            self.files.ends.insert(name.clone(), end);
            self.files.last = Some(name);
        }
        Ok(())
    }

    /// Reads what is new in a file, up to an end that must be one of a frame.
    fn read(
        &mut self,
        disk: &Durable<'_>,
        name: &str,
        from: usize,
        end: Option<usize>,
    ) -> Result<(usize, Option<u64>), Violation> {
        if end == Some(from) {
            return Ok((from, None));
        }
        let Some(file) = disk.file(name) else {
            return broken(format!("{name} is committed from {from} on, and is gone"));
        };
        let (mut at, mut place) = (from, None);
        while end != Some(at)
            && let Some(frame) = frame_at(file, at, end.unwrap_or(file.len()))
        {
            at += frame.len();
            place = Some(self.frame(&Bytes::copy_from_slice(frame))?);
        }
        match end {
            Some(end) if at != end => broken(format!(
                "{name} is the log to {end}, and has nothing at {at}"
            )),
            _ => Ok((at, place)),
        }
    }

    /// Returns its place.
    fn frame(&mut self, frame: &Bytes) -> Result<u64, Violation> {
        let header: Header = serde_json::from_slice(line(frame)).expect("it was read before");
        self.placed(header.seq, frame)?;
        Ok(header.seq)
    }
}

impl Files {
    /// The files that have news, the oldest first, and where each ends.
    fn chain(
        &self,
        disk: &Durable<'_>,
        last: &str,
        committed: u64,
    ) -> Result<Vec<(String, Option<usize>)>, Violation> {
        let mut chain = vec![(last.to_owned(), None)];
        loop {
            let (name, end) = &chain[chain.len() - 1];
            if let Some(&committed) = self.ends.get(name) {
                let is_last = self.last.as_deref() == Some(name);
                if !is_last || end.is_some_and(|end| end < committed) {
                    return broken(format!(
                        "{last} goes on from {name} at {end:?}, and the log was committed to {committed} there \
                         and to {:?}",
                        self.last
                    ));
                }
                break;
            }
            let first = disk
                .file(name)
                .and_then(|file| frame_at(file, 0, file.len()));
            let Some(first) = first else {
                return broken(format!("{last} leads to {name}, which is not there"));
            };
            let first: First = serde_json::from_slice(line(first)).expect("it was read before");
            // A copy of the last file that is known, or of one that is news itself.
            if is_copy(name) && first.seq <= committed {
                break;
            }
            match (first.previous, &self.last) {
                (Some(previous), _) => chain.push((previous.segment, Some(previous.end))),
                (None, None) => break,
                (None, Some(before)) => {
                    return broken(format!("{name} begins a log, and there is one to {before}"));
                }
            }
        }
        chain.reverse();
        Ok(chain)
    }
}

fn broken<T>(message: String) -> Result<T, Violation> {
    Err(Violation::new(
        "what is committed stays in the log",
        message,
    ))
}

/// The frame that stands whole at a place of a file. Nothing in a frame is zero, and what was not written is.
fn frame_at(file: &[u8], at: usize, end: usize) -> Option<&[u8]> {
    let rest = file.get(at..end)?;
    let header = rest.iter().position(|&byte| byte == b'\n')? + 1;
    let first: First = serde_json::from_slice(&rest[..header]).ok()?;
    let frame = rest.get(..header + first.bytes)?;
    (!frame.contains(&0)).then_some(frame)
}

fn line(frame: &[u8]) -> &[u8] {
    let end = frame.iter().position(|&byte| byte == b'\n');
    &frame[..end.unwrap_or(frame.len())]
}
