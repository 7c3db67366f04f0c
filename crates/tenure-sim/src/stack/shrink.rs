//! A failing run made smaller: less chaos, fewer kinds of faults, the same property broken.

use std::time::Duration;

use super::{Fault, Options, run};
use crate::Failure;

/// How often a smaller run is tried.
const TRIES_MAX: u32 = 60;

/// The smallest run that was found to break the same property.
#[derive(Debug)]
pub struct Smallest {
    /// What it is made of.
    pub options: Options,
    /// How it breaks.
    pub failure: Box<Failure>,
    /// How many runs were tried.
    pub tries: u32,
}

/// Makes a failing run smaller, for as long as it breaks the same property.
#[must_use]
pub fn shrink(failure: Box<Failure>, options: &Options) -> Smallest {
    let mut smallest = Smallest {
        options: options.clone(),
        failure,
        tries: 0,
    };
    while smallest.options.chaos > Duration::from_secs(10) {
        let mut options = smallest.options.clone();
        options.chaos /= 2;
        if !smallest.try_with(options) {
            break;
        }
    }
    for fault in Fault::ALL {
        let mut options = smallest.options.clone();
        options.off.insert(fault);
        smallest.try_with(options);
    }
    smallest
}

impl Smallest {
    /// Whether a run with these options breaks the same.
    fn try_with(&mut self, options: Options) -> bool {
        if self.tries >= TRIES_MAX {
            return false;
        }
        self.tries += 1;
        let property = self.failure.violation.property;
        match run(self.failure.seed, &options) {
            Err(failure) if failure.violation.property == property => {
                (self.options, self.failure) = (options, failure);
                true
            }
            _ => false,
        }
    }

    /// What to type to see it again.
    #[must_use]
    pub fn command(&self) -> String {
        let off: Vec<String> = self
            .options
            .off
            .iter()
            .map(|fault| format!("{fault:?}"))
            .collect();
        let without = if off.is_empty() {
            String::new()
        } else {
            format!(" --without {}", off.join(","))
        };
        let form = match self.options.files {
            None => "",
            Some(true) => " --files",
            Some(false) => " --objects",
        };
        let outbox = match self.options.outbox {
            None => "",
            Some(true) => " --outbox",
            Some(false) => " --no-outbox",
        };
        format!(
            "cargo run -p tenure-sim --bin stack -- --seed {} --seconds {}{form}{outbox}{without}",
            self.failure.seed,
            self.options.chaos.as_secs()
        )
    }
}
