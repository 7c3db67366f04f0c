//! Values that JSON knows as a text. Every command has several, so they are read and written without a string
//! of their own in between.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{Deserializer, Error, Visitor};

/// Reads a value from its text, wherever the text is.
pub(crate) fn read<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: FromStr<Err: fmt::Display>,
    D: Deserializer<'de>,
{
    deserializer.deserialize_str(Text(PhantomData))
}

struct Text<T>(PhantomData<T>);

impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a string")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

/// Lets serde read and write types by [`FromStr`] and [`Display`](fmt::Display).
macro_rules! as_text {
    ($($name:ident),*) => {$(
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::text::read(deserializer)
            }
        }
    )*};
}

pub(crate) use as_text;

#[cfg(test)]
mod tests {
    use crate::JobId;

    #[test]
    fn a_text_is_read_wherever_it_is_and_nothing_else_is() {
        let id = JobId::new("ab").unwrap();
        assert_eq!(serde_json::to_string(&id).unwrap(), r#""ab""#);
        for text in [r#""ab""#, r#""\u0061b""#] {
            assert_eq!(serde_json::from_str::<JobId>(text).unwrap(), id);
            assert_eq!(
                serde_json::from_reader::<_, JobId>(text.as_bytes()).unwrap(),
                id
            );
        }
        let value = serde_json::Value::from("ab");
        assert_eq!(serde_json::from_value::<JobId>(value).unwrap(), id);
        for (text, problem) in [("1", "expected a string"), (r#""a/b""#, "contains '/'")] {
            let error = serde_json::from_str::<JobId>(text).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }
}
