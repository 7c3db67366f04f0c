//! Keys, store URLs and stamps, fed arbitrary input: see `tenure_fuzz`.

use tenure_fuzz::Fuzz;

use crate::{Key, Prefix};

#[test]
fn a_key_is_safe_as_a_path() {
    let corpus = [
        "default/elections/default",
        "default/nodes/web-1:8080/810e39e31c724eff8bed9136e3ddad43",
        "a/queue/log/00000000000000000001",
        "prod/../secret",
    ];
    Fuzz::new("keys", corpus).run(|input| {
        let text = String::from_utf8_lossy(input);
        match Key::new(&*text) {
            Ok(key) => {
                assert_eq!(key.as_str(), text);
                for segment in key.segments() {
                    assert!(!segment.is_empty() && !segment.starts_with('.'));
                    assert!(segment.len() <= 200 && !segment.contains(['\\', '\0', '\'', '%']));
                }
            }
            Err(error) => {
                let error = error.to_string();
                assert!(
                    error.len() < 1_000 && !error.contains(char::is_control),
                    "{error}"
                );
            }
        }
        let _ = Prefix::new(&*text);
    });
}

#[cfg(any(feature = "object", feature = "postgres", feature = "mysql"))]
#[test]
fn a_store_url_is_read_or_refused_without_its_password() {
    let corpus = [
        "s3://my.bucket/a/b/?endpoint=http://127.0.0.1:80&region=eu&if_match=unquoted",
        "gs://bucket/prefix",
        "az://container/prefix?endpoint=http://127.0.0.1:10000/account",
        "postgres://user:hunter2@host:5432/database?sslmode=require&hints=off",
        "postgres://%2Fvar%2Frun:5432/database",
        "mysql://user:hunter2@host:3306/database?ssl-mode=disabled",
        "mariadb://user:hunter2@[::1]/database",
    ];
    // Reading certificates and the environment needs memory.
    let fuzz = Fuzz::new("store URLs", corpus).within(16 << 20, 64);
    fuzz.run(|input| {
        let text = String::from_utf8_lossy(input);
        let Ok(url) = url::Url::parse(&text) else {
            return;
        };
        let errors = [
            #[cfg(feature = "object")]
            crate::engine::object::parse_url(&url).err(),
            #[cfg(feature = "postgres")]
            crate::engine::postgres::parse(&url).err(),
            #[cfg(feature = "mysql")]
            crate::engine::mysql::parse(&url).err(),
        ];
        // A password that also occurs elsewhere in the URL may show up in a message, so it does not
        // count.
        let is_secret =
            |password: &&str| password.len() > 6 && text.matches(*password).count() == 1;
        let password = url.password().filter(is_secret);
        for error in errors.into_iter().flatten() {
            let error = error.to_string();
            let tells = password.is_some_and(|password| error.contains(password));
            assert!(!tells, "{error}");
        }
    });
}

#[cfg(any(feature = "file", feature = "object"))]
#[test]
fn one_stamp_comes_off_and_nothing_else() {
    use crate::stamp::Stamp;
    let (stamp, _) = Stamp::at_end_of(&[&b"\n"[..], &[b' '; 64]].concat()).unwrap();
    let (long, _) = Stamp::at_end_of(&[&b"\n"[..], &[b' '; 320]].concat()).unwrap();
    let corpus = [
        [&b"{}"[..], &stamp.to_bytes()].concat(),
        [&b"{}"[..], &stamp.to_bytes(), &stamp.to_bytes()].concat(),
        [&b"{}"[..], &long.to_bytes()].concat(),
    ];
    Fuzz::new("stamps", corpus).run(|input| {
        let (value, stamp) = Stamp::split(bytes::Bytes::copy_from_slice(input));
        let stamp = stamp.map_or_else(Vec::new, Stamp::to_bytes);
        assert_eq!([&value[..], &stamp[..]].concat(), input);
    });
}
