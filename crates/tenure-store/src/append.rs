//! Files that are appended to, beside a store's objects.
//!
//! A log that only ever grows does better with a file than with objects: an append costs a quarter of what a new object
//! does. A store on a file system of this host can offer that, with [`Store::append_folder`](crate::Store::append_folder).
//! Everything else about a file, where it is and how objects are stored beside it, stays with the engine.
//!
//! # What is guaranteed
//!
//! What a sync returned for is on the disk, unless an earlier sync of the same file has failed: Linux reports a lost page
//! once, and calls the next sync a success. Nothing else is durable. A write may be seen in part by a reader.
//!
//! # Which thread it runs on
//!
//! Operations block the thread that calls them and are done when they return, so they are for a thread that may block. A
//! simulated folder says that it [does not block](AppendFolder::blocks): its operations are futures that take their time.

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

    /// Where the folder is, to show to people.
    fn location(&self) -> String;

    /// Makes the folder, if it is not there, and makes its name durable. The folder above must be there.
    fn make(&self) -> Operation<'_, ()>;

    /// The names of all files.
    fn names(&self) -> Operation<'_, Vec<String>>;

    /// Makes an empty file, or empties the one that is there. Its name is durable after [`sync`](AppendFolder::sync).
    fn create(&self, name: &str) -> Operation<'_, Box<dyn AppendFile>>;

    /// What a file begins with, no more than so many bytes.
    fn read(&self, name: &str, bytes_max: usize) -> Operation<'_, Vec<u8>>;

    /// Removes a file.
    fn remove(&self, name: &str) -> Operation<'_, ()>;

    /// Makes the names in the folder durable.
    fn sync(&self) -> Operation<'_, ()>;

    /// Makes durable what anybody has written to a file. Proves nothing if another process' sync of it has failed.
    fn sync_file(&self, name: &str) -> Operation<'_, ()>;

    /// How many bytes may still be written on the disk, as far as it says so: a quota may leave less. `None` where nobody
    /// can tell.
    fn free_bytes(&self) -> Operation<'_, Option<u64>> {
        Operation::now(|| Ok(None))
    }

    /// Whether the store's object under `key` has this value now. The cheapest look at an object that there is: one
    /// small read. No value may be the beginning of another one that is ever put there.
    fn holds(&self, key: &Key, value: &[u8]) -> Operation<'_, bool>;
}

/// A file that is open for writing.
pub trait AppendFile: Debug + Send + Sync {
    /// Writes all of it at an offset. After an error some of it may be there.
    fn write_all_at<'a>(&'a self, bytes: &'a [u8], offset: u64) -> Operation<'a, ()>;

    /// Cuts the file off, or adds zeros.
    fn set_len(&self, bytes: u64) -> Operation<'_, ()>;

    /// Makes durable what was written, and what it takes to read it.
    fn sync_data(&self) -> Operation<'_, ()>;

    /// The same, and everything else about the file.
    fn sync_all(&self) -> Operation<'_, ()>;

    /// Whether others find this very file under its name: not if the folder was replaced or deleted meanwhile.
    fn is_in_place(&self) -> Operation<'_, bool>;
}

/// What an operation on a file comes to: known already if it blocks, and without an allocation; else a future.
#[must_use = "one that does not block does nothing unless it is awaited"]
pub enum Operation<'a, T> {
    /// It was done by the call. Taken when it is polled.
    Done(Option<io::Result<T>>),
    /// It takes its time.
    Later(Pin<Box<dyn Future<Output = io::Result<T>> + Send + 'a>>),
}

impl<T> Operation<'_, T> {
    /// Does it now.
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
