//! Payloads: JSON that clients hand over, kept as the text that came in. Nothing here looks inside.

use std::fmt;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// A JSON value as text, on one line, shared rather than copied.
#[derive(Clone)]
pub struct Payload(Arc<RawValue>);

impl Payload {
    /// Takes any JSON text.
    pub fn new(text: impl Into<String>) -> Result<Self, serde_json::Error> {
        RawValue::from_string(text.into()).map(Self::from)
    }

    /// Takes any value that can be written as JSON.
    pub fn of(value: &impl Serialize) -> Result<Self, serde_json::Error> {
        serde_json::value::to_raw_value(value).map(Self::from)
    }

    /// Reads the value.
    pub fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.as_str())
    }

    /// The JSON text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// The text's length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.get().len()
    }

    /// Whether it is the same JSON but for white space between its tokens. Numbers and strings are compared as they are
    /// written: no two values are ever taken for one.
    #[must_use]
    pub fn is_same_value(&self, other: &Self) -> bool {
        self == other || tokens(self.as_str()).eq(tokens(other.as_str()))
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.as_str() == "null"
    }
}

/// The bytes of JSON text without the white space that says nothing.
fn tokens(text: &str) -> impl Iterator<Item = u8> {
    let (mut in_string, mut is_escaped) = (false, false);
    text.bytes().filter(move |byte| {
        match byte {
            b'"' if !is_escaped => in_string = !in_string,
            b' ' | b'\t' | b'\n' | b'\r' if !in_string => return false,
            _ => {}
        }
        is_escaped = in_string && !is_escaped && *byte == b'\\';
        true
    })
}

impl From<Box<RawValue>> for Payload {
    fn from(value: Box<RawValue>) -> Self {
        let text = value.get();
        // `contains` compares words instead of bytes, which a large payload notices.
        let bytes = text.as_bytes();
        if !bytes.contains(&b'\n') && !bytes.contains(&b'\r') {
            return Self(Arc::from(value));
        }
        // The log has one command per line. Inside a JSON string a line end is always escaped, so a
        // bare one is white space between tokens.
        let line = text.replace(['\n', '\r'], " ");
        Self(Arc::from(
            RawValue::from_string(line).expect("white space for white space"),
        ))
    }
}

impl Default for Payload {
    fn default() -> Self {
        static NULL: LazyLock<Payload> =
            LazyLock::new(|| Payload::new("null").expect("a constant that is JSON"));
        NULL.clone()
    }
}

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(Self::from)
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.as_str() == other.as_str()
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_between_tokens_makes_no_other_value() {
        let same = |one: &str, other: &str| {
            let (one, other) = (Payload::new(one).unwrap(), Payload::new(other).unwrap());
            assert_eq!(one.is_same_value(&other), other.is_same_value(&one));
            one.is_same_value(&other)
        };
        assert!(same(
            r#"{"a":[1,2],"b":"c"}"#,
            " { \"a\" : [1,\t2],\n\"b\":\"c\" } "
        ));
        assert!(same(r#"["a\" b"]"#, r#"[ "a\" b" ]"#));
        assert!(same(r#"["\\", "a"]"#, r#"["\\","a"]"#));
        assert!(!same(r#""a b""#, r#""ab""#));
        assert!(!same(r#"["a\" b"]"#, r#"["a\"b"]"#));
        assert!(!same("[1, 2]", "[12]"));
        // They are one number to a reader that rounds.
        assert!(!same("10000000000000000000001", "10000000000000000000002"));
    }

    #[test]
    fn payloads_keep_their_text_on_one_line() {
        let payload = Payload::new("{\n  \"n\": 1.00,\r\n \"s\": \"a\\nb\"}").unwrap();
        assert_eq!(payload.as_str(), "{   \"n\": 1.00,   \"s\": \"a\\nb\"}");
        assert!(Payload::new("{oops").is_err());
        let numbers = Payload::of(&[1, 2]).unwrap();
        assert_eq!(numbers.read::<Vec<u8>>().unwrap(), [1, 2]);
        assert!(
            Payload::new("\"a\nb\"").is_err(),
            "a bare line end in a string"
        );
    }
}
