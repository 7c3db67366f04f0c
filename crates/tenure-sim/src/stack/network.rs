//! Calls from clients to brokers, over a network that delays, loses and doubles them.

use std::sync::Arc;
use std::time::Duration;

use tenure::queue::{Error, Queue};
use tokio::sync::oneshot;

use super::faults::Fault;
use super::world::World;

/// How a call without an answer ended.
#[derive(Debug)]
pub(crate) enum Failed {
    /// Nobody listened: nothing was done.
    NotSent,
    /// It was sent, and nobody knows what became of it.
    Unknown,
    /// The broker answered with an error.
    Told(Error),
}

impl Failed {
    /// Whether nothing was done, for certain.
    pub(crate) fn is_not_applied(&self) -> bool {
        match self {
            Failed::NotSent => true,
            Failed::Unknown => false,
            Failed::Told(error) => error.is_not_applied(),
        }
    }
}

/// The host that a client asks. It goes where it is sent, and somewhere else if that does not help.
#[derive(Debug, Default)]
pub(crate) struct Route {
    to: usize,
    /// Whether the last answer came from a host whose clock stood still shortly before: it may be of the past.
    pub(crate) is_doubted: bool,
    /// Whether the last call came twice, and the other may still happen.
    pub(crate) is_doubled: bool,
}

impl Route {
    /// Asks a broker once.
    pub(crate) async fn call<T, W>(
        &mut self,
        world: &Arc<World>,
        patience: Duration,
        ask: impl Fn(Queue) -> W + Send + Sync + 'static,
    ) -> Result<T, Failed>
    where
        W: Future<Output = Result<T, Error>> + Send + 'static,
        T: Send + 'static,
    {
        let mut told = Told::default();
        let answer = call(world, self.to, patience, Arc::new(ask), &mut told).await;
        (self.is_doubted, self.is_doubled) = (told.is_doubted, told.is_doubled);
        match answer {
            Ok(answer) => Ok(answer),
            Err(failed) => {
                self.turn(world, &failed);
                world.pause_about(Duration::from_millis(300)).await;
                Err(failed)
            }
        }
    }

    fn turn(&mut self, world: &World, failed: &Failed) {
        let leader = match failed {
            Failed::Told(Error::NotServing { leader }) => leader.as_ref(),
            _ => None,
        };
        let named = leader.and_then(|leader| {
            let named = |host: &super::host::Host| host.name == leader.node.as_str();
            world.hosts.iter().position(named)
        });
        self.to = match named {
            Some(number) if number != self.to => number,
            _ => (self.to + 1) % world.hosts.len(),
        };
    }
}

/// What there is to know of a call beside its answer.
#[derive(Debug, Default)]
struct Told {
    is_doubted: bool,
    is_doubled: bool,
}

async fn call<T, W, A>(
    world: &Arc<World>,
    to: usize,
    patience: Duration,
    ask: Arc<A>,
    told: &mut Told,
) -> Result<T, Failed>
where
    A: Fn(Queue) -> W + Send + Sync + 'static,
    W: Future<Output = Result<T, Error>> + Send + 'static,
    T: Send + 'static,
{
    let bad = world.plan.calls_bad;
    travel(world).await;
    if world.strikes(Fault::CallSlow, bad) {
        world.pause_about(patience / 2).await;
    }
    let Some(running) = world.hosts[to].running() else {
        return Err(Failed::NotSent);
    };
    if world.strikes(Fault::CallLost, bad) {
        tokio::time::sleep(patience).await;
        return Err(Failed::Unknown);
    }
    let (sender, receiver) = oneshot::channel();
    let asked = ask(running.queue.clone());
    let handler = running.process.spawn({
        let world = world.clone();
        async move {
            let answer = asked.await;
            // A client that is gone hears nothing.
            let _ = sender.send((answer, world.hosts[to].is_doubted()));
        }
    });
    let doubled = world.strikes(Fault::CallDoubled, bad);
    told.is_doubled = doubled;
    if doubled {
        let (world, again) = (world.clone(), ask(running.queue.clone()));
        running.process.spawn(async move {
            world.pause_about(Duration::from_millis(500)).await;
            drop(again.await);
        });
    }
    let patience = if world.strikes(Fault::ClientGone, bad) {
        world.random().up_to(Duration::from_millis(500))
    } else {
        patience
    };
    let answer = match tokio::time::timeout(patience, receiver).await {
        Ok(Ok((answer, doubted))) => {
            told.is_doubted = doubted;
            answer.map_err(Failed::Told)
        }
        Ok(Err(_)) => Err(Failed::Unknown),
        Err(_) => {
            // The server drops what nobody waits for.
            handler.abort();
            Err(Failed::Unknown)
        }
    };
    travel(world).await;
    if world.strikes(Fault::CallAnswerLost, bad) {
        return Err(Failed::Unknown);
    }
    match answer {
        // The second of the two may yet be taken.
        Err(failed) if doubled && failed.is_not_applied() => Err(Failed::Unknown),
        answer => answer,
    }
}

async fn travel(world: &World) {
    let time = world
        .random()
        .between(Duration::from_millis(1), Duration::from_millis(10));
    tokio::time::sleep(time).await;
}
