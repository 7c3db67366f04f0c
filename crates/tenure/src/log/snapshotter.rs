//! A snapshot in the making: pieces from the machine on one side, a task that writes them on the other.

use std::sync::Mutex;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::frame::check_lines;
use super::policy::Growth;
use super::snapshot::{self, Manifest, Piece};
use super::{Error, Log, Machine, Position, cleanup};

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
    task: JoinHandle<Outcome>,
}

/// How a snapshot ended: published, or not.
pub(crate) type Outcome = Result<Written, Error>;

/// A snapshot that was published.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) bytes: u64,
    /// How far the log had grown when it was begun.
    pub(crate) growth: Growth,
    /// The last record in it.
    pub(crate) position: Position,
    /// The place up to which everything was cleaned up.
    pub(crate) swept: Result<u64, Error>,
}

impl Snapshotter {
    pub(crate) fn is_active(&self) -> bool {
        self.active.is_some()
    }

    /// Begins a snapshot of what the machine says from now on, as the state at the end of the log.
    pub(crate) fn begin(&mut self, log: &Log) {
        let (sender, receiver) = mpsc::channel(PIECES_MAX);
        let (access, (cursor, remains)) = (log.access().clone(), log.base());
        let (growth, position) = (log.growth(), log.position());
        let task = log.access().runtime.spawn(async move {
            let manifest = Manifest {
                parts: Vec::new(),
                swept: remains.swept,
                kept: remains.kept.clone(),
            };
            let (published, bytes) = snapshot::write(&access, cursor, manifest, receiver).await?;
            let swept = cleanup::sweep(&access, &remains, &published).await;
            Ok(Written {
                bytes,
                growth,
                position,
                swept,
            })
        });
        self.active = Some(Active {
            pieces: Some(sender),
            task,
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
        self.active = None;
        Some(match ended {
            Ok(outcome) => outcome,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(Error::Stopped),
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
                return Some(Err(error));
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
