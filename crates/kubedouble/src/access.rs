//! Who may do what, and the files with which a client finds the server.

use crate::{cluster::Cluster, requests::Permission, resource::Place, status::Refusal};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    },
};

/// The rules of who may do what.
#[derive(Default)]
pub(crate) struct Access {
    /// If set, one of these has to come with each request.
    pub(crate) tokens: Option<BTreeSet<String>>,
    /// If set, nothing else is allowed.
    pub(crate) only: Option<BTreeSet<Permission>>,
    /// Verb and resource, taken away.
    pub(crate) forbidden: BTreeSet<(String, String)>,
    /// The same, of requests for all namespaces at once.
    pub(crate) forbidden_everywhere: BTreeSet<(String, String)>,
}

const USER: &str = "system:serviceaccount:default:tenure";

impl Access {
    pub(crate) fn who(&self, header: Option<&str>) -> Result<(), Refusal> {
        let Some(tokens) = &self.tokens else { return Ok(()) };
        let token = header.and_then(|h| h.strip_prefix("Bearer ")).unwrap_or_default();
        if tokens.contains(token) { Ok(()) } else { Err(Refusal::unauthorized()) }
    }

    pub(crate) fn allows(&self, verb: &str, group: &str, resource: &str) -> bool {
        let fits = |rule: &str, is: &str| rule == "*" || rule == is;
        !self.forbidden.iter().any(|(v, r)| fits(v, verb) && fits(r, resource))
            && self.only.as_ref().is_none_or(|only| {
                only.iter().any(|(g, r, v)| fits(g, group) && fits(r, resource) && fits(v, verb))
            })
    }

    pub(crate) fn may(&self, verb: &str, place: &Place) -> Result<(), Refusal> {
        let (group, resource) = (place.resource.group, place.role_name());
        let everywhere = place.namespace.is_none()
            && self.forbidden_everywhere.contains(&(verb.to_owned(), resource.to_string()));
        if self.allows(verb, group, &resource) && !everywhere {
            return Ok(());
        }
        let name = place.name.as_deref().unwrap_or_default();
        Err(Refusal::forbidden(USER, verb, &resource, group, place.namespace.as_deref(), name))
    }
}

/// A certificate authority of this cluster's own, and a certificate for loopback.
pub(crate) struct Tls {
    pub(crate) authority_pem: String,
    pub(crate) acceptor: TlsAcceptor,
}

impl Tls {
    pub(crate) fn make() -> Self {
        // Nothing here depends on input: it works, or the crypto library is broken.
        Self::try_make().expect("a certificate for loopback")
    }

    fn try_make() -> Result<Self, Box<dyn std::error::Error>> {
        use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.distinguished_name.push(DnType::CommonName, "kubernetes");
        let authority_key = KeyPair::generate()?;
        let authority_pem = authority.self_signed(&authority_key)?.pem();
        let issuer = Issuer::new(authority, authority_key);
        let names = ["127.0.0.1", "localhost", "kubernetes.default.svc"].map(str::to_owned);
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new(names)?.signed_by(&key, &issuer)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)?;
        Ok(Tls { authority_pem, acceptor: TlsAcceptor::from(Arc::new(config)) })
    }
}

/// What a pod inside of the cluster would find.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InCluster {
    /// The directory, laid out as `/var/run/secrets/kubernetes.io/serviceaccount`: `token`, `ca.crt`, `namespace`.
    pub directory: PathBuf,
    /// `KUBERNETES_SERVICE_HOST`.
    pub host: String,
    /// `KUBERNETES_SERVICE_PORT`.
    pub port: u16,
}

impl InCluster {
    /// The variables of a pod's environment.
    pub fn env(&self) -> [(&'static str, String); 2] {
        [
            ("KUBERNETES_SERVICE_HOST", self.host.clone()),
            ("KUBERNETES_SERVICE_PORT", self.port.to_string()),
        ]
    }

    /// The certificate authority's file.
    pub fn authority_file(&self) -> PathBuf {
        self.directory.join("ca.crt")
    }

    /// The token's file.
    pub fn token_file(&self) -> PathBuf {
        self.directory.join("token")
    }
}

/// Files for clients.
impl Cluster {
    /// Writes a kubeconfig without credentials, and says where.
    ///
    /// # Panics
    /// If the file can not be written.
    pub fn kubeconfig(&self, directory: &Path) -> PathBuf {
        self.write_kubeconfig(directory, "")
    }

    /// Writes a kubeconfig with a bearer token. The server asks for it from now on.
    ///
    /// # Panics
    /// If the file can not be written.
    pub fn kubeconfig_with_token(&self, directory: &Path, token: &str) -> PathBuf {
        self.require_token(token);
        self.write_kubeconfig(directory, &format!("token: {token}"))
    }

    fn write_kubeconfig(&self, directory: &Path, user: &str) -> PathBuf {
        let authority = match self.authority_pem() {
            Some(pem) => {
                format!("\n    certificate-authority-data: {}", STANDARD.encode(pem))
            }
            None => String::new(),
        };
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: double\nclusters:\n- name: double\n  cluster:\n    \
             server: {}{authority}\ncontexts:\n- name: double\n  context:\n    cluster: double\n    user: double\n    \
             namespace: default\nusers:\n- name: double\n  user: {{{user}}}\n",
            self.url()
        );
        let path = directory.join("kubeconfig");
        std::fs::write(&path, text).expect("a directory that can be written to");
        path
    }

    /// Writes the files of a service account. The server asks for the token from now on. A real pod has TLS:
    /// use it with `Cluster::start_tls`.
    ///
    /// # Panics
    /// If the files can not be written, or the server speaks no TLS.
    pub fn in_cluster(&self, directory: &Path, token: &str) -> InCluster {
        self.require_token(token);
        let authority = self.authority_pem().expect("in_cluster needs Cluster::start_tls");
        for (name, text) in [("token", token), ("ca.crt", authority), ("namespace", "default")] {
            std::fs::write(directory.join(name), text).expect("a directory that can be written to");
        }
        InCluster {
            directory: directory.to_owned(),
            host: "127.0.0.1".to_owned(),
            port: self.port(),
        }
    }
}
