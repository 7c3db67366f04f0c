//! Turns: at most [`AT_ONCE`] requests about elections are under way, the others wait here.
//!
//! A process in thousands of elections asks thousands of things at once when it joins, when another leader dies and
//! when it leaves. A store that gets all of that at once answers none of it in time, and the session's heartbeat waits
//! behind it. Heartbeats never wait here.
//!
//! Whatever brings an election that is under way to its end goes first, and new ones are begun last. So elections
//! are done one after the other, and not all of them a little: a lease that was won long ago cannot be trusted without
//! another look.
//!
//! Time that is spent here does not count as the store's: a request has its whole patience once it is sent. What the
//! core trusts counts from when it asked, and so is only shorter. An election has one request at a time, so no more
//! wait than there are elections and sessions that are watched.

use std::collections::VecDeque;

/// How many requests about elections are under way at once.
pub(crate) const AT_ONCE: usize = 32;

/// Which requests go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rank {
    /// Brings something to its end: a fence, a lease that is given back, a session that is watched.
    Ends,
    /// Looks at a lease again.
    Looks,
    /// Takes a lease.
    Takes,
    /// Looks for the first time.
    Begins,
}

/// Those that wait for their turn.
#[derive(Debug)]
pub(crate) struct Turns<T> {
    under_way: usize,
    waiting: [VecDeque<T>; 4],
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self {
            under_way: 0,
            waiting: std::array::from_fn(|_| VecDeque::new()),
        }
    }
}

impl<T> Turns<T> {
    pub(crate) fn wait(&mut self, rank: Rank, request: T) {
        self.waiting[rank as usize].push_back(request);
    }

    /// The next to be sent, if there is room. `late` are further looks, which come after those that wait here.
    pub(crate) fn next(&mut self, late: impl FnOnce() -> Option<T>) -> Option<T> {
        if self.under_way >= AT_ONCE {
            return None;
        }
        let [ends, looks, takes, begins] = &mut self.waiting;
        let next = ends
            .pop_front()
            .or_else(|| looks.pop_front())
            .or_else(late)
            .or_else(|| takes.pop_front())
            .or_else(|| begins.pop_front());
        self.under_way += usize::from(next.is_some());
        next
    }

    /// One that was sent has ended.
    pub(crate) fn ended(&mut self) {
        self.under_way -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_under_way_is_ended_before_anything_is_begun() {
        let mut turns = Turns::default();
        turns.wait(Rank::Begins, 5);
        turns.wait(Rank::Takes, 4);
        turns.wait(Rank::Looks, 2);
        turns.wait(Rank::Ends, 1);
        let mut late = Some(3);
        let order = std::iter::from_fn(|| turns.next(|| late.take()));
        assert_eq!(order.collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn only_so_many_are_under_way() {
        let mut turns = Turns::default();
        (0..100).for_each(|number| turns.wait(Rank::Begins, number));
        let sent = std::iter::from_fn(|| turns.next(|| None)).count();
        assert_eq!(sent, AT_ONCE);
        turns.ended();
        assert_eq!(turns.next(|| None), Some(AT_ONCE));
        assert_eq!(turns.next(|| None), None);
    }
}
