//! Metrics of the layers below, read when the page is requested.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, EncodeMetric as _, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use tenure::queue::Queue;
use tenure::{HeartbeatOutcome, Node};
use tenure_api::Queue as QueueView;
use tenure_store::wrap::metered::{BUCKET_BOUNDS, Meter, Operation, Outcome};
use tenure_store::wrap::throttled::Throttle;

use crate::rates::Rates;

/// A label and its value.
type Label = (&'static str, String);

/// The counts of a histogram with [`BUCKET_BOUNDS`].
type Buckets = [u64; BUCKET_BOUNDS.len() + 1];

fn latency(mut metric: MetricEncoder<'_>, total_nanoseconds: u64, counts: Buckets) -> fmt::Result {
    let bounds = BUCKET_BOUNDS.iter().map(|bound| micro(bound) / 1e6);
    let buckets: Vec<_> = bounds.chain([f64::INFINITY]).zip(counts).collect();
    let seconds = Duration::from_nanos(total_nanoseconds).as_secs_f64();
    metric.encode_histogram::<NoLabelSet>(seconds, counts.iter().sum(), &buckets, None)
}

/// A metric published by another part of the process.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    /// Its name, such as `tenure_outbox_waiting`. The page adds `_total` to a counter's name.
    pub name: &'static str,
    /// Its description, in a few words.
    pub help: &'static str,
    /// Its labels, which distinguish it from others of the same name.
    pub labels: Vec<(&'static str, String)>,
    /// Its value.
    pub value: Value,
}

/// A value, by kind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    /// Only grows.
    Counter(u64),
    /// Goes up and down.
    Gauge(f64),
}

/// Writes metrics one after the other.
pub(crate) struct Writing<'a>(pub(crate) DescriptorEncoder<'a>);

impl Writing<'_> {
    pub(crate) fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let metric = self
            .0
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(value).encode(metric)
    }

    pub(crate) fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut metric = self
            .0
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            ConstCounter::new(value).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let metric = self
            .0
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(value).encode(metric)
    }

    pub(crate) fn gauges<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, f64)>,
    ) -> fmt::Result {
        let mut metric = self
            .0
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            ConstGauge::new(value).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// Histograms whose bounds are [`BUCKET_BOUNDS`].
    pub(crate) fn latencies<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, u64, Buckets)>,
    ) -> fmt::Result {
        let mut metric = self
            .0
            .encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, total_nanoseconds, counts) in values {
            latency(metric.encode_family(&labels)?, total_nanoseconds, counts)?;
        }
        Ok(())
    }

    /// One of them.
    pub(crate) fn latency(
        &mut self,
        name: &str,
        help: &str,
        total_nanoseconds: u64,
        counts: Buckets,
    ) -> fmt::Result {
        let metric = self
            .0
            .encode_descriptor(name, help, None, MetricType::Histogram)?;
        latency(metric, total_nanoseconds, counts)
    }
}

/// The node, its store and its queue. Does not hold the server, which holds the registry: that would be a cycle.
#[derive(Debug)]
pub(crate) struct StateCollector {
    pub(crate) node: Node,
    pub(crate) namespace: String,
    pub(crate) meter: Arc<Meter>,
    pub(crate) throttle: Option<Arc<Throttle>>,
    pub(crate) queue: Queue,
    pub(crate) rates: Arc<Rates>,
}

/// The most queues that have numbers of their own: their names come from clients.
const QUEUES_MAX: usize = 100;

/// Returns the present metrics of a part of the process.
pub(crate) type Publisher = Box<dyn Fn() -> Vec<Published> + Send + Sync>;

/// The metrics that other parts publish on this server's page. They share one collector, since a page may describe
/// each name only once, followed by all its label sets.
#[derive(Clone, Default)]
pub(crate) struct Others(Arc<Mutex<Vec<Publisher>>>);

impl Others {
    pub(crate) fn add(&self, publisher: Publisher) {
        self.publishers().push(publisher);
    }

    fn publishers(&self) -> MutexGuard<'_, Vec<Publisher>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Others {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Others")
    }
}

impl Collector for Others {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut numbers: Vec<Published> =
            self.publishers().iter().flat_map(|tell| tell()).collect();
        // The sort is stable, so metrics of one name stay in the order of their publishers.
        numbers.sort_by_key(|number| number.name);
        let mut writing = Writing(encoder);
        for same in numbers.chunk_by(|one, other| one.name == other.name) {
            let (name, help) = (same[0].name, same[0].help);
            let labels = |number: &Published| number.labels.clone();
            match same[0].value {
                Value::Counter(_) => {
                    let values = same.iter().filter_map(|number| match number.value {
                        Value::Counter(value) => Some((labels(number), value)),
                        Value::Gauge(_) => None,
                    });
                    writing.counters(name, help, values)?;
                }
                Value::Gauge(_) => {
                    let values = same.iter().filter_map(|number| match number.value {
                        Value::Gauge(value) => Some((labels(number), value)),
                        Value::Counter(_) => None,
                    });
                    writing.gauges(name, help, values)?;
                }
            }
        }
        Ok(())
    }
}

impl Collector for StateCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut writing = Writing(encoder);
        let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        writing.gauges("tenure_build", "The running version", [(version, 1.0)])?;
        // Names this process for all other metrics of the page: join with it, or label the target.
        let incarnation = self.node.session().map(|session| session.incarnation);
        let who: Vec<Label> = vec![
            ("node", self.node.id().to_string()),
            ("namespace", self.namespace.clone()),
            (
                "incarnation",
                incarnation.map_or_else(String::new, |it| it.to_string()),
            ),
        ];
        writing.gauges(
            "tenure_node",
            "This node: its name, its namespace, and this start of its process",
            [(who, 1.0)],
        )?;
        self.node(&mut writing)?;
        self.cluster(&mut writing)?;
        self.elections(&mut writing)?;
        self.store(&mut writing)?;
        self.queue(&mut writing)?;
        process(&mut writing)
    }
}

impl StateCollector {
    fn node(&self, writing: &mut Writing<'_>) -> fmt::Result {
        let node = self.node.metrics();
        writing.gauge(
            "tenure_trust_remaining_seconds",
            "How long this node may act without another confirmed heartbeat",
            Duration::from_millis(node.trust_remaining_ms).as_secs_f64(),
        )?;
        writing.counter("tenure_sessions", "Sessions joined", node.sessions)?;
        writing.counter(
            "tenure_sessions_lost",
            "Sessions that ended unexpectedly",
            node.sessions_lost,
        )?;
        writing.counter(
            "tenure_evictions",
            "Dead sessions of other nodes that this node evicted",
            node.evictions,
        )?;
        writing.gauge(
            "tenure_duplicates",
            "Other processes that run under this node's id",
            number(node.duplicates),
        )?;
        let heartbeats = node.heartbeats.iter().map(|each| {
            let outcome = match each.outcome {
                HeartbeatOutcome::Done => "done",
                HeartbeatOutcome::Conflict => "conflict",
                HeartbeatOutcome::NotApplied => "not_applied",
                HeartbeatOutcome::Unknown => "unknown",
            };
            let labels: Vec<Label> = vec![("outcome", outcome.to_owned())];
            (labels, each.total_nanoseconds, each.buckets)
        });
        writing.latencies(
            "tenure_heartbeat_seconds",
            "How long heartbeats took",
            heartbeats,
        )
    }

    /// Metrics of the other nodes as this node sees them, and of its own shards.
    fn cluster(&self, writing: &mut Writing<'_>) -> fmt::Result {
        let cluster = self.node.metrics().cluster;
        writing.gauge(
            "tenure_cluster_shards",
            "Shards of daemons that run on this node",
            number(cluster.shards),
        )?;
        let labelled = |name: &'static str, counts: [(&str, u64); 5]| {
            counts.map(|(value, count)| (vec![(name, value.to_owned())], count))
        };
        let shards = labelled(
            "event",
            [
                ("assigned", cluster.shards_assigned),
                ("started", cluster.shards_started),
                ("revoked", cluster.shards_revoked),
                ("stopped", cluster.shards_stopped),
                ("failed", cluster.shards_failed),
            ],
        );
        writing.counters(
            "tenure_cluster_shard_events",
            "Events of shards on this node, by kind",
            shards,
        )?;
        let nodes = [
            ("joined", cluster.nodes_joined),
            ("left", cluster.nodes_left),
            ("evicted", cluster.nodes_evicted),
        ];
        writing.counters(
            "tenure_cluster_node_events",
            "Nodes that were seen to come and go, while this node listens",
            nodes.map(|(event, count)| (vec![("event", event.to_owned())], count)),
        )?;
        for (name, help, count) in [
            (
                "tenure_cluster_assignment_writes",
                "How often this node wrote the assignments of daemons",
                cluster.assignment_writes,
            ),
            (
                "tenure_cluster_assignment_writes_failed",
                "Writes of the assignments that did not end as done",
                cluster.assignment_writes_failed,
            ),
            (
                "tenure_cluster_decisions",
                "Decisions about shards that this node has written",
                cluster.decisions,
            ),
            (
                "tenure_cluster_anomalies",
                "Anomalies, such as assignments that were deleted manually",
                cluster.anomalies,
            ),
        ] {
            writing.counter(name, help, count)?;
        }
        Ok(())
    }

    fn elections(&self, writing: &mut Writing<'_>) -> fmt::Result {
        let elections = self.node.metrics().elections;
        let each = || {
            elections
                .iter()
                .map(|(name, each)| (vec![("election", name.to_string())], each))
        };
        writing.gauges(
            "tenure_election_leads",
            "Whether this node leads",
            each().map(|(labels, each)| (labels, f64::from(u8::from(each.leads)))),
        )?;
        writing.gauges(
            "tenure_election_term",
            "The highest term seen",
            each().map(|(labels, each)| (labels, number(each.term.0))),
        )?;
        writing.counters(
            "tenure_election_elected",
            "How often this node was elected",
            each().map(|(labels, each)| (labels, each.elected)),
        )?;
        let ended = each().flat_map(|(labels, each)| {
            each.ended.iter().map(move |(reason, count)| {
                let mut labels = labels.clone();
                labels.push(("reason", reason.clone()));
                (labels, *count)
            })
        });
        writing.counters("tenure_election_ended", "How its terms ended", ended)?;
        writing.counters(
            "tenure_election_anomalies",
            "Anomalies, such as a lease that was deleted manually",
            each().map(|(labels, each)| (labels, each.anomalies)),
        )?;
        writing.gauges(
            "tenure_election_leaderless_seconds",
            "How long nobody led, as far as this node saw",
            each().map(|(labels, each)| {
                let time = Duration::from_millis(each.leaderless_ms);
                (labels, time.as_secs_f64())
            }),
        )
    }

    fn store(&self, writing: &mut Writing<'_>) -> fmt::Result {
        let store = self.meter.snapshot();
        let requests = store.ended.iter().map(|ended| {
            let labels: Vec<Label> = vec![
                ("operation", operation(ended.operation).to_owned()),
                ("outcome", outcome(ended.outcome).to_owned()),
            ];
            (labels, ended.total_nanoseconds, ended.buckets)
        });
        writing.latencies(
            "tenure_store_request_seconds",
            "How long requests to the store took",
            requests,
        )?;
        let in_flight = store.in_flight.iter().map(|(each, count)| {
            let labels: Vec<Label> = vec![("operation", operation(*each).to_owned())];
            (labels, number(*count))
        });
        writing.gauges(
            "tenure_store_requests_in_flight",
            "Requests to the store under way",
            in_flight,
        )?;
        writing.counter(
            "tenure_store_read_bytes",
            "Bytes of all values read",
            store.read_bytes,
        )?;
        writing.counter(
            "tenure_store_written_bytes",
            "Bytes of all values written",
            store.written_bytes,
        )?;
        self.budget(writing)
    }

    fn budget(&self, writing: &mut Writing<'_>) -> fmt::Result {
        let Some(throttle) = &self.throttle else {
            return Ok(());
        };
        let now = throttle.statistics();
        if let Some(left) = now.remaining_today {
            writing.gauge(
                "tenure_store_writes_left",
                "How many writes are left of the budget of the day",
                left as f64,
            )?;
            writing.gauge(
                "tenure_store_writes_low",
                "Whether the budget of the day runs low, so that commits and heartbeats are rarer",
                f64::from(u8::from(now.is_low)),
            )?;
        }
        writing.counter(
            "tenure_store_requests_refused",
            "Writes that were not sent because the budget of the day was used up",
            now.refused,
        )?;
        writing.counter(
            "tenure_store_requests_delayed",
            "Requests that waited because of the ceilings per minute",
            now.reads.waited + now.writes.waited,
        )
    }
}

impl StateCollector {
    /// Metrics of the queues, which alerts are built on.
    fn queues(&self, writing: &mut Writing<'_>, queues: &[QueueView]) -> fmt::Result {
        let now = self.queue.now_ms().unwrap_or_default();
        let labelled =
            |queue: &QueueView| -> Vec<Label> { vec![("queue", queue.name.to_string())] };
        let paused = queues
            .iter()
            .map(|queue| (labelled(queue), f64::from(u8::from(queue.paused))));
        writing.gauges("tenure_queue_paused", "Whether a queue is paused", paused)?;
        let oldest = queues.iter().map(|queue| {
            let since = queue.oldest_ready_at;
            let waits = since.map_or(0, |since| now.saturating_sub(since));
            (labelled(queue), Duration::from_millis(waits).as_secs_f64())
        });
        writing.gauges(
            "tenure_queue_oldest_ready_seconds",
            "How long the oldest ready job of a queue waits; zero if none does",
            oldest,
        )
    }

    fn queue(&self, writing: &mut Writing<'_>) -> fmt::Result {
        let serving = f64::from(u8::from(self.queue.is_serving()));
        writing.gauge(
            "tenure_queue_serving",
            "Whether this node serves the queue",
            serving,
        )?;
        writing.counter(
            "tenure_queue_terms_failed",
            "Terms that this node could not serve to their end",
            self.queue.metrics().terms_failed,
        )?;
        for (name, help, count) in [
            (
                "tenure_queue_submitted",
                "Jobs accepted here",
                &self.rates.submitted,
            ),
            (
                "tenure_queue_claimed",
                "Attempts started here",
                &self.rates.claimed,
            ),
            (
                "tenure_queue_completed",
                "Jobs completed here",
                &self.rates.completed,
            ),
            (
                "tenure_queue_failed",
                "Attempts failed here",
                &self.rates.failed,
            ),
        ] {
            writing.counter(name, help, count.total())?;
        }
        // Only the leader knows the rest.
        let Ok(queues) = self.queue.queues_behind(None, QUEUES_MAX) else {
            return Ok(());
        };
        let log = self.queue.metrics();
        let jobs = queues.iter().flat_map(|queue| {
            let counts = &queue.counts;
            let states = [
                ("scheduled", counts.scheduled),
                ("ready", counts.ready),
                ("running", counts.running),
                ("completed", counts.completed),
                ("cancelled", counts.cancelled),
                ("dead", counts.dead),
            ];
            states.map(|(state, count)| {
                let labels: Vec<Label> = vec![
                    ("queue", queue.name.to_string()),
                    ("state", state.to_owned()),
                ];
                (labels, number(count))
            })
        });
        writing.gauges("tenure_queue_jobs", "Jobs by queue and state", jobs)?;
        self.queues(writing, &queues)?;
        writing.latency(
            "tenure_queue_commit_seconds",
            "How long commits took",
            log.commit_latency.total_nanoseconds,
            log.commit_latency.buckets,
        )?;
        for (name, help, value) in [
            (
                "tenure_queue_position",
                "The last record of the log",
                log.position.0,
            ),
            (
                "tenure_queue_log_since_snapshot_bytes",
                "How large the log is since the last snapshot",
                log.log_bytes,
            ),
            (
                "tenure_queue_snapshot_bytes",
                "How large the last snapshot of this process is",
                log.last_snapshot.map_or(0, |snapshot| snapshot.bytes),
            ),
            (
                "tenure_queue_ids",
                "Ids that are kept longer than their jobs",
                log.ids,
            ),
            (
                "tenure_queue_ids_bytes",
                "Memory used by these ids",
                log.ids_bytes,
            ),
        ] {
            writing.gauge(name, help, number(value))?;
        }
        for (name, help, value) in [
            ("tenure_queue_commits", "Commits", log.commits),
            ("tenure_queue_records", "Records committed", log.records),
            ("tenure_queue_log_bytes", "Bytes committed", log.bytes),
            (
                "tenure_queue_turned_away",
                "Records turned away",
                log.turned_away,
            ),
            (
                "tenure_queue_snapshots",
                "Snapshots published",
                log.snapshots,
            ),
            (
                "tenure_queue_ids_dropped",
                "Ids deleted early because there was no room",
                log.ids_dropped,
            ),
        ] {
            writing.counter(name, help, value)?;
        }
        writing.gauge(
            "tenure_queue_waiting",
            "Records waiting to be committed",
            number(log.waiting),
        )
    }
}

/// The process, as Linux tells. What it does not tell is left out.
fn process(writing: &mut Writing<'_>) -> fmt::Result {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
    if let Some(pages) = pages {
        let bytes = pages * rustix::param::page_size() as u64;
        writing.gauge(
            "process_resident_memory_bytes",
            "Memory in use",
            number(bytes),
        )?;
    }
    if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
        let count = files.count() as u64;
        writing.gauge("process_open_fds", "Open files", number(count))?;
    }
    let times = std::fs::read_to_string("/proc/self/stat").ok();
    // The program's name may contain anything, even spaces and parentheses, so look for its end from the right.
    let times = times.as_deref().and_then(|text| text.rsplit_once(')'));
    let ticks: Option<u64> = times.and_then(|(_, rest)| {
        let mut fields = rest.split_ascii_whitespace().skip(11);
        let user: u64 = fields.next()?.parse().ok()?;
        let system: u64 = fields.next()?.parse().ok()?;
        Some(user + system)
    });
    if let Some(ticks) = ticks {
        let per_second = rustix::param::clock_ticks_per_second();
        let seconds = number(ticks) / number(per_second);
        writing.gauge("process_cpu_seconds", "CPU time", seconds)?;
    }
    Ok(())
}

/// Whole microseconds, which a double holds exactly.
fn micro(bound: &Duration) -> f64 {
    number(u64::try_from(bound.as_micros()).unwrap_or(u64::MAX))
}

#[expect(clippy::cast_precision_loss, reason = "what is published are doubles")]
pub(crate) fn number(value: u64) -> f64 {
    value as f64
}

pub(crate) fn operation(operation: Operation) -> &'static str {
    match operation {
        Operation::Get => "get",
        Operation::GetIfChanged => "get_if_changed",
        Operation::Put => "put",
        Operation::Delete => "delete",
        Operation::List => "list",
    }
}

fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Done => "done",
        Outcome::Unchanged => "unchanged",
        Outcome::Missing => "missing",
        Outcome::Conflict => "conflict",
        Outcome::Unknown => "unknown",
        Outcome::Unavailable => "unavailable",
        Outcome::Refused => "refused",
        Outcome::Invalid => "invalid",
        Outcome::Corrupt => "corrupt",
        Outcome::Cancelled => "cancelled",
    }
}
