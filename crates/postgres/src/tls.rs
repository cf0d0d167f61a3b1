//! rustls for the driver.

use crate::{
    BadAddress, SslMode,
    address::{Roots, TlsOptions},
    binding,
};
use std::{
    error::Error,
    fmt,
    future::Future,
    io,
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::{
    Socket,
    tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream as DriverStream},
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
        client::{
            danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
            verify_server_cert_signed_by_trust_anchor, verify_server_name,
        },
        crypto::{
            CryptoProvider, ring::default_provider, verify_tls12_signature, verify_tls13_signature,
        },
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
        server::ParsedCertificate,
    },
};

/// A failure of TLS, in words.
#[derive(Debug)]
pub(crate) struct TlsFailure(pub(crate) String);

impl fmt::Display for TlsFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for TlsFailure {}

type Failure = Box<dyn Error + Send + Sync>;

/// Makes a client's side of TLS for each connection, from files as they are then.
#[derive(Clone, Debug)]
pub(crate) struct MakeTls {
    pub(crate) options: Arc<TlsOptions>,
}

impl MakeTls {
    pub(crate) fn new(options: TlsOptions) -> Result<Self, BadAddress> {
        let make = MakeTls { options: Arc::new(options) };
        // A file that cannot be used is reported at start.
        make.client_config().map_err(|TlsFailure(why)| BadAddress(why))?;
        Ok(make)
    }

    fn client_config(&self) -> Result<ClientConfig, TlsFailure> {
        let provider = Arc::new(default_provider());
        let verifier = Verifier {
            provider: provider.clone(),
            trusted: match &self.options.roots {
                None => None,
                Some(Roots::File(file)) => Some(Trusted::of(certificates(file, "sslrootcert")?)?),
                Some(Roots::System) => Some(Trusted::of(system_certificates()?)?),
            },
            name: self.options.mode == SslMode::VerifyFull,
        };
        let failed = |e: tokio_rustls::rustls::Error| TlsFailure(e.to_string());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(failed)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match &self.options.client {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let chain = certificates(cert, "sslcert")?;
                let key = private_key(key)?;
                builder.with_client_auth_cert(chain, key).map_err(|e| {
                    TlsFailure(format!("sslcert and sslkey do not belong together: {e}"))
                })?
            }
        };
        config.alpn_protocols = vec![b"postgresql".to_vec()];
        Ok(config)
    }
}

fn certificates(file: &Path, parameter: &str) -> Result<Vec<CertificateDer<'static>>, TlsFailure> {
    let bad = |why: &dyn fmt::Display| {
        TlsFailure(format!("{parameter}={} cannot be used: {why}", file.display()))
    };
    let found = CertificateDer::pem_file_iter(file).map_err(|e| bad(&e))?;
    let found = found.collect::<Result<Vec<_>, _>>().map_err(|e| bad(&e))?;
    match found.is_empty() {
        true => Err(bad(&"it holds no certificate in PEM format")),
        false => Ok(found),
    }
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, TlsFailure> {
    PrivateKeyDer::from_pem_file(file).map_err(|e| {
        let file = file.display();
        TlsFailure(format!(
            "sslkey={file} cannot be used: {e}; give a private key in PEM format without a passphrase"
        ))
    })
}

fn system_certificates() -> Result<Vec<CertificateDer<'static>>, TlsFailure> {
    let found = rustls_native_certs::load_native_certs();
    match (found.certs.is_empty(), found.errors.first()) {
        (true, Some(e)) => Err(TlsFailure(format!("sslrootcert=system cannot be used: {e}"))),
        (true, None) => Err(TlsFailure(
            "sslrootcert=system cannot be used: this machine has no list of trusted certificates (install ca-certificates)"
                .to_owned(),
        )),
        (false, _) => Ok(found.certs),
    }
}

impl TlsOptions {
    /// What a failure of rustls means here, and what to do about it.
    pub(crate) fn explain(&self, e: &tokio_rustls::rustls::Error, host: Option<&str>) -> String {
        use tokio_rustls::rustls::Error::{AlertReceived, InvalidCertificate};
        let mode = self.mode;
        match e {
            InvalidCertificate(CertificateError::UnknownIssuer) => {
                let roots = match &self.roots {
                    Some(Roots::File(file)) => format!("sslrootcert={}", file.display()),
                    Some(Roots::System) => "sslrootcert=system".to_owned(),
                    None => "sslrootcert".to_owned(),
                };
                format!(
                    "TLS: the certificate of the database's server is not signed by a certificate in {roots} (sslmode={mode})"
                )
            }
            InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            ) => {
                let host = host.unwrap_or("of the address");
                format!(
                    "TLS: the certificate of the database's server is not for the host {host} (sslmode={mode}): use a name or an address \
                     that stands in its subjectAltName; a common name alone does not count"
                )
            }
            InvalidCertificate(why) => format!(
                "TLS: the certificate of the database's server is refused (sslmode={mode}): {why}"
            ),
            AlertReceived(alert) => format!(
                "TLS: the database's server ended the connection with {alert:?}; where it asks for certificates of clients, see sslcert and sslkey"
            ),
            other => format!("TLS with the database's server failed (sslmode={mode}): {other}"),
        }
    }

    /// The same for what the driver says.
    pub(crate) fn explain_words(&self, words: &str) -> String {
        let mode = self.mode;
        match words.contains("does not support TLS") {
            true => format!(
                "the database's server does not offer TLS, and sslmode={mode} requires it: set ssl = on in postgresql.conf, or \
                 sslmode=prefer where nobody else can listen"
            ),
            false => format!("TLS with the database's server failed (sslmode={mode}): {words}"),
        }
    }
}

impl MakeTlsConnect<Socket> for MakeTls {
    type Stream = TlsStream;
    type TlsConnect = Connect;
    type Error = TlsFailure;

    fn make_tls_connect(&mut self, domain: &str) -> Result<Connect, TlsFailure> {
        let config = match self.options.mode {
            SslMode::Disable => None,
            _ => Some(Arc::new(self.client_config()?)),
        };
        Ok(Connect { config, options: self.options.clone(), host: domain.to_owned() })
    }
}

/// Does one handshake.
pub(crate) struct Connect {
    config: Option<Arc<ClientConfig>>,
    options: Arc<TlsOptions>,
    host: String,
}

impl TlsConnect<Socket> for Connect {
    type Stream = TlsStream;
    type Error = Failure;
    type Future = Pin<Box<dyn Future<Output = Result<TlsStream, Failure>> + Send>>;

    fn connect(self, stream: Socket) -> Self::Future {
        Box::pin(async move {
            let Some(config) = self.config else {
                return Err(TlsFailure("sslmode=disable permits no TLS".to_owned()).into());
            };
            let name = ServerName::try_from(self.host.clone()).map_err(|_| {
                TlsFailure(format!("{:?} is no name of a host that TLS can check", self.host))
            })?;
            let shaken = TlsConnector::from(config).connect(name, stream).await;
            match shaken {
                Ok(stream) => Ok(TlsStream(Box::new(stream))),
                Err(e) => match e.get_ref().and_then(|inner| inner.downcast_ref()) {
                    Some(why) => {
                        Err(TlsFailure(self.options.explain(why, Some(&self.host))).into())
                    }
                    // The connection itself was lost.
                    None => Err(e.into()),
                },
            }
        })
    }
}

/// An encrypted connection.
pub struct TlsStream(Box<tokio_rustls::client::TlsStream<Socket>>);

impl AsyncRead for TlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_shutdown(cx)
    }
}

impl DriverStream for TlsStream {
    fn channel_binding(&self) -> ChannelBinding {
        let (_, session) = self.0.get_ref();
        let certificate = session.peer_certificates().and_then(<[_]>::first);
        match certificate.and_then(|c| binding::end_point(c)) {
            Some(digest) => ChannelBinding::tls_server_end_point(digest),
            None => ChannelBinding::none(),
        }
    }
}

/// Certificates that may sign that of the server.
#[derive(Debug)]
struct Trusted {
    roots: RootCertStore,
    certificates: Vec<CertificateDer<'static>>,
}

impl Trusted {
    fn of(certificates: Vec<CertificateDer<'static>>) -> Result<Self, TlsFailure> {
        let mut roots = RootCertStore::empty();
        match roots.add_parsable_certificates(certificates.iter().cloned()) {
            (0, _) => Err(TlsFailure("no certificate in sslrootcert can be read".to_owned())),
            _ => Ok(Trusted { roots, certificates }),
        }
    }
}

/// Checks as much of the server's certificate as the mode asks for.
#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    trusted: Option<Trusted>,
    name: bool,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, tokio_rustls::rustls::Error> {
        let Some(trusted) = &self.trusted else { return Ok(ServerCertVerified::assertion()) };
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        let signed = verify_server_cert_signed_by_trust_anchor(
            &certificate,
            &trusted.roots,
            intermediates,
            now,
            algorithms,
        );
        if let Err(e) = signed {
            // A self-signed certificate that is its own root is no end entity to webpki, as `openssl req -x509` makes it. It is the very certificate
            // that the operator trusts. (Its dates are checked before that.)
            let is_in_time = !matches!(
                e,
                tokio_rustls::rustls::Error::InvalidCertificate(
                    CertificateError::Expired
                        | CertificateError::ExpiredContext { .. }
                        | CertificateError::NotValidYet
                        | CertificateError::NotValidYetContext { .. }
                )
            );
            if !is_in_time || !trusted.certificates.iter().any(|root| root == end_entity) {
                return Err(e);
            }
        }
        if self.name {
            verify_server_name(&certificate, server_name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, tokio_rustls::rustls::Error> {
        // Also where nobody checks the certificate: channel binding relies on its owner being at the other end.
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, tokio_rustls::rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
