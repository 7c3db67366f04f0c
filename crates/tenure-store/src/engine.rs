//! The engines. [`open`](crate::open) chooses one by URL; each also has its own constructor.

#[cfg(any(feature = "file", feature = "object", feature = "sqlite"))]
#[cfg_attr(
    not(any(feature = "file", feature = "sqlite")),
    allow(
        dead_code,
        reason = "object stores read the stamps of files, and note no readings"
    )
)]
pub(crate) mod clock;
#[cfg(feature = "file")]
pub mod file;
#[cfg(any(feature = "file", feature = "sqlite"))]
mod identity;
pub mod memory;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "object")]
pub mod object;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "file", feature = "sqlite"))]
mod private;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod sql;
#[cfg(feature = "sqlite")]
pub mod sqlite;
