//! Servers that `scripts/with-servers` has started and can restart.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// The variable with the socket for commands.
const CONTROL: &str = "TENURE_TEST_CONTROL";

/// How long a restart may take. The script stops waiting earlier, and reports why.
const RESTART_PATIENCE: Duration = Duration::from_secs(300);

/// A server, by the script's name for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Server(pub &'static str);

impl Server {
    /// Whether the script is there to ask.
    #[must_use]
    pub fn can_restart(self) -> bool {
        std::env::var_os(CONTROL).is_some()
    }

    /// Crashes the server and restarts it; returns which one. It keeps everything that it has acknowledged.
    pub async fn restart(self) -> Result<String> {
        self.order(format!("restart {}\n", self.0)).await
    }

    /// The same, with its wall clock this many seconds ahead, or behind.
    pub async fn restart_ahead(self, seconds: i64) -> Result<String> {
        self.order(format!("restart {} {seconds:+}\n", self.0))
            .await
    }

    async fn order(self, order: String) -> Result<String> {
        let name = self.0;
        let path = std::env::var_os(CONTROL).with_context(|| format!("{CONTROL} is not set"))?;
        let ordered = async {
            let mut socket = UnixStream::connect(path).await?;
            socket.write_all(order.as_bytes()).await?;
            let mut answer = String::new();
            socket.read_to_string(&mut answer).await?;
            Ok::<_, std::io::Error>(answer)
        };
        let answer = timeout(RESTART_PATIENCE, ordered)
            .await
            .with_context(|| format!("{name} was not restarted within {RESTART_PATIENCE:?}"))??;
        match answer.trim() {
            "ok" => Ok(name.to_owned()),
            problem => bail!("{name} was not restarted: {problem}"),
        }
    }
}
