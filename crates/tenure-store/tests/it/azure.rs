//! Azure, on its emulator.

use tenure_store::Error;
use tenure_store::conformance::{Options, Suite};
use tenure_store::engine::object::Objects;
use tenure_testkit::recording::Recording;

use crate::support::{self, Log};

#[tokio::test(flavor = "multi_thread")]
async fn azurite_keeps_the_contract() {
    if let Some(url) = support::url("TENURE_TEST_AZURE") {
        let store = tenure_store::open(&url).await.unwrap();
        let suite = Suite::new(store, Options::default());
        suite.run(|_| {}).await.assert_passed();
    }
}

#[tokio::test]
async fn a_missing_container_is_refused_with_a_hint() {
    let Some(url) = support::url("TENURE_TEST_AZURE") else {
        return;
    };
    let url = url.replace("tenure-test", "tenure-test-missing");
    let error = tenure_store::open(&url).await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(
        format!("{error:?}").contains("ContainerNotFound"),
        "{error:?}"
    );
    assert!(
        error.hint().contains("create the container"),
        "{}",
        error.hint()
    );
}

/// Checked because a shared access signature is part of every URL, so every error and log line
/// about a request could hold it.
#[tokio::test]
async fn a_signature_never_gets_into_errors_or_logs() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_writer(log.clone())
        .finish();
    // This test's runtime has one thread, so everything it does is logged here.
    let recording = Recording::start(subscriber);

    let mut texts = Vec::new();
    let mut note = |error: &Error| {
        texts.push(format!("{error} {error:?} {}", error.hint()));
        let mut cause = std::error::Error::source(error);
        while let Some(error) = cause {
            texts.push(format!("{error} {error:?}"));
            cause = error.source();
        }
    };
    let unreachable = "az://container?endpoint=http://127.0.0.1:1/account".to_owned();
    let refused = support::url("TENURE_TEST_AZURE");
    for url in [Some(unreachable), refused].into_iter().flatten() {
        let variables = [
            ("AZURE_STORAGE_ACCOUNT_NAME", "devstoreaccount1"),
            (
                "AZURE_STORAGE_SAS_TOKEN",
                "?sv=2022-11-02&ss=b&srt=sco&sp=rwdl&se=2099-01-01T00:00:00Z&sig=hunter2%3D",
            ),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let url = url.parse().unwrap();
        note(&Objects::open_with(&url, variables).await.unwrap_err());
    }
    drop(recording);

    texts.push(log.text());
    assert!(log.text().contains("TRACE"), "the log has everything");
    for text in texts {
        for secret in ["hunter2", "sig=", "sv=2022"] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }
}
