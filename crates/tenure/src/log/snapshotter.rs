//! A snapshot in the making: pieces from the machine on one side, a task that writes them on the other.

use std::sync::Mutex;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::frame::check_lines;
use super::policy::Growth;
use super::snapshot::{self, Piece};
use super::{Error, Log, Machine, cleanup};

/// How much is taken from the machine at once. Commits wait for no more than this: some tens of microseconds.
const PIECE_BYTES: usize = 16 * 1024;

/// How many pieces wait to be written.
const PIECES_MAX: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Snapshotter {
    active: Option<Active>,
}

#[derive(Debug)]
struct Active {
    /// Gone when everything was sent.
    pieces: Option<mpsc::Sender<Piece>>,
    task: JoinHandle<Result<Written, Error>>,
    /// How far the log had grown when the snapshot was begun.
    growth: Growth,
}

#[derive(Debug)]
struct Written {
    bytes: u64,
    swept: Result<u64, Error>,
}

/// How a snapshot ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    Published {
        bytes: u64,
        /// How far the log had grown when it was begun.
        growth: Growth,
        /// The place up to which everything was cleaned up.
        swept: Result<u64, Error>,
    },
    Failed(Error),
}

impl Snapshotter {
    pub(crate) fn is_active(&self) -> bool {
        self.active.is_some()
    }

    /// Begins a snapshot of what the machine says from now on, as the state at the end of the log.
    pub(crate) fn begin(&mut self, log: &Log) {
        let (sender, receiver) = mpsc::channel(PIECES_MAX);
        let (access, base) = (log.access().clone(), log.base());
        let task = crate::task::spawn(async move {
            let (published, bytes) =
                snapshot::write(&access, base.place, base.contents, receiver).await?;
            let swept = cleanup::sweep(&access, &base.remains, &published).await;
            Ok(Written { bytes, swept })
        });
        self.active = Some(Active {
            pieces: Some(sender),
            task,
            growth: log.growth(),
        });
    }

    /// Gets on a bit. Returns how the snapshot ended, when it has; never without a snapshot. May be dropped
    /// at any time.
    pub(crate) async fn step<M: Machine>(&mut self, machine: &Mutex<M>) -> Option<Outcome> {
        let Some(active) = &mut self.active else {
            return std::future::pending().await;
        };
        let ended = match active.pieces.clone() {
            None => (&mut active.task).await,
            Some(pieces) => tokio::select! {
                biased;
                ended = &mut active.task => ended,
                // Without a receiver the task is about to end.
                Ok(permit) = pieces.reserve() => {
                    let pulled = pull(machine);
                    return self.send(permit, pulled);
                }
            },
        };
        let growth = active.growth;
        self.active = None;
        Some(match ended {
            Ok(Ok(Written { bytes, swept })) => Outcome::Published {
                bytes,
                growth,
                swept,
            },
            Ok(Err(error)) => Outcome::Failed(error),
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Outcome::Failed(Error::Stopped),
        })
    }

    fn send(
        &mut self,
        permit: mpsc::Permit<'_, Piece>,
        pulled: Result<Option<Bytes>, Error>,
    ) -> Option<Outcome> {
        match pulled {
            // The machine has got on, and nothing is to be written yet.
            Ok(Some(lines)) if lines.is_empty() => {}
            Ok(Some(lines)) => permit.send(Piece::Lines(lines)),
            Ok(None) => {
                permit.send(Piece::End);
                self.active.as_mut()?.pieces = None;
            }
            Err(error) => {
                self.active = None;
                return Some(Outcome::Failed(error));
            }
        }
        None
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The next lines of the snapshot; none when it is complete.
fn pull<M: Machine>(machine: &Mutex<M>) -> Result<Option<Bytes>, Error> {
    let mut machine = machine.lock().map_err(|_| Error::Stopped)?;
    let piece = machine.snapshot_chunk(PIECE_BYTES);
    if let Some(lines) = piece.as_ref().filter(|lines| !lines.is_empty()) {
        check_lines(lines)?;
    }
    Ok(piece)
}
