//! One file per verb, all of one shape: `run` takes the verb's arguments and returns the exit code. An
//! error means that the verb could not do its work at all.

use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;

use tenure::Namespaced;
use tenure::core::{ElectionName, Namespace, NodeId};
use tenure_store::Store;

pub(crate) mod at_server;
pub(crate) mod bench;
pub(crate) mod daemons;
pub(crate) mod drain;
pub(crate) mod elect;
pub(crate) mod exec;
pub(crate) mod guard;
pub(crate) mod history;
pub(crate) mod job;
pub(crate) mod log;
pub(crate) mod nodes;
pub(crate) mod plan;
pub(crate) mod queue;
mod request;
pub(crate) mod resign;
pub(crate) mod run;
pub(crate) mod schedule;
pub(crate) mod serve;
pub(crate) mod status;
pub(crate) mod store_check;
pub(crate) mod top;
pub(crate) mod transfer;
pub(crate) mod watch;
pub(crate) mod worker;

use crate::args::{InElection, InNamespace};
use crate::output::{self, Hinted};
use crate::signals::Signals;

/// Which election of which store is meant, with names that are known to be good.
struct Place {
    store: String,
    namespace: Namespace,
    election: ElectionName,
}

/// A store that is open, and a namespace of it.
struct Opened {
    store: Arc<dyn Store>,
    view: Namespaced,
}

fn election(options: &InElection) -> anyhow::Result<Place> {
    Ok(Place {
        store: named(Some(options.place.store.clone()))?,
        namespace: Namespace::new(&options.place.namespace)?,
        election: ElectionName::new(&options.election)?,
    })
}

/// The node that was named, or this host.
fn node(named: Option<String>) -> anyhow::Result<NodeId> {
    Ok(match named {
        Some(node) => NodeId::new(node)?,
        None => tenure::host_name(),
    })
}

async fn open(options: &InNamespace) -> anyhow::Result<Opened> {
    let url = named(Some(options.store.clone()))?;
    let namespace = Namespace::new(&options.namespace)?;
    let store = tenure_store::open(&url).await?;
    let view = Namespaced::new(store.clone(), namespace);
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
