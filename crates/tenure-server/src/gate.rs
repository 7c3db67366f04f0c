//! What every request passes before its handler: is it allowed, and should this server answer it?
//!
//! One layer does all of it, since each layer costs allocations on every request: tokens, forwarding, counting,
//! spans, the audit trail, and an answer for the client if the handler panics.

use std::convert::Infallible;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use http_body::Body as _;
use pin_project_lite::pin_project;
use tenure_api::Code;
use tower_layer::Layer;
use tower_service::Service;
use tracing::Span;

use crate::app::App;
use crate::audit::{Detail, Entry, Outcome};
use crate::auth::Scope;
use crate::budget::{Counted, Essential, SMALL_BYTES, counted};
use crate::connections::Connection;
use crate::extract::{self, no_room};
use crate::forward::PassedOn;
use crate::hold::{self, Kept};
use crate::metrics::{Measured, Route};
use crate::problem::{NotServed, Problem};
use crate::trace;

/// Where a call is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnsweredBy {
    /// By any server.
    AnyBroker,
    /// By the leader: a standby forwards it.
    Leader,
}

/// The layer in front of one route.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    app: Arc<App>,
    /// The scope that a token needs; `None` for calls that need no token.
    scope: Option<Scope>,
    answered_by: AnsweredBy,
    route: Arc<Route>,
}

impl Gate {
    pub(crate) fn new(
        app: &Arc<App>,
        scope: Option<Scope>,
        answered_by: AnsweredBy,
        route: &str,
    ) -> Self {
        Self {
            app: app.clone(),
            scope,
            answered_by,
            route: app.metrics.route(route),
        }
    }

    fn check(&self, request: &Request, connection: Option<&Connection>) -> Result<(), Problem> {
        let Some(needed) = self.scope else {
            return Ok(());
        };
        let tokens = &self.app.config.tokens;
        let (problem, outcome) = if tokens
            .origin_is_allowed(request.headers(), &self.app.config.cors_origins)
        {
            match tokens.scope(request.headers()) {
                Some(scope) if scope >= needed => return self.welcome(connection),
                Some(scope) => (
                    Problem::new(
                        Code::Forbidden,
                        format!("the token has the scope {scope}; this call needs {needed}"),
                    ),
                    Outcome::Forbidden,
                ),
                None => (
                    Problem::new(Code::Unauthorized, "the token is missing or unknown")
                        .hint("send the header Authorization: Bearer TOKEN (tenure: set TENURE_API_TOKEN)"),
                    Outcome::Unauthorized,
                ),
            }
        } else {
            (
                Problem::new(Code::Forbidden, "the request comes from another website")
                    .hint("this broker has no tokens, so it answers only local programs"),
                Outcome::CrossSite,
            )
        };
        self.app
            .audit
            .refused(&self.entry(request, connection), outcome);
        Err(problem)
    }

    fn welcome(&self, connection: Option<&Connection>) -> Result<(), Problem> {
        if connection.is_none_or(|connection| self.app.connections.welcome(connection)) {
            Ok(())
        } else {
            Err(Problem::overloaded("all connections are in use"))
        }
    }

    fn entry(&self, request: &Request, connection: Option<&Connection>) -> Entry {
        let tokens = &self.app.config.tokens;
        Entry::new(self.route.name(), request, tokens, connection)
    }

    /// Counts the bytes of an answer while it is in memory. If the budget is used up, a read is refused; a change was
    /// already made, so its answer is sent.
    fn count(&self, response: Response, call: &Call) -> Response {
        let bytes = response.body().size_hint().exact().unwrap_or(0);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let is_counted = response.extensions().get::<Counted>().is_some();
        if bytes <= SMALL_BYTES || is_counted || self.scope.is_none() {
            return response;
        }
        let mut room = self.app.answers.room(call.connection.clone());
        if !room.try_grow(bytes) {
            self.app.connections.shed_slow(bytes);
            if call.is_safe && response.extensions().get::<Essential>().is_none() {
                return no_room().into_response();
            }
            room.set(bytes);
        }
        counted(response, room)
    }
}

impl<S> Layer<S> for Gate {
    type Service = Gated<S>;
    fn layer(&self, inner: S) -> Gated<S> {
        Gated {
            inner,
            gate: self.clone(),
        }
    }
}

/// A route with its gate in front.
#[derive(Debug, Clone)]
pub(crate) struct Gated<S> {
    inner: S,
    gate: Gate,
}

/// What has to be known about a request when it is answered.
#[derive(Debug)]
struct Call {
    connection: Option<Arc<Connection>>,
    is_safe: bool,
    entry: Option<Entry>,
    /// A call without a body, to be made again if this server no longer leads. A call with a body is kept by its
    /// connection once the body is read.
    kept: Option<Kept>,
}

impl Call {
    fn take_kept(&mut self) -> Option<Kept> {
        let connection = self.connection.as_ref();
        self.kept
            .take()
            .or_else(|| connection.and_then(|connection| connection.take_kept()))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(connection) = &self.connection {
            drop(connection.take_kept());
        }
    }
}

impl<S> Service<Request> for Gated<S>
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response;
    type Error = Infallible;
    type Future = GatedFuture<S>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> GatedFuture<S> {
        let gate = &self.gate;
        let measured = Measured::start(gate.route.clone());
        let span = trace::span_of(gate.app.node.id(), measured.route(), &request);
        let connection = request.extensions().get::<Arc<Connection>>().cloned();
        let mut call = Call {
            is_safe: request.method().is_safe(),
            entry: None,
            kept: None,
            connection,
        };
        let handling = match gate.check(&request, call.connection.as_deref()) {
            Err(problem) => Handling::Refused {
                response: Some(problem.into_response()),
            },
            Ok(()) => {
                if gate.scope == Some(Scope::Admin) {
                    call.entry = Some(gate.entry(&request, call.connection.as_deref()));
                }
                match gate.answered_by {
                    AnsweredBy::Leader if !gate.app.is_serving() => Handling::Away {
                        future: Box::pin(away(gate.app.clone(), request, self.inner.clone())),
                    },
                    answered_by => {
                        let request = if answered_by == AnsweredBy::Leader && call.is_safe {
                            kept(request, &mut call)
                        } else {
                            request
                        };
                        Handling::Here {
                            future: self.inner.call(request),
                        }
                    }
                }
            }
        };
        GatedFuture {
            handling,
            measured,
            span,
            gate: gate.clone(),
            inner: self.inner.clone(),
            call,
        }
    }
}

fn kept(request: Request, call: &mut Call) -> Request {
    let (parts, body) = request.into_parts();
    call.kept = Some(Kept {
        parts: parts.clone(),
        body: bytes::Bytes::new(),
        _room: None,
    });
    Request::from_parts(parts, body)
}

/// A call that cannot be answered here now.
async fn away<S>(app: Arc<App>, request: Request, inner: S) -> Response
where
    S: Service<Request, Response = Response, Error = Infallible>,
{
    let (parts, body) = request.into_parts();
    let read = if body.is_end_stream() {
        Ok((bytes::Bytes::new(), None))
    } else {
        let connection = parts.extensions.get::<Arc<Connection>>().cloned();
        let read = extract::read_whole(body, connection, &app).await;
        read.map(|(body, room)| (body, Some(room)))
    };
    match read {
        Ok((body, room)) => {
            let call = Kept {
                parts,
                body,
                _room: room,
            };
            hold::answer(app, call, inner).await
        }
        Err(problem) => problem.into_response(),
    }
}

pin_project! {
    /// A request on its way through.
    pub(crate) struct GatedFuture<S: Service<Request>> {
        #[pin]
        handling: Handling<S::Future>,
        measured: Measured,
        span: Span,
        gate: Gate,
        inner: S,
        call: Call,
    }
}

pin_project! {
    #[project = HandlingProjected]
    enum Handling<F> {
        Here { #[pin] future: F },
        /// By the leader, or here once this server leads.
        Away { future: Pin<Box<dyn Future<Output = Response> + Send>> },
        Refused { response: Option<Response> },
    }
}

impl<S> Future for GatedFuture<S>
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Output = Result<Response, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let _entered = this.span.enter();
        let response = loop {
            let handling = this.handling.as_mut().project();
            let is_here = matches!(handling, HandlingProjected::Here { .. });
            // A handler that panics loses only its own state: shared state changes under locks that are held only for
            // plain assignments, so it is never left half changed. The caller gets an answer.
            let polled = catch_unwind(AssertUnwindSafe(|| match handling {
                HandlingProjected::Here { future } => {
                    future.poll(context).map(|Ok(response)| response)
                }
                HandlingProjected::Away { future } => future.as_mut().poll(context),
                HandlingProjected::Refused { response } => {
                    Poll::Ready(response.take().expect("polled once after it was ready"))
                }
            }));
            let response = match polled {
                Ok(Poll::Pending) => return Poll::Pending,
                Ok(Poll::Ready(response)) => response,
                Err(_) => {
                    tracing::error!(route = this.measured.route(), "a handler panicked");
                    Problem::internal("the broker has a bug; the outcome of the call is unknown")
                        .into_response()
                }
            };
            // This server stopped leading before it did anything, so the call goes to the next leader.
            if is_here
                && this.gate.answered_by == AnsweredBy::Leader
                && response.extensions().get::<NotServed>().is_some()
                && let Some(kept) = this.call.take_kept()
            {
                let future = hold::answer(this.gate.app.clone(), kept, this.inner.clone());
                let future = Box::pin(future);
                this.handling.set(Handling::Away { future });
                continue;
            }
            break response;
        };
        let was_passed_on = response.extensions().get::<PassedOn>().is_some();
        let mut response = if was_passed_on {
            // The answer is in the leader's memory, not in ours.
            response
        } else {
            this.gate.count(response, this.call)
        };
        let app = &this.gate.app;
        if app.leaving.is_cancelled() {
            // Clients should close their connections before this server stops.
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        if let Some(entry) = &this.call.entry {
            let detail = response.extensions().get::<Detail>();
            app.audit
                .ended(entry, response.status(), detail, was_passed_on);
        }
        this.measured.end(response.status());
        trace::note_status(this.span, response.status());
        Poll::Ready(Ok(response))
    }
}
