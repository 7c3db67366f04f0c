//! Objects in a bucket of S3, of an S3-compatible service or of Google Cloud Storage, or in a container of Azure Blob
//! Storage.
//!
//! | | S3 | Google Cloud Storage | Azure |
//! | --- | --- | --- | --- |
//! | a write is conditional on | `ETag` | generation | `ETag` |
//! | tested on | Ceph 16, SeaweedFS 4 | our own test double | Azurite 3 |
//!
//! **Versions** are ETags. On S3 and Google Cloud Storage an ETag is a hash of the content, so every value carries a
//! stamp that no other write has, and no ETag ever comes back. Google Cloud Storage makes a write conditional on a
//! generation, which a listing does not show: a write on a version from a listing reads the generation first, with one
//! more request.
//!
//! **Writes** are sent once, by every layer, and the answer decides; without an answer they are unknown
//! (`object/http.rs`, `object/outcome.rs`). This needs a network that repeats nothing: do not put a proxy that retries
//! requests in front of the bucket.
//!
//! **Time.** The server's `Date` minus its `Last-Modified` minus a second of rounding is shown to people. No decision
//! may depend on it: a proxy, or one of several gateways, may have set `Date` by its own clock. There are no hints:
//! callers poll.
//!
//! **Assumed** is what the services promise: atomic conditional writes, and reads and listings that see every write
//! that is done. Not every S3-compatible service does that: `tenure store check URL` finds out. Lifecycle rules must
//! not apply to the prefix.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, GetOptions, ObjectMeta, PutMode, PutOptions, PutPayload, UpdateVersion,
};
use tokio::time::timeout;
use url::Url;

use self::config::{Client, Clients, Settings};
use self::http::{Ending, Seen, witness};
use self::service::Service;
use crate::stamp::{STAMP_BYTES_MAX, Stamp};
use crate::{
    Capabilities, Cause, Change, Description, Error, Expect, Key, Object, PAGE_ENTRIES_MAX, Page,
    Prefix, Store, VALUE_BYTES_MAX, Version, Watch, check_value,
};

mod answer;
mod config;
mod date;
mod http;
mod list;
mod outcome;
mod profile;
mod service;

/// Whether a URL can be parsed, for the fuzz tests.
#[cfg(test)]
pub(crate) fn parse_url(url: &Url) -> Result<(), Error> {
    Settings::parse(url).map(drop)
}

/// The services' ETags have at most about 40 characters.
const ETAG_BYTES_MAX: usize = 256;

/// A store in a bucket.
pub struct Objects {
    service: Service,
    prefix: Prefix,
    is_quoted: bool,
    location: String,
    reader: Arc<dyn Client>,
    writer: Arc<dyn Client>,
    /// Whether the service is known to list in an order other than that of the keys' bytes.
    has_other_order: AtomicBool,
}

impl Objects {
    /// Opens `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX` or `az://CONTAINER/PREFIX`, and checks with one small listing
    /// that the bucket is there and may be read. If that shows no store, up to seven more listings find out whether
    /// there is one below the prefix, or around it. If there is, a new one is created all the same, with a warning.
    /// Credentials and endpoints come from the environment variables that the services' own tools use.
    ///
    /// | parameter | |
    /// | --- | --- |
    /// | `endpoint=URL` | another address than the service's own; `http://` only if it is named here or in a variable |
    /// | `region=NAME` | S3 only, instead of `AWS_REGION` |
    /// | `if_match=unquoted` | S3 only: ETags without quotes in conditions, as Ceph 16 wants them |
    ///
    /// `SSL_CERT_FILE` names the certificates of a private authority.
    pub async fn open(url: &Url) -> Result<Self, Error> {
        Self::open_with(url, variables()).await
    }

    /// As [`Objects::open`]. Refused where there is no object of a store. If there are stores below the prefix, the
    /// hint names them.
    pub async fn open_existing(url: &Url) -> Result<Self, Error> {
        Self::open_existing_with(url, variables()).await
    }

    /// Opens a bucket, or part of one, that holds another program's objects. Nothing is sent yet, and no store is
    /// looked for.
    pub fn open_foreign(url: &Url) -> Result<Self, Error> {
        Self::new(Settings::parse(url)?, variables())
    }

    /// As [`Objects::open_existing`], with these instead of the process's environment variables.
    pub async fn open_existing_with(
        url: &Url,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, Error> {
        let store = Self::new(Settings::parse(url)?, variables)?;
        let survey = store.survey(PAGE_ENTRIES_MAX).await?;
        let hint = survey.hint();
        // If no store was found among very many other objects, there may still be one.
        if survey.is_store || (!survey.is_whole && hint.is_none()) {
            return Ok(store);
        }
        let doing = format!("opening {}", store.location);
        Err(match hint {
            Some(hint) => Error::no_store_but(doing, &hint),
            None => Error::no_store(doing),
        })
    }

    /// As [`Objects::open`], with these instead of the process's environment variables.
    pub async fn open_with(
        url: &Url,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, Error> {
        let store = Self::new(Settings::parse(url)?, variables)?;
        let survey = store.survey(1).await?;
        if !survey.is_store
            && let Some(hint) = survey.hint()
        {
            tracing::warn!(
                store = store.location,
                "a new store is made here, though {hint}: if that is the one you mean, stop and correct the URL"
            );
        }
        Ok(store)
    }

    /// Makes the clients; nothing is sent yet.
    fn new(
        mut settings: Settings,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, Error> {
        let Clients { reader, writer } = settings.connect(variables)?;
        Ok(Self {
            service: settings.service,
            location: settings.location(),
            is_quoted: settings.is_quoted,
            // The mark of a directory bucket of S3 Express.
            has_other_order: AtomicBool::new(settings.bucket.ends_with("--x-s3")),
            prefix: settings.prefix,
            reader,
            writer,
        })
    }

    /// Where a key's object is. Keys are made of characters that need no escaping.
    fn path(&self, key: &Key) -> Path {
        Path::parse(format!("{}{key}", self.prefix)).expect("every key is a path")
    }

    /// A version as it is sent in a condition; `None` if no service could have produced it, so that no object can have
    /// it.
    fn condition(&self, version: &Version) -> Option<String> {
        let tag = version.tag();
        if !is_plain_tag(tag) {
            return None;
        }
        Some(if self.is_quoted {
            format!("\"{tag}\"")
        } else {
            tag.to_owned()
        })
    }

    /// Reads an object unless its version is still `known`.
    async fn read(&self, key: &Key, known: Option<&Version>) -> Result<Change, Error> {
        let options = GetOptions {
            if_none_match: known.and_then(|version| self.condition(version)),
            ..GetOptions::default()
        };
        match witness(self.fetch(&self.path(key), options)).await {
            (Ok((meta, Some(stored))), seen) => Ok(Change::Changed(Object {
                value: Stamp::split(stored).0,
                version: self.version(key, meta.e_tag.as_deref(), meta.version.as_deref())?,
                age: None,
                shown_age: age(&seen),
            })),
            (Ok((meta, None)), _) => Err(Error::Corrupt {
                location: format!("{key} in {}", self.location),
                what: format!("it has {} bytes", meta.size),
            }),
            (Err(_), seen) if outcome::says_unchanged(&seen) => Ok(Change::Unchanged),
            (Err(_), seen) if outcome::says_missing(&seen) => Ok(Change::Missing),
            (Err(_), seen) => {
                let doing = format!("reading {key}");
                Err(outcome::of_read(self.service, doing, &seen))
            }
        }
    }

    /// The head of an object and, unless it is too large to be ours, its bytes. What went wrong is judged by what was
    /// seen on the wire.
    async fn fetch(
        &self,
        path: &Path,
        options: GetOptions,
    ) -> Result<(ObjectMeta, Option<Bytes>), Cause> {
        let result = self.reader.get_opts(path, options).await?;
        let meta = result.meta.clone();
        if meta.size > (VALUE_BYTES_MAX + STAMP_BYTES_MAX) as u64 {
            return Ok((meta, None));
        }
        let stored = timeout(http::patience(meta.size), result.bytes()).await??;
        Ok((meta, Some(stored)))
    }

    /// The version that an answer names. Listings of Azure have bare ETags, everything else has them
    /// in quotes, and a gateway that compresses marks them as weak; versions have them bare.
    fn version(
        &self,
        key: &Key,
        etag: Option<&str>,
        generation: Option<&str>,
    ) -> Result<Version, Error> {
        let tag = etag.unwrap_or_default();
        let tag = tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"');
        if !is_plain_tag(tag) {
            return Err(Error::refused(
                format!("reading {key}"),
                "use a service that sends an ETag with every object",
                "the answer has no ETag",
            ));
        }
        Ok(match generation {
            Some(generation) if self.service == Service::Gcs => {
                Version::with_guard(tag, generation)
            }
            _ => Version::new(tag),
        })
    }

    /// The condition that a PUT sends; a conflict if that is clear before it is sent.
    async fn mode(&self, key: &Key, expect: &Expect) -> Result<PutMode, Error> {
        let Expect::Version(version) = expect else {
            return Ok(PutMode::Create);
        };
        let condition = self.condition(version);
        let condition = condition.ok_or_else(|| Error::conflict(key))?;
        if self.service != Service::Gcs {
            return Ok(PutMode::Update(UpdateVersion {
                e_tag: Some(condition),
                version: None,
            }));
        }
        let generation = match version.guard() {
            Some(guard) if guard.parse::<u64>().is_ok() => guard.to_owned(),
            Some(_) => return Err(Error::conflict(key)),
            None => self.generation(key, version).await?,
        };
        Ok(PutMode::Update(UpdateVersion {
            e_tag: None,
            version: Some(generation),
        }))
    }

    /// The generation of a version that comes from a listing, which shows ETags only.
    async fn generation(&self, key: &Key, version: &Version) -> Result<String, Error> {
        let options = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        let path = self.path(key);
        let (meta, seen) = witness(self.reader.get_opts(&path, options)).await;
        let meta = match meta {
            Ok(result) => result.meta,
            Err(_) if outcome::says_not_found(&seen) => return Err(Error::conflict(key)),
            Err(_) => {
                let doing = format!("writing {key}");
                return Err(outcome::of_read(self.service, doing, &seen));
            }
        };
        let current = self.version(key, meta.e_tag.as_deref(), meta.version.as_deref())?;
        match current.guard() {
            Some(generation) if current == *version => Ok(generation.to_owned()),
            Some(_) => Err(Error::conflict(key)),
            None => Err(Error::refused(
                format!("writing {key}"),
                "use the endpoint of Google Cloud Storage itself",
                "the answer has no generation",
            )),
        }
    }
}

/// The process's environment, as a list. An iterator over it cannot move between threads, and futures must.
fn variables() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// Whether this can be an ETag. It goes into a header, where it must be one single ETag and nothing else.
fn is_plain_tag(tag: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\"*,".contains(&byte);
    (1..=ETAG_BYTES_MAX).contains(&tag.len()) && tag.bytes().all(is_plain)
}

/// The age that the answer to a read shows.
fn age(seen: &Seen) -> Option<Duration> {
    match &seen.last {
        Some(Ending::Answered(answer)) => answer.age,
        _ => None,
    }
}

#[async_trait]
impl Store for Objects {
    fn describe(&self) -> Description {
        Description {
            engine: self.service.engine(),
            location: self.location.clone(),
            capabilities: Capabilities {
                age: false,
                hints: false,
                durable: true,
            },
        }
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>, Error> {
        match self.read(key, None).await? {
            Change::Changed(object) => Ok(Some(object)),
            Change::Missing => Ok(None),
            Change::Unchanged => Err(Error::unavailable(
                format!("reading {key}"),
                "the service answered 304 to a read without a condition",
            )),
        }
    }

    async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, Error> {
        let change = self.read(key, Some(version)).await?;
        // A service that ignores the condition costs a transfer, but the result is still right.
        Ok(match change {
            Change::Changed(object) if object.version == *version => Change::Unchanged,
            change => change,
        })
    }

    async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, Error> {
        check_value(key, &value)?;
        let mut options = PutOptions::from(self.mode(key, expect).await?);
        if self.service == Service::Gcs {
            // Without this, what everyone may read is served from caches for an hour.
            options.attributes = Attributes::from_iter([(Attribute::CacheControl, "no-store")]);
        }
        let stamp = Bytes::from(Stamp::new(None).to_bytes());
        let payload = PutPayload::from_iter([value, stamp]);
        let path = self.path(key);
        match witness(self.writer.put_opts(&path, payload, options)).await {
            (Ok(done), seen) => self
                .version(key, done.e_tag.as_deref(), done.version.as_deref())
                .map_err(|_| outcome::of_put(self.service, key, expect, &seen)),
            (Err(_), seen) => Err(outcome::of_put(self.service, key, expect, &seen)),
        }
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        let path = self.path(key);
        let paths = stream::once(async { Ok(path) }).boxed();
        let (done, seen) = witness(self.writer.delete_stream(paths).collect::<Vec<_>>()).await;
        let is_done = done.iter().all(Result::is_ok);
        match outcome::of_delete(self.service, key, is_done, &seen) {
            None => Ok(()),
            Some(error) => Err(error),
        }
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, Error> {
        self.list_page(prefix, after).await
    }

    fn watch(&self, _prefix: &Prefix) -> Option<Watch> {
        None
    }
}

impl fmt::Debug for Objects {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The clients hold credentials.
        write!(formatter, "Objects({})", self.location)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_word_is_taken_for_an_etag() {
        for tag in [
            "9b2cf535f27731c974343645a3985328-2",
            "0x8DCE0B4F",
            "CJ+/=_.",
        ] {
            assert!(is_plain_tag(tag), "{tag}");
        }
        for tag in [
            "",
            "*",
            "a\"b",
            "a, b",
            "a b",
            "a\r\nX: y",
            "ü",
            &"x".repeat(257),
        ] {
            assert!(!is_plain_tag(tag), "{tag:?}");
        }
    }

    /// A shared access signature is part of every URL, so every error about a request could hold it.
    #[tokio::test]
    async fn no_operation_repeats_a_signature_in_its_error() {
        // Nothing listens on port 1.
        let url = Url::parse("az://container?endpoint=http://127.0.0.1:1/account").unwrap();
        let signature = "?sv=2022-11-02&sp=rwdl&se=2099-01-01T00:00:00Z&sig=hunter2%3D";
        let variables = [
            ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
            ("AZURE_STORAGE_SAS_TOKEN", signature),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let store = Objects::new(Settings::parse(&url).unwrap(), variables).unwrap();
        let key = Key::new("a/b").unwrap();
        let version = Version::new("x");
        let replace = Expect::Version(version.clone());
        let errors = [
            store.survey(1).await.unwrap_err(),
            store.get(&key).await.unwrap_err(),
            store.get_if_changed(&key, &version).await.unwrap_err(),
            store.put(&key, Bytes::new(), &replace).await.unwrap_err(),
            store.delete(&key).await.unwrap_err(),
            store.list(&Prefix::root(), None).await.unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
            let cause = std::error::Error::source(&error).unwrap();
            for text in [format!("{error} {error:?}"), format!("{cause} {cause:?}")] {
                assert!(
                    !text.contains("hunter2") && !text.contains("sig="),
                    "{text}"
                );
            }
        }
        assert_eq!(
            format!("{store:?}"),
            "Objects(az://container at 127.0.0.1:1)"
        );
    }
}
