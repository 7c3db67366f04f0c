//! Which rules a leader may write by: the newest that every process of the namespace can read.
//!
//! In a rolling upgrade brokers of two versions stand beside each other. If the first new one to lead wrote by its
//! newest rules, no old one could take over from it, and there would be no way back. So each session says which rules
//! its process reads, and a leader goes by the least of them. When the last old process is gone, it takes the log over
//! again, in the same term, by the newer rules.
//!
//! A session counts as long as it may be alive: until it says that it is gone, was evicted, or was seen to stand
//! unchanged for its whole time to live, on this process's clock. What cannot be found out counts as the first rules.
//! That is always safe, since a log never goes back to older rules than it has; at worst the change comes later.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::queue::Rules;
use tenure_core::session::{Record, State};
use tenure_core::{Incarnation, Moment};
use tenure_store::{Object, Version};
use tokio::time::timeout;

use super::Options;
use crate::one_shot::LABEL;
use crate::{Node, log};

/// How often a leader looks whether it may go by newer rules.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// How long one look may take.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// More sessions than this are not read: the rules stay as they are.
const SESSIONS_MAX: usize = 10_000;

/// What is known of the processes of the namespace.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    /// The version of each session that may be alive, and since when this process has seen it stand.
    seen: BTreeMap<Incarnation, (Version, Moment)>,
}

impl Readers {
    /// The newest rules that a leader may take the log over by.
    pub(crate) async fn rules(&mut self, node: &Node, options: &Options) -> Rules {
        let wanted = options.log.rules_max.min(Rules::LATEST);
        if wanted.are_first() || self.log_follows(node, options, wanted).await {
            return wanted;
        }
        self.look(node).await.min(wanted)
    }

    /// Resolves when the log, which follows these rules, may be taken over by newer ones.
    pub(crate) async fn newer(&mut self, node: &Node, options: &Options, rules: Rules) {
        let wanted = options.log.rules_max.min(Rules::LATEST);
        if rules >= wanted {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            if self.look(node).await.min(wanted) > rules {
                return;
            }
        }
    }

    /// Whether the log goes by these rules already, so that nobody needs to be asked.
    async fn log_follows(&self, node: &Node, options: &Options, rules: Rules) -> bool {
        let view = node.view();
        let store = view.store().clone();
        let present = log::rules(store, view.namespace(), options.log.clone());
        // An error comes up again when the log is taken over.
        matches!(timeout(LOOK_TIMEOUT, present).await, Ok(Ok(Some(present))) if present >= rules)
    }

    /// The newest rules that every process reads that may be alive.
    async fn look(&mut self, node: &Node) -> Rules {
        let read = timeout(LOOK_TIMEOUT, node.view().session_objects()).await;
        match read {
            Ok(Ok(sessions)) if sessions.len() <= SESSIONS_MAX => {
                self.least(&sessions, node.clock().moment())
            }
            Ok(Ok(_)) => Rules::FIRST,
            Ok(Err(error)) => {
                tracing::debug!(%error, "cannot determine which rules the other processes can read");
                Rules::FIRST
            }
            Err(_) => Rules::FIRST,
        }
    }

    fn least(&mut self, sessions: &[(Record, Object)], now: Moment) -> Rules {
        let mut seen = std::mem::take(&mut self.seen);
        let mut least = Rules::LATEST;
        for (record, object) in sessions {
            // One-shot candidates never read the log.
            if record.state != State::Alive || record.about.labels.contains_key(LABEL) {
                continue;
            }
            let before = seen.remove(&record.incarnation);
            let since = match before {
                Some((version, since)) if version == object.version => since,
                _ => now,
            };
            self.seen
                .insert(record.incarnation, (object.version.clone(), since));
            if now.since(since) < record.ttl {
                least = least.min(record.about.rules);
            }
        }
        least
    }
}
