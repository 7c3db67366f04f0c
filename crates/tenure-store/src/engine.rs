//! The engines. [`open`](crate::open) chooses one by URL; each also has a constructor of its own.

#[cfg(any(feature = "file", feature = "sqlite"))]
mod clock;
#[cfg(feature = "file")]
pub mod file;
pub mod memory;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "object")]
pub mod object;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod sql;
#[cfg(feature = "sqlite")]
pub mod sqlite;
