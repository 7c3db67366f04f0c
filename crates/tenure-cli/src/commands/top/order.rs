//! Which queues are shown, and in which order.

use std::cmp::Reverse;

use tenure_client::api;

use super::seen::Seen;

/// What the queues are sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum By {
    #[default]
    Name,
    Ready,
    Running,
    Scheduled,
    Dead,
    Oldest,
}

impl By {
    fn next(self) -> Self {
        match self {
            Self::Name => Self::Ready,
            Self::Ready => Self::Running,
            Self::Running => Self::Scheduled,
            Self::Scheduled => Self::Dead,
            Self::Dead => Self::Oldest,
            Self::Oldest => Self::Name,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Ready => "ready",
            Self::Running => "running",
            Self::Scheduled => "scheduled",
            Self::Dead => "dead",
            Self::Oldest => "oldest",
        }
    }
}

/// The user's choice of order and filter.
#[derive(Debug, Default)]
pub(crate) struct Order {
    by: By,
    is_reversed: bool,
    /// Part of a name; case does not matter.
    pub(crate) filter: String,
}

impl Order {
    pub(crate) fn next(&mut self) {
        self.by = self.by.next();
        self.is_reversed = false;
    }

    pub(crate) fn reverse(&mut self) {
        self.is_reversed = !self.is_reversed;
    }

    /// The queues to show. Sorted by a number, the largest come first; by name, in alphabetical order; equal ones by
    /// name.
    pub(crate) fn queues<'a>(&self, seen: &'a Seen) -> Vec<&'a api::Queue> {
        let part = self.filter.to_lowercase();
        let mut queues: Vec<&api::Queue> = seen
            .stats
            .queues
            .iter()
            .filter(|queue| queue.name.as_str().to_lowercase().contains(&part))
            .collect();
        queues.sort_by(|one, other| one.name.cmp(&other.name));
        match self.by {
            By::Name => {}
            By::Ready => queues.sort_by_key(|queue| Reverse(queue.counts.ready)),
            By::Running => queues.sort_by_key(|queue| Reverse(queue.counts.running)),
            By::Scheduled => queues.sort_by_key(|queue| Reverse(queue.counts.scheduled)),
            By::Dead => queues.sort_by_key(|queue| Reverse(queue.counts.dead)),
            By::Oldest => queues.sort_by_key(|queue| queue.oldest_ready_at.unwrap_or(u64::MAX)),
        }
        if self.is_reversed {
            queues.reverse();
        }
        queues
    }

    /// The title above the list.
    pub(crate) fn title(&self, shown: usize, all: usize) -> String {
        let count = if shown == all {
            String::new()
        } else {
            format!(", {shown} of {all}")
        };
        let order = match (self.by, self.is_reversed) {
            (By::Name, false) => String::new(),
            (by, false) => format!(", by {}", by.word()),
            (by, true) => format!(", by {}, reversed", by.word()),
        };
        format!(" queues{count}{order} ")
    }
}

#[cfg(test)]
mod tests {
    use super::super::seen::tests::seen;
    use super::*;

    fn names(order: &Order, seen: &Seen) -> Vec<String> {
        let queues = order.queues(seen).into_iter();
        queues.map(|queue| queue.name.to_string()).collect()
    }

    #[test]
    fn queues_are_sorted_by_what_was_chosen_and_the_other_way_round() {
        let mut seen = seen();
        let mut audit = seen.stats.queues[1].clone();
        audit.name = tenure_client::QueueName::new("audit").unwrap();
        audit.counts.ready = 99;
        seen.stats.queues.push(audit);
        let mut order = Order::default();
        assert_eq!(names(&order, &seen), ["audit", "mail", "reports"]);
        order.next();
        assert_eq!(order.title(3, 3), " queues, by ready ");
        assert_eq!(names(&order, &seen), ["audit", "mail", "reports"]);
        order.reverse();
        assert_eq!(names(&order, &seen), ["reports", "mail", "audit"]);
        for _ in 0..4 {
            order.next();
        }
        assert_eq!(order.by, By::Oldest);
        assert_eq!(names(&order, &seen)[0], "mail", "the only one that waits");
        order.next();
        assert_eq!(order.title(3, 3), " queues ");
    }

    #[test]
    fn a_filter_is_a_part_of_the_name() {
        let seen = seen();
        let order = Order {
            filter: "PORT".to_owned(),
            ..Order::default()
        };
        assert_eq!(names(&order, &seen), ["reports"]);
        assert_eq!(order.title(1, 2), " queues, 1 of 2 ");
    }
}
