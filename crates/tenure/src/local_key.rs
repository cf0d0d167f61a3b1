//! The administrator's key of a server on this machine.
//!
//! A caller without a key is no administrator (see `tenure_server::auth`), but the person who started the server should be
//! one without any preparation. A server that listens on a loopback address and keeps its store in a directory therefore
//! writes a key without a tenant and with every scope into the file `admin.key` there, which only the server's user can read. The
//! command line uses it for the server whose address the file names; a person signs in to the console with it.
//!
//! The key is made once and kept for the next start. Revoking it, or removing the file, makes the next start write another.

use crate::{
    commands::{Failure, machines},
    config::Settings,
    open::sqlite_directory,
};
use reqwest::Url;
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, OpenOptions},
    io::{ErrorKind, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::OnceLock,
};
use tenure_engine::pipeline::Pipeline;
use tenure_server::{
    audit::{Act, AuditTrail},
    keys::{self, NewKey, Scope, Terms},
};

const NAME: &str = "admin.key";

/// What the file holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct LocalKey {
    /// The server that takes the key.
    url: String,
    key: String,
}

/// Where the file of a store is; nothing for a store without a directory.
pub(crate) fn path(settings: &Settings) -> Option<PathBuf> {
    sqlite_directory(settings.address("store.url").expose()).map(|directory| directory.join(NAME))
}

/// Writes the key of the server at this address, and makes it first if the file holds none that is valid.
pub(crate) async fn keep(path: &Path, pipeline: &Pipeline, url: &str) -> Result<(), Failure> {
    let kept = read(path).map(|kept| kept.key);
    let key = match kept {
        Some(key) if is_valid(&key, pipeline).await? => key,
        _ => {
            let name = "administrator on this machine".to_owned();
            let wanted = NewKey { name, tenant: None, scopes: Scope::ALL.to_vec() };
            let terms =
                Terms { by: Some("the server, at its start".to_owned()), ..Terms::default() };
            let act = Act::new("keys.create", "the server, at its start").target(&wanted.name);
            let trail = AuditTrail::new(pipeline.clone(), &machines());
            let made = trail.carry_out(act, keys::create_with(pipeline, wanted, terms)).await;
            made.map_err(|e| Failure::System(e.to_string()))?.secret
        }
    };
    write(path, &LocalKey { url: url.to_owned(), key })
        .map_err(|e| Failure::System(format!("{} cannot be written: {e}", path.display())))
}

async fn is_valid(key: &str, pipeline: &Pipeline) -> Result<bool, Failure> {
    let Some((id, secret)) = keys::split(key) else { return Ok(false) };
    let (head, now) = (pipeline.store().head(id).await?, pipeline.store().now().await?);
    let found = head.and_then(|head| keys::verify(&head, secret, now));
    Ok(found.is_some_and(|key| key.tenant.is_none() && key.scopes.contains(&Scope::Admin)))
}

fn read(path: &Path) -> Option<LocalKey> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Replaces the file as a whole. It is readable by nobody else from its first moment on.
fn write(path: &Path, key: &LocalKey) -> std::io::Result<()> {
    let new = path.with_extension("key.new");
    match fs::remove_file(&new) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(serde_json::to_string(key)?.as_bytes())?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    fs::rename(&new, path)
}

/// The key of the store in the settings of this process, for [`key_for`].
static KEPT: OnceLock<Option<LocalKey>> = OnceLock::new();

/// Notes where the settings keep their store, for the commands that ask a server.
pub(crate) fn look_in(settings: &Settings) {
    KEPT.get_or_init(|| path(settings).and_then(|path| read(&path)));
}

/// The key for a server, if the settings of this process name the directory of its store.
pub(crate) fn key_for(server: &Url) -> Option<String> {
    let kept = KEPT.get()?.as_ref()?;
    let named = Url::parse(&kept.url).ok()?;
    is_same(&named, server).then(|| kept.key.clone())
}

/// Whether an address is the one of the file. Another loopback address of the same port may be the server of another user of
/// this machine, and so may a name that resolves to several; with TLS the certificate tells them apart.
fn is_same(named: &Url, server: &Url) -> bool {
    named.scheme() == server.scheme()
        && named.port_or_known_default() == server.port_or_known_default()
        && is_loopback(named)
        && is_loopback(server)
        && (named.host() == server.host() || named.scheme() == "https")
}

/// The server that has the store of the settings open, and its administrator's key, if that server listens on this machine.
pub(crate) fn server_of(settings: &Settings) -> Option<(String, String)> {
    let kept = read(&path(settings)?)?;
    Some((kept.url, kept.key))
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn nobody_else_reads_the_file_and_it_is_replaced_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        assert_eq!(read(&path), None);
        for key in ["one", "two"] {
            let wanted = LocalKey { url: "http://127.0.0.1:7777".into(), key: key.into() };
            write(&path, &wanted).unwrap();
            assert_eq!(read(&path), Some(wanted));
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        fs::write(&path, "not a key").unwrap();
        assert_eq!(read(&path), None);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left behind");
    }

    #[test]
    fn a_key_is_for_loopback_addresses_alone() {
        for (url, expected) in [
            ("http://127.0.0.1:1", true),
            ("http://localhost:1", true),
            ("http://[::1]:1", true),
            ("http://localhost.example:1", false),
            ("http://10.0.0.1:1", false),
        ] {
            assert_eq!(is_loopback(&Url::parse(url).unwrap()), expected, "{url}");
        }
    }

    #[test]
    fn a_key_is_for_the_whole_address_of_its_server() {
        let same =
            |named, server| is_same(&Url::parse(named).unwrap(), &Url::parse(server).unwrap());
        assert!(same("http://127.0.0.1:7777", "http://127.0.0.1:7777/"));
        assert!(same("https://127.0.0.1:7777", "https://localhost:7777"), "it shows a certificate");
        for other in [
            "http://127.0.0.2:7777",
            "http://localhost:7777",
            "http://[::1]:7777",
            "http://127.0.0.1:7778",
            "https://127.0.0.1:7777",
            "http://10.0.0.1:7777",
        ] {
            assert!(!same("http://127.0.0.1:7777", other), "{other}");
        }
        assert!(!same("https://127.0.0.1:7777", "https://example.org:7777"));
    }
}
