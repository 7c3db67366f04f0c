//! The origin: the one object that is there before the log is, and that every leader writes once.
//!
//! `<namespace>/queue/origin` says in which form the log is kept, so that nobody takes a log of files for an
//! empty log of objects, and who took over last. To take over is to raise the number of the *take-over* by one,
//! expecting the version that was read. So every leader that ever wrote to the log has its own number,
//! the numbers only grow, and they do so even if the election is started over at term 1.
//!
//! For the form with files this object is the fence: see [`segment`](super::segment).
//!
//! An origin that is missing beside the rest of the log was deleted, and nothing is served. If all of the log is missing,
//! the object `<namespace>/logs/queue`, which every leader makes before it acknowledges anything, says that there was one.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tenure_core::election::Term;
use tenure_core::queue::Rules;
use tenure_core::{Incarnation, Lineage};
use tenure_store::Expect;

use super::access::{Access, Created, Keys, Pause};
use super::frame::{NUMBER_MAX, Version, format_of};
use super::{Error, Owner};

/// How often someone else may get in between.
const ATTEMPTS_MAX: usize = 100;

/// What the object says that is there as soon as there is a log.
const BEGUN: &[u8] = b"{\"format\":1}\n";

/// How the log is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// One object per commit.
    Objects,
    /// Files that are appended to, in the folder of a file store.
    Segments,
}

/// What the object says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Origin {
    format: u32,
    pub(crate) form: Form,
    pub(crate) takeover: u64,
    pub(crate) lineage: Lineage,
    pub(crate) term: Term,
    pub(crate) incarnation: Incarnation,
    /// The newest rules in the log: a version that does not know them takes nothing over.
    #[serde(default, skip_serializing_if = "Rules::are_first")]
    pub(crate) rules: Rules,
    /// Makes the value unlike any other, so that its writer recognises it.
    nonce: Incarnation,
}

/// The origin as one leader wrote it.
#[derive(Debug, Clone)]
pub(crate) struct Ownership {
    pub(crate) origin: Origin,
    /// Byte for byte: a leader that finds anything else has been replaced.
    pub(crate) value: Bytes,
}

impl Origin {
    /// Reads the origin; `None` if there has never been a log.
    pub(crate) async fn read(access: &Access) -> Result<Option<Self>, Error> {
        let key = access.keys.origin();
        match access.get(&key).await? {
            Some(object) => Self::decode(access, &object.value).map(Some),
            None => {
                refuse_lost_origin(access).await?;
                Ok(None)
            }
        }
    }

    fn decode(access: &Access, value: &[u8]) -> Result<Self, Error> {
        let key = access.keys.origin();
        let read = |error| Error::corrupt(&key, format!("cannot read it: {error}"));
        let version: Version = serde_json::from_slice(value).map_err(read)?;
        version.check().map_err(|unread| unread.at(&key))?;
        let origin: Self = serde_json::from_slice(value).map_err(read)?;
        if origin.takeover > NUMBER_MAX {
            return Err(Error::corrupt(&key, "its number is too large"));
        }
        if origin.form == Form::Segments && access.files.is_none() {
            return Err(Error::invalid(
                format!("{key} says that the log is in files, but this store has no folder"),
                "open the file store itself, without a wrapper around it",
            ));
        }
        Ok(origin)
    }
}

impl Ownership {
    /// Takes over: raises the number by one. What is written behind it follows these rules, or those that the log
    /// has already.
    pub(crate) async fn take(access: &Access, owner: &Owner, rules: Rules) -> Result<Self, Error> {
        let key = access.keys.origin();
        for _ in 0..ATTEMPTS_MAX {
            let (last, expect) = match access.get(&key).await? {
                Some(object) => {
                    let last = Origin::decode(access, &object.value)?;
                    (Some(last), Expect::Version(object.version))
                }
                None => {
                    refuse_lost_origin(access).await?;
                    if owner.token.term > Term(1) {
                        tracing::warn!(
                            term = %owner.token.term,
                            "there is no log, although the queue was led before: starting with an empty queue. If it had jobs, \
                             stop every broker, restore the namespace's folder `queue`, and start again"
                        );
                    }
                    (None, Expect::Absent)
                }
            };
            let ownership = Self::after(last, access, owner, rules)?;
            if ownership.write(access, &expect).await? {
                return Ok(ownership);
            }
        }
        Err(Error::Fenced)
    }

    fn after(
        last: Option<Origin>,
        access: &Access,
        owner: &Owner,
        rules: Rules,
    ) -> Result<Self, Error> {
        let rules = last.as_ref().map_or(rules, |last| last.rules.max(rules));
        let (form, takeover) = match last {
            // A candidate that was paused between winning and this must not take over from its successor.
            Some(last) if last.lineage == owner.token.lineage && last.term > owner.token.term => {
                return Err(Error::Fenced);
            }
            Some(last) => (last.form, last.takeover),
            None if access.files.is_some() => (Form::Segments, 0),
            None => (Form::Objects, 0),
        };
        let origin = Origin {
            format: format_of(rules),
            form,
            takeover: takeover + 1,
            lineage: owner.token.lineage,
            term: owner.token.term,
            incarnation: owner.incarnation,
            rules,
            nonce: Incarnation(access.runtime.unique().as_u128()),
        };
        let value = serde_json::to_vec(&origin).expect("an origin has no failing serializers");
        Ok(Self {
            origin,
            value: value.into(),
        })
    }

    /// Whether this is the origin now; `false` if another write came first.
    async fn write(&self, access: &Access, expect: &Expect) -> Result<bool, Error> {
        let key = access.keys.origin();
        let mut pause = Pause::new(access.config.patience);
        loop {
            match access.put(&key, &self.value, expect).await {
                Ok(_) => return Ok(true),
                Err(tenure_store::Error::Conflict { .. }) => return self.is_current(access).await,
                // The answer was lost: sending it again settles it. It expects a version that, once
                // replaced, never comes back, so it is applied once at most.
                Err(tenure_store::Error::Unknown { .. }) => pause.sleep().await,
                Err(error) => pause.after(error).await?,
            }
        }
    }

    /// Whether nobody has taken over since.
    pub(crate) async fn is_current(&self, access: &Access) -> Result<bool, Error> {
        let object = access.get(&access.keys.origin()).await?;
        Ok(object.is_some_and(|object| object.value == self.value))
    }
}

/// An origin that is missing beside a log was deleted, and so was a log that is missing altogether. To begin anew would
/// lose the log.
async fn refuse_lost_origin(access: &Access) -> Result<(), Error> {
    let keys = &access.keys;
    let listed = access.store.list(keys.queue(), None).await?;
    let lost = match listed.entries.first() {
        Some(entry) => {
            let what = format!("it is missing, although {} is there", entry.key);
            Error::corrupt(&keys.origin(), what)
        }
        None if access.is_there(keys.begun()).await? => {
            all_lost(keys, "everything in it is missing")
        }
        None => return Ok(()),
    };
    // Someone else may have begun just now.
    if access.is_there(&keys.origin()).await? {
        return Ok(());
    }
    Err(lost)
}

/// There was a log, and nothing of it is left.
pub(crate) fn all_lost(keys: &Keys, what: &str) -> Error {
    let (queue, begun) = (keys.queue(), keys.begun());
    let what = format!(
        "{what}, although {begun} says that there was a log: put it back, or restore a backup of the whole store. Only if all \
         of its jobs may be lost, delete all that is left in {queue}, and {begun} too: the queue then starts empty"
    );
    Error::corrupt(queue, what)
}

/// Notes that there is a log, outside of it.
pub(crate) async fn note_begun(access: &Access) -> Result<(), Error> {
    let key = access.keys.begun();
    if access.is_there(key).await? {
        return Ok(());
    }
    let value = Bytes::from_static(BEGUN);
    match access.create(key, &value).await? {
        // Another leader's says the same.
        Created::Done | Created::Taken(_) => Ok(()),
    }
}
