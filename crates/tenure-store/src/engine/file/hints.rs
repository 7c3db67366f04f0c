//! Hints from inotify.
//!
//! The kernel watches single folders, not trees. So every folder from the root down to the prefix
//! and all those below it are watched, each as soon as it appears, and what is found in a new
//! folder counts as changed, since it may have been there before the watch. The prefix's own folder
//! need not exist yet.
//!
//! Each watch is one inotify instance, of which Linux allows a user 128 unless told otherwise
//! (`fs.inotify.max_user_instances`). Without one there are no hints, and callers poll.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fd::OwnedFd;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::watch::WatchSender;
use crate::{Key, Prefix, Watch};

/// Room for about a hundred events of full length.
const BUFFER_BYTES: usize = 32 * 1024;

/// Starts a watch; `None` if the system gives no inotify instance.
pub(super) fn watch(root: &Path, prefix: &Prefix) -> Option<Watch> {
    let inotify = match start() {
        Ok(inotify) => inotify,
        Err(error) => {
            tell_of_no_hints(prefix, &error);
            return None;
        }
    };
    let (sender, watch) = Watch::channel(prefix.clone());
    let tree = Tree {
        inotify: inotify.get_ref().clone(),
        root: root.to_owned(),
        prefix: prefix.clone(),
        folders: HashMap::new(),
        sender: sender.clone(),
    };
    let prefix = prefix.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = sender.closed() => {}
            result = follow(inotify, tree) => if let Err(error) = result {
                tell_of_no_hints(&prefix, &error);
            },
        }
    });
    Some(watch)
}

// The successor of this function is unsafe, because of types that change their descriptor while it
// is registered. This type cannot.
#[allow(deprecated)]
fn start() -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
    AsyncFd::with_interest(Arc::new(inotify), Interest::READABLE)
}

fn tell_of_no_hints(prefix: &Prefix, error: &io::Error) {
    tracing::warn!(
        %prefix,
        %error,
        "no hints for this prefix; changes are found by polling; to get hints, raise fs.inotify.max_user_instances or \
         fs.inotify.max_user_watches"
    );
}

/// Passes hints on until no more can come.
async fn follow(inotify: AsyncFd<Arc<OwnedFd>>, mut tree: Tree) -> io::Result<()> {
    tree = tree.cover(vec![String::new()]).await?;
    // This covers whatever happened before the folders were watched.
    tree.sender.anything();
    let mut buffer = Box::new_uninit_slice(BUFFER_BYTES);
    loop {
        let mut ready = inotify.readable().await?;
        let news = tree.read(&mut buffer)?;
        // Everything has been read. New events make the descriptor ready again.
        ready.clear_ready();
        if !news.folders.is_empty() {
            tree = tree.cover(news.folders).await?;
        }
        if news.overflow {
            tree.sender.anything();
        }
    }
}

/// What a batch of events requires besides hints.
#[derive(Debug, Default)]
struct News {
    /// Folders that have appeared.
    folders: Vec<String>,
    /// Events were lost.
    overflow: bool,
}

/// The folders that are watched.
#[derive(Debug)]
struct Tree {
    inotify: Arc<OwnedFd>,
    root: PathBuf,
    prefix: Prefix,
    /// By the kernel's number: the folder as a prefix of keys, empty or ending in a slash.
    folders: HashMap<i32, String>,
    sender: WatchSender,
}

impl Tree {
    /// Reads all events that wait.
    fn read(&mut self, buffer: &mut [MaybeUninit<u8>]) -> io::Result<News> {
        let mut news = News::default();
        let inotify = self.inotify.clone();
        let mut reader = Reader::new(&*inotify, buffer);
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::AGAIN) => return Ok(news),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                // A new folder may be among what was lost, so everything is looked at again.
                news.overflow = true;
                news.folders = vec![String::new()];
            } else if event.events().contains(ReadFlags::IGNORED) {
                self.folders.remove(&event.wd());
            } else if let (Some(folder), Some(Ok(name))) = (
                self.folders.get(&event.wd()),
                event.file_name().map(|name| name.to_str()),
            ) {
                if !event.events().contains(ReadFlags::ISDIR) {
                    self.changed(folder, name);
                } else if event
                    .events()
                    .intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO)
                {
                    news.folders.push(format!("{folder}{name}/"));
                }
            }
        }
    }

    /// Watches these folders and all below them, away from the async threads.
    async fn cover(mut self, folders: Vec<String>) -> io::Result<Self> {
        let work = move || {
            let mut left = folders;
            while let Some(folder) = left.pop() {
                if self.concerns(&folder) {
                    left.extend(self.cover_one(&folder)?);
                }
            }
            Ok(self)
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(covered) => covered,
            // The runtime ends, and this task with it: there is nothing to report.
            Err(error) if error.is_cancelled() => std::future::pending().await,
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// Watches one folder, reports the objects that are already in it, and returns its folders.
    fn cover_one(&mut self, folder: &str) -> io::Result<Vec<String>> {
        let path = self.root.join(folder);
        let flags = WatchFlags::CREATE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::DELETE
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ONLYDIR;
        let mut below = Vec::new();
        match inotify::add_watch(&*self.inotify, &path, flags) {
            Ok(number) => self.folders.insert(number, folder.to_owned()),
            // It is gone again, or this process may not read it.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) if !folder.is_empty() => {
                return Ok(below);
            }
            Err(error) => return Err(error.into()),
        };
        // If it disappears now, there is an event for that.
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            let name = entry.file_name();
            match (name.to_str(), entry.file_type()) {
                (Some(name), Ok(kind)) if kind.is_dir() => below.push(format!("{folder}{name}/")),
                (Some(name), Ok(_)) => self.changed(folder, name),
                _ => {}
            }
        }
        Ok(below)
    }

    /// Whether the folder leads to the prefix or lies under it.
    fn concerns(&self, folder: &str) -> bool {
        let prefix = self.prefix.as_str();
        // `.tenure` is not a valid prefix of keys.
        Prefix::new(folder).is_ok() && (folder.starts_with(prefix) || prefix.starts_with(folder))
    }

    /// The sender drops what is not under the prefix.
    fn changed(&self, folder: &str, name: &str) {
        if let Ok(key) = Key::new(format!("{folder}{name}")) {
            self.sender.changed(&key);
        }
    }
}
