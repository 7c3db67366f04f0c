//! `tenure serve`.

use crate::support::check;

pub(crate) const COMING: &str = "note: the broker is not in this version yet: serve will join the election, run \
    daemons and serve the job queue over HTTP; today it only tries out the store and ends\n";

#[test]
fn says_what_is_coming_and_tries_out_the_store() {
    check(
        &["serve", "--store", "memory:"],
        0,
        "store    memory:\n\
         durable  no, everything is lost when the process ends\n\
         hints    yes, changes are noticed at once\n\
         age      yes, the store knows how old an object is\n",
        &format!(
            "{COMING}hint: `tenure store check URL` finds out whether a store keeps every guarantee\n"
        ),
    );
}
