//! `tenure outbox`: tables in a database of the user's own, and the relay that empties them.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use tenure::core::session;
use tenure::outbox::{self, Database, Dead, Deliver, Options, Relay, Status, ToQueue, Which};
use tenure::{Node, NodeOptions, cluster};
use tenure_client::Client;
use tenure_server::{Config, DeadRow, Handle, OutboxTables, OutboxView, Published, Scope, Value};

mod to_broker;

use self::to_broker::{OverHttp, ToLeader};
use super::at_server::{client, document, write};
use crate::EXIT_NO;
use crate::args::{
    OneOutbox, Outbox, OutboxStatus, PurgeRows, RetryRows, RunOutbox, Settings, SqlEngine,
};
use crate::output::{self, Hinted, printable, table};
use crate::signals::Signals;

/// How many dead rows the dashboard shows, and how long a database may take to list them.
const DEAD_ROWS_SHOWN: usize = 50;
const LOOK_PATIENCE: Duration = Duration::from_secs(5);

pub(crate) async fn run(verb: Outbox) -> anyhow::Result<ExitCode> {
    match verb {
        Outbox::Schema(arguments) => {
            write(match arguments.engine {
                SqlEngine::Postgres => outbox::SCHEMA_POSTGRES,
                SqlEngine::Mysql => outbox::SCHEMA_MYSQL,
                SqlEngine::Sqlite => outbox::SCHEMA_SQLITE,
            })?;
            Ok(ExitCode::SUCCESS)
        }
        Outbox::Run(arguments) => relay(*arguments).await,
        Outbox::Status(arguments) => super::interruptible(status(arguments)).await,
        Outbox::Retry(arguments) => super::interruptible(retry(arguments)).await,
        Outbox::Purge(arguments) => super::interruptible(purge(arguments)).await,
        Outbox::Release(arguments) => super::interruptible(release(arguments)).await,
    }
}

/// The database at this URL.
pub(crate) fn database(url: &str) -> anyhow::Result<Database> {
    Database::new(url).map_err(|error| match &error {
        outbox::Error::Url(cause) => {
            let hint = cause.hint().to_owned();
            Hinted::new(error, hint).into()
        }
        _ => error.into(),
    })
}

async fn status(arguments: OutboxStatus) -> anyhow::Result<ExitCode> {
    let database = database(&arguments.outbox.outbox)?;
    let status = asked(&database, database.status()).await?;
    let dead = asked(&database, database.dead(arguments.limit.into())).await?;
    write(&if arguments.json {
        document(&Shown {
            outbox: database.location(),
            status: &status,
            dead: &dead,
        })?
    } else {
        text(&database, &status, &dead)
    })?;
    Ok(match status.dead {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(EXIT_NO),
    })
}

#[derive(Serialize)]
struct Shown<'a> {
    outbox: &'a str,
    status: &'a Status,
    dead: &'a [Dead],
}

fn text(database: &Database, status: &Status, dead: &[Dead]) -> String {
    let row = |name: &str, value: String| [name.to_owned(), value];
    let age = |milliseconds: u64| format!("{:?}", Duration::from_secs(milliseconds / 1000));
    let mut rows = vec![
        row("outbox", printable(database.location())),
        row("waiting", status.waiting.to_string()),
        row("failing", status.failing.to_string()),
        row("dead", status.dead.to_string()),
    ];
    if let Some(oldest) = status.oldest_ms {
        rows.push(row("oldest", age(oldest)));
    }
    if let Some(error) = &status.error {
        rows.push(row("error", printable(error)));
    }
    let relay = match (&status.owner, &status.holder) {
        (Some(owner), Some(holder)) => {
            let (owner, holder) = (printable(owner), printable(holder));
            format!("{owner} on {holder}, generation {}", status.generation)
        }
        _ => "none has taken it over yet".to_owned(),
    };
    // It may be gone by now: the tables do not know.
    rows.push(row("last relay", relay));
    let mut text = table(&rows);
    if !dead.is_empty() {
        let heading = ["ID", "TYPE", "GROUP", "ATTEMPTS", "DIED", "ERROR"];
        let mut rows = vec![heading.map(str::to_owned)];
        rows.extend(dead.iter().map(|dead| {
            [
                printable(&dead.id),
                printable(&dead.job_type),
                dead.group.as_deref().map_or("-".to_owned(), printable),
                dead.attempts.to_string(),
                format!("{} ago", age(dead.age_ms)),
                printable(&dead.error),
            ]
        }));
        text += "\n";
        text += &table(&rows);
    }
    text
}

async fn retry(arguments: RetryRows) -> anyhow::Result<ExitCode> {
    let database = database(&arguments.outbox)?;
    let which = if arguments.all {
        Which::All
    } else {
        name_missing(&database, &arguments.ids).await?;
        Which::Ids(arguments.ids)
    };
    let count = asked(&database, database.retry(&which)).await?;
    tell(count, "put back")
}

async fn purge(arguments: PurgeRows) -> anyhow::Result<ExitCode> {
    let database = database(&arguments.outbox)?;
    if let Some(age) = arguments.claims_older_than {
        let count = asked(&database, database.purge_claims(age)).await?;
        return tell(count, "deleted");
    }
    let which = match (arguments.all, arguments.older_than) {
        (true, _) => Which::All,
        (_, Some(age)) => Which::OlderThan(age),
        _ => {
            name_missing(&database, &arguments.ids).await?;
            Which::Ids(arguments.ids)
        }
    };
    let count = asked(&database, database.purge(&which)).await?;
    tell(count, "deleted")
}

/// Says which of these rows are not dead.
async fn name_missing(database: &Database, ids: &[String]) -> anyhow::Result<()> {
    for id in asked(database, database.not_dead(ids)).await? {
        output::note(&format!("no dead row has the id {}", printable(&id)));
    }
    Ok(())
}

async fn release(arguments: OneOutbox) -> anyhow::Result<ExitCode> {
    let database = database(&arguments.outbox)?;
    asked(&database, database.release()).await?;
    write("released\n")?;
    Ok(ExitCode::SUCCESS)
}

fn tell(count: u64, what: &str) -> anyhow::Result<ExitCode> {
    write(&format!("{count} {what}\n"))?;
    Ok(match count {
        0 => ExitCode::from(EXIT_NO),
        _ => ExitCode::SUCCESS,
    })
}

async fn asked<T>(
    database: &Database,
    work: impl Future<Output = Result<T, outbox::Error>>,
) -> anyhow::Result<T> {
    let location = database.location();
    work.await
        .with_context(|| format!("cannot use the outbox at {location}"))
        .map_err(|error| {
            let hint = "check that the database is there and has the tables: tenure outbox schema";
            Hinted::new(error, hint).into()
        })
}

async fn relay(arguments: RunOutbox) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::new()?;
    let database = database(&arguments.outbox.outbox)?;
    let deliver = ToQueue::new(OverHttp(client(&arguments.server).await?));
    let place = arguments.place;
    let mut options = NodeOptions::new(super::named(Some(place.store))?, place.namespace);
    let node = super::node(arguments.node.node)?;
    options.node = Some(node.to_string());
    options.session = session::Config::for_ttl(arguments.ttl);
    let member = cluster::Options {
        config: cluster::Config::for_session(&options.session),
        version: Some(concat!("tenure ", env!("CARGO_PKG_VERSION")).to_owned()),
        follows: false,
        ..cluster::Options::default()
    };
    let node = Node::start(options).await?;
    let cluster = node.cluster(member).await?;
    let mut options = Options {
        name: arguments.name,
        ..Options::default()
    };
    options.policy.attempts_max = arguments.attempts;
    let relay = Relay::new(&node, database, deliver, options)?;
    relay.register(&cluster)?;
    output::note(&format!("offering {} on {}", relay.daemon(), node.id()));
    let stop = tokio::select! {
        stop = signals.next() => stop,
        () = told(&relay) => unreachable!("it goes on for ever"),
    };
    output::note("stopping; signal again to stop at once");
    let _ = stop;
    tokio::select! {
        () = node.shutdown() => Ok(ExitCode::SUCCESS),
        stop = signals.next() => Ok(stop.exit_code()),
    }
}

/// Prints when this process starts and stops relaying.
pub(crate) async fn told<D: Deliver>(relay: &Relay<D>) {
    let mut was_running = false;
    loop {
        let is_running = relay.metrics().running;
        if is_running != was_running {
            was_running = is_running;
            output::note(if is_running {
                "relaying the outbox"
            } else {
                "no longer relaying the outbox"
            });
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The outboxes that a broker was told about.
pub(crate) struct Outboxes {
    named: Vec<(String, Database)>,
    /// The token for calls to another broker.
    token: Option<String>,
}

impl Outboxes {
    pub(crate) fn new(settings: &Settings) -> anyhow::Result<Self> {
        let mut named: Vec<(String, Database)> = Vec::new();
        for outbox in &settings.outboxes {
            // A name has no colon or slash before the equals sign, but a URL has.
            let (name, url) = match outbox.split_once('=') {
                Some((name, url)) if !name.contains([':', '/']) => (name, url),
                _ => ("default", outbox.as_str()),
            };
            if name.is_empty() {
                return Err(Hinted::new(
                    "an outbox has no name",
                    "name it, or leave the equals sign out: --outbox NAME=URL",
                )
                .into());
            }
            if named.iter().any(|(other, _)| other == name) {
                return Err(Hinted::new(
                    format!("there are two outboxes with the name {name}"),
                    "name each of them: --outbox NAME=URL",
                )
                .into());
            }
            named.push((name.to_owned(), database(url)?));
        }
        let token = if named.is_empty() {
            None
        } else {
            own_token(settings)?
        };
        Ok(Self { named, token })
    }

    /// Offers their daemons on this broker's node.
    pub(crate) async fn relay(self, server: &Handle, config: &Config) -> anyhow::Result<()> {
        if self.named.is_empty() {
            return Ok(());
        }
        let member = cluster::Options {
            config: cluster::Config::for_session(&config.session()),
            priority: Some(config.priority),
            ..cluster::Options::default()
        };
        let cluster = server.node().cluster(member).await?;
        let mut shown = Vec::with_capacity(self.named.len());
        for (name, database) in self.named {
            let mut builder = Client::builder([own_url(server, config)]);
            if let Some(token) = &self.token {
                builder = builder.token(token);
            }
            let deliver = ToQueue::new(ToLeader {
                queue: server.queue().clone(),
                http: OverHttp(builder.build()?),
            });
            let deliver = deliver.with_limits(config.queue.clone());
            let options = Options {
                name: name.clone(),
                ..Options::default()
            };
            let relay = Relay::new(server.node(), database.clone(), deliver, options)?;
            relay.register(&cluster)?;
            shown.push((name.clone(), database, relay.clone()));
            server.publish(move || numbers(&name, &relay.metrics()));
        }
        let shown = Arc::new(shown);
        server.show_outboxes(move || {
            let shown = shown.clone();
            Box::pin(async move {
                // All databases are read at once, so that one that does not answer does not delay the others.
                let look = |(name, database, relay): &(String, Database, Relay<_>)| {
                    let (name, database) = (name.clone(), database.clone());
                    tokio::spawn(view(name, database, relay.metrics()))
                };
                let looks: Vec<_> = shown.iter().map(look).collect();
                let mut views = Vec::with_capacity(looks.len());
                for look in looks {
                    views.extend(look.await);
                }
                views
            })
        });
        Ok(())
    }
}

/// The URL of this broker, which forwards calls to the leader.
fn own_url(server: &Handle, config: &Config) -> String {
    let mut address = server.address();
    if config.tls.is_some() {
        // Its certificate is made out to that name.
        return server.url().to_owned();
    }
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            std::net::SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            std::net::SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    format!("http://{address}")
}

/// One of the broker's own tokens that may submit jobs.
fn own_token(settings: &Settings) -> anyhow::Result<Option<String>> {
    for (variable, scope) in super::serve::TOKEN_VARIABLES {
        let token = std::env::var(variable).unwrap_or_default();
        if scope >= Scope::Worker && !token.is_empty() {
            return Ok(Some(token));
        }
    }
    let Some(path) = &settings.tokens else {
        return Ok(None);
    };
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let tokens = text.lines().filter_map(|line| line.trim().split_once(' '));
    let mut able = tokens.filter(|(scope, _)| matches!(*scope, "worker" | "admin"));
    Ok(able.next().map(|(_, token)| token.trim().to_owned()))
}

/// An outbox as the dashboard shows it.
async fn view(name: String, database: Database, metrics: outbox::Metrics) -> OutboxView {
    let look = async {
        let status = database.status().await?;
        let dead = database.dead(DEAD_ROWS_SHOWN).await?;
        Ok::<_, outbox::Error>((status, dead))
    };
    let (tables, problem) = match tokio::time::timeout(LOOK_PATIENCE, look).await {
        Ok(Ok((status, dead))) => (Some(tables(status, dead)), None),
        Ok(Err(error)) => (None, Some(on_one_line(&error.into()))),
        Err(_) => (None, Some("the database does not answer".to_owned())),
    };
    OutboxView {
        name,
        database: database.location().to_owned(),
        relays_here: metrics.running,
        delivered: metrics.delivered,
        lag_ms: (metrics.delivered > 0).then_some(metrics.lag_ms),
        tables,
        problem,
    }
}

/// An error and its causes. Those of databases repeat theirs.
fn on_one_line(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |text, cause| {
        let cause = cause.to_string();
        match text.as_str() {
            "" => cause,
            _ if text.ends_with(&cause) => text,
            _ => format!("{text}: {cause}"),
        }
    })
}

fn tables(status: Status, dead: Vec<Dead>) -> OutboxTables {
    let row = |dead: Dead| DeadRow {
        seq: dead.seq,
        id: dead.id,
        job_type: dead.job_type,
        group: dead.group,
        attempts: dead.attempts,
        error: dead.error,
        age_ms: dead.age_ms,
    };
    OutboxTables {
        waiting: status.waiting,
        failing: status.failing,
        dead: status.dead,
        oldest_ms: status.oldest_ms,
        owner: status.owner,
        holder: status.holder,
        dead_rows: dead.into_iter().map(row).collect(),
    }
}

/// The metrics of a relay.
fn numbers(name: &str, metrics: &outbox::Metrics) -> Vec<Published> {
    let number = |name_of_metric, help, value| Published {
        name: name_of_metric,
        help,
        labels: vec![("outbox", name.to_owned())],
        value,
    };
    let seconds = |milliseconds: u64| Duration::from_millis(milliseconds).as_secs_f64();
    let count = |number: u64| Value::Gauge(f64::from(u32::try_from(number).unwrap_or(u32::MAX)));
    let mut numbers = vec![
        number(
            "tenure_outbox_relaying",
            "Whether this process relays the outbox, and can use its database",
            count((metrics.running && metrics.unavailable_ms == 0).into()),
        ),
        number(
            "tenure_outbox_delivered",
            "Rows handed over by this process",
            Value::Counter(metrics.delivered),
        ),
        number(
            "tenure_outbox_failed",
            "Deliveries that failed and are tried again",
            Value::Counter(metrics.failed),
        ),
        number(
            "tenure_outbox_died",
            "Rows that this process moved to the dead table",
            Value::Counter(metrics.died),
        ),
        number(
            "tenure_outbox_unavailable",
            "Rounds in which the queue or the database could not be reached",
            Value::Counter(metrics.unavailable),
        ),
        number(
            "tenure_outbox_lag_seconds",
            "How long after its insert the last row was handed over",
            Value::Gauge(seconds(metrics.lag_ms)),
        ),
    ];
    // Only the process that relays knows the state of the tables.
    if let Some(status) = &metrics.status {
        numbers.extend([
            number(
                "tenure_outbox_waiting",
                "Rows that wait to be handed over, at most 100,000",
                count(status.waiting),
            ),
            number(
                "tenure_outbox_dead",
                "Rows in the dead table, at most 100,000",
                count(status.dead),
            ),
            number(
                "tenure_outbox_oldest_seconds",
                "How long the oldest row has waited",
                Value::Gauge(seconds(status.oldest_ms.unwrap_or(0))),
            ),
        ]);
    }
    numbers
}
