//! One file per verb, all with the same shape: `run` takes the verb's arguments and returns the exit code. An error
//! means that the verb could not do its work.

use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;

use tenure::NamespaceView;
use tenure::core::{ElectionName, Namespace, NodeId};
use tenure_store::Store;

pub(crate) mod at_server;
pub(crate) mod bench;
pub(crate) mod completions;
pub(crate) mod daemons;
pub(crate) mod drain;
pub(crate) mod elect;
#[cfg(target_os = "linux")]
pub(crate) mod exec;
#[cfg(target_os = "linux")]
mod family;
mod files;
#[cfg(target_os = "linux")]
pub(crate) mod guard;
#[cfg(target_os = "linux")]
mod guarded;
pub(crate) mod history;
pub(crate) mod import;
#[cfg(target_os = "linux")]
pub(crate) mod init;
pub(crate) mod job;
pub(crate) mod log;
pub(crate) mod man;
pub(crate) mod nodes;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub(crate) mod outbox;
pub(crate) mod plan;
pub(crate) mod queue;
mod remote;
mod remote_change;
pub(crate) mod replaced;
mod request;
pub(crate) mod resign;
#[cfg(target_os = "linux")]
pub(crate) mod run;
pub(crate) mod schedule;
pub(crate) mod serve;
pub(crate) mod status;
pub(crate) mod store_check;
mod timed;
pub(crate) mod top;
pub(crate) mod transfer;
#[cfg(not(target_os = "linux"))]
mod unguarded;
pub(crate) mod watch;
#[cfg(target_os = "linux")]
pub(crate) mod worker;

#[cfg(not(target_os = "linux"))]
pub(crate) use unguarded::{exec, guard, init, run, worker};

use crate::args::{InElection, InNamespace};
use crate::output::{self, Hinted};
use crate::signals::Signals;

/// An election of a store, with names that have been checked.
struct ElectionAddress {
    store: String,
    namespace: Namespace,
    election: ElectionName,
}

/// An open store, and a namespace in it.
struct Opened {
    store: Arc<dyn Store>,
    view: NamespaceView,
}

fn election(options: &InElection) -> anyhow::Result<ElectionAddress> {
    Ok(ElectionAddress {
        store: named(Some(options.place.store.clone()))?,
        namespace: Namespace::new(&options.place.namespace)?,
        election: ElectionName::of_users(&options.election)?,
    })
}

/// The most elections that a message names.
const NAMED_MAX: usize = 10;

/// The election that was named. Otherwise the only one there is, not counting the cluster's: that of the queue or of
/// a user. The cluster's election is chosen only if there is nothing else, since it exists wherever there are
/// members.
async fn which(view: &NamespaceView, named: Option<&str>) -> anyhow::Result<ElectionName> {
    if let Some(name) = named {
        return Ok(ElectionName::new(name)?);
    }
    let all = view.elections().await?;
    let usual = |name: &&ElectionName| !name.is_reserved() || name.is_of_queue();
    let usual: Vec<&ElectionName> = all.iter().filter(usual).collect();
    match (&usual[..], &all[..]) {
        ([name], _) => Ok((*name).clone()),
        ([], [name, ..]) => Ok(name.clone()),
        ([], []) => Ok(ElectionName::new("default")?),
        _ => {
            let shown = usual.iter().take(NAMED_MAX).map(|name| name.as_str());
            let shown: Vec<&str> = shown.collect();
            let more = if usual.len() > NAMED_MAX { ", …" } else { "" };
            let elections = format!("{}{more}", shown.join(", "));
            Err(Hinted::new(
                format!("there are several elections here: {elections}"),
                "choose one with --election NAME",
            )
            .into())
        }
    }
}

/// The node that was named, or one named like this host.
fn node(named: Option<String>) -> anyhow::Result<NodeId> {
    Ok(match named {
        Some(node) => NodeId::new(node)?,
        None => tenure::host_name(),
    })
}

/// Opens a store that must exist: reading must not create one.
async fn open(options: &InNamespace) -> anyhow::Result<Opened> {
    let url = named(Some(options.store.clone()))?;
    let namespace = Namespace::new(&options.namespace)?;
    let store = tenure_store::open_existing(&url).await?;
    let view = NamespaceView::new(store.clone(), namespace);
    Ok(Opened { store, view })
}

/// Runs work that a signal may interrupt at any point, since nothing has to be undone.
async fn interruptible(
    work: impl Future<Output = anyhow::Result<ExitCode>>,
) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::new()?;
    tokio::select! {
        code = work => code,
        stop = signals.next() => {
            output::note("interrupted");
            Ok(stop.exit_code())
        }
    }
}

/// The store that was named. An empty name is refused: a variable that was left empty by mistake must not mean the
/// current directory.
fn named(url: Option<String>) -> Result<String, Hinted> {
    url.filter(|url| !url.is_empty()).ok_or_else(|| {
        Hinted::new(
            "no store was named",
            "give a URL, such as file:./tenure-data, or set TENURE_STORE",
        )
    })
}
