//! Listings in byte order of the keys, page by page.
//!
//! S3, Google Cloud Storage and Azure list in byte order and start where they are asked to, so a page is one request.
//! Services that keep folders (SeaweedFS, an Azure account with a hierarchical namespace) walk through them, and so
//! list `a/b` before `a-b`; directory buckets of S3 Express have no order at all; and the emulator of Azure starts at
//! the beginning every time. There, the whole prefix is listed and sorted for every page, which is correct but slow.
//!
//! Such a service is recognised by its name, or by its listings: if each page is in byte order and comes after the one
//! before, then all pages together are in order. The first page that is not marks the service for good. A caller that
//! starts at an arbitrary key, on a service that has not been recognised yet, may miss entries; `tenure store check`
//! detects that.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use object_store::ObjectMeta;
use object_store::list::PaginatedListOptions;

use super::Objects;
use super::http::{Ending, Seen, witness};
use super::outcome;
use crate::layout::{Belongs, belongs};
use crate::{Entry, Error, Key, PAGE_ENTRIES_MAX, Page, Prefix};

/// How many requests are spent on finding out whether there is a store.
const SURVEY_PAGES_MAX: usize = 8;

/// How many stores below to name.
const BELOW_MAX: usize = 5;

/// What was found below a prefix.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// Whether there is a store.
    pub(super) is_store: bool,
    /// The prefixes of stores below this one, some of them.
    pub(super) below: BTreeSet<String>,
    /// Whether the prefix is a namespace of a store above.
    pub(super) is_inside: bool,
    /// Whether everything was looked at.
    pub(super) is_whole: bool,
}

impl Survey {
    /// What to tell someone who looks for a store here; `None` if nothing was found.
    pub(super) fn hint(&self) -> Option<String> {
        if !self.below.is_empty() {
            let below: Vec<&str> = self.below.iter().map(String::as_str).collect();
            return Some(format!(
                "there is a store at the prefix {}",
                below.join(", ")
            ));
        }
        let inside = "this prefix is a namespace of the store at the prefix above it";
        self.is_inside.then(|| inside.to_owned())
    }
}

/// Where a listing goes on.
type Token = Option<String>;

impl Objects {
    /// Checks that the bucket can be listed, and returns what is there. One request, if the first object shows it or
    /// there are few.
    pub(super) async fn survey(&self, entries_first: usize) -> Result<Survey, Error> {
        let doing = format!("opening {}", self.location);
        let mut survey = Survey::default();
        let (mut entries_max, mut after, mut token) = (entries_first, None::<String>, None);
        for _ in 0..SURVEY_PAGES_MAX {
            let folder = self.prefix.as_str();
            let (objects, more, seen) = self
                .list_once(&doing, folder, after.clone(), token.take(), entries_max)
                .await?;
            entries_max = PAGE_ENTRIES_MAX;
            let walks_folders =
                matches!(&seen.last, Some(Ending::Answered(answer)) if answer.walks_folders);
            self.has_other_order
                .fetch_or(walks_folders, Ordering::Relaxed);
            let mut next = None;
            for object in &objects {
                let name = object.location.as_ref();
                next = Some(name.to_owned());
                let rest = name.strip_prefix(folder).unwrap_or_default();
                match belongs(rest) {
                    Belongs::Here => {
                        survey.is_store = true;
                        return Ok(survey);
                    }
                    Belongs::Below { place, namespace } => {
                        if survey.below.len() < BELOW_MAX {
                            survey.below.insert(format!("{folder}{place}"));
                        }
                        // Continue after everything in this namespace: no name of ours has this character.
                        next = Some(format!("{folder}{namespace}/~"));
                    }
                    Belongs::Above => survey.is_inside = true,
                    Belongs::Nowhere => {}
                }
            }
            if more.is_none() {
                survey.is_whole = true;
                return Ok(survey);
            }
            if self.has_other_order.load(Ordering::Relaxed) {
                token = more;
            } else if next > after {
                after = next;
            } else {
                break;
            }
        }
        Ok(survey)
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
            // A page may hold only foreign objects. The caller continues after the last entry, so there must be one.
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

    /// One page as the service gives it, without foreign objects.
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

    /// One page as the service gives it, with the bucket's own names.
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
