//! At most one process trusts itself to lead an election, at any moment, by its own clock, paused or not. The
//! queue has one, and the cluster has one; a process may lead both. Only a host whose clock stood still is left out, until
//! what it trusts from before is over.

use std::collections::BTreeSet;

use super::super::world::World;
use crate::invariants::Violation;

pub(crate) fn check(world: &World, doubted: &BTreeSet<&str>) -> Result<(), Violation> {
    for (number, election) in ["queue", "cluster"].into_iter().enumerate() {
        let leaders: Vec<_> = world
            .hosts
            .iter()
            .filter(|host| !doubted.contains(host.name.as_str()))
            .filter_map(|host| Some((host.name.as_str(), host.leads()[number]?)))
            .collect();
        if leaders.len() > 1 {
            return Err(Violation::new(
                "at most one trusted leader",
                format!("{leaders:?} trust themselves to lead the {election}'s election"),
            ));
        }
    }
    Ok(())
}
