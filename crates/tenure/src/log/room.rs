//! Whether the store would take the next commit.
//!
//! On files the disk is asked how much room it has left, before anything was refused: less than the largest call may
//! need is not enough. That costs no write, and says nothing about quotas.
//!
//! A store that is full refuses a commit of 100 KiB and still takes one of a few bytes, and every read. So neither
//! tells whether the next commit of 100 KiB would be taken. The writer notes how large a commit was that the store
//! refused; to find out, as many bytes are written, to an object that is then deleted. The note stands until
//! those were taken, or a real commit as large as they are.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tenure_store::Expect;

use super::access::Access;
use super::{Error, segment};

/// No more bytes are tried, however many were refused together: about as much as one caller sends.
const BYTES_MAX: usize = 1024 * 1024;

/// What the store has refused.
#[derive(Debug)]
pub(crate) struct Room {
    access: Arc<Access>,
    /// How many bytes the largest commit had that was refused; zero if none was, or as many were taken since.
    refused: AtomicUsize,
    /// One at a time: they use the same object.
    trying: tokio::sync::Mutex<()>,
}

impl Room {
    pub(crate) fn new(access: Arc<Access>) -> Self {
        Self {
            access,
            refused: AtomicUsize::new(0),
            trying: tokio::sync::Mutex::default(),
        }
    }

    /// The store has refused so many bytes.
    pub(crate) fn refused(&self, bytes: usize) {
        self.refused
            .fetch_max(bytes.clamp(1, BYTES_MAX), Ordering::Relaxed);
    }

    /// The store has taken so many bytes.
    pub(crate) fn taken(&self, bytes: usize) {
        let refused = self.refused.load(Ordering::Relaxed);
        if refused != 0 && refused <= bytes {
            // Unless more were refused meanwhile.
            let order = Ordering::Relaxed;
            let _ = self.refused.compare_exchange(refused, 0, order, order);
        }
    }

    /// Whether there is room on the disk, and the store takes again what it has refused: known without asking it if it has
    /// refused nothing.
    pub(crate) async fn check(&self) -> Result<(), Error> {
        self.check_disk().await?;
        if self.refused.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let _turn = self.trying.lock().await;
        let bytes = self.refused.load(Ordering::Relaxed);
        if bytes == 0 {
            return Ok(());
        }
        let (access, key) = (&self.access, self.access.keys.trial());
        let (seed, _) = access.runtime.unique().as_u64_pair();
        // What a process has left that died over it.
        access.delete(&key).await?;
        let put = access.put(&key, &noise(seed, bytes), &Expect::Absent).await;
        let deleted = access.delete(&key).await;
        put?;
        deleted?;
        self.taken(bytes);
        Ok(())
    }
}

impl Room {
    /// Whether the disk, if there is one, has room for a large commit.
    async fn check_disk(&self) -> Result<(), Error> {
        let Some(folder) = self.access.files.clone() else {
            return Ok(());
        };
        let (blocks, location) = (folder.blocks(), folder.location());
        let asked = async move { folder.free_bytes().await };
        // A disk that does not say how much it has is known when it refuses something.
        let free = self.access.runtime.blocking(blocks, asked).await;
        match free.ok().flatten() {
            Some(free) if free < BYTES_MAX as u64 => {
                let what = format!("only {free} bytes are free, and a commit may need {BYTES_MAX}");
                let full = io::Error::new(io::ErrorKind::StorageFull, what);
                Err(segment::failed("writing to", &location, full))
            }
            _ => Ok(()),
        }
    }
}

/// Bytes that take as much room as they are: nothing on the way can make them fewer.
fn noise(seed: u64, bytes: usize) -> Bytes {
    let mut state = seed | 1;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.flatten().take(bytes).collect()
}

#[cfg(test)]
mod tests {
    use tenure_core::Namespace;
    use tenure_store::Store;
    use tenure_store::engine::memory::Memory;

    use super::super::Config;
    use super::*;

    fn room() -> (Arc<Memory>, Room) {
        let store = Arc::new(Memory::new());
        let namespace = Namespace::new("n").unwrap();
        let access = Access::new(store.clone(), &namespace, Config::default());
        (store, Room::new(access))
    }

    #[tokio::test]
    async fn what_was_refused_stands_until_as_much_was_taken() {
        let (_, room) = room();
        let refused = || room.refused.load(Ordering::Relaxed);
        room.refused(100);
        room.refused(20);
        assert_eq!(refused(), 100);
        room.taken(99);
        assert_eq!(refused(), 100);
        room.taken(100);
        assert_eq!(refused(), 0);
        room.refused(usize::MAX);
        assert_eq!(refused(), BYTES_MAX);
    }

    #[tokio::test]
    async fn a_trial_leaves_nothing_and_minds_nothing_that_was_left() {
        let (store, room) = room();
        let key = room.access.keys.trial();
        let left = Bytes::from_static(b"left");
        store.put(&key, left, &Expect::Absent).await.unwrap();
        // Nothing was refused, so nothing is tried.
        room.check().await.unwrap();
        assert!(store.get(&key).await.unwrap().is_some());
        room.refused(5000);
        room.check().await.unwrap();
        assert!(store.get(&key).await.unwrap().is_none());
        assert_eq!(room.refused.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn noise_is_as_long_as_asked_and_does_not_repeat() {
        let bytes = noise(1, 10_001);
        assert_eq!(bytes.len(), 10_001);
        let mut words: Vec<_> = bytes.chunks_exact(8).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), 1250);
    }
}
