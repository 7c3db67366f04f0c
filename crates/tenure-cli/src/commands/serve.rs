//! `tenure serve`: will be the broker. Until it is, the verb opens the store that it would use and says
//! so, and serves nothing.

use std::process::ExitCode;

use anyhow::Context;
use tenure_store::Description;

use crate::args::Serve;
use crate::output::{self, Data};

const COMING: &str = "the broker is not in this version yet: serve will join the election, run daemons and \
    serve the job queue over HTTP; today it only tries out the store and ends";

pub(crate) async fn run(options: Serve) -> anyhow::Result<ExitCode> {
    output::note(COMING);
    let url = super::named(Some(options.store))?;
    let store = tenure_store::open(&url).await?;
    let mut data = Data::new();
    data.write(&text(&store.describe()));
    data.finish().context("cannot write the answer")?;
    output::hint("`tenure store check URL` finds out whether a store keeps every guarantee");
    Ok(ExitCode::SUCCESS)
}

fn text(store: &Description) -> String {
    let durable = match store.capabilities.durable {
        true => "yes",
        false => "no, everything is lost when the process ends",
    };
    let hints = match store.capabilities.hints {
        true => "yes, changes are noticed at once",
        false => "no, changes are found by polling",
    };
    let age = match store.capabilities.age {
        true => "yes, the store knows how old an object is",
        false => "no, observers wait a whole ttl before they act",
    };
    let location = output::printable(&store.location);
    format!("store    {location}\ndurable  {durable}\nhints    {hints}\nage      {age}\n")
}
