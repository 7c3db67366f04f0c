//! HTTPS with rustls and ring; certificate and key come from files.
//!
//! The files are read again every few seconds, so that a certificate can be renewed while the server runs. Their
//! content is compared: file times are too coarse, and Kubernetes replaces mounted files behind links. If new files
//! cannot be used, the present certificate stays in use, and the log says why.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use ring::digest::{Context, SHA256};
use rustls::crypto::{CryptoProvider, ring as by_ring};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::Error;

/// How often the files are read.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// The files of the certificate and its key. Both are read again while the server runs; the authority is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// The certificate and its intermediates, in PEM.
    pub certificate: PathBuf,
    /// Its private key, in PEM.
    pub key: PathBuf,
    /// Certificates to trust when this server forwards to another, in PEM. Default: the public ones.
    pub authority: Option<PathBuf>,
}

/// The certificate that new connections get. Existing connections keep theirs.
#[derive(Debug)]
pub(crate) struct Shown(RwLock<Arc<CertifiedKey>>);

impl Shown {
    fn set(&self, certificate: CertifiedKey) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(certificate);
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let shown = self.0.read().unwrap_or_else(PoisonError::into_inner);
        Some(shown.clone())
    }
}

/// Keeps the certificate in use up to date with the files.
#[derive(Debug)]
pub(crate) struct Renewal {
    files: Tls,
    shown: Arc<Shown>,
    /// The digest of the files' content that is in use.
    digest: [u8; 32],
    trouble: Option<Trouble>,
}

/// Why the files cannot be used, and in how many readings in a row.
#[derive(Debug)]
struct Trouble {
    what: String,
    looks: u32,
}

impl Tls {
    /// Reads the files; returns the server's configuration and its renewal.
    pub(crate) fn server(&self) -> Result<(Arc<ServerConfig>, Renewal), Error> {
        let content = Content::read(self)?;
        let shown = Arc::new(Shown(RwLock::new(Arc::new(content.certified(self)?))));
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("ring has the default versions")
            .with_no_client_auth()
            .with_cert_resolver(shown.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let renewal = Renewal {
            files: self.clone(),
            shown,
            digest: content.digest(),
            trouble: None,
        };
        Ok((Arc::new(config), renewal))
    }
}

impl Renewal {
    /// Reads the files again and again until it is told to stop.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        while let Some(()) = stop.run_until_cancelled(sleep(LOOK_INTERVAL)).await {
            let looked = tokio::task::spawn_blocking(move || {
                self.look();
                self
            });
            self = match looked.await {
                Ok(renewal) => renewal,
                // The runtime ends.
                Err(_) => return,
            };
        }
    }

    fn look(&mut self) {
        match self.renew() {
            Ok(is_new) => {
                self.trouble = None;
                if is_new {
                    let file = self.files.certificate.display();
                    tracing::info!(%file, "the certificate was renewed: new connections use the new one");
                }
            }
            Err(error) => self.fail(error.to_string()),
        }
    }

    /// Uses the files' content if it is new.
    fn renew(&mut self) -> Result<bool, Error> {
        let content = Content::read(&self.files)?;
        let digest = content.digest();
        if digest == self.digest {
            return Ok(false);
        }
        self.shown.set(content.certified(&self.files)?);
        self.digest = digest;
        Ok(true)
    }

    /// Logs a problem once, and only if it persists: two files cannot be replaced at the same instant.
    fn fail(&mut self, what: String) {
        let before = self.trouble.take().filter(|trouble| trouble.what == what);
        let looks = before.map_or(1, |trouble| trouble.looks.saturating_add(1));
        if looks == 2 {
            tracing::error!(
                error = what,
                "the certificate was not renewed: the old one stays in use"
            );
        }
        self.trouble = Some(Trouble { what, looks });
    }
}

/// The content of the files.
struct Content {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl Content {
    fn read(files: &Tls) -> Result<Self, Error> {
        let read = |path: &Path| {
            let hint = "the broker needs permission to read it";
            std::fs::read(path).map_err(|error| unusable(path, &error, hint))
        };
        Ok(Self {
            certificate: read(&files.certificate)?,
            key: read(&files.key)?,
        })
    }

    fn certified(&self, files: &Tls) -> Result<CertifiedKey, Error> {
        let certificates = certificates(&files.certificate, &self.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|error| unusable(&files.key, &error, "the key must be a PEM file"))?;
        CertifiedKey::from_der(certificates, key, &provider()).map_err(|error| {
            let hint = "the key must belong to the first certificate in the file";
            unusable(&files.certificate, &error, hint)
        })
    }

    fn digest(&self) -> [u8; 32] {
        let mut context = Context::new(&SHA256);
        context.update(&(self.certificate.len() as u64).to_le_bytes());
        context.update(&self.certificate);
        context.update(&self.key);
        let digest = context.finish();
        digest.as_ref().try_into().expect("it has 32 bytes")
    }
}

/// The certificates to trust when forwarding to another server.
pub(crate) fn client(tls: Option<&Tls>) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    match tls.and_then(|tls| tls.authority.as_deref()) {
        Some(path) => {
            let hint = "it must be the certificate of an authority";
            let content = std::fs::read(path).map_err(|error| unusable(path, &error, hint))?;
            for certificate in certificates(path, &content)? {
                roots
                    .add(certificate)
                    .map_err(|error| unusable(path, &error, hint))?;
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

fn certificates(path: &Path, content: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let hint = "it must be a PEM file with certificates";
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(content)
        .collect::<Result<_, _>>()
        .map_err(|error| unusable(path, &error, hint))?;
    if certificates.is_empty() {
        return Err(unusable(path, &"there is no certificate in it", hint));
    }
    Ok(certificates)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(by_ring::default_provider())
}

fn unusable(path: &Path, error: &impl std::fmt::Display, hint: &str) -> Error {
    Error::Tls {
        what: format!("cannot use {}: {error}", path.display()),
        hint: hint.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// A new certificate with its key, in PEM.
    fn made() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    fn write(folder: &TempDir, (certificate, key): &(String, String)) -> Tls {
        let files = Tls {
            certificate: folder.path().join("certificate.pem"),
            key: folder.path().join("key.pem"),
            authority: None,
        };
        std::fs::write(&files.certificate, certificate).unwrap();
        std::fs::write(&files.key, key).unwrap();
        files
    }

    #[track_caller]
    fn shows(renewal: &mut Renewal, (certificate, _): &(String, String)) {
        renewal.look();
        let expected = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
        let shown = renewal.shown.0.read().unwrap();
        assert_eq!(shown.cert, [expected]);
    }

    #[test]
    fn what_is_in_the_files_is_shown_if_it_can_be_used() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (made(), made());
        let files = write(&folder, &first);
        let (_, mut renewal) = files.server().unwrap();
        shows(&mut renewal, &first);
        // First half of a renewal, then all of it.
        std::fs::write(&files.certificate, &second.0).unwrap();
        shows(&mut renewal, &first);
        std::fs::write(&files.key, &second.1).unwrap();
        shows(&mut renewal, &second);
        for wrong in ["", "no certificate", &second.1] {
            std::fs::write(&files.certificate, wrong).unwrap();
            shows(&mut renewal, &second);
        }
        std::fs::remove_file(&files.key).unwrap();
        shows(&mut renewal, &second);
        write(&folder, &first);
        shows(&mut renewal, &first);
    }

    #[test]
    fn trouble_counts_when_it_stays_and_is_forgotten_when_it_is_over() {
        let folder = tempfile::tempdir().unwrap();
        let pair = made();
        let files = write(&folder, &pair);
        let (_, mut renewal) = files.server().unwrap();
        std::fs::write(&files.key, "no key").unwrap();
        for looks in 1..=3 {
            renewal.look();
            let trouble = renewal.trouble.as_ref().unwrap();
            assert_eq!(trouble.looks, looks);
            assert!(trouble.what.contains("key.pem"), "{trouble:?}");
        }
        write(&folder, &pair);
        renewal.look();
        assert!(renewal.trouble.is_none());
    }
}
