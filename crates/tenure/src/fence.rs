//! Fencing tokens: what a receiver needs to refuse an older leader.

use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tenure_core::Lineage;
use tenure_core::election::Term;

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub(crate) mod claim;
pub(crate) mod seen;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub(crate) mod transaction;

/// A fencing token: travels with every request of a leader, as text `LINEAGE:TERM` or as JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Token {
    /// The row of terms. A token of another row says nothing about this one.
    pub lineage: Lineage,
    /// The term.
    pub term: Term,
}

/// The receiver's side: remembers the highest token and refuses older ones.
///
/// Keep the highest token with the data it protects, and change both in one step; this type is for a
/// receiver that lives in one process, and for reading how it is done.
///
/// ```
/// use tenure::{Receiver, Token};
///
/// let receiver = Receiver::default();
/// let old: Token = "0000000000000000000000000000000a:7".parse().unwrap();
/// let new: Token = "0000000000000000000000000000000a:8".parse().unwrap();
/// assert!(receiver.accept(old).is_ok());
/// assert!(receiver.accept(new).is_ok());
/// assert_eq!(receiver.accept(old).unwrap_err().to_string(), "term 7 is over: term 8 was seen");
/// ```
#[derive(Debug, Default)]
pub struct Receiver {
    highest: Mutex<Option<Token>>,
}

/// Why a token was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Stale {
    /// A later term was seen.
    #[error("term {given} is over: term {seen} was seen")]
    Term {
        /// The token's.
        given: Term,
        /// The highest.
        seen: Term,
    },
    /// The election was started over: its operator must allow the receiver to follow.
    #[error("the token belongs to lineage {given}, but this receiver follows {seen}")]
    Lineage {
        /// The token's.
        given: Lineage,
        /// The receiver's.
        seen: Lineage,
    },
}

impl Receiver {
    /// A receiver that has seen this token, from durable storage.
    #[must_use]
    pub fn from_seen(token: Token) -> Self {
        Self {
            highest: Mutex::new(Some(token)),
        }
    }

    /// Accepts a token that is not older than any seen before.
    pub fn accept(&self, token: Token) -> Result<(), Stale> {
        let mut highest = self.highest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seen) = *highest {
            token.check_against(seen)?;
        }
        *highest = Some(token);
        Ok(())
    }
}

impl Token {
    /// Whether this token may act where `seen` is the highest token so far.
    pub fn check_against(self, seen: Token) -> Result<(), Stale> {
        if self.lineage != seen.lineage {
            return Err(Stale::Lineage {
                given: self.lineage,
                seen: seen.lineage,
            });
        }
        if self.term < seen.term {
            return Err(Stale::Term {
                given: self.term,
                seen: seen.term,
            });
        }
        Ok(())
    }
}

impl fmt::Display for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.lineage, self.term)
    }
}

/// A text that is no token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a token must have the form LINEAGE:TERM, 32 hexadecimal digits and a number")]
pub struct TokenError;

impl FromStr for Token {
    type Err = TokenError;
    fn from_str(text: &str) -> Result<Self, TokenError> {
        let (lineage, term) = text.split_once(':').ok_or(TokenError)?;
        Ok(Self {
            lineage: lineage.parse().map_err(|_| TokenError)?,
            term: Term(term.parse().map_err(|_| TokenError)?),
        })
    }
}
