use std::time::Duration;

use super::*;
use crate::cluster::Definition;
use crate::election::{Term, Writer};
use crate::random::Random;
use crate::session::Holder;
use crate::{Incarnation, Wall};

fn id() -> DaemonId {
    DaemonId::new("d").unwrap()
}

fn node(number: u128) -> NodeId {
    NodeId::new(format!("n{number}")).unwrap()
}

/// Nothing is assigned to anybody.
fn nothing(shards: u32) -> Assignments {
    let holder = |number: u128| Holder {
        node: node(number),
        incarnation: Incarnation(number),
        ttl: Duration::from_secs(10),
    };
    let daemon = Daemon {
        definition: Definition::shards(shards),
        shards: vec![None; shards as usize],
        failures: BTreeMap::new(),
    };
    Assignments {
        lineage: None,
        term: Term(1),
        writer: Writer {
            incarnation: Incarnation(0),
            counter: 1,
            nonce: crate::Nonce::default(),
        },
        generation: Generation(0),
        drain_timeout: Duration::from_secs(30),
        force_after: Duration::from_secs(30),
        recovering: false,
        holders: (0..3)
            .map(|number| (Incarnation(number), holder(number)))
            .collect(),
        daemons: [(id(), daemon)].into(),
    }
}

impl Assignments {
    fn daemon(&mut self) -> &mut Daemon {
        self.daemons.get_mut(&id()).unwrap()
    }

    fn assign(&mut self, index: usize, to: u128) {
        self.generation = self.generation.next();
        let generation = self.generation;
        self.daemon().shards[index] = Some(Assignment {
            generation,
            incarnation: Incarnation(to),
            state: AssignmentState::Assigning,
            since: Wall(0),
            count: 1,
        });
    }

    fn set(&mut self, index: usize, state: AssignmentState) {
        self.daemon().shards[index].as_mut().unwrap().state = state;
    }

    fn free(&mut self, index: usize, error: Option<&str>) {
        let freed = self.daemon().shards[index].take().unwrap();
        if let Some(error) = error {
            let failure = Failure {
                generation: freed.generation,
                node: node(freed.incarnation.0),
                at: Wall(0),
                error: error.to_owned(),
                count: 1,
            };
            let index = u32::try_from(index).unwrap();
            self.daemon().failures.insert(index, failure);
        }
    }
}

fn words(turns: &[Turn]) -> Vec<String> {
    let words = |turn: &Turn| {
        let what = match &turn.what {
            What::Assigned => "assigned",
            What::Started => "started",
            What::Revoked => "revoked",
            What::Stopped => "stopped",
            What::Failed { error } => error,
        };
        format!("{} {} {} {what}", turn.shard, turn.generation, turn.node)
    };
    turns.iter().map(words).collect()
}

#[test]
fn every_step_that_is_seen_is_told() {
    let (mut witness, mut assignments) = (Witness::default(), nothing(1));
    assert_eq!(witness.look(&assignments), []);
    assignments.assign(0, 1);
    assert_eq!(words(&witness.look(&assignments)), ["d/0 1 n1 assigned"]);
    assert_eq!(witness.look(&assignments), []);
    assignments.set(0, AssignmentState::Active);
    assert_eq!(words(&witness.look(&assignments)), ["d/0 1 n1 started"]);
    assignments.set(0, AssignmentState::Revoking);
    assert_eq!(words(&witness.look(&assignments)), ["d/0 1 n1 revoked"]);
    assignments.free(0, None);
    assignments.assign(0, 2);
    let told = words(&witness.look(&assignments));
    assert_eq!(told, ["d/0 1 n1 stopped", "d/0 2 n2 assigned"]);
    assignments.daemons.clear();
    assert_eq!(words(&witness.look(&assignments)), ["d/0 2 n2 stopped"]);
    assert_eq!(witness.shards(), 0);
}

#[test]
fn what_was_missed_is_left_out_but_for_failures() {
    let (mut witness, mut assignments) = (Witness::default(), nothing(1));
    assignments.assign(0, 1);
    assignments.free(0, Some("old"));
    assignments.assign(0, 1);
    assignments.set(0, AssignmentState::Active);
    let told = words(&witness.look(&assignments));
    assert_eq!(told, ["d/0 2 n1 assigned", "d/0 2 n1 started"]);
    assignments.free(0, None);
    assignments.assign(0, 0);
    assignments.free(0, None);
    assignments.assign(0, 2);
    assignments.free(0, Some("no such table"));
    assignments.assign(0, 1);
    let told = words(&witness.look(&assignments));
    let wanted = [
        "d/0 2 n1 stopped",
        "d/0 4 n2 assigned",
        "d/0 4 n2 no such table",
        "d/0 5 n1 assigned",
    ];
    assert_eq!(told, wanted);
}

#[test]
fn the_cause_that_the_leader_wrote_down_is_told_when_the_node_itself_says_stopped() {
    let (mut witness, mut assignments) = (Witness::default(), nothing(1));
    assignments.assign(0, 1);
    drop(witness.look(&assignments));
    assignments.set(0, AssignmentState::Revoking);
    let held = assignments.daemon().shards[0];
    assignments.free(0, Some("it did not start in time"));
    assignments.daemon().shards[0] = held;
    assert_eq!(words(&witness.look(&assignments)), ["d/0 1 n1 revoked"]);
    let shard = Shard {
        daemon: id(),
        index: 0,
    };
    let told = witness.own(&shard, Generation(1), What::Stopped);
    let told: Vec<Turn> = told.into_iter().collect();
    assert_eq!(words(&told), ["d/0 1 n1 it did not start in time"]);
    assert_eq!(witness.own(&shard, Generation(1), What::Stopped), None);
    assert_eq!(witness.own(&shard, Generation(2), What::Started), None);
}

/// Random histories, of which a witness sees a part: whatever it reports, it never contradicts itself, and in the end
/// it agrees with the assignments.
#[test]
fn nothing_that_is_told_is_ever_contradicted() {
    for seed in 0..300 {
        let (mut random, mut witness) = (Random::from_seed(seed), Witness::default());
        let (mut assignments, mut told) = (nothing(3), Vec::new());
        let mut older = assignments.clone();
        for _ in 0..200 {
            change(&mut random, &mut assignments);
            match random.below(5) {
                0 | 1 => told.extend(witness.look(&assignments)),
                2 => told.extend(own_word(&mut random, &assignments, &mut witness)),
                3 if random.below(10) == 0 => told.extend(witness.look(&older)),
                3 if random.below(10) == 0 => older = assignments.clone(),
                _ => {}
            }
        }
        told.extend(witness.look(&assignments));
        assert_in_order(&told);
        assert!(told.len() > 50, "seed {seed}: {}", told.len());
    }
}

fn change(random: &mut Random, assignments: &mut Assignments) {
    let index = usize::try_from(random.below(3)).unwrap();
    let state = assignments.daemon().shards[index].map(|it| it.state);
    match (state, random.below(3)) {
        (None, _) => assignments.assign(index, u128::from(random.below(3))),
        (Some(AssignmentState::Assigning), 0) => assignments.set(index, AssignmentState::Active),
        (Some(_), 1) => assignments.set(index, AssignmentState::Revoking),
        (Some(_), 2) => {
            let error = (random.below(2) == 0).then_some("failed");
            assignments.free(index, error);
        }
        _ => {}
    }
}

/// What the node of a shard does on its own, in the assigned generation.
fn own_word(random: &mut Random, assignments: &Assignments, witness: &mut Witness) -> Option<Turn> {
    let index = u32::try_from(random.below(3)).unwrap();
    let shard = Shard {
        daemon: id(),
        index,
    };
    let generation = assignments.get(&shard)?.generation;
    let what = match random.below(4) {
        0 => What::Started,
        1 => What::Revoked,
        2 => What::Stopped,
        _ => What::Failed {
            error: "failed".to_owned(),
        },
    };
    witness.own(&shard, generation, what)
}

fn assert_in_order(told: &[Turn]) {
    let mut last: BTreeMap<&Shard, (Generation, u8)> = BTreeMap::new();
    for turn in told {
        let stage = match turn.what {
            What::Assigned => 0,
            What::Started => 1,
            What::Revoked => 2,
            What::Stopped | What::Failed { .. } => 3,
        };
        let before = last.insert(&turn.shard, (turn.generation, stage));
        let fits = match before {
            None => stage == 0,
            Some((generation, 3)) => stage == 0 && turn.generation > generation,
            Some((generation, before)) => turn.generation == generation && stage > before,
        };
        assert!(fits, "{turn:?} after {before:?}");
    }
}
