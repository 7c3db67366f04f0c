//! A bucket in memory, with the XML interface that S3 and Google Cloud Storage share.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::BufReader;
use tokio::net::TcpStream;

use crate::date::Moment;
use crate::http1::Message;

/// The page size of listings in both services.
const PAGE_ENTRIES_MAX: usize = 1000;

/// How the bucket handles conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conditions {
    /// It obeys `x-goog-if-generation-match`.
    Generations,
    /// It ignores conditions, and accepts every write.
    Ignored,
}

#[derive(Debug)]
pub(crate) struct Bucket {
    name: String,
    conditions: Conditions,
    requests: AtomicUsize,
    /// In seconds.
    date_ahead: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<String, Stored>,
    /// Counts the writes, so that no generation is reused.
    generation: u64,
}

#[derive(Debug, Clone)]
struct Stored {
    value: Vec<u8>,
    etag: String,
    generation: u64,
    written: Moment,
}

impl Bucket {
    pub(crate) fn new(name: &str, conditions: Conditions) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            conditions,
            requests: AtomicUsize::new(0),
            date_ahead: AtomicU64::new(0),
            state: Mutex::default(),
        })
    }

    /// Adds an object without a client, under any name.
    pub(crate) fn insert(&self, name: &str, value: &[u8]) {
        self.with_state(|state| {
            state.write(name, value.to_owned());
        });
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.with_state(|state| state.objects.keys().cloned().collect())
    }

    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    /// Sends dates that are this many seconds ahead, like a proxy with its own clock. Stored times do not change.
    pub(crate) fn set_date_ahead(&self, seconds: u64) {
        self.date_ahead.store(seconds, Ordering::Relaxed);
    }

    fn date_ahead(&self) -> u64 {
        self.date_ahead.load(Ordering::Relaxed)
    }

    /// Answers the requests of one connection.
    pub(crate) async fn serve(self: Arc<Self>, mut stream: BufReader<TcpStream>) -> io::Result<()> {
        while let Some(request) = Message::read(&mut stream, false).await? {
            self.requests.fetch_add(1, Ordering::Relaxed);
            let answer = self.answer(&request);
            let length = answer.body.len().to_string();
            let mut answer = answer
                .with_header(
                    "date",
                    Moment::ahead(self.date_ahead().cast_signed()).http(),
                )
                .with_header("content-length", length);
            if request.method() == "HEAD" {
                answer.body.clear();
            }
            answer.write(&mut stream).await?;
            if request.header("connection") == Some("close") {
                break;
            }
        }
        Ok(())
    }

    fn answer(&self, request: &Message) -> Message {
        let (path, query) = request.target();
        let path = percent_decoded(path);
        let path = path.strip_prefix('/').unwrap_or(&path);
        let (bucket, name) = path.split_once('/').unwrap_or((path, ""));
        if bucket != self.name {
            return error("404 Not Found", "NoSuchBucket");
        }
        match (request.method(), name) {
            ("GET", "") => self.list(query),
            ("GET" | "HEAD", name) => self.get(name, request.header("if-none-match")),
            ("PUT", name) if !name.is_empty() => self.put(name, request),
            ("DELETE", name) => self.delete(name),
            _ => error("405 Method Not Allowed", "MethodNotAllowed"),
        }
    }

    fn get(&self, name: &str, unless: Option<&str>) -> Message {
        let stored = self.with_state(|state| state.objects.get(name).cloned());
        match stored {
            None => error("404 Not Found", "NoSuchKey"),
            Some(stored) if unless == Some(&stored.etag) => {
                stored.describe(Message::answer("304 Not Modified"))
            }
            Some(stored) => {
                let answer = stored.describe(Message::answer("200 OK"));
                answer.with_body(stored.value)
            }
        }
    }

    fn put(&self, name: &str, request: &Message) -> Message {
        self.with_state(|state| {
            let current = state
                .objects
                .get(name)
                .map_or(0, |stored| stored.generation);
            let holds = match self.conditions {
                Conditions::Ignored => true,
                Conditions::Generations => request
                    .header("x-goog-if-generation-match")
                    .is_none_or(|expected| expected == current.to_string()),
            };
            if !holds {
                return error("412 Precondition Failed", "PreconditionFailed");
            }
            let stored = state.write(name, request.body.clone());
            stored.describe(Message::answer("200 OK"))
        })
    }

    fn delete(&self, name: &str) -> Message {
        let removed = self.with_state(|state| state.objects.remove(name));
        // S3 always answers this, Google Cloud Storage only if the object existed.
        if removed.is_some() || self.conditions == Conditions::Ignored {
            Message::answer("204 No Content")
        } else {
            error("404 Not Found", "NoSuchKey")
        }
    }

    fn list(&self, query: &str) -> Message {
        let pairs: BTreeMap<_, _> = url::form_urlencoded::parse(query.as_bytes()).collect();
        let prefix = pairs.get("prefix").map_or("", |prefix| prefix);
        let after = pairs.get("continuation-token").or(pairs.get("start-after"));
        let asked = pairs.get("max-keys").and_then(|most| most.parse().ok());
        let most = asked.unwrap_or(PAGE_ENTRIES_MAX).min(PAGE_ENTRIES_MAX);
        let from = match after {
            Some(after) if **after >= *prefix => Bound::Excluded(&**after),
            _ => Bound::Included(prefix),
        };
        let mut entries: Vec<(String, Stored)> = self.with_state(|state| {
            let range = state.objects.range::<str, _>((from, Bound::Unbounded));
            range
                .take_while(|(name, _)| name.starts_with(prefix))
                .take(most + 1)
                .map(|(name, stored)| (name.clone(), stored.clone()))
                .collect()
        });
        let truncated = entries.len() > most;
        entries.truncate(most);

        let mut xml = format!("<ListBucketResult><IsTruncated>{truncated}</IsTruncated>");
        for (name, stored) in &entries {
            let (name, size, written) = (escaped(name), stored.value.len(), stored.written.iso());
            let etag = escaped(&stored.etag);
            let _ = write!(
                xml,
                "<Contents><Key>{name}</Key><Size>{size}</Size>\
                 <LastModified>{written}</LastModified><ETag>{etag}</ETag></Contents>"
            );
        }
        if let Some((last, _)) = entries.last().filter(|_| truncated) {
            let last = escaped(last);
            let _ = write!(xml, "<NextContinuationToken>{last}</NextContinuationToken>");
        }
        xml.push_str("</ListBucketResult>");
        Message::answer("200 OK").with_body(xml)
    }

    fn with_state<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl State {
    fn write(&mut self, name: &str, value: Vec<u8>) -> &Stored {
        self.generation += 1;
        let stored = Stored {
            etag: format!("\"{:032x}\"", hash(&value)),
            value,
            generation: self.generation,
            written: Moment::now(),
        };
        self.objects
            .entry(name.to_owned())
            .insert_entry(stored)
            .into_mut()
    }
}

impl Stored {
    fn describe(&self, answer: Message) -> Message {
        answer
            .with_header("etag", &self.etag)
            .with_header("x-goog-generation", self.generation.to_string())
            .with_header("last-modified", self.written.http())
    }
}

/// An error as both services write it.
fn error(status: &str, code: &str) -> Message {
    Message::answer(status).with_body(format!("<Error><Code>{code}</Code></Error>"))
}

/// A hash of only the content, like the services' ETags: FNV-1a with 128 bits.
fn hash(value: &[u8]) -> u128 {
    let start = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    value.iter().fold(start, |hash: u128, &byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let hex = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let decoded = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (first, decoded) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
