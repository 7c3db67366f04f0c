//! The client: which nodes, which token, how long.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use reqwest::header::HeaderValue;
use url::Url;

use crate::discovery::{Finder, Nodes, is_loopback};
use crate::elections::Secrets;
use crate::error::Error;
use crate::submit::Submits;
use crate::together::Together;
use crate::transport::Transport;

/// How long it may take until a node takes the connection. Short: the next node is waiting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Speaks to the nodes of one cluster. Cheap to clone; all clones share connections and know the node that
/// answered last.
#[derive(Clone)]
pub struct Client {
    pub(crate) transport: Arc<Transport>,
    /// Of the candidates that it has registered.
    pub(crate) secrets: Secrets,
    /// Jobs that are submitted at the same time.
    pub(crate) submits: Submits,
    /// Ends and heartbeats that are told at the same time.
    pub(crate) together: Arc<Together>,
}

/// What a client is made of.
#[derive(Clone)]
pub struct Builder {
    urls: Vec<String>,
    token: Option<String>,
    attempt_timeout: Duration,
    deadline: Duration,
    discovers: bool,
    finder: Option<Finder>,
}

impl Client {
    /// A client of these nodes, such as `["http://10.0.0.1:8080", "http://10.0.0.2:8080"]`, with everything
    /// else at its default. Connects to nobody yet.
    pub fn new<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Result<Self, Error> {
        Self::builder(urls).build()
    }

    /// A client of these nodes.
    pub fn builder<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Builder {
        Builder {
            urls: urls.into_iter().map(Into::into).collect(),
            token: None,
            attempt_timeout: Duration::from_secs(10),
            deadline: Duration::from_secs(30),
            discovers: true,
            finder: None,
        }
    }

    /// The nodes, as they may be shown: without passwords.
    #[must_use]
    pub fn nodes(&self) -> Vec<String> {
        (0..self.transport.count())
            .map(|place| self.transport.shown(place))
            .collect()
    }
}

impl Builder {
    /// The bearer token. Shown nowhere.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// How long one try may take before the next node is asked. Default 10 s. Waits that a call asks for
    /// come on top.
    #[must_use]
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.attempt_timeout = timeout;
        self
    }

    /// How long a call goes on trying. Default 30 s, which outlasts a takeover at the server's default
    /// ttl of 10 s. A call makes at least one try.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Whether a broker that answers is asked for the others, so that the client carries on when those that it was
    /// given are gone. Default: yes.
    #[must_use]
    pub fn discover(mut self, discovers: bool) -> Self {
        self.discovers = discovers;
        self
    }

    /// Another way to find brokers, such as a store that names them: it is asked for their URLs when none of those that are
    /// known answers, every two seconds at most.
    #[must_use]
    pub fn find_with<F>(mut self, find: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Vec<String>> + Send + 'static,
    {
        self.finder = Some(Arc::new(move || Box::pin(find())));
        self
    }

    /// Checks the parts and makes the client.
    pub fn build(self) -> Result<Client, Error> {
        let nodes = self
            .urls
            .iter()
            .map(|url| node(url))
            .collect::<Result<Vec<Url>, Error>>()?;
        if nodes.is_empty() {
            return Err(Error::invalid("url", "no broker was named"));
        }
        let token = self.token.as_deref().map(bearer).transpose()?;
        let is_plain = nodes.iter().all(|node| node.scheme() == "http");
        let http = http(nodes.iter().all(is_loopback), is_plain).map_err(|error| {
            let first: &dyn StdError = &error;
            let cause = std::iter::successors(Some(first), |&error| error.source());
            let cause = cause.last().map(ToString::to_string).unwrap_or_default();
            let hint = "for https:// install ca-certificates, or set SSL_CERT_FILE";
            Error::invalid(
                "url",
                &format!("cannot create an HTTP client: {cause}; {hint}"),
            )
        })?;
        let transport = Arc::new(Transport {
            http,
            nodes: Arc::new(Nodes::new(nodes, self.discovers, self.finder)),
            preferred: AtomicUsize::new(0),
            token,
            attempt_timeout: self.attempt_timeout.max(Duration::from_millis(1)),
            deadline: self.deadline,
        });
        Ok(Client {
            secrets: Secrets::default(),
            submits: Submits::new(transport.clone()),
            together: Arc::new(Together::new(&transport)),
            transport,
        })
    }
}

fn node(text: &str) -> Result<Url, Error> {
    // The text is not repeated: it may hold a password.
    let wrong = |why: &str| Error::invalid("url", &format!("the URL of a broker {why}"));
    let url = Url::parse(text.trim())
        .map_err(|error| wrong(&format!("is not valid ({error}); use http://HOST:PORT")))?;
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
        return Err(wrong("must start with http://HOST or https://HOST"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(wrong("must not have a query or a fragment"));
    }
    Ok(url)
}

fn bearer(token: &str) -> Result<HeaderValue, Error> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.trim())).map_err(|_| {
        Error::invalid("token", "the token contains characters that cannot be sent")
    })?;
    value.set_sensitive(true);
    Ok(value)
}

fn http(is_local: bool, is_plain: bool) -> Result<reqwest::Client, reqwest::Error> {
    // The provider of the TLS library is chosen once per process; the first choice stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let built = settings(is_local).build();
    if built.is_err() && is_plain {
        // A host without certificates of authorities, as small containers are: it needs none to speak plain HTTP. A broker at
        // https:// that it hears about later is not trusted.
        return settings(is_local).tls_certs_only([]).build();
    }
    built
}

fn settings(is_local: bool) -> reqwest::ClientBuilder {
    let mut http = reqwest::Client::builder()
        .user_agent(concat!("tenure-client/", env!("CARGO_PKG_VERSION")))
        .http1_only()
        // What may be sent again is decided per call, not by the library.
        .retry(reqwest::retry::never())
        // A redirect would turn a POST into a GET, or carry the token elsewhere.
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        // A host that died without a word is noticed, also while a claim waits.
        .tcp_keepalive(Duration::from_secs(15))
        // A server closes idle connections after a while: be the first, or a request meets the end.
        .pool_idle_timeout(Duration::from_secs(20));
    if is_local {
        // A proxy elsewhere would speak to its own loopback.
        http = http.no_proxy();
    }
    http
}

impl fmt::Debug for Client {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("Client");
        debug.field("nodes", &self.nodes()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither the token nor the URLs, which may hold passwords.
        formatter.debug_struct("Builder").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_urls_are_refused_without_repeating_them() {
        for (url, problem) in [
            ("", "is not valid"),
            ("10.0.0.1:8080", "is not valid"),
            ("ftp://u:secret@a", "must start with http://"),
            ("http://u:secret@a/?x=1", "must not have a query"),
        ] {
            let error = Client::new([url]).unwrap_err();
            assert!(error.to_string().contains(problem), "{error}");
            assert!(!format!("{error:?}").contains("secret"), "{error:?}");
        }
        let none: [&str; 0] = [];
        assert!(Client::new(none).is_err());
    }

    #[test]
    fn no_secret_is_shown() {
        let builder = Client::builder(["http://u:secret@a:1"]).token("secret");
        assert!(!format!("{builder:?}").contains("secret"));
        let client = builder.build().unwrap();
        assert_eq!(client.nodes(), ["http://a:1"]);
        assert!(!format!("{client:?}").contains("secret"));
        let error = Client::builder(["http://a"]).token("sec\nret").build();
        assert!(!format!("{error:?}").contains("sec"));
    }
}
