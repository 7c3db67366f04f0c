//! The exhaustive check within small bounds. `model_mutations.rs` has the broken rules that it has to find.

use std::time::Duration;

use tenure_sim::model::{Bounds, Kind, cluster, explore, scenarios};

#[test]
fn nothing_within_small_bounds_breaks_anything() {
    for bounds in scenarios::small() {
        let explored = explore(&bounds).unwrap_or_else(|found| {
            panic!("{}\n{}", found.path.join("\n"), found.violation);
        });
        assert!(explored.is_complete, "{}", bounds.name);
        assert!(explored.states > 1000, "{explored:?}");
        // Faults that need a second lease, or work that is told to stop, do not happen in such a short time.
        let rare = [Kind::LeaseRestored, Kind::WorkHangs];
        let mut kinds = bounds.kinds.iter().filter(|kind| !rare.contains(kind));
        assert!(
            kinds.all(|kind| explored.faults.contains_key(kind)),
            "{:?}",
            explored.faults
        );
    }
}

#[test]
fn one_look_is_like_another() {
    let bounds = Bounds {
        faults: 0,
        ..scenarios::small().remove(0)
    };
    let counts = || explore(&bounds).map(|explored| (explored.states, explored.steps));
    assert_eq!(counts().unwrap(), counts().unwrap());
}

#[test]
fn of_a_process_and_its_copy_one_goes_on() {
    let mut all = scenarios::all().into_iter();
    let copies = all.find(|bounds| bounds.kinds == [Kind::Copied]);
    let bounds = Bounds {
        window: Duration::from_secs(1),
        horizon: Duration::from_secs(16),
        ..copies.expect("it is one of the looks")
    };
    let explored = explore(&bounds).unwrap_or_else(|found| {
        panic!("{}\n{}", found.path.join("\n"), found.violation);
    });
    assert!(explored.is_complete && explored.faults.contains_key(&Kind::Copied));
}

#[test]
fn a_page_that_is_lost_or_late_costs_nobody_the_lease() {
    let mut all = scenarios::all().into_iter();
    let listings = all.find(|bounds| bounds.name == "looks by listings");
    let bounds = Bounds {
        window: Duration::from_millis(3600),
        horizon: Duration::from_secs(16),
        ..listings.expect("it is one of the looks")
    };
    let explored = explore(&bounds).unwrap_or_else(|found| {
        panic!("{}\n{}", found.path.join("\n"), found.violation);
    });
    let (lost, slow) = (Kind::PageLost, Kind::PageSlow);
    assert!(explored.is_complete);
    assert!(
        [lost, slow]
            .iter()
            .all(|kind| explored.faults.contains_key(kind))
    );
}

#[test]
fn a_caller_that_is_asked_to_go_is_followed_when_its_time_is_over() {
    let mut all = scenarios::all().into_iter();
    let callers = all.find(|bounds| bounds.caller);
    let bounds = Bounds {
        window: Duration::from_secs(1),
        ..callers.expect("it is one of the looks")
    };
    let explored = explore(&bounds).unwrap_or_else(|found| {
        panic!("{}\n{}", found.path.join("\n"), found.violation);
    });
    assert!(explored.is_complete && explored.faults.len() == bounds.kinds.len());
}

#[test]
fn nothing_within_small_bounds_breaks_an_assignment() {
    let mut faults = std::collections::BTreeSet::new();
    for bounds in cluster::scenarios::small() {
        let explored = cluster::explore(&bounds).unwrap_or_else(|found| {
            panic!("{}\n{}", found.path.join("\n"), found.violation);
        });
        assert!(explored.is_complete, "{}", bounds.name);
        assert!(explored.states > 1000, "{explored:?}");
        faults.extend(explored.faults.into_keys());
    }
    assert_eq!(faults.len(), cluster::KINDS.len(), "{faults:?}");
}
