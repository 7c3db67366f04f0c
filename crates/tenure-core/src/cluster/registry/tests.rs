use super::*;
use crate::Wall;

const TTL: Duration = Duration::from_secs(10);

fn at(seconds: u64) -> Moment {
    Moment::from_origin(Duration::from_secs(1000 + seconds))
}

fn node(number: u128) -> NodeId {
    NodeId::new(format!("n{number}")).unwrap()
}

fn record(number: u128, counter: u64, state: State) -> Record {
    Record {
        node: node(number),
        incarnation: Incarnation(number),
        counter,
        nonce: crate::Nonce::default(),
        ttl: TTL,
        state,
        joined_at: Wall(0),
        about: Box::default(),
    }
}

fn evicted(number: u128, counter: u64) -> Record {
    record(number, counter, State::Evicted { by: node(9) })
}

/// A registry, and what came out of it since the last check.
struct Scene {
    registry: Registry,
    said: Vec<String>,
    sessions: BTreeMap<u128, Record>,
    reads: usize,
}

impl Scene {
    fn new() -> Self {
        let config = session::Config::for_ttl(TTL);
        Self {
            registry: Registry::new(&config, at(0), 7),
            said: Vec::new(),
            sessions: BTreeMap::new(),
            reads: 0,
        }
    }

    fn write(&mut self, record: Record) {
        self.sessions.insert(record.incarnation.0, record);
    }

    /// The store answers everything at once.
    fn step(&mut self, now: Moment, input: Input) {
        let mut outputs = self.registry.step(now, input);
        while !outputs.is_empty() {
            for output in std::mem::take(&mut outputs) {
                let answer = match output {
                    Output::List => {
                        let listed = self.sessions.values().map(|record| Listed {
                            node: record.node.clone(),
                            incarnation: record.incarnation,
                            version: Version::new(format!("{}{:?}", record.counter, record.state)),
                        });
                        Input::Listed(Some(listed.collect()))
                    }
                    Output::Read { incarnation, .. } => {
                        self.reads += 1;
                        let read = match self.sessions.get(&incarnation.0) {
                            None => Read::Missing,
                            Some(record) => Read::Found {
                                record: record.clone(),
                                version: Version::new("v"),
                                age: None,
                            },
                        };
                        Input::Read(incarnation, Box::new(read))
                    }
                    Output::Delete { incarnation, .. } => {
                        let deleted = self.sessions.remove(&incarnation.0).unwrap();
                        assert_ne!(deleted.state, State::Alive, "deletes only what is dead");
                        self.said.push(format!("delete {}", deleted.node));
                        continue;
                    }
                    Output::Joined(record) => {
                        self.said.push(format!("{} joined", record.node));
                        continue;
                    }
                    Output::Left(record) => {
                        self.said.push(format!("{} left", record.node));
                        continue;
                    }
                    Output::Evicted(record) => {
                        self.said.push(format!("{} evicted", record.node));
                        continue;
                    }
                    Output::Sessions(records) => {
                        let nodes: Vec<_> = records.iter().map(|it| it.node.as_str()).collect();
                        self.said.push(format!("sessions {}", nodes.join(" ")));
                        continue;
                    }
                };
                outputs.extend(self.registry.step(now, answer));
            }
        }
    }

    /// Every three seconds all live sessions are renewed, and this process looks.
    fn pass(&mut self, from: u64, to: u64) {
        for second in (from..to).step_by(3) {
            for record in self.sessions.values_mut() {
                if record.state == State::Alive && !record.about.labels.contains_key("dead") {
                    record.counter += 1;
                }
            }
            self.step(at(second), Input::Wake);
        }
    }

    fn kill(&mut self, number: u128) {
        let labels = &mut self.sessions.get_mut(&number).unwrap().about.labels;
        labels.insert("dead".to_owned(), String::new());
    }

    fn said(&mut self) -> Vec<String> {
        std::mem::take(&mut self.said)
    }
}

fn three() -> Scene {
    let mut scene = Scene::new();
    for number in 1..=3 {
        scene.write(record(number, 1, State::Alive));
    }
    // Dead before the first look, so not news.
    scene.write(evicted(4, 1));
    scene.step(at(0), Input::Wake);
    assert_eq!(scene.said(), ["n1 joined", "n2 joined", "n3 joined"]);
    scene
}

#[test]
fn nobody_who_lives_is_read_again() {
    let mut scene = three();
    scene.reads = 0;
    scene.pass(3, 300);
    assert_eq!(scene.reads, 0);
    assert_eq!(scene.said(), [""; 0]);
    assert_eq!(scene.registry.members().count(), 3);
}

#[test]
fn ends_are_noticed_without_any_hint() {
    let mut scene = three();
    scene.write(record(1, 50, State::Gone));
    scene.kill(2);
    scene.pass(3, 12);
    assert_eq!(scene.said(), ["n1 left"]);
    scene.write(evicted(2, 1));
    scene.pass(12, 15);
    assert_eq!(scene.said(), ["n2 evicted"]);
    scene.write(record(5, 1, State::Alive));
    scene.pass(15, 300);
    assert_eq!(scene.said(), ["n5 joined"]);
    assert!(scene.reads < 15, "{} reads", scene.reads);
}

#[test]
fn a_session_that_the_assignments_no_longer_name_is_looked_at_at_once() {
    let mut scene = three();
    let named = |numbers: &[u128]| {
        let named = numbers.iter();
        Input::Holders(named.map(|&it| (Incarnation(it), node(it))).collect())
    };
    scene.step(at(1), named(&[1, 2]));
    scene.write(record(2, 9, State::Gone));
    scene.step(at(1), named(&[1]));
    assert_eq!(scene.said(), ["n2 left"]);
    // One that the assignments name before it was listed, and one that a hint names.
    scene.write(record(5, 1, State::Alive));
    scene.step(at(2), named(&[1, 5]));
    assert_eq!(scene.said(), ["n5 joined"]);
    scene.write(record(6, 1, State::Alive));
    scene.step(at(2), Input::Hint(node(6), Incarnation(6)));
    assert_eq!(scene.said(), ["n6 joined"]);
}

#[test]
fn a_deleted_session_is_an_end_and_a_paused_one_is_none() {
    let mut scene = three();
    scene.kill(1);
    scene.sessions.remove(&2);
    scene.pass(3, 9);
    assert_eq!(scene.said(), ["n2 evicted"]);
    // It stood still for a while, and then goes on.
    let labels = &mut scene.sessions.get_mut(&1).unwrap().about.labels;
    labels.clear();
    scene.pass(9, 60);
    assert_eq!(scene.said(), [""; 0]);
}

#[test]
fn a_new_leader_reads_all_before_it_tells_all() {
    let mut scene = three();
    scene.reads = 0;
    scene.step(at(1), Input::Leads(true));
    assert_eq!(scene.reads, 3, "those that may live");
    assert_eq!(scene.said(), ["sessions n1 n2 n3 n4"]);
    // A listing that was started earlier does not count.
    let mut scene = three();
    assert_eq!(scene.registry.step(at(4), Input::Wake), [Output::List]);
    let outputs = scene.registry.step(at(4), Input::Leads(true));
    assert_eq!(outputs, []);
    let outputs = scene.registry.step(at(4), Input::Listed(Some(vec![])));
    let sessions = |output: &Output| matches!(output, Output::Sessions(_));
    assert!(!outputs.iter().any(sessions), "{outputs:?}");
}

#[test]
fn a_listing_counts_if_this_process_leads_from_its_beginning_to_its_end() {
    let listed = |scene: &Scene| {
        let listed = scene.sessions.values().map(|record| Listed {
            node: record.node.clone(),
            incarnation: record.incarnation,
            version: Version::new(format!("{}{:?}", record.counter, record.state)),
        });
        Input::Listed(Some(listed.collect()))
    };
    // It was started before this process led: what changed in between may not be in it.
    let mut scene = three();
    assert_eq!(scene.registry.step(at(4), Input::Wake), [Output::List]);
    assert_eq!(scene.registry.step(at(4), Input::Leads(true)), []);
    let answer = listed(&scene);
    assert_eq!(scene.registry.step(at(4), answer), []);
    // It stops when this process no longer leads: clean-up is the next leader's job.
    let mut scene = three();
    scene.pass(3, 300);
    scene.step(at(300), Input::Holders(BTreeMap::new()));
    assert_eq!(
        scene.registry.step(at(300), Input::Leads(true)),
        [Output::List]
    );
    assert_eq!(scene.registry.step(at(300), Input::Leads(false)), []);
    let answer = listed(&scene);
    let outputs = scene.registry.step(at(300), answer);
    let is_read = |output: &Output| matches!(output, Output::Read { .. });
    assert!(outputs.iter().all(is_read), "{outputs:?}");
}

#[test]
fn one_that_was_only_hinted_at_and_is_not_listed_is_forgotten() {
    let mut scene = three();
    let hinted = Incarnation(6);
    let outputs = scene.registry.step(at(1), Input::Hint(node(6), hinted));
    assert_eq!(outputs.len(), 1, "it is read");
    let version = Version::new("v");
    let read = Input::Read(hinted, Box::new(Read::Unreadable { version }));
    assert_eq!(scene.registry.step(at(1), read), []);
    scene.reads = 0;
    scene.pass(3, 30);
    assert_eq!(scene.reads, 0, "nobody asks for it any more");
}

#[test]
fn a_leader_reads_nobody_again_who_lives() {
    let mut scene = three();
    scene.step(at(1), Input::Leads(true));
    scene.reads = 0;
    scene.pass(3, 60);
    assert_eq!(scene.reads, 0);
}

#[test]
fn only_the_long_dead_are_removed_and_only_by_a_leader() {
    let mut scene = three();
    scene.step(at(1), Input::Holders([(Incarnation(3), node(3))].into()));
    scene.write(record(1, 9, State::Gone));
    scene.write(evicted(3, 9));
    scene.pass(3, 300);
    assert_eq!(scene.said(), ["n1 left", "n3 evicted"]);
    scene.step(at(300), Input::Leads(true));
    let said = scene.said();
    // 3 is dead as well, but somebody may still wait to see that.
    assert_eq!(said[..2], ["delete n1", "delete n4"]);
    scene.step(at(301), Input::Holders(BTreeMap::new()));
    scene.pass(303, 310);
    assert!(scene.said().contains(&"delete n3".to_owned()));
    assert_eq!(scene.sessions.len(), 1);
}

#[test]
fn the_dead_are_kept_for_ten_times_their_ttl() {
    let mut scene = three();
    scene.step(at(1), Input::Leads(true));
    scene.step(at(1), Input::Holders(BTreeMap::new()));
    scene.step(at(2), Input::SessionEnded(Incarnation(1), End::Evicted));
    assert!(scene.said().contains(&"n1 evicted".to_owned()));
    scene.write(evicted(1, 1));
    scene.pass(3, 100);
    assert!(scene.sessions.contains_key(&1));
    scene.pass(100, 110);
    assert!(!scene.sessions.contains_key(&1));
}

#[test]
fn many_are_read_a_few_at_a_time() {
    let mut registry = Scene::new().registry;
    assert_eq!(registry.step(at(0), Input::Wake), [Output::List]);
    let listed = (1..=100).map(|number| Listed {
        node: node(number),
        incarnation: Incarnation(number),
        version: Version::new("1"),
    });
    let outputs = registry.step(at(0), Input::Listed(Some(listed.collect())));
    assert_eq!(outputs.len(), READS_AT_ONCE);
    let outputs = registry.step(at(0), Input::Read(Incarnation(1), Box::new(Read::Failed)));
    assert_eq!(outputs.len(), 1, "the next one, while that one waits");
}
