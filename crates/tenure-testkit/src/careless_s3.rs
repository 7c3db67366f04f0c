//! Speaks like S3 and ignores `If-Match` and `If-None-Match` on writes, as some look-alikes do. A check of
//! a store must find it out.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::bucket::{Bucket, Conditions};
use crate::http1::Server;

/// A bucket that takes every write.
#[derive(Debug)]
pub struct CarelessS3 {
    name: String,
    bucket: Arc<Bucket>,
    server: Server,
}

impl CarelessS3 {
    /// Starts a server with one empty bucket. Must be called within a tokio runtime.
    pub async fn start(name: &str) -> Self {
        let bucket = Bucket::new(name, Conditions::Ignored);
        let served = bucket.clone();
        Self {
            name: name.to_owned(),
            bucket,
            server: Server::start(move |stream| served.clone().serve(stream)).await,
        }
    }

    /// Where the server is.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.server.address
    }

    /// The store URL of the bucket.
    #[must_use]
    pub fn url(&self) -> String {
        format!("s3://{}?endpoint=http://{}", self.name, self.address())
    }

    /// What to put into the environment; any credentials do.
    #[must_use]
    pub fn variables() -> Vec<(String, String)> {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        vec![
            pair("AWS_ACCESS_KEY_ID", "any"),
            pair("AWS_SECRET_ACCESS_KEY", "any"),
            pair("AWS_REGION", "us-east-1"),
        ]
    }

    /// How many requests came.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.bucket.requests()
    }

    /// The names of all objects.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.bucket.names()
    }

    /// Closes every connection and takes no new one.
    pub async fn stop(self) {
        self.server.stop().await;
    }
}
