//! The timer of a connection, for hyper: it limits how long a request's head may take.
//!
//! hyper starts a sleep when it waits for a head and drops it when the head has arrived. Registering a timer with the
//! runtime for every request, and removing it again, costs more than reading the head. So a connection has one alarm
//! that stays set: a sleep only notes its deadline, and an alarm that goes off too early is set again. Each
//! connection is woken for nothing at most once per timeout.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};

/// The sleeps of one connection. Only one may wait at a time; a second one would be woken late.
#[derive(Debug, Default, Clone)]
pub(crate) struct Alarm(Arc<Mutex<Option<Pin<Box<tokio::time::Sleep>>>>>);

impl Timer for Alarm {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(AlarmSleep {
            alarm: self.clone(),
            deadline,
        })
    }

    fn now(&self) -> Instant {
        // The runtime's clock, which tests can pause.
        tokio::time::Instant::now().into_std()
    }
}

#[derive(Debug)]
struct AlarmSleep {
    alarm: Alarm,
    deadline: Instant,
}

impl Sleep for AlarmSleep {}

impl Future for AlarmSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let deadline = tokio::time::Instant::from_std(self.deadline);
        let mut alarm = self.alarm.0.lock().unwrap_or_else(PoisonError::into_inner);
        let alarm = alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if alarm.deadline() > deadline {
            alarm.as_mut().reset(deadline);
        }
        loop {
            ready!(alarm.as_mut().poll(context));
            if alarm.deadline() >= deadline {
                return Poll::Ready(());
            }
            alarm.as_mut().reset(deadline);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn every_sleep_takes_its_time_however_the_alarm_was_set_before() {
        let timer = Alarm::default();
        let started = tokio::time::Instant::now();
        for _ in 0..7 {
            // The sleep is dropped early, and the alarm stays set.
            let nap = tokio::time::timeout(Duration::from_secs(3), timer.sleep(TIMEOUT));
            assert!(nap.await.is_err());
        }
        assert_eq!(started.elapsed(), Duration::from_secs(21));
        timer.sleep(TIMEOUT).await;
        assert_eq!(started.elapsed(), Duration::from_secs(31));
        timer.sleep(Duration::from_secs(1)).await;
        assert_eq!(started.elapsed(), Duration::from_secs(32));
        // A deadline that has already passed.
        timer.sleep_until(started.into_std()).await;
        assert_eq!(started.elapsed(), Duration::from_secs(32));
    }
}
