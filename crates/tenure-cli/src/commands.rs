//! One file per verb, all of one shape: `run` takes the verb's arguments and returns the exit code. An
//! error means that the verb could not do its work at all.

pub(crate) mod serve;
pub(crate) mod store_check;

use crate::output::Hinted;

/// The store that was named. An empty name is none: a variable that was meant to be set and is not must
/// not pass for the current directory.
fn named(url: Option<String>) -> Result<String, Hinted> {
    url.filter(|url| !url.is_empty()).ok_or_else(|| {
        Hinted::new(
            "no store was named",
            "give a URL, such as file:./tenure-data, or set TENURE_STORE",
        )
    })
}
