//! TLS of clients: whom they trust, what they show, and what to do about a connection that was not made.

use reqwest::{Certificate, ClientBuilder, Identity};
use rustls::{AlertDescription, CertificateError, Error as TlsError};
use std::{
    fmt, io,
    path::{Path, PathBuf},
};

/// What a client trusts and shows. The default trusts the public authorities and shows nothing.
#[derive(Clone, Default)]
pub struct ClientTls {
    roots: Vec<Certificate>,
    identity: Option<Identity>,
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls")
            .field("roots", &self.roots.len())
            .field("identity", &self.identity.is_some())
            .finish()
    }
}

/// Where a client's certificates are, as PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientTlsFiles {
    /// Roots that are trusted, in place of the public authorities.
    pub ca: Option<PathBuf>,
    /// A certificate that is shown to servers that ask for one.
    pub certificate: Option<PathBuf>,
    /// The private key of the certificate.
    pub key: Option<PathBuf>,
}

/// Files that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadClientTls {
    /// It cannot be read.
    #[error("{file} cannot be read: {why}")]
    File {
        /// Which.
        file: String,
        /// Why.
        why: String,
    },
    /// There is something else in it.
    #[error("{file} holds no {what} in PEM form")]
    Nothing {
        /// Which.
        file: String,
        /// What was looked for.
        what: &'static str,
    },
    /// One file without the other.
    #[error(
        "a client certificate needs its private key, and the key its certificate: name both files, or none"
    )]
    Half,
}

impl ClientTls {
    /// Reads the files.
    pub fn read(files: &ClientTlsFiles) -> Result<Self, BadClientTls> {
        let roots = match &files.ca {
            None => Vec::new(),
            Some(path) => {
                let nothing = || BadClientTls::Nothing { file: shown(path), what: "certificate" };
                let roots = Certificate::from_pem_bundle(&pem(path)?).map_err(|_| nothing())?;
                if roots.is_empty() {
                    return Err(nothing());
                }
                roots
            }
        };
        let identity = match (&files.certificate, &files.key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => {
                let mut both = pem(key)?;
                both.push(b'\n');
                both.extend(pem(certificate)?);
                let file = format!("{} or {}", shown(certificate), shown(key));
                let what = "certificate and its private key";
                let identity =
                    Identity::from_pem(&both).map_err(|_| BadClientTls::Nothing { file, what })?;
                Some(identity)
            }
            _ => return Err(BadClientTls::Half),
        };
        Ok(ClientTls { roots, identity })
    }

    /// A client that trusts and shows this.
    pub fn apply(&self, mut builder: ClientBuilder) -> ClientBuilder {
        if !self.roots.is_empty() {
            builder = builder.tls_built_in_root_certs(false);
        }
        for root in &self.roots {
            builder = builder.add_root_certificate(root.clone());
        }
        match &self.identity {
            Some(identity) => builder.identity(identity.clone()),
            None => builder,
        }
    }
}

fn pem(path: &Path) -> Result<Vec<u8>, BadClientTls> {
    std::fs::read(path).map_err(|e| BadClientTls::File { file: shown(path), why: e.to_string() })
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// Why there is no TLS connection and what to do, if that is what a request failed of.
pub fn tls_advice(e: &reqwest::Error) -> Option<String> {
    tls_error(e).map(advice)
}

/// The error of the TLS library in a chain of causes. An `io::Error` has it inside and does not name it as its cause.
fn tls_error<'a>(e: &'a (dyn std::error::Error + 'static)) -> Option<&'a TlsError> {
    if let Some(found) = e.downcast_ref::<TlsError>() {
        return Some(found);
    }
    let inside = e.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    if let Some(found) = inside.and_then(|inside| tls_error(inside)) {
        return Some(found);
    }
    e.source().and_then(tls_error)
}

fn advice(e: &TlsError) -> String {
    use CertificateError as Bad;
    match e {
        TlsError::InvalidCertificate(Bad::UnknownIssuer | Bad::BadSignature) => {
            "the server's certificate is signed by an authority that this client does not trust: name the file with the \
             authority's certificate in client.ca_file (TENURE_CLIENT_CA_FILE)"
                .to_owned()
        }
        TlsError::InvalidCertificate(Bad::NotValidForNameContext { expected, presented }) => {
            format!(
                "the server's certificate is for {}, not for {}: call the server by a name that is in its certificate, or \
                 make a certificate for this name too",
                presented.join(", "),
                expected.to_str()
            )
        }
        TlsError::InvalidCertificate(Bad::NotValidForName) => {
            "the server's certificate is for another name: call the server by a name that is in its certificate, or make a \
             certificate for this name too"
                .to_owned()
        }
        TlsError::InvalidCertificate(Bad::Expired | Bad::ExpiredContext { .. }) => {
            "the server's certificate has expired: write a new one to its server.tls_certificate_file and \
             server.tls_key_file, which the server reads without a restart"
                .to_owned()
        }
        TlsError::InvalidCertificate(Bad::NotValidYet | Bad::NotValidYetContext { .. }) => {
            "the server's certificate is not valid yet: compare the clocks of both machines".to_owned()
        }
        TlsError::AlertReceived(AlertDescription::CertificateRequired) => {
            "the server asks for a client certificate: name one in client.certificate_file and client.key_file \
             (TENURE_CLIENT_CERTIFICATE_FILE, TENURE_CLIENT_KEY_FILE)"
                .to_owned()
        }
        TlsError::AlertReceived(
            alert @ (AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::DecryptError),
        ) => format!(
            "the server refuses this client's certificate ({alert:?}): show one that an authority in the server's \
             server.tls_client_ca_file has signed"
        ),
        TlsError::InvalidMessage(_) => {
            "what answers at this address does not speak TLS: begin the address with http://, if the server's plain HTTP is meant"
                .to_owned()
        }
        other => format!("no TLS connection: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_the_tls_library_is_found_inside_of_io_errors() {
        let expired = || TlsError::InvalidCertificate(CertificateError::Expired);
        let nested = io::Error::other(io::Error::other(expired()));
        assert_eq!(tls_error(&nested), Some(&expired()));
        assert!(advice(&expired()).contains("server.tls_certificate_file"));
        assert_eq!(tls_error(&io::Error::other("refused")), None);
    }

    #[test]
    fn files_that_cannot_be_used_are_named() {
        let absent = ClientTlsFiles { ca: Some("/nowhere/ca.crt".into()), ..Default::default() };
        let said = ClientTls::read(&absent).unwrap_err().to_string();
        assert!(said.contains("/nowhere/ca.crt"), "{said}");
        let half = ClientTlsFiles { key: Some("tls.key".into()), ..Default::default() };
        assert_eq!(ClientTls::read(&half).unwrap_err(), BadClientTls::Half);
    }
}
