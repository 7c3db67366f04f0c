//! What must hold after every command: every index says of every job what the job says of itself.

use std::collections::BTreeSet;

use crate::queue::board::Standing;
use crate::queue::machine::{Queue, finished_place};
use crate::queue::shelves::Class;

impl Queue {
    /// Panics if any index disagrees with the jobs.
    pub(super) fn check_invariants(&self) {
        self.check_jobs();
        self.check_groups();
        self.check_counts();
        self.check_board();
    }

    fn check_jobs(&self) {
        let shelved: Vec<_> = self.shelves.iter().collect();
        assert_eq!(shelved.len(), self.jobs.len());
        for (shelf, sequence) in shelved {
            let handle = self.orders[shelf.class as usize].get(sequence);
            let job = &self.jobs[handle.expect("what is on a shelf is in its order")];
            assert_eq!((shelf, sequence), (job.shelf(), job.sequence));
        }
        let mut ordered = 0;
        for class in Class::ALL {
            for (sequence, handle) in self.orders[class as usize].iter() {
                let job = &self.jobs[handle];
                assert_eq!((job.class, job.sequence), (class, sequence));
                ordered += 1;
            }
        }
        assert_eq!(ordered, self.jobs.len());
        assert_eq!(self.ids.len(), self.jobs.len());
        for schedule in self.schedules.values() {
            assert!(!schedule.paused || schedule.next.is_none(), "{schedule:?}");
        }
        let mut keys = BTreeSet::new();
        let mut scheduled = 0;
        let mut keyed = 0;
        let mut finished = [0; 3];
        for (handle, job) in self.jobs.iter() {
            assert_eq!(self.find(&job.id), Some(handle));
            assert!(job.sequence <= self.sequence);
            assert_eq!(
                job.running().is_some(),
                job.class == Class::Running,
                "{}",
                job.id
            );
            assert_eq!(
                job.course().finish > 0,
                job.class.is_finished(),
                "{}",
                job.id
            );
            assert!(job.course().attempt <= job.max_attempts, "{}", job.id);
            let queue = self.queues.name(job.queue);
            if let Some(key) = job.unique_key().filter(|_| !job.class.is_finished()) {
                assert_eq!(self.holder_of_key(queue, Some(key)), Some(handle));
                assert!(keys.insert((queue, key)), "two jobs hold one key");
            }
            if let Some(running) = job.running()
                && let Some(key) = running.key
            {
                keyed += 1;
                let place = (key, running.token.number);
                assert_eq!(self.keyed.get(&place), Some(&handle));
            }
            if job.class == Class::Scheduled {
                scheduled += 1;
                assert_eq!(
                    self.scheduled.get(&(job.run_at, job.sequence)),
                    Some(&handle)
                );
            }
            if job.class.is_finished() {
                let place = finished_place(job.class);
                finished[place] += 1;
                assert_eq!(
                    self.finished[place].get(&job.course().finish),
                    Some(&handle)
                );
            }
        }
        assert_eq!(scheduled, self.scheduled.len());
        assert_eq!(keyed, self.keyed.len());
        assert_eq!(keys.len(), self.unique.len());
        for (count, index) in finished.iter().zip(&self.finished) {
            assert_eq!(*count, index.len());
        }
    }

    fn check_groups(&self) {
        let mut members = 0;
        for (handle, group) in self.groups.iter() {
            let jobs: Vec<_> = self.groups.members(handle).collect();
            members += jobs.len();
            let of = |class| {
                let mut found = jobs
                    .iter()
                    .copied()
                    .filter(|&job| self.jobs[job].class == class);
                let first = found.next();
                assert_eq!(found.next(), None, "two of one group");
                first
            };
            let (open, running) = (of(Class::Ready), of(Class::Running));
            assert_eq!((group.open, group.running), (open, running));
            assert!(open.is_none() || running.is_none());
            let first = jobs[0];
            match self.jobs[first].class {
                Class::Blocked => assert!(running.is_some(), "the first waits for nobody"),
                Class::Ready => assert_eq!(open, Some(first)),
                _ => {}
            }
            assert!(open.is_none_or(|open| open == first));
            for job in jobs {
                assert_eq!(self.jobs[job].group(), Some(handle));
            }
        }
        let grouped = self
            .jobs
            .iter()
            .filter(|(_, job)| job.group().is_some())
            .count();
        assert_eq!(members, grouped);
        for (_, job) in self.jobs.iter() {
            let waits = job.group_key().is_some() && !job.class.is_finished();
            assert_eq!(job.group().is_some(), waits, "{}", job.id);
        }
    }

    fn check_counts(&self) {
        let mut totals = [0; Class::COUNT];
        let mut users = 0;
        for (_, handle, queue) in self.queues.iter() {
            let mut counts = [0; Class::COUNT];
            let mut heads = BTreeSet::new();
            for (shelf, sequence) in self
                .shelves
                .iter()
                .filter(|(shelf, ..)| shelf.queue == handle)
            {
                counts[shelf.class as usize] += 1;
                if shelf.class == Class::Ready && self.shelves.first_of(shelf) == Some(sequence) {
                    heads.insert(((shelf.rank, sequence), shelf.job_type));
                }
            }
            assert_eq!(queue.counts, counts);
            for (total, count) in totals.iter_mut().zip(counts) {
                *total += count;
            }
            let kept: BTreeSet<_> = queue
                .heads
                .iter()
                .map(|(&turn, &name)| (turn, name))
                .collect();
            assert_eq!(kept, heads);
            users += u64::from(self.queues.users(handle)) - u64::from(queue.is_kept());
        }
        assert_eq!(self.totals, totals);
        let listed = self.queues_behind(None, usize::MAX);
        assert_eq!(listed, self.queues().collect::<Vec<_>>());
        let remnants: Vec<_> = self.remnant_names().collect();
        assert_eq!(remnants.len() as u64, self.remnants().ids);
        assert_eq!(users, (self.jobs.len() + remnants.len()) as u64);
        let types = self.jobs.iter().map(|(_, job)| job.job_type);
        let types = types.chain(remnants.iter().map(|&(_, job_type)| job_type));
        let types: BTreeSet<_> = types.collect();
        assert_eq!(types.len(), self.types.len());
    }

    /// Each queue stands on the board as it would if it were put there now.
    fn check_board(&self) {
        let (mut first, mut by_type, mut opening) = (0, 0, 0);
        for (_, handle, queue) in self.queues.iter() {
            let turns: BTreeSet<_> = queue.heads.values().copied().collect();
            assert_eq!(turns, queue.turns.keys().copied().collect());
            for (&job_type, &turn) in &queue.turns {
                assert_eq!(Some(turn), self.shelves.turn(handle, job_type));
            }
            let oldest = queue.heads.keys().map(|&(_, sequence)| sequence).min();
            assert_eq!(queue.oldest(), oldest);
            assert_eq!(queue.standing, self.standing(handle));
            let shown = match queue.standing {
                Standing::Open => queue.heads.keys().next().copied(),
                _ => None,
            };
            assert_eq!(queue.shown, shown);
            match queue.standing {
                Standing::Open => (first, by_type) = (first + 1, by_type + queue.turns.len()),
                Standing::Opens(_) => opening += 1,
                Standing::Shut => {}
            }
        }
        assert_eq!(self.board.lengths(), (first, by_type, opening));
    }
}
