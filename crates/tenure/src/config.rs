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
use std::{collections::BTreeMap, fmt, path::Path, time::Duration};

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
        /// What they said.
        key: String,
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
    NotAPair(String),
}

/// What `bus.url` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusKind {
    /// Carries bells and events.
    Nats,
    /// Carries bells.
    Redis,
}

/// What is in force.
#[derive(Clone, Debug)]
pub struct Settings(BTreeMap<&'static str, (String, Origin)>);

impl Settings {
    /// File, environment and flags, in rising order of say; checked.
    pub fn load(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
        flags: &[String],
    ) -> Result<Self, BadConfig> {
        let defaults = KEYS.iter().map(|k| (k.name, (k.default.to_owned(), Origin::Default)));
        let mut settings = Settings(defaults.collect());
        if let Some(path) = file {
            settings.read_file(path)?;
        }
        let environment: Vec<(String, String)> = environment.into_iter().collect();
        outside::from_the_seed(&mut settings, &environment);
        for (name, value) in environment {
            let key = KEYS.iter().find(|k| variable(k.name) == name);
            if let Some(key) = key {
                settings.set(key.name, value, Origin::Environment(name))?;
            }
        }
        for pair in flags {
            let (key, value) =
                pair.split_once('=').ok_or_else(|| BadConfig::NotAPair(pair.clone()))?;
            settings.set(key.trim(), value.trim().to_owned(), Origin::Flag)?;
        }
        settings.check_together()?;
        Ok(settings)
    }

    fn read_file(&mut self, path: &Path) -> Result<(), BadConfig> {
        let shown = path.display().to_string();
        let bad = |problem: String| BadConfig::File { path: shown.clone(), problem };
        let text = std::fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
        let table: toml::Table = text.parse().map_err(|e: toml::de::Error| bad(e.to_string()))?;
        let mut flat = Vec::new();
        flatten("", &table, &mut flat);
        for (key, value) in flat {
            self.set(&key, value, Origin::File(shown.clone()))?;
        }
        Ok(())
    }

    fn set(&mut self, name: &str, value: String, origin: Origin) -> Result<(), BadConfig> {
        let Some(key) = KEYS.iter().find(|k| k.name == name) else {
            let hint = nearest(name).map_or_else(
                || "; `tenure config` lists all".to_owned(),
                |near| format!("; did you mean {near}?"),
            );
            return Err(BadConfig::UnknownKey { origin, key: name.to_owned(), hint });
        };
        let problem = problem_of(key.form, &value).filter(|_| !outside::is_of_few(key.name));
        if let Some(problem) = problem {
            let value = without_secrets(&value);
            return Err(BadConfig::BadValue { origin, key: key.name, value, problem });
        }
        self.0.insert(key.name, (value, origin));
        Ok(())
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

    /// Which bus there is, if any.
    pub fn bus(&self) -> Option<BusKind> {
        match self.text("bus.url") {
            "" => None,
            url if tenure_bell::redis::is_redis(url) => Some(BusKind::Redis),
            _ => Some(BusKind::Nats),
        }
    }

    /// Who set a value.
    pub fn origin(&self, name: &str) -> Origin {
        self.0.get(name).map_or(Origin::Default, |(_, origin)| origin.clone())
    }

    /// A value as text. Empty for a key that does not exist.
    pub fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", |(value, _)| value)
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

    /// Every key with its value and who set it.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Key, &str, &Origin)> {
        KEYS.iter()
            .filter_map(|k| self.0.get(k.name).map(|(value, origin)| (k, value.as_str(), origin)))
    }
}

/// The environment variable of a key.
pub fn variable(key: &str) -> String {
    format!("TENURE_{}", key.replace('.', "_").to_uppercase())
}

/// A value without the passwords in its addresses, for people.
pub fn without_secrets(value: &str) -> String {
    let one = |address: &str| -> String {
        let Some((scheme, rest)) = address.split_once("://") else { return address.to_owned() };
        match rest.rsplit_once('@') {
            Some((login, rest)) if login.contains(':') => {
                let user = login.split(':').next().unwrap_or_default();
                format!("{scheme}://{user}:***@{rest}")
            }
            _ => address.to_owned(),
        }
    };
    value.split(',').map(one).collect::<Vec<_>>().join(",")
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
