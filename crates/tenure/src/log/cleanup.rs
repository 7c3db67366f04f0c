//! Clean-up: what a newer snapshot replaces is deleted, and what stops a late leader stays.
//!
//! # What may be deleted
//!
//! A part of the log only when a snapshot that contains it counts, and the snapshot before that one contains
//! it too: the last two snapshots stay, and the log from the older one on. A reader that has begun with the
//! older one has as long as it takes the log to grow to the size of the state. A slower one finds something
//! missing, looks for a newer snapshot and begins again with that.
//!
//! So if the newest is damaged, recovery has the one before it, and the log from there on. A leader that has found
//! a snapshot damaged does not count it among the two.
//!
//! These rules hold for every leader: what a replaced leader deletes late lies behind a snapshot that
//! counts, and the newest snapshot is never deleted. A leader that knows that it was replaced leaves the
//! work to its successor all the same.
//!
//! # What must stay for ever (objects only)
//!
//! The first object of every take-over. The argument is in [`objects`](super::objects).

use std::collections::BTreeSet;

use futures_util::{StreamExt, stream};
use tenure_store::{AppendFolder, Key};

use super::access::Access;
use super::origin::{Form, Ownership};
use super::segment::{self, Link, Name};
use super::snapshot::{Listing, Published, seq_of};
use super::{Error, policy};

/// How many objects are deleted at once.
const DELETES_AHEAD: usize = 8;

/// What there is to clean up, as the log knew it when the snapshot was begun.
#[derive(Debug, Clone)]
pub(crate) struct Remains {
    pub(crate) ownership: Ownership,
    /// Objects: up to here everything is gone already.
    pub(crate) swept: u64,
    /// Objects: places behind it that stay.
    pub(crate) kept: Vec<u64>,
    /// Files: the chain. The last is the one being written.
    pub(crate) chain: Vec<Link>,
    /// The names of snapshots that were found damaged: nothing rests on them.
    pub(crate) damaged: Vec<String>,
}

/// Deletes what the snapshot `newest` replaces; returns the place up to which all is gone.
pub(crate) async fn sweep(
    access: &Access,
    remains: &Remains,
    newest: &Published,
) -> Result<u64, Error> {
    let listing = Listing::read(access).await?;
    // Someone else may have published since. Counting only up to our own deletes less, never more.
    let mut published: Vec<u64> = listing
        .published
        .iter()
        .filter(|published| !remains.damaged.contains(&published.name))
        .map(|published| published.seq)
        .filter(|&seq| seq <= newest.seq)
        .collect();
    published.dedup();
    let horizon = policy::horizon(&published);
    if !remains.ownership.is_current(access).await? {
        return Err(Error::Fenced);
    }
    match (remains.ownership.origin.form, &access.files) {
        (Form::Segments, Some(folder)) => {
            let (blocks, folder, chain) = (folder.blocks(), folder.clone(), remains.chain.clone());
            let sweep = async move { sweep_segments(&*folder, &chain, horizon).await };
            access.runtime.blocking(blocks, sweep).await?;
        }
        _ => {
            let places = (remains.swept + 1..=horizon).filter(|seq| !remains.kept.contains(seq));
            let keys = places.map(|seq| access.keys.log_object(seq)).collect();
            delete(access, keys).await?;
        }
    }
    for (name, objects) in listing.objects {
        // Unfinished ones too: nobody would need them when they are finished.
        if seq_of(&name).is_some_and(|seq| seq < horizon) {
            delete_snapshot(access, objects).await?;
        }
    }
    Ok(horizon.max(remains.swept))
}

/// The manifest goes first: a snapshot that counts and misses a part would be an error.
async fn delete_snapshot(access: &Access, objects: Vec<Key>) -> Result<(), Error> {
    let (manifest, parts) = objects
        .into_iter()
        .partition(|key| key.name() == "manifest");
    delete(access, manifest).await?;
    delete(access, parts).await
}

async fn delete(access: &Access, keys: Vec<Key>) -> Result<(), Error> {
    let mut deleted = stream::iter(keys)
        .map(|key| async move { access.delete(&key).await })
        .buffer_unordered(DELETES_AHEAD);
    while let Some(result) = deleted.next().await {
        result?;
    }
    Ok(())
}

/// Removes the files of the chain that hold nothing behind `horizon`, and those of older leaders that are in
/// no chain. What was made since the chain was copied, by whomever, is left alone.
async fn sweep_segments(
    folder: &dyn AppendFolder,
    chain: &[Link],
    horizon: u64,
) -> Result<(), Error> {
    let Some(current) = chain.last() else {
        return Ok(());
    };
    let needed: BTreeSet<Name> = chain
        .iter()
        .zip(chain[1..].iter().map(Some).chain([None]))
        .filter(|(_, next)| next.is_none_or(|next| next.first > horizon + 1))
        .map(|(link, _)| link.name)
        .collect();
    for name in segment::names(folder).await? {
        if name < current.name && !needed.contains(&name) {
            // What cannot be removed is in nobody's way, and is tried again next time.
            if let Err(error) = folder.remove(&name.to_string()).await {
                tracing::warn!(%name, %error, "could not remove an old segment");
            }
        }
    }
    Ok(())
}
