//! Certificates of a test's own authorities.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};
use std::path::{Path, PathBuf};

/// Signs certificates.
pub struct Authority {
    /// Its certificate, for whoever trusts it.
    pub pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key.
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// The key.
    pub key: String,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { pem, issuer: Issuer::new(params, key) }
    }

    /// A server's.
    pub fn server(&self, names: &[&str]) -> Pair {
        self.sign(names, ExtendedKeyUsagePurpose::ServerAuth, false)
    }

    /// A server's that was valid once.
    pub fn expired(&self, names: &[&str]) -> Pair {
        self.sign(names, ExtendedKeyUsagePurpose::ServerAuth, true)
    }

    /// A client's.
    pub fn client(&self, name: &str) -> Pair {
        self.sign(&[name], ExtendedKeyUsagePurpose::ClientAuth, false)
    }

    fn sign(&self, names: &[&str], purpose: ExtendedKeyUsagePurpose, expired: bool) -> Pair {
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages = vec![purpose];
        if expired {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2021, 1, 1);
        }
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Pair { certificate, key: key.serialize_pem() }
    }
}

impl Pair {
    /// Writes both files.
    pub fn write(&self, dir: &Path) -> (PathBuf, PathBuf) {
        let (certificate, key) = (dir.join("tls.crt"), dir.join("tls.key"));
        std::fs::write(&certificate, &self.certificate).unwrap();
        std::fs::write(&key, &self.key).unwrap();
        (certificate, key)
    }
}
