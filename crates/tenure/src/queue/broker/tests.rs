//! What the broker applies as it was asked, and what is read back from the log, come to the same.

use tenure_core::queue::*;
use tenure_core::{JobId, JobType, QueueName, ScheduleName};
use tokio::sync::mpsc;

use self::generator::Generator;
use super::{Broker, Machine, Position};
use crate::runtime::HOST;

#[allow(dead_code, reason = "more than this test needs")]
#[path = "../../../../tenure-core/src/queue/tests/generator.rs"]
mod generator;

fn broker() -> Broker {
    let (abandoned, _) = mpsc::unbounded_channel();
    Broker::new(&HOST, 16, Default::default(), abandoned)
}

#[test]
fn a_command_and_its_record_come_to_the_same_state() {
    for seed in 0..20 {
        let mut generator = Generator::new(seed);
        let (mut served, mut recovered) = (broker(), broker());
        let mut parsed = Queue::new(seed);
        for number in 1..=400 {
            let command = generator.command(&served.queue);
            let record = serde_json::to_vec(&command).unwrap();
            let position = Position(number);
            recovered.replay(position, &record).unwrap();
            let mut events = Vec::new();
            let parsed_command = serde_json::from_slice(&record).unwrap();
            let expected = parsed.apply(parsed_command, &mut events);
            let answer = served.apply(position, command).take();
            assert_eq!(answer, expected, "seed {seed}, command {number}");
            assert_eq!(served.events, events, "seed {seed}, command {number}");
            generator.follow(&answer);
        }
        assert_eq!(served.queue.encode(), parsed.encode(), "seed {seed}");
        assert_eq!(recovered.queue.encode(), parsed.encode(), "seed {seed}");
    }
}
