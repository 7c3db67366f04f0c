//! Rules broken on purpose that the exhaustive check has to find, with the steps that show it. Only the copy of the
//! source that `scripts/mutants` makes has the switches for it.

use tenure_core::mutation::{Mutation, with};
use tenure_sim::model::{Bounds, Kind, cluster, explore, scenarios};

#[test]
fn broken_rules_are_found_with_the_steps_that_show_it() {
    for mutation in [
        Mutation::LeadBeforeFence,
        Mutation::TakeWithoutEviction,
        Mutation::TrustFromAnswer,
        Mutation::LeaveWhileWorking,
        Mutation::RecreateSession,
        Mutation::UnknownHeartbeatFailed,
    ] {
        let found = scenarios::small().into_iter().find_map(|bounds| {
            let bounds = Bounds {
                states_max: 50_000,
                ..bounds
            };
            with(Some(mutation), || explore(&bounds)).err()
        });
        let found = found.unwrap_or_else(|| panic!("{mutation:?} is not found"));
        assert!(!found.path.is_empty() || mutation == Mutation::LeadBeforeFence);
    }
}

#[test]
fn rules_for_a_process_and_its_copy_are_found() {
    let copies = || {
        let mut all = scenarios::all().into_iter();
        let bounds = all.find(|bounds| bounds.kinds == [Kind::Copied]);
        bounds.expect("it is one of the looks")
    };
    for (mutation, property) in [
        (
            Mutation::RecogniseByCounter,
            "trust is backed by what the store did",
        ),
        (Mutation::GiveBackOutrun, "at most one trusted leader"),
    ] {
        let found = with(Some(mutation), || explore(&copies()));
        let found = found.expect_err("a broken rule is found");
        assert_eq!(found.violation.property, property, "{mutation:?}");
    }
}

#[test]
fn rules_for_listings_are_found() {
    for (mutation, kind, property) in [
        (
            Mutation::PageForgets,
            Kind::PageLost,
            "one leader when all is well",
        ),
        (
            Mutation::TrustFromLookAnswer,
            Kind::PageSlow,
            "trust is backed by what the store did",
        ),
    ] {
        let mut all = scenarios::all().into_iter();
        let bounds = all.find(|bounds| bounds.name == "looks by listings");
        let bounds = Bounds {
            kinds: vec![kind],
            ..bounds.expect("it is one of the looks")
        };
        let found = with(Some(mutation), || explore(&bounds));
        let found = found.expect_err("a broken rule is found");
        assert_eq!(found.violation.property, property, "{mutation:?}");
    }
}

#[test]
fn rules_for_callers_that_are_asked_to_go_are_found() {
    for (mutation, property) in [
        (
            Mutation::LapsesEarly,
            "a lease is taken from ended sessions only",
        ),
        (Mutation::NeverLapses, "one leader when all is well"),
    ] {
        let mut all = scenarios::all().into_iter();
        let bounds = all.find(|bounds| bounds.caller);
        let bounds = bounds.expect("it is one of the looks");
        let found = with(Some(mutation), || explore(&bounds));
        let found = found.expect_err("a broken rule is found");
        assert_eq!(found.violation.property, property, "{mutation:?}");
    }
}

/// Uses the check that shows each soonest. Rules that take more states to show are part of `make model`.
#[test]
fn broken_rules_of_assignments_are_found_with_the_steps_that_show_it() {
    let looks = [cluster::scenarios::small(), cluster::scenarios::hunts()].concat();
    for (mutation, name, property) in [
        (Mutation::NoDrain, "shards from nothing", ONE_HOLDER),
        (
            Mutation::DecideBeforeInstalled,
            "shards from nothing",
            INSTALLED,
        ),
        (Mutation::ForceEarly, "shards from nothing", ONE_HOLDER),
        (Mutation::SilenceConfirms, "shards from nothing", ONE_HOLDER),
        (
            Mutation::StartAgain,
            "shards from nothing",
            "generations only grow",
        ),
        (
            Mutation::TrustUnseenAssignment,
            "shards in a drain",
            ONE_HOLDER,
        ),
        (Mutation::NeverForce, "shards in a drain", EVERY_SHARD),
        (
            Mutation::WholeDrainTrust,
            "shards in a drain, slow looks",
            ONE_HOLDER,
        ),
    ] {
        let look = looks.iter().find(|look| look.name == name);
        let bounds = cluster::Bounds {
            states_max: 100_000,
            ..look.expect("it is one of them").clone()
        };
        let found = with(Some(mutation), || cluster::explore(&bounds)).err();
        let found = found.unwrap_or_else(|| panic!("{mutation:?} is not found"));
        assert_eq!(found.violation.property, property, "{mutation:?}");
        assert!(!found.path.is_empty());
    }
}

const ONE_HOLDER: &str = "a shard is trusted by one process";
const INSTALLED: &str = "a leader decides after its term is installed";
const EVERY_SHARD: &str = "every shard runs when all is well";
