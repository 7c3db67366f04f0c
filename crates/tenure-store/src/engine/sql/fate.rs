//! What the answer of the database means, or the lack of one.

use super::TABLE;
use crate::Error;
#[cfg(any(feature = "postgres", feature = "mysql"))]
use crate::Key;
use crate::error::Cause;

/// What an error says about the statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum Fate {
    /// The database refused; nothing was changed. With what to do about it.
    Refused(&'static str),
    /// The database refused for now; nothing was changed.
    Busy,
    /// What is stored is not valid.
    Damaged,
    /// There was no answer, or one that says nothing about the statement.
    Lost,
}

/// sqlx's message, since it has no separate error for this.
const WITHOUT_TLS: &str = "server does not support TLS";
/// The fate when the database did not answer with its own error.
pub(in crate::engine) fn fate_without_answer(error: &sqlx::Error) -> Fate {
    match error {
        sqlx::Error::Tls(cause) => match cause.downcast_ref::<std::io::Error>() {
            // The other end closed the connection during the handshake, which says nothing about TLS.
            Some(error) if error.kind() != std::io::ErrorKind::InvalidData => Fate::Lost,
            _ if cause.to_string() == WITHOUT_TLS => Fate::Refused(
                "enable TLS on the server; or, if nobody else can listen on the network, turn TLS off in the URL: \
                 ?sslmode=disable for PostgreSQL, ?ssl-mode=DISABLED for MySQL",
            ),
            _ => Fate::Refused("check sslmode and the certificates in the URL"),
        },
        sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. } => Fate::Damaged,
        _ => Fate::Lost,
    }
}

/// The error of a read, or of what comes before a write is sent.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(in crate::engine) fn read_error(
    doing: impl Into<String>,
    fate: Fate,
    error: sqlx::Error,
) -> Error {
    not_applied(doing, fate, cause(error))
}

/// As above, for a cause that several requests may share.
pub(in crate::engine) fn not_applied(doing: impl Into<String>, fate: Fate, cause: Cause) -> Error {
    match fate {
        Fate::Refused(hint) => Error::refused(doing, hint, cause),
        Fate::Busy | Fate::Lost => Error::unavailable(doing, cause),
        Fate::Damaged => Error::Corrupt {
            location: format!("the table {TABLE}"),
            what: cause.to_string(),
        },
    }
}

/// The error of a write that was sent.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(in crate::engine) fn write_error(key: &Key, fate: Fate, error: sqlx::Error) -> Error {
    match fate {
        Fate::Lost => Error::unknown(key, cause(error)),
        fate => read_error(format!("writing {key}"), fate, error),
    }
}

/// The database's own message, and no more: sqlx's errors repeat their sources, and the details of some show what is in
/// a row.
pub(in crate::engine) fn cause(error: sqlx::Error) -> Cause {
    match error {
        sqlx::Error::Io(error) => error.into(),
        sqlx::Error::Database(answer) => match answer.code() {
            Some(code) => format!("{} ({code})", answer.message()).into(),
            None => answer.message().into(),
        },
        error => error.to_string().into(),
    }
}
