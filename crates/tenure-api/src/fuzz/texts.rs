//! Short texts: names, ids and tokens.

use tenure_fuzz::Fuzz;

use crate::{Incarnation, JobId, Key, Namespace, Token};

#[test]
fn a_name_is_what_it_says() {
    let corpus = [
        "default",
        "web-1:8080",
        "a@b.c+d=e_f",
        "schedule:nightly@2026-01-01T00:00:00Z",
    ];
    Fuzz::new("names", corpus).run(|input| {
        let text = String::from_utf8_lossy(input);
        match Namespace::new(&*text) {
            Ok(name) => {
                assert_eq!(name.as_str(), text);
                assert!(text.len() <= 200 && !text.contains(['/', '\0', '\n', '\'', '<', '%']));
                assert!(!text.starts_with('.'));
            }
            Err(error) => {
                let error = error.to_string();
                assert!(
                    error.len() < 1_000 && !error.contains(char::is_control),
                    "{error}"
                );
            }
        }
        if let Ok(key) = Key::new(&*text) {
            assert_eq!(key.as_str(), text);
        }
        let _ = JobId::new(&*text);
    });
}

#[test]
fn an_id_and_a_token_read_back() {
    let corpus = [
        "1f-0a1b2c3d",
        "0-00000000",
        "810e39e31c724eff8bed9136e3ddad43",
    ];
    Fuzz::new("tokens", corpus).run(|input| {
        let text = String::from_utf8_lossy(input);
        if let Ok(token) = text.parse::<Token>() {
            assert_eq!(token.to_string().parse(), Ok(token));
        }
        if let Ok(id) = text.parse::<Incarnation>() {
            assert_eq!(id.to_string().parse(), Ok(id));
        }
    });
}
