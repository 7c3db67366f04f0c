//! A server's configuration, checked once; all mistakes are reported together.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tenure::cluster;
use tenure::core::queue as core;
use tenure::core::session;
use tenure_store::wrap::throttled::{self, Throttle};
use url::Url;

use crate::handlers::osqueue::{Door, Network};
use crate::{Scope, Tls, Tokens, extract};

/// The default store.
pub const STORE_DEFAULT: &str = "file:./tenure-data";

/// The default address to listen on.
pub const LISTEN_DEFAULT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// The default ttl with `economy`.
pub const ECONOMY_TTL_DEFAULT: Duration = Duration::from_secs(120);

/// How a server is set up. The defaults are right for a first try on one host.
#[derive(Debug, Clone)]
pub struct Config {
    /// The store, by URL. Every server of a namespace uses the same one.
    pub store: String,
    /// The namespace. All keys of one cluster are under it.
    pub namespace: String,
    /// This node's name, which stays the same over restarts. Default: the host's name and the port.
    pub node: Option<String>,
    /// Where to listen. Port 0 takes a free one. An address that others can reach needs tokens.
    pub listen: SocketAddr,
    /// The URL under which the other servers reach this one, to forward to it when it leads. Default: the address
    /// listened on, unless that is a wildcard.
    pub advertise: Option<String>,
    /// How long until the others replace a server that is not heard from. Shorter: a faster takeover, and
    /// more heartbeats (three per ttl). It has to be well above the store's slowest answers.
    pub ttl: Duration,
    /// How often this server's session is renewed. Default: 3/10 of the ttl, with `economy` half of it.
    pub heartbeat: Option<Duration>,
    /// How long one request of the session to the store may take before its answer counts as lost. Default: 2/10 of the
    /// ttl, with `economy` 1/10 and at most 10 s.
    pub request_timeout: Option<Duration>,
    /// How long a node has to start a shard that it was given, while this server assigns daemons. Default: 30 s, or
    /// more where the ttl asks for it.
    pub acknowledge_timeout: Option<Duration>,
    /// How long a node has to end a shard that is taken from it. Default: 30 s, or more where the ttl asks for it.
    pub drain_timeout: Option<Duration>,
    /// Whether to send as few requests to the store as the ttl allows, for stores that bill each request. Halves the
    /// number of heartbeats; a crash is still noticed after the ttl.
    pub economy: bool,
    /// Ceilings on the requests to the store, of this server alone. What its heartbeats need is kept in reserve.
    pub throttle: throttled::Config,
    /// From 0 to 100. When there is no leader, servers with a higher priority come first.
    pub priority: u8,
    /// Labels of this node, for placement.
    pub labels: BTreeMap<String, String>,
    /// How the queue's log is written.
    pub log: tenure::queue::Config,
    /// What one job or batch may hold.
    pub queue: core::Limits,
    /// Who may do what. Without tokens, everybody who can reach the address may do everything, so the address has to be
    /// on loopback.
    pub tokens: Tokens,
    /// Certificate and key for HTTPS.
    pub tls: Option<Tls>,
    /// Limits on what clients may use.
    pub limits: Limits,
    /// A listener for clients of osqueue, and nothing else.
    pub osqueue: Option<Osqueue>,
    /// Web pages of these origins may call this server, for example `https://app.example.org`. Others may not, except
    /// this server's own pages.
    pub cors_origins: Vec<String>,
}

/// A listener that serves osqueue's calls at its root.
#[derive(Clone)]
pub struct Osqueue {
    /// Where to listen. Port 0 takes a free one. An address that others can reach needs tokens.
    pub listen: SocketAddr,
    /// Calls from these networks without a token use the token below.
    pub networks: Vec<Network>,
    /// One of the server's tokens. Its scope is what these networks may do.
    pub token: Option<String>,
}

/// Without the token.
impl std::fmt::Debug for Osqueue {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = formatter.debug_struct("Osqueue");
        shown.field("listen", &self.listen);
        shown.field("networks", &self.networks);
        shown.finish_non_exhaustive()
    }
}

impl Osqueue {
    /// A listener at an address, for callers who have a token.
    #[must_use]
    pub const fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            networks: Vec::new(),
            token: None,
        }
    }

    pub(crate) fn door(&self, config: &Config) -> Door {
        let advertised = config.advertise.as_deref().map(advertised);
        let own_name = advertised.and_then(|url| url.ok()?.host_str().map(str::to_owned));
        Door::new(
            self.networks.clone(),
            self.token.as_deref(),
            config.cors_origins.clone(),
            own_name,
        )
    }

    fn violations(&self, tokens: &Tokens) -> Vec<String> {
        let mut violations = Vec::new();
        if !self.listen.ip().is_loopback() && tokens.is_empty() {
            violations.push(format!(
                "other hosts can reach {} for osqueue, but no token is configured",
                self.listen
            ));
        }
        match &self.token {
            None if !self.networks.is_empty() && !tokens.is_empty() => violations.push(
                "networks are named for osqueue, but no token that their calls are made with"
                    .to_owned(),
            ),
            Some(token) if !tokens.is_empty() && tokens.scope_of(token) < Some(Scope::Worker) => {
                violations.push(
                    "the token for osqueue's networks is not one of this server's for workers"
                        .to_owned(),
                );
            }
            Some(token) if tokens.scope_of(token) == Some(Scope::Admin) && !tokens.is_empty() => {
                violations.push(
                    "the token for osqueue's networks is one for admins: give them one for workers"
                        .to_owned(),
                );
            }
            _ => {}
        }
        violations
    }
}

const TTL_DEFAULT: Duration = Duration::from_secs(10);

const MINUTES_PER_DAY: u32 = 24 * 60;

/// How many requests that read belong to a heartbeat of an idle broker, as counted for docs/cost.md.
const READS_PER_HEARTBEAT: u32 = 4;

/// So much more than its heartbeats is kept for a session: for the leases, and for heartbeats that are sent again.
const RESERVE_SHARE: u32 = 10;
const RESERVE_MIN: u32 = 50;

/// What clients may take of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// The most connections. A waiting worker takes one. When all are taken, the oldest one that has not been allowed
    /// any call yet is closed. If there is none, further connections get answers about the server's health, and
    /// otherwise that it is full.
    pub connections_max: usize,
    /// The most calls that wait: claims without a job yet, and forwarded calls. Further ones are answered 429.
    pub waits_max: usize,
    /// The most followers of events. Further ones are answered 429.
    pub followers_max: usize,
    /// The most sockets of osqueue's clients (`/v1/ws`). Further ones are answered 429.
    pub sockets_max: usize,
    /// The most sessions of a namespace, of candidates over HTTP and of nodes, at which a new candidate is still let
    /// in. The leader of the cluster lists them all, with every heartbeat if there are daemons. Beyond that, a new
    /// candidate is answered 429.
    pub candidates_max: usize,
    /// The most elections that were ever held in a namespace. Another one over HTTP is answered 429.
    pub elections_max: usize,
    /// The largest body of a request.
    pub body_bytes_max: usize,
    /// The most bytes of all bodies together that are being received, with the buffers that they arrive in. Beyond
    /// that, connections that make no progress are closed, and further requests are answered 429.
    pub bodies_bytes_max: usize,
    /// The most bytes of all larger answers together that clients are reading. Beyond that, clients that make no
    /// progress lose their connection, and further calls are answered 429.
    pub answers_bytes_max: usize,
    /// How long a connection may be idle, or take to send the head of a request.
    pub head_timeout: Duration,
    /// How long a client may take to send a body.
    pub body_timeout: Duration,
    /// How long a client may read nothing of an answer that waits for it.
    pub write_timeout: Duration,
    /// How long a call that needs the leader is held while there is none to answer it, before it is answered 503.
    /// Should be long enough for another server to take over: the ttl, and the time to read the log. A leader that was
    /// asked gets no longer to answer either, but at least two seconds.
    pub hold_timeout: Duration,
    /// The most calls that are held. Further ones are answered 503 at once.
    pub holds_max: usize,
    /// How long requests may still run when the server stops. Waiting claims are answered at once.
    pub stop_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 10_000,
            waits_max: 10_000,
            followers_max: 256,
            sockets_max: 1_000,
            candidates_max: 1_000,
            elections_max: 10_000,
            body_bytes_max: 1024 * 1024,
            bodies_bytes_max: 256 * 1024 * 1024,
            answers_bytes_max: 128 * 1024 * 1024,
            head_timeout: Duration::from_secs(60),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            hold_timeout: Duration::from_secs(15),
            holds_max: 1_000,
            stop_timeout: Duration::from_secs(10),
        }
    }
}

/// Everything that is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", violations.join("; "))]
pub struct ConfigError {
    /// What is wrong.
    pub violations: Vec<String>,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Config {
    /// The defaults, for a store.
    #[must_use]
    pub fn new(store: impl Into<String>) -> Self {
        Self {
            store: store.into(),
            namespace: "default".to_owned(),
            node: None,
            listen: LISTEN_DEFAULT,
            advertise: None,
            ttl: TTL_DEFAULT,
            heartbeat: None,
            request_timeout: None,
            acknowledge_timeout: None,
            drain_timeout: None,
            economy: false,
            throttle: throttled::Config::default(),
            priority: 100,
            labels: BTreeMap::new(),
            log: tenure::queue::Config::default(),
            queue: core::Limits::default(),
            tokens: Tokens::none(),
            tls: None,
            limits: Limits::default(),
            osqueue: None,
            cors_origins: Vec::new(),
        }
    }

    /// The times of the session.
    #[must_use]
    pub fn session(&self) -> session::Config {
        let usual = if self.economy {
            session::Config::economical(self.ttl)
        } else {
            session::Config::for_ttl(self.ttl)
        };
        session::Config {
            heartbeat: self.heartbeat.unwrap_or(usual.heartbeat),
            request_timeout: self.request_timeout.unwrap_or(usual.request_timeout),
            ..usual
        }
    }

    /// The times of the cluster, while this server hands out daemons.
    #[must_use]
    pub fn cluster(&self) -> cluster::Config {
        let usual = cluster::Config::for_session(&self.session());
        cluster::Config {
            acknowledge_timeout: self
                .acknowledge_timeout
                .unwrap_or(usual.acknowledge_timeout),
            drain_timeout: self.drain_timeout.unwrap_or(usual.drain_timeout),
            ..usual
        }
    }

    /// The ceilings, if there are any. They keep in reserve what the session needs.
    pub(crate) fn throttle(&self) -> Result<Option<Throttle>, tenure_store::Error> {
        let throttled::Config {
            reads_per_minute,
            writes_per_minute,
            writes_per_day,
            ..
        } = self.throttle;
        if (reads_per_minute, writes_per_minute, writes_per_day) == (None, None, None) {
            return Ok(None);
        }
        let heartbeats = self.session().heartbeats_per_day();
        Throttle::new(throttled::Config {
            reserved_per_day: heartbeats + heartbeats / RESERVE_SHARE + RESERVE_MIN,
            ..self.throttle
        })
        .map(Some)
    }

    /// Whether heartbeats, which never wait, would take most of what may be written in a minute.
    fn starves_commits(&self) -> bool {
        let most = self.throttle.writes_per_minute;
        most.is_some_and(|most| most > 0 && most < 2 * self.heartbeats_per_minute())
    }

    /// Whether the reads that belong to heartbeats would take most of what may be read in a minute.
    fn starves_reads(&self) -> bool {
        let most = self.throttle.reads_per_minute;
        most.is_some_and(|most| most > 0 && most < 2 * self.reads_per_minute_idle())
    }

    fn reads_per_minute_idle(&self) -> u32 {
        READS_PER_HEARTBEAT * self.heartbeats_per_minute()
    }

    fn heartbeats_per_minute(&self) -> u32 {
        self.session().heartbeats_per_day() / MINUTES_PER_DAY + 1
    }

    fn with_usual_times(&self) -> Self {
        let ttl = match session::Config::for_ttl(self.ttl).check() {
            Ok(_) => self.ttl,
            Err(_) => TTL_DEFAULT,
        };
        Self {
            ttl,
            heartbeat: None,
            request_timeout: None,
            ..self.clone()
        }
    }

    fn violations_of_ceilings(&self) -> Vec<String> {
        let mut violations = Vec::new();
        if let Err(error) = self.throttle() {
            violations.push(error.to_string());
        }
        if self.starves_commits() {
            violations.push(format!(
                "writes_per_minute is less than twice the {} heartbeats of a minute: nothing else could be written in time",
                self.heartbeats_per_minute()
            ));
        }
        if self.starves_reads() {
            violations.push(format!(
                "reads_per_minute is less than twice the {} reads of an idle broker: nothing else could be read in time",
                self.reads_per_minute_idle()
            ));
        }
        let throttled::Config {
            reads_per_minute,
            writes_per_minute,
            writes_per_day,
            ..
        } = self.throttle;
        let has_ceiling = reads_per_minute
            .or(writes_per_minute)
            .or(writes_per_day)
            .is_some();
        if has_ceiling && self.store.starts_with("file:") {
            violations.push(
                "ceilings are for stores that bill each request: a directory has none".to_owned(),
            );
        }
        violations
    }

    /// Checks everything, and reports all violations together. Opens nothing.
    pub fn check(&self) -> Result<(), ConfigError> {
        let mut violations = Vec::new();
        let mut hint = None;
        let is_open = !self.listen.ip().is_loopback() && self.tokens.is_empty();
        if is_open {
            violations.push(format!(
                "other hosts can reach {}, but no token is configured",
                self.listen
            ));
            hint = Some("configure a token (see --tokens), or listen on 127.0.0.1".to_owned());
        }
        if let Err(error) = tenure::core::Namespace::new(&self.namespace) {
            violations.push(error.to_string());
        }
        if let Some(node) = &self.node
            && let Err(error) = tenure::core::NodeId::new(node)
        {
            violations.push(error.to_string());
        }
        let session = self.session().check();
        if let Err(error) = &session {
            violations.push(error.to_string());
        }
        if let Err(error) = self.cluster().check(&self.session()) {
            violations.push(error.to_string());
        }
        // Where its times are wrong, the usual ones stand in for what follows from them.
        let timed = match &session {
            Ok(_) => self.clone(),
            Err(_) => self.with_usual_times(),
        };
        violations.extend(timed.violations_of_ceilings());
        if let Err(error) = self.log.check() {
            violations.push(error.to_string());
        }
        if self.priority > 100 {
            violations.push(format!(
                "the priority is {}, but must be from 0 to 100",
                self.priority
            ));
        }
        match &self.advertise {
            Some(url) => match advertised(url) {
                Err(problem) => violations.push(problem),
                Ok(url) if self.tls.is_some() && url.scheme() != "https" => violations.push(
                    "there is a certificate, but the advertised URL is not https: tokens would cross the network in the clear"
                        .to_owned(),
                ),
                Ok(_) => {}
            },
            None if self.listen.ip().is_unspecified() => violations.push(format!(
                "{} means every address of this host, so set the URL for the other brokers",
                self.listen
            )),
            None => {}
        }
        violations.extend(self.limits.violations());
        if let Some(osqueue) = &self.osqueue {
            violations.extend(osqueue.violations(&self.tokens));
        }
        violations.extend(self.cors_origins.iter().filter_map(|origin| {
            let is_origin = Url::parse(origin).is_ok_and(|url| {
                url.origin().is_tuple() && url.origin().ascii_serialization() == *origin
            });
            (!is_origin).then(|| {
                format!("{origin:?} is not an origin: it must look like https://app.example.org")
            })
        }));
        if self.queue.payload_bytes_max > self.log.batch_bytes_max / 2 {
            violations.push(format!(
                "the largest payload has {} bytes, more than half of the largest commit ({})",
                self.queue.payload_bytes_max, self.log.batch_bytes_max
            ));
        }
        if violations.is_empty() {
            Ok(())
        } else {
            Err(ConfigError { violations, hint })
        }
    }
}

impl Limits {
    fn violations(&self) -> impl Iterator<Item = String> {
        let counts = [
            ("connections_max", self.connections_max, 1, 1_000_000),
            ("waits_max", self.waits_max, 1, 1_000_000),
            ("followers_max", self.followers_max, 1, 100_000),
            ("sockets_max", self.sockets_max, 1, 100_000),
            ("candidates_max", self.candidates_max, 1, 1_000_000),
            ("elections_max", self.elections_max, 1, 1_000_000),
            ("holds_max", self.holds_max, 0, 1_000_000),
            (
                "body_bytes_max",
                self.body_bytes_max,
                1024,
                64 * 1024 * 1024,
            ),
            // A page of jobs has to fit.
            (
                "answers_bytes_max",
                self.answers_bytes_max,
                2 * tenure::queue::PAGE_BYTES_MAX,
                usize::MAX,
            ),
        ];
        let times = [
            ("head_timeout", self.head_timeout),
            ("body_timeout", self.body_timeout),
            ("write_timeout", self.write_timeout),
        ];
        let one = extract::held_bytes_max(self.body_bytes_max);
        let small = (self.bodies_bytes_max < one)
            .then(|| format!("bodies_bytes_max is less than the {one} bytes that one body of body_bytes_max takes while it arrives"));
        counts
            .into_iter()
            .filter(|(_, value, min, max)| value < min || value > max)
            .map(|(name, value, min, max)| {
                format!("{name} is {value}, but must be from {min} to {max}")
            })
            .chain(
                times
                    .into_iter()
                    .filter(|(_, time)| time.is_zero())
                    .map(|(name, _)| format!("{name} must not be zero")),
            )
            .chain(small)
    }
}

/// Parses the URL that others use for this server: scheme, host and port, and nothing else.
pub(crate) fn advertised(text: &str) -> Result<Url, String> {
    // A URL may hold a password by mistake, so it is not repeated.
    let problem =
        |what: &str| format!("the advertised URL {what}; it must look like http://10.0.0.5:8080");
    let url = Url::parse(text).map_err(|error| problem(&format!("cannot be read: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(problem("is not http or https"));
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err(problem("has no host"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(problem("has a user or password"));
    }
    if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
        return Err(problem("has a path"));
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(change: impl FnOnce(&mut Config), problem: &str) {
        let mut config = Config::new("memory:");
        change(&mut config);
        let error = config.check().unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }

    #[test]
    fn defaults_are_fine() {
        Config::new("memory:").check().unwrap();
    }

    #[test]
    fn an_open_address_needs_a_token_and_a_url() {
        refused(
            |config| config.listen = "10.1.2.3:8080".parse().unwrap(),
            "no token is configured",
        );
        refused(
            |config| {
                config.listen = "[::]:8080".parse().unwrap();
                config.tokens = Tokens::parse("admin 0123456789abcdef").unwrap();
            },
            "set the URL for the other brokers",
        );
    }

    #[test]
    fn every_violation_is_told_at_once() {
        let mut config = Config::new("memory:");
        config.namespace = "a/b".to_owned();
        config.ttl = Duration::ZERO;
        config.limits.connections_max = 0;
        config.advertise = Some("ftp://x".to_owned());
        let error = config.check().unwrap_err();
        assert_eq!(error.violations.len(), 4, "{error}");
    }

    #[test]
    fn ceilings_that_are_too_low_are_told_together() {
        let mut config = Config::new("file:data");
        config.throttle.reads_per_minute = Some(127);
        config.throttle.writes_per_minute = Some(31);
        config.throttle.writes_per_day = Some(5);
        let error = config.check().unwrap_err();
        assert_eq!(error.violations.len(), 4, "{error}");
        // Wrong times hide none of them.
        config.heartbeat = Some(Duration::from_secs(9));
        let error = config.check().unwrap_err();
        assert!(error.violations.len() > 4, "{error}");
        config.ttl = Duration::ZERO;
        let error = config.check().unwrap_err();
        assert!(error.violations.len() > 4, "{error}");

        let mut config = Config::new("memory:");
        config.throttle.reads_per_minute = Some(128);
        config.throttle.writes_per_minute = Some(32);
        config.check().unwrap();
    }

    #[test]
    fn who_has_a_certificate_advertises_it() {
        let tls = Tls {
            certificate: "c".into(),
            key: "k".into(),
            authority: None,
        };
        let with = |url: &str| {
            let mut config = Config::new("memory:");
            config.tls = Some(tls.clone());
            config.advertise = Some(url.to_owned());
            config
        };
        with("https://broker.example").check().unwrap();
        let error = with("http://broker.example").check().unwrap_err();
        assert!(error.to_string().contains("in the clear"), "{error}");
    }

    #[test]
    fn an_advertised_url_is_an_origin_and_its_password_is_not_repeated() {
        assert!(advertised("https://broker.example:8443").is_ok());
        assert!(advertised("http://[::1]:80/").is_ok());
        for url in [
            "http://",
            "broker:80",
            "http://u:geheim@h",
            "http://h/p",
            "http://h?q",
        ] {
            let error = advertised(url).unwrap_err();
            assert!(!error.contains("geheim"), "{error}");
        }
    }
}
