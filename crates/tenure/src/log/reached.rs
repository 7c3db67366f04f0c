//! How far the log is known to reach, so that an end that is missing is noticed.
//!
//! A log that lost its last file, or its last object, looks like a log that never had it. So
//! `<namespace>/queue/reached` names a place that is in the log for certain, and a reader of the whole log
//! must come at least that far. If it does not, the end is damaged, and nothing is served.
//!
//! # When it is written
//!
//! - When a leader has taken over, before it acknowledges anything: its own first frame.
//! - Where the log is kept in files, when a leader goes on in another file, before it acknowledges anything in
//!   that: the first frame of the file. If that fails it goes on all the same, says so, and tries again with the next
//!   commit: a commit that is durable is not refused for the sake of a note.
//! - When a leader ends in an orderly way: the last frame, and that the log is *closed*. So the whole end of the log
//!   is known then, to the byte.
//!
//! # Why it is always true
//!
//! It only ever names what no later leader can leave out: a first frame behind which the fence was found in place, or
//! a commit that was acknowledged. That stays true, however late it is written, so a leader that was
//! replaced does no harm either. It is replaced only by a later place, expecting the version that was read.
//!
//! # What each combination means
//!
//! | the object | the log | meaning |
//! | --- | --- | --- |
//! | missing | anything | an older version wrote the log, or a leader died before its first acknowledgement: nothing to compare |
//! | a place | goes further | a leader crashed, or is at work, or an older version wrote since. What follows the place counts; a frame torn at the very end was never acknowledged |
//! | a place | ends there | nothing was committed since; if it is closed, this is the whole log |
//! | a place | ends before | the end of the log is missing or cut short |
//!
//! So what a leader has committed since its last note is not covered if it crashes: a last frame that is torn by a
//! crash and one that was cut short later look the same. What the newest snapshot contains is: the log must have the place
//! of that, too (see [`recovery`](super::recovery)).
//!
//! To go on without an end that is lost for good, people delete this object: then nothing is compared, and the log is taken
//! as it is.
//!
//! A reader looks here first and reads the log then. The log only grows, so a leader at work makes no difference.
//!
//! # What is durable
//!
//! A leader that closes the log has synced all of it. Where the log is not closed at its very end, nobody can know
//! how much of the last file is on the disk: see [`segment`](super::segment).

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tenure_store::Expect;

use super::access::{Access, Pause};
use super::frame::{NUMBER_MAX, Previous, check_of, unchecked};
use super::{Error, Position, segment};

/// How often someone else may get in between.
const ATTEMPTS_MAX: usize = 100;

/// The only format so far.
const FORMAT: u32 = 1;

/// What the object says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reached {
    format: u32,
    /// Who wrote it.
    pub(crate) takeover: u64,
    /// A place that is in the log.
    pub(crate) place: u64,
    /// The last record up to there.
    pub(crate) position: Position,
    /// Whether its leader ended there in an orderly way.
    pub(crate) closed: bool,
    /// In files: which one, and the offset behind the frame at that place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<Previous>,
}

impl Reached {
    pub(crate) fn new(
        takeover: u64,
        place: u64,
        position: Position,
        closed: bool,
        file: Option<Previous>,
    ) -> Self {
        Self {
            format: FORMAT,
            takeover,
            place,
            position,
            closed,
            file,
        }
    }

    /// What is noted; `None` if nothing is.
    pub(crate) async fn read(access: &Access) -> Result<Option<Self>, Error> {
        let object = access.get(&access.keys.reached()).await?;
        let read = object.map(|object| Self::decode(access, &object.value));
        read.transpose()
    }

    fn decode(access: &Access, value: &Bytes) -> Result<Self, Error> {
        let key = access.keys.reached();
        let json = unchecked(value.trim_ascii_end()).map_err(|what| Error::corrupt(&key, what))?;
        let read = |error| Error::corrupt(&key, format!("cannot read it: {error}"));
        // A later format may have other fields, so its number is read first.
        let Format { format } = serde_json::from_slice(&json).map_err(read)?;
        if format > FORMAT {
            let what = format!("it has format {format}, but this version reads format {FORMAT}");
            return Err(Error::newer(&key, what));
        }
        let reached: Self = serde_json::from_slice(&json).map_err(read)?;
        if reached.takeover.max(reached.place).max(reached.position.0) > NUMBER_MAX {
            let what = "it has a number that is too large";
            return Err(Error::corrupt(&key, what));
        }
        Ok(reached)
    }

    fn encode(&self) -> Bytes {
        let mut line = serde_json::to_vec(self).expect("plain data has no failing serializers");
        // The brace comes back behind the checksum.
        line.pop();
        let check = check_of(&line);
        line.extend_from_slice(check.as_bytes());
        line.push(b'\n');
        line.into()
    }

    /// Notes it, unless what is noted already goes as far. Tries again for as long as the pause has patience.
    pub(crate) async fn note(&self, access: &Access, mut pause: Pause) -> Result<(), Error> {
        let key = access.keys.reached();
        let value = self.encode();
        for _ in 0..ATTEMPTS_MAX {
            let expect = match access.get(&key).await? {
                None => Expect::Absent,
                Some(object) => {
                    let noted = Self::decode(access, &object.value)?;
                    if noted == *self || !self.says_more_than(&noted) {
                        return Ok(());
                    }
                    Expect::Version(object.version)
                }
            };
            match access.put(&key, &value, &expect).await {
                Ok(_) => return Ok(()),
                // It is read again: ours may be there, or what goes further.
                Err(tenure_store::Error::Conflict { .. }) => {}
                Err(tenure_store::Error::Unknown { .. }) => pause.sleep().await,
                Err(error) => pause.after(error).await?,
            }
        }
        // Others write it all the time, or no answer comes through.
        Err(Error::Unknown { source: None })
    }

    fn says_more_than(&self, noted: &Self) -> bool {
        (self.place, self.closed) > (noted.place, noted.closed)
    }

    /// Whether a log that was read to its end, at this place, has lost some of it.
    pub(crate) fn check(&self, access: &Access, last: u64) -> Result<(), Error> {
        if last >= self.place {
            return Ok(());
        }
        let key = access.keys.reached();
        let what = format!(
            "it is missing or cut short: the log ends at index {last}, but had reached index {} according to {key}",
            self.place
        );
        let location = match &self.file {
            Some(file) => match &access.files {
                Some(folder) => segment::location(&**folder, &file.segment),
                None => file.segment.clone(),
            },
            None => access.keys.log_object(last + 1).to_string(),
        };
        Err(Error::corrupt(&location, what))
    }

    /// Whether everything up to this offset of a file is on the disk for certain.
    pub(crate) fn is_durable(&self, segment: &str, end: u64) -> bool {
        let is_there = |file: &Previous| file.segment == segment && file.end == end;
        self.closed && self.file.as_ref().is_some_and(is_there)
    }
}

#[derive(Deserialize)]
struct Format {
    format: u32,
}
