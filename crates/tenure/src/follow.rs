//! An election, as somebody sees it who only reads.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::RecordError;
use tenure_core::election::Lease;
use tenure_store::{Change, Hint, Key, Object, Store, Version, Watch};

use crate::Error;

/// Every change of a lease, one after the other. A lease that changed twice between two looks is seen
/// once; its history says what was missed.
#[derive(Debug)]
pub struct Follower {
    store: Arc<dyn Store>,
    key: Key,
    hints: Option<Watch>,
    poll: Duration,
    known: Known,
}

/// What a lease has become.
#[derive(Debug)]
pub enum Seen {
    /// It says this.
    Lease(Box<Lease>),
    /// There is none: nobody was ever elected, or somebody has deleted it.
    Missing,
    /// This software cannot read it.
    Unreadable(RecordError),
}

#[derive(Debug, PartialEq, Eq)]
enum Known {
    Nothing,
    Missing,
    Version(Version),
}

impl Follower {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        key: Key,
        hints: Option<Watch>,
        poll: Duration,
    ) -> Self {
        Self {
            store,
            key,
            hints,
            poll,
            known: Known::Nothing,
        }
    }

    /// The lease as it is when first asked, and then each time it has changed. An error of the store says
    /// nothing about the lease: ask again. A cancelled wait loses nothing. One small read per look.
    pub async fn next(&mut self) -> Result<Seen, Error> {
        let mut is_due = self.known == Known::Nothing;
        loop {
            if !is_due {
                self.hint().await;
            }
            is_due = false;
            if let Some(seen) = self.look().await? {
                return Ok(seen);
            }
        }
    }

    async fn look(&mut self) -> Result<Option<Seen>, Error> {
        let change = match &self.known {
            Known::Version(version) => self.store.get_if_changed(&self.key, version).await?,
            Known::Nothing | Known::Missing => match self.store.get(&self.key).await? {
                Some(object) => Change::Changed(object),
                None => Change::Missing,
            },
        };
        Ok(match change {
            Change::Unchanged => None,
            Change::Missing if self.known == Known::Missing => None,
            Change::Missing => {
                self.known = Known::Missing;
                Some(Seen::Missing)
            }
            Change::Changed(Object { value, version, .. }) => {
                self.known = Known::Version(version);
                Some(match Lease::decode(&value) {
                    Ok(lease) => Seen::Lease(Box::new(lease)),
                    Err(error) => Seen::Unreadable(error),
                })
            }
        })
    }

    /// Waits for a reason to look: a hint, or time.
    async fn hint(&mut self) {
        let poll = tokio::time::sleep(self.poll);
        tokio::pin!(poll);
        while let Some(hints) = &mut self.hints {
            let hint = tokio::select! {
                () = &mut poll => return,
                hint = hints.next() => hint,
            };
            match hint {
                Some(Hint::Changed(key)) if key != self.key => {}
                Some(Hint::Changed(_) | Hint::Anything) => return,
                None => self.hints = None,
            }
        }
        poll.await;
    }
}
