//! The page at `/`, until there is a dashboard: who this is, who leads, and where things are.
//!
//! The dashboard takes its place by a router of its own, merged in `router.rs`; [`POLICY`] is what all
//! pages are served with.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{Html, IntoResponse, Response};

use crate::app::App;

/// Nothing is loaded from elsewhere, nothing runs that is not a file of ours, nobody frames it.
pub(crate) const POLICY: [(HeaderName, HeaderValue); 4] = [
    (
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; \
             connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        ),
    ),
    (
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    ),
    (
        header::REFERRER_POLICY,
        HeaderValue::from_static("no-referrer"),
    ),
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
];

pub(crate) async fn home(State(app): State<Arc<App>>) -> Response {
    let leader = match app.leader() {
        Some(leader) if app.is_me(&leader) => format!("this node, in term {}", leader.term.0),
        Some(leader) => format!("{}, in term {}", leader.node, leader.term.0),
        None => "nobody".to_owned(),
    };
    let mut page = String::from("<!doctype html>\n<html lang=\"en\"><title>Tenure</title>\n");
    let _ = write!(
        page,
        "<h1>Tenure</h1>\n<p>Node {} of namespace {}. Leader: {}.</p>\n\
         <ul><li><a href=\"/v1/stats\">stats</a><li><a href=\"/v1/cluster\">cluster</a>\
         <li><a href=\"/metrics\">metrics</a><li><a href=\"/openapi.json\">API</a></ul>\n",
        escaped(app.node.id().as_str()),
        escaped(&app.config.namespace),
        escaped(&leader),
    );
    (POLICY, Html(page)).into_response()
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_escaped() {
        assert_eq!(escaped("<a b='\"'>&"), "&lt;a b=&#39;&quot;&#39;&gt;&amp;");
    }
}
