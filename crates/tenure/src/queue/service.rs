//! The queue in one term: what the calls of [`Queue`](super::Queue) are answered with.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use tenure_core::queue::{
    self, Action, ClaimKey, ClaimRequest, Claimed, Command, Ends, Limits, LoggedClaim, Rules,
    Submission,
};
use tenure_core::{Moment, QueueName};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::Error;
use super::broker::{Answer, Broker, Signals};
use super::claims::{Ticket, Waiting, Woken};
use super::time::Time;
use crate::Leadership;
use crate::log::{Answered, Handle, Item, Sender, check_line};

#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) handle: Handle<Broker>,
    pub(crate) leadership: Leadership,
    pub(crate) time: Time,
    /// What the log of this term may have in it.
    pub(crate) rules: Rules,
    pub(crate) limits: Limits,
    pub(crate) waiting_max: usize,
    pub(crate) waiting_bytes_max: usize,
    /// The largest record of the queue's own: far from what one commit takes, so that others go with it.
    pub(crate) record_bytes_max: usize,
    pub(crate) signals: Arc<Signals>,
    /// A change of a part reads the whole first, so such changes take turns.
    pub(crate) changes: tokio::sync::Mutex<()>,
    /// Planning slots holds this until they are committed, and setting the time waits for it: what was
    /// planned by the time before comes before it in the log.
    pub(crate) slots: tokio::sync::RwLock<()>,
    /// Where the nonces of claims come from.
    pub(crate) nonce: AtomicU32,
}

/// The longest that a claim waits.
const WAIT_MAX: Duration = Duration::from_secs(24 * 3600);

/// Most commands of one job fit.
const LINE_BYTES: usize = 256;

type Receiver = oneshot::Receiver<Result<Answered<Answer>, Error>>;

impl Service {
    /// Commits what is asked, and returns what came of it.
    pub(crate) async fn commit(&self, action: Action) -> Result<queue::Answer, Error> {
        self.commit_at(self.time.at(), action).await
    }

    /// The same for a caller that knows the time.
    pub(crate) async fn commit_at(&self, at: u64, action: Action) -> Result<queue::Answer, Error> {
        let (sender, receiver) = oneshot::channel();
        self.post(at, action, sender);
        received(receiver).await
    }

    /// Commits jobs, and behind them, in the same commit, claims that wait for such jobs.
    pub(crate) async fn submit(
        &self,
        at: u64,
        jobs: Vec<Submission>,
    ) -> Result<queue::Answer, Error> {
        let (sender, receiver) = oneshot::channel();
        let riders = self.riders(&jobs, at);
        let submit = Action::Submit(jobs);
        if riders.is_empty() {
            self.post(at, submit, sender);
        } else {
            let riders = riders
                .into_iter()
                .map(|woken| (self.logged(woken.request, woken.key), woken.sender));
            let together = std::iter::once((submit, sender)).chain(riders);
            self.time.in_line(at, |at| self.write_all(at, together));
        }
        received(receiver).await
    }

    /// Claims that wait for such jobs. Nobody waits on a busy broker: then it is not worth the lock.
    fn riders(&self, jobs: &[Submission], at: u64) -> Vec<Woken> {
        if self.signals.waiting.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let riders = self.change(|broker| {
            let riders = broker.waiting.ride(&broker.queue, jobs, at);
            self.count_waiting(&broker.waiting);
            riders
        });
        // A broker that is over answers everybody by itself.
        riders.unwrap_or_default()
    }

    fn count_waiting(&self, waiting: &Waiting) {
        self.signals.waiting.store(waiting.len(), Ordering::Relaxed);
    }

    /// The same without waiting for it.
    fn post(&self, at: u64, action: Action, sender: Sender<Answer>) {
        self.time.in_line(at, |at| self.write(at, action, sender));
    }

    /// Sets the queue's time, and goes back to what it was if that is not committed.
    pub(crate) async fn set_time(&self, to: u64) -> Result<(), Error> {
        let _planned = self.slots.write().await;
        let (sender, receiver) = oneshot::channel();
        let started = self.time.clock().moment();
        let before = self
            .time
            .set(to, || self.write(to, Action::SetTime(to), sender));
        let mut undo = Undo {
            time: Some(&self.time),
            before,
            started,
        };
        receiver
            .await
            .unwrap_or(Err(Error::Unknown { source: None }))?;
        undo.time = None;
        // Waits were counted on the time before.
        self.signals.due.notify_one();
        self.signals.claimable.notify_one();
        Ok(())
    }

    fn write(&self, at: u64, action: Action, sender: Sender<Answer>) {
        if let Some((line, command, sender)) = written(at, action, sender) {
            self.handle.post(Item {
                line: &line,
                command,
                sender,
            });
        }
    }

    /// Puts records in line with nothing between them: in one commit, if they fit.
    fn write_all(&self, at: u64, actions: impl Iterator<Item = (Action, Sender<Answer>)>) {
        let written: Vec<_> = actions
            .filter_map(|(action, sender)| written(at, action, sender))
            .map(|(line, command, sender)| (line, (command, sender)))
            .collect();
        let (lines, others): (Vec<_>, Vec<_>) = written.into_iter().unzip();
        let items = lines.iter().zip(others);
        self.handle
            .post_all(items.map(|(line, (command, sender))| Item {
                line,
                command,
                sender,
            }));
    }

    /// The same, all of them or none.
    fn write_together(&self, at: u64, actions: Vec<(Action, Sender<Answer>)>) {
        let count = actions.len();
        let (lines, others): (Vec<_>, Vec<_>) = actions
            .into_iter()
            .filter_map(|(action, sender)| written(at, action, sender))
            .map(|(line, command, sender)| (line, (command, sender)))
            .unzip();
        // Commands have no line that cannot be written. If one had, the others' callers would be told that nothing is known.
        if lines.len() == count {
            let items = lines.iter().zip(others);
            let items = items.map(|(line, (command, sender))| Item {
                line,
                command,
                sender,
            });
            self.handle.post_together(items.collect());
        }
    }

    /// Reads what is committed. Fails if leadership is over, also if nobody has noticed yet.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Broker) -> T) -> Result<T, Error> {
        self.check()?;
        let answer = self
            .handle
            .read(|broker| (!broker.is_over).then(|| read(broker)))?;
        answer.ok_or(Error::Stopped)
    }

    /// Changes what lives only as long as the broker. A promise that rests on it needs a check of leadership too.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Broker) -> T) -> Result<T, Error> {
        let answer = self
            .handle
            .change(|broker| (!broker.is_over).then(|| change(broker)))?;
        answer.ok_or(Error::Stopped)
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.leadership
            .check()
            .map(drop)
            .map_err(|_| Error::Stopped)
    }

    /// Lets no claim wait any longer.
    pub(crate) fn answer_waiting(&self, error: &Error) {
        let _ = self.handle.change(|broker| broker.answer_waiting(error));
    }

    /// The term is over: every claim that waits is answered, and the state is let go of.
    pub(crate) fn end(&self, error: &Error) {
        let _ = self.handle.change(|broker| broker.end(error));
    }

    /// Claims jobs, and waits for them if there are none.
    pub(crate) async fn claim(
        &self,
        request: ClaimRequest,
        key: Option<ClaimKey>,
        wait: Duration,
        stop: impl Future<Output = ()>,
    ) -> Result<Vec<Claimed>, Error> {
        // Older brokers could not read it.
        let key = key.filter(|_| self.rules >= Rules::THIRD);
        let mut over = pin!(timeout(wait.min(WAIT_MAX), stop));
        let mut place = None;
        let mut may_wait = !wait.is_zero();
        loop {
            let answered = match self.begin_claim(&request, key, &mut place, may_wait)? {
                Begun::Empty => return Ok(Vec::new()),
                Begun::Sent(receiver) => receiver.await,
                Begun::Waits(mut waits) => {
                    let answered = tokio::select! {
                        biased;
                        answered = &mut waits.receiver => answered,
                        _ = &mut over => {
                            may_wait = false;
                            if waits.leave() {
                                // The same claim may have been answered elsewhere meanwhile.
                                if key.is_some() {
                                    continue;
                                }
                                return Ok(Vec::new());
                            }
                            // It is being committed.
                            (&mut waits.receiver).await
                        }
                    };
                    if answered.is_err() && waits.was_replaced() {
                        // It is the other's now, and whatever it gets. Here it has got nothing.
                        return Ok(Vec::new());
                    }
                    answered.inspect(|answered| waits.is_settled = answered.is_ok())
                }
            };
            let answered = answered.unwrap_or(Err(Error::Unknown { source: None }))?;
            let jobs = answered.answer.take().claimed();
            may_wait = may_wait && (&mut over).now_or_never().is_none();
            if !jobs.is_empty() || !may_wait {
                return Ok(jobs);
            }
        }
    }

    /// Ends claims, and claims jobs behind that, in the same commit: also those that the ends have made claimable. Does not
    /// wait for a job. Answers to the ends in their order, by kind, and what was claimed.
    ///
    /// Where those who wait would be passed over for ever, they come first, and the claim is a commit of its own: in a queue
    /// that limits how many run at once, who ends a job would otherwise always be the one who begins the next, and jobs of
    /// types that only others take would never have a turn.
    pub(crate) async fn end_and_claim(
        &self,
        ends: Ends,
        request: ClaimRequest,
        key: Option<ClaimKey>,
    ) -> Result<(Vec<queue::Answer>, Vec<Claimed>), Error> {
        let at = self.time.at();
        if self.gives_way(&ends, at)? {
            let ended = settled(self.post_together(at, of_ends(ends))).await?;
            let ended = ended.into_iter().map(Answer::take).collect();
            let claimed = self.claim(request, key, Duration::ZERO, std::future::pending());
            // Whatever it says of itself, something was done.
            let claimed = claimed.await.map_err(|_| Error::Unknown { source: None })?;
            return Ok((ended, claimed));
        }
        // Older brokers could not read it.
        let key = key.filter(|_| self.rules >= Rules::THIRD);
        let mut actions = of_ends(ends);
        actions.push(self.logged(request, key));
        let mut answers = settled(self.post_together(at, actions)).await?;
        let claimed = answers.pop().expect("the claim is the last of them");
        let ended = answers.into_iter().map(Answer::take).collect();
        Ok((ended, claimed.take().claimed()))
    }

    /// Whether those who wait for a job come before one who ends these claims and claims another. Those who were to be woken
    /// are, in any case.
    fn gives_way(&self, ends: &Ends, at: u64) -> Result<bool, Error> {
        // Nobody waits on a busy broker: then it is not worth the lock.
        if self.signals.waiting.load(Ordering::Relaxed) == 0 {
            return Ok(false);
        }
        let (woken, gives_way) = self.change(|broker| {
            let woken = if broker.waiting.is_credited() {
                broker.waiting.wake(&broker.queue, at)
            } else {
                Vec::new()
            };
            let gives_way =
                !broker.waiting.is_empty() && ends.jobs().any(|job| broker.queue.makes_room(job));
            self.count_waiting(&broker.waiting);
            (woken, gives_way)
        })?;
        self.send(at, woken);
        Ok(gives_way)
    }

    /// Puts records in line, all of them or none, in one commit if they fit.
    fn post_together(&self, at: u64, actions: Vec<Action>) -> Vec<Receiver> {
        let (senders, receivers): (Vec<_>, Vec<_>) =
            actions.iter().map(|_| oneshot::channel()).unzip();
        let actions = actions.into_iter().zip(senders).collect();
        self.time.in_line(at, |at| self.write_together(at, actions));
        receivers
    }

    /// Sends a claim if it would find something, and lets it wait otherwise.
    fn begin_claim(
        &self,
        request: &ClaimRequest,
        key: Option<ClaimKey>,
        place: &mut Option<Ticket>,
        may_wait: bool,
    ) -> Result<Begun<'_>, Error> {
        let at = self.time.at();
        let begun = self.change(|broker| {
            // Claims that wait already come first.
            let woken = if broker.waiting.is_credited() {
                broker.waiting.wake(&broker.queue, at)
            } else {
                Vec::new()
            };
            let (sender, receiver) = oneshot::channel();
            let opens = broker.queue.claimable_at(&request.queues, &request.types);
            let is_held = key.is_some_and(|key| broker.queue.is_held(&request.worker, key));
            if is_held || opens.is_some_and(|opens| opens <= at) {
                return Ok((woken, Some(sender), Begun::Sent(receiver)));
            }
            if !may_wait {
                return Ok((woken, None, Begun::Empty));
            }
            let waiting = &mut broker.waiting;
            let bytes = waiting.bytes_with(request);
            if waiting.len() >= self.waiting_max || bytes > self.waiting_bytes_max {
                return Err(Error::Overloaded {
                    records: waiting.len(),
                    bytes,
                });
            }
            let ticket = *place.get_or_insert_with(|| waiting.ticket());
            waiting.wait(&broker.queue, at, ticket, request.clone(), key, sender);
            self.count_waiting(waiting);
            if waiting.opens_sooner() {
                self.signals.claimable.notify_one();
            }
            let waits = Waits {
                service: self,
                ticket,
                queues: request.queues.clone(),
                receiver,
                is_settled: false,
            };
            Ok((woken, None, Begun::Waits(waits)))
        });
        let (woken, sender, begun) = begun??;
        self.send(at, woken);
        if let Some(sender) = sender {
            self.post(at, self.logged(request.clone(), key), sender);
        }
        Ok(begun)
    }

    /// Wakes claims for which there are jobs. Returns when the next queue opens by itself.
    pub(crate) fn wake_claims(&self) -> Result<Option<u64>, Error> {
        let at = self.time.at();
        let (woken, opens) = self.change(|broker| {
            let woken = broker.waiting.wake(&broker.queue, at);
            if broker.waiting.is_credited() {
                // There is more to look at than in one turn: others first.
                self.signals.claimable.notify_one();
            }
            (woken, broker.waiting.next_opening())
        })?;
        self.send(at, woken);
        Ok(opens)
    }

    fn send(&self, at: u64, woken: Vec<Woken>) {
        for woken in woken {
            let action = self.logged(woken.request, woken.key);
            self.post(at, action, woken.sender);
        }
    }

    fn logged(&self, request: ClaimRequest, key: Option<ClaimKey>) -> Action {
        let nonce = self.nonce.fetch_add(1, Ordering::Relaxed);
        Action::Claim(LoggedClaim {
            request,
            nonce,
            key,
        })
    }
}

/// A record as the log has it, or nothing and word to its caller if the log cannot have it.
fn written(
    at: u64,
    action: Action,
    sender: Sender<Answer>,
) -> Option<(Vec<u8>, Command, Sender<Answer>)> {
    let command = Command { at, action };
    let mut line = Vec::with_capacity(LINE_BYTES);
    serde_json::to_writer(&mut line, &command)
        .expect("commands have no failing serializers, and memory takes them");
    match check_line(&line) {
        Ok(()) => Some((line, command, sender)),
        Err(error) => {
            let _ = sender.send(Err(error));
            None
        }
    }
}

/// What a writer says of a record. One that was dropped, or panicked, while it was under way says nothing.
async fn received(receiver: Receiver) -> Result<queue::Answer, Error> {
    let answered = receiver
        .await
        .unwrap_or(Err(Error::Unknown { source: None }))?;
    Ok(answered.answer.take())
}

/// Ends as the log has them: a record for each kind that there is.
fn of_ends(ends: Ends) -> Vec<Action> {
    let mut actions = Vec::with_capacity(4);
    if !ends.completed.is_empty() {
        actions.push(Action::Complete(ends.completed));
    }
    if !ends.failed.is_empty() {
        actions.push(Action::Fail(ends.failed));
    }
    if !ends.released.is_empty() {
        actions.push(Action::Release(ends.released));
    }
    actions
}

/// The same for several records of one caller. If any of them has failed all have: what was claimed is handed back, since
/// nobody takes the answer, and the caller is told that nothing was done only if none of them may have been.
async fn settled(receivers: Vec<Receiver>) -> Result<Vec<Answer>, Error> {
    let mut answers = Vec::with_capacity(receivers.len());
    let mut failed: Option<Error> = None;
    for receiver in receivers {
        let answered = receiver.await;
        match answered.unwrap_or(Err(Error::Unknown { source: None })) {
            Ok(answered) => answers.push(answered.answer),
            Err(error) => {
                let is_unsure = matches!(error, Error::Unknown { .. } | Error::Fenced);
                if failed.is_none() || is_unsure {
                    failed = Some(error);
                }
            }
        }
    }
    match failed {
        None => Ok(answers),
        Some(error @ (Error::Unknown { .. } | Error::Fenced)) => Err(error),
        Some(error) if answers.is_empty() => Err(error),
        Some(_) => Err(Error::Unknown { source: None }),
    }
}

/// The first outcome of a claim.
enum Begun<'a> {
    Empty,
    Sent(Receiver),
    Waits(Waits<'a>),
}

/// A claim that waits. Dropped, it waits no more.
struct Waits<'a> {
    service: &'a Service,
    ticket: Ticket,
    queues: Vec<QueueName>,
    receiver: Receiver,
    /// It was woken, and what it was woken for was decided; or it has left before.
    is_settled: bool,
}

impl Waits<'_> {
    /// Whether it waited until now; otherwise it is being committed, or has been answered.
    fn leave(&mut self) -> bool {
        let ticket = self.ticket;
        let left = self
            .service
            .handle
            .change(|broker| broker.waiting.leave(ticket));
        let left = left.unwrap_or(false);
        self.is_settled |= left;
        left
    }
}

impl Waits<'_> {
    /// Whether the same claim waits elsewhere instead.
    fn was_replaced(&mut self) -> bool {
        let ticket = self.ticket;
        let replaced = self
            .service
            .handle
            .change(|broker| broker.waiting.was_replaced(ticket));
        let replaced = replaced.unwrap_or(false);
        self.is_settled |= replaced;
        replaced
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        if self.is_settled || self.leave() || self.was_replaced() {
            return;
        }
        // It was woken and its answer is not known here. If it was not committed, somebody else has to be woken
        // for the jobs that it was woken for.
        let _ = self
            .service
            .handle
            .change(|broker| broker.waiting.left_over(&self.queues));
        self.service.signals.claimable.notify_one();
    }
}

/// Goes on with the time before, unless the one that was set is in the log.
struct Undo<'a> {
    time: Option<&'a Time>,
    before: u64,
    started: Moment,
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if let Some(time) = self.time {
            let elapsed = time.clock().moment().since(self.started);
            let elapsed = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
            time.set(self.before.saturating_add(elapsed), || ());
        }
    }
}
