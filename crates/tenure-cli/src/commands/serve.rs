//! `tenure serve`: the broker, until it is asked to stop.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use serde::Deserialize as _;
use tenure::core::NodeId;
use tenure::queue::{Queue, Serving};
use tenure_server::{Config, Handle, Osqueue, Scope, Server, Tls, Tokens};
use toml::Spanned;
use toml::de::{DeTable, Deserializer};

use crate::args::{Serve, Settings};
use crate::output::{self, Hinted, Paint, Style};
use crate::signals::Signals;

/// Variables that hold a token, and the token's scope. `TENURE_TOKEN` is not among them: for programs of `tenure run`
/// it is the fencing token, which is not a secret, and `tenure serve` may be such a program.
pub(super) const TOKEN_VARIABLES: [(&str, Scope); 3] = [
    ("TENURE_ADMIN_TOKEN", Scope::Admin),
    ("TENURE_WORKER_TOKEN", Scope::Worker),
    ("TENURE_READ_TOKEN", Scope::Read),
];

/// The variable of the token for calls from the networks of osqueue's clients.
const OSQUEUE_TOKEN: &str = "TENURE_OSQUEUE_TOKEN";

/// With fewer files than this a broker may never become ready: its store, its socket and its connections each need
/// some.
const FILES_MIN: u64 = 64;

pub(crate) async fn run(arguments: Serve) -> anyhow::Result<ExitCode> {
    // Set up first, so that a signal during the start is not lost.
    let mut signals = Signals::new()?;
    let settings = settings(arguments)?;
    #[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
    let outboxes = super::outbox::Outboxes::new(&settings)?;
    let config = config(settings)?;
    // Connections are files.
    super::files::raise();
    if let Some(most) = super::files::most().filter(|most| *most < FILES_MIN) {
        output::warning(&format!(
            "only {most} files may be open, which may be too few for a broker: raise the limit (ulimit -Hn, LimitNOFILE)"
        ));
    }
    let server = tokio::select! {
        server = Server::start(config.clone()) => server.map_err(hinted)?,
        _ = signals.next() => return Ok(ExitCode::SUCCESS),
    };
    super::replaced::watch(server.node(), config.ttl);
    output::raw_to_stderr(&banner(&config, &server));
    #[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
    outboxes.relay(&server, &config).await?;
    tokio::select! {
        _ = signals.next() => {}
        () = tell(server.queue(), server.node().id()) => {}
    }
    output::note("stopping: handing over and finishing requests; signal again to stop at once");
    tokio::select! {
        () = server.stop() => Ok(ExitCode::SUCCESS),
        stop = signals.next() => Ok(stop.exit_code()),
    }
}

/// Prints which broker serves the queue, now and whenever it changes.
async fn tell(queue: &Queue, me: &NodeId) {
    let mut state = queue.watch();
    let mut told = String::new();
    loop {
        let now = match &*state.borrow_and_update() {
            Serving::Serving { term, .. } => format!("leading, in term {term}"),
            Serving::Standby {
                leader: Some(leader),
            } if leader.node != *me => {
                format!("standby: {} leads, in term {}", leader.node, leader.term)
            }
            Serving::Failed(error) => format!("cannot serve the queue: {error}"),
            // These states pass soon, so they are not printed. So does leading without serving yet.
            Serving::Standby { .. } | Serving::Recovering(_) | Serving::Stopped => String::new(),
        };
        if !now.is_empty() && now != told {
            output::note(&now);
            told = now;
        }
        if state.changed().await.is_err() {
            // Only a signal ends the server.
            std::future::pending::<()>().await;
        }
    }
}

fn hinted(error: tenure_server::Error) -> anyhow::Error {
    match error.hint() {
        Some(hint) => Hinted::new(error, hint).into(),
        None => error.into(),
    }
}

/// Flags and variables, then the file.
fn settings(arguments: Serve) -> anyhow::Result<Settings> {
    let file = match &arguments.config {
        Some(path) => read_settings(path)?,
        None => Settings::default(),
    };
    Ok(arguments.settings.or(file))
}

/// What is set, then the defaults.
fn config(settings: Settings) -> anyhow::Result<Config> {
    let store = match settings.store {
        Some(store) => super::named(Some(store))?,
        None => tenure_server::STORE_DEFAULT.to_owned(),
    };
    let mut config = Config::new(store);
    config.tokens = tokens(settings.tokens.as_deref())?;
    config.labels = settings.labels.into_iter().collect();
    config.node = settings.node;
    config.advertise = settings.advertise;
    config.tls = match (settings.tls_certificate, settings.tls_key) {
        (Some(certificate), Some(key)) => {
            output::warn_if_open_to_others(&key);
            Some(Tls {
                certificate,
                key,
                authority: settings.tls_authority,
            })
        }
        (None, None) => None,
        _ => anyhow::bail!("a certificate needs a key, and a key needs a certificate"),
    };
    config.cors_origins = settings.cors_origins;
    config.osqueue = settings.osqueue.map(|listen| Osqueue {
        networks: settings.osqueue_networks,
        token: std::env::var(OSQUEUE_TOKEN)
            .ok()
            .filter(|token| !token.is_empty()),
        ..Osqueue::new(listen)
    });
    set(&mut config.namespace, settings.namespace);
    set(&mut config.listen, settings.listen);
    set(&mut config.economy, settings.economy);
    if config.economy {
        config.ttl = tenure_server::ECONOMY_TTL_DEFAULT;
    }
    set(&mut config.ttl, settings.ttl);
    config.heartbeat = settings.heartbeat;
    config.request_timeout = settings.request_timeout;
    config.acknowledge_timeout = settings.acknowledge_timeout;
    config.drain_timeout = settings.drain_timeout;
    set(&mut config.priority, settings.priority);
    set(&mut config.log.commit_interval, settings.commit_interval);
    config.throttle.reads_per_minute = settings.reads_per_minute;
    config.throttle.writes_per_minute = settings.writes_per_minute;
    config.throttle.writes_per_day = settings.writes_per_day;
    set(&mut config.log.backlog_records_max, settings.backlog_max);
    set(&mut config.queue.payload_bytes_max, settings.payload_max);
    let limits = &mut config.limits;
    set(&mut limits.connections_max, settings.connections_max);
    set(&mut limits.waits_max, settings.waits_max);
    set(&mut limits.followers_max, settings.followers_max);
    set(&mut limits.sockets_max, settings.sockets_max);
    set(&mut limits.candidates_max, settings.candidates_max);
    set(&mut limits.elections_max, settings.elections_max);
    set(&mut limits.body_bytes_max, settings.body_max);
    set(&mut limits.head_timeout, settings.head_timeout);
    set(&mut limits.body_timeout, settings.body_timeout);
    set(&mut limits.write_timeout, settings.write_timeout);
    set(&mut limits.hold_timeout, settings.hold_timeout);
    set(&mut limits.stop_timeout, settings.stop_timeout);
    Ok(config)
}

fn set<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

fn read_settings(path: &Path) -> anyhow::Result<Settings> {
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(SETTINGS_BYTES_MAX + 1).read_to_string(&mut text))
        .with_context(|| format!("cannot read {}", path.display()))?;
    if text.len() as u64 > SETTINGS_BYTES_MAX {
        let most = SETTINGS_BYTES_MAX / 1024;
        anyhow::bail!(Hinted::new(
            format!("{} is larger than {most} KiB", path.display()),
            "name the file with the settings of the broker",
        ));
    }
    parse_settings(&text).map_err(|problems| {
        let problems = problems
            .iter()
            .map(|(line, problem)| format!("line {line} of {}: {problem}", path.display()));
        Hinted::new(
            problems.collect::<Vec<_>>().join("; "),
            "its keys are the names of the flags, with _ instead of -; see tenure serve --help",
        )
        .into()
    })
}

/// The largest file of settings. The parser keeps an error for each byte that it cannot parse, so a log file named by
/// mistake would take hundreds of times its size in memory.
const SETTINGS_BYTES_MAX: u64 = 64 * 1024;

/// The most problems of a file that are reported.
const PROBLEMS_MAX: usize = 20;

/// The settings, or each line that is wrong and why. The parser shows that line, which may hold a password: its
/// message alone does not.
pub(crate) fn parse_settings(text: &str) -> Result<Settings, Vec<(usize, String)>> {
    let line = |at: usize| {
        let before = &text.as_bytes()[..at.min(text.len())];
        before.iter().filter(|&&byte| byte == b'\n').count() + 1
    };
    let problem = |error: &toml::de::Error, usual: usize| {
        let at = error.span().map_or(usual, |span| span.start);
        (line(at), error.message().to_owned())
    };
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut problems: Vec<_> = errors.iter().map(|error| problem(error, 0)).collect();
    let mut settings = Settings::default();
    if problems.is_empty() {
        let whole = table.span();
        // Each key is parsed separately, or the first wrong one would hide the others.
        for (key, value) in table.into_inner() {
            let at = key.span().start;
            let one = Spanned::new(whole.clone(), DeTable::from_iter([(key, value)]));
            match Settings::deserialize(Deserializer::from(one)) {
                Ok(one) => settings = settings.or(one),
                Err(error) => problems.push(problem(&error, at)),
            }
        }
    }
    problems.sort();
    problems.truncate(PROBLEMS_MAX);
    if problems.is_empty() {
        Ok(settings)
    } else {
        Err(problems)
    }
}

fn tokens(file: Option<&Path>) -> anyhow::Result<Tokens> {
    let mut tokens = match file {
        None => Tokens::none(),
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            output::warn_if_open_to_others(path);
            let tokens = Tokens::parse(&text)
                .map_err(|error| Hinted::new(error, "each line must look like: worker TOKEN"))
                .with_context(|| format!("cannot use {}", path.display()))?;
            if tokens.is_empty() {
                anyhow::bail!("there is no token in {}", path.display());
            }
            tokens
        }
    };
    for (variable, scope) in TOKEN_VARIABLES {
        let Ok(token) = std::env::var(variable) else {
            continue;
        };
        if !token.is_empty() {
            tokens
                .add(scope, &token)
                .map_err(|problem| anyhow::anyhow!("cannot use {variable}: {problem}"))?;
        }
    }
    Ok(tokens)
}

fn banner(config: &Config, server: &Handle) -> String {
    let fields = serde_json::json!({
        "message": "serving",
        "version": env!("CARGO_PKG_VERSION"),
        "node": server.node().id(),
        "namespace": config.namespace,
        "store": server.node().store().describe().location,
        "is_durable": server.node().store().describe().capabilities.durable,
        "url": server.url(),
        "osqueue": server.osqueue_address(),
    });
    if let Some(line) = output::event("INFO", &fields) {
        return line;
    }
    let paint = Paint::of(&std::io::stderr());
    let strong = |text: &str| paint.apply(Style::Strong, text);
    let url = server.url();
    let token = if config.tokens.is_empty() {
        ""
    } else {
        "-H \"Authorization: Bearer $TENURE_API_TOKEN\" "
    };
    let next = server.address().port().wrapping_add(1).max(1024);
    let store = output::printable(&server.node().store().describe().location);
    let scheme = url.split(':').next().unwrap_or("http");
    let osqueue = server.osqueue_address();
    let osqueue = osqueue.map(|address| ("osqueue", format!("{scheme}://{address}")));
    let lines = [
        (
            "node",
            format!("{} in namespace {}", server.node().id(), config.namespace),
        ),
        ("store", store),
        ("dashboard", strong(&format!("{url}/"))),
        (
            "try",
            strong(&format!(
                "curl {token}--json '{{\"type\":\"hello\",\"payload\":{{\"name\":\"world\"}}}}' {url}/v1/jobs"
            )),
        ),
        (
            "standby",
            format!(
                "tenure serve --listen {}:{next} with the same store",
                server.address().ip()
            ),
        ),
    ];
    let mut text = format!("tenure {} is serving\n", env!("CARGO_PKG_VERSION"));
    for (name, value) in lines.into_iter().chain(osqueue) {
        text += &format!("  {name:<10} {value}\n");
    }
    if !server.node().store().describe().capabilities.durable {
        text += "  warning    this store loses everything when the process ends\n";
    }
    text
}
