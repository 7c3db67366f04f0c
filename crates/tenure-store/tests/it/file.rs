use std::sync::Arc;

use tenure_store::conformance::{Options, Suite};
use tenure_store::engine::file::File;

#[tokio::test]
async fn keeps_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    let store = File::open(folder.path()).await.unwrap();
    Suite::new(Arc::new(store), Options::default())
        .run(|check| {
            println!(
                "{:?} {} {} {:?}",
                check.verdict, check.name, check.seen, check.took
            )
        })
        .await
        .assert_passed();
}
