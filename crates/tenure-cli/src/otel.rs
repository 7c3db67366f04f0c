//! Spans by OTLP over HTTP, for those who collect traces.
//!
//! Off unless `OTEL_EXPORTER_OTLP_ENDPOINT` or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` says where to send them. The
//! standard's other variables apply too: headers, timeout, sampler, resource attributes, batch sizes. Spans are sent
//! in batches from a separate thread, and dropped if the collector does not keep up: nothing waits for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::runtime::Handle;
use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::registry::LookupSpan;

/// The targets whose spans are exported. Other spans are for the log, and some last as long as the process.
const TARGETS: [&str; 4] = [
    "tenure::driver::events",
    "tenure::log::committer",
    "tenure_client::trace",
    "tenure_server::trace",
];

/// The most of a collector's answer that is read.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// The exporter of spans.
#[derive(Debug)]
pub(crate) struct Export(SdkTracerProvider);

impl Export {
    /// Sends the remaining spans. Waits a few seconds for the collector at most.
    pub(crate) fn finish(self) {
        if let Err(error) = self.0.shutdown() {
            tracing::debug!(%error, "the last spans were not exported");
        }
    }
}

/// The layer that records spans, and the exporter that sends them; `None` unless exporting is configured.
pub(crate) fn layer<S>(runtime: &Handle) -> anyhow::Result<Option<(impl Layer<S> + use<S>, Export)>>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    if !is_wanted(|name| std::env::var(name).ok()) {
        return Ok(None);
    }
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Collector::new(runtime)?)
        .build()
        .context("cannot export spans with these OTEL_ variables")?;
    let provider = SdkTracerProvider::builder()
        .with_resource(resource())
        .with_batch_exporter(exporter)
        .build();
    let layer = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("tenure"))
        .with_location(false)
        .with_threads(false)
        .with_tracked_inactivity(false)
        .with_filter(
            Targets::new().with_targets(TARGETS.map(|target| (target, LevelFilter::DEBUG))),
        );
    Ok(Some((layer, Export(provider))))
}

fn is_wanted(variable: impl Fn(&str) -> Option<String>) -> bool {
    let is_set = |name| variable(name).is_some_and(|value| !value.is_empty());
    let says =
        |name, word: &str| variable(name).is_some_and(|value| value.eq_ignore_ascii_case(word));
    (is_set("OTEL_EXPORTER_OTLP_ENDPOINT") || is_set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"))
        && !says("OTEL_SDK_DISABLED", "true")
        && !says("OTEL_TRACES_EXPORTER", "none")
}

/// The resource that spans belong to. The standard's variables override it.
fn resource() -> Resource {
    let named = std::env::var("OTEL_SERVICE_NAME").is_ok_and(|name| !name.is_empty())
        || std::env::var("OTEL_RESOURCE_ATTRIBUTES").is_ok_and(|all| all.contains("service.name="));
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let resource = Resource::builder().with_attribute(version);
    if named {
        resource.build()
    } else {
        resource.with_service_name("tenure").build()
    }
}

/// The connection to the collector. Requests run on the shared runtime, not on the thread that waits for them.
#[derive(Debug)]
struct Collector {
    http: reqwest::Client,
    runtime: Handle,
    /// Whether the last request failed, which was logged.
    is_failing: AtomicBool,
}

impl Collector {
    fn new(runtime: &Handle) -> anyhow::Result<Self> {
        // The provider of the TLS library is chosen once per process; the first choice stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let settings = || {
            reqwest::Client::builder()
                .user_agent(concat!("tenure/", env!("CARGO_PKG_VERSION")))
                .timeout(timeout(|name| std::env::var(name).ok()))
                // Headers may hold a secret, which must not be sent to another server.
                .redirect(reqwest::redirect::Policy::none())
        };
        // A host without certificates of authorities, as small containers are, can still send to http://.
        let http = settings()
            .build()
            .or_else(|_| settings().tls_certs_only([]).build())
            .context("cannot make a client for the collector")?;
        Ok(Self {
            http,
            runtime: runtime.clone(),
            is_failing: AtomicBool::new(false),
        })
    }

    /// Logs once when spans begin to be lost, and once when that is over.
    fn note(&self, problem: Option<String>) {
        let was_failing = self.is_failing.swap(problem.is_some(), Ordering::Relaxed);
        match problem {
            Some(problem) if !was_failing => {
                tracing::warn!(
                    problem,
                    "cannot export spans; they are lost until this works again"
                );
            }
            None if was_failing => tracing::info!("spans are exported again"),
            _ => {}
        }
    }
}

/// How long one request may take: the exporter leaves that to the client.
fn timeout(variable: impl Fn(&str) -> Option<String>) -> Duration {
    let named = [
        "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
        "OTEL_EXPORTER_OTLP_TIMEOUT",
    ];
    let milliseconds = named.iter().find_map(|name| variable(name)?.parse().ok());
    Duration::from_millis(milliseconds.unwrap_or(10_000))
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let request = reqwest::Request::try_from(request)?;
        let http = self.http.clone();
        let answered = self.runtime.spawn(async move { ask(&http, request).await });
        let answered = answered.await?;
        self.note(match &answered {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("the collector answered {}", answer.status())),
            // Only the cause: the address may hold a secret.
            Err(error) => Some(last_cause(error)),
        });
        Ok(answered?)
    }
}

async fn ask(
    http: &reqwest::Client,
    request: reqwest::Request,
) -> Result<Response<Bytes>, reqwest::Error> {
    let mut answer = http.execute(request).await?;
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        body.extend_from_slice(&chunk);
        if body.len() > ANSWER_BYTES_MAX {
            break;
        }
    }
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = answer.status();
    *response.headers_mut() = std::mem::take(answer.headers_mut());
    Ok(response)
}

fn last_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_exported_only_where_somebody_says_where_to() {
        let wanted = |set: &[(&str, &str)]| {
            is_wanted(|name| {
                let found = set.iter().find(|(each, _)| *each == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");
        assert!(!wanted(&[]));
        assert!(!wanted(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]));
        assert!(wanted(&[endpoint]));
        assert!(wanted(&[(
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            "http://x/v1/traces"
        )]));
        assert!(!wanted(&[endpoint, ("OTEL_SDK_DISABLED", "TRUE")]));
        assert!(!wanted(&[endpoint, ("OTEL_TRACES_EXPORTER", "none")]));
    }

    #[test]
    fn a_request_may_take_as_long_as_the_standard_says() {
        let with = |name: &'static str, value: &'static str| {
            timeout(move |asked| (asked == name).then(|| value.to_owned()))
        };
        let default = Duration::from_secs(10);
        assert_eq!(with("", ""), default);
        assert_eq!(with("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"), default);
        let short = Duration::from_millis(250);
        assert_eq!(with("OTEL_EXPORTER_OTLP_TIMEOUT", "250"), short);
        assert_eq!(with("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "250"), short);
    }
}
