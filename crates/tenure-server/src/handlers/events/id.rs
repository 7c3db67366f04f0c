//! Ids of events: how far a client has got with the events of the queue and of the cluster. Clients send them back
//! unchanged.

use std::fmt;
use std::str::FromStr;

use tenure::cluster::Cursor;
use tenure::queue::Position;

/// How far a client has got, in each source that it follows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Id {
    pub(super) queue: Option<Reached>,
    pub(super) cluster: Option<Cursor>,
}

/// How far it has got with the queue's events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reached {
    pub(super) position: Position,
    /// How many events of the command at this position; all of them if `None`.
    pub(super) events: Option<usize>,
}

impl Reached {
    pub(super) fn all(position: Position) -> Self {
        Self {
            position,
            events: None,
        }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Reached { position, events }) = self.queue {
            write!(formatter, "q{}", position.0)?;
            if let Some(events) = events {
                write!(formatter, ".{events}")?;
            }
        }
        if let Some(cursor) = self.cluster {
            write!(formatter, "c{cursor}")?;
        }
        Ok(())
    }
}

impl FromStr for Id {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        // The cursor is hexadecimal, but the first `c` comes before it.
        let (queue, cluster) = match text.split_once('c') {
            Some((queue, cluster)) => (queue, Some(cluster.parse().map_err(drop)?)),
            None => (text, None),
        };
        let queue = match queue.strip_prefix('q') {
            Some(reached) => {
                let (position, events) = match reached.split_once('.') {
                    Some((position, events)) => (position, Some(events.parse().map_err(drop)?)),
                    None => (reached, None),
                };
                let position = Position(position.parse().map_err(drop)?);
                Some(Reached { position, events })
            }
            None if queue.is_empty() => None,
            None => return Err(()),
        };
        Ok(Self { queue, cluster })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_was_written() {
        for text in [
            "q7",
            "q7.2",
            "ccc00000000000c0c.12",
            "q0c0000000000000001.0",
            "",
        ] {
            let id: Id = text.parse().unwrap();
            assert_eq!(id.to_string(), text);
        }
        for text in [
            "7",
            "q",
            "q-1",
            "q1.",
            "c",
            "c1",
            "qq1",
            "q1x",
            "é",
            "q99999999999999999999",
        ] {
            assert!(text.parse::<Id>().is_err(), "{text}");
        }
    }
}
