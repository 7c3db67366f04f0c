//! What the file says that all workers append to: who was trusted with what, and when.
//!
//! Every line is `SHARD GENERATION EVENT NANOSECONDS NODE`, and says that the node was trusted with the shard at
//! that time. So the times of one generation all come before those of the next, or two were trusted at once.

use std::collections::BTreeMap;

/// What the file says of a generation of a shard.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) node: String,
    pub(super) first: u128,
    pub(super) last: u128,
    pub(super) drained: bool,
}

/// The generations of every shard.
pub(super) type Shards = BTreeMap<String, BTreeMap<u64, Held>>;

/// Reads the file.
///
/// # Errors
///
/// What is wrong with it: two generations of a shard that overlap, or one that ran on two nodes.
pub(super) fn read(text: &str) -> Result<Shards, String> {
    let mut shards = Shards::new();
    for line in text.lines() {
        let words: Vec<_> = line.split(' ').collect();
        let [shard, generation, event, at, node] = words[..] else {
            return Err(format!("a torn line: {line:?}"));
        };
        let torn = |_| format!("a torn line: {line:?}");
        let at: u128 = at.parse().map_err(torn)?;
        let generations = shards.entry(shard.to_owned()).or_default();
        let generation: u64 = generation.parse().map_err(torn)?;
        let is_new = !generations.contains_key(&generation);
        if is_new && event != "started" {
            return Err(format!("no start before this: {line}"));
        }
        let held = generations.entry(generation).or_insert_with(|| Held {
            node: node.to_owned(),
            first: at,
            last: at,
            drained: false,
        });
        if held.node != node {
            return Err(format!("two nodes in one generation: {line}"));
        }
        held.last = held.last.max(at);
        held.drained |= event == "drained";
    }
    for (shard, generations) in &shards {
        let held: Vec<_> = generations.values().collect();
        for pair in held.windows(2) {
            if pair[0].last >= pair[1].first {
                return Err(format!("two generations overlap: {shard}: {pair:?}"));
            }
        }
    }
    Ok(shards)
}

#[test]
fn one_generation_after_the_other_is_right() {
    let text = "d/0 1 started 10 a\nd/0 1 works 20 a\nd/0 2 started 21 b\nd/0 1 drained 20 a\n";
    let shards = read(text).unwrap();
    let generations = &shards["d/0"];
    assert_eq!((generations[&1].first, generations[&1].last), (10, 20));
    assert!(generations[&1].drained && !generations[&2].drained);
}

#[test]
fn whatever_is_wrong_is_found() {
    for (text, problem) in [
        (
            "d/0 1 started 10 a\nd/0 2 started 20 b\nd/0 1 works 21 a\n",
            "two generations overlap",
        ),
        // Generations went back.
        (
            "d/0 2 started 10 a\nd/0 2 works 20 a\nd/0 1 started 30 b\n",
            "two generations overlap",
        ),
        (
            "d/0 1 started 10 a\nd/0 1 works 20 b\n",
            "two nodes in one generation",
        ),
        ("d/0 1 works 10 a\n", "no start before this"),
        ("d/0 1 star", "a torn line"),
        ("d/0 1 started x a\n", "a torn line"),
    ] {
        let found = read(text).expect_err(problem);
        assert!(found.contains(problem), "{found}");
    }
}
