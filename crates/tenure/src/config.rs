//! Settings: one file, overridden by the environment, overridden by flags. Every value knows who set
//! it, and a bad one is refused at start with the key, the value and the fix.

mod form;
mod keys;
mod outside;
mod parts;

pub use keys::{KEYS, Key};
pub use outside::{Kubernetes, other_variable};

use form::problem_of;
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::Path,
    time::Duration,
};
use tenure_kernel::address::Address;

/// Who set a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "from", content = "where")]
pub enum Origin {
    /// Nobody.
    Default,
    /// A file.
    File(String),
    /// A variable.
    Environment(String),
    /// The command line.
    Flag,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(path) => write!(f, "file {path}"),
            Origin::Environment(name) => write!(f, "environment {name}"),
            Origin::Flag => f.write_str("command line"),
        }
    }
}

/// A setting that can not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadConfig {
    /// No such key.
    #[error("{origin}: there is no setting {key:?}{hint}")]
    UnknownKey {
        /// Who said it.
        origin: Origin,
        /// What they said; it may be an address that stands in the wrong place.
        key: Address,
        /// What they may have meant.
        hint: String,
    },
    /// The value does not fit.
    #[error("{origin}: {key} = {value:?} {problem}")]
    BadValue {
        /// Who said it.
        origin: Origin,
        /// Which setting.
        key: &'static str,
        /// What they said.
        value: String,
        /// What is wrong with it and what would do.
        problem: String,
    },
    /// Two values do not fit together.
    #[error("{0}")]
    Together(String),
    /// The file can not be read.
    #[error("the configuration file {path}: {problem}")]
    File {
        /// Which.
        path: String,
        /// Why.
        problem: String,
    },
    /// `--set` without `=`.
    #[error("--set takes KEY=VALUE, for example --set worker.lease_seconds=30; this was {0:?}")]
    NotAPair(Address),
}

/// What `bus.url` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusKind {
    /// Carries bells and events.
    Nats,
    /// Carries bells.
    Redis,
}

/// A value and who set it.
#[derive(Clone, Debug)]
struct Value {
    /// As it may be printed: an address without its secrets.
    shown: String,
    /// The whole value, if it is an address.
    address: Option<Address>,
    origin: Origin,
}

impl Value {
    fn new(key: &Key, text: String, origin: Origin) -> Self {
        match key.form.is_address() {
            true => {
                let address = Address::from(text);
                Value { shown: address.to_string(), address: Some(address), origin }
            }
            false => Value { shown: text, address: None, origin },
        }
    }
}

/// What is in force.
#[derive(Clone, Debug)]
pub struct Settings(BTreeMap<&'static str, Value>);

impl Settings {
    /// File, environment and flags, in rising order of say; checked.
    pub fn load(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
        flags: &[String],
    ) -> Result<Self, BadConfig> {
        let default = |k| Value::new(k, k.default.to_owned(), Origin::Default);
        let defaults = KEYS.iter().map(|k: &'static Key| (k.name, default(k)));
        let mut settings = Settings(defaults.collect());
        if let Some(path) = file {
            settings.read_file(path)?;
        }
        let environment: Vec<(String, String)> = environment.into_iter().collect();
        outside::from_the_seed(&mut settings, &environment);
        for (name, value) in &environment {
            let key = KEYS.iter().find(|k| variable(k.name) == *name);
            if let Some(key) = key {
                settings.set(key.name, value.clone(), Origin::Environment(name.clone()))?;
            }
        }
        for pair in flags {
            let (key, value) =
                pair.split_once('=').ok_or_else(|| BadConfig::NotAPair(pair.into()))?;
            settings.set(key.trim(), value.trim().to_owned(), Origin::Flag)?;
        }
        settings.take_ssl_variables(&environment)?;
        settings.check_together()?;
        Ok(settings)
    }

    fn read_file(&mut self, path: &Path) -> Result<(), BadConfig> {
        let shown = path.display().to_string();
        let bad = |problem: String| BadConfig::File { path: shown.clone(), problem };
        let text = std::fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
        // Its text alone: the error itself shows the line, which may hold a password.
        let table: toml::Table = text.parse().map_err(|e: toml::de::Error| {
            let line = e.span().map_or(1, |span| text[..span.start].lines().count().max(1));
            bad(format!("line {line}: {}", e.message()))
        })?;
        let mut flat = Vec::new();
        flatten("", &table, &mut flat);
        for (key, value) in flat {
            self.set(&key, value, Origin::File(shown.clone()))?;
        }
        Ok(())
    }

    /// The files that settings came from.
    pub fn files(&self) -> BTreeSet<&str> {
        let origins = self.0.values().map(|value| &value.origin);
        let files = origins.filter_map(|origin| match origin {
            Origin::File(path) => Some(path.as_str()),
            _ => None,
        });
        files.collect()
    }

    fn set(&mut self, name: &str, value: String, origin: Origin) -> Result<(), BadConfig> {
        let Some(key) = KEYS.iter().find(|k| k.name == name) else {
            let hint = nearest(name).map_or_else(
                || "; `tenure config` lists all".to_owned(),
                |near| format!("; did you mean {near}?"),
            );
            return Err(BadConfig::UnknownKey { origin, key: name.into(), hint });
        };
        let problem = problem_of(key.form, &value).filter(|_| !outside::is_of_few(key.name));
        let value = Value::new(key, value, origin);
        if let Some(problem) = problem {
            let Value { shown, origin, .. } = value;
            // An address may stand in the wrong place.
            let value = match shown.contains("://") {
                true => Address::from(shown).to_string(),
                false => shown,
            };
            return Err(BadConfig::BadValue { origin, key: key.name, value, problem });
        }
        self.0.insert(key.name, value);
        Ok(())
    }

    /// What the variables of libpq say about TLS, where the address of the database says nothing.
    fn take_ssl_variables(&mut self, environment: &[(String, String)]) -> Result<(), BadConfig> {
        let address = self.address("store.url");
        if !address.expose().starts_with("postgres") {
            return Ok(());
        }
        let variable = |name: &str| {
            environment.iter().find(|(found, _)| found == name).map(|(_, value)| value.clone())
        };
        match tenure_postgres::with_environment(address.expose(), variable) {
            None => Ok(()),
            Some(whole) => self.set("store.url", whole, self.origin("store.url")),
        }
    }

    fn check_together(&self) -> Result<(), BadConfig> {
        let (lease, renewal) =
            (self.seconds("worker.lease_seconds"), self.seconds("worker.renewal_seconds"));
        if renewal * 2 > lease {
            let text = format!(
                "worker.renewal_seconds = {} is more than half of worker.lease_seconds = {}: one late renewal would \
                 cost everything the worker holds; renew at least twice per lease",
                self.text("worker.renewal_seconds"),
                self.text("worker.lease_seconds")
            );
            return Err(BadConfig::Together(text));
        }
        let (tick, gap) =
            (self.seconds("server.tick_seconds"), self.seconds("server.pulse_gap_seconds"));
        if gap * 2 < tick * 3 || gap + renewal > lease {
            let text = format!(
                "server.pulse_gap_seconds = {} must be at least one and a half ticks (server.tick_seconds = {}), or every \
                 slow round would look like an outage, and at most worker.lease_seconds - worker.renewal_seconds = {}, \
                 or a shorter outage would cost leases unseen",
                self.text("server.pulse_gap_seconds"),
                self.text("server.tick_seconds"),
                (lease - renewal).as_secs_f64()
            );
            return Err(BadConfig::Together(text));
        }
        if self.is_on("bus.jetstream") && self.bus() == Some(BusKind::Redis) {
            let text = "bus.jetstream = \"true\" keeps events in NATS, and bus.url names a Redis, which carries bells only: \
                        give nats://HOST:PORT, or leave bus.jetstream out";
            return Err(BadConfig::Together(text.to_owned()));
        }
        self.check_tls()?;
        let (first, cap) =
            (self.seconds("pods.backoff_seconds"), self.seconds("pods.backoff_max_seconds"));
        if first > cap {
            let text = format!(
                "pods.backoff_max_seconds = {} is less than pods.backoff_seconds = {}: the longest pause can not be shorter \
                 than the first",
                self.text("pods.backoff_max_seconds"),
                self.text("pods.backoff_seconds")
            );
            return Err(BadConfig::Together(text));
        }
        match self.pods().problem() {
            Some(problem) => Err(BadConfig::Together(format!("pods.*: {problem}"))),
            None => Ok(()),
        }
    }

    /// A certificate and its key come together.
    fn check_tls(&self) -> Result<(), BadConfig> {
        for (certificate, key) in [
            ("server.tls_certificate_file", "server.tls_key_file"),
            ("client.certificate_file", "client.key_file"),
        ] {
            if self.text(certificate).is_empty() != self.text(key).is_empty() {
                let text = format!("{certificate} and {key} belong together: give both, or none");
                return Err(BadConfig::Together(text));
            }
        }
        if !self.text("server.tls_client_ca_file").is_empty()
            && self.text("server.tls_certificate_file").is_empty()
        {
            let text = "server.tls_client_ca_file asks clients for a certificate, and the server has none itself: give \
                        server.tls_certificate_file and server.tls_key_file too";
            return Err(BadConfig::Together(text.to_owned()));
        }
        Ok(())
    }

    /// Which bus there is, if any.
    pub fn bus(&self) -> Option<BusKind> {
        match self.address("bus.url").expose() {
            "" => None,
            url if tenure_bell::redis::is_redis(url) => Some(BusKind::Redis),
            _ => Some(BusKind::Nats),
        }
    }

    /// Who set a value.
    pub fn origin(&self, name: &str) -> Origin {
        self.0.get(name).map_or(Origin::Default, |value| value.origin.clone())
    }

    /// A value as text, as it may be printed: of an address this is not the whole (see [`Settings::address`]). Empty for a key
    /// that does not exist.
    pub fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", |value| &value.shown)
    }

    /// A value that is an address.
    pub fn address(&self, name: &str) -> Address {
        let value = self.0.get(name);
        value
            .map(|v| v.address.clone().unwrap_or_else(|| v.shown.as_str().into()))
            .unwrap_or_default()
    }

    /// A value in seconds.
    pub fn seconds(&self, name: &str) -> Duration {
        Duration::from_secs_f64(self.text(name).parse().unwrap_or(0.0))
    }

    /// The milliseconds of a rule; `0` where it is switched off.
    fn rule_ms(&self, name: &str) -> u64 {
        let seconds: f64 = self.text(name).parse().unwrap_or(0.0);
        let on = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default();
        u64::try_from(on.as_millis()).unwrap_or(u64::MAX)
    }

    /// A whole number.
    pub fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }

    /// Whether a switch is on.
    pub fn is_on(&self, name: &str) -> bool {
        self.text(name) == "true"
    }

    /// Every key with its value, as it may be printed, and who set it.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Key, &str, &Origin)> {
        let found = |k: &'static Key| self.0.get(k.name).map(|v| (k, v.shown.as_str(), &v.origin));
        KEYS.iter().filter_map(found)
    }
}

/// The environment variable of a key.
pub fn variable(key: &str) -> String {
    format!("TENURE_{}", key.replace('.', "_").to_uppercase())
}

fn flatten(prefix: &str, table: &toml::Table, out: &mut Vec<(String, String)>) {
    for (name, value) in table {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match value {
            toml::Value::Table(inner) => flatten(&key, inner, out),
            toml::Value::String(text) => out.push((key, text.clone())),
            other => out.push((key, other.to_string())),
        }
    }
}

/// The key with the fewest edits to `name`, if that is few.
fn nearest(name: &str) -> Option<&'static str> {
    let scored = KEYS.iter().map(|k| (edits(name, k.name), k.name));
    scored.min().filter(|(n, _)| *n <= 4).map(|(_, key)| key)
}

fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let change = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests;
