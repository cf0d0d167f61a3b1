//! What clients in this process trust and show: the settings `client.*`, for commands, workers, executors and collectors.

use crate::{commands::Failure, config::Settings};
use std::{path::PathBuf, sync::OnceLock};
use tenure_remote::{ClientTls, ClientTlsFiles};

/// Reads the files of the settings.
pub(crate) fn read(settings: &Settings) -> Result<ClientTls, Failure> {
    let file = |key: &str| Some(settings.text(key)).filter(|f| !f.is_empty()).map(PathBuf::from);
    let files = ClientTlsFiles {
        ca: file("client.ca_file"),
        certificate: file("client.certificate_file"),
        key: file("client.key_file"),
    };
    ClientTls::read(&files).map_err(|e| {
        Failure::System(format!("client.ca_file, client.certificate_file, client.key_file: {e}"))
    })
}

/// For commands that ask a server and get no settings.
static KEPT: OnceLock<ClientTls> = OnceLock::new();

/// Reads the files for [`kept`].
pub(crate) fn look_in(settings: &Settings) -> Result<(), Failure> {
    let tls = read(settings)?;
    KEPT.get_or_init(|| tls);
    Ok(())
}

/// What was read by [`look_in`].
pub(crate) fn kept() -> &'static ClientTls {
    KEPT.get_or_init(ClientTls::default)
}
