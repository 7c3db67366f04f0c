//! Options of all verbs that call a broker, and the verb `top`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::times::parse_duration;

/// The default broker.
pub(crate) const SERVER_DEFAULT: &str = "http://127.0.0.1:8080";

/// The default of `--timeout`.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(15);

const TOP_AFTER: &str = "\
Keys:
  up, down   choose a queue or job   p   pause or resume the queue
  enter      open it                 r   retry its dead jobs
  esc        go back                 R   ask the leader to resign
  s, S       sort by another column, reverse the order
  /          show only queues whose name contains a text
  q          quit
p, r and R ask for confirmation.

Examples:
  tenure top
  tenure top --server https://broker.example --token-file ./token
  tenure top --once

Exit codes:
  0 shown    2 could not determine";

/// Which server, and as whom.
#[derive(Debug, Args)]
pub(crate) struct AtServer {
    /// The broker to call, or the store that names it; if there are several, separate them with commas
    // The value may hold a password: --help must not show it.
    #[arg(
        long,
        value_name = "URL",
        env = "TENURE_SERVER",
        hide_env_values = true
    )]
    #[arg(default_value = SERVER_DEFAULT, value_delimiter = ',')]
    pub(crate) server: Vec<String>,

    #[arg(long, value_name = "PATH")]
    #[arg(help = "A file with the token to send; without it, TENURE_API_TOKEN is used if set")]
    pub(crate) token_file: Option<PathBuf>,

    /// How long to keep trying when no broker answers
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
}

/// A server to ask instead of the store.
#[derive(Debug, Args)]
pub(crate) struct OrServer {
    /// Ask this broker instead of the store; if there are several, separate them with commas
    // Not from TENURE_SERVER: the variable must not silently override a store that was named.
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    server: Vec<String>,

    #[arg(long, value_name = "PATH", requires = "server")]
    #[arg(help = "A file with the token to send; without it, TENURE_API_TOKEN is used if set")]
    token_file: Option<PathBuf>,
}

impl OrServer {
    /// The server, if one was named.
    pub(crate) fn named(self) -> Option<AtServer> {
        (!self.server.is_empty()).then_some(AtServer {
            server: self.server,
            token_file: self.token_file,
            timeout: TIMEOUT_DEFAULT,
        })
    }
}

/// Nothing but a server.
#[derive(Debug, Args)]
pub(crate) struct AskServer {
    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) server: AtServer,
}

/// `tenure top`
#[derive(Debug, Args)]
#[command(after_help = TOP_AFTER)]
pub(crate) struct Top {
    /// Print one screen as plain text and exit
    #[arg(long)]
    pub(crate) once: bool,

    /// How often to refresh
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    pub(crate) interval: Duration,

    #[command(flatten)]
    pub(crate) server: AtServer,
}
