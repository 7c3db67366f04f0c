//! Where shards go: to the least loaded node, and with as few moves as possible.
//!
//! Loads are counted as they will be: whatever this pass gives out or takes away counts at once, and so does work that
//! is still on its way. Room is counted as it is: work that has not left yet still takes some.

/// What a node has and can take.
#[derive(Debug, Clone)]
pub(crate) struct Room {
    /// The most it takes, as a sum of weights.
    capacity: u64,
    /// It has not acknowledged something yet: nothing is moved there for balance.
    pub(crate) silent: bool,
    /// The weight of what will be there.
    load: u64,
    /// The weight of what is there or will be.
    held: u64,
}

/// A daemon, as far as it matters for placing its shards. Nodes are named by their index.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    /// The weight of each shard.
    pub(crate) weight: u64,
    /// No node may have two of them.
    pub(crate) alone: bool,
    /// By node: whether it may be given this.
    pub(crate) allowed: Vec<bool>,
    /// Nodes where this has failed recently: they are the last choice.
    pub(crate) unreliable: Vec<usize>,
    /// Nodes where this has failed before: they are given one, as a test.
    pub(crate) on_trial: Vec<usize>,
    /// By node: how many shards it has or will have.
    here: Vec<u32>,
}

/// Why a shard cannot be placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// No node may be given it.
    NoNode,
    /// Every node that may run it has failed to, and it is too early to try again.
    PassedOver,
    /// Every node that may run it has one.
    OneEverywhere,
    /// Every node that may run it is full.
    NoRoom,
}

/// A shard that is better off elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) work: usize,
    pub(crate) index: u32,
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// The loads before.
    pub(crate) loads: (u64, u64),
}

/// Nodes and work while shards are being placed.
#[derive(Debug, Clone)]
pub(crate) struct Placement {
    rooms: Vec<Room>,
    works: Vec<Work>,
    /// By node: the shards that may be taken from it.
    movable: Vec<Vec<(usize, u32)>>,
}

impl Room {
    pub(crate) fn new(capacity: Option<u32>) -> Self {
        Self {
            capacity: capacity.map_or(u64::MAX, u64::from),
            silent: false,
            load: 0,
            held: 0,
        }
    }
}

impl Work {
    pub(crate) fn new(weight: u32, alone: bool, allowed: Vec<bool>) -> Self {
        Self {
            weight: u64::from(weight),
            alone,
            here: vec![0; allowed.len()],
            allowed,
            unreliable: Vec::new(),
            on_trial: Vec::new(),
        }
    }
}

impl Placement {
    pub(crate) fn new(rooms: Vec<Room>, works: Vec<Work>) -> Self {
        Self {
            movable: vec![Vec::new(); rooms.len()],
            rooms,
            works,
        }
    }

    /// Counts a shard that is on this node and stays, unless balance wants it elsewhere.
    pub(crate) fn stays(&mut self, work: usize, index: u32, node: usize, movable: bool) {
        self.give(work, node);
        if movable {
            self.movable[node].push((work, index));
        }
    }

    /// Counts a shard of this work that is still on this node, but on its way out.
    pub(crate) fn leaves(&mut self, work: usize, node: usize) {
        self.works[work].here[node] += 1;
        self.rooms[node].held += self.works[work].weight;
    }

    /// Gives a shard to the node that it came from, if that can still take it, or else to the least
    /// loaded.
    pub(crate) fn place(
        &mut self,
        work: usize,
        avoid: &[usize],
        prefer: Option<usize>,
    ) -> Result<usize, NoPlace> {
        let preferred = prefer.filter(|&node| self.takes(work, node).is_ok());
        let node = match preferred {
            Some(node) => node,
            None => self.least_loaded(work, avoid)?,
        };
        self.give(work, node);
        Ok(node)
    }

    /// Adds load to a node that is not known from this session.
    pub(crate) fn add_load(&mut self, node: usize, weight: u64) {
        self.rooms[node].load += weight;
    }

    /// The load of a node, as it will be.
    pub(crate) fn load(&self, node: usize) -> u64 {
        self.rooms[node].load
    }

    /// Moves shards from more to less loaded nodes, one by one, while every move brings the two closer together. Each
    /// lowers the sum of squared loads, so this ends.
    pub(crate) fn balance(&mut self, moves_max: usize) -> Vec<Move> {
        let mut moves = Vec::new();
        while moves.len() < moves_max {
            let Some(found) = self.best_move() else { break };
            self.take(found.work, found.from);
            self.give(found.work, found.to);
            // It is still there until it has drained.
            self.leaves(found.work, found.from);
            self.movable[found.from]
                .retain(|&(work, index)| (work, index) != (found.work, found.index));
            moves.push(found);
        }
        moves
    }

    fn best_move(&self) -> Option<Move> {
        let mut order: Vec<usize> = (0..self.rooms.len()).collect();
        order.sort_by_key(|&node| (self.rooms[node].load, node));
        for &from in order.iter().rev() {
            for &to in &order {
                let (high, low) = (self.rooms[from].load, self.rooms[to].load);
                // Weights are at least 1, and moving all of a difference of 1 would only mirror it.
                if high <= low + 1 {
                    break;
                }
                if self.rooms[to].silent {
                    continue;
                }
                if let Some((work, index)) = self.best_to_move(from, to, high - low) {
                    let loads = (high, low);
                    return Some(Move {
                        work,
                        index,
                        from,
                        to,
                        loads,
                    });
                }
            }
        }
        None
    }

    /// The shard whose move would leave the two loads closest together.
    fn best_to_move(&self, from: usize, to: usize, difference: u64) -> Option<(usize, u32)> {
        let mut best: Option<(u64, usize, u32)> = None;
        for &(work, index) in &self.movable[from] {
            let daemon = &self.works[work];
            if daemon.weight >= difference {
                continue;
            }
            let rest = difference.abs_diff(2 * daemon.weight);
            if best.is_some_and(|(least, ..)| least <= rest) {
                continue;
            }
            if self.takes(work, to).is_ok() && !daemon.unreliable.contains(&to) {
                best = Some((rest, work, index));
            }
        }
        best.map(|(_, work, index)| (work, index))
    }

    fn least_loaded(&self, work: usize, avoid: &[usize]) -> Result<usize, NoPlace> {
        let mut why = NoPlace::NoNode;
        let mut best = None;
        for node in 0..self.rooms.len() {
            let taken = if avoid.contains(&node) && self.works[work].allowed[node] {
                Err(NoPlace::PassedOver)
            } else {
                self.takes(work, node)
            };
            match taken {
                Ok(()) => {
                    let unreliable = self.works[work].unreliable.contains(&node);
                    let here = self.works[work].here[node];
                    let rank = (unreliable, self.rooms[node].load, here, node);
                    if best.is_none_or(|least| rank < least) {
                        best = Some(rank);
                    }
                }
                Err(NoPlace::NoNode) => {}
                Err(problem) => why = problem,
            }
        }
        best.map(|(.., node)| node).ok_or(why)
    }

    /// Whether a node can be given one more of this.
    fn takes(&self, work: usize, node: usize) -> Result<(), NoPlace> {
        let (work, room) = (&self.works[work], &self.rooms[node]);
        if !work.allowed[node] {
            Err(NoPlace::NoNode)
        } else if work.alone && work.here[node] > 0 {
            Err(NoPlace::OneEverywhere)
        } else if room.held + work.weight > room.capacity {
            Err(NoPlace::NoRoom)
        } else {
            Ok(())
        }
    }

    fn give(&mut self, work: usize, node: usize) {
        let (work, room) = (&mut self.works[work], &mut self.rooms[node]);
        work.here[node] += 1;
        room.load += work.weight;
        room.held += work.weight;
        if work.on_trial.contains(&node) {
            work.unreliable.push(node);
        }
    }

    fn take(&mut self, work: usize, node: usize) {
        let (work, room) = (&mut self.works[work], &mut self.rooms[node]);
        work.here[node] -= 1;
        room.load -= work.weight;
        room.held -= work.weight;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One work of these weights per entry, allowed everywhere; `on` says where its one shard is.
    fn placement(nodes: usize, on: &[(u32, usize)]) -> Placement {
        let rooms = vec![Room::new(None); nodes];
        let works = on
            .iter()
            .map(|&(weight, _)| Work::new(weight, false, vec![true; nodes]));
        let mut placement = Placement::new(rooms, works.collect());
        for (work, &(_, node)) in on.iter().enumerate() {
            placement.stays(work, 0, node, true);
        }
        placement
    }

    fn loads(placement: &Placement) -> Vec<u64> {
        placement.rooms.iter().map(|room| room.load).collect()
    }

    #[test]
    fn what_a_pass_gives_out_counts_at_once() {
        let mut placement = Placement::new(
            vec![Room::new(None); 3],
            vec![Work::new(1, false, vec![true; 3])],
        );
        let nodes: Vec<_> = (0..7).map(|_| placement.place(0, &[], None)).collect();
        assert_eq!(nodes, [0, 1, 2, 0, 1, 2, 0].map(Ok));
    }

    #[test]
    fn a_joining_node_gets_its_share_with_as_few_moves_as_possible() {
        let on: Vec<(u32, usize)> = (0..12).map(|shard| (1, shard % 3)).collect();
        let mut placement = placement(4, &on);
        let moves = placement.balance(usize::MAX);
        assert_eq!(moves.len(), 3);
        assert!(moves.iter().all(|moved| moved.to == 3));
        assert_eq!(loads(&placement), [3, 3, 3, 3]);
        assert_eq!(placement.balance(usize::MAX), []);
    }

    #[test]
    fn heavy_work_is_not_moved_back_and_forth() {
        // 5 against 0: moving the 5 would only mirror it.
        assert_eq!(placement(2, &[(5, 0)]).balance(9), []);
        // 8 against 0: moving the 3 leaves 5 and 3, moving the 5 as well; nothing then helps.
        let mut mixed = placement(2, &[(5, 0), (3, 0)]);
        assert_eq!(mixed.balance(9).len(), 1);
        assert_eq!(mixed.balance(9), []);
    }

    #[test]
    fn nothing_is_moved_to_a_node_that_takes_no_notice() {
        let mut crowded = placement(3, &[(1, 0); 10]);
        crowded.rooms[1].silent = true;
        let moves = crowded.balance(9);
        assert!(!moves.is_empty() && moves.iter().all(|moved| moved.to == 2));
    }

    #[test]
    fn the_budget_ends_a_pass() {
        let mut crowded = placement(2, &[(1, 0); 10]);
        assert_eq!(crowded.balance(2).len(), 2);
        assert_eq!(loads(&crowded), [8, 2]);
    }

    #[test]
    fn a_full_node_is_passed_by_and_the_reason_named() {
        let rooms = vec![Room::new(Some(2)), Room::new(Some(1))];
        let works = vec![
            Work::new(1, false, vec![true, true]),
            Work::new(1, true, vec![true, false]),
            Work::new(1, false, vec![false, false]),
        ];
        let mut placement = Placement::new(rooms, works);
        assert_eq!(placement.place(1, &[], None), Ok(0));
        assert_eq!(placement.place(1, &[], None), Err(NoPlace::OneEverywhere));
        assert_eq!(placement.place(0, &[1], None), Ok(0));
        assert_eq!(placement.place(0, &[], Some(0)), Ok(1));
        assert_eq!(placement.place(0, &[], None), Err(NoPlace::NoRoom));
        assert_eq!(placement.place(2, &[], None), Err(NoPlace::NoNode));
    }

    #[test]
    fn work_that_has_not_left_yet_takes_room_but_no_load() {
        let mut placement = Placement::new(
            vec![Room::new(Some(1)), Room::new(None)],
            vec![Work::new(1, false, vec![true, true])],
        );
        placement.leaves(0, 0);
        assert_eq!(placement.load(0), 0);
        assert_eq!(placement.place(0, &[], None), Ok(1));
    }

    #[test]
    fn what_no_node_may_have_twice_is_not_placed_beside_one_that_leaves() {
        let works = vec![Work::new(1, true, vec![true, true])];
        let mut placement = Placement::new(vec![Room::new(None); 2], works);
        placement.leaves(0, 0);
        assert_eq!(placement.place(0, &[], Some(0)), Ok(1));
        assert_eq!(placement.place(0, &[], None), Err(NoPlace::OneEverywhere));
    }

    #[test]
    fn a_node_on_trial_is_given_one_and_then_no_more() {
        let mut work = Work::new(1, false, vec![true, true]);
        work.on_trial.push(0);
        let mut placement = Placement::new(vec![Room::new(None); 2], vec![work]);
        let nodes: Vec<_> = (0..4).map(|_| placement.place(0, &[], None)).collect();
        assert_eq!(nodes, [0, 1, 1, 1].map(Ok));
    }
}
