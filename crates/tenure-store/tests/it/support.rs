//! What the tests of several engines need.

use std::io;
use std::sync::{Arc, Mutex};

use tracing_subscriber::fmt::MakeWriter;

/// The URL of the server that a test needs, from the environment. Without it the test is skipped,
/// with a message.
#[allow(dead_code, reason = "not every selection of engines has a server")]
pub(crate) fn url(variable: &str) -> Option<String> {
    tenure_testkit::skip::server(variable)
}

/// What was logged.
#[derive(Debug, Clone, Default)]
#[allow(dead_code, reason = "not every engine logs something that matters")]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

#[allow(dead_code, reason = "not every engine logs something that matters")]
impl Log {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
