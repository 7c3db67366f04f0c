//! The trace that a request belongs to, from its W3C Trace Context headers. Malformed headers are ignored: a caller's
//! tracing must never cost it a job.
//!
//! Every request has a span. With the feature `otel` it is a child of the caller's, for exported spans.

use std::convert::Infallible;

use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use tenure_core::NodeId;
use tenure_core::queue::{Submission, Traceparent, Tracestate};
use tracing::Span;

/// The caller's span, if it named one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller(Option<(Traceparent, Option<Tracestate>)>);

impl Caller {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut parents = headers.get_all("traceparent").iter();
        // With several of them, it is unclear which is meant.
        let (Some(parent), None) = (parents.next(), parents.next()) else {
            return Self(None);
        };
        let parent = parent.to_str().ok().and_then(|text| text.parse().ok());
        Self(parent.map(|parent| (parent, state(headers))))
    }

    /// Puts a job into the caller's trace, unless it has its own.
    pub(crate) fn trace(&self, job: &mut Submission) {
        if let (None, Some((parent, state))) = (job.traceparent, &self.0) {
            job.traceparent = Some(*parent);
            job.tracestate.clone_from(state);
        }
    }
}

/// The span of a request. Costs next to nothing without a subscriber; logging at level `info` does not enable it.
pub(crate) fn span_of(node: &NodeId, route: &str, request: &Request) -> Span {
    let method = request.method();
    let span = tracing::debug_span!(
        parent: None,
        "request",
        otel.name = format_args!("{method} {route}"),
        otel.kind = "server",
        otel.status_code = tracing::field::Empty,
        http.request.method = %method,
        http.route = route,
        http.response.status_code = tracing::field::Empty,
        tenure.node = %node,
    );
    #[cfg(feature = "otel")]
    if !span.is_disabled()
        && let Caller(Some((parent, state))) = Caller::of(request.headers())
    {
        use tracing_opentelemetry::OpenTelemetrySpanExt as _;
        // This fails only if the span is not exported, and then it does not matter.
        let _ = span.set_parent(remote(parent, state.as_ref()));
    }
    span
}

/// Notes the status of the answer.
pub(crate) fn note_status(span: &Span, status: StatusCode) {
    span.record("http.response.status_code", status.as_u16());
    if status.is_server_error() {
        span.record("otel.status_code", "ERROR");
    }
}

#[cfg(feature = "otel")]
fn remote(parent: Traceparent, state: Option<&Tracestate>) -> opentelemetry::Context {
    use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId};
    let state = state.and_then(|state| state.as_str().parse().ok());
    let span = SpanContext::new(
        TraceId::from_bytes(parent.trace_id()),
        SpanId::from_bytes(parent.span_id()),
        TraceFlags::new(parent.flags()),
        true,
        state.unwrap_or_default(),
    );
    opentelemetry::Context::new().with_remote_span_context(span)
}

/// Several headers are one list.
fn state(headers: &HeaderMap) -> Option<Tracestate> {
    let texts: Option<Vec<&str>> = headers
        .get_all("tracestate")
        .iter()
        .map(|value| value.to_str().ok())
        .collect();
    Tracestate::shortened(&texts?.join(","))
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::of(&parts.headers))
    }
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn traced(headers: &[(&'static str, &'static str)]) -> [Option<String>; 2] {
        let headers = headers.iter().map(|(name, value)| {
            let name = HeaderName::from_static(name);
            (name, HeaderValue::from_static(value))
        });
        let mut job = Submission::new("a".parse().unwrap());
        Caller::of(&headers.collect()).trace(&mut job);
        [
            job.traceparent.map(|parent| parent.to_string()),
            job.tracestate.map(|state| state.to_string()),
        ]
    }

    #[test]
    fn headers_are_read_as_the_standard_says() {
        let parent = || Some(PARENT.to_owned());
        let state = |text: &str| Some(text.to_owned());
        let given = ("traceparent", PARENT);
        assert_eq!(traced(&[]), [None, None]);
        assert_eq!(traced(&[given]), [parent(), None]);
        assert_eq!(
            traced(&[given, ("tracestate", "a=1"), ("tracestate", "b=2")]),
            [parent(), state("a=1,b=2")]
        );
        assert_eq!(traced(&[given, ("tracestate", "a")]), [parent(), None]);
        assert_eq!(traced(&[("tracestate", "a=1")]), [None, None]);
        assert_eq!(traced(&[given, given]), [None, None]);
        assert_eq!(traced(&[("traceparent", "00-1-2-3")]), [None, None]);
    }
}
