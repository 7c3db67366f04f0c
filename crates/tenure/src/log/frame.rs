//! Frames: how everything of the queue is written, in objects and in files.
//!
//! A frame is one line of JSON, the header, and behind it the body, one line per record. What is stored can
//! be read with `cat`, `head -1` and `jq`:
//!
//! ```text
//! {"format":1,"kind":"commit","seq":7,…,"count":2,"bytes":55,"body":"1c291ca3","check":"e3069283"}
//! {"at":1000,"do":"tick"}
//! {"at":1002,"do":{"pause":"a"}}
//! ```
//!
//! `body` is the CRC-32C of the body, `check` that of the header line up to the comma before it. The header
//! has its own checksum because in a file its `bytes` say where the next frame begins. CRC-32C finds
//! every change of up to three bits in a frame of any size we write, and every burst of up to 32; it costs
//! less than copying the bytes.
//!
//! # Torn or damaged
//!
//! A frame at the end of a file that was being written may be torn by a crash: it was never acknowledged, and
//! is cut off. A damaged one may have been acknowledged, and is an error. They look different. Where a frame
//! goes there was nothing before, or zeros (`appender.rs` fills files with them ahead of what it writes, and a
//! file system shows zeros where it had not yet written, never old data). So a crash leaves
//!
//! - a proper beginning of the frame, and behind it the end of the file, or nothing but zeros; or
//! - whole sectors of zeros in the frame, and behind the frame nothing but zeros, for one frame is synced before
//!   the next is written.
//!
//! Records hold neither zeros nor newlines. All else is damage. Nothing but zeros is the end of the file.
//!
//! # Newer or damaged
//!
//! The header also names the rules by which its records are applied (see [`Rules`]). Frames of the first rules have
//! format 1, all others format 2, so that versions that know only the first refuse them. A header whose checksum is
//! right and whose format or rules this version does not know was written by a newer one.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use tenure_core::Incarnation;
use tenure_core::election::Term;
use tenure_core::queue::Rules;

use super::{Error, Position};

/// The format of whatever follows the first rules.
pub(crate) const FORMAT_FIRST: u32 = 1;

/// The format of whatever follows later rules: it names them.
pub(crate) const FORMAT_RULES: u32 = 2;

/// The most bytes in a header line.
pub(crate) const HEADER_BYTES_MAX: usize = 1024;

/// The least that a disk writes at once.
const SECTOR_BYTES: usize = 512;

/// The bytes of `,"check":"01234567"}`.
const CHECK_BYTES: usize = 20;

/// No log comes so far.
pub(crate) const NUMBER_MAX: u64 = u64::MAX / 2;

/// What every header begins with.
const BEGINNING: &[u8] = br#"{"format":"#;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The first of a leader, with which it takes over.
    Term,
    /// Records that were committed together.
    Commit,
    /// The first of a further file of the same leader.
    Segment,
    /// A part of a snapshot.
    Part,
    /// What makes a snapshot one.
    Manifest,
}

/// The first line of a frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) format: u32,
    pub(crate) kind: Kind,
    /// The place in the log; of a snapshot, the last place that it contains.
    pub(crate) seq: u64,
    /// The number of the first record; of a snapshot, of the last that it contains.
    pub(crate) position: Position,
    /// Who wrote it: which take-over of the log, in which term, by which process.
    pub(crate) takeover: u64,
    pub(crate) term: Term,
    pub(crate) incarnation: Incarnation,
    /// Tells apart what one leader writes; of a part, which it is.
    pub(crate) number: u64,
    /// In a file of the log: where it goes on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) previous: Option<Previous>,
    /// By which its records are applied.
    #[serde(default, skip_serializing_if = "Rules::are_first")]
    pub(crate) rules: Rules,
    /// What its writer's state was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) applied: Option<Applied>,
    pub(crate) count: usize,
    pub(crate) bytes: usize,
    pub(crate) body: Checksum,
}

/// What a leader's state was after the frame at an earlier place. A replay compares its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Applied {
    pub(crate) seq: u64,
    pub(crate) digest: Digest,
}

/// A [`Machine::digest`](super::Machine::digest), as sixteen hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Digest(pub(crate) u64);

/// Why a frame cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unread {
    /// It is not what was written.
    Damaged(String),
    /// It is as it was written, by a version that knows more.
    Newer(String),
}

/// Up to where the log goes in the file before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Previous {
    pub(crate) segment: String,
    pub(crate) end: u64,
}

/// A CRC-32C, as eight hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Checksum(u32);

/// A whole frame whose checksums are right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) header: Header,
    body: Bytes,
}

/// What stands at one place of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Frame {
        frame: Frame,
        end: usize,
    },
    /// A frame that was not finished.
    Torn,
    /// Nothing but zeros, for frames to come.
    End,
    Damaged(String),
    /// A frame that a newer version wrote.
    Newer(String),
}

/// Who writes, and where the next frame goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) seq: u64,
    pub(crate) position: Position,
    pub(crate) takeover: u64,
    pub(crate) term: Term,
    pub(crate) incarnation: Incarnation,
    pub(crate) number: u64,
    /// By which the records behind it are applied.
    pub(crate) rules: Rules,
}

/// The lines of a frame in the making. They lie as they will be written, behind a gap that the header fits into. So a
/// record is copied once, when it comes, and not again when what waits becomes a frame.
pub(crate) struct Lines {
    /// The gap, and the lines, each with its newline.
    frame: BytesMut,
    count: usize,
}

impl Lines {
    /// None yet, with room for so many bytes.
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        let mut frame = BytesMut::with_capacity(HEADER_BYTES_MAX + bytes);
        frame.put_bytes(b' ', HEADER_BYTES_MAX);
        Self { frame, count: 0 }
    }

    /// Those of records.
    pub(crate) fn of<L: AsRef<[u8]>>(records: &[L]) -> Self {
        let bytes = records.iter().map(|line| line.as_ref().len() + 1).sum();
        let mut lines = Self::with_capacity(bytes);
        for record in records {
            lines.push(record.as_ref());
        }
        lines
    }

    /// One more, which has passed [`check_line`](check_line).
    pub(crate) fn push(&mut self, line: &[u8]) {
        debug_assert!(check_line(line).is_ok());
        self.frame.put_slice(line);
        self.frame.put_u8(b'\n');
        self.count += 1;
    }

    /// Several at once, which have passed [`check_lines`].
    pub(crate) fn extend(&mut self, piece: &[u8]) {
        debug_assert!(check_lines(piece).is_ok());
        self.frame.put_slice(piece);
        self.count += newlines(piece);
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// How large they are, with their newlines.
    pub(crate) fn bytes(&self) -> usize {
        self.frame.len() - HEADER_BYTES_MAX
    }

    /// Puts the header right before them.
    pub(crate) fn seal(
        mut self,
        kind: Kind,
        place: Cursor,
        previous: Option<Previous>,
        applied: Option<Applied>,
    ) -> (Bytes, Header) {
        let header = Header {
            format: format_of(place.rules),
            kind,
            seq: place.seq,
            position: place.position,
            takeover: place.takeover,
            term: place.term,
            incarnation: place.incarnation,
            number: place.number,
            previous,
            rules: place.rules,
            applied,
            count: self.count,
            bytes: self.bytes(),
            body: Checksum::of(&self.frame[HEADER_BYTES_MAX..]),
        };
        let line = header.to_line();
        let start = HEADER_BYTES_MAX
            .checked_sub(line.len())
            .expect("names in a header are short");
        self.frame[start..HEADER_BYTES_MAX].copy_from_slice(&line);
        (self.frame.freeze().slice(start..), header)
    }
}

/// Not what is in them.
impl fmt::Debug for Lines {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} lines of {} bytes", self.count, self.bytes())
    }
}

/// Writes a frame. Every line has passed [`check_line`].
pub(crate) fn encode<L: AsRef<[u8]>>(
    kind: Kind,
    place: Cursor,
    previous: Option<Previous>,
    lines: &[L],
) -> Bytes {
    Lines::of(lines).seal(kind, place, previous, None).0
}

/// Whether a record can be written: one line, and not one that looks like a crash.
pub(crate) fn check_line(line: &[u8]) -> Result<(), Error> {
    let problem = if line.is_empty() {
        "is empty"
    } else if breaks_lines(line) {
        "contains a newline or a zero byte"
    } else {
        return Ok(());
    };
    Err(Error::invalid(
        format!("a record {problem}"),
        "write a record as one line of JSON",
    ))
}

/// Whether a piece can be written: whole lines, of which none looks like a crash.
pub(crate) fn check_lines(piece: &[u8]) -> Result<(), Error> {
    if piece.ends_with(b"\n") && !piece.contains(&0) {
        return Ok(());
    }
    Err(Error::invalid(
        "a piece of a snapshot does not end with a newline, or contains a zero byte",
        "give whole lines of JSON",
    ))
}

/// Twice over the line, since searching for one byte looks at a word at a time, and for either does not.
fn breaks_lines(line: &[u8]) -> bool {
    line.contains(&b'\n') || line.contains(&0)
}

/// In portions that a byte can count, so that many are compared at once.
pub(crate) fn newlines(bytes: &[u8]) -> usize {
    let of_portion = |portion: &[u8]| -> usize {
        let count: u8 = portion.iter().map(|&byte| u8::from(byte == b'\n')).sum();
        count.into()
    };
    bytes.chunks(u8::MAX.into()).map(of_portion).sum()
}

/// Reads a frame that is all there is.
pub(crate) fn decode(bytes: &Bytes) -> Result<Frame, Unread> {
    let (header, start) = Header::read(bytes)?;
    let (there, said) = (bytes.len() - start, header.bytes);
    if there != said {
        let what = format!("its records have {there} bytes, but its header says {said}");
        return Err(Unread::Damaged(what));
    }
    Frame::check(header, bytes.slice(start..)).map_err(Unread::Damaged)
}

/// Reads the frame that begins at `at` in what is there of a file.
pub(crate) fn find(file: &Bytes, at: usize) -> Found {
    let rest = file.slice(at..);
    if is_zero(&rest) {
        return Found::End;
    }
    let (header, start) = match Header::read(&rest) {
        Ok(header) => header,
        Err(Unread::Newer(what)) => return Found::Newer(what),
        Err(Unread::Damaged(_)) if is_torn_header(file, at) => return Found::Torn,
        Err(Unread::Damaged(what)) => return Found::Damaged(what),
    };
    if header.bytes > rest.len() - start {
        return Found::Torn;
    }
    let end = at + start + header.bytes;
    match Frame::check(header, file.slice(at + start..end)) {
        Ok(frame) => Found::Frame { frame, end },
        Err(_) if is_torn(file, at, end) => Found::Torn,
        Err(what) => Found::Damaged(what),
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// Whether a header that cannot be read was not finished. One that has its newline was: it is damaged.
fn is_torn_header(file: &[u8], at: usize) -> bool {
    let rest = &file[at..];
    let line = &rest[..rest.len().min(HEADER_BYTES_MAX)];
    match line.iter().position(|byte| matches!(byte, b'\n' | 0)) {
        None => rest.len() < HEADER_BYTES_MAX,
        Some(zero) if rest[zero] == 0 => {
            // How long the frame is cannot be known.
            is_zero(&rest[zero..])
                || (is_zero_sector(file, at, at + zero) && !holds_header(&rest[zero..]))
        }
        Some(_) => false,
    }
}

/// Whether a frame whose records are wrong was not finished.
fn is_torn(file: &[u8], at: usize, end: usize) -> bool {
    let borders = (at / SECTOR_BYTES + 1..).map(|sector| sector * SECTOR_BYTES);
    let mut starts = std::iter::once(at).chain(borders.take_while(|&border| border < end));
    let is_beginning = file[end - 1] == 0;
    is_zero(&file[end..])
        && (is_beginning || starts.any(|start| is_zero_sector(&file[..end], at, start)))
}

/// Whether a piece of the file, from its beginning `at` or a sector's border to the next border or the end,
/// was never written.
fn is_zero_sector(file: &[u8], at: usize, start: usize) -> bool {
    let end = ((start / SECTOR_BYTES + 1) * SECTOR_BYTES).min(file.len());
    (start == at || start.is_multiple_of(SECTOR_BYTES)) && is_zero(&file[start..end])
}

/// Whether something was appended behind what cannot be read.
fn holds_header(rest: &[u8]) -> bool {
    rest.windows(BEGINNING.len())
        .enumerate()
        .any(|(at, window)| {
            let is_header = || !matches!(Header::read(&rest[at..]), Err(Unread::Damaged(_)));
            window == BEGINNING && is_header()
        })
}

impl Header {
    pub(crate) fn to_line(&self) -> Vec<u8> {
        let mut line =
            serde_json::to_vec(self).expect("a header has string keys and no failing serializers");
        // The brace comes back behind the checksum.
        line.pop();
        let check = check_of(&line);
        line.extend_from_slice(check.as_bytes());
        line.push(b'\n');
        line
    }

    /// Reads the line at the beginning of `bytes`; also says where the body begins.
    fn read(bytes: &[u8]) -> Result<(Self, usize), Unread> {
        let damaged = |what: &str| Err(Unread::Damaged(what.to_owned()));
        let first = &bytes[..bytes.len().min(HEADER_BYTES_MAX)];
        let Some(end) = first.iter().position(|&byte| byte == b'\n') else {
            return damaged("it does not begin with a header");
        };
        let Some((line, check)) = first[..end].split_last_chunk::<CHECK_BYTES>() else {
            return damaged("its header is cut short");
        };
        if check_of(line).as_bytes() != check {
            return damaged("the checksum of its header is wrong");
        }
        let json = [line, b"}"].concat();
        let read =
            |error: serde_json::Error| Unread::Damaged(format!("cannot read its header: {error}"));
        // What is newer may have other fields, so its numbers are read first.
        let version: Version = serde_json::from_slice(&json).map_err(read)?;
        version.check()?;
        let header: Self = serde_json::from_slice(&json).map_err(read)?;
        header.check_numbers().map_err(Unread::Damaged)?;
        Ok((header, end + 1))
    }

    /// Places, positions and take-overs are counted on from; a body is in memory as a whole.
    fn check_numbers(&self) -> Result<(), String> {
        let numbers = [self.seq, self.position.0, self.takeover, self.number];
        if numbers.iter().any(|&number| number > NUMBER_MAX) || self.bytes as u64 > NUMBER_MAX {
            return Err("its header has a number that is too large".to_owned());
        }
        Ok(())
    }
}

/// What says whether the rest can be understood.
#[derive(Debug, Deserialize)]
pub(crate) struct Version {
    format: u32,
    #[serde(default)]
    rules: Rules,
}

impl Version {
    /// Whether this version reads what is written so.
    pub(crate) fn check(&self) -> Result<(), Unread> {
        let Self { format, rules } = *self;
        if format > FORMAT_RULES {
            return Err(Unread::Newer(format!(
                "it has format {format}, but this version reads formats up to {FORMAT_RULES}"
            )));
        }
        if format != format_of(rules) {
            return Err(Unread::Damaged(format!(
                "it has format {format} and rules {rules}, which do not belong together"
            )));
        }
        if !rules.are_known() {
            return Err(Unread::Newer(format!(
                "it follows rules {rules}, but this version knows rules up to {}",
                Rules::LATEST
            )));
        }
        Ok(())
    }
}

/// The format in which something is written that follows these rules.
pub(crate) fn format_of(rules: Rules) -> u32 {
    if rules.are_first() {
        FORMAT_FIRST
    } else {
        FORMAT_RULES
    }
}

impl Unread {
    /// The error that it is, there.
    pub(crate) fn at(self, location: &impl fmt::Display) -> Error {
        match self {
            Unread::Damaged(what) => Error::corrupt(location, what),
            Unread::Newer(what) => Error::newer(location, what),
        }
    }
}

/// The JSON object of a line that ends with its checksum, without that.
pub(crate) fn unchecked(line: &[u8]) -> Result<Vec<u8>, &'static str> {
    match line.split_last_chunk::<CHECK_BYTES>() {
        None => Err("it is cut short"),
        Some((line, check)) if check_of(line).as_bytes() != check => Err("its checksum is wrong"),
        Some((line, _)) => Ok([line, b"}"].concat()),
    }
}

/// Compared as text, so that not even the case of a digit can change unnoticed.
pub(crate) fn check_of(line: &[u8]) -> String {
    format!(",\"check\":\"{}\"}}", String::from(Checksum::of(line)))
}

impl Frame {
    fn check(header: Header, body: Bytes) -> Result<Self, String> {
        if Checksum::of(&body) != header.body {
            return Err("the checksum of its records is wrong".to_owned());
        }
        let count = newlines(&body);
        if count != header.count || !(body.is_empty() || body.ends_with(b"\n")) {
            let said = header.count;
            return Err(format!("it has {count} lines, but its header says {said}"));
        }
        Ok(Self { header, body })
    }

    /// The records.
    pub(crate) fn lines(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        let text = self.body.strip_suffix(b"\n");
        // Splitting nothing would give one empty line.
        text.into_iter()
            .flat_map(|text| text.split(|&byte| byte == b'\n'))
    }

    /// All lines, each with its newline.
    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    /// How many lines there are.
    pub(crate) fn count(&self) -> usize {
        self.header.count
    }
}

impl Checksum {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(crc_fast::crc32_iscsi(bytes))
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        format!("{:016x}", digest.0)
    }
}

impl TryFrom<String> for Digest {
    type Error = std::num::ParseIntError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        u64::from_str_radix(&text, 16).map(Self)
    }
}

impl From<Checksum> for String {
    fn from(checksum: Checksum) -> String {
        format!("{:08x}", checksum.0)
    }
}

impl TryFrom<String> for Checksum {
    type Error = std::num::ParseIntError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        u32::from_str_radix(&text, 16).map(Self)
    }
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests;
