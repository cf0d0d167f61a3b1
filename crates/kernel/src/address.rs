//! Addresses that operators write: of a database, a bus, a proxy, a model server. They often hold a password, so their
//! [`Display`](fmt::Display), [`Debug`](fmt::Debug) and serialised forms leave it out. Only [`Address::expose`] gives the whole text.

use serde::{Serialize, Serializer};
use std::fmt;

/// Parameters whose values are shown. All others may hold a secret: `password`, `sslpassword`, `token`, `api_key` and names that
/// nobody has thought of.
const SHOWN_PARAMETERS: &[&str] = &[
    "api-version",
    "application_name",
    "channel_binding",
    "connect_timeout",
    "dbname",
    "host",
    "hostaddr",
    "keepalives",
    "keepalives_idle",
    "load_balance_hosts",
    "port",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslnegotiation",
    "sslrootcert",
    "target_session_attrs",
    "user",
];

const HIDDEN: &str = "***";

/// One address, or several with commas between them, as an operator wrote it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Address(String);

impl Address {
    /// Of this text.
    pub fn new(text: impl Into<String>) -> Self {
        Address(text.into())
    }

    /// The text with its secrets, for the code that connects.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<String> for Address {
    fn from(text: String) -> Self {
        Address(text)
    }
}

impl From<&String> for Address {
    fn from(text: &String) -> Self {
        Address(text.clone())
    }
}

impl From<&str> for Address {
    fn from(text: &str) -> Self {
        Address(text.to_owned())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&redacted(&self.0))
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", redacted(&self.0))
    }
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&redacted(&self.0))
    }
}

/// Hides more than is necessary where the text is ambiguous: a password may contain any character, and operators forget to escape.
fn redacted(text: &str) -> String {
    // A path of the file system, unless it looks like an address after all.
    if text.starts_with("sqlite:") && !text.contains("://") {
        return text.to_owned();
    }
    let mut shown = String::new();
    for (n, piece) in pieces(text).into_iter().enumerate() {
        if n > 0 {
            shown.push(',');
        }
        shown.push_str(&one(piece));
    }
    shown
}

/// Splits at commas that are followed by a scheme. Other commas may be part of a password, or separate the hosts of one address.
fn pieces(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut start = 0;
    for (comma, _) in text.match_indices(',') {
        if scheme(text[comma + 1..].trim_start()).is_some() {
            pieces.push(&text[start..comma]);
            start = comma + 1;
        }
    }
    pieces.push(&text[start..]);
    pieces
}

/// The scheme, if the text begins with one and `://`.
fn scheme(text: &str) -> Option<&str> {
    let (scheme, _) = text.split_once("://")?;
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+.-".contains(c));
    is_scheme.then_some(scheme)
}

fn one(piece: &str) -> String {
    let trimmed = piece.trim_start();
    let Some(scheme) = scheme(trimmed) else {
        // HOST:PORT holds no secret. Everything else was not understood.
        let is_plain = !piece.contains(['@', '=', '?', '#']) && !piece.contains("://");
        return if is_plain { piece.to_owned() } else { HIDDEN.to_owned() };
    };
    let rest = &trimmed[scheme.len() + "://".len()..];
    let (before, query) = rest.split_once('?').map_or((rest, None), |(b, q)| (b, Some(q)));
    // The password contains the `?`, or a parameter the `@`.
    if query.is_some_and(|q| q.contains('@')) {
        return format!("{scheme}://{HIDDEN}");
    }
    let place = match before.rsplit_once('@') {
        None => fragment(before),
        Some((login, place)) => format!("{}@{}", user(scheme, login), fragment(place)),
    };
    match query {
        None => format!("{scheme}://{place}"),
        Some(query) => format!("{scheme}://{place}?{}", parameters(query)),
    }
}

/// A login without its password. The name of the user is shown for databases; elsewhere it may be a token.
fn user(scheme: &str, login: &str) -> String {
    let (user, rest) = login.split_once(':').map_or((login, None), |(u, p)| (u, Some(p)));
    let is_odd = user.contains(['/', '#', '=']);
    match (scheme, rest) {
        ("postgres" | "postgresql" | "redis" | "rediss", Some(_)) if !is_odd => {
            format!("{user}:{HIDDEN}")
        }
        ("postgres" | "postgresql", None) if !is_odd => user.to_owned(),
        _ => HIDDEN.to_owned(),
    }
}

fn fragment(text: &str) -> String {
    match text.split_once('#') {
        Some((before, _)) => format!("{before}#{HIDDEN}"),
        None => text.to_owned(),
    }
}

fn parameters(query: &str) -> String {
    let shown = query.split('&').map(|pair| match pair.split_once('=') {
        Some((name, value)) if SHOWN_PARAMETERS.contains(&name) => {
            format!("{name}={}", fragment(value))
        }
        // The name itself is shown if it is a word, so that a person can find it.
        Some((name, _)) if name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c)) => {
            format!("{name}={HIDDEN}")
        }
        _ => HIDDEN.to_owned(),
    });
    shown.collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_needed_to_recognise_an_address_is_shown() {
        for (text, shown) in [
            ("sqlite:.tenure", "sqlite:.tenure"),
            ("sqlite:/data/a@b?c=d", "sqlite:/data/a@b?c=d"),
            ("", ""),
            ("none", "none"),
            ("10.0.0.1:6379,10.0.0.2:6379", "10.0.0.1:6379,10.0.0.2:6379"),
            ("postgres://tenure@h/db", "postgres://tenure@h/db"),
            ("postgres://u:hunter2@h:5432/db", "postgres://u:***@h:5432/db"),
            ("postgres://u:hunter2@h1,h2:5433/db", "postgres://u:***@h1,h2:5433/db"),
            (
                "postgres://h/db?user=u&password=hunter2&sslmode=verify-full",
                "postgres://h/db?user=u&password=***&sslmode=verify-full",
            ),
            ("postgresql://h/db?sslpassword=hunter2", "postgresql://h/db?sslpassword=***"),
            ("postgres://h/db?pass%77ord=hunter2", "postgres://h/db?***"),
            ("https://h/v1?api-version=3&key=hunter2", "https://h/v1?api-version=3&key=***"),
            ("https://hunter2@h/v1", "https://***@h/v1"),
            ("nats://hunter2@h:4222", "nats://***@h:4222"),
            ("tls://h:4222,tls://g:4222", "tls://h:4222,tls://g:4222"),
            ("redis://u:hunter2@h,redis://v:hunter2@g/3", "redis://u:***@h,redis://v:***@g/3"),
            ("redis://:hunter2@h", "redis://:***@h"),
            ("h:6379, rediss://u:hunter2@g", "h:6379,rediss://u:***@g"),
            ("https://h/v1#hunter2", "https://h/v1#***"),
        ] {
            assert_eq!(Address::new(text).to_string(), shown, "{text}");
        }
    }

    #[test]
    fn what_is_written_wrongly_shows_no_part_of_its_password() {
        for text in [
            "postgres://u:hun/ter@2@h/db",
            "postgres://u:hun?ter@h/db",
            "postgres://u:hun#ter@h/db",
            "postgres://u:hun,ter@h/db",
            "postgres://u:hun://ter@h/db",
            "postgres://h:5432/db?password=hun@ter",
            "redis://u:a@h,v:hunter@g",
            "u:hun@ter",
            "host=h password=hunter",
            "postgres:/u:hunter@h/db",
            "sqlite:postgres://u:hunter@h/db",
        ] {
            let address = Address::new(text);
            let json = serde_json::to_string(&address).unwrap();
            for shown in [address.to_string(), format!("{address:?}"), json] {
                assert!(!shown.contains("hun") && !shown.contains("ter"), "{text}: {shown}");
            }
        }
    }

    proptest! {
        /// Whatever the password is, no part of it that a person would recognise is shown.
        #[test]
        fn no_password_is_shown(before in "[ -~]{0,8}", after in "[ -~]{0,8}", form in 0..6_usize) {
            let password = format!("{before}SECRET{after}");
            let text = match form {
                0 => format!("postgres://user:{password}@host:5432/db"),
                1 => format!("postgres://host/db?sslmode=require&password={password}"),
                2 => format!("redis://:{password}@host:6379/0"),
                3 => format!("redis://a:b@host,redis://user:{password}@host"),
                4 => format!("https://{password}@host/v1"),
                _ => format!("https://host/v1?key={password}&api-version=1"),
            };
            let shown = Address::new(text.clone()).to_string();
            prop_assert!(!shown.contains("SECRET"), "{} is shown as {}", text, shown);
        }
    }
}
