//! Logging a browser in: the dashboard's cookie.
//!
//! A user enters a token once, and the browser gets a cookie that is not the token: it holds an expiry time and a
//! keyed digest of that time, with the token's digest as the key. So every broker with the same tokens can check it,
//! no broker has to remember it, nobody can derive the token from it, and it becomes invalid with its token. It
//! expires by the wall clock of the broker that is asked, as certificates do; a wrong clock only makes a login longer
//! or shorter.
//!
//! No script can read the cookie (`HttpOnly`), and no page of another site can cause it to be sent
//! (`SameSite=Strict`). For cookies, browsers look at hosts and not ports, so a page on another port is the same
//! site. So a cookie counts only together with a header of the dashboard's, and a page of another origin may send
//! that header only after a CORS preflight request, which is refused. Programs send tokens; nothing changes for them.

use axum::http::{HeaderMap, HeaderName, header};
use ring::hmac;

use crate::auth::Scope;

/// The header that the page sends with every call.
pub(crate) const PAGE: HeaderName = HeaderName::from_static("x-tenure-dashboard");

/// The cookie's names, without and with TLS. Browsers accept the second only over TLS and for one host.
const NAMES: [&str; 2] = ["tenure_login", "__Host-tenure_login"];

/// How long a login lasts, in seconds.
const LASTS: u64 = 30 * 86_400;

/// Separates this use of a token's digest from any other.
const PURPOSE: &[u8] = b"tenure dashboard login 1\0";

/// The cookie value for the token with this digest.
pub(crate) fn value(digest: &[u8; 32], now: u64) -> String {
    let end = now.saturating_add(LASTS);
    let tag = hmac::sign(&key(digest), &message(end));
    let hex = tag.as_ref().iter().map(|byte| format!("{byte:02x}"));
    format!("{end}.{}", hex.collect::<String>())
}

/// Which of these tokens the headers' cookie was made from. `now` is in seconds since 1970.
pub(crate) fn token<'a>(
    tokens: &'a [(Scope, [u8; 32])],
    headers: &HeaderMap,
    now: u64,
) -> Option<&'a (Scope, [u8; 32])> {
    let site = headers.get("sec-fetch-site").map(|site| site.as_bytes());
    if !headers.contains_key(PAGE) || site.is_some_and(|site| site != b"same-origin") {
        return None;
    }
    // If a browser is logged in twice, the token with the widest scope counts.
    let sent = sent(headers).filter_map(|sent| checked(tokens, sent, now));
    sent.max_by_key(|(scope, _)| *scope)
}

fn sent(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let cookies = headers.get_all(header::COOKIE).iter();
    let cookies = cookies.filter_map(|cookies| cookies.to_str().ok());
    let cookies = cookies.flat_map(|cookies| cookies.split(';'));
    let cookies = cookies.filter_map(|cookie| cookie.trim().split_once('='));
    // A browser sends one cookie of each name; only an attacker would send many, to make this slow.
    let ours = cookies.filter(|(name, _)| NAMES.contains(name)).take(4);
    ours.map(|(_, value)| value)
}

fn checked<'a>(
    tokens: &'a [(Scope, [u8; 32])],
    value: &str,
    now: u64,
) -> Option<&'a (Scope, [u8; 32])> {
    let (end, tag) = value.split_once('.')?;
    let end: u64 = end.parse().ok()?;
    let tag = from_hex(tag)?;
    if end <= now {
        return None;
    }
    let message = message(end);
    let fits = |(_, digest): &&(Scope, [u8; 32])| {
        // In constant time.
        hmac::verify(&key(digest), &message, &tag).is_ok()
    };
    tokens.iter().find(fits)
}

fn key(digest: &[u8; 32]) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, digest)
}

fn message(end: u64) -> Vec<u8> {
    [PURPOSE, &end.to_be_bytes()].concat()
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    let mut bytes = [0; 32];
    for (place, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(place * 2..place * 2 + 2)?, 16).ok()?;
    }
    Some(bytes)
}

/// The header that gives a browser this cookie.
pub(crate) fn set(value: &str, is_secure: bool) -> String {
    let (name, secure) = if is_secure {
        (NAMES[1], "; Secure")
    } else {
        (NAMES[0], "")
    };
    format!("{name}={value}; Path=/; Max-Age={LASTS}; HttpOnly; SameSite=Strict{secure}")
}

/// The headers that remove all our cookies.
pub(crate) fn unset() -> [String; 2] {
    [false, true]
        .map(|is_secure| set("", is_secure).replace(&format!("Max-Age={LASTS}"), "Max-Age=0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn headers(cookie: &str) -> HeaderMap {
        HeaderMap::from_iter([
            (PAGE, "1".parse().unwrap()),
            (header::COOKIE, cookie.parse().unwrap()),
        ])
    }

    fn tokens() -> Vec<(Scope, [u8; 32])> {
        vec![(Scope::Read, [1; 32]), (Scope::Admin, [2; 32])]
    }

    fn scope(headers: &HeaderMap, now: u64) -> Option<Scope> {
        token(&tokens(), headers, now).map(|(scope, _)| *scope)
    }

    #[test]
    fn a_login_has_the_scope_of_its_token_and_ends() {
        let read = value(&[1; 32], NOW);
        let sent = headers(&format!("theme=dark; tenure_login={read}; x"));
        assert_eq!(scope(&sent, NOW), Some(Scope::Read));
        assert_eq!(scope(&sent, NOW + LASTS - 1), Some(Scope::Read));
        assert_eq!(scope(&sent, NOW + LASTS), None);
        let admin = value(&[2; 32], NOW);
        let both = format!("tenure_login={read}; __Host-tenure_login={admin}");
        assert_eq!(scope(&headers(&both), NOW), Some(Scope::Admin));
        let stranger = format!("tenure_login={}", value(&[3; 32], NOW));
        assert_eq!(scope(&headers(&stranger), NOW), None);
    }

    #[test]
    fn a_login_that_was_changed_is_none() {
        let value = value(&[2; 32], NOW);
        let (end, tag) = value.split_once('.').unwrap();
        let later = end.parse::<u64>().unwrap() + 1;
        for changed in [
            format!("{later}.{tag}"),
            format!("{end}.{}", tag.replace(&tag[..2], "zz")),
            format!("{end}.{}", &tag[2..]),
            format!("{end}."),
            format!("{end}.{tag}00"),
            format!("{end}.{}", "\u{20ac}".repeat(21) + "0"),
            String::new(),
        ] {
            let mut sent = headers("x=1");
            let cookie = format!("tenure_login={changed}");
            sent.insert(header::COOKIE, cookie.as_bytes().try_into().unwrap());
            assert_eq!(scope(&sent, NOW), None, "{changed}");
        }
    }

    #[test]
    fn a_cookie_alone_is_nothing() {
        let cookie = format!("tenure_login={}", value(&[2; 32], NOW));
        let mut sent = headers(&cookie);
        assert_eq!(scope(&sent, NOW), Some(Scope::Admin));
        for (site, is_allowed) in [
            ("same-origin", true),
            ("same-site", false),
            ("cross-site", false),
            ("none", false),
        ] {
            sent.insert("sec-fetch-site", site.parse().unwrap());
            assert_eq!(scope(&sent, NOW).is_some(), is_allowed, "{site}");
        }
        sent.remove("sec-fetch-site");
        sent.remove(PAGE);
        assert_eq!(scope(&sent, NOW), None);
    }

    #[test]
    fn the_cookie_is_out_of_reach_of_scripts_and_other_sites() {
        assert_eq!(
            set("v", false),
            "tenure_login=v; Path=/; Max-Age=2592000; HttpOnly; SameSite=Strict"
        );
        assert_eq!(
            set("v", true),
            "__Host-tenure_login=v; Path=/; Max-Age=2592000; HttpOnly; SameSite=Strict; Secure"
        );
        for unset in unset() {
            assert!(unset.contains("=; Path=/; Max-Age=0;"), "{unset}");
        }
    }
}
