//! The trace's words for requests, answers and events.

use tenure_core::election::{Fence, Lease, LeaseState};
use tenure_core::node::{Answer, Event, Input, Request};
use tenure_core::session::{Record, State};
use tenure_core::{Expect, Read, Written};

pub(crate) fn request(request: &Request) -> String {
    match request {
        Request::ReadSession { holder, .. } => format!("-> read session {:?}", holder.incarnation),
        Request::ReadLease { election, .. } => format!("-> read lease {election}"),
        Request::ReadFence { election } => format!("-> read fence {election}"),
        Request::WriteSession { record, expect } => {
            format!("-> write {} over {}", session(record), expected(expect))
        }
        Request::WriteLease {
            election,
            lease: written,
            expect,
        } => {
            format!(
                "-> write {election} {} over {}",
                lease(written),
                expected(expect)
            )
        }
        Request::WriteFence {
            election,
            fence: written,
            expect,
        } => {
            format!(
                "-> write {election} {} over {}",
                fence(written),
                expected(expect)
            )
        }
        of_cluster => format!("-> {of_cluster:?}"),
    }
}

pub(crate) fn outcome(request: &Request, answer: &Answer, answers: bool) -> String {
    let what = match request {
        Request::ReadSession { holder, .. } => format!("read session {:?}", holder.incarnation),
        Request::ReadLease { election, .. } => format!("read lease {election}"),
        Request::ReadFence { election } => format!("read fence {election}"),
        Request::WriteSession { record, .. } => format!("write {}", session(record)),
        Request::WriteLease {
            election,
            lease: written,
            ..
        } => {
            format!("write {election} {}", lease(written))
        }
        Request::WriteFence {
            election,
            fence: written,
            ..
        } => {
            format!("write {election} {}", fence(written))
        }
        of_cluster => format!("{of_cluster:?}"),
    };
    let mute = if answers { "" } else { " (nobody hears it)" };
    format!("   store: {what}: {}{mute}", self::answer(answer))
}

pub(crate) fn input(input: &Input) -> Option<String> {
    Some(match input {
        Input::Wake => return None,
        Input::Answer(_, answer) => format!("<- {}", self::answer(answer)),
        Input::Join {
            election, priority, ..
        } => format!("joins {election}, priority {priority:?}"),
        Input::Resign(election) => format!("is told to resign {election}"),
        Input::ResignTerm(election, term) => format!("is told to resign {election} term {term}"),
        Input::GiveUpTerm(election, term, why) => format!("gives up {election} term {term}: {why}"),
        Input::Transfer(election, to) => {
            format!(
                "is told to transfer {election} to {}/{:?}",
                to.node, to.incarnation
            )
        }
        Input::WorkEnded(election, term) => format!("work of {election} term {term} has ended"),
        Input::Hint(election) => format!("hint: {election}"),
        Input::HintAll => "hint: all".to_owned(),
        Input::About(_) => "says something new of itself".to_owned(),
        Input::Spare(spares) => format!("spares heartbeats: {spares}"),
        Input::TakePart(_) => "takes part in the cluster".to_owned(),
        Input::Cluster(input) => format!("{input:?}"),
        Input::Leave => "is told to leave".to_owned(),
    })
}

pub(crate) fn event(event: &Event) -> Option<String> {
    Some(match event {
        Event::Trusted { .. } => return None,
        Event::Over { reason } => format!("** over: {reason}"),
        Event::Left => "** left".to_owned(),
        Event::SessionEnded { incarnation, end } => {
            format!("** session {incarnation:?} ended: {end:?}")
        }
        Event::Leader { election, leader } => match leader {
            Some(leader) => format!(
                "** {election} is led by {}/{:?} in term {}",
                leader.node, leader.incarnation, leader.term
            ),
            None => format!("** {election} is led by nobody"),
        },
        Event::Elected {
            election,
            term,
            lineage,
        } => {
            format!("** ELECTED {election} term {term} of {lineage:?}")
        }
        Event::Stop { election, term } => format!("** stop {election} term {term}"),
        Event::Ended {
            election,
            term,
            reason,
        } => format!("** ENDED {election} term {term}: {reason}"),
        Event::Anomaly { election, anomaly } => format!("** anomaly in {election}: {anomaly}"),
        Event::Cluster(event) => format!("** {event:?}"),
    })
}

fn answer(answer: &Answer) -> String {
    match answer {
        Answer::Written(Written::Done(version)) => format!("done {}", version.as_str()),
        Answer::Written(written) => format!("{written:?}").to_lowercase(),
        Answer::Session(found) => read(found, session),
        Answer::Lease(found) => read(found, lease),
        Answer::Fence(found) => read(found, fence),
        of_cluster => format!("{of_cluster:?}"),
    }
}

fn read<T>(read: &Read<T>, words: fn(&T) -> String) -> String {
    match read {
        Read::Unchanged { age } => format!("unchanged, age {age:?}"),
        Read::Found {
            record,
            version,
            age,
        } => {
            format!("{} {}, age {age:?}", words(record), version.as_str())
        }
        Read::Unreadable { version } => format!("unreadable {}", version.as_str()),
        Read::Missing => "missing".to_owned(),
        Read::Failed => "failed".to_owned(),
    }
}

fn expected(expect: &Expect) -> &str {
    match expect {
        Expect::Absent => "nothing",
        Expect::Version(version) => version.as_str(),
    }
}

fn session(record: &Record) -> String {
    let state = match &record.state {
        State::Alive => "alive".to_owned(),
        State::Gone => "gone".to_owned(),
        State::Evicted { by } => format!("evicted by {by}"),
    };
    format!(
        "session {:?} #{} {state}",
        record.incarnation, record.counter
    )
}

fn lease(lease: &Lease) -> String {
    let state = match &lease.state {
        LeaseState::Held { holder, .. } => {
            format!("held by {}/{:?}", holder.node, holder.incarnation)
        }
        LeaseState::Vacant => "vacant".to_owned(),
        LeaseState::Reserved { candidate } => {
            format!(
                "reserved for {}/{:?}",
                candidate.node, candidate.incarnation
            )
        }
    };
    let request = if lease.request.is_some() {
        ", request"
    } else {
        ""
    };
    format!("lease term {} {state}{request}", lease.term)
}

fn fence(fence: &Fence) -> String {
    format!(
        "fence term {} by {:?}",
        fence.term, fence.holder.incarnation
    )
}
