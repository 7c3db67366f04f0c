//! Hints: "look again", never "this is so".

use tokio::sync::mpsc;

use crate::{Key, Prefix};

/// How many hints wait for a slow watcher before they are merged into [`Hint::Anything`].
const WAITING_MAX: usize = 256;

/// Something may have changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hint {
    /// This object, probably.
    Changed(Key),
    /// Hints were lost, or the engine cannot say which object: look at everything.
    Anything,
}

/// A stream of hints for one prefix. Dropping it ends the watch.
///
/// A slow watcher costs bounded memory: when too many hints wait, they are merged into one
/// [`Hint::Anything`].
#[derive(Debug)]
pub struct Watch {
    hints: mpsc::Receiver<Key>,
    anything: std::sync::Arc<tokio::sync::Notify>,
    /// Prefixes to strip off the keys, in this order.
    stripped: Vec<Prefix>,
}

/// The engine's end of a [`Watch`].
#[derive(Debug, Clone)]
pub struct WatchSender {
    prefix: Prefix,
    hints: mpsc::Sender<Key>,
    anything: std::sync::Arc<tokio::sync::Notify>,
}

impl Watch {
    /// A watch and the end that feeds it, for engines, including those outside this crate.
    #[must_use]
    pub fn channel(prefix: Prefix) -> (WatchSender, Watch) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        let anything = std::sync::Arc::new(tokio::sync::Notify::new());
        (
            WatchSender {
                prefix,
                hints: sender,
                anything: anything.clone(),
            },
            Watch {
                hints: receiver,
                anything,
                stripped: Vec::new(),
            },
        )
    }

    /// The next hint; `None` once the engine has stopped sending hints and callers have to poll.
    /// Cancelling loses nothing.
    pub async fn next(&mut self) -> Option<Hint> {
        tokio::select! {
            biased;
            () = self.anything.notified() => {
                // This hint covers everything that waits.
                while self.hints.try_recv().is_ok() {}
                Some(Hint::Anything)
            }
            key = self.hints.recv() => key.map(|key| self.hint(key)),
        }
    }

    /// The same watch, with `prefix` stripped off the keys of its hints, for stores that put keys
    /// under a prefix.
    #[must_use]
    pub fn strip(mut self, prefix: &Prefix) -> Self {
        self.stripped.push(prefix.clone());
        self
    }

    fn hint(&self, key: Key) -> Hint {
        self.stripped
            .iter()
            .try_fold(key, |key, prefix| key.strip(prefix))
            // A key outside the prefix has no name here. Looking at everything is always safe.
            .map_or(Hint::Anything, Hint::Changed)
    }
}

impl WatchSender {
    /// Tells the watcher of a change, if the key is under its prefix. Never waits.
    pub fn changed(&self, key: &Key) {
        if key.is_under(&self.prefix) && self.hints.try_send(key.clone()).is_err() {
            self.anything.notify_one();
        }
    }

    /// Tells the watcher to look at everything. Never waits.
    pub fn anything(&self) {
        self.anything.notify_one();
    }

    /// Whether the watcher is gone, so that the engine can stop.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.hints.is_closed()
    }

    /// Resolves when the watcher is gone.
    pub async fn closed(&self) {
        self.hints.closed().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_slow_watcher_gets_one_hint_for_everything() {
        let prefix = Prefix::new("a").unwrap();
        let (sender, mut watch) = Watch::channel(prefix.clone());
        for index in 0..=WAITING_MAX {
            sender.changed(&prefix.key(index.to_string()).unwrap());
        }
        assert_eq!(watch.next().await, Some(Hint::Anything));
        let later = prefix.key("later").unwrap();
        sender.changed(&Key::new("b/elsewhere").unwrap());
        sender.changed(&later);
        assert_eq!(watch.next().await, Some(Hint::Changed(later)));
        drop(sender);
        assert_eq!(watch.next().await, None);
    }
}
