//! Metrics for Prometheus. No label takes a value that clients choose, except queue names, and their number is
//! limited.

use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Instant;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::app::App;
use crate::budget::{Budget, Essential};
use crate::problem::Problem;

pub(crate) mod collector;
mod latencies;

use collector::Others;
pub(crate) use latencies::Latencies;

/// Histogram bounds for the time of a request, in seconds: from commits on a local disk or a network to long polls.
const BOUNDS: [f64; 14] = [
    0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 60.0,
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    route: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AnswerLabels {
    route: String,
    status: &'static str,
}

/// The metrics of requests, and the registry that publishes everything.
pub(crate) struct Metrics {
    registry: Mutex<Registry>,
    requests: Family<AnswerLabels, Counter>,
    seconds: Family<RouteLabels, Histogram>,
    in_flight: Gauge,
    /// Calls that are held until there is a leader.
    held: Gauge,
    /// Calls that a standby forwarded and got an answer to.
    pub(crate) forwarded: Counter,
    pub(crate) forward_failures: Counter,
    pub(crate) latencies: Arc<Latencies>,
    /// The metrics of other parts of the process.
    pub(crate) others: Others,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::default();
        let requests = Family::default();
        let seconds =
            Family::<RouteLabels, Histogram>::new_with_constructor(|| Histogram::new(BOUNDS));
        let in_flight = Gauge::default();
        let (forwarded, forward_failures) = (Counter::default(), Counter::default());
        let http = registry.sub_registry_with_prefix("tenure_http");
        http.register("requests", "Requests by route and status", requests.clone());
        http.register_with_unit(
            "request",
            "How long requests took",
            Unit::Seconds,
            seconds.clone(),
        );
        http.register(
            "requests_in_flight",
            "Requests being answered",
            in_flight.clone(),
        );
        http.register(
            "forwarded",
            "Calls forwarded to the leader",
            forwarded.clone(),
        );
        http.register(
            "forward_failures",
            "Calls that could not be forwarded to the leader",
            forward_failures.clone(),
        );
        let held = Gauge::default();
        http.register(
            "requests_held",
            "Calls held until there is a leader",
            held.clone(),
        );
        let latencies = Arc::new(Latencies::new(&mut registry));
        let others = Others::default();
        registry.register_collector(Box::new(others.clone()));
        Self {
            registry: Mutex::new(registry),
            requests,
            seconds,
            in_flight,
            held,
            forwarded,
            forward_failures,
            latencies,
            others,
        }
    }

    /// The counters of one route, looked up once.
    pub(crate) fn route(&self, route: &str) -> Arc<Route> {
        let answered = STATUSES.map(|status| {
            let route = route.to_owned();
            let labels = AnswerLabels { route, status };
            self.requests.get_or_create(&labels).clone()
        });
        let route = route.to_owned();
        let labels = RouteLabels { route };
        Arc::new(Route {
            answered,
            seconds: self.seconds.get_or_create(&labels).clone(),
            route: labels.route,
            in_flight: self.in_flight.clone(),
        })
    }

    /// Lets other parts publish on the same page.
    pub(crate) fn register<T>(&self, add: impl FnOnce(&mut Registry) -> T) -> T {
        add(&mut self
            .registry
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// Counts a call that is held, until the answer is dropped.
    pub(crate) fn hold(&self) -> Held {
        self.held.inc();
        Held(self.held.clone())
    }

    /// Publishes the memory of bodies and answers.
    pub(crate) fn count_bytes(&self, bodies: &Budget, answers: &Budget) {
        let bytes = Bytes {
            bodies: bodies.clone(),
            answers: answers.clone(),
        };
        self.register(|registry| registry.register_collector(Box::new(bytes)));
    }

    /// The page of metrics.
    pub(crate) fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::with_capacity(16 * 1024);
        let registry = self
            .registry
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        prometheus_client::encoding::text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// The memory held for clients.
#[derive(Debug)]
struct Bytes {
    bodies: Budget,
    answers: Budget,
}

impl Collector for Bytes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let numbers = [
            (
                "tenure_http_body_bytes",
                "Bytes of bodies being received",
                &self.bodies,
            ),
            (
                "tenure_http_answer_bytes",
                "Bytes of larger answers being read",
                &self.answers,
            ),
        ];
        for (name, help, budget) in numbers {
            let bytes = ConstGauge::new(i64::try_from(budget.used()).unwrap_or(i64::MAX));
            let metric = encoder.encode_descriptor(name, help, None, bytes.metric_type())?;
            bytes.encode(metric)?;
        }
        Ok(())
    }
}

const STATUSES: [&str; 5] = ["2xx", "3xx", "4xx", "5xx", "dropped"];

/// One route's counters.
#[derive(Debug)]
pub(crate) struct Route {
    route: String,
    answered: [Counter; STATUSES.len()],
    seconds: Histogram,
    in_flight: Gauge,
}

impl Route {
    /// Its path, as in the OpenAPI document.
    pub(crate) fn name(&self) -> &str {
        &self.route
    }
}

/// A call that is held until there is a leader.
#[derive(Debug)]
pub(crate) struct Held(Gauge);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// A request that is being answered. It is counted when it is answered, or when its client goes away.
#[derive(Debug)]
pub(crate) struct Measured {
    route: Arc<Route>,
    started: Instant,
    has_ended: bool,
}

impl Measured {
    pub(crate) fn start(route: Arc<Route>) -> Self {
        route.in_flight.inc();
        Self {
            route,
            started: Instant::now(),
            has_ended: false,
        }
    }

    pub(crate) fn route(&self) -> &str {
        &self.route.route
    }

    pub(crate) fn end(&mut self, status: StatusCode) {
        let place = match status.as_u16() {
            ..300 => 0,
            300..400 => 1,
            400..500 => 2,
            500.. => 3,
        };
        self.count(place);
    }

    fn count(&mut self, place: usize) {
        self.has_ended = true;
        self.route.answered[place].inc();
        self.route
            .seconds
            .observe(self.started.elapsed().as_secs_f64());
        self.route.in_flight.dec();
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        if !self.has_ended {
            self.count(STATUSES.len() - 1);
        }
    }
}

/// Metrics for Prometheus
#[utoipa::path(get, path = "/metrics", operation_id = "metrics", tag = "operations",
    responses((status = 200, description = "In OpenMetrics text format", body = String,
        content_type = "application/openmetrics-text")))]
pub(crate) async fn page(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    let text = app
        .metrics
        .text()
        .map_err(|_| Problem::internal("cannot write the metrics"))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let mut response = ([(header::CONTENT_TYPE, kind)], text).into_response();
    response.extensions_mut().insert(Essential);
    Ok(response)
}
