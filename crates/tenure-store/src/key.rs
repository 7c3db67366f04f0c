//! Keys: validated once, safe everywhere.
//!
//! A key becomes a file path, an object name, an SQL value, a log line and a part of a web page. So it may only have
//! characters that are not special in any of them, and all code that takes a [`Key`] may rely on that.

use std::fmt;
use std::sync::Arc;

use crate::Error;

/// The most bytes in a key: the SQL engines index it whole.
pub const KEY_BYTES_MAX: usize = 700;

/// The most bytes in one segment of a key: file systems allow 255, and temporary names are longer.
pub const SEGMENT_BYTES_MAX: usize = 200;

/// How much of a bad key is shown, in characters.
const SHOWN_MAX: usize = 200;

const SEGMENT_HINT: &str = "use letters, digits and - _ . : @ + =, not starting with a dot, at most 200 characters per segment";

/// The name of an object: segments joined by `/`.
///
/// A segment has 1 to [`SEGMENT_BYTES_MAX`] of the characters `A-Z a-z 0-9 - _ . : @ + =` and does not
/// start with a dot.
///
/// ```
/// use tenure_store::Key;
/// assert!(Key::new("prod/elections/default").is_ok());
/// assert!(Key::new("prod/../secret").is_err());
/// assert!(Key::new("prod//x").is_err());
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Arc<str>);

/// Whole segments that keys start with: empty, or ending in `/`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix(Arc<str>);

impl Key {
    /// Checks a key.
    pub fn new(text: impl AsRef<str>) -> Result<Self, Error> {
        let text = text.as_ref();
        check_length(text)?;
        text.split('/')
            .try_for_each(|segment| check_segment(segment, text))?;
        Ok(Self(text.into()))
    }

    /// The whole key.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The parts between the slashes.
    pub fn segments(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('/')
    }

    /// The last segment.
    #[must_use]
    pub fn name(&self) -> &str {
        self.segments()
            .next_back()
            .expect("splitting a string gives at least one part")
    }

    /// Whether the key lies under `prefix`.
    #[must_use]
    pub fn is_under(&self, prefix: &Prefix) -> bool {
        self.0.starts_with(&*prefix.0)
    }

    /// The key without `prefix`, if it lies under it.
    #[must_use]
    pub fn strip(&self, prefix: &Prefix) -> Option<Key> {
        self.0.strip_prefix(&*prefix.0).map(|rest| Key(rest.into()))
    }
}

impl Prefix {
    /// The prefix of every key.
    #[must_use]
    pub fn root() -> Self {
        Self("".into())
    }

    /// Checks a prefix; a trailing slash is optional.
    pub fn new(text: impl AsRef<str>) -> Result<Self, Error> {
        let text = text.as_ref();
        let text = text.strip_suffix('/').unwrap_or(text);
        if text.is_empty() {
            return Ok(Self::root());
        }
        Ok(Self(format!("{}/", Key::new(text)?.0).into()))
    }

    /// The prefix with its trailing slash; empty for the root.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// How many segments the prefix has.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.0.matches('/').count()
    }

    /// Makes a key under this prefix.
    pub fn key(&self, rest: impl AsRef<str>) -> Result<Key, Error> {
        Key::new(format!("{}{}", self.0, rest.as_ref()))
    }

    /// Makes a longer prefix under this one.
    pub fn join(&self, rest: impl AsRef<str>) -> Result<Prefix, Error> {
        Prefix::new(format!("{}{}", self.0, rest.as_ref()))
    }
}

fn check_length(text: &str) -> Result<(), Error> {
    if text.len() <= KEY_BYTES_MAX {
        return Ok(());
    }
    Err(Error::invalid(
        format!(
            "a key of {} bytes is too long; the limit is {KEY_BYTES_MAX}",
            text.len()
        ),
        "use shorter names",
    ))
}

fn check_segment(segment: &str, text: &str) -> Result<(), Error> {
    let problem = if segment.is_empty() {
        "has an empty segment".to_owned()
    } else if segment.len() > SEGMENT_BYTES_MAX {
        format!("has a segment of {} bytes", segment.len())
    } else if segment.starts_with('.') {
        "has a segment that starts with a dot".to_owned()
    } else if let Some(character) = segment.chars().find(|&character| !is_allowed(character)) {
        format!("contains {character:?}")
    } else {
        return Ok(());
    };
    // The text is untrusted: show it escaped, and cut it, since escaping can make it many times longer.
    let shown: String = text.escape_debug().take(SHOWN_MAX).collect();
    let more = match text.escape_debug().nth(SHOWN_MAX) {
        Some(_) => "…",
        None => "",
    };
    Err(Error::invalid(
        format!("the key \"{shown}{more}\" {problem}"),
        SEGMENT_HINT,
    ))
}

fn is_allowed(character: char) -> bool {
    character.is_ascii_alphanumeric() || "-_.:@+=".contains(character)
}

/// Keys sort as their text does, so a map of keys can be searched by text.
impl std::borrow::Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Key({})", self.0)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Prefix({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_keys_are_refused_with_the_reason() {
        for (text, reason) in [
            ("", "empty segment"),
            ("/a", "empty segment"),
            ("a/", "empty segment"),
            ("a//b", "empty segment"),
            ("..", "starts with a dot"),
            ("a/../b", "starts with a dot"),
            (".hidden", "starts with a dot"),
            ("a\0b", "contains '\\0'"),
            ("a\nb", "contains '\\n'"),
            ("a b", "contains ' '"),
            ("a\\b", "contains '\\\\'"),
            ("a'b", "contains '\\''"),
            ("schlüssel", "contains 'ü'"),
            ("a\u{202e}b", "contains '\\u{202e}'"),
        ] {
            let error = Key::new(text).expect_err(text);
            assert!(error.to_string().contains(reason), "{text:?}: {error}");
            assert!(
                !error.to_string().contains(['\0', '\n']),
                "{text:?} reaches the message raw"
            );
        }
    }

    #[test]
    fn length_limits_are_exact() {
        let longest = "x".repeat(SEGMENT_BYTES_MAX);
        assert!(Key::new(&longest).is_ok());
        assert!(Key::new(format!("{longest}x")).is_err());
        let full = format!(
            "{longest}/{longest}/{longest}/{}",
            "y".repeat(KEY_BYTES_MAX - 603)
        );
        assert_eq!(full.len(), KEY_BYTES_MAX);
        assert!(Key::new(&full).is_ok());
        let error = Key::new("z".repeat(10_000)).unwrap_err().to_string();
        assert!(
            error.contains("10000 bytes") && error.len() < 200,
            "{error}"
        );
    }

    #[test]
    fn prefixes_hold_whole_segments() {
        let prefix = Prefix::new("a/b").unwrap();
        assert_eq!(prefix.as_str(), "a/b/");
        assert_eq!(prefix, Prefix::new("a/b/").unwrap());
        assert_eq!(prefix.depth(), 2);
        assert!(Key::new("a/b/c").unwrap().is_under(&prefix));
        assert!(!Key::new("a/bc").unwrap().is_under(&prefix));
        assert!(Key::new("a").unwrap().is_under(&Prefix::root()));
        assert_eq!(
            prefix.key("c/d").unwrap().strip(&prefix).unwrap().as_str(),
            "c/d"
        );
        assert!(prefix.join("../c").is_err());
    }
}
