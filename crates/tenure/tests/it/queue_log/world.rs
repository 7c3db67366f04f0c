//! What the tests of the log share: a machine that remembers everything, and stores to keep its log on.

use std::sync::Arc;

use bytes::Bytes;
use tenure::Token;
use tenure::core::election::Term;
use tenure::core::{Incarnation, Lineage, Namespace};
use tenure::log::{Config, Error, Form, Log, Machine, Owner, Position, Record};
use tenure::store::Store;
use tenure::store::engine::file::File;
use tenure::store::engine::memory::Memory;
use tenure::store::wrap::faulty::{Faults, Faulty};

/// Remembers every record. A snapshot is all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Memo {
    pub(crate) records: Vec<String>,
    snapshot: Vec<String>,
    pub(crate) restored: usize,
    is_whole: bool,
    pub(crate) resets: usize,
}

impl Machine for Memo {
    type Command = Record;
    type Answer = usize;
    type Error = Error;

    fn replay(&mut self, position: Position, record: &[u8]) -> Result<(), Error> {
        let record = Record::new(record.to_vec())?;
        self.apply(position, record);
        Ok(())
    }

    fn apply(&mut self, position: Position, record: Record) -> usize {
        self.records.push(text(record.as_ref()));
        assert!(self.restored == 0 || self.is_whole);
        assert_eq!(
            position.0,
            self.records.len() as u64,
            "positions are numbers of records"
        );
        self.records.len()
    }

    fn reset(&mut self) {
        let resets = self.resets + 1;
        *self = Self {
            resets,
            ..Self::default()
        };
    }

    fn restore(&mut self, lines: &[u8]) -> Result<(), Error> {
        for line in text(lines).lines() {
            self.records.push(line.to_owned());
            self.restored += 1;
        }
        self.is_whole = false;
        Ok(())
    }

    fn restored(&mut self) -> Result<(), Error> {
        self.is_whole = true;
        Ok(())
    }

    fn begin_snapshot(&mut self) {
        self.snapshot = self.records.clone();
        self.snapshot.reverse();
    }

    fn snapshot_chunk(&mut self, bytes_max: usize) -> Option<Bytes> {
        let mut chunk = String::new();
        // Small pieces, so that there are many.
        while chunk.len() < bytes_max.min(100) {
            let Some(line) = self.snapshot.pop() else {
                break;
            };
            chunk += &line;
            chunk += "\n";
        }
        (!chunk.is_empty()).then(|| chunk.into())
    }
}

fn text(line: &[u8]) -> String {
    String::from_utf8(line.to_vec()).unwrap()
}

/// A namespace on a store.
pub(crate) struct World {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) namespace: Namespace,
    pub(crate) form: Form,
    pub(crate) folder: Option<tempfile::TempDir>,
}

impl World {
    pub(crate) fn memory() -> Self {
        Self::objects(Arc::new(Memory::new()))
    }

    pub(crate) fn objects(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            namespace: Namespace::new(crate::support::namespace()).unwrap(),
            form: Form::Objects,
            folder: None,
        }
    }

    pub(crate) async fn file() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(File::open(folder.path()).await.unwrap());
        Self {
            form: Form::Segments,
            folder: Some(folder),
            ..Self::objects(store)
        }
    }

    /// The file engine without its folder: one file per commit.
    pub(crate) async fn file_as_objects() -> Self {
        let file = Self::file().await;
        let store = without_folder(file.store);
        Self {
            folder: file.folder,
            ..Self::objects(store)
        }
    }

    pub(crate) async fn server(variable: &str) -> Option<Self> {
        let url = crate::support::url(variable)?;
        Some(Self::objects(tenure::store::open(&url).await.unwrap()))
    }

    /// The same log through another store.
    pub(crate) fn through(&self, store: Arc<dyn Store>) -> Self {
        Self {
            store,
            namespace: self.namespace.clone(),
            form: Form::Objects,
            folder: None,
        }
    }

    pub(crate) async fn lead(&self, term: u64, config: Config) -> Result<(Log, Memo), Error> {
        let mut machine = Memo::default();
        let log = Log::take_over(
            self.store.clone(),
            &self.namespace,
            owner(term),
            config,
            &mut machine,
            |_| {},
        )
        .await?;
        Ok((log, machine))
    }

    /// What a reader finds.
    pub(crate) async fn replay(&self) -> Result<Memo, Error> {
        let mut machine = Memo::default();
        let store = self.store.clone();
        let position = tenure::log::replay(
            store,
            &self.namespace,
            Config::default(),
            &mut machine,
            |_| {},
        )
        .await?;
        assert_eq!(position.0, machine.records.len() as u64);
        Ok(machine)
    }

    pub(crate) fn key(&self, rest: &str) -> tenure::store::Key {
        tenure::store::Key::new(format!("{}/queue/{rest}", self.namespace)).unwrap()
    }

    pub(crate) fn place(&self, seq: u64) -> tenure::store::Key {
        self.key(&format!("log/{seq:020}"))
    }

    /// The names of the segments, in order.
    pub(crate) fn segments(&self) -> Vec<std::path::PathBuf> {
        let root = self.folder.as_ref().unwrap().path();
        let folder = root.join(self.namespace.as_str()).join("queue/segments");
        let mut paths: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        paths.sort();
        paths
    }
}

/// What a segment holds, without the zeros that its leader has filled it with.
pub(crate) fn frames_of(path: &std::path::Path) -> Vec<u8> {
    let mut file = std::fs::read(path).unwrap();
    let end = file.iter().rposition(|&byte| byte != 0);
    file.truncate(end.map_or(0, |last| last + 1));
    file
}

/// The same store; a wrapper that can lose requests has no folder to write to beside it.
pub(crate) fn without_folder(store: Arc<dyn Store>) -> Arc<dyn Store> {
    Arc::new(Faulty::new(store, Faults::default(), 1).unwrap())
}

pub(crate) fn owner(term: u64) -> Owner {
    Owner {
        token: Token {
            lineage: Lineage(1),
            term: Term(term),
        },
        incarnation: Incarnation(term.into()),
    }
}

pub(crate) fn record(text: &str) -> Record {
    Record::new(format!("{{\"record\":\"{text}\"}}")).unwrap()
}

pub(crate) fn records(texts: &[&str]) -> Vec<Record> {
    texts.iter().map(|text| record(text)).collect()
}

/// What [`Memo`] makes of records.
pub(crate) fn lines(texts: &[&str]) -> Vec<String> {
    texts
        .iter()
        .map(|text| format!("{{\"record\":\"{text}\"}}"))
        .collect()
}
