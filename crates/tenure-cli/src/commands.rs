//! One file per verb, all of one shape: `run` takes the verb's arguments and returns the exit code. An
//! error means that the verb could not do its work at all.

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

/// Which election of which store is meant, with names that are known to be good.
struct ElectionAddress {
    store: String,
    namespace: Namespace,
    election: ElectionName,
}

/// A store that is open, and a namespace of it.
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

/// How many elections a message names.
const NAMED_MAX: usize = 10;

/// The election that was named; else that of the queue, or the only one that users have, if there is no other. The
/// cluster's is meant only if there is nothing else: it exists wherever there are members.
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

/// The node that was named, or this host.
fn node(named: Option<String>) -> anyhow::Result<NodeId> {
    Ok(match named {
        Some(node) => NodeId::new(node)?,
        None => tenure::host_name(),
    })
}

/// Opens a store that must be there: to look at it makes nothing.
async fn open(options: &InNamespace) -> anyhow::Result<Opened> {
    let url = named(Some(options.store.clone()))?;
    let namespace = Namespace::new(&options.namespace)?;
    let store = tenure_store::open_existing(&url).await?;
    let view = NamespaceView::new(store.clone(), namespace);
    Ok(Opened { store, view })
}

/// Does something that a signal may interrupt at any point, since nothing has to be undone.
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

/// The store that was named. An empty name is none: a variable that was meant to be set and is not must
/// not pass for the current directory.
fn named(url: Option<String>) -> Result<String, Hinted> {
    url.filter(|url| !url.is_empty()).ok_or_else(|| {
        Hinted::new(
            "no store was named",
            "give a URL, such as file:./tenure-data, or set TENURE_STORE",
        )
    })
}
