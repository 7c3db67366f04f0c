//! The disk that all hosts of a run share, where the log is kept in files: slow at times, full at times, and
//! forgetful when the power fails.
//!
//! Each file is kept twice: as processes see it, and as it is on the disk. A process that crashes leaves what it has
//! written. A loss of power leaves what was synced; of everything else any set of sectors, any of the file's last two
//! lengths, and any set of the names that were added or removed. Where a file has grown and nothing was written,
//! there are zeros.
//!
//! A sync that fails has written some of it. Then, as often as not, the kernel forgets the rest: it shows it to every
//! reader, does not write it, and calls the next sync of that file a success.
//!
//! What is durable is told to the ledger at the very moment when it is.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use serde::Deserialize;
use tenure_random::Random;
use tenure_store::{AppendFile, AppendFolder, Key, Operation, Prefix, Store};

use super::chaos::strike_writer;
use super::faults::Fault;
use super::world::World;

/// The least that is written at once.
const SECTOR_BYTES: usize = 512;

/// Where the store would be, if there was a file system.
const ROOT: &str = "/simulated";

/// All files.
pub(crate) struct Disk {
    world: Weak<World>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    files: BTreeMap<u64, File>,
    /// The names of the one folder, as processes see them.
    names: BTreeMap<String, u64>,
    /// And as they are on the disk.
    durable_names: BTreeMap<String, u64>,
    count: u64,
}

#[derive(Default)]
struct File {
    written: Vec<u8>,
    durable: Vec<u8>,
    /// Where the two may differ.
    changed: Range<usize>,
}

/// What of the origin matters here.
#[derive(Deserialize)]
struct Origin {
    takeover: u64,
}

/// What the disk has for certain.
pub(crate) struct Durable<'a>(&'a State);

impl Durable<'_> {
    /// The last file of a take-over, if there is one.
    pub(crate) fn last_of(&self, takeover: u64) -> Vec<(&str, &[u8])> {
        let files = self.0.durable_names.iter().rev();
        files
            .skip_while(|(name, _)| **name >= segment_prefix(takeover + 1))
            .take_while(|(name, _)| **name >= segment_prefix(takeover))
            .filter_map(|(name, file)| Some((&**name, &*self.0.files.get(file)?.durable)))
            .collect()
    }

    pub(crate) fn file(&self, name: &str) -> Option<&[u8]> {
        let file = self.0.durable_names.get(name)?;
        Some(&self.0.files.get(file)?.durable)
    }
}

fn segment_prefix(takeover: u64) -> String {
    format!("{takeover:020}-")
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Disk")
    }
}

impl Disk {
    pub(crate) fn new(world: Weak<World>) -> Self {
        Self {
            world,
            state: Mutex::default(),
        }
    }

    /// What is not durable is lost, or some of it.
    pub(crate) fn lose_power(&self) {
        let world = self.world();
        let mut state = self.state();
        let State {
            files,
            names,
            durable_names,
            ..
        } = &mut *state;
        let mut random = world.random();
        let mut lost = 0;
        for file in files.values_mut() {
            lost += file.lose_power(&mut random);
        }
        let all: Vec<String> = names.keys().chain(durable_names.keys()).cloned().collect();
        for name in all {
            let (seen, durable) = (names.get(&name).copied(), durable_names.get(&name).copied());
            if seen == durable || random.chance(500) {
                continue;
            }
            lost += 1;
            match durable {
                Some(file) => drop(names.insert(name, file)),
                None => drop(names.remove(&name)),
            }
        }
        *durable_names = names.clone();
        drop(random);
        drop(state);
        world.say("disk", &format!("loses {lost} sectors and names"));
        for _ in 0..lost {
            world.count(Fault::DiskForgets);
        }
    }

    fn world(&self) -> Arc<World> {
        self.world
            .upgrade()
            .expect("the world outlives its runtime")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes some time, in which anything may happen.
    async fn take_time(&self, about: Duration) {
        let time = {
            let world = self.world();
            if world.random().chance(world.plan.disk.struck) && !world.is_calm() {
                strike_writer(&world);
            }
            let most = if world.strikes(Fault::DiskSlow, world.plan.disk.slow) {
                world.plan.session.ttl
            } else {
                about
            };
            world.random().up_to(most * 2)
        };
        // A timer's tick is a millisecond: what is shorter takes a turn among the other tasks.
        if time < Duration::from_millis(1) {
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(time).await;
        }
    }

    async fn step(&self) {
        self.take_time(self.world().plan.disk.step).await;
    }

    /// Whether a step fails.
    fn fails(&self, fault: Fault, kind: io::ErrorKind) -> io::Result<()> {
        let world = self.world();
        let per_mille = match fault {
            Fault::DiskFull => world.plan.disk.full,
            _ => world.plan.disk.broken,
        };
        if world.strikes(fault, per_mille) {
            Err(kind.into())
        } else {
            Ok(())
        }
    }

    /// Something has become durable.
    async fn settle(&self) {
        let world = self.world();
        let key = Key::new(format!("{}/queue/origin", world.namespace)).expect("a valid key");
        let origin = world.store.memory().get(&key).await;
        let Some(origin) = origin.expect("memory does not fail") else {
            return;
        };
        let Origin { takeover } = serde_json::from_slice(&origin.value).expect("an origin");
        let verdict = world.ledger().synced(&Durable(&self.state()), takeover);
        world.judge(verdict);
    }

    async fn create_file(&self, name: String) -> io::Result<u64> {
        self.step().await;
        self.fails(Fault::DiskFull, io::ErrorKind::StorageFull)?;
        self.world().say("disk", &format!("makes {name}"));
        let number = {
            let mut state = self.state();
            match state.names.get(&name).copied() {
                Some(number) => {
                    state.file(number)?.resize(0);
                    number
                }
                None => {
                    state.count += 1;
                    let number = state.count;
                    state.names.insert(name, number);
                    state.files.insert(number, File::default());
                    number
                }
            }
        };
        self.step().await;
        Ok(number)
    }

    async fn write_file(&self, number: u64, bytes: &[u8], at: usize) -> io::Result<()> {
        self.step().await;
        let full = self.fails(Fault::DiskFull, io::ErrorKind::StorageFull);
        let length = match full {
            Ok(()) => bytes.len(),
            Err(_) => self.world().random().index(bytes.len()),
        };
        let bytes = &bytes[..length];
        let half = self
            .world()
            .strikes(Fault::DiskWriteSeen, self.world().plan.disk.seen);
        if half {
            // A reader may see any part of what is being written.
            self.write_some(number, bytes, at)?;
            self.step().await;
        }
        self.state().file(number)?.write(bytes, at);
        self.step().await;
        full
    }

    fn write_some(&self, number: u64, bytes: &[u8], at: usize) -> io::Result<()> {
        let world = self.world();
        let mut random = world.random();
        let mut state = self.state();
        let file = state.file(number)?;
        let mut from = 0;
        while from < bytes.len() {
            let border = ((at + from) / SECTOR_BYTES + 1) * SECTOR_BYTES;
            let to = (border - at).min(bytes.len());
            if random.chance(500) {
                file.write(&bytes[from..to], at + from);
            }
            from = to;
        }
        Ok(())
    }

    async fn sync_file(&self, number: u64) -> io::Result<()> {
        self.take_time(self.world().plan.disk.sync).await;
        if let Err(error) = self.fails(Fault::DiskSyncFailed, io::ErrorKind::Other) {
            let world = self.world();
            let forgets = world.strikes(Fault::DiskSyncForgets, 500);
            let mut random = world.random();
            let mut state = self.state();
            let file = state.file(number)?;
            file.sync_some(&mut random);
            if forgets {
                file.changed = 0..0;
            }
            return Err(error);
        }
        self.state().file(number)?.sync();
        self.settle().await;
        self.step().await;
        Ok(())
    }

    async fn sync_names(&self) -> io::Result<()> {
        self.take_time(self.world().plan.disk.sync).await;
        self.fails(Fault::DiskSyncFailed, io::ErrorKind::Other)?;
        {
            let mut state = self.state();
            state.durable_names = state.names.clone();
        }
        self.settle().await;
        self.step().await;
        Ok(())
    }

    async fn remove_file(&self, name: String) -> io::Result<()> {
        self.step().await;
        self.world().say("disk", &format!("removes {name}"));
        let removed = self.state().names.remove(&name);
        self.step().await;
        removed.map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    async fn resize_file(&self, number: u64, bytes: usize) -> io::Result<()> {
        self.step().await;
        self.state().file(number)?.resize(bytes);
        self.step().await;
        Ok(())
    }

    async fn read_file(&self, name: String, most: usize) -> io::Result<Vec<u8>> {
        self.step().await;
        self.fails(Fault::DiskReadFailed, io::ErrorKind::Other)?;
        let (read, is_end) = {
            let mut state = self.state();
            let is_last = state.names.keys().next_back() == Some(&name);
            let number = state.number(&name)?;
            let file = &state.file(number)?.written;
            let read = file[..file.len().min(most)].to_vec();
            (read, is_last && file.len() <= most)
        };
        self.step().await;
        if is_end {
            self.world().replay.notify_waiters();
        }
        Ok(read)
    }

    async fn list_names(&self) -> io::Result<Vec<String>> {
        self.step().await;
        self.fails(Fault::DiskReadFailed, io::ErrorKind::Other)?;
        let names = self.state().names.keys().cloned().collect();
        self.step().await;
        Ok(names)
    }

    /// Objects are files too, and reading one of them fails as any other read does.
    async fn look_at_object(&self, key: Key, value: Vec<u8>) -> io::Result<bool> {
        self.step().await;
        self.fails(Fault::DiskReadFailed, io::ErrorKind::Other)?;
        let object = self.world().store.memory().get(&key).await;
        let object = object.map_err(io::Error::other)?;
        let object = object.ok_or(io::ErrorKind::NotFound)?;
        self.step().await;
        Ok(object.value == value)
    }
}

/// The one folder of the disk, for a process to keep its log in.
#[derive(Debug)]
pub(crate) struct Folder {
    disk: Arc<Disk>,
    location: String,
}

impl Folder {
    pub(crate) fn new(disk: Arc<Disk>, prefix: &Prefix) -> Self {
        let location = format!("{ROOT}/{}", prefix.as_str().trim_end_matches('/'));
        Self { disk, location }
    }
}

fn later<'a, T>(operation: impl Future<Output = io::Result<T>> + Send + 'a) -> Operation<'a, T> {
    Operation::Later(Box::pin(operation))
}

impl AppendFolder for Folder {
    /// Time passes only while nothing blocks.
    fn blocks(&self) -> bool {
        false
    }

    fn location(&self) -> String {
        self.location.clone()
    }

    fn make(&self) -> Operation<'_, ()> {
        // It is there as soon as it is wanted, and the folder above holds no name that could be lost.
        later(async {
            self.disk.step().await;
            self.disk.step().await;
            Ok(())
        })
    }

    fn names(&self) -> Operation<'_, Vec<String>> {
        later(self.disk.list_names())
    }

    fn create(&self, name: &str) -> Operation<'_, Box<dyn AppendFile>> {
        let (disk, name) = (self.disk.clone(), name.to_owned());
        later(async move {
            let number = disk.create_file(name).await?;
            let file: Box<dyn AppendFile> = Box::new(OpenFile { disk, number });
            Ok(file)
        })
    }

    fn read(&self, name: &str, bytes_max: usize) -> Operation<'_, Vec<u8>> {
        later(self.disk.read_file(name.to_owned(), bytes_max))
    }

    fn remove(&self, name: &str) -> Operation<'_, ()> {
        later(self.disk.remove_file(name.to_owned()))
    }

    fn sync(&self) -> Operation<'_, ()> {
        later(self.disk.sync_names())
    }

    fn sync_file(&self, name: &str) -> Operation<'_, ()> {
        let name = name.to_owned();
        later(async move {
            let number = self.disk.state().number(&name)?;
            self.disk.sync_file(number).await
        })
    }

    fn holds(&self, key: &Key, value: &[u8]) -> Operation<'_, bool> {
        later(self.disk.look_at_object(key.clone(), value.to_owned()))
    }
}

/// A file that a process has open.
#[derive(Debug)]
struct OpenFile {
    disk: Arc<Disk>,
    number: u64,
}

impl AppendFile for OpenFile {
    fn write_all_at<'a>(&'a self, bytes: &'a [u8], offset: u64) -> Operation<'a, ()> {
        let offset = usize::try_from(offset).expect("files are small");
        later(self.disk.write_file(self.number, bytes, offset))
    }

    fn set_len(&self, bytes: u64) -> Operation<'_, ()> {
        let bytes = usize::try_from(bytes).expect("files are small");
        later(self.disk.resize_file(self.number, bytes))
    }

    fn sync_data(&self) -> Operation<'_, ()> {
        later(self.disk.sync_file(self.number))
    }

    fn sync_all(&self) -> Operation<'_, ()> {
        later(self.disk.sync_file(self.number))
    }

    /// Nobody moves folders here.
    fn is_in_place(&self) -> Operation<'_, bool> {
        Operation::now(|| Ok(true))
    }
}

impl State {
    fn file(&mut self, number: u64) -> io::Result<&mut File> {
        self.files
            .get_mut(&number)
            .ok_or(io::ErrorKind::NotFound.into())
    }

    fn number(&self, name: &str) -> io::Result<u64> {
        let number = self.names.get(name).copied();
        number.ok_or(io::ErrorKind::NotFound.into())
    }
}

impl File {
    fn write(&mut self, bytes: &[u8], at: usize) {
        if self.written.len() < at + bytes.len() {
            self.written.resize(at + bytes.len(), 0);
        }
        self.written[at..at + bytes.len()].copy_from_slice(bytes);
        self.change(at..at + bytes.len());
    }

    fn resize(&mut self, length: usize) {
        let from = length.min(self.written.len());
        self.written.resize(length, 0);
        self.change(from..length.max(self.durable.len()));
    }

    fn change(&mut self, range: Range<usize>) {
        self.changed = if self.changed.is_empty() {
            range
        } else {
            self.changed.start.min(range.start)..self.changed.end.max(range.end)
        };
    }

    fn sync(&mut self) {
        self.durable.resize(self.written.len(), 0);
        // Whole sectors: what was forgotten beside it in one that is written again is written with it.
        let end = self.changed.end.next_multiple_of(SECTOR_BYTES);
        let to = end.min(self.written.len());
        let start = self.changed.start / SECTOR_BYTES * SECTOR_BYTES;
        let range = start.min(to)..to;
        let range = if self.changed.is_empty() { 0..0 } else { range };
        self.durable[range.clone()].copy_from_slice(&self.written[range]);
        self.changed = 0..0;
    }

    /// Makes some of it durable: any set of sectors, and perhaps the length. Returns how many were left out.
    fn sync_some(&mut self, random: &mut Random) -> u64 {
        if self.changed.is_empty() {
            return 0;
        }
        let mut left_out = 0;
        if self.durable.len() != self.written.len() {
            if random.chance(500) {
                self.durable.resize(self.written.len(), 0);
            } else {
                left_out += 1;
            }
        }
        let most = self.durable.len().min(self.written.len());
        let first = self.changed.start / SECTOR_BYTES * SECTOR_BYTES;
        for from in (first..self.changed.end.min(most)).step_by(SECTOR_BYTES) {
            let sector = from..(from + SECTOR_BYTES).min(most);
            if self.durable[sector.clone()] == self.written[sector.clone()] {
                continue;
            }
            if random.chance(500) {
                self.durable[sector.clone()].copy_from_slice(&self.written[sector]);
            } else {
                left_out += 1;
            }
        }
        left_out
    }

    /// Returns how many sectors were lost.
    fn lose_power(&mut self, random: &mut Random) -> u64 {
        let lost = self.sync_some(random);
        self.written.clone_from(&self.durable);
        self.changed = 0..0;
        lost
    }
}
