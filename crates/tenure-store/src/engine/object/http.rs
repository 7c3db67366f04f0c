//! The wire under `object_store`: sends every write at most once, and sees its outcome.
//!
//! `object_store` folds an answer into an error that hides what matters here: whether a write was sent
//! at all, whether an answer came, and which one. So each operation runs inside [`witness`], and the
//! HTTP service notes every request of that operation: nothing above it, neither a retry loop nor an
//! error type, can change what was seen.
//!
//! No layer may send a conditional write twice: the second would fail on the first, and a lost answer
//! would look like a conflict with someone else. From the top: the client for writes has no retries;
//! this service refuses the second write of one operation; redirects and reqwest's own retries are
//! off. hyper's pool does move a request to another connection if the pooled one turns out to be
//! closed, but only a request that it gets back untouched, of which no byte was written.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use http::header::{IF_MATCH, IF_NONE_MATCH, SERVER};
use http::{HeaderMap, Method, StatusCode};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};
use tokio::time::timeout;

use super::{answer, date};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// How long an answer may take, besides the time for the value. Callers with a lease to keep put their own, tighter
/// limit around each operation.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// How slowly a value may travel before the request is cancelled: 8 MiB get 32 seconds more.
const BYTES_PER_SECOND_MIN: u64 = 256 * 1024;

/// Less than the 5 seconds after which the least patient servers close an idle connection, so that a
/// write is hardly ever sent into one that is being closed, which ends as unknown.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// The addresses at which cloud machines ask for credentials. Elsewhere nothing answers there, and callers should not
/// wait long to find that out.
const CREDENTIAL_HOSTS: [&str; 3] = [
    "169.254.169.254",
    "169.254.170.2",
    "metadata.google.internal",
];
const CREDENTIAL_TIMEOUT: Duration = Duration::from_secs(1);

tokio::task_local! {
    static SEEN: RefCell<Seen>;
}

/// What was seen on the wire during one operation.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// How the last request ended, also one for credentials.
    pub(super) last: Option<Ending>,
    /// Whether the last request was to an address that only hands out credentials.
    pub(super) last_for_credentials: bool,
    /// How the write ended; `None` if it was never sent.
    pub(super) write: Option<Ending>,
    pub(super) write_started: bool,
}

/// How a request ended.
#[derive(Debug, Clone)]
pub(super) enum Ending {
    /// The server answered.
    Answered(Answer),
    /// No connection was made, so nothing was sent.
    NotSent { why: String },
    /// It may have been sent, and no answer came.
    Lost { why: String },
}

/// The part of an answer that decides what it means.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    /// The service's own name for an error.
    pub(super) code: Option<String>,
    /// How old the object is at least, by the server's clock.
    pub(super) age: Option<Duration>,
    /// Whether the server is one that lists folder by folder.
    pub(super) walks_folders: bool,
}

/// Runs one operation and reports what was seen of it on the wire. `object_store` makes its requests on
/// the task that asks for them, so a task-local reaches them all.
pub(super) async fn witness<T>(operation: impl Future<Output = T>) -> (T, Seen) {
    let operation = async {
        let result = operation.await;
        (result, SEEN.with(RefCell::take))
    };
    SEEN.scope(RefCell::default(), operation).await
}

/// Makes the HTTP clients for all the `object_store` clients of one store, which thus share their
/// connections.
#[derive(Debug, Clone, Default)]
pub(super) struct Connector {
    secure: Arc<OnceLock<reqwest::Client>>,
    /// Also speaks plain HTTP: to an endpoint that was given as `http://`, and to the services on the same machine that
    /// hand out credentials.
    plain: Arc<OnceLock<reqwest::Client>>,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let allow_http = options.get_config_value(&ClientConfigKey::AllowHttp);
        let allow_http = allow_http.as_deref() == Some("true");
        let made = if allow_http {
            &self.plain
        } else {
            &self.secure
        };
        let client = match made.get() {
            Some(client) => client.clone(),
            None => {
                let client = new_client(allow_http).map_err(|error| generic(error.into()))?;
                made.get_or_init(|| client).clone()
            }
        };
        Ok(HttpClient::new(Wire { client }))
    }
}

fn generic(source: crate::Cause) -> object_store::Error {
    object_store::Error::Generic {
        store: "HTTP",
        source,
    }
}

fn new_client(allow_http: bool) -> Result<reqwest::Client, reqwest::Error> {
    // The provider of the TLS library is chosen once per process; the first choice wins.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let built = settings(allow_http).build();
    if built.is_err() && allow_http {
        // This host has no CA certificates, as in small containers. Plain HTTP needs none.
        return settings(allow_http).tls_certs_only([]).build();
    }
    built
}

/// Whether this host has CA certificates, without which no server at `https://` can be verified.
pub(super) fn has_authorities() -> bool {
    new_client(false).is_ok()
}

fn settings(allow_http: bool) -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .user_agent(concat!("tenure/", env!("CARGO_PKG_VERSION")))
        .https_only(!allow_http)
        // reqwest repeats what HTTP/2 says was not processed. That needs trust in every gateway on the
        // way, and over HTTP/1 a request is either answered or lost.
        .http1_only()
        .retry(reqwest::retry::never())
        // A redirect would send a PUT twice, or turn it into a GET whose 200 looks like success.
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(IDLE_TIMEOUT)
}

/// How long a request may take that carries this many bytes, in either direction.
pub(super) fn patience(bytes: u64) -> Duration {
    ANSWER_TIMEOUT + Duration::from_secs(bytes / BYTES_PER_SECOND_MIN)
}

/// The HTTP service of every client.
#[derive(Debug)]
struct Wire {
    client: reqwest::Client,
}

#[async_trait]
impl HttpService for Wire {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let kind = Kind::of(&request);
        if kind.is_write() && !start_write() {
            return Err(HttpError::new(
                HttpErrorKind::Unknown,
                std::io::Error::other("a write is not sent twice"),
            ));
        }
        let host = request.uri().host().unwrap_or_default();
        let for_credentials = CREDENTIAL_HOSTS.contains(&host);
        let patience = if for_credentials {
            CREDENTIAL_TIMEOUT
        } else {
            patience(request.body().content_length() as u64)
        };
        let exchange = async { answer::read(self.client.call(request).await?, kind).await };
        let result = timeout(patience, exchange).await.unwrap_or_else(|_| {
            Err(HttpError::new(
                HttpErrorKind::Timeout,
                std::io::Error::other(format!("not within {patience:?}")),
            ))
        });
        let (ending, result) = match result {
            Ok((answer, response)) => (Ending::Answered(answer), Ok(response)),
            Err(error) => (Ending::without_answer(&error), Err(error)),
        };
        note(ending, kind, for_credentials);
        result
    }
}

impl Ending {
    fn without_answer(error: &HttpError) -> Self {
        let mut why = Vec::new();
        let mut never_connected = false;
        // The cause of an `HttpError` is reqwest's error, without the URL and its signature.
        let mut cause = std::error::Error::source(error);
        while let Some(error) = cause {
            if let Some(error) = error.downcast_ref::<reqwest::Error>() {
                never_connected |= error.is_connect() || error.is_builder();
            }
            why.push(error.to_string());
            cause = error.source();
        }
        let why = why.join(": ");
        if never_connected {
            Ending::NotSent { why }
        } else {
            Ending::Lost { why }
        }
    }
}

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A conditional PUT or a DELETE.
    Write,
    /// Azure's DELETE inside a batch of one: `object_store` has no other.
    Batch,
    /// A page of a listing.
    List,
    /// A read, or something about credentials.
    Other,
}

impl Kind {
    fn of(request: &HttpRequest) -> Self {
        let headers = request.headers();
        // The instance metadata service is asked for credentials with a PUT, too.
        let has_condition = headers.contains_key(IF_MATCH)
            || headers.contains_key(IF_NONE_MATCH)
            || headers.contains_key("x-goog-if-generation-match");
        let asks = |pair| {
            let mut pairs = request.uri().query().unwrap_or_default().split('&');
            pairs.any(|each| each == pair)
        };
        match *request.method() {
            Method::PUT if has_condition => Kind::Write,
            Method::DELETE => Kind::Write,
            Method::POST if asks("comp=batch") => Kind::Batch,
            Method::GET if asks("list-type=2") || asks("comp=list") => Kind::List,
            _ => Kind::Other,
        }
    }

    fn is_write(self) -> bool {
        matches!(self, Kind::Write | Kind::Batch)
    }
}

/// Whether this is the first write of the operation.
fn start_write() -> bool {
    SEEN.try_with(|seen| !std::mem::replace(&mut seen.borrow_mut().write_started, true))
        .unwrap_or(true)
}

fn note(ending: Ending, kind: Kind, for_credentials: bool) {
    // Outside an operation nobody needs the ending.
    let _ = SEEN.try_with(|seen| {
        let mut seen = seen.borrow_mut();
        if kind.is_write() {
            seen.write = Some(ending.clone());
        }
        seen.last = Some(ending);
        seen.last_for_credentials = for_credentials;
    });
}

impl Answer {
    pub(super) fn new(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        Self {
            status,
            code: answer::code(headers, body),
            age: date::age(headers),
            walks_folders: headers
                .get(SERVER)
                .is_some_and(|server| server.as_bytes().starts_with(b"SeaweedFS")),
        }
    }
}

#[cfg(test)]
mod tests {
    use object_store::client::HttpRequestBody;

    use super::*;

    fn request(method: &str, uri: &str, header: Option<&str>) -> HttpRequest {
        let mut request = http::Request::builder().method(method).uri(uri);
        if let Some(name) = header {
            request = request.header(name, "x");
        }
        request.body(HttpRequestBody::empty()).unwrap()
    }

    #[test]
    fn every_write_is_told_from_a_request_for_credentials() {
        for (method, uri, header, kind) in [
            ("PUT", "/bucket/key", Some("if-match"), Kind::Write),
            ("PUT", "/bucket/key", Some("if-none-match"), Kind::Write),
            (
                "PUT",
                "/b/k",
                Some("x-goog-if-generation-match"),
                Kind::Write,
            ),
            ("DELETE", "/bucket/key", None, Kind::Write),
            ("POST", "/c?restype=container&comp=batch", None, Kind::Batch),
            ("GET", "/bucket?list-type=2&prefix=a", None, Kind::List),
            ("GET", "/c?restype=container&comp=list", None, Kind::List),
            ("GET", "/bucket/key", Some("if-none-match"), Kind::Other),
            ("PUT", "/latest/api/token", None, Kind::Other),
            ("POST", "/token", None, Kind::Other),
        ] {
            assert_eq!(
                Kind::of(&request(method, uri, header)),
                kind,
                "{method} {uri}"
            );
        }
    }

    #[tokio::test]
    async fn the_second_write_of_one_operation_is_not_sent() {
        let wire = Connector::default();
        let options = ClientOptions::new().with_allow_http(true);
        let client = wire.connect(&options).unwrap();
        // Nothing listens on port 1, so the first write ends as not sent.
        let write = || request("PUT", "http://127.0.0.1:1/bucket/key", Some("if-match"));
        let ((first, second), seen) = witness(async {
            let first = client.execute(write()).await.unwrap_err();
            (first, client.execute(write()).await.unwrap_err())
        })
        .await;
        assert_eq!(first.kind(), HttpErrorKind::Connect);
        assert!(second.to_string().contains("not sent twice"), "{second}");
        assert!(
            matches!(seen.write, Some(Ending::NotSent { .. })),
            "{seen:?}"
        );
    }

    #[tokio::test]
    async fn plain_http_is_refused_unless_it_was_named() {
        let client = Connector::default().connect(&ClientOptions::new()).unwrap();
        let get = request("GET", "http://127.0.0.1:1/", None);
        let (error, seen) = witness(client.execute(get)).await;
        assert!(error.is_err());
        let Some(Ending::NotSent { why, .. }) = seen.last else {
            panic!("{seen:?}");
        };
        assert!(why.contains("scheme"), "{why}");
    }
}
