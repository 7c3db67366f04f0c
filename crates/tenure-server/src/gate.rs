//! What every request passes before its handler: is it allowed, and is it to be answered here?
//!
//! One layer does all of it, since each costs allocations on every request: tokens, forwarding, counting, spans,
//! and an answer for the client if the handler panics.

use std::convert::Infallible;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use pin_project_lite::pin_project;
use tenure_core::api::Code;
use tower_layer::Layer;
use tower_service::Service;
use tracing::Span;

use crate::app::App;
use crate::auth::Scope;
use crate::forward;
use crate::metrics::{Measured, Route};
use crate::problem::Problem;
use crate::trace;

/// Where a call is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// By whichever server is asked.
    Anywhere,
    /// By the leader: a standby forwards it.
    Leader,
}

/// The layer in front of one route.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    app: Arc<App>,
    /// What a token has to allow; none for what anybody may ask.
    scope: Option<Scope>,
    place: Place,
    route: Arc<Route>,
}

impl Gate {
    pub(crate) fn new(app: &Arc<App>, scope: Option<Scope>, place: Place, route: &str) -> Self {
        Self {
            app: app.clone(),
            scope,
            place,
            route: app.metrics.route(route),
        }
    }

    fn check(&self, request: &Request) -> Result<(), Problem> {
        let Some(needed) = self.scope else {
            return Ok(());
        };
        let tokens = &self.app.config.tokens;
        if !tokens.origin_is_allowed(request.method(), request.headers()) {
            return Err(
                Problem::new(Code::Forbidden, "the request comes from another web site")
                    .hint("this server has no token, so it answers local programs only"),
            );
        }
        match tokens.scope(request.headers()) {
            Some(scope) if scope >= needed => Ok(()),
            Some(scope) => Err(Problem::new(
                Code::Forbidden,
                format!("the token is for {scope}, this needs {needed}"),
            )),
            None => Err(
                Problem::new(Code::Unauthorized, "no token, or one that is not known")
                    .hint("send the header Authorization: Bearer TOKEN"),
            ),
        }
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

/// A route behind its gate.
#[derive(Debug, Clone)]
pub(crate) struct Gated<S> {
    inner: S,
    gate: Gate,
}

impl<S> Service<Request> for Gated<S>
where
    S: Service<Request, Response = Response, Error = Infallible>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Passage<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Passage<S::Future> {
        let measured = Measured::start(self.gate.route.clone());
        let span = trace::span_of(measured.route(), &request);
        let way = match self.gate.check(&request) {
            Err(problem) => Way::Refused {
                response: Some(problem.into_response()),
            },
            Ok(()) if self.gate.place == Place::Leader && !self.gate.app.is_serving() => {
                Way::Forwarded {
                    future: Box::pin(forward::forward(self.gate.app.clone(), request)),
                }
            }
            Ok(()) => Way::Here {
                future: self.inner.call(request),
            },
        };
        Passage {
            way,
            measured,
            span,
        }
    }
}

pin_project! {
    /// A request on its way through.
    pub(crate) struct Passage<F> {
        #[pin]
        way: Way<F>,
        measured: Measured,
        span: Span,
    }
}

pin_project! {
    #[project = WayProjected]
    enum Way<F> {
        Here { #[pin] future: F },
        Forwarded { future: Pin<Box<dyn Future<Output = Response> + Send>> },
        Refused { response: Option<Response> },
    }
}

impl<F: Future<Output = Result<Response, Infallible>>> Future for Passage<F> {
    type Output = Result<Response, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let way = this.way.project();
        let _entered = this.span.enter();
        // A handler that panics has lost its own state only: what is shared is never left half changed,
        // since it changes under locks that are held for plain assignments. Its caller gets an answer.
        let polled = catch_unwind(AssertUnwindSafe(|| match way {
            WayProjected::Here { future } => future.poll(context).map(|Ok(response)| response),
            WayProjected::Forwarded { future } => future.as_mut().poll(context),
            WayProjected::Refused { response } => {
                Poll::Ready(response.take().expect("polled once after it was ready"))
            }
        }));
        let response = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(response)) => response,
            Err(_) => {
                tracing::error!(route = this.measured.route(), "a handler panicked");
                Problem::internal("the server has a bug; it is not known what was done")
                    .into_response()
            }
        };
        this.measured.end(response.status());
        trace::note_status(this.span, response.status());
        Poll::Ready(Ok(response))
    }
}
