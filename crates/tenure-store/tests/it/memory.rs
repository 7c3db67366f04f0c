use std::sync::Arc;

use tenure_store::conformance::{Options, Suite};
use tenure_store::engine::memory::Memory;

#[tokio::test]
async fn keeps_the_contract() {
    Suite::new(Arc::new(Memory::new()), Options::default())
        .run(|_| {})
        .await
        .assert_passed();
}
