//! A double of Google Cloud Storage: its XML interface, with generations that are kept to and ETags
//! that are hashes of the content, as the real ones are.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::bucket::{Bucket, Conditions};
use crate::http1::Server;

/// A bucket of Google Cloud Storage in this process.
#[derive(Debug)]
pub struct Gcs {
    name: String,
    bucket: Arc<Bucket>,
    server: Server,
}

impl Gcs {
    /// Starts a server with one empty bucket. Must be called within a tokio runtime.
    pub async fn start(name: &str) -> Self {
        let bucket = Bucket::new(name, Conditions::Generations);
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
        format!("gs://{}?endpoint=http://{}", self.name, self.address())
    }

    /// What to put into the environment: a key that needs no other server.
    #[must_use]
    pub fn variables() -> Vec<(String, String)> {
        let key =
            r#"{"disable_oauth":true,"client_email":"","private_key":"","private_key_id":""}"#;
        vec![("GOOGLE_SERVICE_ACCOUNT_KEY".to_owned(), key.to_owned())]
    }

    /// Puts an object there behind the client's back, under any name.
    pub fn insert(&self, name: &str, value: &[u8]) {
        self.bucket.insert(name, value);
    }

    /// Answers with dates that are ahead by so many seconds, as a proxy with a clock of its own does.
    pub fn set_date_ahead(&self, seconds: u64) {
        self.bucket.set_date_ahead(seconds);
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
}
