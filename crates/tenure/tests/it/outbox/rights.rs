//! The rights that the documentation names are enough, and what an administrator changes stops nobody.

use super::*;
use tenure::ClaimFence;

/// A database of PostgreSQL with an outbox.
async fn postgres() -> Option<(Ground, Any)> {
    let ground = Ground::on_server(&url("TENURE_TEST_POSTGRES")?).await;
    ground.database().create().await.unwrap();
    let any = ground.connect().await;
    Some((ground, any))
}

#[tokio::test]
async fn the_rights_that_are_documented_are_enough() {
    let Some((_ground, mut any)) = postgres().await else {
        return;
    };
    let (shop, worker) = (uuid::Uuid::new_v4(), uuid::Uuid::new_v4());
    let (shop, worker) = (
        format!("shop_{}", shop.simple()),
        format!("worker_{}", worker.simple()),
    );
    for grant in [
        format!("CREATE ROLE {shop}"),
        format!("CREATE ROLE {worker}"),
        format!("GRANT INSERT ON tenure_outbox TO {shop}"),
        format!("GRANT SELECT, INSERT, UPDATE, DELETE ON tenure_outbox_groups TO {shop}"),
        format!("GRANT SELECT ON SEQUENCE tenure_outbox_waiting TO {shop}"),
        format!("GRANT SELECT, INSERT, UPDATE ON tenure_claims, tenure_claim_results TO {worker}"),
        format!("GRANT INSERT ON tenure_outbox TO {worker}"),
        format!("GRANT SELECT ON SEQUENCE tenure_outbox_waiting TO {worker}"),
    ] {
        any.run(&grant).await;
    }
    any.run(&format!("SET ROLE {shop}")).await;
    any.run("SELECT tenure_submit('t', id => 'a')").await;
    any.run("SELECT tenure_submit('t', \"group\" => 'g', delay => '1 minute', priority => 3)")
        .await;
    any.run("INSERT INTO tenure_outbox (type, group_key) VALUES ('t', 'g')")
        .await;
    any.run(&format!("SET ROLE {worker}")).await;
    let Any::Postgres(connection) = &mut any else {
        unreachable!("it is PostgreSQL");
    };
    let result = || Some(Payload::new("7").unwrap());
    for token in ["1a-0badc0de", "1b-0badc0de"] {
        let id = JobId::new("j").unwrap();
        let claim = ClaimFence::new(id, token.parse().unwrap(), TTL);
        let work = async |_: &mut sqlx::PgConnection| Ok::<_, tenure::ClaimError>(result());
        let done = claim.once_and_complete(connection, work).await.unwrap();
        assert_eq!(done, result());
    }
    any.run("RESET ROLE").await;
    let count = "SELECT count(*) FROM tenure_outbox WHERE id = 'a' OR priority = 3 OR type = 'tenure/complete'";
    assert_eq!(any.number(count).await, 3);
    for role in [shop, worker] {
        any.run(&format!("DROP OWNED BY {role}")).await;
        any.run(&format!("DROP ROLE {role}")).await;
    }
}

#[tokio::test]
async fn a_number_that_fits_no_dead_row_holds_up_no_other() {
    let Some((ground, mut any)) = postgres().await else {
        return;
    };
    any.run(
        "ALTER TABLE tenure_outbox ALTER COLUMN priority TYPE integer, ALTER COLUMN max_attempts TYPE bigint",
    )
    .await;
    for values in ["'a', 99999, NULL", "'b', 0, -99999999999", "'good', 0, 1"] {
        let insert = "INSERT INTO tenure_outbox (type, id, priority, max_attempts) VALUES ('t',";
        any.run(&format!("{insert} {values})")).await;
    }
    let home = Home::new().await;
    home.relay_to_queue(ground.database()).await;
    until("the good one is enqueued", async || home.total() == 1).await;
    let dead = "SELECT count(*) FROM tenure_outbox_dead WHERE (priority = 32767 AND max_attempts IS NULL) OR max_attempts = -2147483647";
    until("the others are dead", async || any.number(dead).await == 2).await;
    home.end().await;
}

#[tokio::test]
async fn a_server_that_is_not_there_is_said_to_be_so() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = port.local_addr().unwrap();
    drop(port);
    let database = Database::new(&format!("postgres://u@{address}/d")).unwrap();
    let error = database.status().await.unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("refused"), "{source}");
}
