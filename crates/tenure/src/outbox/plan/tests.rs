use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn row(seq: i64, group: Option<&str>, position: i64) -> Row {
    Row {
        seq,
        id: format!("r{seq}"),
        group: group.map(str::to_owned),
        position,
        attempts: 0,
        age: Duration::ZERO,
        bytes: 10,
        job: Err("none".to_owned()),
        completes: None,
    }
}

fn seqs(rows: &[Row]) -> Vec<i64> {
    rows.iter().map(|row| row.seq).collect()
}

/// What it reads next, if it reads.
fn wanted(plan: &mut Plan, now: Duration) -> Option<Wanted> {
    for _ in 0..4 {
        match plan.next(now) {
            Step::Read(wanted) => return Some(wanted),
            Step::Sweep { to, .. } => plan.swept(to, &[], Duration::ZERO, now),
            Step::Wait(_) => return None,
        }
    }
    None
}

fn page(plan: &mut Plan, rows: Vec<Row>) -> Vec<Row> {
    plan.read(&Wanted::After(0, 1000), rows, Duration::ZERO)
}

fn groups(plan: &mut Plan, asked: &[&str], rows: Vec<Row>) -> Vec<Row> {
    let asked = asked.iter().map(ToString::to_string).collect();
    plan.read(&Wanted::Groups(asked, 1000), rows, Duration::ZERO)
}

fn all(rows: &[Row], outcome: &Outcome) -> Vec<Outcome> {
    vec![outcome.clone(); rows.len()]
}

fn failed() -> Outcome {
    Outcome::Failed {
        error: "no".to_owned(),
    }
}

#[test]
fn a_row_that_is_not_the_next_of_its_group_is_not_delivered_before_the_group_was_read() {
    let mut plan = Plan::new(Policy::default());
    // 2 was inserted first and committed last: position 3 stands before position 2.
    let got = page(
        &mut plan,
        vec![row(1, Some("g"), 1), row(2, Some("g"), 3), row(9, None, 0)],
    );
    assert_eq!(seqs(&got), [1, 9]);
    let settled = plan.settle(&got, &all(&got, &Outcome::Delivered), SECOND);
    assert_eq!(settled.delivered, [1, 9]);
    assert_eq!(
        wanted(&mut plan, SECOND),
        Some(Wanted::Groups(vec!["g".to_owned()], 1000))
    );
    let got = groups(
        &mut plan,
        &["g"],
        vec![row(3, Some("g"), 2), row(2, Some("g"), 3)],
    );
    assert_eq!(seqs(&got), [3, 2]);
    let _ = plan.settle(&got, &all(&got, &Outcome::Delivered), SECOND);
    let got = page(&mut plan, vec![row(10, Some("g"), 4)]);
    assert_eq!(seqs(&got), [10], "its turn is known without another look");
}

#[test]
fn a_group_that_is_not_known_is_read_unless_its_counter_begins() {
    let mut plan = Plan::new(Policy::default());
    let got = page(
        &mut plan,
        vec![row(1, Some("new"), 1), row(2, Some("old"), 7)],
    );
    assert_eq!(seqs(&got), [1]);
    assert_eq!(
        wanted(&mut plan, SECOND),
        Some(Wanted::Groups(vec!["old".to_owned()], 1000))
    );
}

#[test]
fn a_failure_holds_its_group_up_and_nobody_else() {
    let mut plan = Plan::new(Policy::default());
    let rows = vec![
        row(1, Some("bad"), 1),
        row(2, Some("bad"), 2),
        row(3, Some("good"), 1),
        row(4, None, 0),
    ];
    let got = page(&mut plan, rows);
    let outcomes = [
        failed(),
        Outcome::Skipped,
        Outcome::Delivered,
        Outcome::Delivered,
    ];
    let settled = plan.settle(&got, &outcomes, Duration::ZERO);
    assert_eq!(settled.delivered, [3, 4]);
    assert_eq!(settled.failed, [(1, "no".to_owned())]);
    let got = page(
        &mut plan,
        vec![row(5, Some("bad"), 3), row(6, Some("good"), 2)],
    );
    assert_eq!(seqs(&got), [6]);
    let _ = plan.settle(&got, &all(&got, &Outcome::Delivered), Duration::ZERO);
    // Half a backoff later nothing is read of it, neither by name nor because a sweep finds it.
    let half = SECOND / 2;
    plan.swept(
        6,
        &[Light {
            seq: 2,
            group: Some("bad".to_owned()),
        }],
        Duration::ZERO,
        half,
    );
    let _ = plan.read(&Wanted::After(6, 1000), vec![], half);
    assert_eq!(wanted(&mut plan, half), None);
    // When it is over the group is read from its first row on.
    let mut read = Vec::new();
    while let Some(wanted) = wanted(&mut plan, SECOND) {
        if let Wanted::After(..) = wanted {
            let _ = plan.read(&wanted, vec![], SECOND);
        }
        read.push(wanted);
    }
    assert!(
        read.contains(&Wanted::Groups(vec!["bad".to_owned()], 1000)),
        "{read:?}"
    );
}

#[test]
fn a_row_dies_after_its_last_attempt_and_its_group_goes_on() {
    let mut plan = Plan::new(Policy::default());
    let mut first = row(1, Some("g"), 1);
    first.attempts = 9;
    let got = page(&mut plan, vec![first, row(2, Some("g"), 2)]);
    let settled = plan.settle(&got, &[failed(), Outcome::Skipped], Duration::ZERO);
    assert_eq!(settled.dead, [(1, "no".to_owned())]);
    assert_eq!(
        wanted(&mut plan, Duration::from_millis(1)),
        Some(Wanted::Groups(vec!["g".to_owned()], 1000))
    );
}

#[test]
fn a_target_that_is_away_costs_no_attempt_and_stops_all_reading() {
    let mut plan = Plan::new(Policy::default());
    let got = page(&mut plan, vec![row(1, Some("g"), 1), row(2, None, 0)]);
    let away = Outcome::Unavailable {
        error: "away".to_owned(),
    };
    let settled = plan.settle(&got, &all(&got, &away), Duration::ZERO);
    assert_eq!(settled, Settlement::default());
    assert_eq!(plan.next(SECOND / 2), Step::Wait(SECOND / 2));
    let mut read = Vec::new();
    while let Some(wanted) = wanted(&mut plan, SECOND) {
        if let Wanted::After(..) = wanted {
            let _ = plan.read(&wanted, vec![], SECOND);
        }
        read.push(wanted);
    }
    assert!(read.contains(&Wanted::These(vec![2])), "{read:?}");
    assert!(
        read.contains(&Wanted::Groups(vec!["g".to_owned()], 1000)),
        "{read:?}"
    );
}

#[test]
fn rows_that_commit_late_are_found_by_a_sweep() {
    let mut plan = Plan::new(Policy::default());
    let got = page(&mut plan, vec![row(10, None, 0)]);
    let _ = plan.settle(&got, &all(&got, &Outcome::Delivered), Duration::ZERO);
    let sweep = (0..4).find_map(|_| match plan.next(SECOND) {
        Step::Sweep { from, to, .. } => Some((from, to)),
        _ => None,
    });
    assert_eq!(sweep, Some((0, 10)));
    let late = [Light {
        seq: 3,
        group: None,
    }];
    plan.swept(10, &late, Duration::ZERO, SECOND);
    let _ = plan.read(&Wanted::After(10, 1000), vec![], SECOND);
    assert_eq!(wanted(&mut plan, SECOND), Some(Wanted::These(vec![3])));
}

#[test]
fn sweeps_take_a_tenth_of_the_time_and_shrink_while_they_are_slow() {
    let mut plan = Plan::new(Policy::default());
    let _ = page(&mut plan, vec![row(10_000_000, None, 0)]);
    let (mut now, mut swept, mut widest) = (Duration::ZERO, Duration::ZERO, 0);
    // Each number takes a microsecond, as if all of them had been deleted and none could be cleaned up.
    while now < Duration::from_secs(60) {
        match plan.next(now) {
            Step::Sweep { from, to, .. } => {
                let took = Duration::from_micros((to - from).unsigned_abs());
                (now, swept) = (now + took, swept + took);
                widest = widest.max(if now > SECOND { to - from } else { 0 });
                plan.swept(to, &[], took, now);
            }
            Step::Read(wanted) => {
                let _ = plan.read(&wanted, vec![row(10_000_001, None, 0)], now);
                now += Duration::from_millis(5);
            }
            Step::Wait(wait) => now += wait,
        }
    }
    assert!(swept < Duration::from_secs(7), "{swept:?} of a minute");
    assert!(
        swept > Duration::from_secs(3),
        "it goes on all the same: {swept:?}"
    );
    assert!(widest < 100_000, "{widest}");
}

#[test]
fn a_deep_group_does_not_keep_others_from_being_read() {
    let mut plan = Plan::new(Policy {
        batch_max: 3,
        ..Policy::default()
    });
    let found: Vec<Light> = ["a", "b"]
        .iter()
        .map(|group| Light {
            seq: 1,
            group: Some((*group).to_owned()),
        })
        .collect();
    plan.swept(0, &found, Duration::ZERO, Duration::ZERO);
    let _ = plan.read(&Wanted::After(0, 3), vec![], Duration::ZERO);
    let both = Wanted::Groups(vec!["a".to_owned(), "b".to_owned()], 3);
    assert_eq!(wanted(&mut plan, Duration::ZERO), Some(both.clone()));
    let rows = (1..=3).map(|at| row(at, Some("a"), at)).collect();
    let got = plan.read(&both, rows, Duration::ZERO);
    assert_eq!(seqs(&got), [1, 2, 3]);
    let _ = plan.settle(&got, &all(&got, &Outcome::Delivered), Duration::ZERO);
    let mut read = Vec::new();
    for _ in 0..2 {
        read.extend(wanted(&mut plan, Duration::ZERO));
    }
    let alone = |group: &str| Wanted::Groups(vec![group.to_owned()], 3);
    assert!(read.contains(&alone("b")), "{read:?}");
}

#[test]
fn an_idle_outbox_is_looked_at_less_and_less_often() {
    let mut plan = Plan::new(Policy::default());
    let (mut now, mut looks) = (Duration::ZERO, 0);
    while now < Duration::from_secs(60) {
        match plan.next(now) {
            Step::Read(wanted) => {
                looks += 1;
                assert!(plan.read(&wanted, vec![], now).is_empty());
            }
            Step::Sweep { to, .. } => plan.swept(to, &[], Duration::ZERO, now),
            Step::Wait(wait) => now += wait,
        }
    }
    assert!((12..20).contains(&looks), "{looks}");
}

#[test]
fn a_target_that_took_some_rows_is_not_left_alone() {
    let mut plan = Plan::new(Policy::default());
    let got = page(&mut plan, vec![row(1, None, 0), row(2, None, 0)]);
    let unavailable = Outcome::Unavailable {
        error: "full".to_owned(),
    };
    let settled = plan.settle(&got, &[Outcome::Delivered, unavailable], SECOND);
    assert_eq!(settled.delivered, [1]);
    assert!(wanted(&mut plan, SECOND).is_some());
}

#[test]
fn pages_are_smaller_while_rows_are_large_and_after_trouble() {
    let limit = |plan: &mut Plan| match wanted(plan, SECOND) {
        Some(Wanted::After(_, limit)) => limit,
        other => panic!("{other:?}"),
    };
    let large = |seq| {
        let mut row = row(seq, None, 0);
        row.bytes = usize::try_from(PAGE_BYTES_MAX).unwrap() / 2;
        row
    };
    let mut plan = Plan::new(Policy::default());
    assert_eq!(limit(&mut plan), 1_000);
    let _ = page(&mut plan, vec![large(1), large(2), large(3)]);
    assert_eq!(limit(&mut plan), 6);
    let mut plan = plan.after_trouble();
    assert_eq!(limit(&mut plan), 3);
    for seq in 4..20 {
        let _ = page(&mut plan, vec![row(seq, None, 0)]);
    }
    assert_eq!(limit(&mut plan), 1_000);
}

#[test]
fn what_was_cut_off_of_rows_that_were_asked_for_is_asked_for_next() {
    let mut plan = Plan::new(Policy::default());
    let mut first = row(1, None, 0);
    first.bytes = usize::try_from(PAGE_BYTES_MAX).unwrap();
    let asked = Wanted::These(vec![1, 2, 3]);
    let got = plan.read(&asked, vec![first], SECOND);
    assert_eq!(seqs(&got), [1]);
    let mut reads = Vec::new();
    while let Some(read) = wanted(&mut plan, SECOND) {
        let at_end = plan.read(&read, Vec::new(), SECOND);
        assert!(at_end.is_empty());
        reads.push(read);
    }
    assert!(reads.contains(&Wanted::These(vec![2, 3])), "{reads:?}");
}

#[test]
fn rows_that_failed_wait_though_there_are_more_than_are_remembered() {
    let mut plan = Plan::new(Policy::default());
    let many = i64::try_from(REMEMBERED_MAX).unwrap();
    let got = page(
        &mut plan,
        (1..=many + 2).map(|seq| row(seq, None, 0)).collect(),
    );
    assert_eq!(got.len(), REMEMBERED_MAX + 2);
    let settled = plan.settle(&got, &all(&got, &failed()), Duration::ZERO);
    assert_eq!(settled.failed.len(), REMEMBERED_MAX + 2);
    // A sweep finds them at once.
    let again = |seq| Row {
        attempts: 1,
        ..row(seq, None, 0)
    };
    let these = Wanted::These(vec![many + 1, many + 2, many + 3]);
    let rows = vec![again(many + 1), again(many + 2), row(many + 3, None, 0)];
    let got = plan.read(&these, rows, Duration::ZERO);
    assert_eq!(seqs(&got), [many + 3], "what is new does not wait");
}

#[test]
fn a_sweep_that_takes_long_looks_at_half_as_many_next() {
    let mut plan = Plan::new(Policy::default());
    let got = page(&mut plan, vec![row(1_000_000, None, 0)]);
    let _ = plan.settle(&got, &all(&got, &Outcome::Delivered), Duration::ZERO);
    // While there is nothing in the way, it looks further and further ahead.
    let mut now = Duration::ZERO;
    for _ in 0..100 {
        now += SECOND;
        plan.swept(1_000_000, &[], Duration::ZERO, now);
    }
    plan.swept(1_000_000, &[], SECOND, now);
    let portion = plan.portion(now + SECOND * 60);
    assert!(
        matches!(portion, Some(Step::Sweep { to: 500_000, .. })),
        "{portion:?}"
    );
}
