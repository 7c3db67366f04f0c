//! Listings in byte order of the keys, page by page.
//!
//! S3, Google Cloud Storage and Azure list in byte order and start where they are asked to, so a page
//! is one request. Services that keep folders (SeaweedFS, an Azure account with a hierarchical
//! namespace) walk through them, and so list `a/b` before `a-b`; directory buckets of S3 Express have
//! no order at all; and the emulator of Azure starts at the beginning every time. There all of the
//! prefix is listed and sorted for every page, which is right and slow.
//!
//! Such a service is known by name, or found out: if each page is in byte order and lies behind the one
//! before, then all pages together are. The first that is not gives the service away for good. A
//! caller that starts at a key of its own choosing, on a service that is not known by name and has
//! not shown itself yet, may miss entries; `tenure store check` shows it.

use std::sync::atomic::Ordering;

use object_store::ObjectMeta;
use object_store::list::PaginatedListOptions;

use super::Objects;
use super::http::{Ending, Seen, witness};
use super::outcome;
use crate::{Entry, Error, Key, PAGE_ENTRIES_MAX, Page, Prefix};

/// Where a listing goes on.
type Token = Option<String>;

impl Objects {
    /// Checks that the bucket can be listed. Whether there is an object of a store, as far as so
    /// many tell.
    pub(super) async fn try_list(&self, entries_max: usize) -> Result<bool, Error> {
        let doing = format!("opening {}", self.location);
        let (objects, more, seen) = self
            .list_once(&doing, self.prefix.as_str(), None, None, entries_max)
            .await?;
        let walks_folders =
            matches!(&seen.last, Some(Ending::Answered(answer)) if answer.walks_folders);
        self.has_other_order
            .fetch_or(walks_folders, Ordering::Relaxed);
        // Every object of a store is below a namespace. What else is in a bucket mostly is not, or has no key.
        let is_ours = |object: &ObjectMeta| {
            let rest = object.location.as_ref().strip_prefix(self.prefix.as_str());
            let key = rest.and_then(|rest| Key::new(rest).ok());
            key.is_some_and(|key| key.segments().nth(1).is_some())
        };
        Ok(more.is_some() || objects.iter().any(is_ours))
    }

    pub(super) async fn list_page(
        &self,
        prefix: &Prefix,
        after: Option<&Key>,
    ) -> Result<Page, Error> {
        if !self.has_other_order.load(Ordering::Relaxed) {
            if let Some(page) = self.list_in_order(prefix, after).await? {
                return Ok(page);
            }
            tracing::warn!(
                store = self.location,
                "the service does not list in order, or not from where it should, so every page costs a \
                 full listing"
            );
            self.has_other_order.store(true, Ordering::Relaxed);
        }
        self.list_and_sort(prefix, after).await
    }

    /// A page from a service that lists in byte order; `None` if it turns out that it does not.
    async fn list_in_order(
        &self,
        prefix: &Prefix,
        after: Option<&Key>,
    ) -> Result<Option<Page>, Error> {
        let mut token = None;
        loop {
            let (entries, next) = self.list_keys(prefix, after, token).await?;
            let behind = after
                .into_iter()
                .chain(entries.iter().map(|entry| &entry.key));
            if !behind.is_sorted_by(|left, right| left < right) {
                return Ok(None);
            }
            // A page may hold nothing but foreign objects. The caller goes on behind the last entry, so
            // there has to be one.
            if !entries.is_empty() || next.is_none() {
                let more = next.is_some();
                return Ok(Some(Page { entries, more }));
            }
            token = next;
        }
    }

    /// A page from a service that lists in any order.
    async fn list_and_sort(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, Error> {
        let mut entries = Vec::new();
        let mut token = None;
        loop {
            let (more, next) = self.list_keys(prefix, None, token).await?;
            entries.extend(more);
            if next.is_none() {
                break;
            }
            token = next;
        }
        entries.retain(|entry| after.is_none_or(|after| entry.key > *after));
        entries.sort_by(|left, right| left.key.cmp(&right.key));
        let more = entries.len() > PAGE_ENTRIES_MAX;
        entries.truncate(PAGE_ENTRIES_MAX);
        Ok(Page { entries, more })
    }

    /// One page of the service's own, without what is not ours.
    async fn list_keys(
        &self,
        prefix: &Prefix,
        after: Option<&Key>,
        token: Token,
    ) -> Result<(Vec<Entry>, Token), Error> {
        let folder = format!("{}{prefix}", self.prefix);
        let after = after.map(|after| format!("{}{after}", self.prefix));
        let doing = format!("listing {folder}");
        let (objects, next, _) = self
            .list_once(&doing, &folder, after, token, PAGE_ENTRIES_MAX)
            .await?;
        let mut entries = Vec::with_capacity(objects.len());
        for object in objects {
            entries.extend(self.entry(prefix, &object)?);
        }
        Ok((entries, next))
    }

    /// One page of the service's own, in the names of the bucket.
    async fn list_once(
        &self,
        doing: &str,
        folder: &str,
        after: Option<String>,
        token: Token,
        entries_max: usize,
    ) -> Result<(Vec<ObjectMeta>, Token, Seen), Error> {
        let options = PaginatedListOptions {
            offset: after,
            page_token: token,
            max_keys: Some(entries_max),
            ..PaginatedListOptions::default()
        };
        let folder = Some(folder).filter(|folder| !folder.is_empty());
        match witness(self.reader.list_paginated(folder, options)).await {
            (Ok(page), seen) => {
                let token = page.page_token.filter(|token| !token.is_empty());
                Ok((page.result.objects, token, seen))
            }
            (Err(_), seen) => Err(outcome::of_read(self.service, doing.to_owned(), &seen)),
        }
    }

    /// The entry for a listed object; `None` if it is not one of ours.
    fn entry(&self, prefix: &Prefix, object: &ObjectMeta) -> Result<Option<Entry>, Error> {
        let name = object.location.as_ref();
        let key = name
            .strip_prefix(self.prefix.as_str())
            .and_then(|rest| Key::new(rest).ok())
            .filter(|key| key.is_under(prefix));
        let Some(key) = key else {
            tracing::debug!(
                store = self.location,
                ?name,
                "skipped an object without a key"
            );
            return Ok(None);
        };
        let version = self.version(&key, object.e_tag.as_deref(), None)?;
        Ok(Some(Entry { key, version }))
    }
}
