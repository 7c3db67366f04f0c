use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;

fn press(screen: &mut Screen, key: char) -> Wish {
    screen.take(&Event::Key(KeyEvent::from(KeyCode::Char(key))))
}

fn open() -> Screen {
    let mut screen = Screen::default();
    screen.see(answered(super::super::seen::tests::seen()));
    screen
}

fn answered(seen: Seen) -> Option<Answer> {
    Some((Inside::Nothing, Ok(Arc::new(seen))))
}

fn drawn(screen: &mut Screen) -> String {
    drawn_on(screen, 120, 20)
}

fn drawn_on(screen: &mut Screen, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    terminal.backend().to_string()
}

#[test]
fn nothing_is_done_without_a_yes() {
    let mut screen = open();
    assert_eq!(press(&mut screen, 'R'), Wish::Nothing);
    assert!(drawn(&mut screen).contains("ask the leader to resign? y or n"));
    assert_eq!(press(&mut screen, 'n'), Wish::Nothing);
    assert_eq!(press(&mut screen, 'y'), Wish::Nothing);
    press(&mut screen, 'R');
    assert_eq!(press(&mut screen, 'y'), Wish::Do(Action::Resign));
}

#[test]
fn a_key_means_the_chosen_queue() {
    let mut screen = open();
    press(&mut screen, 'p');
    let mail = QueueName::new("mail").unwrap();
    assert_eq!(press(&mut screen, 'y'), Wish::Do(Action::Pause(mail)));
    press(&mut screen, 'j');
    press(&mut screen, 'j');
    press(&mut screen, 'p');
    let reports = QueueName::new("reports").unwrap();
    assert_eq!(press(&mut screen, 'y'), Wish::Do(Action::Resume(reports)));
    assert_eq!(press(&mut screen, 'q'), Wish::Quit);
}

#[test]
fn a_server_that_is_silent_is_said_and_the_last_news_stay() {
    let mut screen = Screen::default();
    assert!(drawn(&mut screen).contains("connecting to the broker"));
    screen.see(Some((Inside::Nothing, Err("no server answers".to_owned()))));
    assert!(drawn(&mut screen).contains("no server answers"));
    let mut screen = open();
    screen.see(Some((Inside::Nothing, Err("no server answers".to_owned()))));
    let drawn = drawn(&mut screen);
    assert!(
        drawn.contains("no server answers") && drawn.contains("web-1 in term 7"),
        "{drawn}"
    );
}

#[test]
fn the_screen_shows_leader_nodes_queues_and_keys() {
    let drawn = drawn(&mut open());
    for expected in [
        "web-1 in term 7",
        "web-2",
        "mail",
        "behind",
        "paused",
        "submitted 2.0/s",
        "p pause or resume",
    ] {
        assert!(drawn.contains(expected), "{expected}\n{drawn}");
    }
}

fn key(screen: &mut Screen, code: KeyCode) -> Wish {
    screen.take(&Event::Key(KeyEvent::from(code)))
}

/// Twelve queues on eight nodes.
fn large() -> Seen {
    let mut seen = super::super::seen::tests::seen();
    let (queue, cluster) = (
        seen.stats.queues[1].clone(),
        Arc::make_mut(&mut seen.cluster),
    );
    seen.stats.queues = (0..12)
        .map(|number| {
            let mut queue = queue.clone();
            queue.name = QueueName::new(format!("queue-{number:02}")).unwrap();
            queue.counts.ready = number;
            queue
        })
        .collect();
    let node = cluster.nodes[1].clone();
    cluster.nodes = vec![node; 8];
    seen
}

#[test]
fn the_height_is_used() {
    let mut screen = Screen::default();
    screen.see(answered(large()));
    let small = drawn_on(&mut screen, 80, 24);
    assert!(small.contains("queue-09"), "{small}");
    assert!(small.contains("nodes of default, 3 of 8"), "{small}");
    let tall = drawn_on(&mut screen, 200, 50);
    assert_eq!(tall.matches("web-2").count(), 8, "{tall}");
    assert!(tall.contains("queue-11"), "{tall}");
    // The remaining rows show the jobs that died last.
    assert!(tall.contains("dead jobs, newest first"), "{tall}");
    assert!(tall.contains("job-4"), "{tall}");
    assert_eq!(heights(10, 4, 20), [4, 6, 0]);
    assert_eq!(heights(20, 4, 5), [4, 5, 11]);
    assert_eq!(heights(3, 9, 9), [3, 0, 0]);
}

#[test]
fn queues_are_sorted_and_filtered_and_the_chosen_one_stays_chosen() {
    let mut screen = Screen::default();
    screen.see(answered(large()));
    press(&mut screen, 'j');
    press(&mut screen, 's');
    assert!(drawn(&mut screen).contains("queues, by ready"));
    press(&mut screen, 'p');
    let second = QueueName::new("queue-01").unwrap();
    assert_eq!(press(&mut screen, 'y'), Wish::Do(Action::Resume(second)));
    press(&mut screen, '/');
    for character in "e-07q".chars() {
        assert_eq!(press(&mut screen, character), Wish::Nothing);
    }
    key(&mut screen, KeyCode::Backspace);
    key(&mut screen, KeyCode::Enter);
    let shown = drawn(&mut screen);
    assert!(
        shown.contains("1 of 12") && !shown.contains("queue-08"),
        "{shown}"
    );
    // Keys do not act on a queue that is not shown.
    press(&mut screen, 'p');
    let found = QueueName::new("queue-07").unwrap();
    assert_eq!(press(&mut screen, 'y'), Wish::Do(Action::Resume(found)));
    key(&mut screen, KeyCode::Esc);
    assert!(drawn(&mut screen).contains("queue-08"));
    assert_eq!(key(&mut screen, KeyCode::Esc), Wish::Quit);
}

#[test]
fn a_queue_and_its_jobs_are_looked_into_and_left_again() {
    let mut screen = open();
    assert_eq!(key(&mut screen, KeyCode::Enter), Wish::Look);
    let mail = Inside::Queue(QueueName::new("mail").unwrap());
    assert_eq!(*screen.inside(), mail);
    assert!(drawn(&mut screen).contains("asking the broker"));
    let mut seen = super::super::seen::tests::seen();
    let mut job = seen.dead[0].clone();
    job.error = Some("Traceback:\n  line 7\nTimeoutError: no answer".into());
    // An answer to a request from before it was opened.
    screen.see(answered(super::super::seen::tests::seen()));
    assert!(drawn(&mut screen).contains("asking the broker"));
    seen.found = Some(Found::Jobs(vec![job.clone()]));
    screen.see(Some((mail.clone(), Ok(Arc::new(seen)))));
    let list = drawn(&mut screen);
    assert!(list.contains("jobs of mail, newest first"), "{list}");
    assert!(list.contains("TimeoutError: no answer"), "{list}");
    assert!(!list.contains("Traceback"), "{list}");

    assert_eq!(key(&mut screen, KeyCode::Enter), Wish::Look);
    let mut seen = super::super::seen::tests::seen();
    seen.found = Some(Found::Job(Box::new(job)));
    screen.see(Some((screen.inside().clone(), Ok(Arc::new(seen)))));
    let whole = drawn(&mut screen);
    assert!(whole.contains("Traceback:"), "{whole}");
    // No key of the first screen does anything here.
    press(&mut screen, 'p');
    assert_eq!(press(&mut screen, 'y'), Wish::Nothing);
    assert_eq!(key(&mut screen, KeyCode::Esc), Wish::Look);
    assert_eq!(*screen.inside(), mail);
    assert_eq!(key(&mut screen, KeyCode::Left), Wish::Look);
    assert_eq!(*screen.inside(), Inside::Nothing);
}
