//! Logging a browser in and out. What its cookie is and what protects it: [`crate::login`].

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{AppendHeaders, IntoResponse, Response};
use tenure_api::Code;

use crate::app::App;
use crate::login;
use crate::problem::Problem;

/// Gives the browser a cookie for the token of this call, which the gate has checked
pub(super) async fn login(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    if app.config.tokens.is_empty() {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let value = app.config.tokens.login(&headers).ok_or_else(|| {
        let missing = "to log in, send a token in the header Authorization";
        Problem::new(Code::Unauthorized, missing)
    })?;
    // Behind a proxy that ends TLS, only the browser knows that there is any.
    let origin = headers.get(header::ORIGIN).map(HeaderValue::as_bytes);
    let is_secure =
        app.config.tls.is_some() || origin.is_some_and(|origin| origin.starts_with(b"https://"));
    let cookie = login::set(&value, is_secure);
    Ok((
        StatusCode::NO_CONTENT,
        AppendHeaders([(header::SET_COOKIE, cookie)]),
    )
        .into_response())
}

/// Takes it away again, whatever it is
pub(super) async fn logout() -> Response {
    let cookies = login::unset().map(|cookie| (header::SET_COOKIE, cookie));
    (StatusCode::NO_CONTENT, AppendHeaders(cookies)).into_response()
}
