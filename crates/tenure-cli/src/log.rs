//! Logging: lines on stderr, and spans for those who collect them.

use anyhow::Context;
use tokio::runtime::Handle;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::args::LogFormat;
use crate::{output, stderr};

/// The exporter of spans, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Export {
    #[cfg(feature = "otel")]
    spans: Option<crate::otel::Export>,
}

impl Export {
    /// Sends the remaining spans.
    pub(crate) fn finish(self) {
        #[cfg(feature = "otel")]
        if let Some(spans) = self.spans {
            spans.finish();
        }
    }
}

/// Starts the log on stderr, at the level that `TENURE_LOG` names.
pub(crate) fn start(
    format: LogFormat,
    is_traced: bool,
    runtime: &Handle,
) -> anyhow::Result<Export> {
    let filter = std::env::var("TENURE_LOG")
        .ok()
        .filter(|filter| !filter.is_empty())
        // By default, the audit trail is logged too: what operators did, and who was refused.
        .unwrap_or_else(|| "warn,tenure_server::audit=info".to_owned());
    let filter = parse(&filter)
        .map_err(|error| {
            output::Hinted::new(
                error,
                "try TENURE_LOG=info, or TENURE_LOG=tenure_store=debug",
            )
        })
        .context("cannot read TENURE_LOG")?;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(|| stderr::Log)
        .with_ansi(output::Paint::of(&std::io::stderr()).is_on());
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match format {
        LogFormat::Text => lines.with_filter(filter).boxed(),
        LogFormat::Json => lines.json().with_filter(filter).boxed(),
    };
    let registry = tracing_subscriber::registry().with(lines);
    #[cfg(feature = "otel")]
    if is_traced && let Some((layer, spans)) = crate::otel::layer(runtime)? {
        registry.with(layer).init();
        let spans = Some(spans);
        return Ok(Export { spans });
    }
    registry.init();
    #[cfg(not(feature = "otel"))]
    if is_traced && std::env::var_os("OTEL_EXPORTER_OTLP_ENDPOINT").is_some() {
        let _ = runtime;
        tracing::warn!(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, but this program was built without the feature otel"
        );
    }
    Ok(Export::default())
}

/// Parses a filter. A word that is not a level is refused, unless it is a directive or starts with this program's
/// name: the parser would take it for the name of a module, and log nothing else.
fn parse(filter: &str) -> Result<EnvFilter, Box<dyn std::error::Error + Send + Sync>> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    for word in filter.split(',').map(str::trim) {
        let is_level = LEVELS.iter().any(|level| word.eq_ignore_ascii_case(level));
        let is_number = word.len() == 1 && word.bytes().all(|byte| (b'0'..=b'5').contains(&byte));
        let is_module = word.starts_with("tenure") || word.contains(['=', '[', ':']);
        if !(word.is_empty() || is_level || is_number || is_module) {
            let levels = LEVELS.join(", ");
            return Err(format!("{word:?} is not a level; levels are {levels}").into());
        }
    }
    Ok(EnvFilter::try_new(filter)?)
}
