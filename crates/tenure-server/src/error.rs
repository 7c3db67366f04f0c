//! Why a server did not start.

use std::net::SocketAddr;

/// Why a server did not start. Nothing is left running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] crate::ConfigError),
    /// The certificate or its key cannot be used.
    #[error("{what}")]
    Tls {
        /// What is wrong.
        what: String,
        /// How to fix it.
        hint: String,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The store cannot be used, or the node cannot join.
    #[error(transparent)]
    Node(#[from] tenure::Error),
}

impl Error {
    /// What to do next, for people.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::Config(error) => error.hint.clone(),
            Error::Tls { hint, .. } => Some(hint.clone()),
            Error::Listen { source, address } => Some(match source.kind() {
                std::io::ErrorKind::AddrInUse => format!(
                    "another process listens there; to start a standby on this host, use --listen {}:{}",
                    address.ip(),
                    address.port().checked_add(1).unwrap_or(8080)
                ),
                std::io::ErrorKind::PermissionDenied => {
                    "ports below 1024 need special permission; use a higher one".to_owned()
                }
                std::io::ErrorKind::AddrNotAvailable => {
                    "this host has no such address; use --listen 127.0.0.1:8080".to_owned()
                }
                _ => "choose another address with --listen ADDR:PORT".to_owned(),
            }),
            Error::Node(tenure::Error::Store(error)) => Some(error.hint().to_owned()),
            Error::Node(tenure::Error::Queue(tenure::queue::Error::Invalid { hint, .. })) => {
                Some(hint.clone())
            }
            Error::Node(_) => None,
        }
    }
}
