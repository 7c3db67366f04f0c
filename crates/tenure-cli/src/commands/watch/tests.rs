use super::*;

fn held(node: &str) -> String {
    format!(
        r#"{{"held":{{"holder":{{"node":"{node}","incarnation":"{node}","ttl_ms":1000}},"since":0}}}}"#
    )
}

/// A lease whose history holds these terms of node a.
fn lease(term: u64, state: &str, past: &[u64], request: &str) -> Seen {
    let past: Vec<String> = past
        .iter()
        .map(|term| {
            format!(
                r#"{{"term":{term},"node":"a","incarnation":"a","since":0,"until":0,"reason":"resigned"}}"#
            )
        })
        .collect();
    let text = format!(
        r#"{{"format":1,"lineage":"1","term":{term},"state":{state},"request":{request},"history":[{}],"writer":{{"incarnation":"a","counter":1}}}}"#,
        past.join(",")
    );
    Seen::Lease(Box::new(Lease::decode(text.as_bytes()).unwrap()))
}

fn told(seen: &[Seen]) -> Vec<String> {
    let mut observer = Observer::default();
    let transitions = seen.iter().flat_map(|seen| observer.see(seen));
    transitions.map(|transition| transition.text()).collect()
}

#[test]
fn every_transition_is_told_once() {
    let by = r#"{"kind":"resign","by":"web-9"}"#;
    let reserved = r#"{"reserved":{"candidate":{"node":"b","incarnation":"b","ttl_ms":1000}}}"#;
    let seen = [
        Seen::Missing,
        lease(1, &held("a"), &[], "null"),
        lease(1, &held("a"), &[], by),
        lease(1, r#""vacant""#, &[1], "null"),
        lease(2, &held("a"), &[1], "null"),
        lease(2, reserved, &[1, 2], "null"),
        lease(3, &held("b"), &[1, 2], "null"),
    ];
    assert_eq!(
        told(&seen),
        [
            "no leader was ever elected",
            "elected a term 1",
            "web-9 asked the leader of term 1 to resign",
            "ended a term 1: resigned",
            "vacant since term 1",
            "elected a term 2",
            "ended a term 2: resigned",
            "reserved for b since term 2",
            "elected b term 3",
        ]
    );
}

#[test]
fn what_happened_between_two_looks_is_told_from_the_history() {
    let seen = [
        lease(1, &held("a"), &[], "null"),
        lease(4, &held("b"), &[1, 2, 3], "null"),
    ];
    assert_eq!(
        told(&seen),
        [
            "elected a term 1",
            "ended a term 1: resigned",
            "elected a term 2",
            "ended a term 2: resigned",
            "elected a term 3",
            "ended a term 3: resigned",
            "elected b term 4",
        ]
    );
}

#[test]
fn a_lease_that_was_deleted_or_restored_is_an_anomaly() {
    let seen = [
        lease(5, &held("a"), &[4], "null"),
        Seen::Missing,
        lease(6, &held("b"), &[], "null"),
        lease(5, &held("a"), &[4], "null"),
    ];
    assert_eq!(
        told(&seen),
        [
            "elected a term 5",
            "anomaly: the lease was deleted; candidates wait a full ttl before they continue",
            "elected b term 6",
            "anomaly: the lease went back from term 6 to 5: restored from an older copy",
            "elected a term 5",
        ]
    );
}

#[test]
fn a_line_for_programs_names_the_event() {
    let transition = Transition::Elected {
        node: "a".to_owned(),
        term: 3,
    };
    let mut line: serde_json::Value =
        serde_json::from_str(&transition.json("default").unwrap()).unwrap();
    assert!(line["at"].take().is_string());
    assert_eq!(
        line,
        serde_json::json!({"at": null, "election": "default", "event": "elected", "node": "a", "term": 3})
    );
}

#[test]
fn a_lease_that_was_deleted_and_made_again_between_two_looks_is_an_anomaly() {
    let seen = [
        lease(2, &held("b"), &[1], "null"),
        lease(3, &held("a"), &[], "null"),
    ];
    let made_again = "anomaly: the lease was deleted and made again";
    let expected = ["elected b term 2", made_again, "elected a term 3"];
    assert_eq!(told(&seen), expected);
    // Before the first term's fence was raised.
    let seen = [
        lease(2, &held("b"), &[1], "null"),
        lease(2, &held("a"), &[], "null"),
    ];
    let expected = ["elected b term 2", made_again, "elected a term 2"];
    assert_eq!(told(&seen), expected);
}
