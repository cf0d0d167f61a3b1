//! Findings in, diagnoses out. Pure: each of these functions looks at one promise, and says in words whether it is
//! kept, what that means and what to do. Every threshold is in this file or in `settings`.

use super::{alive, findings::Findings, kept, people, security, server::ServerSays, settings};
use serde::Serialize;
use serde_json::{Map, Value};
use std::time::Duration;
use tenure_kernel::time::Timestamp;

/// How it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Nothing is broken yet, or only a person can say.
    Warning,
    /// A promise is not kept.
    Wrong,
}

/// What was looked at, how it stands, and what to do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnosis {
    /// What was looked at.
    pub check: &'static str,
    /// How it stands.
    pub verdict: Verdict,
    /// In words.
    pub says: String,
    /// What to do, step by step.
    #[serde(rename = "do")]
    pub remedy: Vec<String>,
    /// The numbers behind it.
    pub numbers: Map<String, Value>,
    /// A section of `docs/operations.md`.
    pub page: Option<&'static str>,
}

impl Diagnosis {
    fn new(check: &'static str, verdict: Verdict, says: impl Into<String>) -> Self {
        let (says, remedy, numbers) = (says.into(), Vec::new(), Map::new());
        Diagnosis { check, verdict, says, remedy, numbers, page: None }
    }

    pub(super) fn ok(check: &'static str, says: impl Into<String>) -> Self {
        Diagnosis::new(check, Verdict::Ok, says)
    }

    pub(super) fn warning(check: &'static str, says: impl Into<String>) -> Self {
        Diagnosis::new(check, Verdict::Warning, says)
    }

    pub(super) fn wrong(check: &'static str, says: impl Into<String>) -> Self {
        Diagnosis::new(check, Verdict::Wrong, says)
    }

    pub(super) fn remedy(mut self, step: impl Into<String>) -> Self {
        self.remedy.push(step.into());
        self
    }

    pub(super) fn number(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.numbers.insert(name.to_owned(), value.into());
        self
    }

    pub(super) fn page(mut self, section: &'static str) -> Self {
        self.page = Some(section);
        self
    }
}

/// The longest time that a setting of a server can have: ten years.
const SETTING_SECONDS_MAX: f64 = 3_650.0 * 86_400.0;

/// The times that a deployment runs by: those of the server where it was asked, else those of this doctor.
pub(super) struct Times {
    pub(super) lease: Duration,
    pub(super) renewal: Duration,
    pub(super) tick: Duration,
    pub(super) gap: Duration,
}

impl Times {
    fn of(f: &Findings) -> Self {
        let said = f.server.as_ref().and_then(|s| s.as_ref().ok());
        let time = |key: &str| match said.and_then(|s| s.setting(key)) {
            // A number of somebody else's: what no setting allows is not believed.
            Some(seconds) if seconds > 0.0 && seconds <= SETTING_SECONDS_MAX => {
                Duration::from_secs_f64(seconds)
            }
            _ => f.settings.seconds(key),
        };
        Times {
            lease: time("worker.lease_seconds"),
            renewal: time("worker.renewal_seconds"),
            tick: time("server.tick_seconds"),
            gap: time("server.pulse_gap_seconds"),
        }
    }

    /// What is overdue by more than this is served by nobody: a server takes what others leave after two ticks.
    pub(super) fn late(&self) -> Duration {
        self.tick * 3 + Duration::from_secs(2)
    }
}

/// A message that waits for longer than this, or something that is due: past doubt.
pub(super) const STUCK_FOR_LONG: Duration = Duration::from_secs(60);
/// Clocks that differ by more than this make times of two machines hard to compare.
pub(super) const SKEW: Duration = Duration::from_secs(2);
/// Work that has waited in a queue for longer than this finds no worker.
pub(super) const QUEUED_LONG: Duration = Duration::from_secs(300);
/// Ids that are named in a sentence.
const NAMED_MAX: usize = 3;

/// Everything there is to say.
pub fn diagnose(f: &Findings) -> Vec<Diagnosis> {
    let times = Times::of(f);
    let mut all = vec![
        alive::servers(f, &times),
        alive::bounds(f, &times),
        alive::due(f, &times),
        kept::chains(f),
    ];
    all.extend(kept::outbox(f));
    all.extend(kept::intake(f));
    all.extend(kept::feed(f));
    all.push(alive::clocks(f));
    all.extend(alive::server(f));
    all.extend(alive::bus(f));
    all.extend([alive::bells(f), alive::rules(f), alive::workers(f, &times), alive::queues(f)]);
    all.extend([people::attention(f), people::blocks(f), people::effects(f)]);
    all.push(people::dead_letters(f));
    all.extend([people::turns(f), people::tasks(f)]);
    all.extend(settings::database(f));
    all.extend(settings::places(f));
    all.extend(settings::settings(f, &times));
    all.extend(security::security(f));
    all
}

/// A time as people say it.
pub(super) fn long(d: Duration) -> String {
    let s = d.as_secs_f64();
    match s {
        _ if s < 60.0 => format!("{s:.1} s"),
        _ if s < 3_600.0 => format!("{:.0} min {:.0} s", (s / 60.0).floor(), s % 60.0),
        _ if s < 86_400.0 => {
            format!("{:.0} h {:.0} min", (s / 3_600.0).floor(), s % 3_600.0 / 60.0)
        }
        _ => format!("{:.0} days", (s / 86_400.0).floor()),
    }
}

pub(super) fn ago(f: &Findings, at: Timestamp) -> String {
    long(f.health.now.since(at))
}

/// The first few, and how many more.
pub(super) fn named<T: ToString>(all: impl IntoIterator<Item = T>) -> String {
    let all: Vec<String> = all.into_iter().map(|t| t.to_string()).collect();
    let shown = all[..all.len().min(NAMED_MAX)].join(", ");
    match all.len().saturating_sub(NAMED_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

pub(super) fn open_entities(f: &Findings) -> u64 {
    f.health.open.iter().map(|o| o.count).sum()
}

pub(super) fn said(f: &Findings) -> Option<&ServerSays> {
    f.server.as_ref().and_then(|s| s.as_ref().ok())
}
