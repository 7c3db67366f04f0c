//! Elections: who leads, and in which term.
//!
//! # The protocol
//!
//! An election is two objects. The *lease* says which session leads and is written only when leadership
//! changes, never to renew: liveness is the session's business (see [`session`](crate::session)). The
//! *fence* remembers the highest term ever installed.
//!
//! A *term* is one tenure of one leader. Its number only grows and is the fencing token.
//!
//! ```text
//!              may take            lease written            fence raised
//!  following -----------> (write) ---------------> installing ---------> leading
//!      ^                                               |                    | resign, request,
//!      |             lost, given up, cannot install    |                    | trust nearly out
//!      |<----------------------------------------------+                    v
//!      |                                                                 stopping
//!      |<----- ended: work has ended (then the lease is vacated) -----------+
//!      |<----- ended at once: trust ran out, session over, lease taken or deleted, from leading or
//!              stopping. Work that has not ended keeps this process from releasing and from taking.
//! ```
//!
//! **Taking.** A candidate needs a session that is trusted for longer than the grace that its work gets to stop. It
//! writes `held` with the next term, expecting the version it read, when the lease is vacant; reserved for it, or for a
//! session that does not come; missing; held by a session that has *ended* (gone, evicted, or missing for a whole ttl);
//! held by a caller that was asked to go, when the request has stood for the caller's ttl; or held by itself from a
//! term that is over. A lease held by a live session is left alone. Having the lease is not yet leading.
//!
//! **Install first.** Having won the lease, a leader raises the fence to its term before it counts as elected and so
//! before its work reads anything. It raises the fence over the term of another leader only if that one no longer
//! leads. Usually the lease shows that: every holder adds the term before its own to the history, after that leader
//! gave it back or its session ended. If the fence's term is not in the history, someone deleted the lease or restored
//! an older copy, and that leader may not have noticed yet: then the winner waits a whole ttl first, holding the lease,
//! and raises exactly the fence that it saw before. If the fence is as high as the term that was won, the winner first
//! takes the next one above it. So terms never repeat, and safety depends on the fence alone, whatever happened to the
//! lease.
//!
//! **Leading.** Leadership is trusted while the session is, and while the lease was seen to be ours in the last
//! `ttl - margin`, counted from the start of that look. So a leader whose lease was deleted or replaced manually stops
//! within a ttl, which is why the next one waits that long.
//!
//! **Ending.** Resigning stops the work, waits for it to end, and only then vacates the lease, expecting its exact
//! version. Work gets `stop_within` for it, and leadership goes on meanwhile. If work does not stop, the lease is not
//! vacated: the term ends and the lease *lapses* as long afterwards as if the process had died, so that one stuck
//! process does not keep everyone from leading. This process takes the lease again only after its work has ended. Only
//! the holder vacates; others write a *request* into the lease. A leader that resigned waits for a while, so that
//! leadership really moves. A transfer leaves the lease *reserved* for one session. Nobody leads then, so it is safe
//! for others to take it. They do so when that session has ended or its object is missing, or a while after they first
//! saw it, its ttl or [`RESERVED_MAX`]. A candidate that withdraws gives it back, and a request of others moves or ends
//! it.
//!
//! A *caller* is a session without a process: a program that makes a call now and then. It cannot be notified, and one
//! session serves all its elections. So none of its calls extends a term that it is asked to give up: each looks at the
//! lease after it has renewed the session, and trust counts from before that look, for no longer than the ttl in the
//! lease. A candidate that has seen the request unchanged for that ttl knows that the caller no longer trusts itself,
//! and takes the lease although the session lives. The session that it was to be handed to goes first.
//!
//! A session that is over because it expired, or because someone else wrote it, vacates nothing: a copy of this process
//! may go on with it, and lead. It says that it is gone, if it can, and others take the lease. A lease belongs to the
//! incarnation; the session decides which of several copies that is.
//!
//! # What is guaranteed
//!
//! - Two processes never trust themselves as leaders of one election at one time, under the clock
//!   assumption of [`session`](crate::session).
//! - A term belongs to one incarnation, and terms only grow, also when a lease is deleted or restored.
//! - Every `Elected` is followed by exactly one `Ended` of the same term, before the next `Elected`.
//!
//! # What is not
//!
//! - Copies of one process both trust themselves for less than a ttl, see [`session`](crate::session), and a lease that
//!   one of them gives up in that time is free.
//! - A leader that is paused after checking its trust can act late: pass the token on, and let the
//!   receiver refuse an older term.
//! - If lease and fence are both deleted, nothing shows which terms were led. The election starts over with a new
//!   lineage. If the new leader never saw the old lease, it does so at once, beside an old leader that notices at its
//!   next look. Tokens carry the lineage so that receivers can tell.
//! - While the fence is missing, the lease alone tells who led: restoring an older copy of it then, before
//!   the next leader has made the fence again, can lead a term twice. So can, where both are missing, a write
//!   of the lease that was sent before they were deleted and arrives only now.

mod machine;
mod messages;
mod record;

pub use machine::{Election, PRIORITY_DEFAULT};
pub use messages::{Anomaly, EndReason, Input, Leader, Output};
pub use record::{
    Fence, HISTORY_MAX, Lease, LeaseState, PastTerm, RESERVED_MAX, Request, RequestKind, Term,
    Writer,
};
