//! How this process listens, by its settings: limits, TLS, and where HTTP may be plain.

use crate::{commands::Failure, config::Settings};
use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, OnceLock},
};
use tenure_listener::{ClientCertificates, Limits, Tls, TlsFiles};

/// What is permitted, as far as the files of this process reach. Raises the limit of open files first, once.
pub(crate) fn limits(settings: &Settings) -> Limits {
    let count = |key: &str| usize::try_from(settings.number(key)).unwrap_or(usize::MAX);
    let wanted = Limits {
        connections_max: count("server.connections_max"),
        per_address_max: count("server.connections_per_address_max"),
        per_tenant_max: count("server.connections_per_tenant_max"),
        unauthenticated_max: count("server.connections_unauthenticated_max"),
        header: settings.seconds("server.header_timeout_seconds"),
        body: settings.seconds("server.body_timeout_seconds"),
        idle: settings.seconds("server.idle_timeout_seconds"),
    };
    static FILES: OnceLock<u64> = OnceLock::new();
    let files = *FILES.get_or_init(|| raise_file_limit(wanted.files()));
    let limits = wanted.within(files);
    if limits != wanted {
        tracing::warn!(
            files,
            connections_max = limits.connections_max,
            wanted = wanted.connections_max,
            "the limit of open files permits fewer connections than server.connections_max: raise the hard limit (ulimit -Hn, LimitNOFILE=)"
        );
    }
    limits
}

/// The limit of open files after an attempt to raise it.
fn raise_file_limit(wanted: u64) -> u64 {
    let (before, now) = tenure_edge::raise_file_limit(wanted);
    match before == now {
        true => tracing::info!(files = now, "the limit of open files"),
        false => tracing::info!(files = now, was = before, "raised the limit of open files"),
    }
    now
}

/// TLS, if the settings name a certificate.
pub(crate) fn tls(settings: &Settings) -> Result<Option<Arc<Tls>>, Failure> {
    let file = |key: &str| Some(settings.text(key)).filter(|f| !f.is_empty()).map(PathBuf::from);
    let (Some(certificate), Some(key)) =
        (file("server.tls_certificate_file"), file("server.tls_key_file"))
    else {
        return Ok(None);
    };
    let wanted = match settings.text("server.tls_client_certificates") {
        "optional" => ClientCertificates::Optional,
        _ => ClientCertificates::Required,
    };
    let client_ca = file("server.tls_client_ca_file").map(|file| (file, wanted));
    let files = TlsFiles { certificate, key, client_ca };
    let tls = Tls::open(files, settings.seconds("server.tls_reload_seconds"));
    let tls = tls.map_err(|e| {
        Failure::System(format!(
            "server.tls_certificate_file, server.tls_key_file, server.tls_client_ca_file: {e}"
        ))
    })?;
    Ok(Some(Arc::new(tls)))
}

/// Refuses plain HTTP where others can read it.
pub(crate) fn check_plain_http(
    settings: &Settings,
    key: &str,
    address: SocketAddr,
) -> Result<(), Failure> {
    let encrypted = !settings.text("server.tls_certificate_file").is_empty();
    let anywhere = settings.text("server.plain_http") == "anywhere";
    if encrypted || anywhere || address.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    Err(Failure::System(format!(
        "{key} = {address} can be reached from other machines, and what is sent to it, API keys among it, could be read on the way.\n        \
         Name a certificate with server.tls_certificate_file and server.tls_key_file (docs/security.md makes one), or listen on\n        \
         127.0.0.1 behind a proxy that has one. Where the network itself is trusted, server.plain_http = \"anywhere\" allows it."
    )))
}

/// The address of a listener for clients.
pub(crate) fn url(address: SocketAddr, tls: bool) -> String {
    format!("{}://{address}", if tls { "https" } else { "http" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_beyond_loopback_is_said_explicitly() {
        let check = |flags: &[&str], address: &str| {
            let flags: Vec<String> = flags.iter().map(|f| (*f).to_owned()).collect();
            let settings = Settings::load(None, Vec::new(), &flags).unwrap();
            check_plain_http(&settings, "server.listen", address.parse().unwrap())
        };
        for fine in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(check(&[], fine).is_ok(), "{fine}");
        }
        let tls = ["server.tls_certificate_file=c", "server.tls_key_file=k"];
        for outside in ["0.0.0.0:1", "10.0.0.1:1", "[::]:1", "[fe80::1]:1"] {
            let said = check(&[], outside).unwrap_err().to_string();
            assert!(
                said.contains("server.listen = ") && said.contains("server.plain_http"),
                "{said}"
            );
            assert!(check(&["server.plain_http=anywhere"], outside).is_ok(), "{outside}");
            assert!(check(&tls, outside).is_ok(), "{outside}");
        }
    }
}
