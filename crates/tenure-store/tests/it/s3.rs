//! S3: Ceph and SeaweedFS keep the contract, servers known to be wrong are detected, and no lost answer is ever taken
//! for a conflict.

use std::error::Error as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tenure_store::conformance::{Options, Report, Suite, Verdict};
use tenure_store::engine::object::Objects;
use tenure_store::{Error, Expect, Key, Store, list_all};
use tenure_testkit::careless_s3::CarelessS3;
use tenure_testkit::gcs::Gcs;
use tenure_testkit::http_proxy::{Fault, HttpProxy};
use url::Url;

use crate::support;

#[tokio::test(flavor = "multi_thread")]
async fn ceph_keeps_the_contract() {
    if let Some(url) = support::url("TENURE_TEST_S3_CEPH") {
        check(&url, Options::default()).await.assert_passed();
    }
}

/// For a read-only open, a prefix with a typo is not a store, on every service.
#[tokio::test]
async fn a_prefix_that_holds_no_object_is_no_store() {
    let s3 = CarelessS3::start("b").await;
    let insert = |name: &str| s3.insert(name, b"foreign");
    let variables = CarelessS3::variables();
    typo_is_no_store(&s3.url(), &variables, insert, || s3.requests()).await;
    let gcs = Gcs::start("b").await;
    let insert = |name: &str| gcs.insert(name, b"foreign");
    let variables = Gcs::variables();
    typo_is_no_store(&gcs.url(), &variables, insert, || gcs.requests()).await;
}

async fn typo_is_no_store(
    url: &str,
    variables: &[(String, String)],
    insert: impl Fn(&str),
    requests: impl Fn() -> usize,
) {
    let mut url = parse(url);
    for foreign in ["typo9x/ns/a", "typo9/", "typo9/notes.txt", "typo9/a b/c"] {
        insert(foreign);
    }
    url.set_path("/typo9");
    let before = requests();
    let error = Objects::open_existing_with(&url, variables.to_vec()).await;
    let error = error.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    let cause = error.source().unwrap().to_string();
    assert_eq!(cause, "there is no such store");
    assert!(error.to_string().contains("b/typo9"), "{error}");
    assert_eq!(requests(), before + 1);

    let made = Objects::open_with(&url, variables.to_vec()).await.unwrap();
    let key = Key::new("ns/elections/a").unwrap();
    made.put(&key, "x".into(), &Expect::Absent).await.unwrap();
    let store = Objects::open_existing_with(&url, variables.to_vec()).await;
    assert!(store.unwrap().get(&key).await.unwrap().is_some());
}

/// With more foreign objects than one request shows.
#[tokio::test]
async fn a_store_is_found_behind_many_other_things() {
    let gcs = Gcs::start("b").await;
    for number in 0..1001 {
        gcs.insert(&format!("{number}.jpg"), b"foreign");
    }
    let open = async || Objects::open_existing_with(&parse(&gcs.url()), Gcs::variables()).await;
    let error = open().await.unwrap_err();
    assert_eq!(
        error.source().unwrap().to_string(),
        "there is no such store"
    );
    gcs.insert("default/elections/a", b"{}");
    open().await.unwrap();
}

/// With too many objects to look at, nobody can tell, so it is opened.
#[tokio::test]
async fn a_bucket_full_of_other_things_may_hold_a_store() {
    let gcs = Gcs::start("b").await;
    for number in 0..8001 {
        gcs.insert(&format!("{number}.jpg"), b"foreign");
    }
    let before = gcs.requests();
    let store = Objects::open_existing_with(&parse(&gcs.url()), Gcs::variables()).await;
    assert!(store.is_ok(), "{store:?}");
    assert_eq!(gcs.requests(), before + 8);
}

/// A location around a store or inside one is not a store, however many objects it has.
#[tokio::test]
async fn the_prefix_above_a_store_is_no_store() {
    let s3 = CarelessS3::start("b").await;
    let variables = CarelessS3::variables();
    around_a_store_is_none(&s3.url(), &variables, |name| s3.insert(name, b"{}")).await;
    let gcs = Gcs::start("b").await;
    let variables = Gcs::variables();
    around_a_store_is_none(&gcs.url(), &variables, |name| gcs.insert(name, b"{}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_prefix_above_a_store_is_no_store_on_real_servers() {
    for name in ["TENURE_TEST_S3_CEPH", "TENURE_TEST_S3_SEAWEED"] {
        let Some(url) = support::url(name) else {
            continue;
        };
        let mut url = parse(&url);
        let top = format!("{}/around", url.path().trim_end_matches('/'));
        url.set_path(&format!("{top}/x"));
        let store = Objects::open(&url).await.unwrap();
        let key = Key::new("default/elections/a").unwrap();
        store.put(&key, "{}".into(), &Expect::Absent).await.unwrap();
        let variables: Vec<(String, String)> = std::env::vars().collect();
        for (place, hint) in [("", "around/x"), ("/x/default", "namespace of the store")] {
            url.set_path(&format!("{top}{place}"));
            assert_no_store(&url, &variables, hint).await;
        }
        store.delete(&key).await.unwrap();
    }
}

async fn around_a_store_is_none(url: &str, variables: &[(String, String)], insert: impl Fn(&str)) {
    insert("top/x/default/elections/a");
    for number in 0..1500 {
        insert(&format!("top/x/default/queue/log/{number:020}"));
    }
    insert("top/x/other/elections/a");
    let mut url = parse(url);
    for (place, hint) in [
        ("", "there is a store at the prefix top/x"),
        ("/top", "there is a store at the prefix top/x"),
        ("/top/x/default", "namespace of the store"),
    ] {
        url.set_path(place);
        assert_no_store(&url, variables, hint).await;
    }
    url.set_path("/top/x");
    let store = Objects::open_existing_with(&url, variables.to_vec()).await;
    store.unwrap();
    // Both may be stores; there was a warning when the one above was created.
    insert("top/y/elections/a");
    url.set_path("/top");
    let store = Objects::open_existing_with(&url, variables.to_vec()).await;
    store.unwrap();
}

async fn assert_no_store(url: &Url, variables: &[(String, String)], found: &str) {
    let error = Objects::open_existing_with(url, variables.to_vec()).await;
    let Err(Error::Refused { hint, source, .. }) = error else {
        panic!("{url}: {error:?}");
    };
    assert_eq!(source.to_string(), "there is no such store");
    assert!(hint.contains(found), "{url}: {hint}");
}

#[tokio::test(flavor = "multi_thread")]
async fn seaweedfs_keeps_the_contract() {
    if let Some(url) = support::url("TENURE_TEST_S3_SEAWEED") {
        // It takes about a second to settle a contended key.
        let options = Options {
            writers: 4,
            rounds: 5,
            ..Options::default()
        };
        check(&url, options).await.assert_passed();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rclone_is_found_out() {
    if let Some(url) = support::url("TENURE_TEST_S3_RCLONE") {
        assert_found_out(&check(&url, Options::quick()).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_alike_without_conditions_is_found_out() {
    let server = CarelessS3::start("bucket").await;
    let store = Objects::open_with(&parse(&server.url()), CarelessS3::variables()).await;
    let suite = Suite::new(Arc::new(store.unwrap()), Options::quick());
    let report = suite.run(|_| {}).await;
    assert_found_out(&report);
    assert_eq!(report.left_behind, None);
    assert_eq!(server.names(), [""; 0], "the check leaves nothing behind");
}

async fn check(url: &str, options: Options) -> Report {
    let store = tenure_store::open(url).await.unwrap();
    Suite::new(store, options).run(|_| {}).await
}

fn assert_found_out(report: &Report) {
    for name in [
        "create-on-existing",
        "replace-stale-version",
        "replace-identical-content",
        "create-race",
        "replace-race",
    ] {
        let check = report.checks.iter().find(|check| check.name == name);
        assert_eq!(check.unwrap().verdict, Verdict::Failed, "{name}\n{report}");
    }
}

#[tokio::test]
async fn a_prefix_is_a_store_of_its_own() {
    let Some(url) = support::url("TENURE_TEST_S3_CEPH") else {
        return;
    };
    let folder = format!("test/{}", uuid::Uuid::new_v4());
    let [inside, beside, above] = ["/inside", "/beside", ""].map(|name| {
        let mut url = parse(&url);
        url.set_path(&format!("{folder}{name}"));
        url
    });
    let inside = Objects::open(&inside).await.unwrap();
    let beside = Objects::open(&beside).await.unwrap();
    let above = Objects::open(&above).await.unwrap();
    assert!(
        inside.describe().location.contains("/inside at 127.0.0.1:"),
        "{:?}",
        inside.describe()
    );

    let key = Key::new("a/b").unwrap();
    let written = inside.put(&key, "value".into(), &Expect::Absent).await;
    let written = written.unwrap();
    assert_eq!(beside.get(&key).await.unwrap(), None);
    let all = tenure_store::Prefix::root();
    assert_eq!(list_all(&beside, &all).await.unwrap(), []);
    let seen = list_all(&above, &all).await.unwrap();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].key.as_str(), "inside/a/b");
    assert_eq!(seen[0].version, written);
    inside.delete(&key).await.unwrap();
}

/// The server acts and its answer is lost, in every way that a network or a gateway loses one.
#[tokio::test]
async fn a_lost_answer_is_unknown_and_the_write_is_there_once() {
    for fault in [
        Fault::LoseAnswer,
        Fault::AnswerInstead("500 Internal Server Error"),
        Fault::AnswerInstead("503 Service Unavailable"),
        Fault::AnswerInstead("504 Gateway Timeout"),
    ] {
        let Some((store, proxy, key)) = behind_proxy().await else {
            return;
        };
        proxy.fail_next(fault);
        let create = store.put(&key, "first".into(), &Expect::Absent).await;
        assert!(
            matches!(create, Err(Error::Unknown { .. })),
            "{fault:?}: {create:?}"
        );
        assert_eq!(proxy.puts(), 1, "{fault:?}");
        let first = store.get(&key).await.unwrap().unwrap();
        assert_eq!(first.value, "first", "{fault:?}");

        proxy.fail_next(fault);
        let expect = Expect::Version(first.version);
        let replace = store.put(&key, "second".into(), &expect).await;
        assert!(
            matches!(replace, Err(Error::Unknown { .. })),
            "{fault:?}: {replace:?}"
        );
        assert_eq!(proxy.puts(), 2, "{fault:?}");
        let second = store.get(&key).await.unwrap().unwrap();
        assert_eq!(second.value, "second", "{fault:?}");

        // Only now is it a conflict, and only because the caller itself tries again.
        let again = store.put(&key, "third".into(), &expect).await;
        assert!(
            matches!(again, Err(Error::Conflict { .. })),
            "{fault:?}: {again:?}"
        );
        store.delete(&key).await.unwrap();
    }
}

#[tokio::test]
async fn a_lost_request_is_unknown_and_nothing_is_there() {
    let Some((store, proxy, key)) = behind_proxy().await else {
        return;
    };
    proxy.fail_next(Fault::LoseRequest);
    let create = store.put(&key, "first".into(), &Expect::Absent).await;
    assert!(matches!(create, Err(Error::Unknown { .. })), "{create:?}");
    assert_eq!(proxy.puts(), 0, "nobody tried again");
    assert_eq!(store.get(&key).await.unwrap(), None);
}

/// A server that closes every connection after one answer, and does not announce it.
#[tokio::test(flavor = "multi_thread")]
async fn closed_connections_never_double_a_write() {
    let Some((store, proxy, key)) = behind_proxy().await else {
        return;
    };
    proxy.fail_always(Fault::CloseAfterwards);
    let writes = 100;
    write_in_a_row(&store, &key, writes, Duration::ZERO).await;
    assert!(
        proxy.puts() <= writes,
        "{} PUTs for {writes} writes",
        proxy.puts()
    );
    // The delete may meet a closed connection, too, and there is nothing to settle any more.
    let _ = store.delete(&key).await;
}

/// Servers close idle connections at any time, even just when the next write is on its way.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_close_during_a_write_never_double_it() {
    let server = Gcs::start("bucket").await;
    let proxy = HttpProxy::start(server.address()).await;
    proxy.close_idle_after(Duration::from_millis(2));
    let url = format!("gs://bucket?endpoint=http://{}", proxy.address());
    let store = Objects::open_with(&parse(&url), Gcs::variables()).await;
    let (store, key) = (store.unwrap(), Key::new("a").unwrap());
    let writes = 300;
    // The timer's resolution is a millisecond: about every second write meets the close.
    write_in_a_row(&store, &key, writes, Duration::from_millis(1)).await;
    assert!(
        proxy.puts() <= writes,
        "{} PUTs for {writes} writes",
        proxy.puts()
    );
}

/// Writes again and again, each on the version of the last, and settles what is unknown by reading back. Nobody else
/// writes, so a conflict would come from a repeat of its own write.
async fn write_in_a_row(store: &Objects, key: &Key, writes: usize, pause: Duration) {
    let mut expect = Expect::Absent;
    for count in 0..writes {
        tokio::time::sleep(pause).await;
        let value = format!("write {count}");
        match store.put(key, value.clone().into(), &expect).await {
            Ok(version) => expect = Expect::Version(version),
            Err(Error::Unknown { .. }) => {
                let object = store.get(key).await.unwrap();
                if let Some(object) = object.filter(|object| object.value == value) {
                    expect = Expect::Version(object.version);
                }
            }
            Err(error) => panic!("write {count}: {error:?}"),
        }
    }
}

/// Ceph behind a proxy, and this test's own key.
async fn behind_proxy() -> Option<(Objects, HttpProxy, Key)> {
    let url = support::url("TENURE_TEST_S3_CEPH")?;
    let endpoint = parameter(&url, "endpoint");
    let address: SocketAddr = endpoint.trim_start_matches("http://").parse().unwrap();
    let proxy = HttpProxy::start(address).await;
    let url = url.replace(&address.to_string(), &proxy.address().to_string());
    let store = Objects::open(&parse(&url)).await.unwrap();
    let key = Key::new(format!("test/{}", uuid::Uuid::new_v4())).unwrap();
    Some((store, proxy, key))
}

fn parse(url: &str) -> Url {
    url.parse().unwrap()
}

fn parameter(url: &str, name: &str) -> String {
    let url = parse(url);
    let (_, value) = url.query_pairs().find(|(other, _)| other == name).unwrap();
    value.into_owned()
}

#[tokio::test]
async fn a_missing_bucket_is_refused_with_a_hint() {
    let Some(url) = support::url("TENURE_TEST_S3_CEPH") else {
        return;
    };
    let url = url.replace("tenure-test", "tenure-test-missing");
    let error = Objects::open(&parse(&url)).await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(
        error
            .to_string()
            .contains("opening s3://tenure-test-missing"),
        "{error}"
    );
    assert!(cause(&error).contains("NoSuchBucket"), "{error:?}");
    assert!(
        error.hint().contains("create the bucket"),
        "{}",
        error.hint()
    );
}

#[tokio::test]
async fn wrong_credentials_are_refused_and_not_repeated() {
    for variable in ["TENURE_TEST_S3_CEPH", "TENURE_TEST_S3_SEAWEED"] {
        let Some(url) = support::url(variable) else {
            continue;
        };
        let variables = [
            ("AWS_ACCESS_KEY_ID", "testkey"),
            ("AWS_SECRET_ACCESS_KEY", "hunter2"),
            ("AWS_REGION", "us-east-1"),
        ];
        let error = Objects::open_with(&parse(&url), own(&variables)).await;
        let error = error.unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        assert!(cause(&error).contains("403"), "{error:?}");
        assert!(
            error.hint().contains("AWS_SECRET_ACCESS_KEY"),
            "{}",
            error.hint()
        );
        assert!(!format!("{error} {error:?} {}", cause(&error)).contains("hunter2"));
    }
}

#[tokio::test]
async fn an_unreachable_endpoint_is_unavailable() {
    // Nothing listens on port 1.
    for endpoint in ["http://127.0.0.1:1", "https://127.0.0.1:1"] {
        let url = format!("s3://bucket?endpoint={endpoint}");
        let error = Objects::open_with(&parse(&url), CarelessS3::variables()).await;
        let error = error.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert!(
            cause(&error).contains("cannot reach the service"),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn a_write_to_a_server_that_is_gone_is_unavailable() {
    let server = CarelessS3::start("bucket").await;
    let store = Objects::open_with(&parse(&server.url()), CarelessS3::variables()).await;
    let store = store.unwrap();
    let key = Key::new("a").unwrap();
    let version = store.put(&key, "x".into(), &Expect::Absent).await.unwrap();
    server.stop().await;
    let put = store.put(&key, "y".into(), &Expect::Version(version)).await;
    assert!(matches!(put, Err(Error::Unavailable { .. })), "{put:?}");
    let delete = store.delete(&key).await;
    assert!(
        matches!(delete, Err(Error::Unavailable { .. })),
        "{delete:?}"
    );
    let get = store.get(&key).await;
    assert!(matches!(get, Err(Error::Unavailable { .. })), "{get:?}");
}

#[tokio::test]
async fn a_wrong_url_is_invalid_before_anything_is_sent() {
    let server = CarelessS3::start("bucket").await;
    let url = server.url();
    for wrong in [
        url.replace("s3://bucket", "s3://bucket/a//b"),
        url.replace("s3://bucket", "s3://me:hunter2@bucket"),
        format!("{url}&regoin=eu"),
        format!("{url}&if_match=never"),
        "s3://bucket?endpoint=ftp://host".to_owned(),
        "s3://?endpoint=http://127.0.0.1".to_owned(),
    ] {
        let error = tenure_store::open(&wrong).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{wrong}: {error:?}");
        assert!(!error.hint().is_empty(), "{wrong}");
        assert!(
            !format!("{error} {error:?}").contains("hunter2"),
            "{error:?}"
        );
    }
    assert_eq!(server.requests(), 0);
}

fn own(variables: &[(&str, &str)]) -> Vec<(String, String)> {
    variables
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

fn cause(error: &Error) -> String {
    error.source().map(ToString::to_string).unwrap_or_default()
}
