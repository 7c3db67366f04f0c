//! Where the relay's rows go: to the brokers of this run, over the network that everyone has.

use std::sync::Arc;
use std::time::Duration;

use tenure::outbox::{
    Deliver, Each, End, Failure, Handler, Outcome, Rejected, Row, Submit, ToQueue, Token,
};
use tenure_core::JobId;
use tenure_core::queue::{Completion, Ended, Submission, SubmitStatus, Submitted};

use super::super::invariants::outbox_is_relayed as invariant;
use super::super::network::{Failed, Route};
use super::super::submitter::{acknowledge, note};
use super::super::world::World;
use tenure_linear::job as seen;

const PATIENCE: Duration = Duration::from_secs(5);

/// How many brokers a call asks before it is given up.
const TRIES_MAX: usize = 3;

/// Hands rows over in batches, or one by one.
pub(super) struct Carrier {
    batches: ToQueue<Line>,
    rows: Each<Line>,
    one_by_one: bool,
    world: Arc<World>,
}

impl Carrier {
    pub(super) fn new(world: &Arc<World>, one_by_one: bool) -> Self {
        let line = Line(world.clone());
        Self {
            batches: ToQueue::new(line.clone()),
            rows: Each::new(line),
            one_by_one,
            world: world.clone(),
        }
    }
}

impl Deliver for Carrier {
    fn concurrency(&self) -> usize {
        if self.one_by_one {
            self.rows.concurrency()
        } else {
            self.batches.concurrency()
        }
    }

    async fn deliver(&self, rows: &[Row], token: Token) -> Vec<Outcome> {
        self.begin(rows, token);
        let outcomes = if self.one_by_one {
            self.rows.deliver(rows, token).await
        } else {
            self.batches.deliver(rows, token).await
        };
        self.finish(rows, token, &outcomes);
        outcomes
    }

    async fn complete(&self, rows: &[Row], token: Token) -> Vec<Outcome> {
        self.begin(rows, token);
        let outcomes = self.batches.complete(rows, token).await;
        self.finish(rows, token, &outcomes);
        outcomes
    }
}

impl Carrier {
    fn begin(&self, rows: &[Row], token: Token) {
        for row in rows {
            let is_delivered = self.world.outbox.has_delivered(token.takeover, row.seq);
            self.world
                .judge(invariant::delivering(token.takeover, &row.id, is_delivered));
        }
    }

    fn finish(&self, rows: &[Row], token: Token, outcomes: &[Outcome]) {
        for (row, outcome) in rows.iter().zip(outcomes) {
            if *outcome == Outcome::Delivered {
                self.world.outbox.note_delivered(token.takeover, row.seq);
            }
        }
    }
}

/// A client of the queue.
#[derive(Clone)]
struct Line(Arc<World>);

impl Submit for Line {
    async fn submit(&self, jobs: Vec<Submission>) -> Result<Vec<Submitted>, Rejected> {
        let Self(world) = self;
        let ids: Vec<JobId> = jobs.iter().filter_map(|job| job.id.clone()).collect();
        let refuses = world.random().chance(100);
        if refuses && !world.is_calm() {
            let error = "not now".to_owned();
            return Err(Rejected::ForNow { error });
        }
        ids.iter().for_each(|id| world.history().sending(id));
        let mut route = Route::default();
        let mut error = String::new();
        for _ in 0..TRIES_MAX {
            let sent = jobs.clone();
            let begun = world.calls().begin();
            // The relay's process may die while it waits: the call may then be carried out, and nobody hears of it.
            for id in &ids {
                let call = seen::Call::Submit(None);
                world.calls().lost(id, begun, call);
            }
            let answer = route.call(world, PATIENCE, move |queue| {
                let sent = sent.clone();
                async move { queue.submit(sent).await }
            });
            let answer = answer.await;
            note(world, &ids, begun, answer.as_ref(), route.is_doubled);
            match answer {
                Ok(answers) => {
                    world.say("relay", &format!("submitted {ids:?}: {answers:?}"));
                    world.judge(acknowledge(world, &ids, &answers));
                    return Ok(answers);
                }
                Err(failed) => {
                    if !failed.is_not_applied() {
                        ids.iter().for_each(|id| world.history().lost(id));
                    }
                    if !matches!(failed, Failed::NotSent) {
                        world.say("relay", &format!("submitting {ids:?} failed: {failed:?}"));
                    }
                    error = format!("{failed:?}");
                }
            }
        }
        Err(Rejected::Unavailable { error })
    }

    async fn complete(&self, claims: Vec<Completion>) -> Result<Vec<End>, Rejected> {
        let Self(world) = self;
        let mut route = Route::default();
        let mut error = String::new();
        for _ in 0..TRIES_MAX {
            let sent = claims.clone();
            let begun = world.calls().begin();
            // The relay's process may die while it waits, or the call come twice: it may be carried out, and nobody hears of it.
            for claim in &claims {
                world.calls().lost(&claim.id, begun, seen_end(claim, None));
            }
            let answer = route.call(world, PATIENCE, move |queue| {
                let sent = sent.clone();
                async move { queue.complete(sent).await }
            });
            match answer.await {
                Ok(answers) => {
                    for (claim, answer) in claims.iter().zip(&answers) {
                        let held = Some(answer.outcome.is_ok());
                        world.calls().ended(&claim.id, begun, seen_end(claim, held));
                    }
                    world.say("relay", &format!("completed {answers:?}"));
                    return Ok(answers.iter().map(end).collect());
                }
                Err(failed) => error = format!("{failed:?}"),
            }
        }
        Err(Rejected::Unavailable { error })
    }
}

fn seen_end(claim: &Completion, held: Option<bool>) -> seen::Call {
    seen::Call::End {
        token: claim.token.to_string(),
        end: seen::End::Complete,
        held,
    }
}

fn end(ended: &Ended<()>) -> End {
    match ended.outcome {
        Ok(()) => End::Completed,
        Err(lost) => End::Lost {
            reason: format!("{lost:?}"),
        },
    }
}

impl Handler for Line {
    async fn handle(&self, row: &Row, _token: Token) -> Result<(), Failure> {
        let job = row.job.clone().map_err(Failure::permanent)?;
        match self.submit(vec![job]).await {
            Ok(answers) => match answers.first().map(|answer| answer.status) {
                Some(SubmitStatus::Created | SubmitStatus::Duplicate) => Ok(()),
                status => Err(format!("{status:?}").into()),
            },
            Err(rejected) => Err(format!("{rejected:?}").into()),
        }
    }
}
