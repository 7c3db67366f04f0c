//! Fuzzing on stable Rust: damages real inputs in many ways, and checks what must hold for each.
//!
//! A target is a function that takes bytes and panics if something is wrong, such as a record that is not read back
//! as it was written, or a wrong answer. This crate adds the checks that hold for every parser:
//!
//! - **It does not panic.** Overflows panic too, since tests are built with overflow checks.
//! - **Its memory is bounded by its input.** At any time, a case may hold at most a fixed multiple of its input's
//!   length, so a length field cannot reserve memory for data that is not there.
//!
//! Inputs are made from a corpus of real ones by [`mutate`]. It knows JSON, numbers and lines, but not the target,
//! and is not guided by coverage. Structure comes from the corpus, extremes from the mutations.
//!
//! # Seeds
//!
//! Each run has a fresh seed. Case 0 is made from the seed itself and each further case from the one before, so a
//! failing case is repeated by giving *its* seed, which the failure prints:
//!
//! ```text
//! TENURE_FUZZ_SEED=0x1f2e… cargo test -p tenure-core fuzz::cron
//! ```
//!
//! | variable | meaning | default |
//! | --- | --- | --- |
//! | `TENURE_FUZZ_SEED` | the first case | fresh |
//! | `TENURE_FUZZ_MILLISECONDS` | how long each target runs | 500 |

pub mod mutate;

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::Once;
use std::time::{Duration, Instant};

pub use tenure_random::Random;

/// The least number of cases of a run, however slow the machine is.
const CASES_MIN: u64 = 50;

/// The most attempts to make a failing input smaller.
const SHRINKS_MAX: usize = 2_000;

/// A fuzz target with its inputs.
#[derive(Debug, Clone)]
pub struct Fuzz {
    name: String,
    corpus: Vec<Vec<u8>>,
    repair: Option<fn(&mut Vec<u8>)>,
    bytes_base: u64,
    bytes_factor: u64,
}

/// The figures of a run.
#[derive(Debug, Clone, Copy)]
pub struct Ran {
    /// How many inputs were tried.
    pub cases: u64,
    /// The most memory that a case held at any time.
    pub bytes_max: u64,
}

/// Stored objects of one kind, one per line, from real runs of the product: see `corpus/`.
///
/// # Panics
///
/// If there are none of that kind.
#[must_use]
pub fn corpus(kind: &str) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let text = std::fs::read_to_string(folder.join(kind).with_extension("jsonl"));
    let text = text.unwrap_or_else(|error| panic!("the corpus has no {kind}: {error}"));
    text.lines().map(str::to_owned).collect()
}

impl Fuzz {
    /// A target, with real inputs.
    #[must_use]
    pub fn new<I: AsRef<[u8]>>(name: &str, corpus: impl IntoIterator<Item = I>) -> Self {
        let corpus: Vec<Vec<u8>> = corpus
            .into_iter()
            .map(|input| input.as_ref().to_vec())
            .collect();
        assert!(!corpus.is_empty(), "{name} has no inputs to begin with");
        Self {
            name: name.to_owned(),
            corpus,
            repair: None,
            bytes_base: 64 * 1024,
            bytes_factor: 64,
        }
    }

    /// Half of the inputs pass through this before they are used. It repairs what would otherwise reject every
    /// damaged input, such as a checksum.
    #[must_use]
    pub fn repaired_by(mut self, repair: fn(&mut Vec<u8>)) -> Self {
        self.repair = Some(repair);
        self
    }

    /// How much memory a case may hold at any time: a fixed number of bytes, and a number for each byte of its input.
    #[must_use]
    pub fn within(mut self, base: u64, factor: u64) -> Self {
        (self.bytes_base, self.bytes_factor) = (base, factor);
        self
    }

    /// Runs the target on the corpus itself, and then on mutations of it.
    ///
    /// # Panics
    ///
    /// If the target does, or holds too much memory. The message has the seed of the case and its input.
    pub fn run(self, target: impl FnMut(&[u8])) -> Ran {
        self.run_from(seed(), time(), target)
    }

    fn run_from(self, first_seed: u64, time: Duration, mut target: impl FnMut(&[u8])) -> Ran {
        println(&format!(
            "fuzz {}: {} inputs, TENURE_FUZZ_SEED={first_seed:#x}",
            self.name,
            self.corpus.len()
        ));
        // Memory that is allocated once and kept must not count for a case.
        for input in &self.corpus {
            target(input);
        }
        let mut ran = Ran {
            cases: 0,
            bytes_max: 0,
        };
        let (mut seed, started) = (first_seed, Instant::now());
        while ran.cases < CASES_MIN || started.elapsed() < time {
            let input = self.input(seed);
            match self.check(&input, &mut target) {
                Ok(bytes) => ran.bytes_max = ran.bytes_max.max(bytes),
                Err(why) => self.fail(seed, &input, &why, &mut target),
            }
            ran.cases += 1;
            seed = Random::new(seed).bits();
        }
        println(&format!("fuzz {}: {ran:?}", self.name));
        ran
    }

    fn input(&self, seed: u64) -> Vec<u8> {
        // Not the same sequence that makes the next seed.
        let mut random = Random::new(!seed);
        let mut input = mutate::mutate(&self.corpus, &mut random);
        if let Some(repair) = self.repair.filter(|_| random.percent(50)) {
            repair(&mut input);
        }
        input
    }

    /// Returns the most memory that the case held, or what is wrong.
    fn check(&self, input: &[u8], target: &mut impl FnMut(&[u8])) -> Result<u64, String> {
        let mut outcome = Ok(());
        let allocated = allocation_counter::measure(|| outcome = quietly(|| target(input)));
        outcome?;
        let allowed = self.bytes_base + self.bytes_factor * input.len() as u64;
        if allocated.bytes_max > allowed {
            let (held, length) = (allocated.bytes_max, input.len());
            return Err(format!(
                "{length} bytes of input made it hold {held} bytes, {allowed} are allowed"
            ));
        }
        Ok(allocated.bytes_max)
    }

    fn fail(&self, seed: u64, input: &[u8], why: &str, target: &mut impl FnMut(&[u8])) -> ! {
        let smaller = self.shrink(input, target);
        let why_smaller = self.check(&smaller, target).err().unwrap_or_default();
        let short = |text: &str| text.chars().take(600).collect::<String>();
        panic!(
            "fuzz {}: {}\n  again: TENURE_FUZZ_SEED={seed:#x}\n  smaller: {}\n  which says: {}",
            self.name,
            short(why),
            smaller.escape_ascii(),
            short(&why_smaller),
        );
    }

    /// Makes a failing input smaller: removes pieces as long as it still fails.
    fn shrink(&self, input: &[u8], target: &mut impl FnMut(&[u8])) -> Vec<u8> {
        let mut smallest = input.to_vec();
        let (mut piece, mut tries) = (input.len().div_ceil(2), 0);
        while piece > 0 {
            let mut at = 0;
            while at < smallest.len() && tries < SHRINKS_MAX {
                tries += 1;
                let mut shorter = smallest.clone();
                shorter.drain(at..(at + piece).min(smallest.len()));
                if let Some(repair) = self.repair {
                    repair(&mut shorter);
                }
                if shorter.len() < smallest.len() && self.check(&shorter, target).is_err() {
                    smallest = shorter;
                } else {
                    at += piece;
                }
            }
            piece /= 2;
        }
        smallest
    }
}

/// Returns the message of a panic in this thread without printing it, since shrinking causes thousands of panics.
fn quietly(work: impl FnOnce()) -> Result<(), String> {
    thread_local!(static QUIET: Cell<bool> = const { Cell::new(false) });
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if QUIET.get() {
                let place = info.location().map(ToString::to_string);
                LAST_PLACE.set(place);
            } else {
                usual(info);
            }
        }));
    });
    QUIET.set(true);
    LAST_PLACE.set(None);
    let outcome = panic::catch_unwind(AssertUnwindSafe(work));
    QUIET.set(false);
    let place = LAST_PLACE.take();
    // A runtime hides the panic of a task, but it still counts.
    if let (Ok(()), Some(place)) = (&outcome, &place) {
        return Err(format!("a task panicked at {place}"));
    }
    outcome.map_err(|payload| {
        let text = payload
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| payload.downcast_ref::<&str>().copied())
            .unwrap_or("something that is no text");
        format!("panicked at {}: {text}", place.unwrap_or_default())
    })
}

thread_local!(static LAST_PLACE: Cell<Option<String>> = const { Cell::new(None) });

/// The seed from the environment: hexadecimal, as printed, or decimal.
fn seed() -> u64 {
    let Ok(text) = std::env::var("TENURE_FUZZ_SEED") else {
        return RandomState::new().hash_one(0);
    };
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.expect("TENURE_FUZZ_SEED is a number, such as 7 or 0x1f")
}

fn time() -> Duration {
    let text = std::env::var("TENURE_FUZZ_MILLISECONDS").unwrap_or_else(|_| "500".to_owned());
    let milliseconds = text.parse();
    Duration::from_millis(milliseconds.expect("TENURE_FUZZ_MILLISECONDS is a number"))
}

#[expect(
    clippy::print_stdout,
    reason = "the seed of a test belongs into its output"
)]
fn println(text: &str) {
    println!("{text}");
}

#[cfg(test)]
mod tests;
