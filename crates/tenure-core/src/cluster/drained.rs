//! Which nodes operators keep free, as the leader last saw it.

use std::collections::BTreeSet;
use std::time::Duration;

use super::record::Drains;
use crate::{Moment, NodeId, Read, Version};

#[derive(Debug, Clone, Hash)]
pub(crate) struct Drained {
    /// `None` before the first answer.
    nodes: Option<BTreeSet<NodeId>>,
    version: Option<Version>,
    in_flight: bool,
    due: Moment,
}

impl Drained {
    pub(crate) fn new(now: Moment) -> Self {
        Self {
            nodes: None,
            version: None,
            in_flight: false,
            due: now,
        }
    }

    /// The nodes that are kept free, if that is known.
    pub(crate) fn nodes(&self) -> Option<&BTreeSet<NodeId>> {
        self.nodes.as_ref()
    }

    /// Starts from nothing, for a new term.
    pub(crate) fn forget(&mut self, now: Moment) {
        self.nodes = None;
        self.version = None;
        self.due = now;
    }

    pub(crate) fn hint(&mut self, now: Moment) {
        self.due = self.due.min(now);
    }

    pub(crate) fn wake_at(&self) -> Moment {
        if self.in_flight {
            Moment::NEVER
        } else {
            self.due
        }
    }

    /// Whether to read now, and which version is known.
    pub(crate) fn request(&mut self, now: Moment) -> Option<Option<Version>> {
        if now < self.wake_at() {
            return None;
        }
        self.in_flight = true;
        Some(self.version.clone())
    }

    /// Takes an answer and returns whether it is news.
    pub(crate) fn on_read(
        &mut self,
        now: Moment,
        read: Read<Drains>,
        retry: Duration,
        pause: Duration,
    ) -> bool {
        if !std::mem::take(&mut self.in_flight) {
            return false;
        }
        self.due = now + pause;
        let nodes = match read {
            Read::Found {
                record, version, ..
            } => {
                self.version = Some(version);
                record.nodes.into_keys().collect()
            }
            Read::Missing => {
                self.version = None;
                BTreeSet::new()
            }
            // Work that runs where it should not is better than no work at all.
            Read::Unreadable { .. } => self.nodes.clone().unwrap_or_default(),
            Read::Unchanged { .. } => {
                if self.nodes.is_none() {
                    // The answer to a request of an earlier term.
                    self.due = now;
                }
                return false;
            }
            Read::Failed => {
                self.due = now + retry;
                return false;
            }
        };
        let is_news = self.nodes.as_ref() != Some(&nodes);
        self.nodes = Some(nodes);
        is_news
    }
}
