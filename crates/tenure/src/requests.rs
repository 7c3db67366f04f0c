//! Carries out the core's requests on a store.

use std::time::Duration;

use bytes::Bytes;
use tenure_core::cluster::registry::Listed;
use tenure_core::cluster::{Assignments, Drains};
use tenure_core::election::{Fence, Lease, Writer};
use tenure_core::node::{Answer, Request};
use tenure_core::polls;
use tenure_core::session::Record;
use tenure_core::{ElectionName, Expect, Incarnation, Nonce, Read, RecordError, Version, Written};
use tenure_store::{Change, Entry, Error, Key, Object, Outage, Page, Prefix, Store, list_all};
use tokio::time::timeout;

use crate::keys::Keys;

/// One for the process: what counts is that its log says it once.
pub(crate) static OUTAGE: Outage = Outage::new();

/// Writes the lease of the cluster as it is, so that its leader, which reads it anyway, looks who has come. Expects the version
/// that was read: whatever has changed it meanwhile has done the same.
pub(crate) async fn ring(
    store: &dyn Store,
    keys: &Keys,
    me: Incarnation,
    nonce: Nonce,
) -> Result<(), Error> {
    let key = keys.lease(&ElectionName::cluster());
    let Some(object) = store.get(&key).await? else {
        return Ok(());
    };
    let Ok(lease) = Lease::decode(&object.value) else {
        return Ok(());
    };
    if lease.holder().is_none_or(|holder| holder.incarnation == me) {
        return Ok(());
    }
    let writer = Writer {
        incarnation: me,
        // Unlike any that this process writes as a candidate, which count from 1.
        counter: 0,
        nonce,
    };
    let value = Bytes::from(Lease { writer, ..lease }.encode());
    let expect = tenure_store::Expect::Version(object.version);
    match store.put(&key, value, &expect).await {
        Ok(_) | Err(Error::Conflict { .. } | Error::Unknown { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Asks the store and gives an answer in any case: silence for longer than `within` is a lost answer.
pub(crate) async fn carry_out(
    store: &dyn Store,
    keys: &Keys,
    request: Request,
    within: Duration,
) -> Answer {
    match request {
        Request::ReadSession { holder, known } => Answer::Session(
            read(store, &keys.session(&holder), known, within, Record::decode).await,
        ),
        Request::ReadLease { election, known } => {
            let key = keys.lease(&election);
            Answer::Lease(aged_lease(
                read(store, &key, known, within, Lease::decode).await,
            ))
        }
        Request::ReadFence { election } => {
            Answer::Fence(read(store, &keys.fence(&election), None, within, Fence::decode).await)
        }
        Request::WriteSession { record, expect } => {
            write(
                store,
                &keys.session(&record.holder()),
                record.encode(),
                &expect,
                within,
            )
            .await
        }
        Request::WriteLease {
            election,
            lease,
            expect,
        } => {
            write(
                store,
                &keys.lease(&election),
                lease.encode(),
                &expect,
                within,
            )
            .await
        }
        Request::WriteFence {
            election,
            fence,
            expect,
        } => {
            write(
                store,
                &keys.fence(&election),
                fence.encode(),
                &expect,
                within,
            )
            .await
        }
        Request::Look { known } | Request::ReadAssignments { known } => {
            let key = keys.assignments();
            Answer::Assignments(read(store, &key, known, within, Assignments::decode).await)
        }
        Request::WriteAssignments {
            assignments,
            expect,
        } => {
            let value = assignments.encode();
            write(store, &keys.assignments(), value, &expect, within).await
        }
        Request::ReadDrains { known } => {
            Answer::Drains(read(store, &keys.drains(), known, within, Drains::decode).await)
        }
        Request::ListSessions => Answer::Sessions(list_sessions(store, keys, within).await),
        Request::DeleteSession { holder } => {
            let key = keys.session(&holder);
            if let Ok(Err(error)) = timeout(within, store.delete(&key)).await {
                tracing::warn!(%key, error = %Chain(&error), "a dead session was not removed");
            }
            Answer::Deleted
        }
    }
}

async fn list_sessions(store: &dyn Store, keys: &Keys, within: Duration) -> Option<Vec<Listed>> {
    match timeout(within, list_all(store, &keys.nodes())).await {
        Ok(Ok(entries)) => Some(entries.iter().filter_map(listed).collect()),
        Ok(Err(error)) => {
            OUTAGE.failed(format_args!("listing the sessions: {}", Chain(&error)));
            None
        }
        Err(_) => {
            OUTAGE.failed(format_args!(
                "listing the sessions: no answer within {within:?}"
            ));
            None
        }
    }
}

fn listed(entry: &Entry) -> Option<Listed> {
    let (node, incarnation) = Keys::session_of(&entry.key)?;
    Some(Listed {
        node,
        incarnation,
        version: from_store(&entry.version),
    })
}

/// An age counts from when the write was begun, by its writer. That may be long before anybody could see it: its writer
/// may wait for its turn, or be stopped. A holder that has looked in between trusts itself by what it saw then, so the
/// age of a request to it says nothing of how long it has known. A reservation is trusted by nobody.
fn aged_lease(mut read: Read<Lease>) -> Read<Lease> {
    if let Read::Found { record, age, .. } = &mut read
        && record.reserved_for().is_none()
    {
        *age = None;
    }
    read
}

/// One page of a listing; `None` if it did not come.
pub(crate) async fn list(
    store: &dyn Store,
    prefix: &Prefix,
    after: Option<&Key>,
    within: Duration,
) -> Option<Page> {
    match timeout(within, store.list(prefix, after)).await {
        Ok(Ok(page)) => {
            OUTAGE.answered();
            Some(page)
        }
        Ok(Err(error)) => {
            OUTAGE.failed(format_args!("listing {prefix}: {}", Chain(&error)));
            None
        }
        Err(_) => {
            OUTAGE.failed(format_args!(
                "listing {prefix}: no answer within {within:?}"
            ));
            None
        }
    }
}

/// The leases on a page of a listing, as the core knows their versions.
pub(crate) fn leases(page: Page) -> polls::Page<Key> {
    let entries = page.entries.into_iter();
    polls::Page {
        leases: entries
            .map(|entry| (entry.key, from_store(&entry.version)))
            .collect(),
        more: page.more,
    }
}

pub(crate) async fn read<T>(
    store: &dyn Store,
    key: &Key,
    known: Option<Version>,
    within: Duration,
    decode: fn(&[u8]) -> Result<T, RecordError>,
) -> Read<T> {
    let result = timeout(within, async {
        match &known {
            None => store.get(key).await.map(|object| match object {
                None => Change::Missing,
                Some(object) => Change::Changed(object),
            }),
            Some(version) => store.get_if_changed(key, &to_store(version)).await,
        }
    });
    let result = result.await;
    if let Ok(Ok(_)) = &result {
        OUTAGE.answered();
    }
    match result {
        Ok(Ok(Change::Missing)) => Read::Missing,
        // The age of a version that was known before has been told with it.
        Ok(Ok(Change::Unchanged)) => Read::Unchanged { age: None },
        Ok(Ok(Change::Changed(Object {
            value,
            version,
            age,
            ..
        }))) => match decode(&value) {
            Ok(record) => Read::Found {
                record,
                version: from_store(&version),
                age,
            },
            Err(error) => {
                tracing::error!(%key, %error, "cannot read a stored record");
                Read::Unreadable {
                    version: from_store(&version),
                }
            }
        },
        Ok(Err(error)) => {
            OUTAGE.failed(format_args!("reading {key}: {}", Chain(&error)));
            match error {
                // A process that held anything there no longer does, and must not wait for its trust to end.
                Error::Gone { .. } => Read::Missing,
                _ => Read::Failed,
            }
        }
        Err(_) => {
            OUTAGE.failed(format_args!("reading {key}: no answer within {within:?}"));
            Read::Failed
        }
    }
}

pub(crate) async fn write(
    store: &dyn Store,
    key: &Key,
    value: Vec<u8>,
    expect: &Expect,
    within: Duration,
) -> Answer {
    let expect = match expect {
        Expect::Absent => tenure_store::Expect::Absent,
        Expect::Version(version) => tenure_store::Expect::Version(to_store(version)),
    };
    Answer::Written(
        match timeout(within, store.put(key, Bytes::from(value), &expect)).await {
            Ok(Ok(version)) => {
                OUTAGE.answered();
                Written::Done(from_store(&version))
            }
            Ok(Err(Error::Conflict { .. })) => Written::Conflict,
            Ok(Err(error @ Error::Gone { .. })) => {
                OUTAGE.failed(format_args!("writing {key}: {}", Chain(&error)));
                match expect {
                    // What was expected is not there any more: the writer looks, and finds nothing.
                    tenure_store::Expect::Version(_) => Written::Conflict,
                    // Nothing can be made there either, and a retry waits first.
                    tenure_store::Expect::Absent => Written::NotApplied,
                }
            }
            Ok(Err(error)) => {
                OUTAGE.failed(format_args!("writing {key}: {}", Chain(&error)));
                if error.is_not_applied() {
                    Written::NotApplied
                } else {
                    Written::Unknown
                }
            }
            Err(_) => {
                OUTAGE.failed(format_args!("writing {key}: no answer within {within:?}"));
                Written::Unknown
            }
        },
    )
}

/// The core's versions are one text; a line break, which no tag contains, keeps tag and guard apart.
pub(crate) fn from_store(version: &tenure_store::Version) -> Version {
    match version.guard() {
        None => Version::new(version.tag()),
        Some(guard) => Version::new(format!("{}\n{guard}", version.tag())),
    }
}

pub(crate) fn to_store(version: &Version) -> tenure_store::Version {
    match version.as_str().split_once('\n') {
        None => tenure_store::Version::new(version.as_str()),
        Some((tag, guard)) => tenure_store::Version::with_guard(tag, guard),
    }
}

/// An error with its causes, in one line.
pub(crate) struct Chain<'a>(pub(crate) &'a dyn std::error::Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(formatter, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}
