use super::*;

/// The message of a target that fails sooner or later.
fn failure(input: &str, target: impl FnMut(&[u8])) -> String {
    let fuzz = Fuzz::new("planted", [input]);
    let run = || {
        let _ = fuzz.run_from(1, Duration::MAX, target);
    };
    quietly(run).expect_err("it runs until it fails")
}

#[test]
fn a_panic_is_found_and_its_input_made_small() {
    let said = failure(r#"{"number":7}"#, |input| {
        let text = String::from_utf8_lossy(input);
        assert!(!text.contains("4294967296"), "too large");
    });
    assert!(said.contains("smaller: 4294967296\n"), "{said}");
    assert!(said.contains("too large"), "{said}");
}

#[test]
fn a_panic_that_somebody_catches_is_found() {
    let said = failure("a", |_| {
        let _ = panic::catch_unwind(|| panic!("of a task"));
    });
    assert!(said.contains("a task panicked at"), "{said}");
}

#[test]
fn memory_that_the_input_does_not_pay_for_is_found() {
    let said = failure(r#"{"length":7}"#, |input| {
        let text = String::from_utf8_lossy(input);
        let digits: String = text.chars().filter(char::is_ascii_digit).collect();
        let length = digits.parse().unwrap_or(0).min(1 << 24);
        drop(Vec::<u8>::with_capacity(length));
    });
    assert!(said.contains("are allowed"), "{said}");
}

#[test]
fn a_seed_gives_the_same_inputs() {
    let fuzz = Fuzz::new("same", ["a,b", "[1,2,{\"c\":\"d\"}]\nline\n"]);
    for seed in 0..1_000 {
        assert_eq!(fuzz.input(seed), fuzz.input(seed));
    }
    let different: std::collections::HashSet<_> = (0..1_000).map(|seed| fuzz.input(seed)).collect();
    assert!(different.len() > 700, "{}", different.len());
}

#[test]
fn repaired_inputs_are_damaged_before() {
    let fuzz = Fuzz::new("sealed", ["body"]).repaired_by(|input| input.push(b'#'));
    let sealed = (0..100)
        .filter(|&seed| fuzz.input(seed).ends_with(b"#"))
        .count();
    assert!((20..80).contains(&sealed), "{sealed}");
}
