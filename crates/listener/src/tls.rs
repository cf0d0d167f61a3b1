//! TLS of a listener: certificates from files, which are read again while the server runs.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tenure_kernel::stream::Hash;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
        server::{NoClientAuth, WebPkiClientVerifier, danger::ClientCertVerifier},
    },
};

/// Whether clients have to show a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificates {
    /// A certificate that is shown is verified.
    Optional,
    /// A client without a certificate is refused.
    Required,
}

/// Where certificates are, as PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate of the server, and those between it and its root.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// The roots of certificates of clients.
    pub client_ca: Option<(PathBuf, ClientCertificates)>,
}

/// Files that no TLS can be had with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTls {
    /// It cannot be read.
    #[error("{file} cannot be read: {why}")]
    File {
        /// Which.
        file: String,
        /// Why.
        why: String,
    },
    /// There is something else in it.
    #[error("{file} holds no {what} in PEM form; it begins with -----BEGIN {begins}-----")]
    Nothing {
        /// Which.
        file: String,
        /// What was looked for.
        what: &'static str,
        /// How it would begin.
        begins: &'static str,
    },
    /// The key is of another certificate.
    #[error("the key in {key} does not belong to the first certificate in {certificate}")]
    OtherKey {
        /// The file with the certificate.
        certificate: String,
        /// The file with the key.
        key: String,
    },
    /// It cannot be used.
    #[error("{file} cannot be used: {why}")]
    Unusable {
        /// Which.
        file: String,
        /// Why.
        why: String,
    },
}

/// TLS of a listener. New files are used for new connections; while they are bad, the old ones are.
pub struct Tls {
    files: TlsFiles,
    reload_every: Duration,
    current: Mutex<Current>,
}

struct Current {
    /// Of the files that were tried last.
    digest: Option<Hash>,
    config: Arc<ServerConfig>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads the files.
    pub fn open(files: TlsFiles, reload_every: Duration) -> Result<Self, BadTls> {
        let pems = Pems::read(&files)?;
        let current = Current { digest: Some(pems.digest()), config: pems.config(&files)? };
        Ok(Tls { files, reload_every, current: Mutex::new(current) })
    }

    /// How often the files are looked at.
    pub fn reload_every(&self) -> Duration {
        self.reload_every
    }

    /// Reads the files again and uses them if they have changed. What is wrong with them is logged, once.
    pub fn refresh(&self) {
        let read = Pems::read(&self.files);
        let digest = read.as_ref().ok().map(Pems::digest);
        let mut current = self.current();
        if digest == current.digest {
            return;
        }
        current.digest = digest;
        let certificate = self.files.certificate.display();
        match read.and_then(|pems| pems.config(&self.files)) {
            Ok(config) => {
                current.config = config;
                tracing::info!(%certificate, "new certificates are used from now on");
            }
            Err(e) => {
                tracing::error!(%certificate, error = %e, "the new certificates cannot be used; the old ones stay in use");
            }
        }
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.current().config.clone())
    }

    fn current(&self) -> std::sync::MutexGuard<'_, Current> {
        // Nothing panics under this lock.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the files hold.
struct Pems {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl Pems {
    fn read(files: &TlsFiles) -> Result<Self, BadTls> {
        let read = |path: &Path| {
            std::fs::read(path).map_err(|e| BadTls::File { file: shown(path), why: e.to_string() })
        };
        Ok(Pems {
            certificate: read(&files.certificate)?,
            key: read(&files.key)?,
            client_ca: files.client_ca.as_ref().map(|(path, _)| read(path)).transpose()?,
        })
    }

    fn digest(&self) -> Hash {
        let ca = self.client_ca.as_deref().unwrap_or_default();
        let parts = [&*self.certificate, &self.key, ca].map(|part| Hash::of(part).to_string());
        Hash::of(parts.concat().as_bytes())
    }

    fn config(&self, files: &TlsFiles) -> Result<Arc<ServerConfig>, BadTls> {
        let chain = certificates(&self.certificate, &files.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(|_| BadTls::Nothing {
            file: shown(&files.key),
            what: "private key",
            begins: "PRIVATE KEY",
        })?;
        let provider = Arc::new(ring::default_provider());
        let unusable = |path: &Path, why: &dyn fmt::Display| BadTls::Unusable {
            file: shown(path),
            why: why.to_string(),
        };
        let clients: Arc<dyn ClientCertVerifier> = match (&files.client_ca, &self.client_ca) {
            (Some((path, wanted)), Some(pem)) => {
                let mut roots = RootCertStore::empty();
                for root in certificates(pem, path)? {
                    roots.add(root).map_err(|e| unusable(path, &e))?;
                }
                let mut verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
                if *wanted == ClientCertificates::Optional {
                    verifier = verifier.allow_unauthenticated();
                }
                verifier.build().map_err(|e| unusable(path, &e))?
            }
            _ => Arc::new(NoClientAuth),
        };
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| unusable(&files.certificate, &e))?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain, key);
        let mut config = config.map_err(|e| match e {
            rustls::Error::InconsistentKeys(_) => {
                BadTls::OtherKey { certificate: shown(&files.certificate), key: shown(&files.key) }
            }
            other => unusable(&files.certificate, &other),
        })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

fn certificates(pem: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>, BadTls> {
    let nothing =
        || BadTls::Nothing { file: shown(path), what: "certificate", begins: "CERTIFICATE" };
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|_| nothing())?;
    if all.is_empty() { Err(nothing()) } else { Ok(all) }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
