//! At most one process trusts itself to lead, at any moment, by its own clock, paused or not.

use super::super::world::World;
use crate::invariants::Violation;

pub(crate) fn check(world: &World) -> Result<(), Violation> {
    let leaders: Vec<_> = world
        .hosts
        .iter()
        .filter_map(|host| Some((host.name.as_str(), host.leads()?)))
        .collect();
    match leaders[..] {
        [] | [_] => Ok(()),
        _ => Err(Violation::new(
            "at most one trusted leader",
            format!("{leaders:?} trust themselves"),
        )),
    }
}
