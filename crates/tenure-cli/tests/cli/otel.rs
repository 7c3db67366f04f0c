//! One trace from the submit to the worker's program, as a collector sees it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind};
use prost::Message as _;
use rustix::process::{Pid, Signal, kill_process};

use crate::serve::Serving;
use crate::support::{run, tenure};

/// Long enough for a slow machine; nothing is measured against it.
const PATIENCE: Duration = Duration::from_secs(60);

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

/// A collector of OTLP over HTTP.
struct Collector {
    url: String,
    received: Arc<Received>,
}

#[derive(Default)]
struct Received {
    /// Each with the name of the service that sent it.
    spans: Mutex<Vec<(String, Span)>>,
    changed: Condvar,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let received = Arc::new(Received::default());
        let shared = received.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let shared = shared.clone();
                std::thread::spawn(move || serve(&stream.unwrap(), &shared));
            }
        });
        Self { url, received }
    }

    /// Waits for a span that matches.
    #[track_caller]
    fn finds(&self, what: &str, holds: impl Fn(&str, &Span) -> bool) -> Span {
        let spans = self.received.spans.lock().unwrap();
        let is_there = |spans: &mut Vec<(String, Span)>| {
            !spans.iter().any(|(service, span)| holds(service, span))
        };
        let waiting = self
            .received
            .changed
            .wait_timeout_while(spans, PATIENCE, is_there);
        let (spans, _) = waiting.unwrap();
        let found = spans.iter().find(|(service, span)| holds(service, span));
        let found = found.unwrap_or_else(|| panic!("there is no {what} in {spans:#?}"));
        found.1.clone()
    }
}

/// Answers the requests of one connection.
fn serve(stream: &TcpStream, received: &Received) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).unwrap_or(0) == 0 {
                return;
            }
        }
        assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
        let head = head.to_lowercase();
        assert!(
            head.contains("content-type: application/x-protobuf"),
            "{head}"
        );
        let length = head.split("content-length: ").nth(1).unwrap();
        let length: usize = length.lines().next().unwrap().parse().unwrap();
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let request = ExportTraceServiceRequest::decode(&body[..]).unwrap();
        for resource in request.resource_spans {
            let service = format!("{:?}", resource.resource);
            let spans = resource
                .scope_spans
                .into_iter()
                .flat_map(|scope| scope.spans);
            let mut all = received.spans.lock().unwrap();
            all.extend(spans.map(|span| (service.clone(), span)));
        }
        received.changed.notify_all();
        (&mut &*stream)
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            .unwrap();
    }
}

/// Variables that make a process send spans there, soon.
fn export_to(url: &str) -> [(&str, &str); 4] {
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", url),
        ("OTEL_BSP_SCHEDULE_DELAY", "20"),
        // As on a host without any authorities' certificates: a collector at http:// needs none.
        ("SSL_CERT_FILE", "/nowhere/certificates.pem"),
        ("SSL_CERT_DIR", "/nowhere"),
    ]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn has(span: &Span, attribute: &str) -> bool {
    span.attributes.iter().any(|each| each.key == attribute)
}

fn kind(span: &Span) -> SpanKind {
    SpanKind::try_from(span.kind).unwrap()
}

#[test]
fn a_collector_sees_one_trace_from_the_submit_to_the_program() {
    let collector = Collector::start();
    let export = export_to(&collector.url);
    let folder = tempfile::tempdir().unwrap();
    let serving = Serving::start_with(folder.path(), &["--store", "memory:"], &export);
    let server = format!("http://{}", serving.address);
    let program = r#"echo "\"$TRACEPARENT\"""#;
    let mut worker = tenure(&["worker", "--type", "work", "--exec", program])
        .env("TENURE_SERVER", &server)
        .env("OTEL_SERVICE_NAME", "the-worker")
        .envs(export)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let submit = ["job", "submit", "work", "--wait", "1m", "--json"];
    let (code, job, _) = run(tenure(&submit)
        .env("TENURE_SERVER", &server)
        .env("TRACEPARENT", format!("00-{TRACE}-{CALLER}-01")));
    assert_eq!(code, 0, "{job}");
    let job: serde_json::Value = serde_json::from_str(&job).unwrap();

    let handler = collector.finds("span of the handler", |service, span| {
        span.name == "process work" && service.contains("the-worker")
    });
    assert_eq!(hex(&handler.trace_id), TRACE);
    assert_eq!(hex(&handler.parent_span_id), CALLER);
    assert_eq!(kind(&handler), SpanKind::Consumer);
    // The program continues the trace.
    let passed_on = format!("00-{TRACE}-{}-01", hex(&handler.span_id));
    assert_eq!(job["result"], passed_on);

    let request = collector.finds("span of a request", |service, span| {
        span.name == "POST /v1/jobs" && service.contains("\"tenure\"")
    });
    assert_eq!(kind(&request), SpanKind::Server);
    assert!(has(&request, "tenure.node"), "{request:?}");
    collector.finds("commit", |_, span| span.name == "commit");
    let elected = collector.finds("election", |_, span| span.name == "elected");
    assert!(
        has(&elected, "node") && has(&elected, "incarnation"),
        "{elected:?}"
    );

    // The remaining spans are sent before the process ends.
    let (code, _) = serving.end(Signal::TERM);
    assert_eq!(code, Some(0));
    collector.finds("end of the term", |_, span| span.name == "term ended");
    kill_process(Pid::from_child(&worker), Signal::TERM).unwrap();
    worker.wait().unwrap();
}

#[test]
fn a_request_is_a_child_of_its_caller() {
    let collector = Collector::start();
    let export = export_to(&collector.url);
    let folder = tempfile::tempdir().unwrap();
    let serving = Serving::start_with(folder.path(), &["--store", "memory:"], &export);
    let mut stream = TcpStream::connect(&serving.address).unwrap();
    write!(
        stream,
        "GET /v1/queues HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
         traceparent: 00-{TRACE}-{CALLER}-01\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let span = collector.finds("span of the request", |_, span| {
        span.name == "GET /v1/queues" && hex(&span.trace_id) == TRACE
    });
    assert_eq!(hex(&span.parent_span_id), CALLER);
}

#[test]
fn a_collector_that_is_gone_harms_nothing_and_is_told_of_once() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", gone.local_addr().unwrap());
    drop(gone);
    let export = export_to(&url);
    let folder = tempfile::tempdir().unwrap();
    let serving = Serving::start_with(folder.path(), &["--store", "memory:"], &export);
    for _ in 0..20 {
        let (status, answer) = serving.ask("POST", "/v1/jobs", r#"{"type":"t"}"#);
        assert!(status == 201 || status == 503, "{status} {answer}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let before = serving.banner.clone();
    let (code, rest) = serving.end(Signal::TERM);
    let said = before + &rest;
    assert_eq!(code, Some(0), "{said}");
    let told = said.matches("cannot export spans").count();
    assert_eq!(told, 1, "{said}");
}
