//! HTTPS: certificate and key from files, by rustls with ring.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::Error;

/// Where the certificate and its key are. Read when the server starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// The certificate, and those between it and the authority, in PEM.
    pub certificate: PathBuf,
    /// Its private key, in PEM.
    pub key: PathBuf,
    /// Certificates to trust when this server forwards to another, in PEM. Default: the public ones.
    pub authority: Option<PathBuf>,
}

impl Tls {
    pub(crate) fn server(&self) -> Result<Arc<ServerConfig>, Error> {
        let certificates = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|error| unusable(&self.key, &error, "the key has to be a file in PEM form"))?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .and_then(|builder| {
                builder
                    .with_no_client_auth()
                    .with_single_cert(certificates, key)
            })
            .map_err(|error| {
                let hint = "the key has to be that of the first certificate in the file";
                unusable(&self.certificate, &error, hint)
            })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

/// What is trusted when another server is asked.
pub(crate) fn client(tls: Option<&Tls>) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    match tls.and_then(|tls| tls.authority.as_deref()) {
        Some(path) => {
            for certificate in certificates(path)? {
                roots
                    .add(certificate)
                    .map_err(|error| unusable(path, &error, "it has to be an authority's"))?;
            }
        }
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
    }
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("ring has the default versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let hint = "it has to be a file of certificates in PEM form";
    let certificates: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| unusable(path, &error, hint))?;
    if certificates.is_empty() {
        return Err(unusable(path, &"there is no certificate in it", hint));
    }
    Ok(certificates)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn unusable(path: &Path, error: &impl std::fmt::Display, hint: &str) -> Error {
    Error::Tls {
        what: format!("cannot use {}: {error}", path.display()),
        hint: hint.to_owned(),
    }
}
