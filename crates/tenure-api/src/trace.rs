//! Trace context: which trace a job belongs to, as W3C Trace Context writes it.
//!
//! It is carried, never acted on: no decision of the queue looks at it, and it is no part of what tells two
//! submissions apart. A job that is sent again comes from another span, and is the same job.

use std::fmt;
use std::str::FromStr;

use crate::text::as_text;

/// How long a [`Tracestate`] may be. The standard asks for at least this much to be carried.
pub const TRACESTATE_BYTES_MAX: usize = 512;

/// The most members of a [`Tracestate`].
const MEMBERS_MAX: usize = 32;

/// The span that a job was submitted in: `00-<trace id>-<span id>-<flags>`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Traceparent {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    flags: u8,
}

/// A text that is no [`Traceparent`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a traceparent must look like 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01, in lower case \
     and with neither id all zeros"
)]
pub struct TraceparentError;

impl Traceparent {
    /// A span. None if one of the ids is all zeros, which stands for no span.
    #[must_use]
    pub fn new(trace_id: [u8; 16], span_id: [u8; 8], flags: u8) -> Option<Self> {
        let is_span = trace_id != [0; 16] && span_id != [0; 8];
        is_span.then_some(Self {
            trace_id,
            span_id,
            flags,
        })
    }

    /// The trace.
    #[must_use]
    pub const fn trace_id(&self) -> [u8; 16] {
        self.trace_id
    }

    /// The span in it.
    #[must_use]
    pub const fn span_id(&self) -> [u8; 8] {
        self.span_id
    }

    /// Its flags; the lowest says that the trace is recorded.
    #[must_use]
    pub const fn flags(&self) -> u8 {
        self.flags
    }
}

impl FromStr for Traceparent {
    type Err = TraceparentError;

    fn from_str(text: &str) -> Result<Self, TraceparentError> {
        read(text.as_bytes()).ok_or(TraceparentError)
    }
}

fn read(text: &[u8]) -> Option<Traceparent> {
    let (known, more) = text.split_at_checked(55)?;
    let [version] = bytes(&known[..2])?;
    // A later version may say more behind what is known of it; this one does not.
    match (version, more.first()) {
        (0xff, _) => return None,
        (_, None) => {}
        (1.., Some(b'-')) => {}
        _ => return None,
    }
    if [known[2], known[35], known[52]] != *b"---" {
        return None;
    }
    let [flags] = bytes(&known[53..])?;
    Traceparent::new(bytes(&known[3..35])?, bytes(&known[36..52])?, flags)
}

/// Bytes in lower-case hexadecimal: the standard takes no other.
fn bytes<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |character: u8| match character {
        b'0'..=b'9' => Some(character - b'0'),
        b'a'..=b'f' => Some(character - b'a' + 10),
        _ => None,
    };
    let (pairs, []) = text.as_chunks::<2>() else {
        return None;
    };
    let mut read = [0; N];
    if pairs.len() != N {
        return None;
    }
    for (byte, [high, low]) in read.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(read)
}

impl fmt::Display for Traceparent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let trace = u128::from_be_bytes(self.trace_id);
        let span = u64::from_be_bytes(self.span_id);
        write!(formatter, "00-{trace:032x}-{span:016x}-{:02x}", self.flags)
    }
}

impl fmt::Debug for Traceparent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// What tracing systems have to say to each other beside it: `name=value,name=value`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Tracestate(Box<str>);

/// A text that is no [`Tracestate`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a tracestate must look like rojo=00f067aa0ba902b7,congo=t61rcWkgMzE: at most 32 members, 512 bytes"
)]
pub struct TracestateError;

impl Tracestate {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// As much of a text as may be kept: whole members, the first of them, which are the latest. None if
    /// it is malformed, or nothing is left.
    #[must_use]
    pub fn shortened(text: &str) -> Option<Self> {
        let mut kept = String::new();
        let mut number = 0;
        for member in text.split(',').map(str::trim) {
            // Empty members are allowed, and mean nothing.
            if member.is_empty() {
                continue;
            }
            if !is_member(member) {
                return None;
            }
            number += 1;
            let comma = if kept.is_empty() { "" } else { "," };
            let bytes = kept.len() + comma.len() + member.len();
            if number > MEMBERS_MAX || bytes > TRACESTATE_BYTES_MAX {
                break;
            }
            kept += comma;
            kept += member;
        }
        (!kept.is_empty()).then(|| Self(kept.into()))
    }
}

fn is_member(member: &str) -> bool {
    let Some((name, value)) = member.split_once('=') else {
        return false;
    };
    let is_name =
        |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'*' | b'/' | b'@');
    let is_value = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'=';
    (1..=256).contains(&name.len())
        && name.bytes().all(is_name)
        && value.len() <= 256
        && value.bytes().all(is_value)
}

impl FromStr for Tracestate {
    type Err = TracestateError;

    fn from_str(text: &str) -> Result<Self, TracestateError> {
        Self::shortened(text)
            .filter(|kept| kept.0.len() == text.len())
            .ok_or(TracestateError)
    }
}

as_text!(Traceparent, Tracestate);

impl fmt::Display for Tracestate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for Tracestate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", &*self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_parent_reads_back_as_written() {
        let parent: Traceparent = PARENT.parse().unwrap();
        assert_eq!(parent.to_string(), PARENT);
        assert_eq!(parent.trace_id()[0], 0x4b);
        assert_eq!(parent.span_id()[7], 0xb7);
        assert_eq!(parent.flags(), 1);
    }

    #[test]
    fn a_later_version_is_read_as_far_as_it_is_known() {
        let later = PARENT.replacen("00", "cc", 1);
        for text in [later.clone(), format!("{later}-what-else")] {
            assert_eq!(text.parse::<Traceparent>().unwrap().to_string(), PARENT);
        }
    }

    #[test]
    fn what_the_standard_does_not_take_is_no_parent() {
        for text in [
            "",
            "00",
            &PARENT.to_uppercase(),
            &PARENT.replacen("00", "ff", 1),
            &PARENT.replace('-', "_"),
            &PARENT[..54],
            &format!("{PARENT}-more"),
            &format!("{}.x", PARENT.replacen("00", "01", 1)),
            &format!(" {PARENT}"),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473é-0f067aa0ba902b7-01",
        ] {
            assert_eq!(text.parse::<Traceparent>(), Err(TraceparentError), "{text}");
        }
    }

    #[test]
    fn a_state_keeps_whole_members_from_the_front() {
        let state = |text: &str| Tracestate::shortened(text).map(|state| state.to_string());
        assert_eq!(state("a=1, b@c=2,,").as_deref(), Some("a=1,b@c=2"));
        assert_eq!(state(""), None);
        assert_eq!(state("a=1,nothing"), None);
        assert_eq!(state("a=\u{7}"), None);
        let long = format!("a=1,b={},c={},d=4", "x".repeat(250), "y".repeat(250));
        assert_eq!(state(&long).unwrap().len(), 4 + 252 + 1 + 252);
        let longer = format!("a=12345,{}", long);
        assert_eq!(state(&longer).unwrap().len(), 8 + 3 + 1 + 252);
        let many: String = (0..40).map(|number| format!("k{number}=v,")).collect();
        assert_eq!(state(&many).unwrap().split(',').count(), 32);
        assert!("a=1,b=2".parse::<Tracestate>().is_ok());
        assert_eq!(long.parse::<Tracestate>(), Err(TracestateError));
    }
}
