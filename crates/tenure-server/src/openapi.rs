//! The interface as a document. Paths and schemas come from the handlers and types themselves.

use tenure_core::api::{Order, Problem};
use tenure_core::queue::State;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi};

/// What stands around the paths.
#[derive(Debug, OpenApi)]
#[openapi(
    info(
        title = "Tenure",
        description = "A durable job queue, elections and a cluster, on the storage you already have. \
            Any server answers any call. Failures are problem documents (RFC 9457) with a stable `code`.",
    ),
    components(schemas(Problem, Order, State)),
    modifiers(&Token),
    security((), ("token" = [])),
    tags(
        (name = "jobs", description = "Submit jobs, work on them, look at them"),
        (name = "queues", description = "Queues, schedules and settings"),
        (name = "elections", description = "One-shot elections for programs in any language"),
        (name = "cluster", description = "Who is there, who leads"),
        (name = "operations", description = "For whoever runs it"),
    )
)]
pub(crate) struct Document;

#[derive(Debug)]
struct Token;

impl Modify for Token {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some(
                "Needed where the server has tokens. Scopes: read, worker, admin.",
            ))
            .build();
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(scheme));
    }
}
