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
//!      |                    lost, or cannot install    |                    | trust nearly out
//!      |<----------------------------------------------+                    v
//!      |                                                                 stopping
//!      |<----- ended: work has ended (then the lease is vacated) -----------+
//!      |<----- ended at once: trust ran out, session over, lease taken or deleted, from leading or
//!              stopping. Work that has not ended keeps this process from releasing and from taking.
//! ```
//!
//! **Taking.** A candidate whose session is trusted writes `held` with the next term, expecting the
//! version it read, when the lease is vacant; reserved for it; held by a session that has *ended* (gone,
//! evicted, or missing for a whole ttl); or held by itself from a term that is over. A lease held by a
//! live session is left alone.
//!
//! **Install first.** Having won the lease, a leader raises the fence to its term before it counts as
//! elected and so before its work reads anything. A fence that is already as high means that the lease
//! was restored from an older copy: the winner waits a whole ttl, during which a leader of the newer term
//! must notice, and goes on above the fence. A lease that is missing while the fence exists was deleted:
//! unknown, not vacant, so candidates wait a whole ttl and go on above the fence too. Terms never
//! repeat.
//!
//! **Leading.** Leadership is trusted while the session is, and while the lease was seen to be ours in
//! the last `ttl - margin`, counted from the start of that look. So a leader whose lease was deleted or
//! replaced by hand stops within a ttl, which is why others wait that long.
//!
//! **Ending.** Resigning stops the work, waits for it to end, and only then vacates the lease, expecting
//! its exact version. Work that will not stop is not released; it expires with trust. Only the holder
//! vacates; others write a *request* into the lease. Whoever resigned stands back for a while, so
//! leadership really moves. A transfer leaves the lease *reserved* for one session, for its ttl.
//!
//! # What is guaranteed
//!
//! - Two processes never trust themselves as leaders of one election at one time, under the clock
//!   assumption of [`session`](crate::session).
//! - A term belongs to one incarnation, and terms only grow, also when a lease is deleted or restored.
//! - Every elected is followed by exactly one ended of the same term, before the next elected.
//!
//! # What is not
//!
//! - A leader that is paused after checking its trust can act late: pass the token on, and let the
//!   receiver refuse an older term.
//! - If lease, fence and sessions are all deleted, the election starts over at term 1, at once, with a
//!   new lineage. Tokens carry the lineage so that receivers can tell.

pub mod machine;
pub mod record;

pub use machine::Election;
pub use record::{Fence, Lease, LeaseState, PastTerm, Request, RequestKind, Term, Writer};
