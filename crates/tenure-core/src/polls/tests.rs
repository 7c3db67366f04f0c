use super::*;

const PAUSE: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(2);

fn at(milliseconds: u64) -> Moment {
    Moment::default() + Duration::from_millis(milliseconds)
}

fn key(number: usize) -> ElectionName {
    ElectionName::new(format!("{number:06}")).unwrap()
}

fn poll(number: usize, asked: Moment) -> Poll {
    Poll {
        ticket: Ticket::default(),
        election: key(number),
        known: Version::new("1"),
        within: PATIENCE,
        asked,
    }
}

fn polls(numbers: impl IntoIterator<Item = usize>) -> Polls<ElectionName> {
    let mut polls = Polls::with(PAUSE, PATIENCE);
    for number in numbers {
        polls.join(key(number), poll(number, at(0)), false);
    }
    polls
}

fn page(numbers: std::ops::Range<usize>, version: &str, more: bool) -> Page<ElectionName> {
    let leases = numbers.map(|number| (key(number), Version::new(version)));
    Page {
        leases: leases.collect(),
        more,
    }
}

fn names(polls: &[Poll]) -> Vec<&str> {
    polls.iter().map(|poll| poll.election.as_str()).collect()
}

#[test]
fn a_listing_serves_all_who_asked_before_it_and_nobody_later() {
    let mut polls = polls([1, 2]);
    assert!(!polls.start(at(400)), "it waits for company");
    assert_eq!(polls.wake_at(at(400)), at(500));
    assert!(polls.start(at(500)));
    polls.join(key(3), poll(3, at(501)), true);
    assert!(!polls.start(at(600)), "one at a time");
    let mut first = page(0..2, "1", false);
    first.leases.extend(page(2..4, "2", false).leases);
    let shown = polls.on_page(at(600), Some(first));
    assert_eq!(names(&shown.unchanged), ["000001"]);
    assert_eq!(names(&shown.changed), ["000002"]);
    assert!(polls.start(at(600)), "whoever came later gets another one");
    let shown = polls.on_page(at(600), Some(page(0..3, "1", false)));
    assert_eq!(names(&shown.changed), ["000003"], "it is not there");
}

#[test]
fn a_page_serves_whom_it_has_come_past_and_the_rest_is_read_if_the_next_one_fails() {
    let mut polls = polls((0..100).map(|number| number * 20));
    assert!(polls.start(at(500)));
    let shown = polls.on_page(at(600), Some(page(0..1000, "1", true)));
    assert_eq!(shown.unchanged.len(), 50);
    assert_eq!(shown.next, Some(key(999)));
    assert!(polls.take_late(at(600)).is_none(), "the others wait on");
    polls.on_page(at(600), None);
    let left = std::iter::from_fn(|| polls.take_late(at(600)));
    assert_eq!(left.count(), 50);
}

#[test]
fn late_polls_are_read_from_the_end_while_the_listing_goes_on() {
    let mut polls = polls(0..2000);
    assert!(polls.start(at(500)));
    assert_eq!(polls.wake_at(at(600)), at(2000));
    let first = polls.on_page(at(1900), Some(page(0..1, "1", true)));
    assert_eq!(first.unchanged.len(), 1);
    assert_eq!(
        polls.take_late(at(2000)).unwrap().election.as_str(),
        "001999"
    );
    assert_eq!(
        polls.take_late(at(2000)).unwrap().election.as_str(),
        "001998"
    );
    assert_eq!(polls.wake_at(at(2000)), Moment::NEVER, "no busy loop");
    let more = std::iter::from_fn(|| polls.take_late(at(2000))).count();
    assert_eq!(more, 98, "the listing serves the others");
    assert_eq!(polls.wake_at(at(2000)), at(2400), "unless it stalls");
    let shown = polls.on_page(at(2300), Some(page(1..1000, "1", true)));
    assert_eq!(shown.unchanged.len(), 999);
    let more = std::iter::from_fn(|| polls.take_late(at(2800))).count();
    assert_eq!(more, 900, "it stalls");
    let shown = polls.on_page(at(2900), Some(page(1000..2000, "1", false)));
    assert_eq!(shown.unchanged.len(), 0);
    assert!(polls.take_late(at(9000)).is_none());
}

#[test]
fn a_few_elections_of_a_large_namespace_are_not_listed_again() {
    let mut polls = polls((0..11).map(|number| number * 1800));
    assert!(polls.is_worth(11) && polls.start(at(500)));
    let shown = polls.on_page(at(600), Some(page(0..1000, "1", true)));
    assert_eq!((shown.unchanged.len(), shown.next), (1, None));
    let left = std::iter::from_fn(|| polls.take_late(at(600)));
    assert_eq!(left.count(), 10, "nineteen pages for ten leases");
    assert!(!polls.is_worth(11) && polls.is_worth(21));
}

#[test]
fn hints_for_everything_are_heeded_one_at_a_time_and_none_is_lost() {
    let mut polls = polls([]);
    polls.hint();
    assert!(polls.take_hint(at(0)), "the first one at once");
    polls.join(key(1), poll(1, at(0)), true);
    assert!(polls.start(at(0)));
    polls.hint();
    assert!(!polls.take_hint(at(600)), "a listing is under way");
    assert_eq!(polls.wake_at(at(600)), at(2000), "it is late then");
    polls.on_page(at(600), Some(page(0..2, "1", false)));
    assert!(!polls.take_hint(at(600)), "there was one just now");
    polls.hint();
    assert_eq!(polls.wake_at(at(601)), at(1500));
    assert!(polls.take_hint(at(1500)));
    assert!(!polls.take_hint(at(9000)), "two became one");
}
