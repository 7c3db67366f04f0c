//! Logging a browser in: what its cookie allows, on every broker, and what it does not.

use reqwest::{Method, StatusCode, header};
use tenure_server::Tokens;

use crate::support::{Broker, config, store_in, until};

const TOKENS: &str = "read rrrrrrrrrrrrrrrrrrrr\nadmin aaaaaaaaaaaaaaaaaaaa\n";
const PAGE: &str = "x-tenure-dashboard";

async fn broker(folder: &std::path::Path) -> Broker {
    let mut config = config(&store_in(folder));
    config.tokens = Tokens::parse(TOKENS).unwrap();
    Broker::started(config).await
}

/// The cookie for a token, as a browser sends it, and the broker's whole `Set-Cookie` header.
async fn login(broker: &Broker, token: &str) -> (String, String) {
    let request = broker.request(Method::POST, "/v1/dashboard/login");
    let answer = request.bearer_auth(token).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::NO_CONTENT);
    let set = answer.headers()[header::SET_COOKIE].to_str().unwrap();
    let cookie = set.split(';').next().unwrap();
    (cookie.to_owned(), set.to_owned())
}

async fn status(broker: &Broker, method: Method, path: &str, headers: &[(&str, &str)]) -> u16 {
    let mut request = broker.request(method, path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.send().await.unwrap().status().as_u16()
}

#[tokio::test]
async fn a_login_opens_what_its_token_does_on_every_broker() {
    let folder = tempfile::tempdir().unwrap();
    let leader = broker(folder.path()).await;
    leader.serving().await;
    let standby = broker(folder.path()).await;
    let (read, set) = login(&leader, "rrrrrrrrrrrrrrrrrrrr").await;
    assert!(!set.contains("rrrr"), "{set}");
    assert!(set.ends_with("; HttpOnly; SameSite=Strict"), "{set}");
    let (admin, _) = login(&standby, "aaaaaaaaaaaaaaaaaaaa").await;
    // Through the standby, which passes it on.
    for broker in [&leader, &standby] {
        let call = async |method, path: &str, cookie: &str| {
            status(broker, method, path, &[("cookie", cookie), (PAGE, "1")]).await
        };
        assert_eq!(call(Method::GET, "/v1/queues", &read).await, 200);
        let pause = "/v1/queues/q/pause";
        assert_eq!(call(Method::POST, pause, &read).await, 403);
        assert_eq!(call(Method::POST, pause, &admin).await, 200);
        // A page on another port can cause the cookie to be sent, but cannot send the header, nor claim to be of this
        // origin.
        let alone = [("cookie", &*admin)];
        assert_eq!(status(broker, Method::POST, pause, &alone).await, 401);
        let other = [
            ("cookie", &*admin),
            (PAGE, "1"),
            ("sec-fetch-site", "same-site"),
        ];
        assert_eq!(status(broker, Method::POST, pause, &other).await, 401);
        let wrong = [
            ("cookie", &*admin),
            (PAGE, "1"),
            ("authorization", "Bearer wrongwrongwrongwrong"),
        ];
        assert_eq!(status(broker, Method::GET, "/v1/queues", &wrong).await, 401);
    }
    // The standby follows the leader with this login.
    let stream = standby.request(Method::GET, "/v1/dashboard/stream");
    let stream = stream.header("cookie", &read).header(PAGE, "1");
    let mut stream = stream.send().await.unwrap();
    assert_eq!(stream.status(), 200);
    let mut seen = String::new();
    while !seen.contains("event: queues\n") {
        let chunk = stream.chunk().await.unwrap().expect("it goes on");
        seen.push_str(&String::from_utf8_lossy(&chunk));
    }
    drop(stream);
    standby.handle.stop().await;
    leader.handle.stop().await;
}

#[tokio::test]
async fn nobody_is_logged_in_by_a_wrong_token_or_by_a_cookie() {
    let folder = tempfile::tempdir().unwrap();
    let broker = broker(folder.path()).await;
    let login_path = "/v1/dashboard/login";
    let wrong = [("authorization", "Bearer wrongwrongwrongwrong")];
    assert_eq!(status(&broker, Method::POST, login_path, &wrong).await, 401);
    assert_eq!(status(&broker, Method::POST, login_path, &[]).await, 401);
    // A login does not prolong itself.
    let (cookie, _) = login(&broker, "aaaaaaaaaaaaaaaaaaaa").await;
    let sent = [("cookie", &*cookie), (PAGE, "1")];
    assert_eq!(status(&broker, Method::POST, login_path, &sent).await, 401);
    // Over TLS, even if a proxy terminates it, the cookie is sent nowhere else.
    let request = broker.request(Method::POST, login_path);
    let request = request.header("origin", "https://tenure.example");
    let answer = request.bearer_auth("aaaaaaaaaaaaaaaaaaaa").send().await;
    let answer = answer.unwrap();
    let set = answer.headers()[header::SET_COOKIE].to_str().unwrap();
    assert!(
        set.starts_with("__Host-") && set.ends_with("; Secure"),
        "{set}"
    );
    // Logging out needs no login.
    let out = broker.request(Method::DELETE, login_path).send().await;
    let out = out.unwrap();
    assert_eq!(out.status(), StatusCode::NO_CONTENT);
    assert_eq!(out.headers().get_all(header::SET_COOKIE).iter().count(), 2);
    until(async || broker.handle.is_serving().then_some(())).await;
    broker.handle.stop().await;
}
