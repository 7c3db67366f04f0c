//! Puts load on a broker by the bare protocol, with as little work in the client as possible: Tenure's HTTP interface,
//! beanstalkd's protocol, and NATS JetStream.
//!
//!     lean PEER SECTION SPEC        PEER is tenure, beanstalkd or nats; SPEC is JSON, see bench/benchmark/drivers.py
//!
//! One thread; a connection for each caller and each worker. An error ends the program with a message: a figure with
//! failed calls in it would say nothing.

mod peers;
mod spec;
mod work;

use peers::Kind;
use spec::{Error, Spec};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [peer, section, spec] = arguments.as_slice() else {
        return Err("use `lean PEER SECTION SPEC`".into());
    };
    let spec = Spec::read(spec)?;
    let kind = Kind::named(peer)?;
    kind.prepare(&spec).await?;
    match section.as_str() {
        "submit" => work::submit(kind, spec).await,
        "preload" => work::preload_only(kind, spec).await,
        "workoff" => work::work_off(kind, spec).await,
        "pickup" => work::pick_up(kind, spec).await,
        "open" => work::open(kind, spec).await,
        "churn" => work::churn(kind, spec).await,
        "idle" => work::idle(kind, spec).await,
        other => Err(format!("there is no section {other}").into()),
    }
}
