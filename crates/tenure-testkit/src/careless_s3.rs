//! A server like S3 that ignores `If-Match` and `If-None-Match` on writes, as some S3-compatible servers do. A check
//! of a store must notice.

use std::ops::Deref;

use crate::bucket::Conditions;
use crate::hosted::Hosted;

/// A bucket that accepts every write.
#[derive(Debug)]
pub struct CarelessS3(Hosted);

impl CarelessS3 {
    /// Starts a server with one empty bucket. Has to be called within a tokio runtime.
    pub async fn start(name: &str) -> Self {
        Self(Hosted::start("s3", name, Conditions::Ignored).await)
    }

    /// The environment variables for clients; any credentials work.
    #[must_use]
    pub fn variables() -> Vec<(String, String)> {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        vec![
            pair("AWS_ACCESS_KEY_ID", "any"),
            pair("AWS_SECRET_ACCESS_KEY", "any"),
            pair("AWS_REGION", "us-east-1"),
        ]
    }

    /// Closes every connection and accepts no new ones.
    pub async fn stop(self) {
        self.0.stop().await;
    }
}

impl Deref for CarelessS3 {
    type Target = Hosted;

    fn deref(&self) -> &Hosted {
        &self.0
    }
}
