//! A double of Google Cloud Storage: its XML interface, with generations that conditions are checked against, and
//! ETags that are hashes of the content, as in the real service.

use std::ops::Deref;

use crate::bucket::Conditions;
use crate::hosted::Hosted;

/// A bucket of Google Cloud Storage in this process.
#[derive(Debug)]
pub struct Gcs(Hosted);

impl Gcs {
    /// Starts a server with one empty bucket. Must be called within a tokio runtime.
    pub async fn start(name: &str) -> Self {
        Self(Hosted::start("gs", name, Conditions::Generations).await)
    }

    /// The environment variables for clients: a key that needs no other server.
    #[must_use]
    pub fn variables() -> Vec<(String, String)> {
        let key =
            r#"{"disable_oauth":true,"client_email":"","private_key":"","private_key_id":""}"#;
        vec![("GOOGLE_SERVICE_ACCOUNT_KEY".to_owned(), key.to_owned())]
    }
}

impl Deref for Gcs {
    type Target = Hosted;

    fn deref(&self) -> &Hosted {
        &self.0
    }
}
