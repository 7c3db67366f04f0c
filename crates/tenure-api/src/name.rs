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
#[error("{kind} {text:?} {problem}; {advice}")]
pub struct NameError {
    kind: &'static str,
    text: String,
    problem: String,
    advice: &'static str,
}

impl NameError {
    /// The text is shown escaped and cut: it is hostile until proven otherwise.
    fn new(kind: &'static str, text: &str, problem: String, advice: &'static str) -> Self {
        Self {
            kind,
            text: text.chars().take(40).collect(),
            problem,
            advice,
        }
    }
}

const ADVICE: &str =
    "use 1 to 200 of the characters A-Z a-z 0-9 - _ . : @ + =, not starting with a dot";

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
    Err(NameError::new(kind, text, problem, ADVICE))
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
    /// The name of an election within a namespace. Names that begin with `tenure.` are those of the product's own
    /// elections: see [`ElectionName::of_users`].
    ElectionName = "the election name";
    /// A job's id, made by its submitter: sending one twice enqueues it once.
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

/// The elections of the product itself have names that nobody else can use, so that whatever stands in an
/// election of a user's own can never lead the queue or hand out daemons.
impl ElectionName {
    /// What the names of the product's own elections begin with.
    pub const RESERVED: &str = "tenure.";

    /// The election of the brokers: its leader serves the queue. Only nodes that can serve are candidates.
    pub const QUEUE: &str = "tenure.queue";

    /// The election of the cluster's members: its leader hands out the daemons.
    pub const CLUSTER: &str = "tenure.cluster";

    /// The election of the brokers.
    #[must_use]
    pub fn queue() -> Self {
        Self(Self::QUEUE.into())
    }

    /// The election of the cluster's members.
    #[must_use]
    pub fn cluster() -> Self {
        Self(Self::CLUSTER.into())
    }

    /// Checks the name of an election that users may stand in: one that is not reserved.
    pub fn of_users(text: impl AsRef<str>) -> Result<Self, NameError> {
        let name = Self::new(text)?;
        if name.is_reserved() {
            Err(NameError::new(
                "the election name",
                name.as_str(),
                "begins with \"tenure.\", which is reserved for Tenure's own elections".to_owned(),
                "choose another name",
            ))
        } else {
            Ok(name)
        }
    }

    /// Whether this is an election of the product itself.
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        self.as_str().starts_with(Self::RESERVED)
    }

    /// Whether the leader of this election serves a queue: `tenure.queue`, or a name below it.
    #[must_use]
    pub fn is_of_queue(&self) -> bool {
        let rest = self.as_str().strip_prefix(Self::QUEUE);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }

    /// What the leader of one of the product's own elections does, in plain words; `None` for an election of
    /// users.
    #[must_use]
    pub fn purpose(&self) -> Option<&'static str> {
        match self.as_str() {
            _ if self.is_of_queue() => Some("its leader serves the queue"),
            Self::CLUSTER => Some("its leader assigns the daemons"),
            _ if self.is_reserved() => Some("one of Tenure's own"),
            _ => None,
        }
    }
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
    /// Marks one write: random, drawn anew for each. A copy of a process that goes on (a restored checkpoint, a
    /// snapshot of a virtual machine) has the same incarnation and counts on from the same number, but draws another.
    #[derive(Default)]
    Nonce;
}

impl Nonce {
    /// What versions wrote that knew of none.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0 == 0
    }
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
    fn names_of_the_products_own_elections_are_not_for_users() {
        for own in [
            "tenure.queue",
            "tenure.queue.3",
            "tenure.cluster",
            "tenure.x",
        ] {
            let error = ElectionName::of_users(own).unwrap_err().to_string();
            assert!(error.contains("reserved for Tenure's own"), "{error}");
            let name = ElectionName::new(own).unwrap();
            assert!(name.is_reserved() && name.purpose().is_some(), "{own}");
        }
        for users in [
            "default",
            "tenure",
            "tenurex",
            "my.tenure.queue",
            "Tenure.queue",
        ] {
            let name = ElectionName::of_users(users).unwrap();
            assert!(!name.is_reserved() && name.purpose().is_none(), "{users}");
        }
        let is_of_queue = |name| ElectionName::new(name).unwrap().is_of_queue();
        assert!(is_of_queue("tenure.queue") && is_of_queue("tenure.queue.3"));
        assert!(!is_of_queue("tenure.queues") && !is_of_queue("tenure.cluster"));
    }

    #[test]
    fn ids_read_back_as_written() {
        let incarnation = Incarnation(0xfeed);
        assert_eq!(incarnation.to_string().parse(), Ok(incarnation));
        assert_eq!(incarnation.to_string().len(), 32);
        assert!("not hex".parse::<Lineage>().is_err());
    }
}
