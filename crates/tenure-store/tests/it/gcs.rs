//! Google Cloud Storage, on our own test double: no available emulator handles generations correctly. What the real
//! service does beyond its documentation is not tested.

use std::sync::Arc;

use tenure_store::conformance::{Options, Suite};
use tenure_store::engine::object::Objects;
use tenure_store::{Change, Error, Expect, Key, Prefix, Store, Version, list_all};
use tenure_testkit::gcs::Gcs;

async fn open(gcs: &Gcs) -> Objects {
    let url = gcs.url().parse().unwrap();
    Objects::open_with(&url, Gcs::variables()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_double_keeps_the_contract() {
    let gcs = Gcs::start("bucket").await;
    let suite = Suite::new(Arc::new(open(&gcs).await), Options::default());
    suite.run(|_| {}).await.assert_passed();
    assert_eq!(gcs.names(), [""; 0], "the check leaves nothing behind");
}

/// A listing shows ETags, a write needs a generation.
#[tokio::test]
async fn a_version_from_a_listing_is_as_good_as_one_from_a_read() {
    let gcs = Gcs::start("bucket").await;
    let store = open(&gcs).await;
    let key = Key::new("a/b").unwrap();
    store.put(&key, "1".into(), &Expect::Absent).await.unwrap();
    let listed = list_all(&store, &Prefix::root()).await.unwrap();
    let first = listed[0].version.clone();
    assert_eq!(first.guard(), None);

    let expect = Expect::Version(first);
    let second = store.put(&key, "2".into(), &expect).await.unwrap();
    assert!(second.guard().is_some());
    let stale = store.put(&key, "late".into(), &expect).await;
    assert!(matches!(stale, Err(Error::Conflict { .. })), "{stale:?}");

    let requests = gcs.requests();
    store
        .put(&key, "3".into(), &Expect::Version(second))
        .await
        .unwrap();
    assert_eq!(
        gcs.requests(),
        requests + 1,
        "no read with a version from a write"
    );

    store.delete(&key).await.unwrap();
    let gone = store.put(&key, "late".into(), &expect).await;
    assert!(matches!(gone, Err(Error::Conflict { .. })), "{gone:?}");
    assert_eq!(gcs.names(), [""; 0]);
}

/// Anyone can make a version, and its text goes into a header.
#[tokio::test]
async fn a_version_that_no_service_can_have_named_is_a_conflict() {
    let gcs = Gcs::start("bucket").await;
    let store = open(&gcs).await;
    let key = Key::new("a").unwrap();
    let first = store.put(&key, "1".into(), &Expect::Absent).await.unwrap();
    for tag in ["", "*", "a\r\nx-goog-if-generation-match: 1", "ü"] {
        let expect = Expect::Version(Version::new(tag));
        let put = store.put(&key, "late".into(), &expect).await;
        assert!(
            matches!(put, Err(Error::Conflict { .. })),
            "{tag:?}: {put:?}"
        );
        let expect = Expect::Version(Version::with_guard(first.tag(), tag));
        let put = store.put(&key, "late".into(), &expect).await;
        assert!(
            matches!(put, Err(Error::Conflict { .. })),
            "{tag:?}: {put:?}"
        );
        let read = store.get_if_changed(&key, &Version::new(tag)).await;
        assert!(matches!(read, Ok(Change::Changed(_))), "{tag:?}: {read:?}");
    }
}

/// Consoles make folder markers, and people put files anywhere.
#[tokio::test]
async fn foreign_objects_are_left_out_of_listings() {
    let gcs = Gcs::start("bucket").await;
    let store = open(&gcs).await;
    for name in [
        "ns/",
        "ns/nodes/",
        "ns//x",
        "ns/a b",
        "ns/.hidden",
        "ns/ü",
        "ns/../x",
        "/ns/x",
    ] {
        gcs.insert(name, b"foreign");
    }
    // More than a whole page before the first key.
    for index in 0..1100 {
        gcs.insert(&format!("ns/ {index}"), b"foreign");
    }
    let keys = ["ns/nodes/1", "ns/nodes-1", "ns/z"].map(|key| Key::new(key).unwrap());
    for key in &keys {
        store
            .put(key, "ours".into(), &Expect::Absent)
            .await
            .unwrap();
    }
    let prefix = Prefix::new("ns").unwrap();
    let listed = list_all(&store, &prefix).await.unwrap();
    let listed: Vec<&str> = listed.iter().map(|entry| entry.key.as_str()).collect();
    assert_eq!(listed, ["ns/nodes-1", "ns/nodes/1", "ns/z"]);
}

#[tokio::test]
async fn a_page_of_a_listing_is_one_request() {
    let gcs = Gcs::start("bucket").await;
    let store = open(&gcs).await;
    for index in 0..2500 {
        gcs.insert(&format!("ns/{index:04}"), b"x");
    }
    let before = gcs.requests();
    let prefix = Prefix::new("ns").unwrap();
    let after = Key::new("ns/1200").unwrap();
    let page = store.list(&prefix, Some(&after)).await.unwrap();
    assert_eq!((page.entries.len(), page.more), (1000, true));
    assert_eq!(page.entries[0].key.as_str(), "ns/1201");
    assert_eq!(gcs.requests(), before + 1);
    assert_eq!(list_all(&store, &prefix).await.unwrap().len(), 2500);
    assert_eq!(gcs.requests(), before + 4);
}

#[tokio::test]
async fn what_was_put_there_by_hand_can_be_read() {
    let gcs = Gcs::start("bucket").await;
    let store = open(&gcs).await;
    gcs.insert("small", b"by hand");
    let key = Key::new("small").unwrap();
    assert_eq!(store.get(&key).await.unwrap().unwrap().value, "by hand");

    // More than a value and the longest stamp.
    gcs.insert("large", &vec![0; tenure_store::VALUE_BYTES_MAX + 1_024]);
    let large = store.get(&Key::new("large").unwrap()).await;
    let error = large.map(drop).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
}
