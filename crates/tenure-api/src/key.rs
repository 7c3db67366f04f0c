//! Keys, which users choose, and tokens, which prove a claim.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::text::as_text;

/// A user's own word: a unique key, a group, a worker. Any text of 1 to 200 bytes without control
/// characters; it reaches no path and no query.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Arc<str>);

/// A text that cannot be a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a key must have 1 to 200 bytes and no control characters; this one {0}")]
pub struct KeyError(String);

impl Key {
    /// Checks a key.
    pub fn new(text: impl AsRef<str>) -> Result<Self, KeyError> {
        let text = text.as_ref();
        if text.is_empty() {
            Err(KeyError("is empty".to_owned()))
        } else if text.len() > 200 {
            Err(KeyError(format!("has {} bytes", text.len())))
        } else if let Some(character) = text.chars().find(|character| character.is_control()) {
            Err(KeyError(format!("contains {character:?}")))
        } else {
            Ok(Self(text.into()))
        }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Key {
    type Err = KeyError;
    fn from_str(text: &str) -> Result<Self, KeyError> {
        Self::new(text)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", &*self.0)
    }
}

/// Names one claim of one job: its holder holds that attempt, and no token is given out twice.
///
/// The number counts every claim ever made here, so no two attempts share one. The nonce keeps a token
/// that was guessed, or that is left over from a queue whose storage was wiped, from fitting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token {
    /// Counts the claims.
    pub number: u64,
    /// From the claim command's seed.
    pub nonce: u32,
}

impl fmt::Display for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:x}-{:08x}", self.number, self.nonce)
    }
}

/// A text that is no token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a token is the text from the answer to the claim, such as 1f-0a1b2c3d")]
pub struct TokenError;

impl FromStr for Token {
    type Err = TokenError;
    fn from_str(text: &str) -> Result<Self, TokenError> {
        let (number, nonce) = text.split_once('-').ok_or(TokenError)?;
        Ok(Self {
            number: u64::from_str_radix(number, 16).map_err(|_| TokenError)?,
            nonce: u32::from_str_radix(nonce, 16).map_err(|_| TokenError)?,
        })
    }
}

as_text!(Key, Token);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_keys_read_back_as_written() {
        let token = Token {
            number: 31,
            nonce: 0x0a1b_2c3d,
        };
        assert_eq!(token.to_string(), "1f-0a1b2c3d");
        assert_eq!("1f-0a1b2c3d".parse(), Ok(token));
        assert_eq!("1f".parse::<Token>(), Err(TokenError));
        assert!(Key::new("user 42/é").is_ok());
        assert!(
            Key::new("a\u{7}")
                .unwrap_err()
                .to_string()
                .contains("'\\u{7}'")
        );
    }
}
