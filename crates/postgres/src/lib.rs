//! How Tenure connects to PostgreSQL. The store and the bell (`LISTEN`) both use it, so that both have the same TLS.
//!
//! Addresses are those of libpq. The driver parses most of an address and knows three modes of TLS; this crate parses what
//! concerns TLS itself (`address`) and brings rustls to the driver (`tls`).
//!
//! | `sslmode` | connection | certificate of the server |
//! |---|---|---|
//! | `disable` | clear text | |
//! | `prefer` (the default) | TLS if the server offers it, else clear text | not checked, unless there is an `sslrootcert` |
//! | `require` | TLS | not checked, unless there is an `sslrootcert` |
//! | `verify-ca` | TLS | signed by a certificate in `sslrootcert` |
//! | `verify-full` | TLS | the same, and it is for the host of the address |
//!
//! Differences from libpq: files in `~/.postgresql` are not read; the mode `allow` does not exist; a certificate that fails its check never
//! leads to clear text; a host must be in the certificate's `subjectAltName`.

mod address;
mod binding;
mod tls;

pub use address::{BadAddress, SslMode, check, weakness, with_environment};
pub use tls::TlsStream;

use address::Parsed;
use std::{error::Error as _, fmt, io};
use tls::{MakeTls, TlsFailure};
use tokio_postgres::{
    Client, Config, Connection, Error, Socket,
    config::{Host, SslMode as DriverMode},
    error::SqlState,
};
use tokio_rustls::rustls;

/// Makes connections to the database of one address. Files that the address names are read for every connection, so that a
/// certificate can be replaced while the process runs.
#[derive(Clone, Debug)]
pub struct Connector {
    config: Config,
    tls: MakeTls,
}

/// Why there is no connection.
#[derive(Debug)]
pub enum ConnectError {
    /// TLS failed, in words and with what to do about it.
    Tls(String),
    /// Everything else.
    Postgres(Error),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::Tls(why) => f.write_str(why),
            ConnectError::Postgres(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for ConnectError {}

impl Connector {
    /// For an address, `postgres://USER:PASSWORD@HOST:PORT/DATABASE?…`. Certificates that it names must be readable now.
    pub fn parse(address: &str) -> Result<Self, BadAddress> {
        let Parsed { mut config, tls } = address::parse(address)?;
        config.ssl_mode(match tls.mode {
            SslMode::Disable => DriverMode::Disable,
            SslMode::Prefer => DriverMode::Prefer,
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => DriverMode::Require,
        });
        // PostgreSQL has no TLS on Unix sockets.
        let is_local = |host: &Host| matches!(host, Host::Unix(_));
        if !config.get_hosts().is_empty() && config.get_hosts().iter().all(is_local) {
            config.ssl_mode(DriverMode::Disable);
        }
        let tls = MakeTls::new(tls)?;
        Ok(Connector { config, tls })
    }

    /// The driver's settings, for timeouts and names.
    pub fn config(&mut self) -> &mut Config {
        &mut self.config
    }

    /// Connects. The caller drives the connection.
    pub async fn connect(&self) -> Result<(Client, Connection<Socket, TlsStream>), ConnectError> {
        let first = match Box::pin(self.config.connect(self.tls.clone())).await {
            Ok(connected) => return Ok(connected),
            Err(e) => e,
        };
        if self.may_fall_back(&first) {
            let mut clear = self.config.clone();
            clear.ssl_mode(DriverMode::Disable);
            if let Ok(connected) = Box::pin(clear.connect(self.tls.clone())).await {
                return Ok(connected);
            }
        }
        Err(self.explain(first))
    }

    /// As libpq does for `prefer`: clear text where TLS fails, or where the server lets the user in only without it. Never where the
    /// certificate is to be checked.
    fn may_fall_back(&self, e: &Error) -> bool {
        let is_prefer = self.config.get_ssl_mode() == DriverMode::Prefer;
        let refused = e.code() == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION);
        is_prefer && !self.tls.options.verifies() && (refused || is_tls(e))
    }

    fn explain(&self, e: Error) -> ConnectError {
        let source = e.source();
        if let Some(TlsFailure(why)) = source.and_then(|s| s.downcast_ref()) {
            return ConnectError::Tls(why.clone());
        }
        if let Some(why) = rustls_error(&e) {
            return ConnectError::Tls(self.tls.options.explain(why, None));
        }
        match source {
            Some(s) if is_tls(&e) && !s.is::<io::Error>() => {
                ConnectError::Tls(self.tls.options.explain_words(&s.to_string()))
            }
            _ => ConnectError::Postgres(e),
        }
    }
}

/// The driver tells what kind an error is of in its text alone.
fn is_tls(e: &Error) -> bool {
    e.to_string().starts_with("error performing TLS handshake") || rustls_error(e).is_some()
}

/// The failure of rustls in an error. A server that refuses a client's certificate says so after the handshake.
fn rustls_error(e: &Error) -> Option<&rustls::Error> {
    let io = e.source()?.downcast_ref::<io::Error>()?;
    io.get_ref()?.downcast_ref()
}
