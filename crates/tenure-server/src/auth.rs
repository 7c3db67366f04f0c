//! Who may do what: bearer tokens with scopes.
//!
//! Only digests of tokens are kept and compared, always all of them and in constant time, so the time taken reveals
//! neither a token's length nor how much of a guess was right. No token is ever shown.
//!
//! Programs send a token with each call. A browser sends it once to log in: see [`login`].
//!
//! Without tokens, which is only possible on loopback, everybody on this host may do everything. Then requests from web
//! pages of other origins are refused: see [`Tokens::origin_is_allowed`].

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::{HeaderMap, header};
use ring::digest;
use serde::{Deserialize, Serialize};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use crate::{cors, login};

/// What a token allows. Each scope includes the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Read everything.
    Read = 1,
    /// Submit jobs, work on them, and take part in elections.
    Worker = 2,
    /// Pause, limit, schedule, cancel, retry, move and delete; resign, transfer and drain.
    Admin = 3,
}

impl fmt::Display for Scope {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Scope::Read => "read",
            Scope::Worker => "worker",
            Scope::Admin => "admin",
        })
    }
}

/// The tokens of a server.
#[derive(Clone, Default)]
pub struct Tokens {
    digests: Vec<(Scope, [u8; 32])>,
}

/// The minimum length of a token in bytes: a shorter one could be guessed.
const TOKEN_BYTES_MIN: usize = 16;

const TOKEN_BYTES_MAX: usize = 512;

/// The most tokens: all of them are compared with every request.
const TOKENS_MAX: usize = 100;

/// Why a list of tokens is invalid. Shows none of its text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct TokensError {
    line: usize,
    problem: String,
}

impl Tokens {
    /// No tokens: everybody may do everything.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            digests: Vec::new(),
        }
    }

    /// Whether there are no tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.digests.is_empty()
    }

    /// Reads `SCOPE TOKEN` lines, and skips blank lines and those that start with `#`. A token without a scope gets
    /// `admin`.
    pub fn parse(text: &str) -> Result<Self, TokensError> {
        let mut tokens = Self::none();
        for (place, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |problem: &str| TokensError {
                line: place + 1,
                problem: problem.to_owned(),
            };
            let mut words = line.split_ascii_whitespace();
            let (scope, token) = match (words.next(), words.next(), words.next()) {
                (Some(token), None, None) => (Scope::Admin, token),
                (Some(scope), Some(token), None) => {
                    let scope = match scope {
                        "read" => Scope::Read,
                        "worker" => Scope::Worker,
                        "admin" => Scope::Admin,
                        _ => return Err(wrong("the scope is not read, worker or admin")),
                    };
                    (scope, token)
                }
                _ => return Err(wrong("expected a scope and a token")),
            };
            tokens
                .add(scope, token)
                .map_err(|problem| wrong(&problem))?;
        }
        Ok(tokens)
    }

    /// Adds a token, or says why it cannot be one.
    pub fn add(&mut self, scope: Scope, token: &str) -> Result<(), String> {
        if token.len() < TOKEN_BYTES_MIN || token.len() > TOKEN_BYTES_MAX {
            return Err(format!(
                "a token must have {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} characters; this one has {}",
                token.len()
            ));
        }
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("a token may contain only visible ASCII characters".to_owned());
        }
        if self.digests.len() == TOKENS_MAX {
            return Err(format!("there are more than {TOKENS_MAX} tokens"));
        }
        self.digests.push((scope, digest(token.as_bytes())));
        Ok(())
    }

    /// The scope of the sender of these headers; `None` without a valid token or login.
    pub(crate) fn scope(&self, headers: &HeaderMap) -> Option<Scope> {
        if self.is_empty() {
            return Some(Scope::Admin);
        }
        if headers.contains_key(header::AUTHORIZATION) {
            return self.scope_of_bytes(bearer(headers)?);
        }
        self.logged_in(headers).map(|(scope, _)| *scope)
    }

    /// The token that the browser with these headers is logged in with.
    fn logged_in(&self, headers: &HeaderMap) -> Option<&(Scope, [u8; 32])> {
        login::token(&self.digests, headers, seconds())
    }

    /// The cookie value that a browser keeps instead of the token in these headers; `None` if they hold no known token.
    pub(crate) fn login(&self, headers: &HeaderMap) -> Option<String> {
        let token = bearer(headers)?;
        self.scope_of_bytes(token)?;
        Some(login::value(&digest(token), seconds()))
    }

    /// The scope of a token; `None` if it is unknown.
    pub(crate) fn scope_of(&self, token: &str) -> Option<Scope> {
        self.scope_of_bytes(token.as_bytes())
    }

    fn scope_of_bytes(&self, token: &[u8]) -> Option<Scope> {
        let sent = digest(token);
        let mut found = 0_u8;
        for (scope, known) in &self.digests {
            let fits: Choice = known.ct_eq(&sent);
            let wider = u8::conditional_select(&0, &(*scope as u8), fits);
            found = found.max(wider);
        }
        match found {
            1 => Some(Scope::Read),
            2 => Some(Scope::Worker),
            3 => Some(Scope::Admin),
            _ => None,
        }
    }

    /// Names the sender of these headers for the log, by the start of the token's digest. That tells tokens apart, and
    /// cannot be used to log in.
    pub(crate) fn who(&self, headers: &HeaderMap) -> String {
        let sent = headers.get(header::AUTHORIZATION).map(|sent| {
            let sent = sent.as_bytes();
            digest(sent.get(7..).unwrap_or_default().trim_ascii())
        });
        let logged_in = || self.logged_in(headers).map(|(_, digest)| *digest);
        let Some([first, second, third, fourth, ..]) = sent.or_else(logged_in) else {
            return "no token".to_owned();
        };
        let scope = match self.scope(headers) {
            Some(scope) if !self.is_empty() => scope.to_string(),
            _ => "unknown".to_owned(),
        };
        format!("{scope} token {first:02x}{second:02x}{third:02x}{fourth:02x}")
    }

    /// Whether a request may come from the origin that its browser names. Programs name none, and are allowed.
    ///
    /// With tokens, every origin is allowed: pages from elsewhere do not have a token. Without tokens, any page that a
    /// user of this host opens could send requests here. So requests from another origin are refused, and so are
    /// requests that name this host by a name that is not local (a page can make its own name point here). It is not
    /// enough that the page cannot read the answer: the call would still be carried out.
    ///
    /// Pages of `named` origins are allowed too.
    pub(crate) fn origin_is_allowed(&self, headers: &HeaderMap, named: &[String]) -> bool {
        if !self.is_empty() {
            return true;
        }
        let host = headers.get(header::HOST).map(|host| host.as_bytes());
        if host.is_some_and(|host| !is_local(host)) {
            return false;
        }
        if cors::named_origin(headers, named).is_some() {
            return true;
        }
        // A page on another port of this host is the same site, but another origin.
        let site = headers.get("sec-fetch-site").map(|site| site.as_bytes());
        if site.is_some_and(|site| site != b"same-origin" && site != b"none") {
            return false;
        }
        let Some(origin) = headers.get(header::ORIGIN) else {
            return true;
        };
        let origin = origin.as_bytes();
        let rest = origin
            .strip_prefix(b"http://")
            .or_else(|| origin.strip_prefix(b"https://"));
        rest.is_some() && rest == host
    }
}

/// Whether a `Host` header names this host in a way that no other host can take: an address, or
/// `localhost`.
fn is_local(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else {
        return false;
    };
    if host.parse::<std::net::SocketAddr>().is_ok() {
        return true;
    }
    let name = without_port(host);
    name.eq_ignore_ascii_case("localhost")
        || name.to_ascii_lowercase().ends_with(".localhost")
        || name.parse::<std::net::IpAddr>().is_ok()
}

/// The name or address in a `Host` header.
pub(crate) fn without_port(host: &str) -> &str {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    name.trim_start_matches('[').trim_end_matches(']')
}

/// The token of an `Authorization` header.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let sent = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = sent.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| token.trim_ascii())
}

/// This host's wall clock, in seconds. Used only for the end of logins.
fn seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

fn digest(token: &[u8]) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest::digest(&digest::SHA256, token).as_ref());
    bytes
}

impl fmt::Debug for Tokens {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scopes = self.digests.iter().map(|(scope, _)| scope);
        formatter.debug_list().entries(scopes).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str =
        "# tokens\n\nread   rrrrrrrrrrrrrrrr\nworker wwwwwwwwwwwwwwww\naaaaaaaaaaaaaaaa\n";

    fn with(name: header::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    #[test]
    fn a_token_has_the_scope_of_its_line() {
        let tokens = Tokens::parse(FILE).unwrap();
        for (sent, scope) in [
            ("Bearer rrrrrrrrrrrrrrrr", Some(Scope::Read)),
            ("bearer wwwwwwwwwwwwwwww ", Some(Scope::Worker)),
            ("Bearer aaaaaaaaaaaaaaaa", Some(Scope::Admin)),
            ("Bearer aaaaaaaaaaaaaaa", None),
            ("Bearer aaaaaaaaaaaaaaaab", None),
            ("Bearer", None),
            ("Basic aaaaaaaaaaaaaaaa", None),
        ] {
            assert_eq!(
                tokens.scope(&with(header::AUTHORIZATION, sent)),
                scope,
                "{sent}"
            );
        }
        assert_eq!(tokens.scope(&HeaderMap::new()), None);
        assert_eq!(Tokens::none().scope(&HeaderMap::new()), Some(Scope::Admin));
    }

    #[test]
    fn bad_lines_are_named_and_not_shown() {
        for (text, problem) in [
            ("short", "line 1: a token must have 16"),
            ("\nroot aaaaaaaaaaaaaaaa", "line 2: the scope"),
            ("admin secretsecretsecret x", "line 1: expected a scope"),
            (
                "admin s\u{fc}cretsecretsecret",
                "line 1: a token may contain only visible",
            ),
        ] {
            let error = Tokens::parse(text).unwrap_err().to_string();
            assert!(
                error.starts_with(problem) && !error.contains("cret"),
                "{error}"
            );
        }
        let shown = format!("{:?}", Tokens::parse(FILE).unwrap());
        assert_eq!(shown, "[Read, Worker, Admin]");
    }

    #[test]
    fn pages_from_elsewhere_are_kept_out_where_there_is_no_token() {
        let open = Tokens::none();
        let allowed = |host: &str, origin: Option<&str>| {
            let mut headers = with(header::HOST, host);
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, origin.parse().unwrap());
            }
            open.origin_is_allowed(&headers, &[])
        };
        for host in [
            "localhost:8080",
            "127.0.0.1:8080",
            "[::1]:8080",
            "127.0.0.1",
            "LOCALHOST",
        ] {
            assert!(allowed(host, None), "{host}");
        }
        assert!(allowed("localhost:8080", Some("http://localhost:8080")));
        assert!(!allowed("evil.example:8080", None));
        assert!(!allowed("localhost:8080", Some("https://evil.example")));
        assert!(!allowed("localhost:8080", Some("null")));
        assert!(!allowed("localhost.evil.example", None));
        let headers = with(header::HOST, "broker.example");
        assert!(
            Tokens::parse(FILE)
                .unwrap()
                .origin_is_allowed(&headers, &[])
        );
        for (site, is_allowed) in [
            ("none", true),
            ("same-origin", true),
            ("same-site", false),
            ("cross-site", false),
        ] {
            let mut headers = with(header::HOST, "localhost:8080");
            headers.insert("sec-fetch-site", site.parse().unwrap());
            assert_eq!(open.origin_is_allowed(&headers, &[]), is_allowed, "{site}");
        }
    }

    #[test]
    fn a_caller_is_named_without_its_token() {
        let tokens = Tokens::parse(FILE).unwrap();
        let who = |sent: &str| tokens.who(&with(header::AUTHORIZATION, sent));
        assert_eq!(tokens.who(&HeaderMap::new()), "no token");
        let name = who("Bearer aaaaaaaaaaaaaaaa");
        assert!(name.starts_with("admin token "), "{name}");
        assert_eq!(name.len(), "admin token ".len() + 8);
        assert_ne!(name, who("Bearer rrrrrrrrrrrrrrrr"));
        assert!(who("Bearer wrongwrongwrongwrong").starts_with("unknown token "));
        assert!(who("x").starts_with("unknown token "));
    }
}
