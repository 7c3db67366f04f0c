//! Names: validated once, safe everywhere.
//!
//! A name becomes a part of a key, a log line and a web page. It is held to the characters that a
//! store's keys allow, so nothing below has to check it again.

use std::fmt;
use std::str::FromStr;

use crate::text::as_text;

/// The most bytes in a name. A key holds a namespace, a node and an incarnation, with room to spare.
const NAME_BYTES_MAX: usize = 200;

/// A name that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{kind} {text:?} {problem}; use 1 to 200 of the characters A-Z a-z 0-9 - _ . : @ + =, not starting with a dot"
)]
pub struct NameError {
    kind: &'static str,
    text: String,
    problem: String,
}

fn check(kind: &'static str, text: &str) -> Result<(), NameError> {
    let allowed = |character: char| {
        // Checked for every id of every job: a match on one byte, not a search.
        character.is_ascii_alphanumeric()
            || matches!(character, '-' | '_' | '.' | ':' | '@' | '+' | '=')
    };
    let problem = if text.is_empty() {
        "is empty".to_owned()
    } else if text.len() > NAME_BYTES_MAX {
        format!("has {} bytes", text.len())
    } else if text.starts_with('.') {
        "starts with a dot".to_owned()
    } else if let Some(character) = text.chars().find(|&character| !allowed(character)) {
        format!("contains {character:?}")
    } else {
        return Ok(());
    };
    // Shown escaped and cut: the text is hostile until proven otherwise.
    Err(NameError {
        kind,
        text: text.chars().take(40).collect(),
        problem,
    })
}

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident = $kind:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(std::sync::Arc<str>);

        as_text!($name);

        impl $name {
            /// Checks a name.
            pub fn new(text: impl AsRef<str>) -> Result<Self, NameError> {
                check($kind, text.as_ref())?;
                Ok(Self(text.as_ref().into()))
            }

            /// The name.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::new(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&self.0)
            }
        }
    )*};
}

names! {
    /// Everything of one cluster is kept under its namespace; namespaces know nothing of each other.
    Namespace = "the namespace";
    /// A node's name, stable over restarts. Names a place, not a process: see [`Incarnation`].
    NodeId = "the node id";
    /// The name of an election within a namespace.
    ElectionName = "the election name";
    /// A job's id, made by whoever submits it: sending one twice enqueues it once.
    JobId = "the job id";
    /// What kind of work a job is: workers say which types they take.
    JobType = "the job type";
    /// The name of one of the queues of a namespace.
    QueueName = "the queue name";
    /// The name of a cron schedule.
    ScheduleName = "the schedule name";
    /// The name of a daemon within a namespace.
    DaemonId = "the daemon id";
}

macro_rules! unique_ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u128);

        as_text!($name);

        impl FromStr for $name {
            type Err = std::num::ParseIntError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                u128::from_str_radix(text, 16).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "{:032x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "{:x}", self.0)
            }
        }
    )*};
}

unique_ids! {
    /// One start of one process: random, never used twice. This, not the node id, owns things.
    Incarnation;
    /// One unbroken row of terms. An election that starts over after its storage was wiped has a new
    /// lineage, so a receiver of fencing tokens can tell its terms from the old ones.
    Lineage;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_are_refused_with_the_reason() {
        for (text, problem) in [
            ("", "is empty"),
            ("a/b", "contains '/'"),
            ("a\nb", "contains '\\n'"),
            ("..", "starts with a dot"),
            ("naïve", "contains 'ï'"),
        ] {
            let error = NodeId::new(text).unwrap_err().to_string();
            assert!(error.contains(problem) && !error.contains('\n'), "{error}");
        }
        let error = Namespace::new("x".repeat(10_000)).unwrap_err().to_string();
        assert!(
            error.contains("10000 bytes") && error.len() < 300,
            "{error}"
        );
        assert!(ElectionName::new("x".repeat(NAME_BYTES_MAX)).is_ok());
    }

    #[test]
    fn ids_read_back_as_written() {
        let incarnation = Incarnation(0xfeed);
        assert_eq!(incarnation.to_string().parse(), Ok(incarnation));
        assert_eq!(incarnation.to_string().len(), 32);
        assert!("not hex".parse::<Lineage>().is_err());
    }
}
