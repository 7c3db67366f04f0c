//! Why a handler could not do its job.

use std::error::Error;
use std::time::Duration;

/// Why a handler could not do its job, and whether trying again is of use.
///
/// Made by `?` from any error, and from text; the causes of an error are part of its message. Not an error
/// itself, so that it can be made from all of them.
///
/// ```
/// use std::time::Duration;
/// use tenure_client::Failure;
///
/// fn handler(text: &str) -> Result<u32, Failure> {
///     if text.is_empty() {
///         return Err(Failure::permanent("there is nothing to count"));
///     }
///     Ok(text.parse()?)
/// }
/// assert_eq!(handler("x").unwrap_err().message(), "invalid digit found in string");
/// let later = Failure::from("the printer is out of paper").retry_in(Duration::from_secs(600));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub(crate) message: String,
    pub(crate) permanent: bool,
    pub(crate) retry_in: Option<Duration>,
    pub(crate) hand_back: bool,
}

impl Failure {
    /// A failure that trying again would not change: the job is dead, whatever attempts are left.
    #[must_use]
    pub fn permanent(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            permanent: true,
            ..Self::from(error)
        }
    }

    /// The work could not begin, for want of something that this host has too little of: files, processes, memory. That
    /// is not the job's fault: it is handed back, which costs it no attempt, and the worker claims less for a while.
    ///
    /// Not for work that has begun, nor for what depends on the job: such a job would be handed back for ever.
    #[must_use]
    pub fn hand_back(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            hand_back: true,
            ..Self::from(error)
        }
    }

    /// Tries again after this long, instead of what the job's back-off says.
    #[must_use]
    pub fn retry_in(mut self, wait: Duration) -> Self {
        self.retry_in = Some(wait);
        self
    }

    /// What went wrong.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self {
            message: with_causes(&*error.into()),
            permanent: false,
            retry_in: None,
            hand_back: false,
        }
    }
}

/// An error and its causes on one line. Many errors repeat their cause; what was said is not said again.
fn with_causes(error: &dyn Error) -> String {
    let mut message = error.to_string();
    let mut said = message.clone();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !said.contains(&text) {
            message.push_str(": ");
            message.push_str(&text);
            said = text;
        }
        cause = error.source();
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot print")]
    struct CannotPrint(#[source] std::io::Error);

    #[test]
    fn causes_are_part_of_the_message_once() {
        let error = CannotPrint(std::io::Error::other("no paper"));
        assert_eq!(Failure::from(error).message(), "cannot print: no paper");
        assert_eq!(
            Failure::from("plain").message(),
            Failure::permanent(String::from("plain")).message()
        );
    }
}
