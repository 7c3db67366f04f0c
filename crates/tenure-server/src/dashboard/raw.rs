//! What is stored, as it is stored: objects of this namespace, and commits of its log.
//!
//! For admins only: sessions hold digests of secrets, and the tokens of claims can be derived from commits. Nothing
//! is read unless somebody looks, and then little: a list is one request, an object is one, and a commit is one, or a
//! part of a file where the log is kept in files. Any broker answers: this is what is in the store, not what the
//! leader knows.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use tenure::core::Namespace;
use tenure::log::inspect::{Frame, Kind, Stored};
use tenure_api::Code;
use tenure_store::{Key, Prefix};

use crate::app::App;
use crate::extract::{Parameters, Via, ok, room_for};
use crate::problem::{Problem, store};

/// The most bytes of one value, or of one commit, that are shown.
const SHOWN_BYTES_MAX: usize = 256 * 1024;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ObjectsQuery {
    /// The last key of the page before.
    after: Option<String>,
}

#[derive(Debug, Serialize)]
struct Objects {
    keys: Vec<String>,
    /// The last of these keys, if there are more after it.
    next: Option<String>,
}

/// The keys of this namespace
pub(super) async fn objects(
    State(app): State<Arc<App>>,
    Parameters(query): Parameters<ObjectsQuery>,
) -> Result<Response, Problem> {
    let after = query.after.as_deref().map(|key| own(&app, key));
    let prefix = Prefix::new(&app.config.namespace).map_err(|error| store(&error))?;
    let page = app.store.list(&prefix, after.transpose()?.as_ref()).await;
    let page = page.map_err(|error| store(&error))?;
    let keys = page.entries.iter().map(|entry| entry.key.to_string());
    let keys: Vec<String> = keys.collect();
    let next = keys.last().filter(|_| page.more).cloned();
    Ok(ok(&Objects { keys, next }))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ObjectQuery {
    key: String,
}

#[derive(Debug, Serialize)]
struct Shown {
    key: String,
    bytes: usize,
    /// How long ago it was written, by the store's clock.
    age_ms: Option<u64>,
    value: String,
    truncated: bool,
}

/// One object
pub(super) async fn object(
    State(app): State<Arc<App>>,
    Via(connection): Via,
    Parameters(query): Parameters<ObjectQuery>,
) -> Result<Response, Problem> {
    let key = own(&app, &query.key)?;
    let _room = room_for(&app, connection, SHOWN_BYTES_MAX).await?;
    let Some(object) = app.store.get(&key).await.map_err(|error| store(&error))? else {
        return Err(Problem::new(Code::NotFound, format!("there is no object {key}")).field("key"));
    };
    let (value, truncated) = text(&object.value, SHOWN_BYTES_MAX);
    let age = object.age.or(object.shown_age);
    Ok(ok(&Shown {
        bytes: object.value.len(),
        age_ms: age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
        value,
        truncated,
        key: query.key,
    }))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CommitQuery {
    /// If absent: the last commit.
    index: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Commit {
    index: u64,
    kind: Kind,
    /// The object, or the file.
    location: String,
    offset: u64,
    bytes: u64,
    term: u64,
    incarnation: String,
    /// The number of its first record.
    position: u64,
    count: usize,
    lines: Vec<String>,
    truncated: bool,
}

/// One commit
pub(super) async fn commit(
    State(app): State<Arc<App>>,
    Via(connection): Via,
    Parameters(query): Parameters<CommitQuery>,
) -> Result<Response, Problem> {
    let _room = room_for(&app, connection, SHOWN_BYTES_MAX).await?;
    let missing = |what: String| Problem::new(Code::NotFound, what).field("index");
    let namespace = Namespace::new(&app.config.namespace)
        .map_err(|error| Problem::internal(&error.to_string()))?;
    let log = Stored::open(app.store.clone(), &namespace).await;
    let Some(log) = log.map_err(|error| logged(&error))? else {
        return Err(missing("there is no log yet".to_owned()));
    };
    let index = match query.index {
        Some(index) => index,
        None => log.last_place().await.map_err(|error| logged(&error))?,
    };
    let found = log.frame(index).await.map_err(|error| logged(&error))?;
    let found = found.ok_or_else(|| missing(format!("there is no index {index} in the log")))?;
    Ok(ok(&shown(&found)))
}

fn shown(frame: &Frame) -> Commit {
    let mut left = SHOWN_BYTES_MAX;
    let mut lines = Vec::new();
    let mut truncated = false;
    for line in frame.lines() {
        let (line, is_cut) = text(line, left);
        truncated |= is_cut;
        left -= line.len().min(left);
        lines.push(line);
        if left == 0 {
            truncated |= lines.len() < frame.count();
            break;
        }
    }
    Commit {
        index: frame.place,
        kind: frame.kind,
        location: frame.location.clone(),
        offset: frame.offset,
        bytes: frame.bytes,
        term: frame.term.0,
        incarnation: frame.incarnation.to_string(),
        position: frame.position.0,
        count: frame.count(),
        lines,
        truncated,
    }
}

/// Parses a key, which has to be in this namespace: no others are shown.
fn own(app: &App, key: &str) -> Result<Key, Problem> {
    let wrong = |what: String| Problem::new(Code::InvalidField, what).field("key");
    let is_own = key.split('/').next() == Some(app.config.namespace.as_str());
    if !is_own {
        return Err(wrong(format!(
            "the key is not one of the namespace {}",
            app.config.namespace
        )));
    }
    Key::new(key).map_err(|error| wrong(error.to_string()))
}

/// The beginning of a value, as text: what is stored is text, unless something else wrote it.
fn text(value: &[u8], bytes_max: usize) -> (String, bool) {
    let shown = &value[..value.len().min(bytes_max)];
    let text = String::from_utf8_lossy(shown).into_owned();
    (text, shown.len() < value.len())
}

/// An unreadable log is shown as the answer here: somebody looks because something is wrong.
fn logged(error: &tenure::log::Error) -> Problem {
    Problem::new(Code::NotFound, error.to_string()).field("index")
}
