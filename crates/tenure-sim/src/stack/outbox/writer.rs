//! A program that inserts rows in transactions: some long, some rolled back.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::JobId;

use super::super::world::World;
use super::tables::Transaction;

const GROUPS: u64 = 3;

/// One transaction after the other, until the faults are over.
pub(super) async fn run(world: Arc<World>, number: usize) {
    let mut count = 0;
    while !world.is_calm() {
        world.pause_about(world.plan.submit_every).await;
        count += 1;
        transact(&world, number, count).await;
    }
}

async fn transact(world: &Arc<World>, number: usize, count: u64) {
    let (size, pause, commits) = {
        let mut random = world.random();
        let pauses = [0, 5, 5, 50, 50, 500, 8_000];
        let pause = Duration::from_millis(*random.pick(&pauses));
        (1 + random.below(5), pause, random.chance(800))
    };
    let mut groups: Vec<Option<String>> = (0..size).map(|_| draw_group(world)).collect();
    // As `Outbox::submit_all` does: nobody waits in a circle.
    groups.sort();
    let unique = (number as u64) << 32 | count;
    let mut transaction = Transaction::begin(unique);
    for (place, group) in groups.into_iter().enumerate() {
        let id = JobId::new(format!("o-{number}-{count:05}-{place}")).expect("a valid id");
        let is_poison = world.random().chance(30);
        let insert = world.outbox.insert(&mut transaction, id, group, is_poison);
        insert.await;
        world.pause_about(pause / 4).await;
    }
    world.pause_about(pause).await;
    let who = format!("p{number}");
    if commits {
        world.say(&who, &format!("commits transaction {count}"));
        world.outbox.commit(transaction);
    } else {
        world.say(&who, &format!("rolls transaction {count} back"));
        world.outbox.roll_back(&transaction);
    }
}

fn draw_group(world: &World) -> Option<String> {
    let mut random = world.random();
    let group = format!("o{}", random.below(GROUPS));
    random.chance(750).then_some(group)
}
