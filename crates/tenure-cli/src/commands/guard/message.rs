//! The messages between `tenure run` and its guard, one line each.

use std::fmt;
use std::time::Duration;

use rustix::process::Signal;
use tenure::core::Moment;

/// From `tenure run` to the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Trust lasts until then. This is the first order: the program is not started before it.
    Until(Until),
    /// Tell the whole process group to stop, with this signal.
    Stop(Signal),
    /// Pass a signal on to the program alone.
    Pass(Signal),
    /// Kill everything now.
    Kill,
}

/// Until when the program may run, on the clock that counts suspend.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Until {
    /// When to tell it to stop.
    pub(crate) tell_at: Moment,
    /// When to kill it.
    pub(crate) kill_at: Moment,
}

/// From the guard to `tenure run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Report {
    /// The program runs; its process id, which is that of its group.
    Started(i32),
    /// An order that extends trust has arrived, so the guard is not stopped. It will kill the program at this moment.
    Heard(Moment),
    /// This process of the program may not be killed. The guard keeps trying.
    Stuck(i32),
    /// The program has ended and nothing of it is left.
    Ended { status: Status, why: Why },
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Exited(i32),
    Killed(i32),
}

/// Why a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// It ended without being told.
    Itself,
    /// `tenure run` told it to.
    Told,
    /// Trust was not extended in time, or there is no `tenure run` any more.
    Late,
    /// It could not be started because processes, files or memory were short, and never ran.
    Short,
    /// Its guard was killed, and the program with it. A guard never reports this itself.
    Unguarded,
}

impl Order {
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let signal = |number: &str| Signal::from_named_raw(number.parse().ok()?);
        Some(match words[..] {
            ["until", tell_at, kill_at] => Order::Until(Until {
                tell_at: moment(tell_at)?,
                kill_at: moment(kill_at)?,
            }),
            ["stop", number] => Order::Stop(signal(number)?),
            ["pass", number] => Order::Pass(signal(number)?),
            ["kill"] => Order::Kill,
            _ => return None,
        })
    }
}

impl Report {
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        Some(match words[..] {
            ["started", pid] => Report::Started(pid.parse().ok()?),
            ["heard", kill_at] => Report::Heard(moment(kill_at)?),
            ["stuck", pid] => Report::Stuck(pid.parse().ok()?),
            ["ended", kind, number, why] => {
                let number = number.parse().ok()?;
                let status = match kind {
                    "exited" => Status::Exited(number),
                    "killed" => Status::Killed(number),
                    _ => return None,
                };
                let why = Why::ALL.into_iter().find(|known| known.word() == why)?;
                Report::Ended { status, why }
            }
            _ => return None,
        })
    }
}

fn moment(nanoseconds: &str) -> Option<Moment> {
    let since = Duration::from_nanos(nanoseconds.parse().ok()?);
    Some(Moment::from_origin(since))
}

impl Why {
    const ALL: [Self; 5] = [
        Why::Itself,
        Why::Told,
        Why::Late,
        Why::Short,
        Why::Unguarded,
    ];

    fn word(self) -> &'static str {
        match self {
            Why::Itself => "itself",
            Why::Told => "told",
            Why::Late => "late",
            Why::Short => "short",
            Why::Unguarded => "unguarded",
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Order::Until(Until { tell_at, kill_at }) => {
                let nanoseconds = |moment: &Moment| moment.since_origin().as_nanos();
                let (tell_at, kill_at) = (nanoseconds(tell_at), nanoseconds(kill_at));
                write!(formatter, "until {tell_at} {kill_at}")
            }
            Order::Stop(signal) => write!(formatter, "stop {}", signal.as_raw()),
            Order::Pass(signal) => write!(formatter, "pass {}", signal.as_raw()),
            Order::Kill => formatter.write_str("kill"),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Report::Started(pid) => write!(formatter, "started {pid}"),
            Report::Heard(kill_at) => {
                write!(formatter, "heard {}", kill_at.since_origin().as_nanos())
            }
            Report::Stuck(pid) => write!(formatter, "stuck {pid}"),
            Report::Ended { status, why } => {
                let (kind, number) = match status {
                    Status::Exited(code) => ("exited", code),
                    Status::Killed(signal) => ("killed", signal),
                };
                write!(formatter, "ended {kind} {number} {}", why.word())
            }
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Status::Exited(code) => write!(formatter, "exited with {code}"),
            Status::Killed(signal) => write!(formatter, "was killed by signal {signal}"),
        }
    }
}

impl Status {
    /// As a shell would report it.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Status::Exited(code) => u8::try_from(code & 0xff).unwrap_or(u8::MAX),
            Status::Killed(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let moment = |nanoseconds| Moment::from_origin(Duration::from_nanos(nanoseconds));
        let until = Until {
            tell_at: moment(1),
            kill_at: moment(u64::MAX),
        };
        for order in [
            Order::Until(until),
            Order::Stop(Signal::TERM),
            Order::Pass(Signal::USR1),
            Order::Kill,
        ] {
            assert_eq!(Order::parse(&order.to_string()), Some(order));
        }
        for status in [Status::Exited(255), Status::Killed(9)] {
            for why in Why::ALL {
                let report = Report::Ended { status, why };
                assert_eq!(Report::parse(&report.to_string()), Some(report));
            }
        }
        for report in [
            Report::Started(7),
            Report::Heard(moment(9)),
            Report::Stuck(8),
        ] {
            assert_eq!(Report::parse(&report.to_string()), Some(report));
        }
    }

    #[test]
    fn anything_else_is_not() {
        for line in [
            "",
            "until 1",
            "until 1 x",
            "stop 0",
            "stop 999",
            "kill 1",
            "Kill",
        ] {
            assert_eq!(Order::parse(line), None, "{line}");
        }
        for line in ["", "started", "ended exited 0", "ended exited 0 whim"] {
            assert_eq!(Report::parse(line), None, "{line}");
        }
    }

    #[test]
    fn a_killed_program_has_the_code_that_a_shell_gives_it() {
        assert_eq!(Status::Exited(3).exit_code(), 3);
        assert_eq!(Status::Killed(15).exit_code(), 143);
    }
}
