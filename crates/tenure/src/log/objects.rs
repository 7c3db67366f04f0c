//! The log as objects, on any store: one commit is one object.
//!
//! The object at place n is `<namespace>/queue/log/<n>`, created expecting that there is none. The leader that
//! creates it owns the place. A leader goes to place n + 1 only when it knows that the object at n is its own.
//!
//! # Taking over
//!
//! A new leader reads to the first gap and creates its *term record* there. If someone else is faster, it reads
//! that object and tries the next place. From then on a leader that took over earlier finds the place where it
//! would write next taken, and stops: no clock and no check-then-write is involved.
//!
//! Having created its term record at place p, the new leader looks once more for snapshots, and gives up if
//! there is one of p or later. This is why. Between its reading the gap and its writing, any time may pass. An
//! older leader may have written p and more, a third one may have taken over behind that, written a snapshot
//! and cleaned up, and p is a gap again. But objects are deleted only behind a snapshot that counts, and the newest
//! snapshot is never deleted. So if no snapshot of p or later is there *after* the term record was created, then
//! nothing at p was ever deleted before, and the term record is the first object that was ever at p.
//!
//! # Which objects stay for ever
//!
//! The term records, one small object per take-over. Everything else may be deleted behind a snapshot, and yet
//! no leader that took over earlier can commit. Let Z be one, whatever time it wakes up, and s the last
//! place it knows to be its own. It creates s + 1.
//!
//! - If nobody has ever created s + 1, this is a commit like any other: nobody has taken over, since a leader that
//!   did has written at the first gap.
//! - If another leader was the first to create s + 1: it found Z's object at s and then the gap, so it was
//!   taking over, and s + 1 is its term record. That stays. Z finds it and is fenced.
//! - If Z itself was the first to create it, in a request whose answer is not known to it yet, then it is in the
//!   log, and everyone who took over since has read it. Z finds it, or finds it deleted and creates it anew with
//!   the same bytes at a place that lies behind a snapshot, where nobody reads it. Either way Z answers what is
//!   true: it was committed, once. Then Z goes on to s + 2, which it has never tried; the first two cases are
//!   all there are.
//!
//! The same holds for a request of Z that is delivered late or twice: it finds its place taken, or writes
//! behind a snapshot, or is the next commit. Nothing that was deleted needs to be remembered in any other way.

use bytes::Bytes;
use futures_util::{StreamExt, stream};

use super::access::{Access, Created};
use super::error::Halt;
use super::frame::{self, Cursor, Kind};
use super::recovery::Replay;
use super::{Error, Machine, snapshot};

/// Replays from the place behind the replay's to the first gap, or to where the replay is to end.
pub(crate) async fn replay<M: Machine>(
    access: &Access,
    replay: &mut Replay<'_, M>,
) -> Result<(), Halt> {
    loop {
        let mut objects = stream::iter(replay.tail.seq + 1..=replay.until)
            .map(|seq| async move {
                let key = access.keys.log_object(seq);
                let object = access.get(&key).await;
                (key, object)
            })
            .buffered(access.config.read_ahead);
        while let Some((key, object)) = objects.next().await {
            let Some(object) = object? else { break };
            let frame = frame::decode(&object.value).map_err(|unread| unread.at(&key))?;
            replay.frame(&frame, || key.to_string()).await?;
            replay.tail.growth.objects += 1;
        }
        drop(objects);
        if replay.tail.seq >= replay.until {
            return Ok(());
        }

        // The end of the log has nothing behind it. What was cleaned up has: the last two snapshots stay, and
        // with them the log from the older one on.
        let gap = access.keys.log_object(replay.tail.seq + 1);
        if access
            .list(&access.keys.log(), Some(&gap))
            .await?
            .is_empty()
        {
            return Ok(());
        }
        // A leader may have gone on while this was looked at.
        if access.get(&gap).await?.is_none() {
            return Err(Halt::Missing(gap.to_string()));
        }
    }
}

/// Commits a frame at a place, which is this leader's if nobody has taken over.
pub(crate) async fn commit(access: &Access, seq: u64, frame: &Bytes) -> Result<(), Error> {
    let key = access.keys.log_object(seq);
    let created = access.create(&key, frame).await?;
    // A new leader puts its term record at the first gap, which is here.
    if matches!(created, Created::Taken(_)) {
        return Err(Error::Fenced);
    }
    Ok(())
}

/// Writes the term record of a new leader at the first place that is free. Returns its place.
pub(crate) async fn take_place<M: Machine>(
    access: &Access,
    replay: &mut Replay<'_, M>,
    mut cursor: Cursor,
    lines: &[String],
) -> Result<Cursor, Error> {
    loop {
        (cursor.seq, cursor.position) = (replay.tail.seq + 1, replay.tail.position.next());
        // Never below those of a leader that was faster.
        cursor.rules = cursor.rules.max(replay.tail.rules);
        let key = access.keys.log_object(cursor.seq);
        let record = frame::encode(Kind::Term, cursor, None, lines);
        let Created::Taken(other) = access.create(&key, &record).await? else {
            break;
        };
        let other = frame::decode(&other).map_err(|unread| unread.at(&key))?;
        if other.header.takeover >= cursor.takeover {
            return Err(Error::Fenced);
        }
        replay.frame(&other, || key.to_string()).await?;
        replay.tail.growth.objects += 1;
    }
    if snapshot::newest_seq(access).await? >= cursor.seq {
        return Err(Error::Fenced);
    }
    Ok(cursor)
}
