//! A listener with osqueue's calls at its root and nothing else, so that its clients need only an address.
//!
//! They cannot send headers of their own, so a token may be part of their address, or belong to a network:
//!
//! - `http://HOST:PORT/t/TOKEN`, for all transports;
//! - `http://tenure:TOKEN@HOST:PORT`, for clients that turn it into a header (WebSocket, and Connect with Node's
//!   `http`);
//! - no token at all from the configured networks: their calls use the token that was configured for them. Calls from
//!   web pages are excluded, unless their origin was named: a user on that network who opens a page has not asked for
//!   its calls. So are calls to a name that a stranger can own: whoever owns a name can make it point here, and browsers
//!   then take this listener for a part of the stranger's page (DNS rebinding).
//!
//! Each of these becomes a bearer token here, before the call is processed, and is forwarded with it.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use axum::http::uri::{PathAndQuery, Uri};
use axum::http::{HeaderMap, HeaderValue, Request, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::PREFIX;
use crate::auth::without_port;
use crate::cors;

/// The path prefix before a token.
const TOKEN_PATH: &str = "/t/";

/// The ends of names that nobody can own on the internet.
const PRIVATE: [&str; 6] = [
    ".localhost",
    ".local",
    ".internal",
    ".lan",
    ".home.arpa",
    ".test",
];

/// A network: addresses that share their first bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// Whether an address is in the network. An IPv4 address mapped to IPv6 counts as IPv4.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(mine), IpAddr::V4(other)) => {
                let same = (mine.to_bits() ^ other.to_bits()).leading_zeros();
                same >= u32::from(self.bits)
            }
            (IpAddr::V6(mine), IpAddr::V6(other)) => {
                let same = (mine.to_bits() ^ other.to_bits()).leading_zeros();
                same >= u32::from(self.bits)
            }
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a network: it must look like 10.1.0.0/16");
        let (address, bits) = text.split_once('/').ok_or_else(wrong)?;
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.parse().ok().filter(|&bits| bits <= most);
        let bits = bits.ok_or_else(wrong)?;
        Ok(Self { address, bits })
    }
}

/// Who may use this listener, and with which token.
#[derive(Debug)]
pub(crate) struct Door {
    networks: Vec<Network>,
    /// The token for calls from the networks.
    token: Option<HeaderValue>,
    /// The web pages that may make such calls.
    origins: Vec<String>,
    /// The name under which this server is advertised.
    own_name: Option<String>,
}

impl Door {
    pub(crate) fn new(
        networks: Vec<Network>,
        token: Option<&str>,
        origins: Vec<String>,
        own_name: Option<String>,
    ) -> Self {
        Self {
            networks,
            token: token.and_then(bearer),
            origins,
            own_name,
        }
    }

    /// Rewrites a call's path and authorization according to the token that it came with.
    pub(crate) fn enter<B>(&self, request: &mut Request<B>, peer: SocketAddr) {
        let path = request.uri().path_and_query();
        let path = path.map_or("/", PathAndQuery::as_str);
        let (token, path) = match path.strip_prefix(TOKEN_PATH) {
            Some(rest) => {
                let end = rest.find(['/', '?']).unwrap_or(rest.len());
                (bearer(&rest[..end]), &rest[end..])
            }
            None => (None, path),
        };
        let slash = if path.starts_with('/') { "" } else { "/" };
        let inside = format!("{PREFIX}{slash}{path}").parse::<Uri>();
        let token = token
            .or_else(|| from_user(request.headers()))
            .or_else(|| self.token_of(request.headers(), peer));
        if let Some(token) = token {
            request.headers_mut().insert(header::AUTHORIZATION, token);
        }
        if let Ok(inside) = inside {
            *request.uri_mut() = inside;
        }
    }

    /// The networks' token, for a call that may use it.
    fn token_of(&self, headers: &HeaderMap, peer: SocketAddr) -> Option<HeaderValue> {
        let is_free = !headers.contains_key(header::AUTHORIZATION)
            && !self.is_of_a_page(headers)
            && self.is_trusted_name(headers);
        let is_named = || self.networks.iter().any(|net| net.contains(peer.ip()));
        (is_free && is_named())
            .then(|| self.token.clone())
            .flatten()
    }
}

impl Door {
    /// Whether a browser sends this for a page whose origin was not named. Browsers tell: by `Origin` for every call
    /// that may change something and for every socket, and by `Sec-Fetch-Site` for the rest. That a page uses this
    /// host's own name proves nothing, since the owner of a name decides which address it resolves to.
    fn is_of_a_page(&self, headers: &HeaderMap) -> bool {
        let site = headers.get("sec-fetch-site");
        let is_of_a_page = headers.contains_key(header::ORIGIN)
            || site.is_some_and(|site| site.as_bytes() != b"none");
        is_of_a_page && cors::named_origin(headers, &self.origins).is_none()
    }

    /// Whether the caller knows this server by an address, or by a name that no stranger can make point here. Over plain
    /// HTTP a browser says nothing else about a page that reads from its own name.
    fn is_trusted_name(&self, headers: &HeaderMap) -> bool {
        let Some(host) = headers.get(header::HOST) else {
            return true;
        };
        let Ok(host) = host.to_str() else {
            return false;
        };
        let name = without_port(host).to_ascii_lowercase();
        name.parse::<IpAddr>().is_ok()
            || !name.contains('.')
            || PRIVATE.iter().any(|end| name.ends_with(end))
            || self.own_name.as_deref() == Some(name.as_str())
            || cors::named_origin(headers, &self.origins).is_some()
    }
}

/// The token of a URL's user part, as `Authorization: Basic` has it: the password, or the user if there is none.
fn from_user(headers: &HeaderMap) -> Option<HeaderValue> {
    let sent = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, coded) = sent.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let text = STANDARD.decode(coded.trim_ascii()).ok()?;
    let text = String::from_utf8(text).ok()?;
    let (user, password) = text.split_once(':')?;
    bearer(if password.is_empty() { user } else { password })
}

fn bearer(token: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entered(uri: &str, authorization: Option<&str>, peer: &str) -> (String, Option<String>) {
        let networks = vec!["10.1.0.0/16".parse().unwrap()];
        let door = Door::new(
            networks,
            Some("network-token"),
            vec!["https://named.example".to_owned()],
            None,
        );
        let mut request = Request::new(());
        *request.uri_mut() = uri.parse().unwrap();
        if let Some(value) = authorization {
            let value = value.parse().unwrap();
            request.headers_mut().insert(header::AUTHORIZATION, value);
        }
        door.enter(&mut request, peer.parse().unwrap());
        let sent = request.headers().get(header::AUTHORIZATION);
        let sent = sent.map(|sent| sent.to_str().unwrap().to_owned());
        (request.uri().to_string(), sent)
    }

    #[test]
    fn a_token_may_be_a_part_of_the_address() {
        let stranger = "192.0.2.1:9";
        let bearer = |token: &str| Some(format!("Bearer {token}"));
        for (uri, sent, inside, token) in [
            ("/v1/jobs?x=1", None, "/osqueue/v1/jobs?x=1", None),
            ("/t/secret/v1/ws", None, "/osqueue/v1/ws", bearer("secret")),
            ("/t/secret", None, "/osqueue/", bearer("secret")),
            // tenure:secret, and secret alone.
            (
                "/",
                Some("Basic dGVudXJlOnNlY3JldA=="),
                "/osqueue/",
                bearer("secret"),
            ),
            (
                "/",
                Some("basic c2VjcmV0Og=="),
                "/osqueue/",
                bearer("secret"),
            ),
            ("/", Some("Bearer mine"), "/osqueue/", bearer("mine")),
        ] {
            let found = entered(uri, sent, stranger);
            assert_eq!(found, (inside.to_owned(), token), "{uri}");
        }
    }

    #[test]
    fn a_network_has_a_token_unless_its_hosts_have_their_own() {
        let token = Some("Bearer network-token".to_owned());
        assert_eq!(entered("/", None, "10.1.2.3:9").1, token);
        assert_eq!(entered("/", None, "[::ffff:10.1.2.3]:9").1, token);
        assert_eq!(entered("/", None, "10.2.2.3:9").1, None);
        let own = entered("/", Some("Bearer mine"), "10.1.2.3:9").1;
        assert_eq!(own.as_deref(), Some("Bearer mine"));
    }

    #[test]
    fn networks_are_read_strictly() {
        for text in [
            "10.0.0.0",
            "10.0.0.0/33",
            "x/8",
            "::/129",
            "10.0.0.0/",
            "/8",
        ] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
        let all: Network = "0.0.0.0/0".parse().unwrap();
        assert!(all.contains("203.0.113.9".parse().unwrap()));
        assert!(!all.contains("2001:db8::1".parse().unwrap()));
        let net: Network = "2001:db8::/32".parse().unwrap();
        assert!(net.contains("2001:db8:1::1".parse().unwrap()));
        assert!(!net.contains("2001:db9::1".parse().unwrap()));
    }

    #[test]
    fn a_page_has_the_rights_of_a_network_only_if_it_was_named() {
        let networks = vec!["10.1.0.0/16".parse().unwrap()];
        let named = vec!["https://named.example".to_owned()];
        let own_name = Some("broker.example".to_owned());
        let door = Door::new(networks, Some("network-token"), named, own_name);
        let has_token = |sent: &[(&'static str, &str)]| {
            let mut request = Request::new(());
            for (name, value) in sent {
                request.headers_mut().insert(*name, value.parse().unwrap());
            }
            door.enter(&mut request, "10.1.2.3:9".parse().unwrap());
            request.headers().contains_key(header::AUTHORIZATION)
        };
        assert!(has_token(&[]), "a program");
        assert!(has_token(&[("sec-fetch-site", "none")]), "a person");
        for known in [
            "10.1.0.1:8090",
            "[2001:db8::1]:8090",
            "broker",
            "Broker.internal:8090",
            "broker.example:8090",
        ] {
            assert!(has_token(&[("host", known)]), "{known}");
        }
        assert!(has_token(&[
            ("origin", "https://named.example"),
            ("sec-fetch-site", "cross-site")
        ]));
        for page in [
            &[("origin", "https://evil.example")][..],
            &[("origin", "null")],
            // A name that resolves to this host. Over plain HTTP a browser sends nothing else with a read.
            &[("host", "evil.example:1")],
            &[("host", "internal.evil.example")],
            &[
                ("host", "evil.example:1"),
                ("origin", "http://evil.example:1"),
                ("sec-fetch-site", "same-origin"),
            ],
            &[("sec-fetch-site", "same-origin")],
            &[("sec-fetch-site", "cross-site")],
        ] {
            assert!(!has_token(page), "{page:?}");
        }
    }
}
