//! What an address says about TLS.

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use std::{fmt, net::IpAddr, path::PathBuf, str::FromStr};
use tokio_postgres::{Config, config::Host};

/// How much TLS an address asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SslMode {
    /// None.
    Disable,
    /// TLS if the server offers it.
    #[default]
    Prefer,
    /// TLS.
    Require,
    /// TLS, with a certificate that is signed by a known one.
    VerifyCa,
    /// The same, and the certificate is for this host.
    VerifyFull,
}

const MODES: [(&str, SslMode); 5] = [
    ("disable", SslMode::Disable),
    ("prefer", SslMode::Prefer),
    ("require", SslMode::Require),
    ("verify-ca", SslMode::VerifyCa),
    ("verify-full", SslMode::VerifyFull),
];

impl FromStr for SslMode {
    type Err = BadAddress;
    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let found = MODES.iter().find(|(name, _)| *name == text);
        found.map(|(_, mode)| *mode).ok_or_else(|| {
            let names = MODES.map(|(name, _)| name).join(", ");
            BadAddress(format!("sslmode is none of {names}"))
        })
    }
}

impl fmt::Display for SslMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Every mode is in the list.
        let name = MODES.iter().find(|(_, mode)| mode == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

/// An address that cannot be used: why, and what to do. Never a part of the address itself, which may be a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadAddress(pub String);

impl fmt::Display for BadAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadAddress {}

/// Which certificates may sign that of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Roots {
    /// Those in a PEM file.
    File(PathBuf),
    /// Those that the machine trusts.
    System,
}

/// What an address says about TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsOptions {
    pub(crate) mode: SslMode,
    pub(crate) roots: Option<Roots>,
    /// Files with our certificate and its private key.
    pub(crate) client: Option<(PathBuf, PathBuf)>,
}

impl TlsOptions {
    pub(crate) fn verifies(&self) -> bool {
        self.roots.is_some() && self.mode != SslMode::Disable
    }
}

pub(crate) struct Parsed {
    pub(crate) config: Config,
    pub(crate) tls: TlsOptions,
}

/// The parameters that this module takes out of an address, and the variables that stand in for them.
const OURS: [(&str, &str); 4] = [
    ("sslmode", "PGSSLMODE"),
    ("sslrootcert", "PGSSLROOTCERT"),
    ("sslcert", "PGSSLCERT"),
    ("sslkey", "PGSSLKEY"),
];

pub(crate) fn parse(address: &str) -> Result<Parsed, BadAddress> {
    let (before, query) = split(address);
    let mut ours: [Option<String>; OURS.len()] = Default::default();
    let mut rest = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        match OURS.iter().position(|(known, _)| *known == decoded(name)) {
            Some(at) => ours[at] = Some(decoded(value)),
            None => rest.push(pair),
        }
    }
    let rest = rest.join("&");
    let driver = if rest.is_empty() { before.to_owned() } else { format!("{before}?{rest}") };
    // What the driver says may quote a piece of a password that was not escaped.
    let config = driver.parse().map_err(|_| {
        BadAddress(
            "it is not of the form postgres://USER:PASSWORD@HOST:PORT/DATABASE?PARAMETER=VALUE, or has a parameter that is not \
             known; percent-encode special characters in the password"
                .to_owned(),
        )
    })?;
    let [mode, roots, cert, key] = ours.map(|value| value.filter(|v| !v.is_empty()));
    let tls = options(mode, roots, cert, key)?;
    Ok(Parsed { config, tls })
}

/// Whether an address can be used, as far as its text says. Files that it names are not read.
pub fn check(address: &str) -> Result<(), BadAddress> {
    parse(address).map(|_| ())
}

/// What somebody on the network could do to connections of this address; nothing if all hosts are this machine. Addresses that cannot be
/// used have no weakness.
pub fn weakness(address: &str) -> Option<&'static str> {
    let Parsed { config, tls } = parse(address).ok()?;
    let here = |host: &Host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            let ip = name.parse::<IpAddr>();
            name == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
        }
    };
    let is_here = config.get_hosts().iter().all(here)
        && config.get_hostaddrs().iter().all(IpAddr::is_loopback);
    match tls.mode {
        _ if is_here => None,
        SslMode::Disable => Some("the connection is not encrypted"),
        SslMode::Prefer => Some(
            "the connection is in clear text where the server, or somebody in between, offers no TLS",
        ),
        SslMode::Require if !tls.verifies() => Some(
            "the certificate of the server is not checked, so that somebody in between can pretend to be it",
        ),
        SslMode::Require | SslMode::VerifyCa => {
            Some("the certificate of the server may be for another host")
        }
        SslMode::VerifyFull => None,
    }
}

/// The address up to its parameters, and these. A login ends with the first `@`, as for the driver.
fn split(address: &str) -> (&str, &str) {
    let login = address.find('@').map_or(0, |at| at + 1);
    match address[login..].find('?') {
        Some(at) => (&address[..login + at], &address[login + at + 1..]),
        None => (address, ""),
    }
}

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

fn options(
    mode: Option<String>,
    roots: Option<String>,
    cert: Option<String>,
    key: Option<String>,
) -> Result<TlsOptions, BadAddress> {
    let bad = |why: &str| Err(BadAddress(why.to_owned()));
    let mode: Option<SslMode> = mode.map(|m| m.parse()).transpose()?;
    let roots = roots.map(|r| match r.as_str() {
        "system" => Roots::System,
        file => Roots::File(file.into()),
    });
    let mode = match (mode, &roots) {
        (None | Some(SslMode::VerifyFull), Some(Roots::System)) => SslMode::VerifyFull,
        (Some(_), Some(Roots::System)) => {
            return bad(
                "sslrootcert=system trusts every public authority, which is safe only with sslmode=verify-full",
            );
        }
        (mode, _) => mode.unwrap_or_default(),
    };
    if mode >= SslMode::VerifyCa && roots.is_none() {
        return Err(BadAddress(format!(
            "sslmode={mode} needs the certificates to check the server's against: add sslrootcert=FILE, a PEM file, or \
             sslrootcert=system with sslmode=verify-full"
        )));
    }
    let client = match (cert, key) {
        (Some(cert), Some(key)) => Some((cert.into(), key.into())),
        (None, None) => None,
        (Some(_), None) => {
            return bad("sslcert is given and sslkey is not: both are needed, as PEM files");
        }
        (None, Some(_)) => {
            return bad("sslkey is given and sslcert is not: both are needed, as PEM files");
        }
    };
    Ok(TlsOptions { mode, roots, client })
}

/// The address with what the variables `PGSSLMODE`, `PGSSLROOTCERT`, `PGSSLCERT` and `PGSSLKEY` say, where it says nothing itself.
pub fn with_environment(
    address: &str,
    variable: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    let (_, query) = split(address);
    let named = |name: &str| {
        let mut names = query.split('&').map(|pair| decoded(pair.split('=').next().unwrap_or("")));
        names.any(|found| found == name)
    };
    let added: Vec<String> = OURS
        .iter()
        .filter(|(name, _)| !named(name))
        .filter_map(|(name, from)| Some((name, variable(from).filter(|value| !value.is_empty())?)))
        .map(|(name, value)| format!("{name}={}", utf8_percent_encode(&value, NON_ALPHANUMERIC)))
        .collect();
    if added.is_empty() {
        return None;
    }
    let separator = match (split(address).1.is_empty(), address.ends_with('?')) {
        (_, true) => "",
        (true, false) => "?",
        (false, false) => "&",
    };
    Some(format!("{address}{separator}{}", added.join("&")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tls(address: &str) -> Result<TlsOptions, String> {
        parse(address).map(|parsed| parsed.tls).map_err(|e| e.to_string())
    }

    #[test]
    fn every_mode_of_libpq_but_allow_is_known() {
        assert_eq!(tls("postgres://h/d").unwrap().mode, SslMode::Prefer);
        for (name, mode) in MODES {
            let address = format!("postgres://u:p@h/d?sslmode={name}&sslrootcert=/r.pem");
            assert_eq!(tls(&address).unwrap().mode, mode);
            assert_eq!(mode.to_string(), name);
        }
        assert!(tls("postgres://h/d?sslmode=allow").unwrap_err().contains("verify-full"));
    }

    #[test]
    fn files_are_taken_out_and_everything_else_is_the_drivers() {
        let address = "postgres://u:a%3Fb?c@h1:1,h2:2/d?application_name=x&sslrootcert=%2Fa+b%20c.pem&connect_timeout=3&sslcert=c&sslkey=k";
        let Parsed { config, tls } = parse(address).unwrap();
        assert_eq!(tls.roots, Some(Roots::File("/a+b c.pem".into())));
        assert_eq!(tls.client, Some(("c".into(), "k".into())));
        assert_eq!(config.get_password(), Some(&b"a?b?c"[..]));
        assert_eq!(config.get_application_name(), Some("x"));
        assert_eq!(config.get_hosts(), [Host::Tcp("h1".into()), Host::Tcp("h2".into())]);
    }

    #[test]
    fn what_would_check_nothing_is_refused_with_what_to_do() {
        for (address, why) in [
            ("postgres://h/d?sslmode=verify-full", "sslrootcert=FILE"),
            ("postgres://h/d?sslmode=verify-ca&sslrootcert=", "sslrootcert=FILE"),
            ("postgres://h/d?sslmode=require&sslrootcert=system", "verify-full"),
            ("postgres://h/d?sslcert=c", "sslkey"),
            ("postgres://h/d?sslkey=c", "sslcert"),
        ] {
            let said = tls(address).unwrap_err();
            assert!(said.contains(why), "{address}: {said}");
        }
        assert_eq!(tls("postgres://h/d?sslrootcert=system").unwrap().mode, SslMode::VerifyFull);
    }

    #[test]
    fn a_network_between_us_and_the_server_is_a_weakness_without_full_verification() {
        for address in [
            "sqlite:x",
            "postgres://127.0.0.1/d",
            "postgres://localhost,[::1]/d?sslmode=disable",
            "postgres://%2Frun%2Fpostgresql/d",
            "postgres://h/d?sslmode=verify-full&sslrootcert=r",
        ] {
            assert_eq!(weakness(address), None, "{address}");
        }
        for (query, words) in [
            ("sslmode=disable", "not encrypted"),
            ("", "clear text"),
            ("sslmode=require", "not checked"),
            ("sslmode=verify-ca&sslrootcert=r", "another host"),
        ] {
            let said = weakness(&format!("postgres://localhost,h/d?{query}"));
            assert!(said.is_some_and(|s| s.contains(words)), "{query}: {said:?}");
        }
    }

    #[test]
    fn an_error_quotes_nothing() {
        for address in [
            "postgres://u:hun@ter2?x=y@h/d",
            "postgres://u@h/d?hunter2=x",
            "postgres://u:p@h:hunter2/d",
        ] {
            let said = tls(address).unwrap_err();
            assert!(!said.contains("ter2"), "{said}");
        }
    }

    #[test]
    fn variables_stand_in_for_what_an_address_leaves_out() {
        let env = |name: &str| match name {
            "PGSSLMODE" => Some("verify-full".to_owned()),
            "PGSSLROOTCERT" => Some("/a b&c.pem".to_owned()),
            _ => None,
        };
        let tls_of = |address: &str| tls(&with_environment(address, env).unwrap()).unwrap();
        for address in ["postgres://h/d", "postgres://h/d?", "postgres://h/d?application_name=x"] {
            let options = tls_of(address);
            assert_eq!(options.mode, SslMode::VerifyFull, "{address}");
            assert_eq!(options.roots, Some(Roots::File("/a b&c.pem".into())), "{address}");
        }
        assert_eq!(tls_of("postgres://h/d?sslmode=require").mode, SslMode::Require);
        assert_eq!(with_environment("postgres://h/d", |_| None), None);
    }
}
