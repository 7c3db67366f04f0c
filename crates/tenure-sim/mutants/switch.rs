use std::cell::Cell;

thread_local! {
    static BROKEN: Cell<Option<Mutation>> = const { Cell::new(None) };
}

/// Whether a rule is broken now, on this thread.
#[must_use]
pub fn is(mutation: Mutation) -> bool {
    BROKEN.get() == Some(mutation)
}

/// Runs something with a rule broken, on this thread.
pub fn with<T>(mutation: Option<Mutation>, run: impl FnOnce() -> T) -> T {
    let _restore = Restore(BROKEN.replace(mutation));
    run()
}

struct Restore(Option<Mutation>);

impl Drop for Restore {
    fn drop(&mut self) {
        BROKEN.set(self.0);
    }
}
