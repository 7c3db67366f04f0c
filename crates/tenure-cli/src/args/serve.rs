//! `tenure serve`: one definition for flags, variables and the configuration file.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Deserializer};
use tenure_server::Network;

use super::STORES;
use crate::times::parse_duration;

const SERVE_AFTER: &str = "\
Start brokers on as many hosts as you like, with the same store. One of them leads and serves the
queue. The others forward calls to it, and one takes over when it is gone. On SIGTERM or SIGINT a
broker hands over to another one if there is one, finishes the calls in flight, and exits.

Tokens are in a file with lines `SCOPE TOKEN`, where SCOPE is read, worker or admin; or in the
variables TENURE_ADMIN_TOKEN, TENURE_WORKER_TOKEN and TENURE_READ_TOKEN. Without tokens, the broker
serves only this host.

The configuration file is TOML. Its keys are the names of the flags, with _ instead of -:
  store = \"s3://my-bucket/tenure\"
  listen = \"10.0.0.5:8080\"
  tokens = \"/etc/tenure/tokens\"
  labels = { zone = \"a\" }
Flags override variables, and variables override the file.

Examples:
  tenure serve
  tenure serve --listen 127.0.0.1:8081            a standby on the same host
  tenure serve --store postgres://tenure@db.example/tenure --listen 10.0.0.5:8080 --tokens tokens
  TENURE_STORE=s3://my-bucket/tenure tenure serve --commit-interval 50ms

Exit codes:
  0 stopped as asked    2 could not start, or could not continue";

/// `tenure serve`
#[derive(Debug, Args)]
#[command(after_help = format!("{SERVE_AFTER}\n\n{STORES}"))]
pub(crate) struct Serve {
    /// The format of the log on stderr [default: text on a terminal, json elsewhere]
    #[arg(long, value_name = "FORMAT", value_enum)]
    #[arg(env = "TENURE_LOG_FORMAT", hide_env_values = true)]
    pub(crate) log_format: Option<LogFormat>,

    /// A file with the options below
    #[arg(
        long,
        value_name = "FILE",
        env = "TENURE_CONFIG",
        hide_env_values = true
    )]
    pub(crate) config: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) settings: Settings,
}

/// How a log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum LogFormat {
    // Lines for people.
    Text,
    // An object per line, for programs.
    Json,
}

/// What can be set, from wherever.
#[derive(Debug, Default, Args, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Settings {
    // The value may hold a password: --help must not show it.
    #[arg(long, value_name = "URL", env = "TENURE_STORE", hide_env_values = true)]
    #[arg(help = "The store to use [default: file:./tenure-data]")]
    pub(crate) store: Option<String>,

    /// The namespace that holds everything of one cluster [default: default]
    #[arg(
        long,
        value_name = "NS",
        env = "TENURE_NAMESPACE",
        hide_env_values = true
    )]
    pub(crate) namespace: Option<String>,

    /// Where to listen [default: 127.0.0.1:8080]
    #[arg(
        long,
        value_name = "ADDR:PORT",
        env = "TENURE_LISTEN",
        hide_env_values = true
    )]
    #[arg(value_parser = parse_listen)]
    #[serde(deserialize_with = "listen")]
    pub(crate) listen: Option<SocketAddr>,

    /// The URL at which the other brokers reach this one [default: the address above]
    #[arg(
        long,
        value_name = "URL",
        env = "TENURE_ADVERTISE",
        hide_env_values = true
    )]
    pub(crate) advertise: Option<String>,

    /// The name of this node [default: host name and port]
    #[arg(long, value_name = "ID", env = "TENURE_NODE", hide_env_values = true)]
    pub(crate) node: Option<String>,

    /// A label of this node; repeat it for more
    #[arg(
        long = "label",
        value_name = "KEY=VALUE",
        env = "TENURE_LABELS",
        hide_env_values = true
    )]
    #[arg(value_parser = parse_label, value_delimiter = ',')]
    #[serde(deserialize_with = "labels")]
    pub(crate) labels: Vec<(String, String)>,

    /// How long a broker may be silent before another replaces it [default: 10s]
    #[arg(long, value_name = "TIME", env = "TENURE_TTL", hide_env_values = true)]
    #[arg(value_parser = parse_duration)]
    #[serde(deserialize_with = "duration")]
    pub(crate) ttl: Option<Duration>,

    /// How often this broker renews its session [default: 3/10 of --ttl; with --economy half of it]
    #[arg(
        long,
        value_name = "TIME",
        env = "TENURE_HEARTBEAT",
        hide_env_values = true
    )]
    #[arg(help_heading = "Times", value_parser = parse_duration)]
    #[serde(deserialize_with = "duration")]
    pub(crate) heartbeat: Option<Duration>,

    /// How long a heartbeat's request to the store may take [default: 2/10 of --ttl]
    #[arg(
        long,
        value_name = "TIME",
        env = "TENURE_REQUEST_TIMEOUT",
        hide_env_values = true
    )]
    #[arg(help_heading = "Times", value_parser = parse_duration)]
    #[serde(deserialize_with = "duration")]
    pub(crate) request_timeout: Option<Duration>,

    /// How long a node has to start a shard of a daemon, while this broker assigns them [default: 30s]
    #[arg(
        long,
        value_name = "TIME",
        env = "TENURE_ACKNOWLEDGE_TIMEOUT",
        hide_env_values = true
    )]
    #[arg(help_heading = "Times", value_parser = parse_duration)]
    #[serde(deserialize_with = "duration")]
    pub(crate) acknowledge_timeout: Option<Duration>,

    /// How long a node has to stop a shard of a daemon, while this broker assigns them [default: 30s]
    #[arg(
        long,
        value_name = "TIME",
        env = "TENURE_DRAIN_TIMEOUT",
        hide_env_values = true
    )]
    #[arg(help_heading = "Times", value_parser = parse_duration)]
    #[serde(deserialize_with = "duration")]
    pub(crate) drain_timeout: Option<Duration>,

    /// Send as few requests as the ttl allows, for stores that bill each one; sets --ttl to 120s
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    #[arg(value_name = "BOOL", env = "TENURE_ECONOMY", hide_env_values = true)]
    #[arg(help_heading = "Cost")]
    pub(crate) economy: Option<bool>,

    /// The maximum number of reads from the store per minute, for this broker [default: none]
    #[arg(
        long,
        value_name = "N",
        env = "TENURE_READS_PER_MINUTE",
        hide_env_values = true
    )]
    #[arg(help_heading = "Cost")]
    pub(crate) reads_per_minute: Option<u32>,

    /// The maximum number of writes to the store per minute, for this broker [default: none]
    #[arg(
        long,
        value_name = "N",
        env = "TENURE_WRITES_PER_MINUTE",
        hide_env_values = true
    )]
    #[arg(help_heading = "Cost")]
    pub(crate) writes_per_minute: Option<u32>,

    /// The maximum number of writes to the store per day, for this broker [default: none]
    #[arg(
        long,
        value_name = "N",
        env = "TENURE_WRITES_PER_DAY",
        hide_env_values = true
    )]
    #[arg(help_heading = "Cost")]
    pub(crate) writes_per_day: Option<u32>,

    /// From 0 to 100: when nobody leads, brokers with a higher priority go first [default: 100]
    #[arg(
        long,
        value_name = "N",
        env = "TENURE_PRIORITY",
        hide_env_values = true
    )]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) priority: Option<u8>,

    /// The minimum time between two commits; a longer one saves requests [default: 0ms]
    #[arg(
        long,
        value_name = "TIME",
        env = "TENURE_COMMIT_INTERVAL",
        hide_env_values = true
    )]
    #[arg(value_parser = parse_duration)]
    #[serde(deserialize_with = "duration")]
    pub(crate) commit_interval: Option<Duration>,

    /// Hand over the jobs of an outbox, see tenure outbox; repeat it for more: NAME=URL, or URL
    #[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
    #[arg(
        long = "outbox",
        value_name = "URL",
        env = "TENURE_OUTBOX",
        hide_env_values = true
    )]
    #[serde(rename = "outbox")]
    pub(crate) outboxes: Vec<String>,

    /// Also listen for clients of osqueue, which need nothing but this address
    #[arg(
        long,
        value_name = "ADDR:PORT",
        env = "TENURE_OSQUEUE",
        hide_env_values = true
    )]
    #[arg(value_parser = parse_listen)]
    #[serde(deserialize_with = "listen")]
    pub(crate) osqueue: Option<SocketAddr>,

    #[arg(
        help = "A network whose osqueue clients need no token: their calls use TENURE_OSQUEUE_TOKEN"
    )]
    #[arg(
        long = "osqueue-network",
        value_name = "NET/BITS",
        env = "TENURE_OSQUEUE_NETWORKS",
        hide_env_values = true
    )]
    #[arg(help_heading = "Security", requires = "osqueue", value_delimiter = ',')]
    #[serde(deserialize_with = "networks")]
    pub(crate) osqueue_networks: Vec<Network>,

    /// An origin whose web pages may call this broker; repeat it for more
    #[arg(
        long = "cors-origin",
        value_name = "ORIGIN",
        env = "TENURE_CORS_ORIGINS",
        hide_env_values = true
    )]
    #[arg(help_heading = "Security", value_delimiter = ',')]
    pub(crate) cors_origins: Vec<String>,

    /// A file with tokens
    #[arg(
        long,
        value_name = "FILE",
        env = "TENURE_TOKENS",
        hide_env_values = true
    )]
    #[arg(help_heading = "Security")]
    pub(crate) tokens: Option<PathBuf>,

    /// A PEM file with the certificate: serve HTTPS
    #[arg(
        long,
        value_name = "FILE",
        env = "TENURE_TLS_CERTIFICATE",
        hide_env_values = true
    )]
    #[arg(help_heading = "Security", requires = "tls_key")]
    pub(crate) tls_certificate: Option<PathBuf>,

    /// A PEM file with the private key of the certificate
    #[arg(
        long,
        value_name = "FILE",
        env = "TENURE_TLS_KEY",
        hide_env_values = true
    )]
    #[arg(help_heading = "Security", requires = "tls_certificate")]
    pub(crate) tls_key: Option<PathBuf>,

    /// A file with the certificates to trust when forwarding to another broker
    #[arg(
        long,
        value_name = "FILE",
        env = "TENURE_TLS_AUTHORITY",
        hide_env_values = true
    )]
    #[arg(help_heading = "Security", requires = "tls_certificate")]
    pub(crate) tls_authority: Option<PathBuf>,

    /// The maximum number of connections [default: 10000]
    #[arg(
        long,
        value_name = "N",
        env = "TENURE_CONNECTIONS_MAX",
        hide_env_values = true
    )]
    #[arg(help_heading = "Limits")]
    pub(crate) connections_max: Option<usize>,

    /// The maximum number of claims that wait for a job [default: 10000]
    #[arg(
        long,
        value_name = "N",
        env = "TENURE_WAITS_MAX",
        hide_env_values = true
    )]
    #[arg(help_heading = "Limits")]
    pub(crate) waits_max: Option<usize>,

    /// The maximum number of clients that follow events [default: 256]
    #[arg(
        long,
        value_name = "N",
        env = "TENURE_FOLLOWERS_MAX",
        hide_env_values = true
    )]
    #[arg(help_heading = "Limits")]
    pub(crate) followers_max: Option<usize>,

    /// The maximum number of sockets (/v1/ws) of osqueue clients [default: 1000]
    #[arg(
        long,
        value_name = "N",
        env = "TENURE_SOCKETS_MAX",
        hide_env_values = true
    )]
    #[arg(help_heading = "Limits")]
    pub(crate) sockets_max: Option<usize>,

    /// The maximum number of sessions: candidates over HTTP, and nodes [default: 1000]
    #[arg(
        long,
        value_name = "N",
        env = "TENURE_CANDIDATES_MAX",
        hide_env_values = true
    )]
    #[arg(help_heading = "Limits")]
    pub(crate) candidates_max: Option<usize>,

    /// The maximum number of elections that clients can create [default: 10000]
    #[arg(
        long,
        value_name = "N",
        env = "TENURE_ELECTIONS_MAX",
        hide_env_values = true
    )]
    #[arg(help_heading = "Limits")]
    pub(crate) elections_max: Option<usize>,

    /// The maximum size of a request body: 512KiB, 1MiB [default: 1MiB]
    #[arg(
        long,
        value_name = "BYTES",
        env = "TENURE_BODY_MAX",
        hide_env_values = true
    )]
    #[arg(help_heading = "Limits", value_parser = parse_bytes)]
    #[serde(deserialize_with = "bytes")]
    pub(crate) body_max: Option<usize>,

    /// The maximum size of a job's payload [default: 256KiB]
    #[arg(
        long,
        value_name = "BYTES",
        env = "TENURE_PAYLOAD_MAX",
        hide_env_values = true
    )]
    #[arg(help_heading = "Limits", value_parser = parse_bytes)]
    #[serde(deserialize_with = "bytes")]
    pub(crate) payload_max: Option<usize>,

    /// How many records may wait for a commit before calls are turned away [default: 100000]
    #[arg(
        long,
        value_name = "N",
        env = "TENURE_BACKLOG_MAX",
        hide_env_values = true
    )]
    #[arg(help_heading = "Limits")]
    pub(crate) backlog_max: Option<usize>,

    /// How long a connection may be idle, or take to send a request's headers [default: 60s]
    #[arg(
        long,
        value_name = "TIME",
        env = "TENURE_HEAD_TIMEOUT",
        hide_env_values = true
    )]
    #[arg(help_heading = "Limits", value_parser = parse_duration)]
    #[serde(deserialize_with = "duration")]
    pub(crate) head_timeout: Option<Duration>,

    /// How long a client may take to send a request's body [default: 30s]
    #[arg(
        long,
        value_name = "TIME",
        env = "TENURE_BODY_TIMEOUT",
        hide_env_values = true
    )]
    #[arg(help_heading = "Limits", value_parser = parse_duration)]
    #[serde(deserialize_with = "duration")]
    pub(crate) body_timeout: Option<Duration>,

    /// How long a client may stop reading its answer [default: 30s]
    #[arg(
        long,
        value_name = "TIME",
        env = "TENURE_WRITE_TIMEOUT",
        hide_env_values = true
    )]
    #[arg(help_heading = "Limits", value_parser = parse_duration)]
    #[serde(deserialize_with = "duration")]
    pub(crate) write_timeout: Option<Duration>,

    /// How long to hold a call while no leader answers, before it fails [default: 15s]
    #[arg(
        long,
        value_name = "TIME",
        env = "TENURE_HOLD_TIMEOUT",
        hide_env_values = true
    )]
    #[arg(help_heading = "Limits", value_parser = parse_duration)]
    #[serde(deserialize_with = "duration")]
    pub(crate) hold_timeout: Option<Duration>,

    /// How long requests may keep running after a stop was requested [default: 10s]
    #[arg(
        long,
        value_name = "TIME",
        env = "TENURE_STOP_TIMEOUT",
        hide_env_values = true
    )]
    #[arg(help_heading = "Limits", value_parser = parse_duration)]
    #[serde(deserialize_with = "duration")]
    pub(crate) stop_timeout: Option<Duration>,
}

impl Settings {
    /// These settings, and where one is missing, that of `other`.
    pub(crate) fn or(self, other: Self) -> Self {
        macro_rules! first {
            ($($field:ident)*) => {
                Self {
                    osqueue_networks: if self.osqueue_networks.is_empty() { other.osqueue_networks } else { self.osqueue_networks },
                    cors_origins: if self.cors_origins.is_empty() { other.cors_origins } else { self.cors_origins },
                    labels: if self.labels.is_empty() { other.labels } else { self.labels },
                    #[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
                    outboxes: if self.outboxes.is_empty() { other.outboxes } else { self.outboxes },
                    $($field: self.$field.or(other.$field),)*
                }
            };
        }
        first! {
            store namespace listen osqueue advertise node ttl economy priority commit_interval
            heartbeat request_timeout acknowledge_timeout drain_timeout
            reads_per_minute writes_per_minute writes_per_day
            tokens tls_certificate tls_key tls_authority
            connections_max waits_max followers_max sockets_max candidates_max elections_max body_max payload_max backlog_max
            head_timeout body_timeout write_timeout hold_timeout stop_timeout
        }
    }
}

/// Reads `127.0.0.1:8080`. Short forms that other programs take for "all interfaces" are refused with a question:
/// that should be an explicit decision.
fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    let local = |port: &str| Some(SocketAddr::from(([127, 0, 0, 1], port.parse().ok()?)));
    let short = text.strip_prefix("localhost:").unwrap_or(text);
    if let Some(address) = text.parse().ok().or_else(|| local(short)) {
        return Ok(address);
    }
    let port = text.strip_prefix(':').or(text.strip_prefix("*:"));
    Err(match port.filter(|port| port.parse::<u16>().is_ok()) {
        Some(port) => {
            format!("use 127.0.0.1:{port} for this host only, or 0.0.0.0:{port} for every network")
        }
        None => "use an IP address and a port, such as 127.0.0.1:8080".to_owned(),
    })
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("use KEY=VALUE".to_owned()),
    }
}

/// Reads a size such as `1048576`, `512KiB` or `4MiB`.
pub(crate) fn parse_bytes(text: &str) -> Result<usize, String> {
    let unit_at = text
        .find(|character: char| !character.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let factor = match unit {
        "" | "B" => 1,
        "KiB" => 1024,
        "MiB" => 1024 * 1024,
        _ => return Err("use a number of bytes, or one with KiB or MiB".to_owned()),
    };
    number
        .parse::<usize>()
        .ok()
        .and_then(|number| number.checked_mul(factor))
        .ok_or_else(|| "use a number of bytes, or one with KiB or MiB".to_owned())
}

fn listen<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let address = parse_listen(&text).map_err(serde::de::Error::custom)?;
    Ok(Some(address))
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_duration(&text)
        .map(Some)
        .map_err(serde::de::Error::custom)
}

fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Size {
        Bytes(usize),
        Text(String),
    }
    match Size::deserialize(deserializer)? {
        Size::Bytes(bytes) => Ok(Some(bytes)),
        Size::Text(text) => parse_bytes(&text)
            .map(Some)
            .map_err(serde::de::Error::custom),
    }
}

fn networks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Network>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    let networks = texts.iter().map(|text| text.parse());
    networks
        .collect::<Result<_, String>>()
        .map_err(serde::de::Error::custom)
}

fn labels<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, String)>, D::Error> {
    BTreeMap::deserialize(deserializer).map(|labels| labels.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_of_this_host_and_every_network_is_a_decision() {
        let local = SocketAddr::from(([127, 0, 0, 1], 8080));
        for text in ["127.0.0.1:8080", "localhost:8080", "8080"] {
            assert_eq!(parse_listen(text), Ok(local), "{text}");
        }
        for text in [":8080", "*:8080"] {
            let asked = "use 127.0.0.1:8080 for this host only, or 0.0.0.0:8080 for every network";
            assert_eq!(parse_listen(text), Err(asked.to_owned()), "{text}");
        }
        for text in ["", "host", "host:80", "99999", ":99999", "127.0.0.1"] {
            let told = parse_listen(text).unwrap_err();
            assert!(told.contains("an IP address and a port"), "{text}: {told}");
        }
        let file = toml::from_str::<Settings>("listen = '8080'").unwrap();
        assert_eq!(file.listen, Some(local));
        assert!(toml::from_str::<Settings>("osqueue = ':80'").is_err());
    }

    #[test]
    fn a_file_has_the_names_of_the_flags() {
        let file = "store = 'memory:'\nlisten = '127.0.0.1:0'\nttl = '500ms'\nbody_max = '2MiB'\n\
            payload_max = 1000\nlabels = { zone = 'a' }\ntokens = 'x'\neconomy = true\nwrites_per_day = 50000\n\
            heartbeat = '100ms'\nrequest_timeout = '50ms'\nacknowledge_timeout = '1m'\ndrain_timeout = '2m'\n";
        let settings: Settings = toml::from_str(file).unwrap();
        assert_eq!(settings.ttl, Some(Duration::from_millis(500)));
        assert_eq!(settings.body_max, Some(2 * 1024 * 1024));
        assert_eq!(settings.payload_max, Some(1000));
        assert_eq!(settings.economy, Some(true));
        assert_eq!(settings.heartbeat, Some(Duration::from_millis(100)));
        assert_eq!(settings.request_timeout, Some(Duration::from_millis(50)));
        assert_eq!(settings.acknowledge_timeout, Some(Duration::from_secs(60)));
        assert_eq!(settings.drain_timeout, Some(Duration::from_secs(120)));
        assert_eq!(settings.writes_per_day, Some(50_000));
        assert_eq!(settings.labels, [("zone".to_owned(), "a".to_owned())]);
        let error = toml::from_str::<Settings>("stor = 'x'").unwrap_err();
        assert!(error.to_string().contains("stor"), "{error}");
    }

    #[test]
    fn what_is_said_first_counts() {
        let with = |node: Option<&str>| Settings {
            node: node.map(str::to_owned),
            ..Settings::default()
        };
        assert_eq!(
            with(Some("a")).or(with(Some("b"))).node.as_deref(),
            Some("a")
        );
        assert_eq!(with(None).or(with(Some("b"))).node.as_deref(), Some("b"));
    }
}
