//! Schemas of the types that are more than their fields: names, keys, tokens, payloads, codes, times.

use std::borrow::Cow;
use std::marker::PhantomData;

use utoipa::openapi::schema::{AnyOfBuilder, KnownFormat, ObjectBuilder, SchemaFormat, Type};
use utoipa::openapi::{Ref, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::{Code, Secret};
use crate::{
    Claim, ClaimCall, ClaimRequest, Completion, DaemonId, ElectionName, Ends, Failure, Heartbeat,
    Incarnation, JobId, JobType, Key, Namespace, NodeId, Payload, QueueName, ScheduleName, Token,
    Traceparent, Tracestate,
};

/// What every name is held to; see [`crate::NameError`].
const NAME_PATTERN: &str = r"^[A-Za-z0-9\-_:@+=][A-Za-z0-9\-_.:@+=]*$";

/// What the names of jobs, queues and schedules are held to as well: none could be taken for an option of a command.
const JOB_PATTERN: &str = r"^[A-Za-z0-9_:@+=][A-Za-z0-9\-_.:@+=]*$";

/// What is written; a later version than 0 is read too.
const TRACEPARENT_PATTERN: &str = "^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$";

const TRACESTATE_PATTERN: &str = r"^[a-z0-9_*/@\-]{1,256}=([ -+\--<>-~]{0,255}[!-+\--<>-~])?(,[a-z0-9_*/@\-]{1,256}=([ -+\--<>-~]{0,255}[!-+\--<>-~])?){0,31}$";

fn text(description: &str, pattern: &str, length_max: usize) -> RefOr<Schema> {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some(description))
        .pattern(Some(pattern))
        .min_length(Some(1))
        .max_length(Some(length_max))
        .into()
}

macro_rules! texts {
    ($($name:ident: $description:literal, $pattern:expr, $length_max:literal;)*) => {$(
        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                text($description, $pattern, $length_max)
            }
        }

        impl ToSchema for $name {
            fn name() -> Cow<'static, str> {
                stringify!($name).into()
            }
        }
    )*};
}

texts! {
    Namespace: "The name of a namespace.", NAME_PATTERN, 200;
    NodeId: "The name of a node, or of a candidate.", NAME_PATTERN, 200;
    ElectionName: "The name of an election.", NAME_PATTERN, 200;
    Secret: "A secret that only the candidate's program knows.", "^[!-~]{16,200}$", 200;
    JobId: "A job's id, chosen by the submitter: sending it twice adds one job.", JOB_PATTERN, 200;
    JobType: "The type of a job.", JOB_PATTERN, 200;
    QueueName: "The name of a queue.", JOB_PATTERN, 200;
    ScheduleName: "The name of a schedule.", JOB_PATTERN, 200;
    DaemonId: "The name of a daemon.", NAME_PATTERN, 200;
    Incarnation: "One start of one process.", "^[0-9a-f]{32}$", 32;
    Token: "The token from the answer to the claim.", "^[0-9a-fA-F]{1,16}-[0-9a-fA-F]{1,8}$", 25;
    Traceparent: "A span, in W3C Trace Context format.", TRACEPARENT_PATTERN, 55;
    Tracestate: "The trace state of a span, in W3C Trace Context format: at most 32 members.", TRACESTATE_PATTERN, 512;
    Key: "Any text of 1 to 200 bytes without control characters.", r"^[^\u0000-\u001f\u007f-\u009f]+$", 200;
}

impl PartialSchema for Payload {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(utoipa::openapi::schema::SchemaType::AnyValue)
            .description(Some("Any JSON value, stored unchanged."))
            .into()
    }
}

impl ToSchema for Payload {
    fn name() -> Cow<'static, str> {
        "Payload".into()
    }
}

impl PartialSchema for Code {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some(
                "For programs. A code never changes its meaning; new codes may be added.",
            ))
            .enum_values(Some(Code::ALL.iter().map(|code| code.as_str())))
            .into()
    }
}

impl ToSchema for Code {
    fn name() -> Cow<'static, str> {
        "Code".into()
    }
}

/// The body of a call about one claim: an item of a batch without its id, which is in the address.
#[derive(Debug)]
pub struct Single<T>(PhantomData<T>);

macro_rules! singles {
    ($($name:ident: $item:ident, $call:literal;)*) => {$(
        #[doc = concat!("`POST /v1/jobs/{id}/", $call, "`.")]
        pub type $name = Single<$item>;

        impl PartialSchema for Single<$item> {
            fn schema() -> RefOr<Schema> {
                let mut schema = $item::schema();
                if let RefOr::T(Schema::Object(object)) = &mut schema {
                    object.properties.remove("id");
                    object.required.retain(|field| field != "id");
                    object.description = Some(concat!("`POST /v1/jobs/{id}/", $call, "`.").to_owned());
                }
                schema
            }
        }

        impl ToSchema for Single<$item> {
            fn name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
                $item::schemas(schemas);
            }
        }
    )*};
}

singles! {
    HeartbeatSingle: Heartbeat, "heartbeat";
    Complete: Completion, "complete";
    Fail: Failure, "fail";
    Release: Claim, "release";
}

/// A claim and one field more: as one object, which refuses what it does not know.
impl PartialSchema for ClaimCall {
    fn schema() -> RefOr<Schema> {
        let mut schema = ClaimRequest::schema();
        if let RefOr::T(Schema::Object(object)) = &mut schema {
            let ends = Ref::from_schema_name(Ends::name());
            object.properties.insert("ends".to_owned(), ends.into());
            let description = "`POST /v1/jobs/claim`: what to claim, and the ends of earlier claims to report with it. \
                The ends are carried out first, in the same commit. A claim with ends does not wait for jobs.";
            object.description = Some(description.to_owned());
        }
        schema
    }
}

impl ToSchema for ClaimCall {
    fn name() -> Cow<'static, str> {
        ClaimRequest::name()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        ClaimRequest::schemas(schemas);
        schemas.push((Ends::name().into_owned(), Ends::schema()));
        Ends::schemas(schemas);
    }
}

/// Milliseconds since 1970, or RFC 3339 text.
pub(crate) fn time_or_text() -> RefOr<Schema> {
    let milliseconds = ObjectBuilder::new()
        .schema_type(Type::Integer)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
        .minimum(Some(0));
    let time = ObjectBuilder::new()
        .schema_type(Type::String)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)));
    let null = ObjectBuilder::new().schema_type(Type::Null);
    AnyOfBuilder::new()
        .item(milliseconds)
        .item(time)
        .item(null)
        .description(Some("Milliseconds since 1970, or RFC 3339 text."))
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Submission;

    #[test]
    fn schemas_say_what_the_types_take() {
        let schema = serde_json::to_value(Submission::schema()).unwrap();
        assert_eq!(schema["required"], serde_json::json!(["type"]));
        assert_eq!(
            schema["properties"]["run_at"]["anyOf"][0]["type"],
            "integer"
        );
        let name = serde_json::to_value(JobId::schema()).unwrap();
        assert_eq!(name["maxLength"], 200);
        let payload = serde_json::to_value(Payload::schema()).unwrap();
        assert_eq!(payload["type"], serde_json::Value::Null, "anything goes");
    }
}
