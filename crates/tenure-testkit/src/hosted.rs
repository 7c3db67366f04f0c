//! A bucket behind a server: what the doubles of object stores share.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::bucket::{Bucket, Conditions};
use crate::http1::Server;

/// A bucket served over HTTP.
#[derive(Debug)]
pub struct Hosted {
    scheme: &'static str,
    name: String,
    bucket: Arc<Bucket>,
    server: Server,
}

impl Hosted {
    pub(crate) async fn start(scheme: &'static str, name: &str, conditions: Conditions) -> Self {
        let bucket = Bucket::new(name, conditions);
        let served = bucket.clone();
        Self {
            scheme,
            name: name.to_owned(),
            bucket,
            server: Server::start(move |stream| served.clone().serve(stream)).await,
        }
    }

    /// The server's address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.server.address
    }

    /// The store URL of the bucket.
    #[must_use]
    pub fn url(&self) -> String {
        let (scheme, name) = (self.scheme, &self.name);
        format!("{scheme}://{name}?endpoint=http://{}", self.address())
    }

    /// Adds an object without a client, under any name.
    pub fn insert(&self, name: &str, value: &[u8]) {
        self.bucket.insert(name, value);
    }

    /// Sends dates that are this many seconds ahead, like a proxy with its own clock.
    pub fn set_date_ahead(&self, seconds: u64) {
        self.bucket.set_date_ahead(seconds);
    }

    /// How many requests were received.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.bucket.requests()
    }

    /// The names of all objects.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.bucket.names()
    }

    pub(crate) async fn stop(self) {
        self.server.stop().await;
    }
}
