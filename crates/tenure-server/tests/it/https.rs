//! Brokers that speak HTTPS with each other, with certificates of a private authority.

use std::path::Path;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use reqwest::{Certificate, StatusCode};
use serde_json::json;
use tenure_server::Tls;

use crate::support::{Broker, PATIENCE, client, config, problem, store_in, until};

/// An authority, and its certificate in PEM.
fn authority() -> (CertifiedIssuer<'static, KeyPair>, String) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let pem = authority.pem();
    (authority, pem)
}

/// Writes a certificate for this host, issued by that authority, to files.
fn certificate(folder: &Path, name: &str, by: &CertifiedIssuer<'_, KeyPair>) -> Tls {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let signed = params.signed_by(&key, by).unwrap();
    let file = |kind: &str| folder.join(format!("{name}.{kind}.pem"));
    std::fs::write(file("cert"), signed.pem()).unwrap();
    std::fs::write(file("key"), key.serialize_pem()).unwrap();
    Tls {
        certificate: file("cert"),
        key: file("key"),
        authority: Some(folder.join("authority.pem")),
    }
}

#[tokio::test]
async fn a_standby_forwards_over_https_to_whom_its_authority_vouches_for() {
    // Installs the TLS provider.
    drop(client());
    let folder = tempfile::tempdir().unwrap();
    let ((ours, pem), (strange, strange_pem)) = (authority(), authority());
    std::fs::write(folder.path().join("authority.pem"), &pem).unwrap();
    let trusted = [pem, strange_pem].map(|pem| Certificate::from_pem(pem.as_bytes()).unwrap());
    let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE);
    let client = client.tls_certs_only(trusted).build().unwrap();
    for (name, of_leader) in [("known", &ours), ("strange", &strange)] {
        let store = store_in(&folder.path().join(name));
        let start = async |name: &str, by: &CertifiedIssuer<'_, KeyPair>| {
            let mut config = config(&store);
            config.tls = Some(certificate(folder.path(), name, by));
            config.limits.hold_timeout = Duration::from_millis(300);
            let mut broker = Broker::started(config).await;
            broker.http = client.clone();
            broker
        };
        let leader = start("one", of_leader).await;
        leader.serving().await;
        let standby = start("two", &ours).await;
        assert!(standby.url.starts_with("https://"), "{}", standby.url);
        until(async || standby.handle.queue().election().leader()).await;
        if name == "strange" {
            let answer = standby.post("/v1/jobs", json!({"type":"t"})).await;
            problem(&answer, StatusCode::SERVICE_UNAVAILABLE, "no_leader", None);
            let detail = answer.1["detail"].as_str().unwrap();
            assert!(
                detail.contains("certificate cannot be verified"),
                "{detail}"
            );
            let (_, jobs) = leader.get("/v1/jobs").await;
            assert_eq!(jobs["jobs"], json!([]));
            continue;
        }
        let ready = (200, json!({"status":"standby"}));
        until(async || (standby.get("/readyz").await == ready).then_some(())).await;
        let id = standby.submit("t").await;
        let claimed = standby.claim().await;
        assert_eq!(claimed["id"], json!(id));
        let done = json!({ "token": claimed["token"] });
        let path = format!("/v1/jobs/{id}/complete");
        assert_eq!(standby.post(&path, done).await.0, 200);
        let (_, job) = leader.get(&format!("/v1/jobs/{id}")).await;
        assert_eq!(job["state"], "completed");
    }
}
