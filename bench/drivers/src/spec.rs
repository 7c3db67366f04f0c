//! What every driver needs: what to do, the conversation with the harness, and a little arithmetic.

use std::sync::Arc;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tokio::task::{JoinSet, spawn_blocking};

pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

/// What all times in payloads are counted from.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

pub(crate) fn micros() -> u64 {
    u64::try_from(START.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// What to do; a field that a section does not use may be absent.
pub(crate) struct Spec(Value);

impl Spec {
    pub(crate) fn read(text: &str) -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self(serde_json::from_str(text)?)))
    }

    pub(crate) fn text(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap_or_default()
    }

    pub(crate) fn number(&self, name: &str) -> u64 {
        self.0[name].as_u64().unwrap_or_default()
    }

    pub(crate) fn seconds(&self) -> Duration {
        Duration::from_secs_f64(self.0["seconds"].as_f64().unwrap_or(1.0))
    }

    /// A payload of the wanted size, with the time in it.
    pub(crate) fn payload(&self) -> String {
        let pad = (self.number("payload_bytes") as usize).saturating_sub(30);
        format!("{{\"at\":{},\"pad\":\"{:x<pad$}\"}}", micros(), "")
    }

    pub(crate) fn payloads(&self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.payload()).collect()
    }
}

/// The conversation with the harness, on standard input and output.
pub(crate) struct Harness;

impl Harness {
    pub(crate) fn new() -> Self {
        Self
    }

    /// Tells how far this is, and waits for the harness.
    pub(crate) async fn tell(&mut self, message: Value) -> Result<(), Error> {
        println!("{message}");
        spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??;
        Ok(())
    }
}

/// The median and the 99th percentile, in milliseconds, under names that begin with `name`.
pub(crate) fn quantiles(mut micros: Vec<u64>, name: &str) -> Map<String, Value> {
    micros.sort_unstable();
    let mut map = Map::new();
    for (share, label) in [(50, "p50"), (99, "p99")] {
        if let Some(value) = micros.get((micros.len() * share / 100).min(micros.len().max(1) - 1)) {
            map.insert(format!("{name}{label}_ms"), json!(*value as f64 / 1000.0));
        }
    }
    map
}

pub(crate) fn with(mut answer: Value, more: Map<String, Value>) -> Value {
    if let Some(fields) = answer.as_object_mut() {
        fields.extend(more);
    }
    answer
}

pub(crate) async fn each<T: Send + 'static>(
    mut tasks: JoinSet<Result<T, Error>>,
) -> Result<Vec<T>, Error> {
    let mut ends = Vec::new();
    while let Some(end) = tasks.join_next().await {
        ends.push(end??);
    }
    Ok(ends)
}
