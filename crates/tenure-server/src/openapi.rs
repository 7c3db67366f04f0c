//! The interface as a document. Paths and schemas come from the handlers and types themselves.

use bytes::Bytes;
use tenure_core::api::{Order, PROBLEM_CONTENT_TYPE, Problem};
use tenure_core::queue::State;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Content, PathItem, Ref, RefOr, Response};
use utoipa::{Modify, OpenApi};

/// What stands around the paths.
#[derive(Debug, OpenApi)]
#[openapi(
    info(
        title = "Tenure",
        description = "A durable job queue, elections and a cluster, on the storage you already have. \
            You can send any call to any broker. Failures are problem documents (RFC 9457) with a stable `code`.",
    ),
    components(schemas(Problem, Order, State)),
    modifiers(&Token),
    security((), ("token" = [])),
    tags(
        (name = "jobs", description = "Submit, claim, complete and list jobs"),
        (name = "queues", description = "Queues, schedules and settings"),
        (name = "elections", description = "One-shot elections for programs in any language"),
        (name = "cluster", description = "The nodes and the leader"),
        (name = "operations", description = "Health, metrics and statistics"),
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
                "Required if the broker has tokens. Scopes: read, worker, admin.",
            ))
            .build();
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(scheme));
    }
}

/// The document as it is served: with what holds for every call.
pub(crate) fn finished(mut document: utoipa::openapi::OpenApi) -> Bytes {
    for item in document.paths.paths.values_mut() {
        operations(item).for_each(finish);
    }
    let document = serde_json::to_vec(&document).expect("a document is plain data");
    Bytes::from(document)
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let methods = [
        &mut item.get,
        &mut item.put,
        &mut item.post,
        &mut item.patch,
        &mut item.delete,
    ];
    methods.into_iter().flatten()
}

/// Whatever fails is a problem document: said once here, instead of at every call.
fn finish(operation: &mut Operation) {
    let responses = &mut operation.responses.responses;
    for (status, response) in responses.iter_mut() {
        let is_failure = status.starts_with('4') || status.starts_with('5');
        if let RefOr::T(response) = response
            && is_failure
            && let Some(content) = response.content.shift_remove("application/json")
        {
            let kind = if is_problem(&content) {
                PROBLEM_CONTENT_TYPE
            } else {
                "application/json"
            };
            response.content.insert(kind.to_owned(), content);
        }
    }
    let mut other = Response::new("Any other failure: see `code`");
    let content = Content::new(Some(problem()));
    other
        .content
        .insert(PROBLEM_CONTENT_TYPE.to_owned(), content.into());
    responses.insert("default".to_owned(), other.into());
}

fn problem() -> Ref {
    Ref::from_schema_name("Problem")
}

fn is_problem(content: &RefOr<Content>) -> bool {
    let RefOr::T(content) = content else {
        return false;
    };
    matches!(&content.schema, Some(RefOr::Ref(schema)) if schema.ref_location == problem().ref_location)
}
