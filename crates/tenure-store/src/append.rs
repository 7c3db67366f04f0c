//! Files that are appended to, beside a store's objects.
//!
//! A log that only ever grows does better with a file than with objects: an append costs a quarter of what a new object
//! does. A store on a file system of this host can offer that, with [`Store::append_folder`](crate::Store::append_folder).
//! Everything else about a file, where it is and how objects are stored beside it, stays with the engine.
//!
//! # What is guaranteed
//!
//! Once a sync has returned, what it covers is on the disk, unless an earlier sync of the same file has failed: Linux
//! reports a lost page once, and the next sync succeeds. Nothing else is durable. A write may be seen in part by a
//! reader.
//!
//! # Which thread it runs on
//!
//! Operations block the calling thread and are done when they return, so call them from a thread that may block. A
//! simulated folder [does not block](AppendFolder::blocks): its operations are futures that take time.

use std::fmt::Debug;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::Key;

/// A folder of files that are appended to.
pub trait AppendFolder: Debug + Send + Sync {
    /// Whether operations block their thread. Those of a real disk do.
    fn blocks(&self) -> bool {
        true
    }

    /// Where the folder is, for people to read.
    fn location(&self) -> String;

    /// Creates the folder if it is missing, and makes its name durable. The parent folder must exist.
    fn make(&self) -> Operation<'_, ()>;

    /// The names of all files.
    fn names(&self) -> Operation<'_, Vec<String>>;

    /// Creates an empty file, or empties an existing one. Its name is durable after [`sync`](AppendFolder::sync).
    fn create(&self, name: &str) -> Operation<'_, Box<dyn AppendFile>>;

    /// Reads the start of a file: at most `bytes_max` bytes.
    fn read(&self, name: &str, bytes_max: usize) -> Operation<'_, Vec<u8>>;

    /// Removes a file.
    fn remove(&self, name: &str) -> Operation<'_, ()>;

    /// Makes the names in the folder durable.
    fn sync(&self) -> Operation<'_, ()>;

    /// Makes durable what any process has written to a file. Proves nothing if another process's sync of it has failed.
    fn sync_file(&self, name: &str) -> Operation<'_, ()>;

    /// How many bytes are free on the disk, as the system reports it: a quota may leave less. `None` if that is not
    /// known.
    fn free_bytes(&self) -> Operation<'_, Option<u64>> {
        Operation::now(|| Ok(None))
    }

    /// Whether the store's object under `key` has this value now. This is the cheapest check of an object: one small
    /// read. It looks only at the start of the object, so no value that is ever put there may be a prefix of another.
    fn holds(&self, key: &Key, value: &[u8]) -> Operation<'_, bool>;
}

/// A file that is open for writing.
pub trait AppendFile: Debug + Send + Sync {
    /// Writes all of it at an offset. After an error part of it may be there.
    fn write_all_at<'a>(&'a self, bytes: &'a [u8], offset: u64) -> Operation<'a, ()>;

    /// Truncates the file, or extends it with zeros.
    fn set_len(&self, bytes: u64) -> Operation<'_, ()>;

    /// Makes the written data durable, with the metadata that reading it needs.
    fn sync_data(&self) -> Operation<'_, ()>;

    /// Makes the written data and all of the file's metadata durable.
    fn sync_all(&self) -> Operation<'_, ()>;

    /// Whether the name still leads to this very file: not if the folder was replaced or deleted meanwhile.
    fn is_in_place(&self) -> Operation<'_, bool>;
}

/// The outcome of a file operation. It is known already, without an allocation, if the operation blocks; otherwise it
/// is a future.
#[must_use = "one that does not block does nothing unless it is awaited"]
pub enum Operation<'a, T> {
    /// The call did the work. The result is taken by the first poll.
    Done(Option<io::Result<T>>),
    /// A future, which takes time.
    Later(Pin<Box<dyn Future<Output = io::Result<T>> + Send + 'a>>),
}

impl<T> Operation<'_, T> {
    /// Runs `work` now.
    pub fn now(work: impl FnOnce() -> io::Result<T>) -> Self {
        Self::Done(Some(work()))
    }
}

impl<T: Unpin> Future for Operation<'_, T> {
    type Output = io::Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::Done(result) => Poll::Ready(result.take().expect("it is polled once")),
            Self::Later(future) => future.as_mut().poll(context),
        }
    }
}
